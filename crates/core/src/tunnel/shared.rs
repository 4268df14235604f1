//! The buffers, counters and limits that a tunnel borrows from its owner.

use std::collections::VecDeque;

use crate::{
    counters::{DropReason, Drops},
    packet::{PacketBuf, Pool},
    queue::QueueDrop,
    session::limiter::Bucket,
};

/// The buffers, counters and limits that a tunnel borrows from its owner for one call.
#[derive(Debug)]
pub struct Shared<'a> {
    /// Pool from which buffers are taken and to which they are returned.
    pub pool: &'a mut Pool,
    /// Inner packets for the host, in order.
    pub delivered: &'a mut VecDeque<PacketBuf>,
    /// Number of drops by reason.
    pub drops: &'a mut Drops,
    /// Limit of the tunnels that begin to use packet trains.
    pub train_starts: &'a mut Bucket,
}

impl Shared<'_> {
    /// Returns a callback that drops and counts the packets discarded by a queue.
    pub(super) fn on_queue_drop(&mut self) -> impl FnMut(PacketBuf, QueueDrop) {
        |packet, reason| self.drop(packet, DropReason::from(reason))
    }

    /// Drops an inner packet and counts it under `reason`.
    pub(super) fn drop(&mut self, packet: PacketBuf, reason: DropReason) {
        self.drops.add(reason, 1);
        self.pool.recycle(packet);
    }
}
