//! The connections that share the lanes of an association, at one end: their states, and the order in which they
//! send.
//!
//! | state | at | frames that may arrive | next states |
//! | --- | --- | --- | --- |
//! | opening | asking end | opened, refused, reset; a chunk or window that overtook "opened" | open, refused, broken |
//! | asked | answering end | reset | open or refused, as the user of the association decides; broken |
//! | open | both | chunks, the end, windows, reset | broken; closed by its user once both streams were delivered |
//! | refused, broken | both | all frames, which are ignored | closed by its user |
//!
//! Connections with data to send take turns, one chunk each. The first chunk of a stream precedes the chunks of other
//! streams, as with the new flows of FQ-CoDel (RFC 8290, section 4.1), so that a small answer does not wait for large
//! ones. A connection without credit waits until the peer grants some, and does not block the other connections.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    FIRST_WINDOW, GROWTH, MAX_CONNECTIONS, MAX_PENDING_ALL,
    dispatch::Source,
    frame::{Broken, ConnId, Refusal, Wanted},
    item::Item,
    outgoing::{Next, Outgoing},
    receiver::Receiver,
};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer requested the connection; this end has not answered.
    Asked,
    /// The connection is broken at one end: at this end if `by_peer` is false.
    Broken {
        /// Whether the peer reported the failure.
        by_peer: bool,
        /// Reason.
        why: Broken,
    },
    /// Both ends can send.
    Open,
    /// This end requested the connection; the peer has not answered.
    Opening,
    /// The peer refused the connection.
    Refused(Refusal),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: State,
    /// Outgoing stream.
    pub out: Outgoing,
    /// Incoming stream.
    pub receiver: Receiver,
    /// Whether the connection is in one of the queues `fresh` and `ready`.
    is_queued: bool,
    /// Whether the connection is in the queue `telling`.
    is_telling: bool,
}

/// All connections of an association at one end.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: BTreeMap<ConnId, Connection>,
    urgent: VecDeque<Item>,
    /// Queue of connections with a window update to send. The update is created when it is sent.
    telling: VecDeque<ConnId>,
    /// `fresh`: queue of connections that have sent nothing yet. `ready`: queue of the other connections with data to
    /// send.
    fresh: VecDeque<ConnId>,
    ready: VecDeque<ConnId>,
    blocked: BTreeSet<ConnId>,
    pending_bytes: usize,
    /// Sum of the credit beyond the initial windows, in bytes.
    granted_bytes: u64,
    /// Connections that have changed since the last [`Self::take_changed`].
    changed: BTreeSet<ConnId>,
}

impl Connection {
    /// Returns the connection's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether both streams were delivered completely.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.out.is_done() && self.receiver.is_done()
    }
}

impl Connections {
    /// Adds a connection. Returns `false` if there are too many.
    pub(super) fn enter(&mut self, id: ConnId, state: State) -> bool {
        let has_room = self.all.len() < MAX_CONNECTIONS;
        if has_room {
            let new = Connection {
                state,
                out: Outgoing::default(),
                receiver: Receiver::default(),
                is_queued: false,
                is_telling: false,
            };
            self.all.insert(id, new);
        }
        has_room
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, id: ConnId) -> Option<Connection> {
        let found = self.all.remove(&id)?;
        self.blocked.remove(&id);
        self.changed.remove(&id);
        if found.is_telling {
            self.telling.retain(|other| *other != id);
        }
        self.pending_bytes -= found.out.pending_bytes();
        self.granted_bytes -= found.receiver.window().saturating_sub(FIRST_WINDOW);
        Some(found)
    }

    pub(super) fn find(&self, id: ConnId) -> Option<&Connection> {
        self.all.get(&id)
    }

    pub(super) fn find_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.all.get_mut(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.all.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of bytes that were accepted from applications and not yet cut into chunks.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Queues `item` to be sent before all chunks.
    pub(super) fn push(&mut self, item: Item) {
        self.urgent.push_back(item);
    }

    /// Removes the request for `id` from the queue if the request has not been sent. O(urgent items).
    pub(super) fn withdraw(&mut self, id: ConnId) {
        let is_it = |item: &Item| matches!(item, Item::Open(conn, ..) if *conn == id);
        self.urgent.retain(|item| !is_it(item));
    }

    /// Returns the number of items that wait to be sent before all chunks. Window updates, at most one per
    /// connection, do not count.
    pub(super) fn urgent_count(&self) -> usize {
        self.urgent.len()
    }

    /// Notes that a connection has changed.
    pub(super) fn note(&mut self, id: ConnId) {
        self.changed.insert(id);
    }

    pub(super) fn take_changed(&mut self) -> BTreeSet<ConnId> {
        core::mem::take(&mut self.changed)
    }

    /// Returns how many bytes [`Self::write`] accepts for a connection at present.
    pub(super) fn room(&self, id: ConnId) -> usize {
        let left = MAX_PENDING_ALL.saturating_sub(self.pending_bytes);
        self.all.get(&id).map_or(0, |found| found.out.room(left))
    }

    /// Accepts bytes from `bytes` for a connection, as many as the buffers permit. Returns their number.
    #[must_use]
    pub(super) fn write(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room(id));
        if let Some(found) = self.all.get_mut(&id) {
            found.out.write(&bytes[..taken]);
            self.pending_bytes += taken;
        }
        self.queue(id);
        taken
    }

    /// Cuts the first chunk of a connection that is opening, and returns the request for the connection with this
    /// chunk.
    pub(super) fn cut_first(&mut self, id: ConnId, wanted: Wanted) -> Item {
        let found = self.all.get_mut(&id);
        let chunk = found.and_then(|found| match found.out.next() {
            Next::Chunk(_) => Some(found.out.cut()),
            Next::Blocked | Next::Nothing => None,
        });
        let data = chunk.map_or_else(Arc::default, |chunk| chunk.data);
        self.pending_bytes -= data.len();
        Item::Open(id, wanted, data)
    }

    /// Queues a connection for sending, if it has data to send.
    pub(super) fn queue(&mut self, id: ConnId) {
        let Some(found) = self.all.get_mut(&id) else {
            return;
        };
        let is_new = !found.is_queued && found.state == State::Open;
        if is_new && found.out.next() != Next::Nothing {
            found.is_queued = true;
            self.blocked.remove(&id);
            if found.out.has_begun() {
                self.ready.push_back(id);
            } else {
                self.fresh.push_back(id);
            }
        }
    }

    /// Queues a window update if enough was delivered, and grants more credit if the application reads quickly.
    pub(super) fn tell_window(&mut self, id: ConnId) {
        let Some(found) = self.all.get_mut(&id) else {
            return;
        };
        let left = GROWTH.saturating_sub(self.granted_bytes);
        self.granted_bytes += found.receiver.grow(left);
        if found.receiver.has_window() && !found.is_telling {
            found.is_telling = true;
            self.telling.push_back(id);
        }
    }

    /// Returns the connection that sends next.
    fn front(&self) -> Option<ConnId> {
        self.fresh.front().or(self.ready.front()).copied()
    }

    fn pop_front(&mut self) -> Option<ConnId> {
        self.fresh.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Returns the number of received bytes that are buffered, for tests of the bounds.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> u64 {
        let all = self.all.values();
        all.map(|found| found.receiver.kept_bytes()).sum()
    }

    #[cfg(test)]
    pub(super) fn granted_bytes(&self) -> u64 {
        self.granted_bytes
    }
}

impl Source for Connections {
    fn urgent(&mut self) -> Option<Item> {
        if let Some(item) = self.urgent.pop_front() {
            return Some(item);
        }
        loop {
            let id = self.telling.pop_front()?;
            let Some(found) = self.all.get_mut(&id) else {
                continue;
            };
            found.is_telling = false;
            if let Some((delivered, limit)) = found.receiver.poll_window() {
                return Some(Item::Window(id, delivered, limit));
            }
        }
    }

    fn next_len(&mut self) -> Option<u64> {
        loop {
            let id = self.front()?;
            if let Some(found) = self.all.get_mut(&id) {
                let next = if found.state == State::Open {
                    found.out.next()
                } else {
                    Next::Nothing
                };
                match next {
                    Next::Chunk(len) => return Some(len),
                    Next::Blocked => {
                        self.blocked.insert(id);
                    }
                    Next::Nothing => {}
                }
                found.is_queued = false;
            }
            self.pop_front();
        }
    }

    fn cut(&mut self) -> Option<Item> {
        self.next_len()?;
        let id = self.pop_front()?;
        let found = self.all.get_mut(&id)?;
        let chunk = found.out.cut();
        found.is_queued = false;
        self.pending_bytes -= chunk.data.len();
        self.changed.insert(id);
        self.queue(id);
        Some(Item::Chunk(id, chunk))
    }

    fn is_blocked(&self, conn: ConnId) -> bool {
        self.blocked.contains(&conn)
    }
}
