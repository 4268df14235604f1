//! A lane's socket, and what is counted on it.

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
    /// Name of its link, at the end that has it.
    pub(crate) name: String,
    /// At the end that asked.
    pub(crate) link: Option<LinkId>,
    pub(crate) stream: TcpStream,
    pub(super) wake: Notify,
    /// Frames sent and received, before they are sealed.
    pub(crate) tx_bytes: Cell<u64>,
    pub(crate) rx_bytes: Cell<u64>,
    /// The same when the window began, and TCP's segments.
    pub(crate) seen: Cell<(u64, u64)>,
    pub(crate) tcp_seen: Cell<(u32, u32)>,
    /// What it has of its link.
    pub(crate) share: Cell<Share>,
    /// What may wait in the kernel.
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
            seen: Cell::new((0, 0)),
            tcp_seen: Cell::new((0, 0)),
            share: Cell::new(share),
            backlog: Cell::new(0),
            task: RefCell::new(None),
        };
        lane.limit_backlog(LEAST_BACKLOG);
        lane
    }

    /// Notes its task, which ends with it.
    pub(super) fn runs(&self, task: AbortHandle) {
        *self.task.borrow_mut() = Some(task);
    }

    pub(super) fn stop(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        // Its counters are read later, so it may stay for a while. One that is broken already cannot be shut.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
    }

    /// Tells the multiplexer TCP's account. Whether the lane got on.
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
        };
        mux.dispatch.observe(now, self.id, sample)
    }

    /// Lets about [`BACKLOG`] of data wait in the kernel: less and the lane runs dry, more and chunks wait on it that
    /// would be quicker on another by now.
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
        // Without it chunks wait in the kernel for longer.
        let _ = SockRef::from(&self.stream).set_tcp_notsent_lowat(bytes);
    }
}

const BACKLOG: Duration = Duration::from_millis(8);
/// Two chunks.
const LEAST_BACKLOG: u32 = 16 << 10;
const MOST_BACKLOG: u32 = 1 << 20;
