//! Format of the first bytes on a connection from the near end to the far end.
//!
//! | bytes | request |
//! | --- | --- |
//! | 0 | version, 1 |
//! | 1 | kind: 0 asks whether connections of this family are served, 1 connects |
//! | 2 to 3 | port of the server |
//! | 4 to 19 | address of the server; IPv4 as `::ffff:a.b.c.d` |
//! | 20 to 21 | 0 |
//! | 22 to 37 | the client's address in the tunnel, in the address family of the server's address |
//!
//! Numbers are big-endian. The answer is one byte, [`Answer`]. After [`Answer::Connected`], the connection carries the
//! bytes of both directions. The near end sends the application's bytes immediately after the request.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Port at which the far end listens on the tunnel's device.
pub(super) const PORT: u16 = 7703;

/// Length of a request in bytes.
pub(super) const REQUEST_LEN: usize = 38;

const VERSION: u8 = 1;

/// Request of the near end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Asks whether connections from `source`, the client's address, are served.
    Hello { source: IpAddr },
    /// Requests a connection to `target` from `source`, the client's address in the tunnel.
    Connect { target: SocketAddr, source: IpAddr },
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = VERSION;
        let unspecified = |ip| SocketAddr::new(ip, 0);
        let (kind, target, source) = match self {
            Self::Hello { source } => (0, unspecified(source), unspecified(source)),
            Self::Connect { target, source } => (1, target, unspecified(source)),
        };
        bytes[1] = kind;
        for (at, address) in [(2, target), (20, source)] {
            bytes[at..at + 2].copy_from_slice(&address.port().to_be_bytes());
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[at + 2..at + 18].copy_from_slice(&ip.octets());
        }
        bytes
    }

    /// Parses a request. Returns `None` for another version, an unknown kind, or port 0.
    pub(super) fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let address = |at: usize| {
            let port = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let ip: [u8; 16] = bytes[at + 2..at + 18].try_into().ok()?;
            let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
            Some(SocketAddr::new(ip, port))
        };
        match (bytes[0], bytes[1]) {
            (VERSION, 0) => Some(Self::Hello {
                source: address(20)?.ip(),
            }),
            (VERSION, 1) => {
                let (target, source) = (address(2)?, address(20)?.ip());
                (target.port() != 0).then_some(Self::Connect { target, source })
            }
            _ => None,
        }
    }
}

/// Answer of the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Answer {
    /// The server is connected. As an answer to [`Request::Hello`]: connections are served.
    Connected = 0,
    /// The server refused the connection.
    Refused = 1,
    /// There is no route to the server, or a router reports that it is unreachable.
    Unreachable = 2,
    /// The server does not answer.
    TimedOut = 3,
    /// Destinations to which the gateway does not connect for clients: the gateway itself, other clients, link-local
    /// addresses.
    Denied = 4,
    /// The gateway does not translate the client's address. With splitting, the server would see another source address
    /// than without.
    Untranslated = 5,
}

impl Answer {
    pub(super) fn decode(byte: u8) -> Option<Self> {
        [
            Self::Connected,
            Self::Refused,
            Self::Unreachable,
            Self::TimedOut,
            Self::Denied,
            Self::Untranslated,
        ]
        .into_iter()
        .find(|answer| *answer as u8 == byte)
    }

    /// Returns the answer for a failed attempt to connect.
    pub(super) fn of(error: &io::Error) -> Self {
        let kind = error.kind();
        if matches!(
            kind,
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
        ) {
            Self::Refused
        } else if kind == io::ErrorKind::TimedOut {
            Self::TimedOut
        } else {
            Self::Unreachable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let connect = |target: &str, source: &str| Request::Connect {
            target: target.parse().expect("literal"),
            source: source.parse().expect("literal"),
        };
        for request in [
            Request::Hello {
                source: "10.77.0.2".parse().expect("literal"),
            },
            connect("192.0.2.1:443", "10.77.0.2"),
            connect("[2001:db8::1]:80", "fd77::2"),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
    }

    #[test]
    fn other_versions_kinds_and_port_zero_are_refused() {
        let good = Request::Connect {
            target: "192.0.2.1:443".parse().expect("literal"),
            source: "10.77.0.2".parse().expect("literal"),
        };
        for (at, value) in [(0, 2), (1, 2), (1, 255)] {
            let mut bytes = good.encode();
            bytes[at] = value;
            assert_eq!(Request::decode(&bytes), None);
        }
        let mut bytes = good.encode();
        bytes[2..4].fill(0);
        assert_eq!(Request::decode(&bytes), None);
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        for byte in 0..=u8::MAX {
            let answer = Answer::decode(byte);
            assert_eq!(answer.is_some(), byte <= Answer::Untranslated as u8);
            assert!(answer.is_none_or(|answer| answer as u8 == byte));
        }
    }
}
