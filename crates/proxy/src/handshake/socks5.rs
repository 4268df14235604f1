//! SOCKS5 (RFC 1928): CONNECT and UDP ASSOCIATE, without authentication.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Command, Failure, Protocol, Request, Step, refuse};
use crate::target::{Host, Target};

/// Reads the client's authentication methods, and chooses "no authentication" if the client offers it.
pub(super) fn greeting(buffer: &mut Vec<u8>, is_greeted: &mut bool) -> Step {
    let Some(&count) = buffer.get(1) else {
        return Step::More;
    };
    let end = 2 + usize::from(count);
    let Some(methods) = buffer.get(2..end) else {
        return Step::More;
    };
    if !methods.contains(&NO_AUTHENTICATION) {
        return refuse(
            vec![5, 0xff],
            "SOCKS5 client offers no method without authentication",
        );
    }
    buffer.drain(..end);
    *is_greeted = true;
    Step::Reply(vec![5, NO_AUTHENTICATION])
}

/// Reads the request after the greeting.
pub(super) fn request(buffer: &mut Vec<u8>) -> Step {
    let &[_, command, _, kind, ..] = buffer.as_slice() else {
        return Step::More;
    };
    let command = match command {
        1 => Command::Connect,
        3 => Command::UdpAssociate,
        other => {
            return refuse(
                reply(COMMAND_NOT_SUPPORTED, NOWHERE),
                format!("SOCKS5 command {other}: only CONNECT and UDP ASSOCIATE are served"),
            );
        }
    };
    if ![IPV4, NAME, IPV6].contains(&kind) {
        return refuse(
            reply(ADDRESS_NOT_SUPPORTED, NOWHERE),
            format!("SOCKS5 address type {kind} is unknown"),
        );
    }
    let Some((host, port, len)) = address(&buffer[3..]) else {
        return Step::More;
    };
    let target = match (host, command) {
        // A client that does not know its source address yet sends an unspecified address.
        (host, Command::UdpAssociate) => Some(Target {
            host: host.unwrap_or(Host::Ip(Ipv4Addr::UNSPECIFIED.into())),
            port,
        }),
        (Some(host), Command::Connect) => Target::new(host, port),
        (None, Command::Connect) => None,
    };
    let Some(target) = target else {
        return refuse(
            reply(GENERAL_FAILURE, NOWHERE),
            "SOCKS5 request for a host or port that cannot be",
        );
    };
    let rest = buffer.split_off(3 + len);
    Step::Request(Box::new(Request {
        command,
        rest,
        ..Request::tunnel(Protocol::Socks5, target)
    }))
}

/// Reads address type, address and port, and returns host, port and their length. The host is `None` if it is
/// invalid. The result is `None` if the bytes are incomplete or the type is unknown.
fn address(bytes: &[u8]) -> Option<(Option<Host>, u16, usize)> {
    let (&kind, rest) = bytes.split_first()?;
    let (host, used) = match kind {
        IPV4 => {
            let octets: [u8; 4] = *rest.first_chunk()?;
            (Some(Host::Ip(Ipv4Addr::from(octets).into())), 4)
        }
        IPV6 => {
            let octets: [u8; 16] = *rest.first_chunk()?;
            let ip = IpAddr::from(Ipv6Addr::from(octets)).to_canonical();
            (Some(Host::Ip(ip)), 16)
        }
        NAME => {
            let (&len, name) = rest.split_first()?;
            let name = name.get(..len.into())?;
            let host = core::str::from_utf8(name).ok().and_then(Host::parse);
            (host, 1 + usize::from(len))
        }
        _ => return None,
    };
    let port: [u8; 2] = *rest.get(used..)?.first_chunk()?;
    Some((host, u16::from_be_bytes(port), 1 + used + 2))
}

/// Returns the reply with `code` and the address `bound`.
#[must_use]
pub(super) fn reply(code: u8, bound: SocketAddr) -> Vec<u8> {
    let mut reply = vec![5, code, 0];
    push_address(&mut reply, bound);
    reply
}

/// Returns the reply to UDP ASSOCIATE: the client has to send its datagrams to `relay`.
#[must_use]
pub fn associated(relay: SocketAddr) -> Vec<u8> {
    reply(SUCCEEDED, relay)
}

/// Reads the header of a client's datagram. Returns its target and the position of the payload. `None` for fragments
/// and invalid headers.
#[must_use]
pub fn datagram(bytes: &[u8]) -> Option<(Target, usize)> {
    // Two reserved bytes, then the fragment number. Fragments are optional, and clients do not send them.
    let [_, _, 0, address_bytes @ ..] = bytes else {
        return None;
    };
    let (host, port, len) = address(address_bytes)?;
    Some((Target::new(host?, port)?, 3 + len))
}

/// Writes the header of a datagram from `source` into `out`.
pub fn push_datagram_header(out: &mut Vec<u8>, source: SocketAddr) {
    out.extend_from_slice(&[0, 0, 0]);
    push_address(out, source);
}

fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Returns the reply code (RFC 1928, section 6).
pub(super) fn code_of(failure: Failure) -> u8 {
    match failure {
        Failure::General => GENERAL_FAILURE,
        Failure::HostUnreachable | Failure::TimedOut => HOST_UNREACHABLE,
        Failure::NetworkUnreachable => NETWORK_UNREACHABLE,
        Failure::NotAllowed => NOT_ALLOWED,
        Failure::Refused => REFUSED,
    }
}

/// Address in replies that have no address to report.
pub(super) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

pub(super) const SUCCEEDED: u8 = 0;
const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_NOT_SUPPORTED: u8 = 8;

const NO_AUTHENTICATION: u8 = 0;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
