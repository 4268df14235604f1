//! The connections of an association at one end: their states, and their turns to send.
//!
//! | state | at | what may come | what follows |
//! | --- | --- | --- | --- |
//! | opening | the asking end | opened, refused, reset; a chunk or a window, which overtook "opened" | open, refused, broken |
//! | asked | the answering end | reset | open (accepted) or refused, as the user of the association says; broken |
//! | open | both | chunks, the end, windows, reset | broken; closed by its user once both streams were delivered |
//! | refused, broken | both | everything, which is ignored | closed by its user |
//!
//! Connections that have something to send take turns, a chunk each; the first chunk of a stream goes before those of others,
//! as with the new flows of FQ-CoDel (RFC 8290, section 4.1), so that a small answer does not wait for large ones. One without
//! credit waits until the peer gives some, and holds up nobody.

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

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer asked for it; this end has not answered.
    Asked,
    /// It is over at one end; here, if this end says so.
    Broken {
        /// Whether the peer said so.
        by_peer: bool,
        /// Why.
        why: Broken,
    },
    /// Bytes go both ways.
    Open,
    /// This end asked for it; the peer has not answered.
    Opening,
    /// The peer does not make it.
    Refused(Refusal),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: State,
    /// What goes out.
    pub out: Outgoing,
    /// What came in.
    pub receiver: Receiver,
    /// It has a place among those that want to send.
    is_queued: bool,
    /// It has a place among those that have a window to tell.
    is_telling: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: BTreeMap<ConnId, Connection>,
    urgent: VecDeque<Item>,
    /// Those that have a window to tell, each once: the window of the moment when it is sent.
    telling: VecDeque<ConnId>,
    /// Those that have sent nothing yet, and the others.
    fresh: VecDeque<ConnId>,
    ready: VecDeque<ConnId>,
    blocked: BTreeSet<ConnId>,
    pending_bytes: usize,
    /// Credit beyond the first windows.
    granted_bytes: u64,
    /// Those of which something is new.
    changed: BTreeSet<ConnId>,
}

impl Connection {
    /// How it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether both streams were delivered to their ends.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.out.is_done() && self.receiver.is_done()
    }
}

impl Connections {
    /// Enters one; `false`: there are too many.
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

    /// Takes one out.
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

    /// Bytes taken from applications and not cut.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Has `item` sent before all chunks.
    pub(super) fn push(&mut self, item: Item) {
        self.urgent.push_back(item);
    }

    /// Drops the request for `id` if it has not been sent. O(urgent items).
    pub(super) fn withdraw(&mut self, id: ConnId) {
        let is_it = |item: &Item| matches!(item, Item::Open(conn, ..) if *conn == id);
        self.urgent.retain(|item| !is_it(item));
    }

    /// How many wait to be sent before all chunks; windows, one a connection at most, do not count.
    pub(super) fn urgent_count(&self) -> usize {
        self.urgent.len()
    }

    /// Notes that something is new of a connection.
    pub(super) fn note(&mut self, id: ConnId) {
        self.changed.insert(id);
    }

    pub(super) fn take_changed(&mut self) -> BTreeSet<ConnId> {
        core::mem::take(&mut self.changed)
    }

    /// How many bytes [`Self::write`] takes of a connection now.
    pub(super) fn room(&self, id: ConnId) -> usize {
        let left = MAX_PENDING_ALL.saturating_sub(self.pending_bytes);
        self.all.get(&id).map_or(0, |found| found.out.room(left))
    }

    /// Takes `bytes` for a connection, as far as there is room. Returns how many were.
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

    /// Takes the first chunk of a connection that is opening for the request itself.
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

    /// Gives a connection its turn, if it has something to send.
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

    /// Tells the peer what was delivered, if that is worth it, and gives a quick reader more credit.
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

    /// Whose turn it is.
    fn front(&self) -> Option<ConnId> {
        self.fresh.front().or(self.ready.front()).copied()
    }

    fn pop_front(&mut self) -> Option<ConnId> {
        self.fresh.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Everything kept of what came, in bytes, for tests of the bounds.
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
