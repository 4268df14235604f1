//! A lane's socket and its counters. A *lane* is one TCP connection of an association, over one link.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
    time::Duration,
};

use pleach_core::{time::Instant, units::Bitrate};
use pleach_linux::tcp;
use socket2::SockRef;
use tokio::{net::TcpStream, sync::Notify, task::AbortHandle};

use crate::{
    daemon::share::Share,
    sched::LinkId,
    stripe::{frame::LaneId, mux::Mux, rate::LaneSample},
};

/// A lane of an association.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// Name of the lane's link at the end that dialled.
    pub(crate) name: String,
    /// Link of the lane, at the end that dialled; otherwise `None`.
    pub(crate) link: Option<LinkId>,
    pub(crate) stream: TcpStream,
    pub(super) wake: Notify,
    /// Bytes of frames sent and received, before encryption.
    pub(crate) tx_bytes: Cell<u64>,
    pub(crate) rx_bytes: Cell<u64>,
    /// Datagrams of UDP flows sent and received.
    pub(crate) tx_datagrams: Cell<u64>,
    pub(crate) rx_datagrams: Cell<u64>,
    /// `seen`: sent and received bytes at the beginning of the estimators' window. `tcp_seen`: TCP segment counters
    /// at that time.
    pub(crate) seen: Cell<(u64, u64)>,
    pub(crate) tcp_seen: Cell<(u32, u32)>,
    /// Use that the lane makes of its link.
    pub(crate) share: Cell<Share>,
    /// Limit in bytes of the unsent data in the kernel.
    backlog: Cell<u32>,
    task: RefCell<Option<AbortHandle>>,
}

impl Lane {
    pub(super) fn new(id: LaneId, link: Option<LinkId>, name: String, stream: TcpStream) -> Self {
        let share = Share::begin(&stream, 0);
        let lane = Self {
            id,
            name,
            link,
            stream,
            wake: Notify::new(),
            tx_bytes: Cell::new(0),
            rx_bytes: Cell::new(0),
            tx_datagrams: Cell::new(0),
            rx_datagrams: Cell::new(0),
            seen: Cell::new((0, 0)),
            tcp_seen: Cell::new((0, 0)),
            share: Cell::new(share),
            backlog: Cell::new(0),
            task: RefCell::new(None),
        };
        lane.limit_backlog(LEAST_BACKLOG);
        lane
    }

    /// Stores the handle of the lane's task. The task ends with the lane.
    pub(super) fn runs(&self, task: AbortHandle) {
        *self.task.borrow_mut() = Some(task);
    }

    pub(super) fn stop(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        // The socket may stay open for a while, because its counters are read later. Shutting down a broken socket
        // fails.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
    }

    /// Passes TCP's statistics to the multiplexer. Returns whether the lane has made progress.
    pub(super) fn observe(&self, now: Instant, mux: &mut Mux) -> bool {
        let Ok(info) = tcp::info(&self.stream) else {
            return false;
        };
        let sample = LaneSample {
            rtt: info.rtt,
            min_rtt: info.min_rtt,
            acked_bytes: info.acked_bytes,
            window_bytes: info.congestion_window_bytes,
            unsent_bytes: info.unsent_bytes.into(),
            is_in_flight: info.unacked > 0,
        };
        mux.dispatch.observe(now, self.id, sample)
    }

    /// Limits the unsent data in the kernel to about [`BACKLOG`] at `rate`. With less data the lane would sometimes
    /// have nothing to send. With more, chunks would wait on this lane although another lane has become quicker.
    pub(super) fn adapt(&self, rate: Bitrate) {
        let wanted = u32::try_from(rate.bytes_in(BACKLOG).get()).unwrap_or(u32::MAX);
        let wanted = wanted.clamp(LEAST_BACKLOG, MOST_BACKLOG);
        let now = self.backlog.get();
        if wanted > now + now / 4 || wanted < now / 2 {
            self.limit_backlog(wanted);
        }
    }

    fn limit_backlog(&self, bytes: u32) {
        self.backlog.set(bytes);
        // If the limit cannot be set, chunks only wait in the kernel for longer.
        let _ = SockRef::from(&self.stream).set_tcp_notsent_lowat(bytes);
    }
}

const BACKLOG: Duration = Duration::from_millis(8);
/// 16 KiB: two chunks.
const LEAST_BACKLOG: u32 = 16 << 10;
const MOST_BACKLOG: u32 = 1 << 20;
