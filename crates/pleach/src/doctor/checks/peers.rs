//! Problems of clients that a gateway sees: a wrong key, a clock that went back, another version.
//!
//! They are recognised by counters. A counter that grows between two readings concerns a client that is trying at this
//! moment. Limit: a wrong pre-shared key is seen at the client only.

use crate::{control::StatusReport, doctor::problem::Problem};

/// Whether a client has failed since the gateway started. If so, it is worth waiting for its next attempt.
pub(crate) fn is_suspicious(report: &StatusReport) -> bool {
    let reasons = ["handshake_invalid", "handshake_replayed"];
    reasons
        .iter()
        .any(|reason| report.drops.get(*reason).is_some_and(|count| *count > 0))
}

/// Judges two statuses, taken a second or more apart.
pub(crate) fn verdicts(before: &StatusReport, after: &StatusReport) -> Vec<Problem> {
    let grows = |reason: &str| {
        let count = |report: &StatusReport| report.drops.get(reason).copied().unwrap_or(0);
        count(after) > count(before)
    };
    let mut problems = Vec::new();
    if grows("handshake_invalid") {
        problems.push(Problem::new(
            "wrong-key",
            "an unknown client tries to connect: this gateway does not have its public key, or the client has a wrong public key of this gateway",
            "write the public key of the client (`pleach pubkey`) into a [[client]] here, and the public key of this gateway into [gateway] public_key there; or invite the client again",
        ));
    }
    if grows("handshake_replayed") {
        problems.push(Problem::new(
            "client-clock",
            "a client sends handshakes with a time before that of its last handshake: its clock was set back, or another host uses its key",
            "set the clock of the client, and make sure that no two hosts use the same key",
        ));
    }
    for (client, version) in &after.incompatible {
        problems.push(Problem::new(
            "version",
            format!("client {client} uses version {version} of the protocol, this program uses another version"),
            "update pleach on the host with the older version",
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_stand_still_are_of_the_past() {
        let report = |invalid, replayed| StatusReport {
            drops: [
                ("handshake_invalid", invalid),
                ("handshake_replayed", replayed),
            ]
            .map(|(reason, count)| (reason.to_owned(), count))
            .into(),
            ..StatusReport::default()
        };
        let codes = |before: &StatusReport, after: &StatusReport| -> Vec<&str> {
            let problems = verdicts(before, after).into_iter();
            problems.map(|problem| problem.code).collect()
        };
        assert!(codes(&report(5, 5), &report(5, 5)).is_empty());
        assert_eq!(codes(&report(5, 5), &report(6, 5)), ["wrong-key"]);
        assert_eq!(codes(&report(5, 5), &report(5, 6)), ["client-clock"]);
        let mut other = report(0, 0);
        other.incompatible.insert("home".to_owned(), 2);
        assert_eq!(codes(&report(0, 0), &other), ["version"]);
    }
}
