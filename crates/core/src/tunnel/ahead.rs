//! Packets of one flow that have their numbers and wait for quick paths while later ones of it are under way already on a
//! late path ([`Pick::Behind`](crate::sched::Pick::Behind)): sent out of order so that they arrive in order, as OSIA has it
//! (2012).
//!
//! What a late path takes is the packet that would come no sooner with all that goes before it. That needs its place in
//! the order by then, and so do those before it. They wait here for their turns, which are those of the flow in the tunnel queue
//! ([`Turn::Taken`](crate::queue::Turn::Taken)). So flow queueing is as without, what goes late beside it. CoDel has seen them by then.
//!
//! Others, of other flows too, get higher numbers and go before: they are marked as out of turn.
//!
//! Bounds: one flow, and [`MOST`] packets. Nothing is dropped here.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    flows::FlowId,
    ids::Seq,
    path::{on_wire::in_datagrams, sender::Numbered},
    time::Instant,
    units::Bytes,
};

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// And when they came here.
    packets: VecDeque<(Instant, Numbered)>,
    bytes: Bytes,
    /// How long the last one that went has waited here.
    waited: Duration,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Bytes of packets.
    pub(super) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The same as lines count them.
    pub(super) fn on_wire(&self) -> Bytes {
        in_datagrams(self.bytes, self.len())
    }

    /// How long packets wait here.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether it is this flow, or one of the same place, whose packets wait.
    pub(super) fn is_of(&self, flow: FlowId) -> bool {
        self.flow().is_some_and(|own| own.shares_place(flow))
    }

    /// The flow whose packets wait.
    pub(super) fn flow(&self) -> Option<FlowId> {
        let first = self.packets.front();
        first.map(|(_, first)| first.flow)
    }

    /// Whether one that waits has a lower number than `seq`.
    pub(super) fn is_older(&self, seq: Seq) -> bool {
        let first = self.packets.front();
        first.is_some_and(|(_, first)| seq.is_after(first.global_seq))
    }

    /// Bytes that wait of a flow.
    pub(super) fn bytes_of(&self, flow: FlowId) -> Bytes {
        if self.is_of(flow) {
            self.bytes
        } else {
            Bytes::ZERO
        }
    }

    pub(super) fn push(&mut self, now: Instant, numbered: Numbered) {
        self.bytes += Bytes::of_len(numbered.packet.len());
        self.packets.push_back((now, numbered));
    }

    /// The next that goes.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Numbered> {
        let (since, numbered) = self.packets.pop_front()?;
        self.bytes = self.bytes - Bytes::of_len(numbered.packet.len());
        self.waited = if self.is_empty() {
            Duration::ZERO
        } else {
            now.since(since)
        };
        Some(numbered)
    }

    /// Takes all packets out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Numbered> {
        self.bytes = Bytes::ZERO;
        self.waited = Duration::ZERO;
        self.packets.drain(..).map(|(_, numbered)| numbered)
    }
}

/// 300 ms at 330 Mbit/s.
pub(super) const MOST: usize = 8192;
