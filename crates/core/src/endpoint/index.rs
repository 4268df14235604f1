//! Session indices, by which the peer of a datagram is found.

use std::collections::VecDeque;

use super::workers::Share;
use crate::{rng::Rng, wire::header::MAX_INDEX};

/// Allocates 24-bit session indices and finds the peer of an index.
///
/// The lower 20 bits of an index ([`NUMBER_MASK`]) are the number of a slot, and the upper four bits change when the
/// slot is used again. Slots are used again in the order in which they were freed, and not before [`MIN_FREE`] are free
/// unless the table is full, so an old index does not soon name another peer. A [worker](super::workers) uses only the
/// numbers that belong to its share. The table has at most [`MAX_SESSIONS`] sessions, or a worker's share of them.
#[derive(Debug)]
pub(super) struct IndexTable {
    slots: Vec<Slot>,
    /// Free slots, the one that was freed first at the front.
    free: VecDeque<u32>,
    share: Share,
    rng: Rng,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u8,
    peer: Option<usize>,
}

impl IndexTable {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            share: Share::SOLE,
            rng,
        }
    }

    /// Restricts the indices to those of a worker. The table must be empty.
    pub(super) fn set_share(&mut self, share: Share) {
        debug_assert!(self.slots.is_empty(), "indices are in use");
        self.share = share;
    }

    /// Returns a new index for `peer`; `None` if all indices are in use.
    pub(super) fn allocate(&mut self, peer: usize) -> Option<u32> {
        let fresh = if self.free.len() < MIN_FREE {
            self.add_slot()
        } else {
            None
        };
        let slot = fresh.or_else(|| self.free.pop_front());
        let slot = slot.or_else(|| self.add_slot())?;
        let number = self.number_of(slot)?;
        let entry = self.slots.get_mut(slot as usize)?;
        let step = u8::try_from(self.rng.below(u64::from(TAG_MASK))).unwrap_or(0);
        entry.tag = entry.tag.wrapping_add(step + 1) & TAG_MASK;
        entry.peer = Some(peer);
        Some((u32::from(entry.tag) << NUMBER_BITS) | number)
    }

    /// Returns a new slot; `None` if there are no more.
    fn add_slot(&mut self) -> Option<u32> {
        let slot = u32::try_from(self.slots.len()).ok()?;
        self.number_of(slot)?;
        self.slots.push(Slot { tag: 0, peer: None });
        Some(slot)
    }

    /// Returns the peer to which `index` belongs.
    pub(super) fn peer_of(&self, index: u32) -> Option<usize> {
        let slot = self.slots.get(self.slot_of(index)? as usize)?;
        slot.peer
            .filter(|_| u32::from(slot.tag) == index >> NUMBER_BITS)
    }

    /// Releases `index`.
    pub(super) fn free(&mut self, index: u32) {
        if self.peer_of(index).is_none() {
            return;
        }
        if let Some(slot) = self.slot_of(index) {
            self.slots[slot as usize].peer = None;
            self.free.push_back(slot);
        }
    }

    /// Returns the number of a slot; `None` if there are not so many. 0 is the number of no slot.
    fn number_of(&self, slot: u32) -> Option<u32> {
        let (worker, workers) = self.share.numbers();
        let number = (slot + 1).checked_mul(workers)?.checked_add(worker)?;
        (number <= NUMBER_MASK).then_some(number)
    }

    fn slot_of(&self, index: u32) -> Option<u32> {
        let (worker, workers) = self.share.numbers();
        let number = index & NUMBER_MASK;
        if index > MAX_INDEX || number % workers != worker {
            return None;
        }
        (number / workers).checked_sub(1)
    }
}

/// Number of bits of an index that are the number of a slot.
const NUMBER_BITS: u32 = 20;
/// The bits of an index that are the number of a slot. Its remainder of the division by the number of workers is the
/// worker's number.
pub(super) const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
/// Maximum number of sessions of all workers together.
pub const MAX_SESSIONS: u32 = NUMBER_MASK;
const TAG_MASK: u8 = 15;
/// Number of free slots from which on the first of them is used again.
const MIN_FREE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_index_names_nobody_even_when_its_slot_is_used_again() {
        let mut table = IndexTable::new(Rng::new(1));
        let first = table.allocate(7).expect("room");
        assert_eq!(table.peer_of(first), Some(7));
        table.free(first);
        table.free(first);
        let numbers = (0..2 * MIN_FREE).map(|_| {
            let index = table.allocate(8).expect("room");
            table.free(index);
            assert_eq!(table.peer_of(first), None);
            index & NUMBER_MASK
        });
        let mut numbers = numbers.skip(MIN_FREE - 1);
        assert_eq!(numbers.next(), Some(first & NUMBER_MASK), "its turn");
        drop(numbers);
        let second = table.allocate(8).expect("room");
        assert_eq!(
            (table.peer_of(first), table.peer_of(second)),
            (None, Some(8))
        );
        assert_ne!(table.allocate(9), Some(second));
        assert!(second <= MAX_INDEX);
        assert_eq!(table.peer_of(0), None);
    }

    #[test]
    fn slots_are_used_again_in_the_order_in_which_they_were_freed() {
        let mut table = IndexTable::new(Rng::new(1));
        let indices: Vec<u32> = (0..2 * MIN_FREE)
            .map(|peer| table.allocate(peer).expect("room"))
            .collect();
        for index in indices.iter().rev() {
            table.free(*index);
        }
        for old in indices.iter().rev().take(MIN_FREE) {
            let index = table.allocate(7).expect("room");
            assert_eq!(index & NUMBER_MASK, old & NUMBER_MASK);
            assert_eq!(table.peer_of(*old), None);
        }
    }

    #[test]
    fn the_indices_of_a_worker_name_the_worker_and_no_slot_of_another() {
        let mut tables: Vec<IndexTable> = (0..3)
            .map(|number| {
                let mut table = IndexTable::new(Rng::new(1));
                table.set_share(Share::new(number, 3));
                table
            })
            .collect();
        let mut all = Vec::new();
        for (worker, table) in tables.iter_mut().enumerate() {
            for peer in 0..500 {
                let index = table.allocate(peer).expect("room");
                assert_eq!((index & NUMBER_MASK) as usize % 3, worker);
                all.push((worker, peer, index));
            }
        }
        for (worker, peer, index) in all {
            for (other, table) in tables.iter().enumerate() {
                let expected = (other == worker).then_some(peer);
                assert_eq!(table.peer_of(index), expected, "{worker} {other} {index}");
            }
        }
    }

    #[test]
    fn a_table_has_as_many_sessions_as_it_says() {
        let mut table = IndexTable::new(Rng::new(1));
        let count = (0..).take_while(|peer| table.allocate(*peer).is_some());
        assert_eq!(count.count(), MAX_SESSIONS as usize);
        let mut table = IndexTable::new(Rng::new(1));
        table.set_share(Share::new(63, 64));
        let count = (0..).take_while(|peer| table.allocate(*peer).is_some());
        assert_eq!(count.count(), (MAX_SESSIONS / 64) as usize);
    }
}
