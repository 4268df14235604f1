//! The resequencer in the order that the sender requires.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Arrival, InOrder, Resequencer, Stats, Verdict};
use crate::{
    ids::{PathId, Seq},
    packet::PacketBuf,
    time::Instant,
    wire::control::Order,
};

/// A resequencer, dispatched by enum. The methods are those of [`Resequencer`].
#[derive(Debug)]
pub enum AnyResequencer {
    /// One order over all flows.
    Global(InOrder),
    /// One order for each flow.
    PerFlow(Resequencer),
}

impl Default for AnyResequencer {
    fn default() -> Self {
        Self::PerFlow(Resequencer::new())
    }
}

impl AnyResequencer {
    /// Switches to another order. No packet held or in flight is lost or duplicated by the switch.
    ///
    /// `timeout` is how long to wait for a missing packet in [`Order::Global`]. Packets that can be released are
    /// appended to `out`.
    pub fn set_order(
        &mut self,
        now: Instant,
        order: Order,
        timeout: Duration,
        out: &mut VecDeque<PacketBuf>,
    ) {
        match (order, &mut *self) {
            (Order::Global, Self::Global(order)) => order.set_timeout(timeout),
            (Order::Global, Self::PerFlow(from)) => {
                *self = Self::Global(InOrder::take_over(from, timeout));
            }
            (Order::PerFlow, Self::Global(from)) => *self = Self::PerFlow(from.hand_over(now, out)),
            (Order::PerFlow, Self::PerFlow(_)) => {}
        }
        self.on_timeout(now, out);
    }

    /// Processes one packet.
    pub fn on_packet(
        &mut self,
        now: Instant,
        arrival: Arrival,
        out: &mut VecDeque<PacketBuf>,
        dropped: &mut Vec<PacketBuf>,
    ) -> Verdict {
        match self {
            Self::Global(order) => order.on_packet(now, arrival, out, dropped),
            Self::PerFlow(order) => order.on_packet(now, arrival, out, dropped),
        }
    }

    /// See [`Resequencer::take_steps`].
    pub fn take_steps(&mut self) -> u64 {
        match self {
            Self::Global(order) => order.take_steps(),
            Self::PerFlow(order) => order.take_steps(),
        }
    }

    /// See [`Resequencer::on_empty`].
    pub fn on_empty(&mut self, now: Instant, path: PathId, path_seq: Seq) {
        if let Self::PerFlow(order) = self {
            order.on_empty(now, path, path_seq);
        }
    }

    /// See [`Resequencer::on_tail`]. Without effect in [`Order::Global`].
    pub fn on_tail(
        &mut self,
        now: Instant,
        path: PathId,
        last: (Seq, Seq),
        out: &mut VecDeque<PacketBuf>,
    ) {
        if let Self::PerFlow(order) = self {
            order.on_tail(now, path, last, out);
        }
    }

    /// Releases packets whose deadline or timeout has passed.
    pub fn on_timeout(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        match self {
            Self::Global(order) => order.on_timeout(now, out),
            Self::PerFlow(order) => order.on_timeout(now, out),
        }
    }

    /// Returns the time at which [`Self::on_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Global(order) => order.poll_timeout(),
            Self::PerFlow(order) => order.poll_timeout(),
        }
    }

    /// Returns the number of packets held now.
    #[must_use]
    pub fn held_len(&self) -> usize {
        match self {
            Self::Global(order) => order.held_len(),
            Self::PerFlow(order) => order.held_len(),
        }
    }

    /// Releases packets, oldest first, until at most `most` are held.
    pub fn trim(&mut self, now: Instant, most: usize, out: &mut VecDeque<PacketBuf>) {
        match self {
            Self::Global(order) => order.trim(now, most, out),
            Self::PerFlow(order) => order.trim(now, most, out),
        }
    }

    /// Returns the counters since the start. They continue when the order changes.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        match self {
            Self::Global(order) => order.stats(),
            Self::PerFlow(order) => order.stats(),
        }
    }

    /// Returns the 95th percentile of recent hold times.
    #[must_use]
    pub fn hold_p95(&self) -> Duration {
        match self {
            Self::Global(order) => order.hold_p95(),
            Self::PerFlow(order) => order.hold_p95(),
        }
    }

    /// Releases all held packets, and frees the memory that an association without traffic does not need.
    pub fn release_memory(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) {
        match self {
            Self::Global(order) => order.release_memory(now, out),
            Self::PerFlow(order) => order.release_memory(now, out),
        }
    }

    /// Appends every held packet to `out` and restarts with one order for each flow. The counters continue.
    pub fn reset(&mut self, out: &mut Vec<PacketBuf>) {
        let stats = *self.stats();
        match self {
            Self::Global(order) => order.drain(out),
            Self::PerFlow(order) => order.drain(out),
        }
        *self = Self::PerFlow(Resequencer {
            stats,
            ..Resequencer::new()
        });
    }
}
