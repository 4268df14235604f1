//! A problem that a check finds.

use serde::Serialize;

/// A problem, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// Fixed code of the problem; `docs/doctor.md` lists the codes.
    pub(crate) code: &'static str,
    /// Link that the problem is about; `None` if it is about the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// Description of the problem, a sentence without its full stop.
    pub(crate) what: String,
    /// What the user should do, a sentence without its full stop.
    pub(crate) remedy: String,
}

impl Problem {
    /// Makes a problem of the host.
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

    /// Assigns the problem to a link.
    pub(crate) fn on(self, link: &str) -> Self {
        Self {
            link: Some(link.to_owned()),
            ..self
        }
    }

    /// Returns the problem as a paragraph of the report.
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
