//! The table of the flows that a tunnel sends: one key, one look-up per packet, one expiry.
//!
//! A flow is identified by a keyed hash that is the same for both of its directions ([`PacketView::flow_hash`]). The
//! table assigns a *place*, a number below [`PLACES`], to the flow. Each part with state per flow stores it under that
//! place: rate and shape ([`crate::class`]), waiting packets ([`crate::queue`]), headers ([`crate::compression`]),
//! order, and the policy's state.
//!
//! *Algorithm.* A set-associative table: the top bits of the hash select a set of four places, its last bits the
//! preferred place of the set. A new flow takes its preferred place, or else another of its set, if that place is
//! empty or its flow has sent nothing for [`EXPIRY`]. If no place is free, the flow shares its preferred place: the
//! two flows are treated as one that sends more, and are kept in order with each other. The new flow stays there until
//! the place has not been shared for [`EXPIRY`], because a flow that moved to another place would overtake its own
//! packets.
//!
//! *Bounds.* The table takes 32 KiB from the first packet on. All parts together keep at most 900 bytes per flow,
//! besides waiting packets: queues 128, class 64, `adaptive` 200, order 8, headers 430 once they are compressed.
//!
//! *Limits.* CoDel remembers for 30 s that the sender at a place does not respond to congestion signals, even if
//! another flow has taken the place. A flow that is silent for longer than its packets wait here may get another place
//! and overtake them.

use core::{fmt, time::Duration};

use crate::{packet::PacketView, time::Instant};

/// The key of the flow hashes: it prevents strangers from creating flows that collide.
#[derive(Clone, Copy, Default)]
pub struct FlowKey(u64);

impl FlowKey {
    /// A key of random bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The hash that identifies a packet's flow.
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

/// A flow, and its place in the tables of flows. Two are equal if their hashes are equal.
#[derive(Clone, Copy, Debug)]
pub struct FlowId {
    hash: u64,
    /// Below [`PLACES`].
    place: u16,
}

impl PartialEq for FlowId {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for FlowId {}

impl FlowId {
    /// A flow at its preferred place.
    #[must_use]
    pub fn of_hash(hash: u64) -> Self {
        Self::new(hash, usize::try_from(hash % WAYS as u64).unwrap_or(0))
    }

    /// The flow of a hash at one of the places of its set.
    fn new(hash: u64, way: usize) -> Self {
        let place = set_of(hash) * WAYS + way;
        Self {
            hash,
            // There are fewer places than that.
            place: u16::try_from(place).unwrap_or(0),
        }
    }

    /// The flow of a place.
    #[cfg(test)]
    #[expect(clippy::cast_possible_truncation, reason = "checked")]
    pub(crate) const fn at(place: u64) -> Self {
        assert!(place < PLACES as u64);
        Self {
            hash: place,
            place: place as u16,
        }
    }

    /// Another flow of the same place.
    #[cfg(test)]
    pub(crate) const fn with_hash(self, hash: u64) -> Self {
        Self { hash, ..self }
    }

    /// Keyed hash of addresses, protocol and ports, the same in both directions.
    #[must_use]
    pub const fn hash(self) -> u64 {
        self.hash
    }

    /// The place, below [`PLACES`]. Flows with the same place share their state.
    #[must_use]
    pub const fn place(self) -> u16 {
        self.place
    }

    /// The place as an index.
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
    /// Empty until the first packet.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    /// When its flow last sent a packet.
    seen_at: Option<Instant>,
    /// When a flow that shares the place last sent a packet.
    shared_at: Option<Instant>,
}

impl FlowTable {
    /// A table without flows.
    #[must_use]
    pub const fn new(key: FlowKey) -> Self {
        Self {
            key,
            places: Vec::new(),
        }
    }

    /// The flow of a packet that is about to be sent.
    pub fn on_packet(&mut self, now: Instant, packet: &PacketView<'_>) -> FlowId {
        self.on_hash(now, self.key.hash(packet))
    }

    /// The flow with this hash; one of its packets is about to be sent.
    fn on_hash(&mut self, now: Instant, hash: u64) -> FlowId {
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let is_it = |place: &Place| place.hash == hash && place.seen_at.is_some();
        let flow = FlowId::of_hash(hash);
        // Most packets are of a flow at its preferred place.
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

/// The set of a hash, by its top bits.
fn set_of(hash: u64) -> usize {
    let set = hash >> (64 - (PLACES / WAYS).ilog2());
    usize::try_from(set).unwrap_or(0)
}

/// The number of places for flows, as in RFC 8290 section 5.2.
pub const PLACES: usize = 1024;
/// The number of places that a flow may take. With 500 flows at a time 7 % share a place; with one place for each hash
/// 39 % would.
const WAYS: usize = 4;
/// A flow that has sent nothing for this time is removed: as long as `adaptive` remembers a flow.
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
        // All of them prefer the first place.
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
        // The first prefers that place, which is not free; the others are.
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
            // The owner goes on; those of the other places do not.
            table.on_hash(at(ms), 0);
            assert_eq!(table.on_hash(at(ms), 4).place(), 0, "{ms}");
        }
        // The owner ends, and the place is the other's as long as it sends.
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
