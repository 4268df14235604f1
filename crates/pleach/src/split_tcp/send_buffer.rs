//! Send buffers of connections through the tunnel.
//!
//! A connection over links with long RTTs has more data in flight than the kernel's limit for send buffers allows (4 MiB
//! by default, `tcp_wmem`): links of 50 + 50 Mbit/s with an RTT of 640 ms take 8 MB. The window then never exceeds the data
//! that the other link takes, and the link with the longer RTT stays idle. So a connection whose send buffer is full when the
//! kernel has already enlarged it to its limit gets [`BUFFER_BYTES`]. Its window still follows the congestion control, and only
//! [`UNSENT_BYTES`] wait to be sent.
//!
//! The number of such connections is limited in total and for each client, because a client that does not acknowledge
//! occupies kernel memory up to its window.

use std::{
    cell::{Cell, OnceCell},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ipnet::IpNet;
use pleach_carrier::limits::{Limit, Place};
use pleach_linux::tcp::{self, raise_send_buffer};
use pleach_proxy::relay::pipe::Meter;
use socket2::SockRef;
use tokio::net::TcpStream;

/// Send buffers of one end.
pub(super) struct SendBuffers {
    large: Limit<IpNet>,
    /// Size in bytes above which the kernel does not enlarge a send buffer. `None` if no buffer is to be raised.
    host_limit: Option<u64>,
    raise: fn(&TcpStream) -> io::Result<()>,
    has_warned: Cell<bool>,
}

impl SendBuffers {
    /// Reads the limits of this host.
    pub(super) fn new() -> Self {
        let large =
            tcp::memory_pressure_bytes().map_or(1, |bytes| bytes / 2 / u64::from(BUFFER_BYTES));
        let large = usize::try_from(large).unwrap_or(MAX_LARGE);
        let host_limit = tcp::send_buffer_limit().filter(|limit| *limit < u64::from(BUFFER_BYTES));
        Self {
            large: Limit::new(MAX_LARGE_EACH, large.clamp(1, MAX_LARGE)),
            host_limit,
            raise: |lane| raise_send_buffer(lane, BUFFER_BYTES, UNSENT_BYTES),
            has_warned: Cell::new(false),
        }
    }

    /// Raises the send buffer of `lane` if the kernel cannot enlarge it further. Returns the place of the large buffer.
    fn raise(&self, lane: &TcpStream, user: IpNet) -> Option<Place<IpNet>> {
        let size = u64::try_from(SockRef::from(lane).send_buffer_size().ok()?).ok()?;
        if size < self.host_limit? {
            return None;
        }
        let place = self.large.take(user)?;
        match (self.raise)(lane) {
            Ok(()) => Some(place),
            Err(error) => {
                if !self.has_warned.replace(true) {
                    tracing::warn!(
                        %error,
                        "send buffers of split connections keep the limit of net.ipv4.tcp_wmem; links with long RTTs may not be filled"
                    );
                }
                None
            }
        }
    }
}

/// Counts the bytes sent into `lane`, and raises its send buffer when it is too small.
pub(super) struct Sent<'a> {
    lane: &'a TcpStream,
    /// Who sends.
    user: IpNet,
    buffers: &'a SendBuffers,
    /// Bytes of all connections.
    total: &'a Arc<AtomicU64>,
    /// Place of the large buffer, once there is one.
    large: OnceCell<Place<IpNet>>,
}

impl<'a> Sent<'a> {
    pub(super) fn new(
        lane: &'a TcpStream,
        user: IpNet,
        buffers: &'a SendBuffers,
        total: &'a Arc<AtomicU64>,
    ) -> Self {
        Self {
            lane,
            user,
            buffers,
            total,
            large: OnceCell::new(),
        }
    }

    /// Counter for the bytes received from the lane.
    pub(super) fn received(&self) -> Received<'a> {
        Received(self.total)
    }
}

impl Meter for Sent<'_> {
    fn moved(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    fn held_up(&self, is_held_up: bool) {
        if is_held_up
            && self.large.get().is_none()
            && let Some(place) = self.buffers.raise(self.lane, self.user)
        {
            let _ = self.large.set(place);
        }
    }
}

/// Counts the bytes received from a lane.
pub(super) struct Received<'a>(&'a Arc<AtomicU64>);

impl Meter for Received<'_> {
    fn moved(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn held_up(&self, _is_held_up: bool) {}
}

/// Size of a large send buffer: 100 Mbit/s at an RTT of 2.5 s, or 400 Mbit/s at 640 ms.
const BUFFER_BYTES: u32 = 32 << 20;
/// Largest amount of data that waits in a large send buffer, beside the data in flight.
const UNSENT_BYTES: u32 = 512 << 10;
/// Largest number of large send buffers at a time: 2 GiB. Fewer on a host whose kernel limits the memory of TCP
/// (`tcp_mem`): half of the memory at which the kernel begins to save.
const MAX_LARGE: usize = 64;
/// Largest number of large send buffers for the network of a client (at the gateway) or an address (at the client).
const MAX_LARGE_EACH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a connection whose other end reads nothing.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let to = listener.local_addr().expect("bound");
        let here = TcpStream::connect(to).await.expect("it listens");
        (here, listener.accept().await.expect("it came").0)
    }

    #[test]
    fn only_a_buffer_at_the_limit_of_the_host_is_raised_and_the_place_comes_back() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let _guard = runtime.enter();
        let (lane, _other) = runtime.block_on(connection());
        let size = SockRef::from(&lane).send_buffer_size().expect("a socket") as u64;
        let buffers = |host_limit, raise| SendBuffers {
            large: Limit::new(1, 2),
            host_limit,
            raise,
            has_warned: Cell::new(false),
        };
        let user: IpNet = "10.77.0.2/32".parse().expect("literal");
        let total = Arc::default();
        let at_limit = buffers(Some(size), |_| Ok(()));
        for (buffers, is_raised) in [
            (&at_limit, true),
            (&buffers(Some(size + 1), |_| Ok(())), false),
            (&buffers(None, |_| Ok(())), false),
            (
                &buffers(Some(size), |_| Err(io::ErrorKind::PermissionDenied.into())),
                false,
            ),
        ] {
            let sent = Sent::new(&lane, user, buffers, &total);
            sent.held_up(false);
            assert!(sent.large.get().is_none(), "the buffer is not full");
            sent.held_up(true);
            assert_eq!(sent.large.get().is_some(), is_raised);
        }
        // A second connection of the user gets a large buffer when the first has ended.
        let first = Sent::new(&lane, user, &at_limit, &total);
        let second = Sent::new(&lane, user, &at_limit, &total);
        first.held_up(true);
        second.held_up(true);
        assert!(first.large.get().is_some() && second.large.get().is_none());
        drop(first);
        second.held_up(true);
        assert!(second.large.get().is_some());
    }
}
