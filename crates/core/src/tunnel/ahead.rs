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

use super::{Shared, Tunnel};
use crate::{
    ids::Seq,
    path::{on_wire::in_datagrams, sender::Numbered},
    queue,
    time::Instant,
    units::Bytes,
};

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// And when they came here.
    packets: VecDeque<(Instant, Numbered)>,
    bytes: Bytes,
    flow_hash: u64,
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

    /// Whether it is the flow of this hash, or one with the same place in the queue, whose packets wait.
    pub(super) fn is_of(&self, flow_hash: u64) -> bool {
        !self.is_empty() && queue::is_same_place(self.flow_hash, flow_hash)
    }

    /// The hash of the flow whose packets wait.
    pub(super) fn flow_hash(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.flow_hash)
    }

    /// Whether one that waits has a lower number than `seq`.
    pub(super) fn is_older(&self, seq: Seq) -> bool {
        let first = self.packets.front();
        first.is_some_and(|(_, first)| seq.is_after(first.global_seq))
    }

    /// Bytes that wait of the flow of this hash.
    pub(super) fn bytes_of(&self, flow_hash: u64) -> Bytes {
        if self.is_of(flow_hash) {
            self.bytes
        } else {
            Bytes::ZERO
        }
    }

    pub(super) fn push(&mut self, now: Instant, numbered: Numbered) {
        self.bytes += Bytes::of_len(numbered.packet.len());
        self.flow_hash = numbered.flow_hash;
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

impl Tunnel {
    /// Whether something comes behind a packet of the flow of this hash that a late path could take.
    pub(super) fn has_behind(&self, flow_hash: u64) -> bool {
        let is_open = self.ahead.is_empty() || self.ahead.is_of(flow_hash);
        is_open && self.queue.flow_bytes(flow_hash) > Bytes::ZERO
    }

    /// The packet that comes `ahead` bytes behind one of the flow of this hash, or later, or the last of it.
    pub(super) fn next_behind(
        &mut self,
        now: Instant,
        flow_hash: u64,
        ahead: Bytes,
        shared: &mut Shared<'_>,
    ) -> Option<Numbered> {
        if !self.has_behind(flow_hash) {
            return None;
        }
        // One at least: late paths carry numbers in their order. Symbols over what is sent that much later are of no use.
        let mut newest = None;
        while newest.is_none() || self.ahead.bytes() < ahead && self.ahead.len() < MOST {
            let dropped = shared.on_queue_drop();
            let Some(queued) = self.queue.dequeue_of(now, flow_hash, dropped) else {
                break;
            };
            let numbered = self.number(now, queued);
            if let Some(before) = newest.replace(numbered) {
                self.ahead.push(now, before);
            }
        }
        newest
    }
}

/// 300 ms at 330 Mbit/s.
const MOST: usize = 8192;

#[cfg(test)]
mod tests {
    use super::{super::Role, *};
    use crate::{
        counters::Drops,
        packet::{PacketBuf, Pool},
        queue::QueueConfig,
        sched::{AdaptiveSettings, Policy},
    };

    const FLOW: u64 = 1 << 60;
    const OTHER: u64 = 2 << 60;
    const NOW: Instant = Instant::from_millis(5);

    /// A tunnel in which so many packets of each flow wait, of 1000 bytes; the first is the packet's place in its flow.
    fn waiting(counts: [u8; 2], run: impl FnOnce(&mut Tunnel, &mut Shared<'_>)) {
        let policy = Policy::Adaptive(AdaptiveSettings::default());
        let mut tunnel = Tunnel::new(Role::Client, policy.into(), QueueConfig::default());
        let mut shared = Shared {
            pool: &mut Pool::new(1, 100),
            delivered: &mut VecDeque::new(),
            drops: &mut Drops::default(),
        };
        for (flow, count) in [FLOW, OTHER].into_iter().zip(counts) {
            for i in 0..count {
                let packet = PacketBuf::from(vec![i; 1_000]);
                tunnel.enqueue(Instant::ZERO, packet, flow, &mut shared);
            }
        }
        run(&mut tunnel, &mut shared);
        assert_eq!(shared.drops.total(), 0);
    }

    fn place(numbered: &Numbered) -> u8 {
        numbered.packet.as_slice()[0]
    }

    /// Flow, place in it and number of all that is left, in the order it leaves.
    fn rest(tunnel: &mut Tunnel, shared: &mut Shared<'_>) -> Vec<(u64, u8, u32)> {
        let mut rest = Vec::new();
        while let Some((_, numbered)) = tunnel.next_of_lanes(NOW, [false; 4], shared) {
            rest.push((numbered.flow_hash, place(&numbered), numbered.global_seq.0));
        }
        rest
    }

    #[test]
    fn what_goes_late_comes_so_far_behind_and_the_rest_keeps_its_order() {
        waiting([20, 0], |tunnel, shared| {
            let ahead = Bytes::new(5_000);
            let mut late = Vec::new();
            for _ in 0..3 {
                assert!(tunnel.has_behind(FLOW));
                let numbered = tunnel.next_behind(NOW, FLOW, ahead, shared);
                late.push(place(&numbered.expect("enough waits")));
            }
            // However far behind it need be: paths carry numbers in their order.
            let numbered = tunnel.next_behind(NOW, FLOW, Bytes::ZERO, shared);
            late.push(place(&numbered.expect("enough waits")));
            assert_eq!(late, [5, 6, 7, 8]);
            assert_eq!(tunnel.ahead.bytes(), ahead);
            let first = tunnel.next_global.minus(9);
            let is_older = [0, 1].map(|offset| tunnel.ahead.is_older(first.plus(offset)));
            assert_eq!(is_older, [false, true], "of what goes before the first");
            let rest = rest(tunnel, shared);
            let places: Vec<u8> = rest.iter().map(|(_, place, _)| *place).collect();
            let others: Vec<u8> = (0..5).chain(9..20).collect();
            assert_eq!(places, others);
            // Their numbers are as if nothing had gone before.
            assert!(rest.iter().all(|(_, place, seq)| u32::from(*place) == *seq));
            assert!(tunnel.ahead.is_empty());
        });
    }

    #[test]
    fn what_is_taken_back_of_a_late_path_goes_after_what_waits_before_it() {
        waiting([6, 1], |tunnel, shared| {
            let late = tunnel.next_behind(NOW, FLOW, Bytes::new(100_000), shared);
            let late = late.expect("enough waits");
            let mut other = tunnel.next_of_lanes(NOW, [false; 4], shared);
            while other
                .as_ref()
                .is_some_and(|(_, next)| next.flow_hash == FLOW)
            {
                other = tunnel.next_of_lanes(NOW, [false; 4], shared);
            }
            let (_, other) = other.expect("the other flow's turn");
            tunnel.reinject.extend([late, other]);
            assert!(!tunnel.ahead.is_empty());
            let mut again = || {
                let next = tunnel.next_reinjected(NOW, shared);
                next.map(|next| next.flow_hash)
            };
            assert_eq!([again(), again()], [Some(OTHER), None]);
            rest(tunnel, shared);
            let next = tunnel.next_reinjected(NOW, shared);
            assert_eq!(next.as_ref().map(place), Some(5));
        });
    }

    #[test]
    fn other_flows_have_their_turn_as_without() {
        waiting([20, 20], |tunnel, shared| {
            let late = tunnel.next_behind(NOW, FLOW, Bytes::new(10_000), shared);
            assert_eq!(late.as_ref().map(place), Some(10));
            assert!(!tunnel.has_behind(OTHER), "one at a time");
            let rest = rest(tunnel, shared);
            for flow in [FLOW, OTHER] {
                let places = rest.iter().filter(|(hash, ..)| *hash == flow);
                let places: Vec<u8> = places.map(|(_, place, _)| *place).collect();
                assert!(places.is_sorted(), "{places:?}");
                assert_eq!(places.len(), if flow == FLOW { 19 } else { 20 });
            }
            let of_other = rest[..28].iter().filter(|(hash, ..)| *hash == OTHER);
            assert!((13..=15).contains(&of_other.count()), "{rest:?}");
        });
    }

    #[test]
    fn what_waits_of_a_flow_leaves_though_none_of_it_is_queued() {
        waiting([6, 20], |tunnel, shared| {
            let late = tunnel.next_behind(NOW, FLOW, Bytes::new(100_000), shared);
            assert_eq!(late.as_ref().map(place), Some(5), "the last");
            assert!(!tunnel.has_behind(FLOW));
            let rest = rest(tunnel, shared);
            let places: Vec<usize> = (0..rest.len()).filter(|i| rest[*i].0 == FLOW).collect();
            assert!(
                places.last().is_some_and(|last| (8..=10).contains(last)),
                "{rest:?}"
            );
            assert_eq!((places.len(), rest.len()), (5, 25));
        });
    }
}
