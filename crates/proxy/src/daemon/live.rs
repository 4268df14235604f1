//! The table of connections, and what tasks note in each of them.

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

/// A connection to a server, or a UDP exchange with one.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) number: u64,
    pub(crate) purpose: Purpose,
    /// The placer's; `None` for a destination that needs no link.
    pub(crate) id: Option<ConnectionId>,
    pub(crate) why: Cell<Option<Why>>,
    pub(crate) link: Cell<Option<LinkId>>,
    /// To the server, from the server.
    pub(crate) up: Cell<u64>,
    pub(crate) down: Cell<u64>,
    /// How often the client has said something after the server did, and what had come from the server by then.
    pub(crate) questions: Cell<(u64, u64)>,
    /// The client does not take what the server sends.
    pub(crate) is_held_up: Cell<bool>,
    /// Nothing has come back yet, so that another link may be tried.
    pub(crate) is_opening: Cell<bool>,
    /// A TCP connection for it is being made.
    pub(crate) is_connecting: Cell<bool>,
    pub(crate) is_half_closed: Cell<bool>,
    /// The client of a plain request has sent more than that.
    pub(crate) is_ahead: Cell<bool>,
    /// What it still has to bring can be had over another link: without its own it takes a detour.
    pub(crate) may_resume: Cell<bool>,
    pub(crate) detour: Notify,
    stop: Notify,
    pub(crate) stop_reason: Cell<Option<Stop>>,
    pub(crate) upstream: RefCell<Option<Rc<TcpStream>>>,
    /// If it is striped: over which association, as which connection of that.
    pub(crate) carried: RefCell<Option<(Rc<Association>, ConnId)>>,
    /// In both directions, smoothed.
    pub(crate) rate: Cell<Bitrate>,
    pub(super) seen: Cell<Demand>,
    pub(super) progress_at: Cell<Instant>,
    pub(super) tcp_seen: Cell<(u32, u32)>,
    /// What it has of its link.
    pub(crate) share: Cell<Share>,
}

/// Who a connection is for.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    pub(crate) client: SocketAddr,
    pub(crate) app: Option<String>,
    /// DSCP of the client's packets, if known.
    pub(crate) dscp: Option<u8>,
    pub(crate) target: Target,
    pub(crate) protocol: Protocol,
    /// Connections to the server that wait for use.
    pub(crate) warm: Vec<Warm>,
}

/// Why a connection is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It moved nothing for too long.
    Idle,
    /// Its link is gone.
    LinkLost,
    /// Nothing is acknowledged; only while it is opening.
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

    /// Whether it is where it is because the user said so.
    pub(crate) fn is_tied(&self) -> bool {
        matches!(self.why.get(), Some(Why::Rule(_)))
    }

    /// Notes that it gets on, though nothing moves over its own link.
    pub(crate) fn touch(&self, now: Instant) {
        self.progress_at.set(now);
    }

    /// Forgets what TCP has counted: the connection is another one.
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

/// All connections, by number.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) live: RefCell<BTreeMap<u64, Rc<Live>>>,
    next_number: Cell<u64>,
}

impl Table {
    /// How many connections were ever asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.next_number.get()
    }

    /// Enters a connection.
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

/// Whether nobody whose connection goes over `association` takes what comes.
fn is_held_up(table: &Table, association: &Association) -> bool {
    let live = table.live.borrow();
    let is_on = |live: &&Rc<Live>| {
        let carried = live.carried.borrow();
        let on = carried.as_ref().map(|(on, _)| Rc::as_ptr(on));
        on.is_some_and(|on| std::ptr::eq(on, association))
    };
    let mut on = live.values().filter(is_on).peekable();
    on.peek().is_some() && on.all(|live| live.is_held_up.get())
}

/// Books what the lanes of an association moved on their links.
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

/// What TCP says of the connection: round trip and loss for its link, and whether anything is acknowledged.
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
            // The kernel's is all ones before the first.
            min_rtt: info.min_rtt.min(info.rtt),
            segments: info.segments.saturating_sub(segments),
            retransmitted: info.retransmitted.saturating_sub(retransmitted),
        };
        placer.observe_tcp(link, sample);
    }
}

/// As many timeouts in a row, of 0.2 s, 0.4 s, … and more on long paths, mean that nothing gets through.
const STALL_TIMEOUTS: u8 = 3;
