//! The flows that a tunnel sends: one key, one look-up for each packet, one expiry.
//!
//! A flow is known by a keyed hash that both of its directions share ([`PacketView::flow_hash`]). The table gives it a *place*,
//! below [`PLACES`], and each part that keeps something of a flow keeps it under that place: rate and shape
//! ([`crate::class`]), waiting packets ([`crate::queue`]), headers ([`crate::compression`]), order, and what the policy knows.
//!
//! *Algorithm.* A set-associative table: the top bits of the hash name a set of [`WAYS`] places. A flow without a place takes an empty
//! one, or that of a flow that has sent nothing for [`EXPIRY`]; every part has forgotten that one by then. If there is none, it
//! shares the place of another flow of its set: the two look like one flow that sends more, and are kept in order with each other.
//!
//! *Bounds.* The table takes 16 KiB with the first packet. All parts together keep at most 700 bytes for a flow: queue 64, class 80,
//! `adaptive` 160, order 8, headers 330 once they are compressed, beside the packets that wait.

use core::{fmt, time::Duration};

use crate::{packet::PacketView, time::Instant};

/// The key of the hashes by which flows are known: it keeps strangers from choosing flows that collide.
#[derive(Clone, Copy, Default)]
pub struct FlowKey(u64);

impl FlowKey {
    /// A key of random bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The hash by which a packet's flow is known.
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

/// A flow, and its place in the tables of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId {
    /// Keyed hash of addresses, protocol and ports, the same in both directions.
    pub hash: u64,
    /// Below [`PLACES`]. Flows of the same place share what is known of them.
    pub place: u16,
}

impl FlowId {
    /// A flow that is in no table, at the place its hash suggests.
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
    pub(crate) fn at(place: u64) -> Self {
        Self {
            hash: place,
            place: u16::try_from(place).expect("a place"),
        }
    }

    /// The place as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.place)
    }

    /// Whether what is known of the two flows is shared.
    #[must_use]
    pub const fn shares_place(self, other: Self) -> bool {
        self.place == other.place
    }
}

/// The flows that have sent of late.
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

    /// The flow of a packet that is to be sent now.
    pub fn on_packet(&mut self, now: Instant, packet: &PacketView<'_>) -> FlowId {
        self.on_hash(now, self.key.hash(packet))
    }

    /// The flow of this hash, of which a packet is to be sent now.
    fn on_hash(&mut self, now: Instant, hash: u64) -> FlowId {
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let first = set_of(hash) * WAYS;
        let set = &mut self.places[first..first + WAYS];
        let is_it = |place: &Place| place.hash == hash && place.seen_at.is_some();
        let known = set.iter().position(is_it);
        let way = known.or_else(|| {
            let oldest = (0..WAYS).min_by_key(|way| set[*way].seen_at)?;
            let is_free = |at: Instant| now.since(at) > EXPIRY;
            set[oldest].seen_at.is_none_or(is_free).then_some(oldest)
        });
        let Some(way) = way else {
            return FlowId::of_hash(hash);
        };
        set[way] = Place {
            hash,
            seen_at: Some(now),
        };
        FlowId::new(hash, way)
    }
}

/// The set of a hash, by its top bits.
fn set_of(hash: u64) -> usize {
    let set = hash >> (64 - (PLACES / WAYS).ilog2());
    usize::try_from(set).unwrap_or(0)
}

/// Flows told apart (RFC 8290 section 5.2 has as many).
pub const PLACES: usize = 1024;
/// Places that a flow may take. With 500 flows at a time 7 % share a place; with one place for each hash 39 % would.
const WAYS: usize = 4;
/// A flow that has sent nothing for so long is forgotten. All parts forget within this time.
pub const EXPIRY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn flows_of_one_set_have_places_of_their_own_until_it_is_full() {
        let mut table = FlowTable::new(FlowKey::default());
        let mut places: Vec<u16> = (0..WAYS as u64)
            .map(|hash| table.on_hash(at(1), hash * 4).place)
            .collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
        let fifth = table.on_hash(at(2), 4 * 100);
        assert!(fifth.place < 4, "it shares a place");
        let first = table.on_hash(at(3), 0).place;
        assert_eq!(table.on_hash(at(4), 0).place, first, "none is displaced");
    }

    #[test]
    fn a_flow_keeps_its_place_until_it_expires() {
        let mut table = FlowTable::new(FlowKey::default());
        for hash in 0..WAYS as u64 {
            table.on_hash(at(hash), hash);
        }
        let kept = table.on_hash(at(2_000), 0);
        let new = table.on_hash(at(2_002), 50);
        assert!(!new.shares_place(kept));
        assert_eq!(table.on_hash(at(2_003), 50), new);
        assert_eq!(table.on_hash(at(2_003), 0), kept);
        let second = table.on_hash(at(2_003), 1);
        assert_eq!((new.place, second.place), (1, 2));
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
            used.insert(flow.place);
        }
        assert!(used.len() > 470, "{}", used.len());
    }
}
