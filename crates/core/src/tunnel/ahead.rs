//! Packets of one flow that have their numbers and wait for quick paths, while later packets of the flow are already
//! in flight on a late path ([`Pick::Behind`](crate::sched::Pick::Behind)). They are sent out of order so that they
//! arrive in order, as in OSIA (2012).
//!
//! A late path takes the first packet that would arrive no earlier on the quick paths, after all the packets before
//! it. That packet needs its sequence number when it is sent, so the packets before it get theirs too. They wait here
//! for the turns of their flow in the tunnel queue ([`Turn::Taken`](crate::queue::Turn::Taken)), so flow queueing is
//! the same as without the late path. They have already passed CoDel.
//!
//! Packets of other flows get higher numbers meanwhile and are sent first; they are marked as out of turn.
//!
//! Bounds: one flow, and [`MOST`] packets. No packet is dropped here.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{
    flows::FlowId,
    ids::Seq,
    path::{on_wire::in_datagrams, sender::Numbered},
    time::Instant,
    units::Bytes,
};

/// The waiting packets: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Each packet with the time when it came here.
    packets: VecDeque<(Instant, Numbered)>,
    bytes: Bytes,
    /// How long the packet that left last had waited here.
    waited: Duration,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Bytes of waiting packets.
    pub(super) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Bytes of waiting packets, including overhead on the wire.
    pub(super) fn on_wire(&self) -> Bytes {
        in_datagrams(self.bytes, self.len())
    }

    /// How long packets wait here.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether the packets of this flow, or of a flow with the same place in the table, wait here.
    pub(super) fn is_of(&self, flow: FlowId) -> bool {
        self.flow().is_some_and(|own| own.shares_place(flow))
    }

    /// The flow whose packets wait.
    pub(super) fn flow(&self) -> Option<FlowId> {
        let first = self.packets.front();
        first.map(|(_, first)| first.flow)
    }

    /// Whether a packet with a lower number than `seq` waits here.
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

    /// The next packet to send.
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
