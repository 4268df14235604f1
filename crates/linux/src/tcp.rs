//! Statistics of a TCP connection from the kernel (`TCP_INFO`), limits of its receive window, and its send buffer.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

/// State of a TCP connection: the part of `TCP_INFO` that pleach uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed RTT. Zero before the first sample.
    pub rtt: Duration,
    /// Minimum RTT of the last minutes.
    pub min_rtt: Duration,
    /// Number of consecutive retransmission timeouts of the same data.
    pub timeouts: u8,
    /// Number of segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Number of segments retransmitted since the connection began.
    pub retransmitted: u32,
    /// Number of segments sent since the connection began.
    pub segments: u32,
    /// Rate at which data was recently acknowledged, in bytes per second.
    pub delivery_rate: u64,
    /// Number of bytes acknowledged since the connection began.
    pub acked_bytes: u64,
    /// Congestion window in bytes.
    pub congestion_window_bytes: u64,
    /// RTT as estimated by the receiver. Zero if there is no estimate.
    pub receiver_rtt: Duration,
    /// Number of bytes that wait for their first transmission.
    pub unsent_bytes: u32,
}

/// Reads the kernel's statistics of the TCP socket `fd`.
///
/// # Errors
/// If `fd` is not a TCP socket.
pub fn info(fd: impl AsFd) -> io::Result<TcpInfo> {
    Ok(parse(&raw_info(fd)?))
}

fn raw_info(fd: impl AsFd) -> io::Result<[u8; 256]> {
    let mut buffer = [0_u8; 256];
    let mut len = libc::socklen_t::try_from(buffer.len()).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes into the buffer, which has that many and lives through the call.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(buffer)
}

/// Sets the initial receive window of the TCP socket `fd` in bytes; on some kernels the window is half of `bytes`. It
/// limits the data that the other end may have in flight after the connection is established. The kernel increases the
/// window afterwards as it sees fit.
///
/// # Errors
/// If `fd` is not a TCP socket, or if the kernel is older than Linux 5.15. Nothing is changed in this case.
pub fn begin_window(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    // Otherwise the limit would stay, and the kernel would choose too small a window scale.
    set_number(&fd, libc::SOL_SOCKET, SO_BUF_LOCK, 0)?;
    set_number(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, number(bytes))?;
    set_number(&fd, libc::SOL_SOCKET, SO_BUF_LOCK, 0)
}

/// Limits the receive window of the TCP connection `fd` to `bytes`, that is, the data that the other end may have in
/// flight. `None` removes the limit. A window that was already announced stays valid. The kernel may set another limit
/// when it first sees the size of segments, so the call must be repeated.
///
/// # Errors
/// If `fd` is not a TCP socket, or if the kernel is older than Linux 5.15. Nothing is changed in this case.
pub fn bound_window(fd: impl AsFd, bytes: Option<u32>) -> io::Result<()> {
    let Some(bytes) = bytes else {
        set_number(&fd, libc::SOL_SOCKET, SO_BUF_LOCK, 0)?;
        return set_number(
            &fd,
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            LARGEST_WINDOW,
        );
    };
    // The buffer size is locked, because the kernel raises the limit when it enlarges the buffer.
    set_number(&fd, libc::SOL_SOCKET, SO_BUF_LOCK, RCVBUF_LOCK)?;
    // The buffer is never made smaller, because it might then drop data within the announced window. Packets take up to
    // four times the size of their payload.
    let least = u64::from(bytes) * 4;
    let is_small = |size: usize| u64::try_from(size).is_ok_and(|size| size < least);
    if rustix::net::sockopt::socket_recv_buffer_size(&fd).is_ok_and(is_small) {
        let half = number(bytes.saturating_mul(2));
        set_number(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, half)?;
    }
    set_number(
        &fd,
        libc::IPPROTO_TCP,
        libc::TCP_WINDOW_CLAMP,
        number(bytes).max(1),
    )
}

/// Sets the size of the send buffer of the TCP socket `fd` to `bytes`, also above the host's limit ([`send_buffer_limit`]). At
/// most `unsent` bytes in it wait to be sent; the other bytes are in flight. The kernel no longer chooses the size itself.
///
/// # Errors
/// If `fd` is not a TCP socket, or without `CAP_NET_ADMIN`. The size is not changed in this case.
pub fn raise_send_buffer(fd: impl AsFd, bytes: u32, unsent: u32) -> io::Result<()> {
    set_number(
        &fd,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        number(unsent),
    )?;
    // The kernel doubles the number (socket(7)).
    set_number(
        &fd,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        number(bytes / 2),
    )
}

/// Returns the size in bytes above which the kernel does not enlarge the send buffer of a connection: the third number of
/// `tcp_wmem` (tcp(7)). `None` if it cannot be read.
#[must_use]
pub fn send_buffer_limit() -> Option<u64> {
    let limits = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok()?;
    limits.split_whitespace().nth(2)?.parse().ok()
}

/// Returns the number of bytes in all TCP sockets above which the kernel saves memory: the second number of `tcp_mem`
/// (tcp(7)). `None` if it cannot be read.
#[must_use]
pub fn memory_pressure_bytes() -> Option<u64> {
    let limits = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
    let pages: u64 = limits.split_whitespace().nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page)
}

/// Returns the DSCP, 0 to 63, of the SYN with which the other end opened the TCP connection `fd`. `None` if the
/// connection uses IPv6 or the kernel does not provide the DSCP.
#[must_use]
pub fn received_dscp(fd: impl AsFd) -> Option<u8> {
    // `IP_PKTOPTIONS` returns only the values that were requested by other options (`ip_sockglue.c`).
    set_number(&fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1).ok()?;
    let mut buffer = [0_usize; 16];
    let mut len = libc::socklen_t::try_from(size_of_val(&buffer)).ok()?;
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes into the buffer, which has that many and lives through the call.
    let result = unsafe {
        libc::getsockopt(
            raw,
            libc::IPPROTO_IP,
            IP_PKTOPTIONS,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return None;
    }
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    tos_in(bytes.get(..usize::try_from(len).ok()?)?).map(|tos| tos >> 2)
}

/// Returns the TOS from control messages (`struct cmsghdr`, each padded to a word): length, level, type, then the
/// value.
pub(crate) fn tos_in(mut messages: &[u8]) -> Option<u8> {
    const WORD: usize = size_of::<usize>();
    const HEAD: usize = WORD + 8;
    loop {
        let length = usize::from_ne_bytes(*messages.first_chunk::<WORD>()?);
        let number = |offset: usize| {
            let four = messages.get(offset..)?.first_chunk::<4>()?;
            Some(i32::from_ne_bytes(*four))
        };
        let (level, kind) = (number(WORD)?, number(WORD + 4)?);
        if (level, kind) == (libc::IPPROTO_IP, libc::IP_TOS) && length > HEAD {
            return messages.get(HEAD).copied();
        }
        let next = length.max(HEAD).checked_next_multiple_of(WORD)?;
        messages = messages.get(next..)?;
    }
}

/// Socket option from `linux/in.h`.
const IP_PKTOPTIONS: libc::c_int = 9;

fn number(bytes: u32) -> libc::c_int {
    libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX)
}

fn set_number(
    fd: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    number: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&number)).unwrap_or(0);
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one integer, which lives through the call.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const number).cast(), len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Socket option from `asm-generic/socket.h`, since Linux 5.15: whether the kernel may change the buffer sizes.
const SO_BUF_LOCK: libc::c_int = 72;
/// Flag `SOCK_RCVBUF_LOCK` from `linux/socket.h`.
const RCVBUF_LOCK: libc::c_int = 2;
/// Largest window in bytes (RFC 7323, section 2.3).
const LARGEST_WINDOW: libc::c_int = 1 << 30;

/// Parses a `struct tcp_info` (linux/tcp.h). New kernels append fields to it; fields that an old kernel lacks are zero.
pub(crate) fn parse(buffer: &[u8]) -> TcpInfo {
    let word = |offset: usize| {
        let bytes = buffer
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let long = |offset: usize| {
        let bytes = buffer
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    TcpInfo {
        rtt: Duration::from_micros(word(68).into()),
        timeouts: buffer.get(2).copied().unwrap_or(0),
        unacked: word(24),
        retransmitted: word(100),
        segments: word(136),
        delivery_rate: long(160),
        min_rtt: Duration::from_micros(word(148).into()),
        acked_bytes: long(120),
        congestion_window_bytes: u64::from(word(80)) * u64::from(word(16)),
        receiver_rtt: Duration::from_micros(word(92).into()),
        unsent_bytes: word(144),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::requirement;

    #[test]
    fn the_dscp_of_who_connects_is_told() {
        let of = |tos: u32| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let to = listener.local_addr().expect("bound");
            let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let client = client.expect("a socket");
            client.set_tos_v4(tos).expect("a mark");
            client.connect(&to.into()).expect("connects");
            let (server, _) = listener.accept().expect("accepts");
            received_dscp(&server)
        };
        assert_eq!(
            (of(46 << 2), of(8 << 2), of(0)),
            (Some(46), Some(8), Some(0))
        );
        let (unix, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(received_dscp(&unix), None);
        assert_eq!(tos_in(&[]), None);
        assert_eq!(tos_in(&[0xff; 40]), None);
        assert_eq!(tos_in(&[0; 40]), None);
    }

    #[test]
    fn a_connection_tells_its_round_trip_and_segments() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).expect("connects");
        let (mut server, _) = listener.accept().expect("accepts");
        client.write_all(&[1; 1000]).expect("writes");
        server.read_exact(&mut [0; 1000]).expect("reads");
        let info = info(&client).expect("a TCP socket");
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1));
        assert!(info.segments >= 2, "{info:?}");
        assert_eq!((info.retransmitted, info.timeouts), (0, 0));
        // The SYN counts as one byte.
        assert!((1000..=1001).contains(&info.acked_bytes), "{info:?}");
        assert!(info.min_rtt > Duration::ZERO && info.min_rtt <= info.rtt * 4);
        assert_eq!(info.unsent_bytes, 0);
        assert!(info.congestion_window_bytes >= 1000, "{info:?}");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
        assert!(super::info(&udp).is_err());
    }

    /// Returns the receive window that the other end has announced: `tcpi_snd_wnd`.
    fn peers_window(fd: &TcpStream) -> u32 {
        let info = raw_info(fd).expect("a TCP socket");
        let bytes = info[228..].first_chunk::<4>().expect("Linux 5.4");
        u32::from_ne_bytes(*bytes)
    }

    /// Moves enough data over the connection to use up the window that was announced before.
    fn pass(server: &mut TcpStream, client: &mut TcpStream) {
        for _ in 0..200 {
            server.write_all(&[7; 4000]).expect("writes");
            client.read_exact(&mut [0; 4000]).expect("reads");
        }
    }

    #[test]
    fn windows_are_bound_and_free_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let client = client.expect("a socket");
        // Segments as long as on an Ethernet path; those of the loopback device are longer.
        set_number(&client, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1400).expect("a TCP socket");
        if let Err(error) = begin_window(&client, 6_000) {
            requirement::skip(format_args!("before Linux 5.15: {error}"));
            return;
        }
        client.connect(&address.into()).expect("connects");
        let mut client = TcpStream::from(client);
        let (mut server, _) = listener.accept().expect("accepts");
        server.set_nodelay(true).expect("a TCP socket");
        let begun = peers_window(&server);
        assert!((2_000..9_000).contains(&begun), "{begun}");
        let buffer = |client: &TcpStream| socket2::SockRef::from(client).recv_buffer_size();

        pass(&mut server, &mut client);
        let free = (peers_window(&server), buffer(&client).expect("a socket"));
        assert!(free.0 > 40_000, "{free:?}");
        for bytes in [20_000, 9_000] {
            // The window has a granularity of 1 or 2 kB because of window scaling.
            let near = bytes * 9 / 10..bytes * 5 / 4;
            for _ in 0..4 {
                bound_window(&client, Some(bytes)).expect("a TCP socket");
                pass(&mut server, &mut client);
            }
            let bound = peers_window(&server);
            assert!(near.contains(&bound), "{bound} for {bytes}");
        }
        assert!(buffer(&client).expect("a socket") >= free.1, "none is lost");
        bound_window(&client, None).expect("a TCP socket");
        pass(&mut server, &mut client);
        assert!(peers_window(&server) >= free.0 * 9 / 10);

        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
        assert!(bound_window(&udp, Some(8_000)).is_err());
    }

    #[test]
    fn a_send_buffer_exceeds_the_limit_of_the_host_and_holds_little_that_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).expect("connects");
        let _server = listener.accept().expect("accepts");
        match raise_send_buffer(&client, 1 << 30, 100_000) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                requirement::skip(format_args!("no CAP_NET_ADMIN: {error}"));
                return;
            }
            raised => raised.expect("a TCP socket"),
        }
        assert!(send_buffer_limit().is_some_and(|limit| limit < 1 << 30));
        assert!(memory_pressure_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let size = socket2::SockRef::from(&client).send_buffer_size();
        assert_eq!(size.expect("a socket"), 1 << 30);
        // The other end reads nothing, so that the client soon has nothing in flight that it may send.
        client.set_nonblocking(true).expect("a socket");
        while client.write(&[7; 4000]).is_ok() {}
        let info = raw_info(&client).expect("a TCP socket");
        let unsent = info[144..].first_chunk::<4>().expect("Linux 4.6");
        assert!(u32::from_ne_bytes(*unsent) < 200_000);

        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
        assert!(raise_send_buffer(&udp, 1 << 30, 100_000).is_err());
    }
}
