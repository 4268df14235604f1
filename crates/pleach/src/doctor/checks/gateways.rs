//! Whether the gateways that a client does not use now could take over.

use pleach_core::session::handshake::HandshakeError;

use crate::{
    control::{LinkState, StatusReport},
    doctor::problem::Problem,
    onboard::probe::Finding,
};

/// Judges the gateways that are not in use, from the status of the daemon. No gateway is judged if no link is up over
/// UDP, because the daemon's questions need UDP.
pub(crate) fn from_status(status: &StatusReport) -> Vec<Problem> {
    let mut links = status.links.iter();
    if !links.any(|link| link.state == LinkState::Up && link.carrier.as_deref() != Some("tcp")) {
        return Vec::new();
    }
    let silent = status
        .gateways
        .iter()
        .filter(|gateway| !gateway.used && !gateway.answers);
    silent
        .map(|gateway| does_not_answer(&gateway.name))
        .collect()
}

/// Judges the gateway `name`, which is not in use, from handshakes over each link. `is_known`: whether a handshake was
/// completed.
pub(crate) fn from_handshakes(name: &str, is_known: bool, links: &[Finding]) -> Option<Problem> {
    let refused = links.iter().find_map(|finding| match finding {
        Finding::Refused(error) => Some(error),
        Finding::Live(_) | Finding::Silent | Finding::Unusable(_) => None,
    });
    let is_live = links
        .iter()
        .any(|finding| matches!(finding, Finding::Live(_)));
    match (is_live, is_known, refused) {
        (true, true, _) => None,
        (true, false, _) => Some(Problem::new(
            "gateway-refuses",
            format!(
                "the gateway {name} answers, but it does not know the key of this client, so it cannot take over"
            ),
            "write the public key of this client (`pleach pubkey`) into a [[client]] of that gateway",
        )),
        (false, _, Some(HandshakeError::Version(_) | HandshakeError::NoCommonSuite)) => {
            Some(Problem::new(
                "gateway-refuses",
                format!(
                    "the gateway {name} uses another version of the protocol, so it cannot take over"
                ),
                "update pleach on the host with the older version",
            ))
        }
        (false, _, Some(_)) => Some(Problem::new(
            "gateway-refuses",
            format!(
                "the pre-shared keys of this client and of the gateway {name} differ, so it cannot take over"
            ),
            "use the same preshared_key_file at both ends, or remove it at both ends",
        )),
        (false, _, None) => Some(does_not_answer(name)),
    }
}

fn does_not_answer(name: &str) -> Problem {
    Problem::new(
        "gateway-silent",
        format!("the gateway {name} does not answer over any link, so it cannot take over"),
        "check that it runs (`pleach doctor` there), and compare endpoints and public_key of its [[gateway]] with it",
    )
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::control::{GatewayStatus, LinkStatus};

    #[test]
    fn only_gateways_that_could_not_take_over_are_problems() {
        let live = Finding::Live(Duration::from_millis(20));
        let code = |is_known, links: &[Finding]| {
            from_handshakes("b", is_known, links).map(|problem| problem.code)
        };
        assert_eq!(code(true, &[Finding::Silent, live.clone()]), None);
        assert_eq!(code(false, &[live]), Some("gateway-refuses"));
        let wrong_psk = Finding::Refused(HandshakeError::Authentication);
        assert_eq!(code(false, &[wrong_psk]), Some("gateway-refuses"));
        assert_eq!(code(false, &[Finding::Silent]), Some("gateway-silent"));
        assert_eq!(code(false, &[]), Some("gateway-silent"));
        let gateway = |name: &str, used, answers| GatewayStatus {
            name: name.to_owned(),
            used,
            answers,
            ..GatewayStatus::default()
        };
        let mut status = StatusReport {
            gateways: vec![
                gateway("a", true, false),
                gateway("b", false, true),
                gateway("c", false, false),
            ],
            ..StatusReport::default()
        };
        assert_eq!(from_status(&status), [], "no link is up");
        let mut link = LinkStatus::bare("dsl", "eth1");
        link.state = LinkState::Up;
        status.links.push(link);
        let found = from_status(&status);
        assert!(found.len() == 1 && found[0].what.contains("gateway c "));
    }
}
