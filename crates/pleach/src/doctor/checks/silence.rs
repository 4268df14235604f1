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
                "the gateway is there and has the key that is written here, but does not know this client",
                "write this client's public key (`pleach pubkey`) into a [[client]] of the gateway, or have the gateway invite it anew and run `pleach join`",
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
                "the gateway speaks version {version} of the protocol, which is not this program's"
            ),
            "update pleach at the older end",
        ),
        HandshakeError::NoCommonSuite => Problem::new(
            "version",
            "the gateway and this program have no cipher in common",
            "update pleach at the older end",
        ),
        HandshakeError::Authentication
        | HandshakeError::Mac
        | HandshakeError::Malformed(_)
        | HandshakeError::RemoteKey
        | HandshakeError::WrongReceiver => Problem::new(
            "wrong-psk",
            "the gateway knows this client, but its pre-shared key is another",
            "write the same preshared_key_file at both ends, or leave it out at both",
        ),
    }
}

fn silent(link: &Facts, any_live: bool) -> Problem {
    let (name, endpoint) = (&link.link, link.endpoint);
    let (host, port) = (endpoint.ip(), endpoint.port());
    match (link.own_port, link.other_port, link.echo) {
        (Answer::Refused, _, _) => Problem::new(
            "nobody-listens",
            format!("{host} says that nobody listens on its UDP port {port}"),
            "start the gateway there (`systemctl start pleach@gateway`), or correct the port under [gateway] endpoints",
        ),
        (_, Answer::Refused, _) if any_live => Problem::new(
            "udp-port-blocked",
            format!("the network behind the link lets UDP through, but not to port {port} of the gateway, which answers over other links"),
            "have the gateway listen on a port that is mostly open, such as 443 ([tunnel] listen and [gateway] endpoints)",
        )
        .on(name),
        (_, Answer::Refused, _) => Problem::new(
            "wrong-key",
            format!("UDP reaches {host}, but nothing on its port {port} answers this client: a key is wrong, or a firewall drops this port"),
            "compare [gateway] public_key with the gateway's, and this client's (`pleach pubkey`) with its [[client]] there; `pleach doctor` at the gateway says whether handshakes arrive",
        ),
        (_, Answer::Silence, true) => Problem::new(
            "udp-blocked",
            format!("echo requests reach {host} over the link, but UDP does not on any port that was tried: it is blocked"),
            "ask who runs the network to let UDP out, or use the link for `pleach proxy`, which needs TCP only; if all links say so, look at the gateway's firewall",
        )
        .on(name),
        (_, Answer::Silence, false) => Problem::new(
            "no-answer",
            format!("nothing comes back from {host} over the link, neither UDP nor echo requests"),
            "see that the modem is online and has volume left, that no captive portal waits for a login, and that the address is right",
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
