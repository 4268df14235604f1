//! Finds the process that owns a local TCP connection or UDP socket: `sock_diag(7)` gives the socket's inode and user,
//! `/proc/*/fd` the process that has it open.
//!
//! The search in `/proc` takes some milliseconds. It needs the permission to see the process: a process sees those of its own
//! user, and with [`RIGHTS`] all. Programs in other PID namespaces, or already ended, are not found.
//!
//! [`RIGHTS`] give power over all processes, and a process confined by landlock sees no other process. So [`Finder`] is another
//! process that does only this: it reads numbers of inodes, and answers with names.

mod finder;

use std::{
    fs, io,
    iter::successors,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
    },
    thread::capabilities,
};

use crate::confine::CapabilitySet;

pub use finder::{Finder, serve};

/// Capabilities with which processes of all users are found.
pub const RIGHTS: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// Whether this process has [`RIGHTS`], or may give them to a child.
#[must_use]
pub fn sees_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(RIGHTS))
}

/// Inode and user of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Inode of the socket.
    pub inode: u32,
    /// User who created the socket.
    pub uid: u32,
}

/// Transport protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP socket, connected to the remote address.
    Tcp,
    /// The UDP socket that receives datagrams from the remote address: connected to it, or not connected.
    Udp,
}

/// Returns the socket of this network namespace with address `local` that communicates with `remote`. With UDP,
/// `local` must be an address of this host: the kernel also returns a socket that is bound to all addresses. An
/// IPv4-mapped IPv6 address means the IPv4 address.
///
/// # Errors
/// Returns the error of the kernel, `ENOENT` if there is no such socket.
pub fn socket(transport: Transport, local: SocketAddr, remote: SocketAddr) -> io::Result<Socket> {
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let (local, remote) = (canonical(local), canonical(remote));
    let diag: OwnedFd = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(
        &diag,
        &request(transport, local, remote),
        SendFlags::empty(),
    )?;
    let mut answer = [0; 1024];
    let (_, len) = recv(&diag, &mut answer, RecvFlags::empty())?;
    parse(&answer[..len.min(answer.len())])
}

/// Returns the name of the process that has the socket `inode` open, as in `/proc/PID/comm`. `None` if none is found.
///
/// Children inherit open sockets, at least until they start their program: of a process and its parent, the parent is returned,
/// unless it is the first process, which opens sockets for the services that it starts (`systemd.socket(5)`). The search takes
/// some milliseconds. No process has a socket with inode 0, which the kernel states for connections that are closed already.
#[must_use]
pub fn process_name(inode: u32) -> Option<String> {
    if inode == 0 {
        return None;
    }
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // Usually a recently started process is searched for.
    pids.sort_unstable_by(|a, b| b.cmp(a));
    let mut opened = pids.into_iter().filter(|pid| has_open(*pid, inode));
    // A process may end before its name is read.
    opened.find_map(|pid| {
        let holders = successors(Some(pid), |pid| {
            parent(*pid).filter(|parent| *parent > FIRST_PID && has_open(*parent, inode))
        });
        let name = fs::read_to_string(format!("/proc/{}/comm", holders.last()?)).ok()?;
        Some(name.trim_end().to_owned())
    })
}

/// Returns the name that [`process_name`] finds in `finder`; `None` as finder: in this process.
#[must_use]
pub fn find_name(finder: Option<&Finder>, inode: u32) -> Option<String> {
    finder.map_or_else(|| process_name(inode), |finder| finder.process_name(inode))
}

/// Whether the process `pid` has the socket `inode` open. No, if this process may not see it.
fn has_open(pid: u32, inode: u32) -> bool {
    let link = format!("socket:[{inode}]");
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut entries| {
        entries.any(|entry| {
            let target = entry.and_then(|entry| fs::read_link(entry.path()));
            target.is_ok_and(|target| target == Path::new(&link))
        })
    })
}

/// Returns the parent of the process `pid`: in `/proc/PID/stat`, behind the name in parentheses and the state (`proc(5)`).
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_the_name) = stat.rsplit_once(')')?;
    behind_the_name.split_whitespace().nth(1)?.parse().ok()
}

/// Returns a `SOCK_DIAG_BY_FAMILY` request for exactly one socket: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(transport: Transport, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    // For UDP, the kernel looks up the receiver of a datagram from the first address to the second
    // (`udp_dump_one` in net/ipv4/udp_diag.c: "src and dst are swapped for historical reasons").
    let (protocol, first, second) = match transport {
        Transport::Tcp => (libc::IPPROTO_TCP, local, remote),
        Transport::Udp => (libc::IPPROTO_UDP, remote, local),
    };
    let mut message = Vec::with_capacity(REQUEST_LEN);
    let len = u32::try_from(REQUEST_LEN).unwrap_or(0);
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and sender.
    message.extend_from_slice(&[0; 8]);
    let family = if local.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let byte = |number: i32| u8::try_from(number).unwrap_or(0);
    message.extend_from_slice(&[byte(family), byte(protocol), 0, 0]);
    message.extend_from_slice(&u32::MAX.to_ne_bytes());
    message.extend_from_slice(&first.port().to_be_bytes());
    message.extend_from_slice(&second.port().to_be_bytes());
    for address in [first, second] {
        let mut octets = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => octets = ip.octets(),
        }
        message.extend_from_slice(&octets);
    }
    // Any interface, no cookie.
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&[0xff; 8]);
    message
}

pub(crate) fn parse(answer: &[u8]) -> io::Result<Socket> {
    let word = |offset: usize| {
        let bytes = answer
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<4>());
        bytes
            .map(|bytes| u32::from_ne_bytes(*bytes))
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let kind = word(4)? & 0xffff;
    if kind == NLMSG_ERROR {
        let negated = i32::from_ne_bytes(word(HEADER_LEN)?.to_ne_bytes());
        return Err(io::Error::from_raw_os_error(negated.saturating_neg()));
    }
    Ok(Socket {
        uid: word(HEADER_LEN + 64)?,
        inode: word(HEADER_LEN + 68)?,
    })
}

const FIRST_PID: u32 = 1;
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u32 = 2;

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream, UdpSocket},
        process::Command,
    };

    use super::*;
    use crate::requirement;

    #[test]
    fn a_connection_of_ours_is_found_as_ours() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                requirement::skip(format_args!("{address}: no such address here"));
                continue;
            };
            let client =
                TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (local, remote) = (client.local_addr(), client.peer_addr());
            let (local, remote) = (local.expect("bound"), remote.expect("connected"));
            let found = socket(Transport::Tcp, local, remote).expect("it exists");
            assert_eq!(found.uid, rustix::process::getuid().as_raw());
            let own = fs::read_to_string("/proc/self/comm").expect("a name");
            // A child that has the connection open as well.
            let inherited = client.try_clone().expect("a descriptor");
            let mut child = Command::new("sleep")
                .arg("60")
                .stdin(OwnedFd::from(inherited))
                .spawn()
                .expect("sleep starts");
            assert_eq!(process_name(found.inode).as_deref(), Some(own.trim_end()));
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            let nobody = SocketAddr::new(local.ip(), 1);
            assert!(socket(Transport::Tcp, nobody, remote).is_err());
        }
    }

    #[test]
    fn a_udp_socket_of_ours_is_found_connected_or_not_and_on_all_addresses() {
        let own = fs::read_to_string("/proc/self/comm").expect("a name");
        for (bound, ip) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::]:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
        ] {
            let Ok(sender) = UdpSocket::bind(bound) else {
                requirement::skip(format_args!("{bound}: no such address here"));
                continue;
            };
            let port = sender.local_addr().expect("bound").port();
            let local = SocketAddr::new(ip.parse().expect("literal"), port);
            let remote = SocketAddr::new(local.ip(), 9);
            let name = || {
                let found = socket(Transport::Udp, local, remote).expect("it exists");
                process_name(found.inode)
            };
            assert_eq!(name().as_deref(), Some(own.trim_end()), "{bound}");
            sender.connect(remote).expect("local");
            assert_eq!(name().as_deref(), Some(own.trim_end()), "{bound}");
            // A connected socket receives nothing from elsewhere.
            let elsewhere = SocketAddr::new(remote.ip(), 10);
            assert!(socket(Transport::Udp, local, elsewhere).is_err(), "{bound}");
        }
    }
}
