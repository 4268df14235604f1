//! Why the gateway does not answer over a link.
//!
//! Four probes are used for each link: a handshake, or the status of a daemon that has a session; an echo request; and,
//! if the handshake is not answered, a datagram to the gateway's port and one to a port without a listener. A host
//! answers a datagram to a port without a listener with "port unreachable" (RFC 1122 section 4.1.3.1), which shows that
//! UDP passes in both directions. If the gateway does not run, its host answers the datagram to the gateway's port in
//! this way too.
//!
//! A gateway does not answer unknown clients. So a wrong key and a port that is blocked on every link look the same at
//! the client. Then the message names both causes, and `pleach doctor` at the gateway finds which one it is.

use std::net::SocketAddr;

use pleach_core::session::handshake::HandshakeError;

use crate::doctor::problem::Problem;

/// Result of a handshake over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// The gateway answers.
    Live,
    /// The gateway has the configured key and asks for a cookie, but does not continue the handshake.
    Cookie,
    /// The gateway's answer cannot be used by this client.
    Refused(HandshakeError),
    /// The gateway does not answer.
    Silent,
    /// The link could not be used, or must not be used.
    Untried,
}

/// Result of a datagram to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// "Port unreachable": no program listens on the port, and UDP passes.
    Refused,
    /// No answer.
    Silence,
}

/// Facts about a link.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) link: String,
    /// Address of the gateway.
    pub(crate) endpoint: SocketAddr,
    pub(crate) handshake: Handshake,
    /// Whether an echo request was answered.
    pub(crate) echo: bool,
    /// Answer at the gateway's port.
    pub(crate) own_port: Answer,
    /// Answer at a port of the gateway's host without a listener.
    pub(crate) other_port: Answer,
}

/// Returns at most one problem per link, and each problem once.
pub(crate) fn verdicts(links: &[Facts]) -> Vec<Problem> {
    let any_live = links.iter().any(|link| link.handshake == Handshake::Live);
    let mut problems: Vec<Problem> = Vec::new();
    for link in links {
        let problem = match link.handshake {
            Handshake::Live | Handshake::Untried => continue,
            Handshake::Cookie => Problem::new(
                "wrong-key",
                "the gateway answers and has the configured public key, but it does not know the key of this client",
                "write the public key of this client (`pleach pubkey`) into a [[client]] of the gateway; or get a new token (`pleach gateway invite`) and run `pleach join`",
            ),
            Handshake::Refused(error) => refused(error),
            Handshake::Silent => silent(link, any_live),
        };
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

fn refused(error: HandshakeError) -> Problem {
    match error {
        HandshakeError::Version(version) => Problem::new(
            "version",
            format!(
                "the gateway uses version {version} of the protocol, this program uses another version"
            ),
            "update pleach on the host with the older version",
        ),
        HandshakeError::NoCommonSuite => Problem::new(
            "version",
            "the gateway and this program have no cipher in common",
            "update pleach on the host with the older version",
        ),
        HandshakeError::Authentication
        | HandshakeError::Mac
        | HandshakeError::Malformed(_)
        | HandshakeError::RemoteKey
        | HandshakeError::WrongReceiver => Problem::new(
            "wrong-psk",
            "the gateway knows this client, but the pre-shared keys of the two ends differ",
            "use the same preshared_key_file at both ends, or remove it at both ends",
        ),
    }
}

fn silent(link: &Facts, any_live: bool) -> Problem {
    let (name, endpoint) = (&link.link, link.endpoint);
    let (host, port) = (endpoint.ip(), endpoint.port());
    match (link.own_port, link.other_port, link.echo) {
        (Answer::Refused, _, _) => Problem::new(
            "nobody-listens",
            format!("on {host}, no program listens on UDP port {port}"),
            "start the gateway there (`systemctl start pleach@gateway`), or correct the port in [gateway] endpoints",
        ),
        (_, Answer::Refused, _) if any_live => Problem::new(
            "udp-port-blocked",
            format!("the network behind the link blocks UDP to port {port} of the gateway, but not to other ports; the gateway answers over other links"),
            "let the gateway listen on a port that is rarely blocked, such as 443 ([tunnel] listen and [gateway] endpoints)",
        )
        .on(name),
        (_, Answer::Refused, _) => Problem::new(
            "wrong-key",
            format!("UDP reaches {host}, but its port {port} does not answer this client: a key is wrong, or a firewall drops packets to this port"),
            "compare [gateway] public_key with the public key of the gateway, and the public key of this client (`pleach pubkey`) with its [[client]] there; `pleach doctor` at the gateway shows whether handshakes arrive",
        ),
        (_, Answer::Silence, true) => Problem::new(
            "udp-blocked",
            format!("the network behind the link blocks UDP: pings reach {host}, but UDP does not on any tested port"),
            "ask the operator of the network to allow outgoing UDP, or use the link for `pleach proxy`, which needs TCP only; if all links have this problem, check the firewall of the gateway",
        )
        .on(name),
        (_, Answer::Silence, false) => Problem::new(
            "no-answer",
            format!("{host} answers neither UDP nor pings over the link"),
            "check that the modem is online, that its data volume is not used up, that no captive portal requires a login, and that the address is right",
        )
        .on(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(handshake: Handshake, own: bool, other: bool, echo: bool) -> Facts {
        let answer = |is_refused| {
            if is_refused {
                Answer::Refused
            } else {
                Answer::Silence
            }
        };
        Facts {
            link: "lte".to_owned(),
            endpoint: "203.0.113.5:7700".parse().expect("literal"),
            handshake,
            echo,
            own_port: answer(own),
            other_port: answer(other),
        }
    }

    #[test]
    fn the_answers_tell_what_is_in_the_way() {
        use Handshake::{Cookie, Live, Refused, Silent, Untried};
        let live = link(Live, false, true, true);
        let code = |handshake, own, other, echo, beside: Option<&Facts>| {
            let mut links = vec![link(handshake, own, other, echo)];
            links.extend(beside.cloned());
            let found = verdicts(&links);
            assert!(found.len() <= 1);
            found.first().map(|problem| problem.code)
        };
        assert_eq!(code(Live, false, true, true, None), None);
        assert_eq!(code(Untried, false, false, false, None), None);
        assert_eq!(code(Silent, true, true, true, None), Some("nobody-listens"));
        assert_eq!(code(Silent, false, true, true, None), Some("wrong-key"));
        assert_eq!(
            code(Silent, false, true, true, Some(&live)),
            Some("udp-port-blocked")
        );
        assert_eq!(
            code(Silent, false, false, true, Some(&live)),
            Some("udp-blocked")
        );
        assert_eq!(
            code(Silent, false, false, false, Some(&live)),
            Some("no-answer")
        );
        assert_eq!(code(Cookie, false, true, true, None), Some("wrong-key"));
        let wrong_psk = Refused(HandshakeError::Authentication);
        assert_eq!(code(wrong_psk, false, true, true, None), Some("wrong-psk"));
        assert_eq!(
            code(Refused(HandshakeError::Version(2)), false, true, true, None),
            Some("version")
        );
        let both = [
            link(wrong_psk, false, true, true),
            link(wrong_psk, false, true, true),
        ];
        assert_eq!(verdicts(&both).len(), 1, "said once");
    }
}
