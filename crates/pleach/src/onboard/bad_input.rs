//! The user's mistake, told from what went wrong: exit code 2 instead of 1.

/// A sentence for the user; as an error inside of `anyhow`'s.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub(crate) String);

impl BadInput {
    /// It, as `anyhow` carries it.
    pub(crate) fn error(text: impl Into<String>) -> anyhow::Error {
        Self(text.into()).into()
    }
}
