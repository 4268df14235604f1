//! Whether TCP carries a link because UDP does not get through, or what keeps it from doing so.

use crate::{
    control::{LinkState, LinkStatus},
    doctor::problem::Problem,
};

/// From a link's status; `is_wanted`: the user wants TCP whatever UDP does.
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
                "have the network let this connection pass unopened, use another link, or compare [gateway] public_key with the gateway's",
            ),
            "not-the-gateway" => (
                "carrier-not-the-gateway",
                "compare [carrier] listen of the gateway, its web server's configuration and [carrier] endpoints here: docs/carrier.md",
            ),
            "proxy-password" => (
                "http-proxy-password",
                "write user and password of the proxy into the link's table, and reload",
            ),
            "proxy-refused" => (
                "http-proxy-refused",
                "compare http_proxy of the link with what the network's operator says",
            ),
            // A gateway need not listen for TCP; why UDP is silent, another check finds.
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
            "UDP does not get through, so TCP carries the link: it works, but a lost packet delays those behind it",
            "nothing need be done; who runs the network may let UDP out. UDP is tried again every 10 minutes at least",
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
