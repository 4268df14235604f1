//! Queues of packets in shared slots.
//!
//! Each packet is in a slot of one growing table. The slots of a queue are chained, and so are the free slots. Push
//! and pop are O(1) and allocate only while the table grows to the maximum number of packets in it.

use super::Queued;
use crate::packet::PacketBuf;

/// The slots, and the chain of free ones.
#[derive(Debug)]
pub(super) struct Slab {
    slots: Vec<Slot>,
    free: u32,
}

#[derive(Debug)]
struct Slot {
    queued: Option<Queued>,
    next: u32,
}

impl Slab {
    /// Creates a slab without slots.
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
        }
    }

    /// Number of slots, including free ones.
    #[cfg(test)]
    pub(super) const fn slots_len(&self) -> usize {
        self.slots.len()
    }

    fn put(&mut self, queued: Queued) -> u32 {
        let index = self.free;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            self.free = slot.next;
            slot.queued = Some(queued);
            slot.next = NONE;
            return index;
        }
        self.slots.push(Slot {
            queued: Some(queued),
            next: NONE,
        });
        // The cap in packets bounds the table long before this saturates.
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }
}

/// One first-in, first-out queue.
#[derive(Debug)]
pub(super) struct Fifo {
    first: u32,
    last: u32,
    bytes: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
            bytes: 0,
        }
    }
}

impl Fifo {
    /// Number of bytes in the queue.
    pub(super) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether no packet is in the queue.
    pub(super) const fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Appends a packet.
    pub(super) fn push(&mut self, slab: &mut Slab, queued: Queued) {
        self.bytes = self.bytes.saturating_add(len_of(&queued));
        let index = slab.put(queued);
        match slab.slots.get_mut(self.last as usize) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    /// Replaces the last packet if `may` returns true. Returns the replaced packet, or the new packet as an error.
    pub(super) fn replace_last(
        &mut self,
        slab: &mut Slab,
        packet: PacketBuf,
        may: impl FnOnce(&Queued, &PacketBuf) -> bool,
    ) -> Result<PacketBuf, PacketBuf> {
        let last = slab.slots.get_mut(self.last as usize);
        let last = last.and_then(|slot| slot.queued.as_mut());
        let Some(last) = last.filter(|last| may(last, &packet)) else {
            return Err(packet);
        };
        self.bytes = self.bytes.saturating_sub(len_of(last));
        let old = core::mem::replace(&mut last.packet, packet);
        self.bytes = self.bytes.saturating_add(len_of(last));
        Ok(old)
    }

    /// Removes and returns the first packet.
    pub(super) fn pop(&mut self, slab: &mut Slab) -> Option<Queued> {
        let index = self.first;
        let slot = slab.slots.get_mut(index as usize)?;
        let queued = slot.queued.take();
        self.first = slot.next;
        if self.first == NONE {
            self.last = NONE;
        }
        slot.next = slab.free;
        slab.free = index;
        self.bytes = self.bytes.saturating_sub(queued.as_ref().map_or(0, len_of));
        queued
    }
}

fn len_of(queued: &Queued) -> u32 {
    u32::try_from(queued.packet.len()).unwrap_or(u32::MAX)
}

/// Index that stands for no slot.
const NONE: u32 = u32::MAX;
