//! Packets that paths with longer delays take from further back in the queue.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Egress, Outbound, Shared, adaptive};
use crate::{
    counters::Drops,
    flows::FlowId,
    packet::{PacketBuf, Pool},
    path::sender::Numbered,
    session::limiter::Bucket,
    time::Instant,
    transmit::TxQueue,
    tunnel::lanes::Blocked,
    units::Bytes,
};

const FLOW: FlowId = FlowId::at(1);
const OTHER: FlowId = FlowId::at(2);
const NOW: Instant = Instant::from_millis(5);

/// Calls `run` with a tunnel in which `counts` packets of 1000 bytes wait for each flow. The first byte of a packet is
/// its place in its flow.
fn waiting(counts: [u8; 2], run: impl FnOnce(&mut Outbound, &mut Egress<'_, '_>)) {
    let mut tunnel = adaptive();
    let mut train_starts = Bucket::FULL;
    let mut shared = Shared {
        pool: &mut Pool::new(1, 100),
        delivered: &mut VecDeque::new(),
        drops: &mut Drops::default(),
        train_starts: &mut train_starts,
    };
    for (flow, count) in [FLOW, OTHER].into_iter().zip(counts) {
        for i in 0..count {
            let packet = PacketBuf::from(vec![i; 1_000]);
            let lanes = &mut tunnel.outbound.lanes;
            lanes.enqueue(Instant::ZERO, packet, flow, Duration::ZERO, &mut shared);
        }
    }
    let mut out = TxQueue::new(1);
    let (outbound, mut egress) = tunnel.egress(NOW, &mut out, &mut shared);
    run(outbound, &mut egress);
    assert_eq!(shared.drops.total(), 0);
}

fn place(numbered: &Numbered) -> u8 {
    numbered.packet.as_slice()[0]
}

/// Returns flow, place in the flow and sequence number of the remaining packets, in the order in which they leave.
fn rest(outbound: &mut Outbound, egress: &mut Egress<'_, '_>) -> Vec<(FlowId, u8, u32)> {
    let mut rest = Vec::new();
    while let Some(numbered) = next(outbound, egress) {
        rest.push((numbered.flow, place(&numbered), numbered.global_seq.0));
    }
    rest
}

#[test]
fn what_goes_late_comes_so_far_behind_and_the_rest_keeps_its_order() {
    waiting([20, 0], |outbound, egress| {
        let ahead = Bytes::new(5_000);
        let mut late = Vec::new();
        for _ in 0..3 {
            assert!(outbound.lanes.has_behind(FLOW));
            let numbered = next_behind(outbound, egress, ahead);
            late.push(place(&numbered.expect("enough waits")));
        }
        // Even at a distance of zero the packet is a later one, because sequence numbers on a path must increase.
        let numbered = next_behind(outbound, egress, Bytes::ZERO);
        late.push(place(&numbered.expect("enough waits")));
        assert_eq!(late, [5, 6, 7, 8]);
        assert_eq!(outbound.lanes.ahead.bytes(), ahead);
        let first = outbound.next_number().minus(9);
        let is_older = [0, 1].map(|offset| outbound.lanes.ahead.is_older(first.plus(offset)));
        assert_eq!(is_older, [false, true], "of what goes before the first");
        let rest = rest(outbound, egress);
        let places: Vec<u8> = rest.iter().map(|(_, place, _)| *place).collect();
        let others: Vec<u8> = (0..5).chain(9..20).collect();
        assert_eq!(places, others);
        // The sequence numbers are the same as without a path with a longer delay.
        assert!(rest.iter().all(|(_, place, seq)| u32::from(*place) == *seq));
        assert!(outbound.lanes.ahead.is_empty());
    });
}

#[test]
fn what_is_taken_back_of_a_late_path_goes_after_what_waits_before_it() {
    waiting([6, 1], |outbound, egress| {
        let late = next_behind(outbound, egress, Bytes::new(100_000));
        let late = late.expect("enough waits");
        let mut other = next(outbound, egress);
        while other.as_ref().is_some_and(|next| next.flow == FLOW) {
            other = next(outbound, egress);
        }
        let other = other.expect("the other flow's turn");
        egress.repair.extend([late, other], outbound.next_number());
        assert!(!outbound.lanes.ahead.is_empty());
        let mut again = || {
            let next = outbound.next_again(Blocked::default(), egress);
            next.map(|next| next.flow)
        };
        assert_eq!([again(), again()], [Some(OTHER), None]);
        rest(outbound, egress);
        let next = outbound.next_again(Blocked::default(), egress);
        assert_eq!(next.as_ref().map(place), Some(5));
    });
}

#[test]
fn other_flows_have_their_turn_as_without() {
    waiting([20, 20], |outbound, egress| {
        let late = next_behind(outbound, egress, Bytes::new(10_000));
        assert_eq!(late.as_ref().map(place), Some(10));
        assert!(!outbound.lanes.has_behind(OTHER), "one at a time");
        let rest = rest(outbound, egress);
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
    waiting([6, 20], |outbound, egress| {
        let late = next_behind(outbound, egress, Bytes::new(100_000));
        assert_eq!(late.as_ref().map(place), Some(5), "the last");
        assert!(!outbound.lanes.has_behind(FLOW));
        let rest = rest(outbound, egress);
        let places: Vec<usize> = (0..rest.len()).filter(|i| rest[*i].0 == FLOW).collect();
        assert!(
            places.last().is_some_and(|last| (8..=10).contains(last)),
            "{rest:?}"
        );
        assert_eq!((places.len(), rest.len()), (5, 25));
    });
}

/// Returns the packet that leaves next.
pub(super) fn next(outbound: &mut Outbound, egress: &mut Egress<'_, '_>) -> Option<Numbered> {
    let (lanes, numbering) = (&mut outbound.lanes, &mut outbound.numbering);
    let next = lanes.next(Blocked::default(), numbering, egress);
    next.map(|(_, numbered)| numbered)
}

fn next_behind(
    outbound: &mut Outbound,
    egress: &mut Egress<'_, '_>,
    ahead: Bytes,
) -> Option<Numbered> {
    let (lanes, numbering) = (&mut outbound.lanes, &mut outbound.numbering);
    lanes.next_behind(FLOW, ahead, numbering, egress)
}
