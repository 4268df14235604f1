//! Packets of one flow that already have their sequence numbers and wait for paths with short delays, while later
//! packets of the flow are in flight on a path with a longer delay ([`Pick::Behind`](crate::sched::Pick::Behind)).
//! Packets are sent out of order so that they arrive in order, as in OSIA (2012).
//!
//! The path with the longer delay takes the first packet in the queue that would arrive no earlier on the other paths,
//! because the other paths first have to send all packets before it. That packet needs its sequence number when it is
//! sent, so the packets before it are numbered as well. The numbered packets then wait here until the tunnel queue
//! schedules their flow ([`Turn::Taken`](crate::queue::Turn::Taken)), so flow queueing is the same as without the path
//! with the longer delay. They have already passed CoDel.
//!
//! Packets of other flows that are sent meanwhile have higher numbers; they are marked as out of turn.
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

/// Packets of one flow that wait for paths with short delays: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Each packet, with the time at which it was added.
    packets: VecDeque<(Instant, Numbered)>,
    bytes: Bytes,
    /// Number of bytes before headers were compressed.
    original: u64,
    /// Waiting time of the packet that was last removed; zero if no packet is left.
    waited: Duration,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the number of bytes of the waiting packets.
    pub(super) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Returns the number of bytes of the waiting packets before their headers were compressed.
    pub(super) const fn original_bytes(&self) -> u64 {
        self.original
    }

    /// Returns the number of bytes of the waiting packets, including overhead on the wire.
    pub(super) fn on_wire(&self) -> Bytes {
        in_datagrams(self.bytes, self.len())
    }

    /// Returns how long the last packet waited here before it was sent; zero if no packets wait.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether the waiting packets belong to this flow, or to a flow with the same place in the table.
    pub(super) fn is_of(&self, flow: FlowId) -> bool {
        self.flow().is_some_and(|own| own.shares_place(flow))
    }

    /// Returns the flow to which the waiting packets belong.
    pub(super) fn flow(&self) -> Option<FlowId> {
        let first = self.packets.front();
        first.map(|(_, first)| first.flow)
    }

    /// Whether a packet with a lower number than `seq` waits here.
    pub(super) fn is_older(&self, seq: Seq) -> bool {
        let first = self.packets.front();
        first.is_some_and(|(_, first)| seq.is_after(first.global_seq))
    }

    /// Returns the number of waiting bytes that belong to a flow.
    pub(super) fn bytes_of(&self, flow: FlowId) -> Bytes {
        if self.is_of(flow) {
            self.bytes
        } else {
            Bytes::ZERO
        }
    }

    pub(super) fn push(&mut self, now: Instant, numbered: Numbered) {
        self.bytes += Bytes::of_len(numbered.packet.len());
        self.original += numbered.packet.original_len() as u64;
        self.packets.push_back((now, numbered));
    }

    /// Removes and returns the next packet to send.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Numbered> {
        let (since, numbered) = self.packets.pop_front()?;
        self.bytes = self.bytes - Bytes::of_len(numbered.packet.len());
        self.original -= numbered.packet.original_len() as u64;
        self.waited = if self.is_empty() {
            Duration::ZERO
        } else {
            now.since(since)
        };
        Some(numbered)
    }

    /// Removes and returns all packets.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Numbered> {
        self.bytes = Bytes::ZERO;
        self.original = 0;
        self.waited = Duration::ZERO;
        self.packets.drain(..).map(|(_, numbered)| numbered)
    }
}

/// Maximum number of waiting packets: 300 ms at 330 Mbit/s.
pub(super) const MOST: usize = 8192;
