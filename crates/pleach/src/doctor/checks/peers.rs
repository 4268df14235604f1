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
            "a client tries to connect whose key this gateway does not know, or that has another public key for this gateway",
            "write the client's public key (`pleach pubkey`) into a [[client]] here and this gateway's into its [gateway] public_key, or invite it anew",
        ));
    }
    if grows("handshake_replayed") {
        problems.push(Problem::new(
            "client-clock",
            "a client sends handshakes that are older than its last: its clock went back, or another host has its key",
            "set the client's clock, and see that no two hosts use one key",
        ));
    }
    for (client, version) in &after.incompatible {
        problems.push(Problem::new(
            "version",
            format!("client {client} speaks version {version} of the protocol, which is not this program's"),
            "update pleach at the older end",
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
