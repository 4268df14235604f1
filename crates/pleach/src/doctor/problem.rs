//! What a check finds.

use serde::Serialize;

/// A trouble, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// A fixed word; `docs/doctor.md` lists them.
    pub(crate) code: &'static str,
    /// The link it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// What is the case, in a sentence without its full stop.
    pub(crate) what: String,
    /// What to do, in a sentence without its full stop.
    pub(crate) remedy: String,
}

impl Problem {
    /// A problem of the host.
    pub(crate) fn new(
        code: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            code,
            link: None,
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The same of a link.
    pub(crate) fn on(self, link: &str) -> Self {
        Self {
            link: Some(link.to_owned()),
            ..self
        }
    }

    /// As a paragraph of the report.
    pub(crate) fn text(&self) -> String {
        let place = self
            .link
            .as_ref()
            .map_or_else(String::new, |link| format!(", link {link}"));
        format!(
            "{}{place}: {}.\n    Remedy: {}.\n",
            self.code, self.what, self.remedy
        )
    }
}
