//! The turns of packets that are restricted to different links, and of all other packets.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Egress, Outbound, Shared, adaptive};
use crate::{
    class::{Class, Match, Service},
    counters::Drops,
    ids::PathId,
    mark::Mark,
    packet::{PacketBuf, PacketView, Pool, tests::udp_v4},
    path::sender::Numbered,
    session::limiter::Bucket,
    time::Instant,
    transmit::TxQueue,
    tunnel::{
        lanes::{Blocked, Lane},
        path_set::PathSet,
    },
};

const NOW: Instant = Instant::from_millis(5);
const LEN: usize = 500;
/// Source ports of the packets: two classes with links, and a packet without a class.
const FIRST: u16 = 1;
const SECOND: u16 = 2;
const BULK: u16 = 3;

fn class(port: u16, link: &str) -> Class {
    Class {
        name: link.to_owned(),
        matches: Match {
            ports: vec![port..=port],
            ..Match::default()
        },
        service: Service {
            links: vec![link.to_owned()],
            ..Service::default()
        },
    }
}

/// Calls `run` with a tunnel in which `count` packets of each flow wait. Returns the number of drops.
fn waiting(count: usize, run: impl FnOnce(&mut Outbound, &mut Egress<'_, '_>)) -> u64 {
    let mut tunnel = adaptive();
    tunnel.set_compression(false);
    tunnel.set_classes(vec![class(FIRST, "a"), class(SECOND, "b")]);
    let mut train_starts = Bucket::FULL;
    let mut shared = Shared {
        pool: &mut Pool::new(1, 100),
        delivered: &mut VecDeque::new(),
        drops: &mut Drops::default(),
        train_starts: &mut train_starts,
    };
    for port in [FIRST, SECOND, BULK] {
        for _ in 0..count {
            let bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (port, 443), LEN);
            let packet = PacketBuf::from(bytes);
            let view = packet.view().expect("a packet");
            let flow = tunnel.outbound.flows.on_packet(NOW, &view);
            let lanes = &mut tunnel.outbound.lanes;
            lanes.enqueue(NOW, packet, flow, Duration::ZERO, &mut shared);
        }
    }
    assert_eq!(tunnel.outbound.lanes.len(), 3 * count);
    let mut out = TxQueue::new(1);
    let (outbound, mut egress) = tunnel.egress(NOW, &mut out, &mut shared);
    run(outbound, &mut egress);
    shared.drops.total()
}

fn next(
    outbound: &mut Outbound,
    blocked: Blocked,
    egress: &mut Egress<'_, '_>,
) -> Option<(Lane, Numbered)> {
    let (lanes, numbering) = (&mut outbound.lanes, &mut outbound.numbering);
    lanes.next(blocked, numbering, egress)
}

fn port(numbered: &Numbered) -> u16 {
    let view = PacketView::parse(numbered.packet.as_slice()).expect("a packet");
    view.ports().expect("UDP")[0]
}

#[test]
fn lanes_take_turns_and_a_lane_that_waits_delays_no_other() {
    let dropped = waiting(4, |outbound, egress| {
        let mut ports = Vec::new();
        for _ in 0..6 {
            let (_, numbered) = next(outbound, Blocked::default(), egress).expect("some wait");
            ports.push(port(&numbered));
        }
        assert_eq!(ports, [BULK, FIRST, SECOND, BULK, FIRST, SECOND]);
        // The first packet of the first class waits for its link.
        let mut blocked = Blocked::default();
        blocked.insert(Lane::Bulk);
        blocked.insert(Lane::Pinned(1));
        let (lane, numbered) = next(outbound, blocked, egress).expect("some wait");
        assert_eq!((lane, port(&numbered)), (Lane::Pinned(0), FIRST));
        let sent = outbound.lanes.sent_bytes();
        outbound.lanes.put_back(lane, numbered);
        assert_eq!(outbound.lanes.sent_bytes(), sent - LEN as u64);
        assert!(outbound.lanes.has_others());
        let mut blocked = Blocked::default();
        blocked.insert(lane);
        let mut ports = Vec::new();
        while let Some((_, numbered)) = next(outbound, blocked, egress) {
            ports.push(port(&numbered));
        }
        assert_eq!(ports, [SECOND, BULK, SECOND, BULK]);
        let (_, numbered) = next(outbound, Blocked::default(), egress).expect("it waits");
        outbound.lanes.put_back(lane, numbered);
        let numbered = outbound
            .lanes
            .drain_numbered()
            .map(|numbered| port(&numbered));
        assert_eq!(numbered.collect::<Vec<_>>(), [FIRST]);
        assert_eq!(outbound.lanes.len(), 1);
        assert_eq!(outbound.lanes.sent_bytes(), 10 * LEN as u64);
    });
    assert_eq!(dropped, 0);
}

#[test]
fn retransmission_that_waits_for_its_link_delays_no_other() {
    let dropped = waiting(2, |outbound, egress| {
        let mut lost = Vec::new();
        while let Some((_, numbered)) = next(outbound, Blocked::default(), egress) {
            lost.push(numbered);
        }
        egress.repair.extend(lost, outbound.next_number());
        let mut blocked = Blocked::default();
        let mut again = |outbound: &mut Outbound, blocked| {
            let numbered = outbound.next_again(blocked, egress)?;
            let lane = outbound.lanes.lane_again(&numbered.packet)?;
            Some((lane, port(&numbered)))
        };
        assert_eq!(again(outbound, blocked), Some((Lane::Bulk, BULK)));
        blocked.insert(Lane::Bulk);
        assert_eq!(again(outbound, blocked), Some((Lane::Pinned(0), FIRST)));
        blocked.insert(Lane::Pinned(0));
        assert_eq!(again(outbound, blocked), Some((Lane::Pinned(1), SECOND)));
        assert_eq!(again(outbound, blocked), Some((Lane::Pinned(1), SECOND)));
        assert_eq!(again(outbound, blocked), None);
    });
    assert_eq!(dropped, 0);
}

#[test]
fn retransmission_whose_queue_was_freed_delays_no_other() {
    waiting(1, |outbound, egress| {
        let mut lost = Vec::new();
        while let Some((_, numbered)) = next(outbound, Blocked::default(), egress) {
            lost.push(numbered);
        }
        let profile = *egress.profile();
        let classes = vec![class(FIRST, "a"), class(SECOND, "b")];
        outbound.lanes.set_classes(classes, &profile);
        lost.sort_by_key(|numbered| port(numbered) == BULK);
        let mut blocked = Blocked::default();
        for numbered in &lost[..2] {
            let lane = outbound.lanes.lane_again(&numbered.packet);
            assert_eq!(lane, None);
            blocked.insert_again(lane);
        }
        egress.repair.extend(lost, outbound.next_number());
        let numbered = outbound.next_again(blocked, egress).expect("it is free");
        assert_eq!(port(&numbered), BULK);
        assert!(outbound.next_again(blocked, egress).is_none());
    });
}

/// Returns the next packet of the first class.
fn next_of_first(outbound: &mut Outbound, egress: &mut Egress<'_, '_>) -> Numbered {
    let mut blocked = Blocked::default();
    blocked.insert(Lane::Bulk);
    blocked.insert(Lane::Pinned(1));
    let (lane, numbered) = next(outbound, blocked, egress).expect("it waits");
    assert_eq!((lane, port(&numbered)), (Lane::Pinned(0), FIRST));
    numbered
}

#[test]
fn packet_with_numbers_is_the_next_of_its_lane_after_a_change_of_the_classes() {
    let dropped = waiting(2, |outbound, egress| {
        let numbered = next_of_first(outbound, egress);
        let seq = numbered.global_seq;
        outbound.lanes.put_back(Lane::Pinned(0), numbered);
        let profile = *egress.profile();
        let classes = vec![class(BULK, "c"), class(FIRST, "a")];
        outbound.lanes.set_classes(classes, &profile);
        let numbered = next_of_first(outbound, egress);
        assert_eq!(numbered.global_seq, seq);
        let lane = outbound.lanes.lane_again(&numbered.packet);
        assert_eq!(lane, Some(Lane::Pinned(0)));
        outbound.lanes.put_back(Lane::Pinned(0), numbered);
        let mut count = 0;
        while next(outbound, Blocked::default(), egress).is_some() {
            count += 1;
        }
        assert_eq!(count, 6);
    });
    assert_eq!(dropped, 0);
}

#[test]
fn packets_that_wait_are_dropped_when_their_class_becomes_blocked() {
    let dropped = waiting(3, |outbound, egress| {
        let lost = next_of_first(outbound, egress);
        egress.repair.extend([lost], outbound.next_number());
        let numbered = next_of_first(outbound, egress);
        outbound.lanes.put_back(Lane::Pinned(0), numbered);
        let mut blocked = class(FIRST, "a");
        blocked.service.is_blocked = true;
        let profile = *egress.profile();
        let classes = vec![blocked, class(SECOND, "b")];
        outbound.lanes.set_classes(classes, &profile);
        assert!(outbound.next_again(Blocked::default(), egress).is_none());
        let mut count = 0;
        while let Some((_, numbered)) = next(outbound, Blocked::default(), egress) {
            assert_ne!(port(&numbered), FIRST);
            count += 1;
        }
        assert_eq!(count, 6);
        assert_eq!(outbound.lanes.sent_bytes(), 7 * LEN as u64);
    });
    assert_eq!(dropped, 3);
}

#[test]
fn packet_restricted_to_one_path_is_bound_to_it() {
    waiting(1, |outbound, egress| {
        let numbered = next_of_first(outbound, egress);
        let services = &outbound.lanes.services;
        let is_bound = |id, link, packet: &PacketBuf| {
            services.is_bound_to((PathId(id), link), packet, &PathSet::default())
        };
        let mut packet = numbered.packet;
        assert!(is_bound(0, "a", &packet));
        assert!(!is_bound(1, "b", &packet), "its own link carries nothing");
        let mark = packet.mark().expect("a mark");
        packet.set_mark(Some(Mark {
            answer_on: Some(PathId(1)),
            ..mark
        }));
        assert!(is_bound(1, "b", &packet) && !is_bound(0, "a", &packet));
        packet.set_mark(None);
        assert!(!is_bound(0, "a", &packet));
    });
}

#[test]
fn memory_of_restricted_packets_is_released() {
    let mut tunnel = adaptive();
    tunnel.set_classes(vec![class(FIRST, "a")]);
    let mut train_starts = Bucket::FULL;
    let mut shared = Shared {
        pool: &mut Pool::new(1, 100),
        delivered: &mut VecDeque::new(),
        drops: &mut Drops::default(),
        train_starts: &mut train_starts,
    };
    let bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (FIRST, 443), LEN);
    tunnel.handle_packet(NOW, PacketBuf::from(bytes), &mut shared);
    assert_eq!(tunnel.outbound.lanes.len(), 1);
    tunnel.outbound.release_memory(NOW, &mut shared);
    assert!(tunnel.outbound.lanes.is_empty());
    assert_eq!(shared.drops.total(), 1);
}
