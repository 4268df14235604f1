//! Whether a captive portal keeps a link from the gateway.

use crate::{doctor::problem::Problem, portal::Verdict};

/// Judges the result of a check over a link on which the gateway does not answer.
pub(crate) fn verdict(verdict: &Verdict) -> Option<Problem> {
    let (what, remedy) = match verdict {
        Verdict::Open | Verdict::Unknown => return None,
        Verdict::Portal(Some(url)) => (
            format!("a captive portal on the link asks for a login at {url}"),
            format!("open {url} in a browser over this link, and log in"),
        ),
        Verdict::Portal(None) => (
            "a captive portal on the link answers in place of web servers".to_owned(),
            "open a page that begins with http:// in a browser over this link, and log in"
                .to_owned(),
        ),
    };
    Some(Problem::new(CODE, what, remedy))
}

/// Code of the problem.
pub(crate) const CODE: &str = "captive-portal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_is_named_with_its_page() {
        let url = "http://login.example/";
        let problem = verdict(&Verdict::Portal(Some(url.to_owned()))).expect("a problem");
        assert!(problem.what.contains(url) && problem.remedy.contains(url));
        assert!(verdict(&Verdict::Portal(None)).is_some());
        assert_eq!(verdict(&Verdict::Open), None);
        assert_eq!(verdict(&Verdict::Unknown), None);
    }
}
