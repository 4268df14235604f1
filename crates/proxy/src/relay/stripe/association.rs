//! One end of an association with a peer: the lanes (TCP connections to the peer, one per link), dialled by this end
//! or by the peer, and the connections that share them. [`Mux`] decides what is sent, when, and on which lane. This
//! module wakes the tasks that wait for a change of their connection.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    io,
    net::IpAddr,
    rc::Rc,
    time::Duration,
};

use pleach_core::{time::Instant, units::Bitrate};
use pleach_linux::clock;
use tokio::{sync::Notify, time};

use super::{
    flow_table::{Asked, FlowEvent, Flows, MAX_ASKED},
    lane::Lane,
};
use crate::{
    daemon::drops::Drops,
    stripe::{
        frame::{Bye, ConnId, FlowId, Frame, LaneId, Refusal, Wanted},
        mux::{Event, Mux, Side},
        sched::Striping,
    },
};

/// One end of an association: its lanes and connections.
#[derive(Debug)]
pub(crate) struct Association {
    /// Name of the peer.
    pub(crate) peer: String,
    pub(crate) striping: Striping,
    pub(crate) mux: RefCell<Mux>,
    /// Local address at which the peer connected, if the peer dialled.
    pub(crate) local: Option<IpAddr>,
    pub(super) drops: Rc<Drops>,
    pub(super) flows: Flows,
    lanes: RefCell<Vec<Rc<Lane>>>,
    /// Lanes that have ended and whose bytes have not been booked yet.
    ended_lanes: RefCell<Vec<Rc<Lane>>>,
    watches: RefCell<BTreeMap<ConnId, Rc<Watch>>>,
    /// Connections that the peer requested and no task serves yet.
    incoming: RefCell<VecDeque<(ConnId, Wanted)>>,
    /// Notified when a lane joins or ends, the peer requests a connection or a UDP flow, or one of these closes.
    pub(crate) changed: Notify,
    /// Notified when [`Self::tick`] may have something to check.
    ticking: Notify,
    /// Time since which there has been no lane. `None` while a lane exists.
    laneless_since: Cell<Option<Instant>>,
    /// Time of the last frame from the peer.
    heard_at: Cell<Option<Instant>>,
    /// Time at which there was last a connection.
    used_at: Cell<Instant>,
    is_met: Cell<bool>,
    /// Why the peer has refused the association.
    denied: Cell<Option<&'static str>>,
}

/// Events for which the tasks of a connection wait.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Bytes can be delivered.
    pub(super) readable: Notify,
    /// There is free buffer space, or the other end has delivered bytes.
    pub(super) writable: Notify,
    /// The connection was opened, refused or broken.
    pub(super) state: Notify,
}

/// State of a lane, for the status.
#[derive(Clone, Debug)]
pub(crate) struct LaneState {
    pub(crate) name: String,
    pub(crate) is_suspect: bool,
    pub(crate) rate: Bitrate,
    pub(crate) rtt: Duration,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_datagrams: u64,
    pub(crate) rx_datagrams: u64,
}

impl Association {
    /// Creates an association with `peer`, without lanes. `local` is the local address at which the peer connected,
    /// if the peer dialled.
    pub(crate) fn new(
        peer: String,
        striping: Striping,
        local: Option<IpAddr>,
        drops: &Rc<Drops>,
    ) -> Rc<Self> {
        let side = if local.is_some() {
            Side::Answers
        } else {
            Side::Asks
        };
        let now = clock::now();
        Rc::new(Self {
            peer,
            striping,
            mux: RefCell::new(Mux::new(side, striping)),
            local,
            drops: Rc::clone(drops),
            flows: Flows::default(),
            lanes: RefCell::default(),
            ended_lanes: RefCell::default(),
            watches: RefCell::default(),
            incoming: RefCell::default(),
            changed: Notify::new(),
            ticking: Notify::new(),
            laneless_since: Cell::new(Some(now)),
            heard_at: Cell::new(None),
            used_at: Cell::new(now),
            is_met: Cell::new(false),
            denied: Cell::new(None),
        })
    }

    /// Adds a lane. Returns `false` if there are too many lanes.
    pub(super) fn enter_lane(&self, lane: &Rc<Lane>) -> bool {
        if !self.mux.borrow_mut().add_lane(clock::now(), lane.id) {
            return false;
        }
        tracing::debug!(peer = self.peer, link = lane.name, "lane joined");
        self.lanes.borrow_mut().push(Rc::clone(lane));
        self.is_met.set(true);
        self.laneless_since.set(None);
        self.wake();
        self.changed.notify_one();
        true
    }

    /// Ends a lane for the reason `why`.
    pub(crate) fn end_lane(&self, id: LaneId, why: &str) {
        let found = {
            let mut lanes = self.lanes.borrow_mut();
            let index = lanes.iter().position(|lane| lane.id == id);
            index.map(|index| lanes.remove(index))
        };
        let Some(lane) = found else { return };
        tracing::debug!(peer = self.peer, link = lane.name, "lane ended: {why}");
        lane.stop();
        // The end that dialled a lane books the lane's bytes.
        if lane.link.is_some() {
            self.ended_lanes.borrow_mut().push(lane);
        }
        self.mux.borrow_mut().remove_lane(id);
        if self.lanes.borrow().is_empty() {
            self.laneless_since.set(Some(clock::now()));
        }
        self.wake();
        self.changed.notify_one();
    }

    /// Ends all lanes and all connections.
    pub(crate) fn end(&self, why: &str) {
        for lane in self.lanes() {
            self.end_lane(lane.id, why);
        }
        self.mux.borrow_mut().break_all();
        self.handle_news();
        self.end_flows();
    }

    pub(crate) fn lanes(&self) -> Vec<Rc<Lane>> {
        self.lanes.borrow().clone()
    }

    /// Returns and forgets the lanes that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<Rc<Lane>> {
        self.ended_lanes.take()
    }

    /// Returns the states of the lanes, for the status.
    pub(crate) fn lane_states(&self) -> Vec<LaneState> {
        let mux = self.mux.borrow();
        let state = |lane: &Rc<Lane>| {
            let state = mux.dispatch.lane_state(lane.id)?;
            Some(LaneState {
                name: lane.name.clone(),
                is_suspect: state.is_suspect,
                rate: state.rate,
                rtt: state.rtt,
                tx_bytes: lane.tx_bytes.get(),
                rx_bytes: lane.rx_bytes.get(),
                tx_datagrams: lane.tx_datagrams.get(),
                rx_datagrams: lane.rx_datagrams.get(),
            })
        };
        self.lanes.borrow().iter().filter_map(state).collect()
    }

    /// Whether the association has ever had a lane. If so, the peer exists, even if a connection fails.
    pub(crate) fn is_met(&self) -> bool {
        self.is_met.get()
    }

    /// Whether no frame has arrived from the peer on any lane, so that the peer may have no state of the association.
    pub(crate) fn is_new(&self) -> bool {
        self.heard_at.get().is_none()
    }

    /// Returns the reason why the peer has refused the whole association and not only one lane.
    pub(crate) fn denied(&self) -> Option<&'static str> {
        self.denied.get()
    }

    /// Whether a frame has arrived from the peer within `age`.
    pub(crate) fn is_heard(&self, now: Instant, age: Duration) -> bool {
        self.heard_at.get().is_some_and(|at| now.since(at) < age)
    }

    /// Returns the time for which there has been no connection.
    pub(crate) fn idle_for(&self, now: Instant) -> Duration {
        if !self.mux.borrow().is_idle() {
            self.used_at.set(now);
        }
        now.since(self.used_at.get())
    }

    /// Returns the time for which there has been no lane.
    pub(crate) fn laneless_for(&self, now: Instant) -> Duration {
        let since = self.laneless_since.get();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns the next connection that the peer requests.
    pub(crate) fn next_incoming(&self) -> Option<(ConnId, Wanted)> {
        self.incoming.borrow_mut().pop_front()
    }

    /// Returns the notifications about a connection.
    pub(super) fn watch(&self, conn: ConnId) -> Rc<Watch> {
        let mut watches = self.watches.borrow_mut();
        Rc::clone(watches.entry(conn).or_default())
    }

    /// Closes a connection that no task serves any more.
    pub(super) fn close(&self, conn: ConnId) {
        self.watches.borrow_mut().remove(&conn);
        self.mux.borrow_mut().close(conn);
        self.touch();
        self.wake();
        self.changed.notify_one();
    }

    /// Notes that the association was in use until now.
    pub(super) fn touch(&self) {
        self.used_at.set(clock::now());
    }

    /// Handles a frame that arrived on a lane.
    pub(super) fn handle_frame(&self, id: LaneId, frame: Frame<'_>) -> io::Result<()> {
        let now = clock::now();
        if !matches!(frame, Frame::Bye(_)) {
            self.heard_at.set(Some(now));
        }
        let handled = self.mux.borrow_mut().handle_frame(now, id, frame);
        self.handle_news();
        handled.map_err(|violation| {
            self.drops.count(violation.reason());
            io::Error::other(format!("the peer {violation}"))
        })
    }

    /// Wakes the tasks of connections that have changed, and handles the other events of the multiplexer.
    pub(super) fn handle_news(&self) {
        let changed = self.mux.borrow_mut().take_changed();
        {
            let watches = self.watches.borrow();
            for watch in changed.iter().filter_map(|conn| watches.get(conn)) {
                watch.readable.notify_one();
                watch.writable.notify_one();
                watch.state.notify_one();
            }
        }
        loop {
            let event = self.mux.borrow_mut().poll_event();
            match event {
                None => return,
                Some(Event::Bye(bye)) => {
                    tracing::info!(peer = self.peer, ?bye, "the peer does not take a lane");
                    match bye {
                        Bye::Unknown => self.denied.set(Some("the peer has no state of it")),
                        Bye::Busy if self.is_new() => self.denied.set(Some("the peer is busy")),
                        Bye::Busy => {}
                    }
                    self.changed.notify_one();
                }
                Some(Event::Datagram { flow, wanted, data }) => {
                    self.handle_datagram(flow, wanted, data);
                }
                Some(Event::FlowEnd { flow, refusal }) => self.handle_flow_end(flow, refusal),
                Some(Event::Incoming { conn, wanted }) => {
                    self.incoming.borrow_mut().push_back((conn, wanted));
                    self.changed.notify_one();
                }
                Some(Event::LaneGone(id)) => self.end_lane(id, "it died at the other end"),
                Some(Event::Refused(reason)) => {
                    tracing::debug!(peer = self.peer, reason, "refused");
                    self.drops.count(reason);
                }
            }
        }
    }

    /// Wakes all lanes, so that each checks whether it can send.
    pub(super) fn wake(&self) {
        for lane in self.lanes.borrow().iter() {
            lane.wake.notify_one();
        }
        self.ticking.notify_one();
    }

    /// Wakes the other lanes that have staged chunks or datagrams, and [`Self::tick`], which checks that they make
    /// progress.
    pub(super) fn wake_others(&self, lane: &Lane) {
        for other in self.lanes.borrow().iter() {
            if other.id != lane.id && self.mux.borrow().has_staged(other.id) {
                other.wake.notify_one();
            }
        }
        self.ticking.notify_one();
    }

    /// Passes TCP's statistics of all lanes to the multiplexer.
    pub(super) fn observe_all(&self, now: Instant) {
        let mut mux = self.mux.borrow_mut();
        for lane in self.lanes.borrow().iter() {
            lane.observe(now, &mut mux);
        }
    }

    /// Supervises the lanes while there is anything to check. Returns when there has been no lane for [`LANELESS`].
    pub(crate) async fn tick(&self) {
        loop {
            let is_waiting = self.mux.borrow().dispatch.is_waiting();
            if !is_waiting && self.laneless_since.get().is_none() {
                self.ticking.notified().await;
            }
            time::sleep(TICK).await;
            let now = clock::now();
            if self.laneless_for(now) > LANELESS {
                return;
            }
            let hopeless = self.mux.borrow().dispatch.hopeless_lane(now);
            if let Some(id) = hopeless {
                self.end_lane(id, "nothing gets through");
            }
            self.observe_all(now);
            let news = {
                let mut mux = self.mux.borrow_mut();
                for lane in self.lanes.borrow().iter() {
                    if let Some(state) = mux.dispatch.lane_state(lane.id) {
                        lane.adapt(state.rate);
                    }
                }
                mux.dispatch.handle_timeout(now)
            };
            if news {
                self.wake();
            }
        }
    }
}

/// The UDP flows of the association.
impl Association {
    /// Notes whether the peer serves flows, when a lane has joined.
    pub(super) fn meet(&self, serves_flows: bool) {
        self.flows.is_served.set(serves_flows);
        self.flows.met.notify_waiters();
    }

    /// Waits until the association has a lane. Returns whether the peer serves flows.
    pub(crate) async fn serves_flows(&self) -> bool {
        loop {
            let met = self.flows.met.notified();
            if self.flows.is_over.get() {
                return false;
            }
            if self.is_met() {
                return self.flows.is_served.get();
            }
            met.await;
        }
    }

    /// Returns whether the peer serves flows, without waiting. `None` before the first lane.
    pub(crate) fn is_serving_flows(&self) -> Option<bool> {
        self.is_met().then(|| self.flows.is_served.get())
    }

    /// Returns the number of flows.
    pub(crate) fn flow_count(&self) -> usize {
        self.mux.borrow().flow_count()
    }

    /// Returns the next flow that the peer requests, with its first datagram.
    pub(crate) fn next_asked(&self) -> Option<Asked> {
        self.flows.asked.borrow_mut().pop_front()
    }

    /// Ends a flow, and informs the peer if it serves flows.
    pub(crate) fn close_flow(&self, id: FlowId, refusal: Option<Refusal>) {
        let mut mux = self.mux.borrow_mut();
        if self.flows.is_served.get() {
            mux.close_flow(clock::now(), id, refusal);
        } else {
            // The peer would not understand the notification.
            mux.forget_flow(id);
        }
        drop(mux);
        self.touch();
        self.wake();
        self.changed.notify_one();
    }

    /// Passes a datagram from the peer to the flow's handler. `wanted` is the destination at the answering end, where
    /// the datagram may be the first of its flow.
    fn handle_datagram(&self, flow: FlowId, wanted: Option<Wanted>, data: Vec<u8>) {
        let handler = self.flows.handlers.borrow().get(&flow).cloned();
        match (handler, wanted) {
            (Some(handler), _) => handler(FlowEvent::Datagram(&data)),
            (None, None) => {}
            (None, Some(wanted)) => {
                let mut asked = self.flows.asked.borrow_mut();
                if asked.len() >= MAX_ASKED {
                    if asked.iter().all(|other| other.flow != flow) {
                        // The next datagram of the flow requests it again.
                        self.mux.borrow_mut().forget_flow(flow);
                    }
                    return self.drops.count("too-many-peer-flows");
                }
                asked.push_back(Asked { flow, wanted, data });
                self.changed.notify_one();
            }
        }
    }

    /// Passes a datagram that waited while its flow was not served yet to the flow's handler. Returns whether the flow
    /// has a handler.
    pub(crate) fn redeliver(&self, asked: &Asked) -> bool {
        let handler = self.flows.handlers.borrow().get(&asked.flow).cloned();
        let Some(handler) = handler else { return false };
        handler(FlowEvent::Datagram(&asked.data));
        true
    }

    fn handle_flow_end(&self, flow: FlowId, refusal: Option<Refusal>) {
        // A flow that ends before it is served must not be served.
        let is_other = |asked: &Asked| asked.flow != flow;
        self.flows.asked.borrow_mut().retain(is_other);
        let handler = self.flows.handlers.borrow_mut().remove(&flow);
        if let Some(handler) = handler {
            handler(FlowEvent::Ended(refusal));
        }
    }

    /// Ends all flows, because the association has ended.
    fn end_flows(&self) {
        self.flows.is_over.set(true);
        self.flows.met.notify_waiters();
        for handler in self.flows.handlers.take().into_values() {
            handler(FlowEvent::Ended(None));
        }
    }
}

/// Interval at which TCP's statistics of the lanes are read.
const TICK: Duration = Duration::from_millis(25);
/// Time without any lane after which the connections end. A link without carrier is tolerated for the same time.
const LANELESS: Duration = Duration::from_secs(10);
