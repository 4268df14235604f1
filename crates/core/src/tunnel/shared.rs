//! The buffers and counters that a tunnel borrows from its owner.

use std::collections::VecDeque;

use crate::{
    counters::{DropReason, Drops},
    packet::{PacketBuf, Pool},
    queue::QueueDrop,
};

/// The buffers and counters that a tunnel borrows from its owner for one call.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The source of buffers, to which they return.
    pub pool: &'a mut Pool,
    /// Inner packets for the host, in order.
    pub delivered: &'a mut VecDeque<PacketBuf>,
    /// The number of drops, by reason.
    pub drops: &'a mut Drops,
}

impl Shared<'_> {
    /// A callback that takes the packets dropped by a queue.
    pub(super) fn on_queue_drop(&mut self) -> impl FnMut(PacketBuf, QueueDrop) {
        |packet, reason| self.drop(packet, DropReason::from(reason))
    }

    /// Drops an inner packet and counts it under `reason`.
    pub(super) fn drop(&mut self, packet: PacketBuf, reason: DropReason) {
        self.drops.add(reason, 1);
        self.pool.recycle(packet);
    }
}
