//! One end of an association: multiplexes connections over shared lanes (TCP connections to one peer, each over one
//! link). Combines [`dispatch`](super::dispatch) and [`connections`](super::connections), acknowledges received
//! items, and determines what each lane sends next. An *item* is a frame that must arrive.
//!
//! A lane sends frames in this order:
//!
//! 1. reports of lanes that died at this end
//! 2. an acknowledgement, if one is due
//! 3. datagrams of UDP flows; after three chunks' worth of them in a row, one item
//! 4. items to be retransmitted
//! 5. items that open and end connections, and window updates
//! 6. chunks
//!
//! Every lane sends acknowledgements, each with the counts of all lanes, so that it suffices if some of them arrive.
//! A lane sends at most one acknowledgement per `ACK_INTERVAL`, but sends one at once after `ACK_BYTES`.
//!
//! A violation of the protocol by the peer ends the connection concerned, with a reason, or the lane concerned. Other
//! connections and lanes continue. Both kinds of violation are counted ([`Event::Refused`]).

mod flows;

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use pleach_core::time::Instant;

use super::{
    Chunk, MAX_URGENT, Violation,
    connections::{Connection, Connections, State},
    datagrams::Datagrams,
    dispatch::Dispatch,
    frame::{Broken, Bye, ConnId, FlowId, Frame, LaneId, Refusal, Wanted},
    item::Item,
    opened::Opened,
    sched::Striping,
};

/// Role of this end in the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Answering end: accepts connections.
    Answers,
    /// Asking end: dials lanes and opens connections.
    Asks,
}

/// An event that the owner of the association has to handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer refuses the lane.
    Bye(Bye),
    /// A datagram of a UDP flow arrived. At the answering end it may be the first of the flow.
    Datagram {
        /// Number of the flow.
        flow: FlowId,
        /// Requested destination. `None` at the asking end.
        wanted: Option<Wanted>,
        /// Data of the datagram.
        data: Vec<u8>,
    },
    /// The peer has ended a UDP flow.
    FlowEnd {
        /// Number of the flow.
        flow: FlowId,
        /// Why the peer does not serve the flow. `None` if it has served the flow.
        refusal: Option<Refusal>,
    },
    /// The peer requests a connection: call [`Mux::accept`], [`Mux::refuse`] or [`Mux::close`].
    Incoming {
        /// Number of the connection.
        conn: ConnId,
        /// Requested destination.
        wanted: Wanted,
    },
    /// The lane is dead at the peer's end.
    LaneGone(LaneId),
    /// A frame or a connection of the peer was refused, for this reason.
    Refused(&'static str),
}

/// One end of an association.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    /// Assigns items to lanes.
    pub dispatch: Dispatch,
    connections: Connections,
    datagrams: Datagrams,
    /// Numbers of the connections that the peer has requested.
    opened: Opened,
    /// Number of the next connection that this end requests.
    next_conn: u32,
    acks: Vec<AckState>,
    /// Number of items that have arrived on each lane.
    counts: BTreeMap<LaneId, u64>,
    /// `news`: number of received items. `received_bytes`: their data bytes. An acknowledgement is due when they
    /// change.
    news: u64,
    received_bytes: u64,
    events: VecDeque<Event>,
}

/// State of the acknowledgements sent on a lane.
#[derive(Debug)]
struct AckState {
    id: LaneId,
    told_news: u64,
    told_bytes: u64,
    told_at: Instant,
    /// Lanes that died at this end, to be reported on this lane.
    gone: Vec<LaneId>,
}

impl Mux {
    /// Creates one end of an association, without lanes.
    #[must_use]
    pub fn new(side: Side, striping: Striping) -> Self {
        Self {
            side,
            dispatch: Dispatch::new(striping),
            connections: Connections::default(),
            datagrams: Datagrams::default(),
            opened: Opened::default(),
            next_conn: 0,
            acks: Vec::new(),
            counts: BTreeMap::new(),
            news: 0,
            received_bytes: 0,
            events: VecDeque::new(),
        }
    }

    /// Adds a lane. Returns `false` if there are too many lanes or the lane exists already.
    pub fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
        let is_added = self.dispatch.add_lane(now, id);
        if is_added {
            self.counts.insert(id, 0);
            self.acks.push(AckState {
                id,
                // Earlier acknowledgements may have been lost with dead lanes, so the new lane sends an
                // acknowledgement at once.
                told_news: if self.news == 0 { 0 } else { u64::MAX },
                told_bytes: self.received_bytes,
                told_at: Instant::ZERO,
                gone: Vec::new(),
            });
        }
        is_added
    }

    /// Removes a dead lane. The peer is informed, and the lane's items are sent on the other lanes.
    pub fn remove_lane(&mut self, id: LaneId) {
        if let Some(slot) = self.dispatch.slot(id) {
            self.datagrams.on_lane_removed(slot);
        }
        self.dispatch.remove_lane(id);
        self.counts.remove(&id);
        let count = self.acks.len();
        self.acks.retain(|lane| lane.id != id);
        if self.acks.len() < count {
            for lane in &mut self.acks {
                if lane.gone.len() < MAX_TOLD {
                    lane.gone.push(id);
                }
            }
        }
    }

    /// Returns the lanes, in the order in which they were added.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.acks.iter().map(|lane| lane.id)
    }

    /// Requests a connection to `wanted`. `first`, at most [`super::CHUNK`] bytes, is sent with the request; more
    /// bytes must wait until the connection is open. `None` if there are too many connections, or too many items wait
    /// to be sent.
    pub fn open(&mut self, wanted: Wanted, first: &[u8]) -> Option<ConnId> {
        let id = ConnId(self.next_conn);
        let next = self.next_conn.checked_add(1)?;
        let is_full = self.connections.urgent_count() >= MAX_OWN_URGENT;
        if self.side == Side::Answers || is_full || !self.connections.enter(id, State::Opening) {
            return None;
        }
        self.next_conn = next;
        let taken = self.connections.write(id, first);
        debug_assert_eq!(taken, first.len(), "a new connection has room for a chunk");
        let open = self.connections.cut_first(id, wanted);
        self.connections.push(open);
        Some(id)
    }

    /// Accepts a connection that the peer requested.
    pub fn accept(&mut self, id: ConnId) {
        if let Some(found) = self.connections.find_mut(id)
            && found.state == State::Asked
        {
            found.state = State::Open;
            self.connections.push(Item::Opened(id));
            self.connections.queue(id);
        }
    }

    /// Refuses a connection that the peer requested.
    pub fn refuse(&mut self, id: ConnId, refusal: Refusal) {
        let is_asked = |found: &Connection| found.state == State::Asked;
        if self.connections.find(id).is_some_and(is_asked) {
            self.connections.remove(id);
            self.connections.push(Item::Refused(id, refusal));
        }
    }

    /// Closes a connection. If the connection is not over, the peer is informed that the connection broke.
    pub fn close(&mut self, id: ConnId) {
        let Some(mut found) = self.connections.remove(id) else {
            return;
        };
        match found.state {
            State::Refused(_) | State::Broken { .. } => {}
            State::Open if found.is_over() => {
                // The peer may not yet know that all bytes were delivered.
                if let Some((delivered, limit)) = found.receiver.poll_window() {
                    self.connections.push(Item::Window(id, delivered, limit));
                }
            }
            State::Open | State::Opening | State::Asked => {
                // If the request was not sent yet, the reset replaces it: the peer only has to know that the number
                // is used.
                self.connections.withdraw(id);
                self.dispatch.purge(id);
                self.connections.push(Item::Reset(id, Broken::Ended));
            }
        }
    }

    /// Returns a connection. `None` if it was closed or never opened.
    #[must_use]
    pub fn connection(&self, id: ConnId) -> Option<&Connection> {
        self.connections.find(id)
    }

    /// Returns the connections that were not closed.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> {
        self.connections.ids()
    }

    /// Returns how many bytes [`Self::write`] accepts for a connection at present.
    #[must_use]
    pub fn room(&self, id: ConnId) -> usize {
        self.connections.room(id)
    }

    /// Accepts bytes to send over a connection, as many as the buffers permit. Returns their number; the caller keeps
    /// the other bytes.
    #[must_use]
    pub fn write(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        self.connections.write(id, bytes)
    }

    /// Ends the stream of a connection: no more bytes follow.
    pub fn finish(&mut self, id: ConnId) {
        if let Some(found) = self.connections.find_mut(id) {
            found.out.finish();
            self.connections.queue(id);
        }
    }

    /// Returns the next received bytes of a connection; empty if there are none at present.
    #[must_use]
    pub fn peek(&self, id: ConnId) -> &[u8] {
        let found = self.connections.find(id);
        found.map_or(&[], |found| found.receiver.peek())
    }

    /// Notes that the first `len` bytes of [`Self::peek`] were delivered.
    pub fn consume(&mut self, id: ConnId, len: usize) {
        if let Some(found) = self.connections.find_mut(id) {
            found.receiver.consume(len);
            self.connections.tell_window(id);
        }
    }

    /// Whether a chunk or a datagram is assigned to lane `id` and the lane may send it.
    #[must_use]
    pub fn has_staged(&self, id: LaneId) -> bool {
        let slot = self.dispatch.slot(id);
        self.dispatch.has_staged(id) || slot.is_some_and(|slot| self.datagrams.has_staged(slot))
    }

    /// Returns the connections that have changed since the last call: their state, bytes to read, or free buffer
    /// space.
    pub fn take_changed(&mut self) -> BTreeSet<ConnId> {
        self.connections.take_changed()
    }

    /// Returns the next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there is no connection, no UDP flow, and no item that waits to be sent or acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.connections.len() == 0
            && self.datagrams.flow_count() == 0
            && self.connections.urgent_count() == 0
            && !self.dispatch.is_waiting()
    }

    /// Returns the number of bytes that were accepted from applications and are not on a lane yet, and the number of
    /// bytes sent more than once.
    #[must_use]
    pub fn waiting_and_repeated(&self) -> (u64, u64) {
        let (staged, repeated) = self.dispatch.staged_and_repeated();
        (staged + self.connections.pending_bytes() as u64, repeated)
    }

    /// Handles a frame that arrived on `lane`.
    ///
    /// # Errors
    /// Fails if the frame violates the protocol and concerns no single connection. The lane must then be closed.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        lane: LaneId,
        frame: Frame<'_>,
    ) -> Result<(), Violation> {
        if self.connections.urgent_count() >= MAX_URGENT {
            return Err(Violation::Flood);
        }
        let Some(count) = self.counts.get_mut(&lane) else {
            return Ok(());
        };
        if frame.is_item() {
            *count += 1;
            self.news += 1;
        }
        match frame {
            Frame::Ack { lanes } => return self.dispatch.handle_counts(now, &lanes),
            Frame::Bye(bye) => self.events.push_back(Event::Bye(bye)),
            Frame::Chunk { conn, offset, data } => {
                self.received_bytes += data.len() as u64;
                self.handle_chunk(conn, offset, data);
            }
            Frame::Datagram { flow, wanted, data } => self.handle_datagram(now, flow, wanted, data),
            Frame::End { conn, offset } => self.handle_chunk(conn, offset, &[]),
            Frame::FlowEnd { flow, refusal } => self.handle_flow_end(flow, refusal),
            Frame::Gone { lane } => self.events.push_back(Event::LaneGone(lane)),
            Frame::Join { .. } => return Err(Violation::Misplaced),
            Frame::Open { conn, wanted, data } => {
                self.received_bytes += data.len() as u64;
                return self.handle_open(conn, wanted, data);
            }
            Frame::Opened { conn } => self.handle_answer(conn, State::Open)?,
            Frame::Refused { conn, refusal } => {
                self.handle_answer(conn, State::Refused(refusal))?;
            }
            Frame::Reset { conn, why } => self.handle_reset(conn, why),
            Frame::Window {
                conn,
                delivered,
                limit,
            } => self.handle_window(conn, delivered, limit),
        }
        Ok(())
    }

    /// Appends the next frame for `lane`, which can send, to `out`. Returns `false` if there is no frame at present.
    pub fn poll_frame(&mut self, now: Instant, id: LaneId, out: &mut Vec<u8>) -> bool {
        let Some(lane) = self.acks.iter_mut().find(|lane| lane.id == id) else {
            return false;
        };
        if let Some(lane) = lane.gone.pop() {
            Frame::Gone { lane }.encode(out);
            return true;
        }
        let due_at = lane.due_at(self.news, self.received_bytes);
        if due_at.is_some_and(|at| at <= now) {
            lane.told_news = self.news;
            lane.told_bytes = self.received_bytes;
            lane.told_at = now;
            let lanes = self.counts.iter().map(|(lane, count)| (*lane, *count));
            Frame::Ack {
                lanes: lanes.collect(),
            }
            .encode(out);
            return true;
        }
        self.poll_datagram(now, id, out, true)
            || self.poll_item(now, id, out)
            || self.poll_datagram(now, id, out, false)
    }

    fn poll_item(&mut self, now: Instant, id: LaneId, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let item = self.dispatch.poll_item(now, id, &mut self.connections);
        if let Some(item) = &item {
            item.encode(out);
        }
        if let Some(slot) = self.dispatch.slot(id) {
            let bytes = item.is_some().then(|| out.len() - before);
            self.datagrams.on_item(slot, bytes);
        }
        item.is_some()
    }

    /// Returns the time at which `lane` must send an acknowledgement. `None` if nothing has arrived since the last
    /// one.
    #[must_use]
    pub fn poll_timeout(&self, id: LaneId) -> Option<Instant> {
        let lane = self.acks.iter().find(|lane| lane.id == id)?;
        lane.due_at(self.news, self.received_bytes)
    }

    /// Breaks all connections, because there has been no lane for too long.
    pub fn break_all(&mut self) {
        let all: Vec<ConnId> = self.connections.ids().collect();
        for id in all {
            self.set_broken(id, Broken::Ended, true);
        }
    }

    fn handle_open(&mut self, id: ConnId, wanted: Wanted, data: &[u8]) -> Result<(), Violation> {
        if self.side == Side::Asks {
            return Err(Violation::Misplaced);
        }
        let is_new = match self.opened.enter(id) {
            Ok(is_new) => is_new,
            Err(violation) => {
                self.connections.push(Item::Refused(id, Refusal::Busy));
                self.events.push_back(Event::Refused(violation.reason()));
                return Ok(());
            }
        };
        if !is_new {
            return Ok(());
        }
        if !self.connections.enter(id, State::Asked) {
            self.connections.push(Item::Refused(id, Refusal::Busy));
            self.events
                .push_back(Event::Refused("too-many-peer-connections"));
            return Ok(());
        }
        if !data.is_empty() {
            self.take_chunk(id, 0, data);
        }
        self.events.push_back(Event::Incoming { conn: id, wanted });
        Ok(())
    }

    /// Handles the peer's answer to a request of this end. The answer may arrive again from a lane that was only
    /// slow.
    fn handle_answer(&mut self, id: ConnId, state: State) -> Result<(), Violation> {
        if self.side == Side::Answers || id.0 >= self.next_conn {
            return Err(Violation::Misplaced);
        }
        if let Some(found) = self.connections.find_mut(id)
            && found.state == State::Opening
        {
            found.state = state;
            self.connections.note(id);
            self.connections.queue(id);
        }
        Ok(())
    }

    fn handle_chunk(&mut self, id: ConnId, offset: u64, data: &[u8]) {
        match self.connections.find(id).map(|found| found.state) {
            Some(State::Open) => self.take_chunk(id, offset, data),
            Some(State::Opening) => {
                // The chunk overtook the answer.
                self.become_open(id);
                self.take_chunk(id, offset, data);
            }
            // Before this end answers, the peer may send only the first bytes, with its request.
            Some(State::Asked) => self.violated(id, Violation::Misplaced),
            Some(State::Broken { .. } | State::Refused(_)) => {}
            None => self.check_past(id),
        }
    }

    fn take_chunk(&mut self, id: ConnId, offset: u64, data: &[u8]) {
        let Some(found) = self.connections.find_mut(id) else {
            return;
        };
        let data = Arc::new(data.to_vec());
        match found.receiver.handle_chunk(Chunk { offset, data }) {
            Ok(()) => {
                self.connections.tell_window(id);
                self.connections.note(id);
            }
            Err(violation) => self.violated(id, violation),
        }
    }

    fn handle_window(&mut self, id: ConnId, delivered: u64, limit: u64) {
        match self.connections.find(id).map(|found| found.state) {
            Some(State::Opening) => self.become_open(id),
            Some(State::Asked | State::Open) => {}
            Some(State::Broken { .. } | State::Refused(_)) => return,
            None => return self.check_past(id),
        }
        let Some(found) = self.connections.find_mut(id) else {
            return;
        };
        match found.out.handle_window(delivered, limit) {
            Ok(()) => {
                self.dispatch.on_delivered(id, delivered);
                self.connections.queue(id);
                self.connections.note(id);
            }
            Err(violation) => self.violated(id, violation),
        }
    }

    fn handle_reset(&mut self, id: ConnId, why: Broken) {
        // The reset may have overtaken the request, which must then be ignored.
        if self.side == Side::Answers
            && let Err(violation) = self.opened.enter(id)
        {
            self.events.push_back(Event::Refused(violation.reason()));
        }
        self.set_broken(id, why, true);
    }

    fn become_open(&mut self, id: ConnId) {
        if let Some(found) = self.connections.find_mut(id) {
            found.state = State::Open;
            self.connections.note(id);
            self.connections.queue(id);
        }
    }

    /// Handles a frame of an unknown connection. The frame is ignored if the connection existed before; otherwise it
    /// is a violation.
    fn check_past(&mut self, id: ConnId) {
        let is_past = match self.side {
            Side::Answers => self.opened.has(id),
            Side::Asks => id.0 < self.next_conn,
        };
        if !is_past {
            self.violated(id, Violation::Misplaced);
        }
    }

    /// Breaks a connection with which the peer has violated the protocol.
    fn violated(&mut self, id: ConnId, violation: Violation) {
        let why = Broken::Violated(violation);
        self.set_broken(id, why, false);
        self.connections.push(Item::Reset(id, why));
        self.events.push_back(Event::Refused(violation.reason()));
    }

    fn set_broken(&mut self, id: ConnId, why: Broken, by_peer: bool) {
        if let Some(found) = self.connections.find_mut(id) {
            found.state = State::Broken { by_peer, why };
            self.connections.note(id);
            self.dispatch.purge(id);
        }
    }

    /// Returns the number of buffered bytes in each direction, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> (u64, u64) {
        let sent = self.dispatch.kept_bytes() + self.connections.pending_bytes() as u64;
        (sent, self.connections.held_bytes())
    }

    #[cfg(test)]
    pub(super) fn granted_bytes(&self) -> u64 {
        self.connections.granted_bytes()
    }

    #[cfg(test)]
    pub(super) fn urgent_count(&self) -> usize {
        self.connections.urgent_count()
    }
}

impl AckState {
    fn due_at(&self, news: u64, received_bytes: u64) -> Option<Instant> {
        if self.told_news == news {
            None
        } else if received_bytes - self.told_bytes >= ACK_BYTES {
            Some(Instant::ZERO)
        } else {
            Some(self.told_at + ACK_INTERVAL)
        }
    }
}

/// Number of urgent items at which this end requests no more connections. Each existing connection may add a reset,
/// and all urgent items together must stay below [`MAX_URGENT`].
const MAX_OWN_URGENT: usize = MAX_URGENT / 2;
/// Interval between acknowledgements on a lane: well below the RTTs for which striping is useful, and 40 kbit/s per
/// lane.
const ACK_INTERVAL: Duration = Duration::from_millis(10);
/// Number of received bytes after which an acknowledgement is sent at once: an eighth of the largest window.
const ACK_BYTES: u64 = 512 << 10;
/// Maximum number of dead lanes that wait to be reported on a lane.
const MAX_TOLD: usize = 64;
