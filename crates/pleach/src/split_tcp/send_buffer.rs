//! Send buffers of connections through the tunnel.
//!
//! A connection over links with long RTTs has more data in flight than the kernel's limit for send buffers allows (4 MiB
//! by default, `tcp_wmem`): links of 50 + 50 Mbit/s with an RTT of 640 ms take 8 MB. A link that is reached late then stays
//! idle, because the window never exceeds what the other link takes. So a connection whose send buffer is full after
//! [`BULK_BYTES`] gets [`BUFFER_BYTES`]. Its window still follows the congestion control, and only [`UNSENT_BYTES`] wait to be
//! sent.
//!
//! The number of such connections is limited in total and for each client, because the kernel's memory is at stake: a client
//! that reads slowly keeps as much as its window allows.

use std::{
    cell::{Cell, OnceCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ipnet::IpNet;
use pleach_carrier::limits::{Limit, Place};
use pleach_linux::tcp::raise_send_buffer;
use pleach_proxy::relay::pipe::Meter;
use tokio::net::TcpStream;

/// Returns the limit of connections with a large send buffer.
pub(super) fn limit() -> Limit<IpNet> {
    Limit::new(MAX_LARGE_EACH, MAX_LARGE)
}

/// Counts the bytes sent into `lane`, and raises its send buffer when it is too small.
pub(super) struct Sent<'a> {
    lane: &'a TcpStream,
    /// Who sends.
    user: IpNet,
    limit: &'a Limit<IpNet>,
    /// Bytes of all connections.
    total: &'a Arc<AtomicU64>,
    bytes: Cell<u64>,
    /// Set once the buffer is raised, or could not be.
    raised: OnceCell<Option<Place<IpNet>>>,
}

impl<'a> Sent<'a> {
    pub(super) fn new(
        lane: &'a TcpStream,
        user: IpNet,
        limit: &'a Limit<IpNet>,
        total: &'a Arc<AtomicU64>,
    ) -> Self {
        Self {
            lane,
            user,
            limit,
            total,
            bytes: Cell::new(0),
            raised: OnceCell::new(),
        }
    }

    /// Counter for the bytes received from the lane.
    pub(super) fn received(&self) -> Received<'a> {
        Received(self.total)
    }

    fn raise(&self) -> Option<Place<IpNet>> {
        let place = self.limit.take(self.user)?;
        let raised = raise_send_buffer(self.lane, BUFFER_BYTES, UNSENT_BYTES);
        if let Err(error) = &raised {
            tracing::debug!(%error, "the send buffer of a split connection keeps the kernel's limit");
        }
        raised.ok().map(|()| place)
    }
}

impl Meter for Sent<'_> {
    fn moved(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    fn held_up(&self, is_held_up: bool) {
        if is_held_up && self.bytes.get() >= BULK_BYTES {
            self.raised.get_or_init(|| self.raise());
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
/// Bytes after which a connection may get a large send buffer. Most connections end before.
const BULK_BYTES: u64 = 1 << 20;
/// Largest number of large send buffers at a time: 2 GiB.
const MAX_LARGE: usize = 64;
/// Largest number of large send buffers for the network of a client (at the gateway) or an address (at the client).
const MAX_LARGE_EACH: usize = 8;
