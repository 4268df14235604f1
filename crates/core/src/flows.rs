//! The table of the flows that a tunnel sends: one key, one look-up per packet, one expiry.
//!
//! A flow is identified by a keyed hash that is the same for both of its directions ([`PacketView::flow_hash`]). The
//! table assigns a *place*, a number below [`PLACES`], to the flow. Each part with state per flow stores it under
//! that place: rate, shape and program ([`crate::class`]), waiting packets ([`crate::queue`]), headers
//! ([`crate::compression`]), order, and the policy's state.
//!
//! *Algorithm.* A set-associative table: the top bits of the hash select a set of four places, and the last bits select
//! the preferred place in the set. A new flow takes its preferred place, or else another place of its set, if that
//! place is empty or its flow has sent nothing for [`EXPIRY`]. If no place is free, the flow shares its preferred
//! place: the two flows are treated as one flow that sends more, and are kept in order with each other. The new flow
//! stays there until the place has not been shared for [`EXPIRY`], because a flow that moved to another place would
//! overtake its own packets.
//!
//! *Bounds.* The table takes 40 KiB from the first packet on. The parts together store at most 900 bytes per flow,
//! besides waiting packets: queue 64, class 80, program 32, `adaptive` 200, order 8, path of the answers 32, headers
//! 430 once they are compressed. Each queue for packets that are restricted to links takes another 64. ACK pacing
//! ([`crate::tunnel`]) is no part of the table: it has a table of its own with up to 64 flows that start.
//!
//! *Limits.* CoDel remembers for 30 s that the sender at a place does not respond to congestion signals, even if
//! another flow has taken the place. If a flow is silent for [`EXPIRY`] while its packets still wait here, its later
//! packets may get another place and overtake them.

use core::{fmt, time::Duration};

use crate::{packet::PacketView, time::Instant};

/// The key of the flow hashes: it prevents strangers from creating flows that collide.
#[derive(Clone, Copy, Default)]
pub struct FlowKey(u64);

impl FlowKey {
    /// Creates a key from random bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the hash that identifies a packet's flow.
    #[must_use]
    pub fn hash(self, packet: &PacketView<'_>) -> u64 {
        packet.flow_hash(self.0)
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowKey(..)")
    }
}

/// A flow, and its place in the tables of flows. Two values are equal if their hashes are equal.
#[derive(Clone, Copy, Debug)]
pub struct FlowId {
    hash: u64,
    /// The flow's place; below [`PLACES`].
    place: u16,
}

impl PartialEq for FlowId {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for FlowId {}

impl FlowId {
    /// Creates a flow at its preferred place.
    #[must_use]
    pub fn of_hash(hash: u64) -> Self {
        Self::new(hash, usize::try_from(hash % WAYS as u64).unwrap_or(0))
    }

    /// Creates the flow with the hash `hash` at the place number `way` of its set.
    fn new(hash: u64, way: usize) -> Self {
        let place = set_of(hash) * WAYS + way;
        Self {
            hash,
            // The number of places fits a `u16`.
            place: u16::try_from(place).unwrap_or(0),
        }
    }

    /// Creates a flow at the place `place`.
    #[cfg(test)]
    #[expect(clippy::cast_possible_truncation, reason = "checked")]
    pub(crate) const fn at(place: u64) -> Self {
        assert!(place < PLACES as u64);
        Self {
            hash: place,
            place: place as u16,
        }
    }

    /// Creates another flow with the same place.
    #[cfg(test)]
    pub(crate) const fn with_hash(self, hash: u64) -> Self {
        Self { hash, ..self }
    }

    /// Keyed hash of addresses, protocol and ports, the same in both directions.
    #[must_use]
    pub const fn hash(self) -> u64 {
        self.hash
    }

    /// The flow's place, below [`PLACES`]. Flows with the same place share their state.
    #[must_use]
    pub const fn place(self) -> u16 {
        self.place
    }

    /// The flow's place as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.place)
    }

    /// Whether the two flows share their state.
    #[must_use]
    pub const fn shares_place(self, other: Self) -> bool {
        self.place == other.place
    }
}

/// The flows that have sent recently.
#[derive(Debug)]
pub struct FlowTable {
    key: FlowKey,
    /// The places; empty until the first packet.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    /// When the flow of the place last sent a packet.
    seen_at: Option<Instant>,
    /// When a flow that shares the place last sent a packet.
    shared_at: Option<Instant>,
}

impl FlowTable {
    /// Creates a table without flows.
    #[must_use]
    pub const fn new(key: FlowKey) -> Self {
        Self {
            key,
            places: Vec::new(),
        }
    }

    /// Frees the memory, and forgets all flows. No packet may have been sent for [`EXPIRY`].
    pub fn release_memory(&mut self) {
        self.places = Vec::new();
    }

    /// Returns the flow of a packet that is about to be sent, or whose answers are about to be sent.
    pub fn on_packet(&mut self, now: Instant, packet: &PacketView<'_>) -> FlowId {
        self.on_hash(now, self.key.hash(packet))
    }

    /// Returns the flow of a packet of either direction, if the flow has a place of its own.
    #[must_use]
    pub fn find(&self, packet: &PacketView<'_>) -> Option<FlowId> {
        let hash = self.key.hash(packet);
        let first = set_of(hash) * WAYS;
        let mut set = self.places.get(first..first + WAYS)?.iter();
        let way = set.position(|place| place.hash == hash && place.seen_at.is_some())?;
        Some(FlowId::new(hash, way))
    }

    /// Returns the flow with the hash `hash`, of which a packet is about to be sent.
    fn on_hash(&mut self, now: Instant, hash: u64) -> FlowId {
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let is_it = |place: &Place| place.hash == hash && place.seen_at.is_some();
        let flow = FlowId::of_hash(hash);
        // Most packets belong to a flow at its preferred place.
        let place = &mut self.places[flow.index()];
        if is_it(place) {
            place.seen_at = Some(now);
            return flow;
        }
        let first = set_of(hash) * WAYS;
        let set = &mut self.places[first..first + WAYS];
        if let Some(way) = set.iter().position(is_it) {
            set[way].seen_at = Some(now);
            return FlowId::new(hash, way);
        }
        let preferred = flow.index() - first;
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| now.since(at) <= EXPIRY);
        let is_free = |way: &usize| !is_recent(set[*way].seen_at.max(set[*way].shared_at));
        let is_shared = is_recent(set[preferred].shared_at);
        let mut ways = core::iter::once(preferred).chain(0..WAYS);
        match ways.find(is_free).filter(|_| !is_shared) {
            Some(way) => {
                set[way] = Place {
                    hash,
                    seen_at: Some(now),
                    shared_at: None,
                };
                FlowId::new(hash, way)
            }
            None => {
                set[preferred].shared_at = Some(now);
                flow
            }
        }
    }
}

/// The set of a hash, given by its top bits.
fn set_of(hash: u64) -> usize {
    let set = hash >> (64 - (PLACES / WAYS).ilog2());
    usize::try_from(set).unwrap_or(0)
}

/// The number of places for flows, as in RFC 8290 section 5.2.
pub const PLACES: usize = 1024;
/// The number of places that a flow may take. With 500 flows at a time, 7 % of them share a place; with only one
/// possible place per flow, 39 % would.
const WAYS: usize = 4;
/// Time without packets after which a flow is removed. `adaptive` remembers a flow equally long.
pub const EXPIRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn flows_of_one_set_have_places_of_their_own_until_it_is_full() {
        let mut table = FlowTable::new(FlowKey::default());
        // All of these flows prefer the first place.
        let places = [0, 4, 8, 12].map(|hash| table.on_hash(at(1), hash).place());
        assert_eq!(places, [0, 1, 2, 3]);
        let fifth = table.on_hash(at(2), 16);
        assert_eq!(fifth.place(), 0, "it shares its preferred place");
        assert_eq!(table.on_hash(at(4), 0).place(), 0, "none is displaced");
    }

    #[test]
    fn a_flow_keeps_its_place_until_it_expires() {
        let mut table = FlowTable::new(FlowKey::default());
        for hash in 0..4 {
            assert_eq!(u64::from(table.on_hash(at(1), hash).place()), hash);
        }
        assert_eq!(table.on_hash(at(5_000), 0).place(), 0);
        // The new flow prefers place 0, which is not free; the other places are.
        assert_eq!(table.on_hash(at(5_002), 4).place(), 1);
        assert_eq!(table.on_hash(at(5_003), 1).place(), 2, "its own is taken");
    }

    #[test]
    fn a_flow_that_shares_a_place_stays_when_another_is_free() {
        let mut table = FlowTable::new(FlowKey::default());
        for hash in 0..4 {
            table.on_hash(at(1), hash);
        }
        for ms in (10..20_000).step_by(100) {
            // The owner of the place continues to send; the flows of the other places do not.
            table.on_hash(at(ms), 0);
            assert_eq!(table.on_hash(at(ms), 4).place(), 0, "{ms}");
        }
        // The owner ends. The place belongs to the other flow as long as that flow sends.
        for ms in (20_000..40_000).step_by(100) {
            assert_eq!(table.on_hash(at(ms), 4).place(), 0, "{ms}");
        }
        assert_eq!(table.on_hash(at(60_000), 8).place(), 0, "all have ended");
    }

    #[test]
    fn places_are_below_their_number_and_hashes_spread() {
        let mut table = FlowTable::new(FlowKey::default());
        let mut used = std::collections::BTreeSet::new();
        for i in 0..500_u64 {
            let hash = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let flow = table.on_hash(at(5), hash);
            assert!(flow.index() < PLACES);
            assert!(FlowId::of_hash(hash).index() < PLACES);
            used.insert(flow.place());
        }
        assert!(used.len() > 470, "{}", used.len());
    }
}
