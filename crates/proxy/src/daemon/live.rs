//! The table of connections, and the state of each connection that tasks share.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{
    clock,
    tcp::{self, TcpInfo},
};
use tokio::{net::TcpStream, sync::Notify};

use super::share::Share;
use crate::{
    estimate::{application::Demand, link::TcpSample},
    handshake::Protocol,
    placer::{ConnectionId, Placer, Warm, Why},
    relay::stripe::association::Association,
    sched::LinkId,
    stripe::frame::ConnId,
    target::Target,
};

/// A TCP connection to a server, or a UDP flow.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) number: u64,
    pub(crate) purpose: Purpose,
    /// Identifier in the placer. `None` for a destination that needs no link.
    pub(crate) id: Option<ConnectionId>,
    pub(crate) why: Cell<Option<Why>>,
    pub(crate) link: Cell<Option<LinkId>>,
    /// Number of bytes to the server (`up`) and from the server (`down`).
    pub(crate) up: Cell<u64>,
    pub(crate) down: Cell<u64>,
    /// Number of requests (client data after server data), and the number of bytes from the server at the last request.
    pub(crate) questions: Cell<(u64, u64)>,
    /// Whether the client does not read the data that the server sends.
    pub(crate) is_held_up: Cell<bool>,
    /// Whether the server has sent nothing yet, so that another link can be tried.
    pub(crate) is_opening: Cell<bool>,
    /// Whether a TCP connection to the server is being established.
    pub(crate) is_connecting: Cell<bool>,
    pub(crate) is_half_closed: Cell<bool>,
    /// Whether the client has sent data after the end of its plain HTTP request.
    pub(crate) is_ahead: Cell<bool>,
    /// Whether the rest of the answer can be fetched over another link. Then the loss of the connection's link triggers
    /// `detour` instead of a stop.
    pub(crate) may_resume: Cell<bool>,
    pub(crate) detour: Notify,
    stop: Notify,
    pub(crate) stop_reason: Cell<Option<Stop>>,
    pub(crate) upstream: RefCell<Option<Rc<TcpStream>>>,
    /// Association and connection number of a striped connection. A UDP flow over the lanes of an association has no
    /// connection number.
    pub(crate) carried: RefCell<Option<(Rc<Association>, Option<ConnId>)>>,
    /// Smoothed throughput of both directions together.
    pub(crate) rate: Cell<Bitrate>,
    pub(super) seen: Cell<Demand>,
    pub(super) progress_at: Cell<Instant>,
    pub(super) tcp_seen: Cell<(u32, u32)>,
    /// Share of the link's capacity.
    pub(crate) share: Cell<Share>,
}

/// Client, program and destination of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    pub(crate) client: SocketAddr,
    pub(crate) app: Option<String>,
    /// DSCP of the client's packets, if known.
    pub(crate) dscp: Option<u8>,
    pub(crate) target: Target,
    pub(crate) protocol: Protocol,
    /// Idle connections to the server that can be reused.
    pub(crate) warm: Vec<Warm>,
}

/// Reason why a connection is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The connection has moved no data for too long.
    Idle,
    /// The connection's link is down.
    LinkLost,
    /// The server acknowledges nothing. Used only while the connection is opening.
    Stalled,
}

impl Stop {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Idle => "idle for too long",
            Self::LinkLost => "the link went down",
            Self::Stalled => "nothing comes back",
        }
    }
}

impl Live {
    pub(crate) fn moved(&self) -> Demand {
        Demand {
            up: self.up.get(),
            down: self.down.get(),
        }
    }

    /// Whether a rule determined the link: one of the configuration file, or one that the user set at run time.
    pub(crate) fn is_tied(&self) -> bool {
        matches!(self.why.get(), Some(Why::Rule(_) | Why::Assigned))
    }

    /// Whether this is a UDP flow over the lanes of an association.
    pub(crate) fn is_flow(&self) -> bool {
        let carried = self.carried.borrow();
        carried.as_ref().is_some_and(|(_, conn)| conn.is_none())
    }

    /// Notes progress of the connection, although no data moves over its own link.
    pub(crate) fn touch(&self, now: Instant) {
        self.progress_at.set(now);
    }

    /// Resets TCP's counters, because a new TCP connection is used.
    pub(crate) fn tcp_begins(&self) {
        self.tcp_seen.set((0, 0));
    }

    /// Tells the connection's task to stop.
    pub(crate) fn stop(&self, reason: Stop) {
        if reason == Stop::LinkLost && self.may_resume.get() {
            return self.detour.notify_one();
        }
        self.stop_reason.set(Some(reason));
        self.stop.notify_one();
    }

    /// Waits until the connection is told to stop. A notification whose reason is gone was for an earlier link.
    pub(crate) async fn stopped(&self) {
        loop {
            self.stop.notified().await;
            if self.stop_reason.get().is_some() {
                return;
            }
        }
    }
}

/// Table of all connections, by number.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) live: RefCell<BTreeMap<u64, Rc<Live>>>,
    next_number: Cell<u64>,
}

impl Table {
    /// Returns the number of connections requested since the start.
    pub(crate) fn asked(&self) -> u64 {
        self.next_number.get()
    }

    /// Adds a connection to the table.
    pub(super) fn enter(
        &self,
        purpose: Purpose,
        id: Option<ConnectionId>,
        link: Option<LinkId>,
        why: Option<Why>,
    ) -> Rc<Live> {
        let now = clock::now();
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let live = Rc::new(Live {
            number,
            purpose,
            id,
            why: Cell::new(why),
            link: Cell::new(link),
            up: Cell::new(0),
            down: Cell::new(0),
            questions: Cell::new((1, 0)),
            is_held_up: Cell::new(false),
            is_opening: Cell::new(true),
            is_connecting: Cell::new(false),
            is_half_closed: Cell::new(false),
            is_ahead: Cell::new(false),
            may_resume: Cell::new(false),
            detour: Notify::new(),
            stop: Notify::new(),
            stop_reason: Cell::new(None),
            upstream: RefCell::default(),
            carried: RefCell::default(),
            rate: Cell::new(Bitrate::ZERO),
            seen: Cell::new(Demand { up: 0, down: 0 }),
            progress_at: Cell::new(now),
            tcp_seen: Cell::new((0, 0)),
            share: Cell::default(),
        });
        self.live.borrow_mut().insert(number, Rc::clone(&live));
        live
    }
}

/// Whether all connections over `association` are limited by their clients, which do not read the received data. UDP
/// flows have the rate of their application, so they count as limited.
fn is_held_up(table: &Table, association: &Association) -> bool {
    let live = table.live.borrow();
    let is_on = |live: &&Rc<Live>| {
        let carried = live.carried.borrow();
        let on = carried.as_ref().map(|(on, _)| Rc::as_ptr(on));
        on.is_some_and(|on| std::ptr::eq(on, association))
    };
    let mut on = live.values().filter(is_on).peekable();
    on.peek().is_some() && on.all(|live| live.is_held_up.get() || live.is_flow())
}

/// Counts the bytes that the lanes of an association have moved on their links.
pub(super) fn observe_lanes(
    now: Instant,
    table: &Table,
    association: &Association,
    placer: &mut Placer,
) {
    let is_held_up = is_held_up(table, association);
    let lanes = association.lanes().into_iter();
    for lane in lanes.chain(association.take_ended()) {
        let Some(link) = lane.link else { continue };
        let (tx, rx) = (lane.tx_bytes.get(), lane.rx_bytes.get());
        let (seen_tx, seen_rx) = lane.seen.replace((tx, rx));
        let moved = Demand {
            up: tx - seen_tx,
            down: rx - seen_rx,
        };
        placer.observe_lane(now, link, moved, is_held_up);
        if moved.total() > Bytes::ZERO
            && let Ok(info) = tcp::info(&lane.stream)
        {
            let mut share = lane.share.get();
            share.on_tcp(&info);
            lane.share.set(share);
            observe_tcp(placer, link, info, &lane.tcp_seen);
        }
    }
}

/// Reads TCP's statistics of the connection: RTT and loss for its link, and whether any data is acknowledged.
pub(super) fn ask_tcp(live: &Live, placer: &mut Placer) {
    let upstream = live.upstream.borrow();
    let (Some(stream), Some(link)) = (upstream.as_ref(), live.link.get()) else {
        return;
    };
    let Ok(info) = tcp::info(stream) else { return };
    if live.is_opening.get() && info.timeouts >= STALL_TIMEOUTS && info.unacked > 0 {
        live.stop(Stop::Stalled);
    }
    let mut share = live.share.get();
    share.on_tcp(&info);
    live.share.set(share);
    if let Some(id) = live.id {
        placer.note_segments(id, info.segments);
    }
    observe_tcp(placer, link, info, &live.tcp_seen);
}

fn observe_tcp(placer: &mut Placer, link: LinkId, info: TcpInfo, seen: &Cell<(u32, u32)>) {
    let (segments, retransmitted) = seen.replace((info.segments, info.retransmitted));
    if info.rtt > Duration::ZERO {
        let sample = TcpSample {
            rtt: info.rtt,
            // The kernel reports a value with all bits set before the first measurement.
            min_rtt: info.min_rtt.min(info.rtt),
            segments: info.segments.saturating_sub(segments),
            retransmitted: info.retransmitted.saturating_sub(retransmitted),
        };
        placer.observe_tcp(link, sample);
    }
}

/// Number of consecutive retransmission timeouts after which an opening connection counts as stalled. The timeouts are
/// 0.2 s, 0.4 s and so on, and longer on paths with a long RTT.
const STALL_TIMEOUTS: u8 = 3;
