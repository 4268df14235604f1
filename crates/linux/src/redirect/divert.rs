//! Diversion of UDP datagrams to a local socket, by TPROXY of nftables: rules and routes, and the sockets.
//!
//! Datagrams keep their destination. nftables marks them and assigns them to the socket ([`Diverted`]); a policy rule
//! for the mark looks up a table in which all destinations are local, so that the kernel delivers the datagrams to this
//! host. Datagrams of local programs are marked when they are sent. The rule then leads them to the loopback device, by
//! which they arrive like those of other hosts. Answers are sent from a socket that is bound to the destination
//! ([`reply_socket`]).

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, AsRawFd},
    thread,
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::netlink::{Netlink, Rule};

/// Adds the rules and routes for datagrams with the mark of the proxy on `port`.
pub(super) fn add_routes(port: u16) -> io::Result<()> {
    in_thread(|netlink| {
        let loopback = netlink.link_index("lo")?.ok_or(io::ErrorKind::NotFound)?;
        for is_v6 in [false, true] {
            let added = netlink
                .add_local_default(is_v6, loopback, mark(port))
                .and_then(|()| netlink.add_rule(&rule(port, is_v6)));
            match added {
                // A host without IPv6 has no such datagrams either.
                Err(error) if is_v6 => tracing::debug!(%error, "no IPv6 datagrams are diverted"),
                added => added?,
            }
        }
        Ok(())
    })
}

/// Checks that this host delivers diverted datagrams and that this process may answer them.
///
/// # Errors
/// - With `src_valid_mark`, which some VPNs set, the kernel would drop the datagrams that this host forwards.
/// - Without `CAP_NET_BIND_SERVICE`, answers from ports below 1024 could not be sent.
pub fn check_host() -> io::Result<()> {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/conf/all/src_valid_mark");
    if setting.is_ok_and(|value| value.trim() != "0") {
        return Err(io::Error::other(
            "net.ipv4.conf.all.src_valid_mark is 1, so that the kernel would drop forwarded datagrams; \
             remedy: set it to 0, or remove transparent_udp",
        ));
    }
    // The address is for documentation: no host has it.
    let answer = SocketAddr::from(([192, 0, 2, 1], 53));
    match reply_socket(answer, super::MARK) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(io::Error::new(
            error.kind(),
            "answers from ports below 1024 need CAP_NET_ADMIN and CAP_NET_BIND_SERVICE",
        )),
        // The port may be in use.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Removes the rules and routes of the proxy on `port`, if there are any.
pub(super) fn remove_routes(port: u16) -> io::Result<()> {
    in_thread(|netlink| {
        netlink.delete_rules_of_table(PRIORITY..=PRIORITY, mark(port))?;
        netlink.flush_table(mark(port))
    })
}

/// Runs `change` in a thread of its own, because the callers are inside a runtime, where netlink must not wait.
fn in_thread(change: impl FnOnce(&Netlink) -> io::Result<()> + Send) -> io::Result<()> {
    thread::scope(|scope| {
        let changing = scope.spawn(|| change(&Netlink::open()?));
        let changed = changing.join();
        changed.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

fn rule(port: u16, is_v6: bool) -> Rule {
    Rule {
        selector: None,
        is_v6,
        priority: PRIORITY,
        fwmark: Some(mark(port)),
        not_fwmark: None,
        table: mark(port),
        suppress_prefix_len: None,
    }
}

/// Returns the mark of diverted datagrams, which is also the number of the table, for the proxy on `port`.
pub(super) const fn mark(port: u16) -> u32 {
    0x7078_0000 | port as u32
}

/// Priority of the rules: directly after the local table, and before all rules that choose a route by source address,
/// and those of tunnels.
const PRIORITY: u32 = 1;

/// A socket that receives diverted datagrams.
#[derive(Debug)]
pub struct Diverted {
    socket: Socket,
}

impl Diverted {
    /// Creates the socket for a family. With port 0 the kernel chooses the port.
    ///
    /// # Errors
    /// The port is in use, or CAP_NET_ADMIN is missing.
    pub fn bind(is_v6: bool, port: u16) -> io::Result<Self> {
        let address: SocketAddr = if is_v6 {
            (Ipv6Addr::UNSPECIFIED, port).into()
        } else {
            (Ipv4Addr::UNSPECIFIED, port).into()
        };
        let socket = transparent(&address)?;
        if is_v6 {
            socket.set_only_v6(true)?;
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR)?;
        } else {
            set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR)?;
        }
        socket.bind(&address.into())?;
        Ok(Self { socket })
    }

    /// Returns the port.
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`.
    pub fn port(&self) -> io::Result<u16> {
        let address = self.socket.local_addr()?.as_socket();
        address
            .map(|address| address.port())
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns the socket itself.
    #[must_use]
    pub fn into_socket(self) -> Socket {
        self.socket
    }
}

/// Receives a datagram from a socket that [`Diverted::bind`] has created. Returns its length, sender and destination.
/// The destination is `None` if the kernel did not report it.
///
/// # Errors
/// Returns the error of `recvmsg(2)`.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddr, Option<SocketAddr>)> {
    let mut name = [0_u8; NAME_LEN];
    let mut control = Control([0; CONTROL_LEN]);
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all bits zero are a valid `msghdr`: null pointers with the length 0.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = libc::socklen_t::try_from(name.len()).unwrap_or(0);
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: the header points to buffers of the stated lengths, which live through the call.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, 0) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let from = address(&name).ok_or(io::ErrorKind::InvalidData)?;
    let filled = control.0.len().min(header.msg_controllen);
    Ok((len, from, destination(&control.0[..filled])))
}

/// Returns the destination in the control messages of a datagram. Layout of `struct cmsghdr`: length of header and data
/// (a `size_t`), level and type (an `int` each), data; each message starts at a multiple of the size of a `size_t`
/// (cmsg(3)).
pub(crate) fn destination(mut control: &[u8]) -> Option<SocketAddr> {
    loop {
        let (len, rest) = control.split_first_chunk::<WORD>()?;
        let (level, rest) = rest.split_first_chunk::<4>()?;
        let (kind, _) = rest.split_first_chunk::<4>()?;
        let len = usize::from_ne_bytes(*len);
        let data = control.get(WORD + 8..len)?;
        let kind = (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind));
        if matches!(
            kind,
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) | (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR)
        ) {
            return address(data);
        }
        control = control.get(len.next_multiple_of(WORD)..)?;
    }
}

/// Reads a `struct sockaddr_in` or `struct sockaddr_in6`: family (native byte order), port (big-endian), and for IPv4
/// the address, for IPv6 flow information, address and scope.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(*rest.first_chunk::<4>()?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            let rest = rest.get(4..)?;
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*rest.first_chunk::<4>()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Returns a socket whose datagrams come from `source`, which need not be an address of this host. `mark` is the mark
/// of its datagrams.
///
/// # Errors
/// Fails if CAP_NET_ADMIN is missing.
pub fn reply_socket(source: SocketAddr, mark: u32) -> io::Result<Socket> {
    let socket = transparent(&source)?;
    // Several clients may have flows to one destination.
    socket.set_reuse_address(true)?;
    socket.set_mark(mark)?;
    socket.bind(&source.into())?;
    Ok(socket)
}

fn transparent(address: &SocketAddr) -> io::Result<Socket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(*address), kind, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)?;
    } else {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT)?;
    }
    Ok(socket)
}

/// Sets an option to 1.
fn set_option(socket: &Socket, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel reads `len` bytes from the integer, which lives through the call.
    let result = unsafe {
        let on = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, on, len)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A buffer for control messages, with the alignment that the kernel's headers need.
#[repr(align(8))]
struct Control([u8; CONTROL_LEN]);

/// Size of a `struct sockaddr_in6` in bytes.
const NAME_LEN: usize = 28;
/// Size of the buffer for control messages: two with an IPv6 address each.
const CONTROL_LEN: usize = 128;
/// Size and alignment in bytes of a `size_t`.
const WORD: usize = size_of::<usize>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_read_from_whatever_the_kernel_says() {
        let message = |level: i32, kind: i32, data: &[u8]| {
            let mut bytes = (WORD + 8 + data.len()).to_ne_bytes().to_vec();
            bytes.extend_from_slice(&level.to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(WORD), 0);
            bytes
        };
        let mut v4 = 2_u16.to_ne_bytes().to_vec();
        v4.extend_from_slice(&[0, 53, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let other = message(libc::SOL_SOCKET, 29, &[7; 5]);
        let ours = message(libc::SOL_IP, libc::IP_ORIGDSTADDR, &v4);
        let both = [other.clone(), ours].concat();
        assert_eq!(destination(&both), Some(([192, 0, 2, 1], 53).into()));
        assert_eq!(destination(&other), None);
        let mut v6 = 10_u16.to_ne_bytes().to_vec();
        v6.extend_from_slice(&[1, 187, 0, 0, 0, 0]);
        v6.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        v6.extend_from_slice(&[0; 4]);
        let ours = message(libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR, &v6);
        let expected: SocketAddr = "[2001:db8::1]:443".parse().expect("literal");
        assert_eq!(destination(&ours), Some(expected));
        for len in 0..both.len() {
            // Truncated messages contain no destination, and cause no panic.
            let _ = destination(&both[..len]);
        }
        assert_eq!(destination(&[0; 64]), None);
        assert_eq!(destination(&[0xff; 64]), None);
    }
}
