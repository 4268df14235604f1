//! Returns all TCP connections of this network namespace with the kernel's data on each (`sock_diag(7)`).

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

use crate::tcp::{self, TcpInfo};

/// An established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// State of the connection.
    pub info: TcpInfo,
}

/// Returns the established connections of both families, at most `limit`.
///
/// # Errors
/// Returns the error of the kernel.
pub fn connections(limit: usize) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let diag: OwnedFd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        set_socket_timeout(&diag, Timeout::Recv, Some(PATIENCE))?;
        send(&diag, &request(family), SendFlags::empty())?;
        let mut answer = vec![0; 32 << 10];
        loop {
            let (len, _) = recv(&diag, &mut answer[..], RecvFlags::empty())?;
            if take(&answer[..len], limit, &mut found)? {
                break;
            }
        }
    }
    Ok(found)
}

/// Processes the messages of one answer. Returns whether it was the last.
pub(crate) fn take(
    mut answer: &[u8],
    limit: usize,
    found: &mut Vec<Connection>,
) -> io::Result<bool> {
    loop {
        let (Some(len), Some(kind)) = (number::<4>(answer, 0), number::<2>(answer, 4)) else {
            return Ok(answer.is_empty() && found.len() >= limit);
        };
        let Some(message) = answer.get(HEADER_LEN..len).filter(|_| len >= HEADER_LEN) else {
            return Ok(true);
        };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = message
                    .first_chunk::<4>()
                    .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            _ if found.len() < limit => found.extend(connection(message)),
            _ => {}
        }
        answer = answer.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Parses `struct inet_diag_msg` and its attributes.
fn connection(message: &[u8]) -> Option<Connection> {
    let is_v4 = i32::from(*message.first()?) == libc::AF_INET;
    let port = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let ip = |at: usize| -> Option<IpAddr> {
        let octets = message.get(at..)?.first_chunk::<16>()?;
        if is_v4 {
            let octets: &[u8; 4] = octets.first_chunk()?;
            return Some(Ipv4Addr::from(*octets).into());
        }
        Some(Ipv6Addr::from(*octets).to_canonical())
    };
    let local = SocketAddr::new(ip(8)?, port(4)?);
    let remote = SocketAddr::new(ip(24)?, port(6)?);
    let mut rest = message.get(MESSAGE_LEN..)?;
    while let (Some(len), Some(kind)) = (number::<2>(rest, 0), number::<2>(rest, 2)) {
        let value = rest.get(4..len)?;
        if kind == INET_DIAG_INFO {
            let info = tcp::parse(value);
            return Some(Connection {
                local,
                remote,
                info,
            });
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// Returns a `SOCK_DIAG_BY_FAMILY` request for all established TCP sockets of `family`, with `tcp_info`.
fn request(family: i32) -> Vec<u8> {
    const REQUEST_LEN: u32 = 16 + 56;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x301;
    const ESTABLISHED: u32 = 1 << 1;
    let byte = |number: i32| u8::try_from(number).unwrap_or(0);
    let mut message = Vec::new();
    message.extend_from_slice(&REQUEST_LEN.to_ne_bytes());
    message.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[
        byte(family),
        byte(libc::IPPROTO_TCP),
        1 << (INET_DIAG_INFO - 1),
        0,
    ]);
    message.extend_from_slice(&ESTABLISHED.to_ne_bytes());
    // Any addresses, ports, interface.
    message.extend_from_slice(&[0; 48]);
    message
}

/// Returns the number of `N` bytes at `at`, in the byte order of this host.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk::<N>()?;
    let mut wide = [0; 8];
    let place = if cfg!(target_endian = "little") {
        0
    } else {
        8 - N
    };
    wide[place..place + N].copy_from_slice(bytes);
    usize::try_from(u64::from_ne_bytes(wide)).ok()
}

const HEADER_LEN: usize = 16;
const MESSAGE_LEN: usize = 72;
const INET_DIAG_INFO: usize = 2;
const NLMSG_ERROR: usize = 2;
const NLMSG_DONE: usize = 3;
/// Time to wait for an answer. The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::requirement;

    #[test]
    fn a_connection_of_ours_is_among_them() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                requirement::skip(format_args!("{address}: no such address here"));
                continue;
            };
            let mut client =
                TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (mut server, remote) = listener.accept().expect("accepts");
            client.write_all(&[1; 1000]).expect("writes");
            server.read_exact(&mut [0; 1000]).expect("reads");
            let all = connections(10_000).expect("sock_diag");
            let found = all
                .iter()
                .find(|found| found.local == remote)
                .expect("it is there");
            assert_eq!(found.remote, listener.local_addr().expect("bound"));
            assert!(
                found.info.min_rtt > Duration::ZERO && found.info.segments >= 2,
                "{found:?}"
            );
        }
    }
}
