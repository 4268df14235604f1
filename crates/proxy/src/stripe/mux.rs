//! One end of an association: connections multiplexed over shared lanes. Joins [`dispatch`](super::dispatch) and
//! [`connections`](super::connections), acknowledges what came, and says what each lane sends next.
//!
//! On a lane go, in this order: word of lanes that died here; an acknowledgement if one is due; items to be sent again; what
//! opens, ends and gives credit to connections; chunks. Acknowledgements go on every lane, each with the counts of all, so that
//! it does not matter which of them get there: at most one each `ACK_INTERVAL` on a lane, at once after `ACK_BYTES`.
//!
//! What a peer does wrong with a connection ends that connection, with a reason; what it does wrong with a lane ends that
//! lane. Nothing else is disturbed, and both are counted ([`Event::Refused`]).

use core::time::Duration;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use pleach_core::time::Instant;

use super::{
    Chunk, MAX_URGENT, Violation,
    connections::{Connection, Connections, State},
    dispatch::Dispatch,
    frame::{Broken, Bye, ConnId, Frame, LaneId, Refusal, Wanted},
    item::Item,
    opened::Opened,
    sched::Striping,
};

/// Which end of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It is asked: takes connections on.
    Answers,
    /// It asks: dials lanes and opens connections.
    Asks,
}

/// What a frame means to those around the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer does not take the lane.
    Bye(Bye),
    /// The peer asks for a connection: [`Mux::accept`], [`Mux::refuse`] or [`Mux::close`] it.
    Incoming {
        /// Its number.
        conn: ConnId,
        /// Where to.
        wanted: Wanted,
    },
    /// The peer has lost this lane.
    LaneGone(LaneId),
    /// A frame or a connection of the peer was refused for this reason.
    Refused(&'static str),
}

/// See the module's head.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    /// Which lane what takes.
    pub dispatch: Dispatch,
    connections: Connections,
    /// The connections that the peer has asked for.
    opened: Opened,
    /// The number of the next connection that this end asks for.
    next_conn: u32,
    acks: Vec<AckState>,
    /// Of each lane how many items came.
    counts: BTreeMap<LaneId, u64>,
    /// Counts changes that an acknowledgement would tell, and bytes.
    news: u64,
    received_bytes: u64,
    events: VecDeque<Event>,
}

/// What was told on a lane.
#[derive(Debug)]
struct AckState {
    id: LaneId,
    told_news: u64,
    told_bytes: u64,
    told_at: Instant,
    /// Lanes that died here, to be told on this one.
    gone: Vec<LaneId>,
}

impl Mux {
    /// An association's end without lanes.
    #[must_use]
    pub fn new(side: Side, striping: Striping) -> Self {
        Self {
            side,
            dispatch: Dispatch::new(striping),
            connections: Connections::default(),
            opened: Opened::default(),
            next_conn: 0,
            acks: Vec::new(),
            counts: BTreeMap::new(),
            news: 0,
            received_bytes: 0,
            events: VecDeque::new(),
        }
    }

    /// Adds a lane; `false` if there are too many, or it is there.
    pub fn add_lane(&mut self, now: Instant, id: LaneId) -> bool {
        let is_added = self.dispatch.add_lane(now, id);
        if is_added {
            self.counts.insert(id, 0);
            self.acks.push(AckState {
                id,
                // What was told may have been on lanes that are dead.
                told_news: if self.news == 0 { 0 } else { u64::MAX },
                told_bytes: self.received_bytes,
                told_at: Instant::ZERO,
                gone: Vec::new(),
            });
        }
        is_added
    }

    /// Removes a lane that is dead; the peer is told, and what it had goes to the others.
    pub fn remove_lane(&mut self, id: LaneId) {
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

    /// The lanes, in the order they came.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.acks.iter().map(|lane| lane.id)
    }

    /// Asks for a connection to `wanted`; `first`, at most [`super::CHUNK`] bytes, goes with the request, and more has to wait
    /// until it is open. `None`: there are too many, or too many words wait to be sent.
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

    /// Takes a connection on that the peer asked for.
    pub fn accept(&mut self, id: ConnId) {
        if let Some(found) = self.connections.find_mut(id)
            && found.state == State::Asked
        {
            found.state = State::Open;
            self.connections.push(Item::Opened(id));
            self.connections.queue(id);
        }
    }

    /// Refuses a connection that the peer asked for.
    pub fn refuse(&mut self, id: ConnId, refusal: Refusal) {
        let is_asked = |found: &Connection| found.state == State::Asked;
        if self.connections.find(id).is_some_and(is_asked) {
            self.connections.remove(id);
            self.connections.push(Item::Refused(id, refusal));
        }
    }

    /// Ends a connection, of which nothing more is wanted; if it is not over, the peer is told that it broke.
    pub fn close(&mut self, id: ConnId) {
        let Some(mut found) = self.connections.remove(id) else {
            return;
        };
        match found.state {
            State::Refused(_) | State::Broken { .. } => {}
            State::Open if found.is_over() => {
                // That all was delivered, if that is still to be told.
                if let Some((delivered, limit)) = found.receiver.poll_window() {
                    self.connections.push(Item::Window(id, delivered, limit));
                }
            }
            State::Open | State::Opening | State::Asked => {
                // The reset says of a request that was not sent all that the peer has to know: that its number is used up.
                self.connections.withdraw(id);
                self.dispatch.purge(id);
                self.connections.push(Item::Reset(id, Broken::Ended));
            }
        }
    }

    /// A connection; `None`: it was closed, or never opened.
    #[must_use]
    pub fn connection(&self, id: ConnId) -> Option<&Connection> {
        self.connections.find(id)
    }

    /// Those that were not closed.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> {
        self.connections.ids()
    }

    /// How many bytes [`Self::write`] takes of a connection now.
    #[must_use]
    pub fn room(&self, id: ConnId) -> usize {
        self.connections.room(id)
    }

    /// Takes bytes to send over a connection, as far as there is room. Returns how many were taken; the
    /// caller keeps the others.
    #[must_use]
    pub fn write(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        self.connections.write(id, bytes)
    }

    /// No more bytes come for a connection.
    pub fn finish(&mut self, id: ConnId) {
        if let Some(found) = self.connections.find_mut(id) {
            found.out.finish();
            self.connections.queue(id);
        }
    }

    /// The next bytes that came over a connection; empty if there are none now.
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

    /// Connections of which something is new since this was last asked: their state, something to read, room to write.
    pub fn take_changed(&mut self) -> BTreeSet<ConnId> {
        self.connections.take_changed()
    }

    /// What else happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there is no connection and nothing to be said of one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.connections.len() == 0
            && self.connections.urgent_count() == 0
            && !self.dispatch.is_waiting()
    }

    /// Bytes taken from applications and not on a lane yet, and bytes sent more than once.
    #[must_use]
    pub fn waiting_and_repeated(&self) -> (u64, u64) {
        let (staged, repeated) = self.dispatch.staged_and_repeated();
        (staged + self.connections.pending_bytes() as u64, repeated)
    }

    /// Handles a frame that came on `lane`.
    ///
    /// # Errors
    /// The lane is of no use any more: the peer said on it what belongs to no connection and no state.
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
            Frame::End { conn, offset } => self.handle_chunk(conn, offset, &[]),
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

    /// Appends the next frame for `lane`, which can send, to `out`; `false` if there is none now.
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
        let item = self.dispatch.poll_item(now, id, &mut self.connections);
        item.is_some_and(|item| {
            item.encode(out);
            true
        })
    }

    /// When `lane` has an acknowledgement to send; `None`: nothing new.
    #[must_use]
    pub fn poll_timeout(&self, id: LaneId) -> Option<Instant> {
        let lane = self.acks.iter().find(|lane| lane.id == id)?;
        lane.due_at(self.news, self.received_bytes)
    }

    /// All connections broke: no lane is left, and none came for too long.
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

    /// The peer's answer to a request of this end. It may come again from a lane that was only slow.
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
                // It overtook the answer.
                self.become_open(id);
                self.take_chunk(id, offset, data);
            }
            // Before the answer comes no more than the first bytes.
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
        // It may have overtaken the request, which then means nothing.
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

    /// What came is of a connection that is no more here; one that never was does not exist for an honest peer.
    fn check_past(&mut self, id: ConnId) {
        let is_past = match self.side {
            Side::Answers => self.opened.has(id),
            Side::Asks => id.0 < self.next_conn,
        };
        if !is_past {
            self.violated(id, Violation::Misplaced);
        }
    }

    /// The peer did with a connection what it may not.
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

    /// Everything kept of what is sent and of what came, in bytes, for tests of the bounds.
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

/// Items of this end that are not windows, at which it asks for no more connections: each that is there may add a reset,
/// and together they stay below [`MAX_URGENT`].
const MAX_OWN_URGENT: usize = MAX_URGENT / 2;
/// Well below any round trip that striping is for; 40 kbit/s on a lane.
const ACK_INTERVAL: Duration = Duration::from_millis(10);
/// An eighth of the largest window.
const ACK_BYTES: u64 = 512 << 10;
/// Lanes that died and were not told of.
const MAX_TOLD: usize = 64;
