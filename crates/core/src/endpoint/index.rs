//! Session indices, by which the peer of a datagram is found.

use crate::rng::Rng;

/// Allocates 24-bit session indices and finds the peer of an index.
///
/// An index consists of a slot number and eight random bits, so that the index changes when its slot is used again. The
/// table has at most 65 534 sessions.
#[derive(Debug)]
pub(super) struct IndexTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
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
            free: Vec::new(),
            rng,
        }
    }

    /// Returns a new index for `peer`; `None` if all indices are in use.
    pub(super) fn allocate(&mut self, peer: usize) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len())
                    .ok()
                    .filter(|slot| *slot < u16::MAX)?;
                self.slots.push(Slot { tag: 0, peer: None });
                slot
            }
        };
        let entry = &mut self.slots[usize::from(slot)];
        let step = u8::try_from(self.rng.below(200)).unwrap_or(0);
        entry.tag = entry.tag.wrapping_add(step + 1);
        entry.peer = Some(peer);
        // Index 0 is never allocated.
        Some((u32::from(entry.tag) << 16) | (u32::from(slot) + 1))
    }

    /// Returns the peer to which `index` belongs.
    pub(super) fn peer_of(&self, index: u32) -> Option<usize> {
        let slot = self.slots.get((index & 0xffff).checked_sub(1)? as usize)?;
        slot.peer.filter(|_| u32::from(slot.tag) == index >> 16)
    }

    /// Releases `index`.
    pub(super) fn free(&mut self, index: u32) {
        if self.peer_of(index).is_none() {
            return;
        }
        if let Some(slot) = (index & 0xffff)
            .checked_sub(1)
            .and_then(|slot| u16::try_from(slot).ok())
        {
            self.slots[usize::from(slot)].peer = None;
            self.free.push(slot);
        }
    }
}

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
        let second = table.allocate(8).expect("room");
        assert_ne!(first, second);
        assert_eq!(
            (table.peer_of(first), table.peer_of(second)),
            (None, Some(8))
        );
        assert_ne!(table.allocate(9), Some(second));
        assert!(second <= crate::wire::header::MAX_INDEX);
        assert_eq!(table.peer_of(0), None);
    }
}
