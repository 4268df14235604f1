//! What the kernel knows of a TCP connection (`TCP_INFO`).

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

/// A connection's state, as far as it is used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip; zero before the first sample.
    pub rtt: Duration,
    /// Shortest round trip of the last minutes.
    pub min_rtt: Duration,
    /// Timeouts in a row without an answer: how often the same data was sent again because of the timer.
    pub timeouts: u8,
    /// Segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Segments sent again since the beginning.
    pub retransmitted: u32,
    /// Segments sent since the beginning.
    pub segments: u32,
    /// Rate at which data was acknowledged lately, in bytes per second.
    pub delivery_rate: u64,
    /// Bytes acknowledged since the beginning.
    pub acked_bytes: u64,
    /// What may be under way at a time.
    pub congestion_window_bytes: u64,
    /// Bytes that wait to be sent for the first time.
    pub unsent_bytes: u32,
}

/// Asks the kernel about the TCP socket `fd`.
///
/// # Errors
/// If it is no TCP socket.
pub fn info(fd: impl AsFd) -> io::Result<TcpInfo> {
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
    Ok(parse(&buffer))
}

/// Reads a `struct tcp_info` (linux/tcp.h), which only grows at its end; what an old kernel lacks stays zero.
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
}
