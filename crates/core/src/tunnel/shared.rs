//! What a tunnel borrows from its owner.

use std::collections::VecDeque;

use crate::{
    counters::{DropReason, Drops},
    packet::{PacketBuf, Pool},
    queue::QueueDrop,
};

/// What a tunnel borrows from its owner for one call.
#[derive(Debug)]
pub struct Shared<'a> {
    /// Where buffers come from and return to.
    pub pool: &'a mut Pool,
    /// Inner packets for the host, in order.
    pub delivered: &'a mut VecDeque<PacketBuf>,
    /// What was dropped, by reason.
    pub drops: &'a mut Drops,
}

impl Shared<'_> {
    /// Takes what a queue drops.
    pub(super) fn on_queue_drop(&mut self) -> impl FnMut(PacketBuf, QueueDrop) {
        |packet, reason| self.drop(packet, DropReason::from(reason))
    }

    /// Drops an inner packet and counts it under `reason`.
    pub(super) fn drop(&mut self, packet: PacketBuf, reason: DropReason) {
        self.drops.add(reason, 1);
        self.pool.recycle(packet);
    }
}
