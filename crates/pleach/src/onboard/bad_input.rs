//! Errors that the user has made, which end the program with exit code 2 instead of 1.

/// A message for the user; an error that `anyhow`'s error type carries.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub(crate) String);

impl BadInput {
    /// Returns the error as `anyhow` carries it.
    pub(crate) fn error(text: impl Into<String>) -> anyhow::Error {
        Self(text.into()).into()
    }
}
