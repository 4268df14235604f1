//! Sequence numbers of packets in the association and in their flow.
//!
//! A packet gets its numbers when it leaves the tunnel queue, so that a packet dropped by the queue does not look like
//! a loss on a path. Flows that share a place in the table ([`crate::flows`]) share one sequence. They are then
//! delivered in a common order, which is harmless.

use core::time::Duration;

use super::templates::Templates;
use crate::{
    flows::{FlowId, PLACES},
    ids::Seq,
    path::sender::Numbered,
    queue::Queued,
    time::Instant,
};

/// The numbers assigned so far.
#[derive(Debug)]
pub(super) struct Numbering {
    next: Seq,
    /// For each place in the flow table, the number of the flow's last packet plus one, or 0 before the first packet.
    /// Empty until the first packet of the association.
    flows: Vec<u64>,
}

impl Default for Numbering {
    fn default() -> Self {
        Self {
            next: Seq(0),
            flows: Vec::new(),
        }
    }
}

impl Numbering {
    /// Returns the number of the next packet.
    pub(super) const fn next(&self) -> Seq {
        self.next
    }

    /// Assigns numbers to a packet and compresses its headers. ACKs, and packets that are not `is_ordered`, get no
    /// number in their flow. `round_trip` is the target RTT of the flow ([`super::round_trips`]).
    #[inline]
    pub(super) fn number(
        &mut self,
        now: Instant,
        mut queued: Queued,
        is_ordered: bool,
        round_trip: Duration,
        templates: &mut Templates,
    ) -> Numbered {
        let global_seq = self.next;
        self.next = global_seq.plus(1);
        let view = queued.packet.view();
        let is_pure_ack = view.is_ok_and(|view| view.is_pure_ack());
        templates.compress(now, queued.flow, &mut queued.packet);
        Numbered {
            global_seq,
            flow_step: if is_ordered && !is_pure_ack {
                self.flow_step(queued.flow, global_seq)
            } else {
                0
            },
            flow: queued.flow,
            is_expendable: is_pure_ack,
            round_trip,
            origin: None,
            packet: queued.packet,
        }
    }

    /// Returns the distance from `global_seq` back to the flow's last packet; 0 if the distance is too large or the
    /// flow had no packet.
    fn flow_step(&mut self, flow: FlowId, global_seq: Seq) -> u16 {
        if self.flows.is_empty() {
            self.flows.resize(PLACES, 0);
        }
        let last = &mut self.flows[flow.index()];
        let previous = core::mem::replace(last, u64::from(global_seq.0) + 1);
        let previous = previous.checked_sub(1);
        match previous.and_then(|seq| u32::try_from(seq).ok()) {
            Some(previous) => u16::try_from(global_seq.distance_from(Seq(previous))).unwrap_or(0),
            None => 0,
        }
    }
}
