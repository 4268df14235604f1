//! Whether TCP carries a link because UDP is blocked, or why TCP cannot carry it.

use crate::{
    control::{LinkState, LinkStatus},
    doctor::problem::Problem,
};

/// Judges a link by its status. `is_wanted`: the user has configured TCP even where UDP works.
pub(crate) fn verdict(link: &LinkStatus, is_wanted: bool) -> Option<Problem> {
    let is_tcp = link.carrier.as_deref() == Some("tcp");
    if let Some(error) = link
        .carrier_error
        .as_ref()
        .filter(|_| link.state == LinkState::Down)
    {
        let (word, why) = error.split_once(": ").unwrap_or(("", error));
        let (code, remedy) = match word {
            "intercepted" => (
                "tls-intercepted",
                "ask the operator of the network not to intercept this TLS connection, use another link, or compare [gateway] public_key with the public key of the gateway",
            ),
            "not-the-gateway" => (
                "carrier-not-the-gateway",
                "compare [carrier] listen of the gateway, the configuration of its web server and [carrier] endpoints of this client (docs/carrier.md)",
            ),
            "proxy-password" => (
                "http-proxy-password",
                "set http_proxy_user and http_proxy_password_file in the table of the link, and reload the service",
            ),
            "proxy-refused" => (
                "http-proxy-refused",
                "check http_proxy of the link with the operator of the network",
            ),
            // A gateway need not listen on TCP. Another check finds why UDP gets no answer.
            _ => return None,
        };
        return Some(
            Problem::new(
                code,
                format!("UDP gets no answer, and TCP does not carry the link: {why}"),
                remedy,
            )
            .on(&link.name),
        );
    }
    (is_tcp && !is_wanted && link.state != LinkState::Down).then(|| {
        Problem::new(
            "udp-blocked",
            "UDP is blocked, so TCP carries the link: the link works, but a lost packet delays all packets behind it",
            "no action is required; the operator of the network may allow UDP. pleach tries UDP again at least every 10 minutes",
        )
        .on(&link.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(
        carrier: &str,
        error: Option<&str>,
        state: LinkState,
        is_wanted: bool,
    ) -> Option<&'static str> {
        let link = LinkStatus {
            carrier: Some(carrier.to_owned()),
            carrier_error: error.map(str::to_owned),
            state,
            ..LinkStatus::bare("hotel", "wlan0")
        };
        verdict(&link, is_wanted).map(|problem| problem.code)
    }

    #[test]
    fn each_reason_has_its_word() {
        let down = LinkState::Down;
        assert_eq!(code("udp", None, down, false), None);
        assert_eq!(code("udp", Some("unreachable: x"), down, false), None);
        assert_eq!(code("tcp", None, LinkState::Up, true), None);
        assert_eq!(code("tcp", None, LinkState::Up, false), Some("udp-blocked"));
        for (error, expected) in [
            ("intercepted: x", "tls-intercepted"),
            ("proxy-password: x", "http-proxy-password"),
            ("proxy-refused: x", "http-proxy-refused"),
            ("not-the-gateway: x", "carrier-not-the-gateway"),
        ] {
            assert_eq!(code("udp", Some(error), down, false), Some(expected));
            assert_eq!(
                code("udp", Some(error), LinkState::Up, false),
                None,
                "UDP works"
            );
        }
    }
}
