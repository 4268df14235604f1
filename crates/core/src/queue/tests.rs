use std::collections::VecDeque;

use super::*;
use crate::{
    packet::{Ecn, PacketView, tests::udp_v4},
    rng::Rng,
};

const fn at_us(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

/// An IP packet of `len` bytes that carries `number`; ECN-capable if `ecn`.
fn packet(number: u32, len: usize, ecn: bool) -> PacketBuf {
    let mut bytes = udp_v4([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), len.max(32));
    bytes[28..32].copy_from_slice(&number.to_be_bytes());
    bytes[1] |= if ecn { 2 } else { 0 };
    bytes.into()
}

fn number(packet: &PacketBuf) -> u32 {
    let bytes = packet.as_slice()[28..32].try_into().expect("four bytes");
    u32::from_be_bytes(bytes)
}

fn none_dropped(packet: PacketBuf, reason: QueueDrop) {
    panic!("dropped {} for {reason:?}", number(&packet));
}

fn queue() -> Queue {
    Queue::new(QueueConfig::default())
}

#[test]
fn an_idle_queue_takes_no_memory_before_and_after() {
    let mut queue = queue();
    assert_eq!((queue.flows.capacity(), queue.is_empty()), (0, true));
    assert!(queue.dequeue(Instant::ZERO, none_dropped).is_none());
    queue.enqueue(
        Instant::ZERO,
        packet(1, 100, false),
        FlowId::at(3),
        none_dropped,
    );
    queue.release_memory();
    assert_eq!((queue.len(), queue.bytes()), (1, Bytes::new(100)));
    assert!(queue.dequeue(Instant::ZERO, none_dropped).is_some());
    queue.release_memory();
    assert_eq!(queue.flows.capacity(), 0);
}

#[test]
fn what_waits_of_a_flow_is_known() {
    let mut queue = queue();
    let bytes = |queue: &Queue, flow| queue.flow_bytes(FlowId::at(flow)).get();
    assert_eq!(bytes(&queue, 1), 0, "before the first packet");
    for (flow, len) in [(1, 1_000), (2, 700), (1, 500)] {
        queue.enqueue(
            Instant::ZERO,
            packet(1, len, false),
            FlowId::at(flow),
            none_dropped,
        );
    }
    let all = [1, 2, 3].map(|flow| bytes(&queue, flow));
    assert_eq!(all, [1_500, 700, 0]);
    // The flows take turns. When the last packet of flow 1 leaves, all of flow 2 has left. When the last packet of
    // flow 2 leaves, as many bytes of flow 1 have left.
    let to_last = [1, 2, 3].map(|flow| queue.bytes_to_last(FlowId::at(flow), Bytes::ZERO).get());
    assert_eq!(to_last, [2_200, 1_400, 0]);
    // Bytes that were taken from a flow leave in its turns as well.
    let to_last = queue.bytes_to_last(FlowId::at(2), Bytes::new(300)).get();
    assert_eq!(to_last, 2_000);
    queue.dequeue(Instant::ZERO, none_dropped);
    assert_eq!(bytes(&queue, 1), 500);
}

#[test]
fn one_flow_keeps_its_order_and_a_steady_load_does_not_grow_the_table() {
    let mut queue = queue();
    let mut expected = 0;
    for n in 0..10_000 {
        let now = at_us(u64::from(n) * 100);
        queue.enqueue(now, packet(n, 1_000, false), FlowId::at(5), none_dropped);
        if n >= 30 {
            let queued = queue.dequeue(now, none_dropped).expect("waiting");
            assert_eq!(number(&queued.packet), expected);
            assert_eq!(queued.enqueued_at, at_us(u64::from(expected) * 100));
            expected += 1;
        }
    }
    assert_eq!((queue.len(), queue.slab.slots_len()), (30, 31));
}

#[test]
fn backlogged_flows_share_by_bytes_whatever_they_offer() {
    let mut queue = queue();
    // Flow 1: large packets; flow 2: small packets; flow 3: packets of half the length of those of flow 1.
    for n in 0..4_000 {
        for (flow, len) in [(1, 1_400), (2, 200), (3, 700)] {
            let packet = packet(flow, len, false);
            queue.enqueue(Instant::ZERO, packet, FlowId::at(flow.into()), none_dropped);
        }
        assert_eq!(queue.len(), 3 * (n + 1));
        if queue.len() > 10_000 {
            break;
        }
    }
    let mut sent = [0; 4];
    for _ in 0..2_500 {
        let queued = queue.dequeue(Instant::ZERO, none_dropped).expect("waiting");
        sent[number(&queued.packet) as usize] += queued.packet.len();
    }
    for flow in 1..=3 {
        assert!(sent[flow].abs_diff(sent[1]) <= 2 * 1_514, "{sent:?}");
    }
}

#[test]
fn a_sparse_flow_passes_by_the_bulk() {
    let mut queue = queue();
    for n in 0..100 {
        queue.enqueue(
            Instant::ZERO,
            packet(n, 1_400, false),
            FlowId::at(1),
            none_dropped,
        );
    }
    for _ in 0..3 {
        queue.dequeue(Instant::ZERO, none_dropped);
    }
    for round in 0..10 {
        queue.enqueue(
            Instant::ZERO,
            packet(9_000 + round, 100, false),
            FlowId::at(2),
            none_dropped,
        );
        let next = queue.dequeue(Instant::ZERO, none_dropped).expect("waiting");
        assert_eq!(number(&next.packet), 9_000 + round);
        for _ in 0..3 {
            let next = queue.dequeue(Instant::ZERO, none_dropped).expect("waiting");
            assert!(number(&next.packet) < 100);
        }
    }
}

#[test]
fn a_flow_that_keeps_coming_back_as_new_does_not_starve_the_old() {
    let mut queue = queue();
    for n in 0..2_000 {
        queue.enqueue(
            Instant::ZERO,
            packet(n, 300, false),
            FlowId::at(1),
            none_dropped,
        );
    }
    let mut sent = [0, 0];
    for _ in 0..1_000 {
        // The greedy flow sends one large packet whenever it would count as new.
        if !queue.flows[2].is_listed {
            queue.enqueue(
                Instant::ZERO,
                packet(9_999, 1_400, false),
                FlowId::at(2),
                none_dropped,
            );
        }
        let next = queue.dequeue(Instant::ZERO, none_dropped).expect("waiting");
        sent[usize::from(number(&next.packet) == 9_999)] += next.packet.len();
    }
    assert!(sent[0] >= sent[1], "{sent:?}");
}

/// The drop times of an unresponsive flow, in microseconds: 1000 packets of 1000 bytes wait from the start, and one
/// packet leaves each millisecond.
fn codel_run(mut queue: Queue, ecn: bool) -> (Vec<u64>, Vec<u64>, u64) {
    for n in 0..1_000 {
        queue.enqueue(
            Instant::ZERO,
            packet(n, 1_000, ecn),
            FlowId::at(7),
            none_dropped,
        );
    }
    let (mut drops, mut marks) = (Vec::new(), Vec::new());
    for tick in 0..900 {
        let now_us = tick * 1_000;
        let queued = queue.dequeue(at_us(now_us), |_, reason| {
            assert_eq!(reason, QueueDrop::Aqm);
            drops.push(now_us);
        });
        let queued = queued.expect("waiting").packet;
        if PacketView::parse(queued.as_slice()).expect("valid").ecn() == Ecn::Congested {
            marks.push(now_us);
        }
    }
    (drops, marks, queue.ce_marked())
}

/// The schedule that RFC 8289 prescribes for `codel_run`. Waiting times are above the target from 5 ms on, so the
/// first drop is at 105 ms. Each further drop is due interval / sqrt(count) after the previous one. It happens at the
/// next dequeue; there is one each millisecond.
fn codel_schedule() -> Vec<u64> {
    let mut times = Vec::new();
    let (mut next_us, mut count) = (105_000.0_f64, 0_u32);
    for ms in 0..900_u32 {
        if f64::from(ms) * 1_000.0 >= next_us {
            times.push(u64::from(ms) * 1_000);
            count += 1;
            next_us += 100_000.0 / f64::from(count).sqrt();
        }
    }
    times
}

#[test]
fn codel_drops_at_the_times_of_the_rfc() {
    let (drops, marks, marked) = codel_run(queue(), false);
    assert_eq!(drops, codel_schedule());
    assert!(drops.len() > 15 && marks.is_empty() && marked == 0);
}

#[test]
fn codel_marks_capable_packets_at_the_same_times_instead() {
    let (drops, marks, marked) = codel_run(queue(), true);
    assert_eq!(marks, codel_schedule());
    assert_eq!((drops.len(), marked), (0, marks.len() as u64));
}

#[test]
fn codel_drops_ever_faster_only_while_its_sender_may_not_have_heard() {
    let (drops, ..) = codel_run(patient_queue(300), false);
    let (heard, held): (Vec<u64>, Vec<u64>) = drops.iter().partition(|at| **at < 300_000);
    assert_eq!(heard, codel_schedule()[..heard.len()]);
    assert!(held.len() > 1, "{held:?}");
    assert!(held.windows(2).all(|pair| pair[1] - pair[0] >= 300_000));
    let (_, marks, _) = codel_run(patient_queue(300), true);
    assert_eq!(marks, codel_schedule(), "marks cost nothing");
}

#[test]
fn codel_leaves_a_lone_packet_alone_however_long_it_waited() {
    let mut queue = queue();
    for tick in 0..100 {
        queue.enqueue(
            at_us(tick * 20_000),
            packet(1, 1_400, false),
            FlowId::at(1),
            none_dropped,
        );
        assert!(
            queue
                .dequeue(at_us((tick + 1) * 20_000), none_dropped)
                .is_some()
        );
    }
}

#[test]
fn codel_goes_on_where_it_was_when_the_queue_soon_returns() {
    // The queue of an unresponsive flow, drained at 1000 ms.
    let mut queue = queue();
    let mut drops = Vec::new();
    for tick in 0..1_400_u64 {
        // Two packets arrive and one leaves each millisecond.
        let now = at_us(tick * 1_000);
        for _ in 0..2 {
            queue.enqueue(now, packet(1, 500, false), FlowId::at(1), none_dropped);
        }
        let mut dequeue = || queue.dequeue(now, |_, _| drops.push(tick));
        while dequeue().is_some() && tick == 1_000 {}
    }
    let again: Vec<_> = drops.iter().filter(|tick| **tick > 1_050).collect();
    let between = again[1] - again[0];
    assert!(between < 40, "{between}");
}

/// Simulates an unresponsive sender: fills the queue to 50 packets.
fn fill(queue: &mut Queue, now: Instant) {
    while queue.len() < 50 {
        queue.enqueue(now, packet(1, 1_000, false), FlowId::at(1), none_dropped);
    }
}

/// Returns the number of drops of an unresponsive sender in each second. The queue always holds 50 packets, except in
/// the milliseconds for which `is_rest` is true.
fn losses_of_the_deaf(mut queue: Queue, seconds: u64, is_rest: fn(u64) -> bool) -> Vec<u32> {
    let mut drops = vec![0; usize::try_from(seconds).expect("few")];
    for tick in 0..seconds * 1_000 {
        let now = at_us(tick * 1_000);
        if !is_rest(tick) {
            fill(&mut queue, now);
        }
        let second = usize::try_from(tick / 1_000).expect("few");
        let mut dequeue = || queue.dequeue(now, |_, _| drops[second] += 1);
        while dequeue().is_some() && is_rest(tick) {}
    }
    drops
}

/// A queue whose senders learn of a drop after `patience_ms`.
fn patient_queue(patience_ms: u64) -> Queue {
    let mut queue = queue();
    queue.set_limit(Duration::MAX, Duration::from_millis(patience_ms));
    queue
}

#[test]
fn codel_remembers_for_a_while_who_does_not_listen() {
    let is_rest = |tick| tick > 1_000 && tick % 210 < 5;
    let drops = losses_of_the_deaf(patient_queue(300), 40, is_rest);
    let most = *drops[1..30].iter().max().expect("some");
    assert!((2..=4).contains(&most), "{drops:?}");
    assert!(drops[31..].iter().all(|drops| *drops > 4), "{drops:?}");
}

#[test]
fn codel_finds_out_anew_who_does_not_listen_no_harder_than_before() {
    for patience_ms in [700, 730, 740, 770] {
        let drops = losses_of_the_deaf(patient_queue(patience_ms), 320, |_| false);
        let first = drops[0] + drops[1];
        for test in 1..10 {
            let at = usize::try_from(test * (30_000 + patience_ms) / 1_000).expect("few");
            let during: u32 = drops[at - 1..=at + 1].iter().sum();
            assert!(
                (7..=first + 10).contains(&during),
                "{patience_ms}, {at}: {during}, {first}"
            );
        }
        assert!(drops[5..29].iter().all(|drops| *drops <= 2), "{drops:?}");
    }
}

#[test]
fn codel_makes_up_for_no_pause_of_who_does_not_listen() {
    // Time at which no packet leaves for 3 s, and maximum number of drops after it. At 5 s the sender is known to be
    // unresponsive; at 29 s that has been forgotten and must be detected again.
    for (pause_ms, most) in [(5_000, 1), (29_000, 10)] {
        let mut queue = patient_queue(300);
        let mut drops = 0;
        for tick in 0..pause_ms + 3_300 {
            let now = at_us(tick * 1_000);
            fill(&mut queue, now);
            if (pause_ms..pause_ms + 3_000).contains(&tick) {
                continue;
            }
            queue.dequeue(now, |_, _| drops += u32::from(tick > pause_ms));
        }
        assert!(drops <= most, "{pause_ms}: {drops}");
    }
}

#[test]
fn codel_leaves_a_queue_alone_that_drains_now_and_then() {
    let mut queue = queue();
    // Bursts of 30 ms of traffic every 60 ms: long waits, but never for a whole interval.
    for burst in 0..50_u64 {
        let start = burst * 60_000;
        for n in 0..30 {
            queue.enqueue(
                at_us(start),
                packet(n, 1_000, false),
                FlowId::at(1),
                none_dropped,
            );
        }
        for n in 0..30 {
            assert!(
                queue
                    .dequeue(at_us(start + n * 1_000), none_dropped)
                    .is_some()
            );
        }
    }
}

#[test]
fn codel_of_one_flow_does_not_touch_another() {
    let mut queue = queue();
    let mut fat = 0;
    for tick in 0..2_000_u64 {
        for _ in 0..2 {
            queue.enqueue(
                at_us(tick * 1_000),
                packet(1, 1_000, false),
                FlowId::at(1),
                |_, _| {},
            );
        }
        if tick % 20 == 0 {
            queue.enqueue(
                at_us(tick * 1_000),
                packet(2, 200, false),
                FlowId::at(2),
                none_dropped,
            );
        }
        let dequeued = queue.dequeue(at_us(tick * 1_000), |packet, _| {
            assert_eq!(number(&packet), 1);
            fat += 1;
        });
        let queued = dequeued.expect("waiting");
        if number(&queued.packet) == 2 {
            let waited = at_us(tick * 1_000).since(queued.enqueued_at);
            assert!(waited <= Duration::from_millis(2), "{waited:?}");
        }
    }
    assert!(fat > 50, "{fat}");
}

/// Three packets arrive and two leave each millisecond for `ticks` ms. Returns the waiting time of each packet that
/// left, in ms.
fn overload(queue: &mut Queue, ticks: core::ops::Range<u64>) -> Vec<u128> {
    let mut waited = Vec::new();
    for tick in ticks {
        let now = at_us(tick * 1_000);
        for _ in 0..3 {
            queue.enqueue(now, packet(1, 1_000, false), FlowId::at(1), |_, _| {});
        }
        for _ in 0..2 {
            let queued = queue.dequeue(now, |_, _| {}).expect("waiting");
            waited.push(now.since(queued.enqueued_at).as_millis());
        }
    }
    waited
}

#[test]
fn a_sender_that_does_not_listen_finds_a_short_queue_all_the_same() {
    let mut queue = queue();
    let waited = overload(&mut queue, 0..10_000);
    let most = |waited: &[u128]| waited.iter().copied().max();
    // First an excess of a third for one second of patience, which CoDel hardly reduces, and then the limit.
    assert!(
        most(&waited).is_some_and(|most| (280..=400).contains(&most)),
        "{:?}",
        most(&waited)
    );
    assert_eq!(most(&waited[4_000..]), Some(100));
}

#[test]
fn a_sender_that_does_not_listen_and_keeps_below_the_limit_loses_little() {
    let drops = losses_of_the_deaf(queue(), 10, |_| false);
    assert!(drops[0] > 15, "{drops:?}");
    assert!(
        drops[2..].iter().all(|drops| (1..=2).contains(drops)),
        "{drops:?}"
    );
}

#[test]
fn what_is_allowed_to_stand_stands_for_as_long_as_it_may() {
    // 50 packets arrive at once. After that one packet leaves and one arrives each 4 ms: each waits for 200 ms.
    let dropped = |allowance: u64, allowed_ms: u64| {
        let mut queue = queue();
        queue.set_allowance(Bytes::new(allowance), Duration::from_millis(allowed_ms));
        for _ in 0..50 {
            queue.enqueue(
                at_us(0),
                packet(1, 1_000, false),
                FlowId::at(1),
                none_dropped,
            );
        }
        let mut dropped = 0;
        for tick in 1..500 {
            let now = at_us(tick * 4_000);
            queue.enqueue(now, packet(1, 1_000, false), FlowId::at(1), none_dropped);
            queue.dequeue(now, |_, reason| {
                assert_eq!(reason, QueueDrop::Aqm);
                dropped += 1;
            });
        }
        dropped
    };
    assert_eq!(dropped(51_000, 300), 0);
    assert!(dropped(51_000, 100) > 10, "for too long");
    assert!(dropped(20_000, 300) > 10, "too much");
    assert!(dropped(0, 0) > 10, "nothing is allowed");
}

#[test]
fn a_pause_in_which_nothing_could_leave_is_no_sign_of_a_deaf_sender() {
    let mut queue = queue();
    overload(&mut queue, 0..900);
    let waiting = queue.len();
    // The only path was silent for two seconds.
    let now = at_us(2_900_000);
    let mut drops = 0;
    for _ in 0..waiting / 2 {
        queue.dequeue(now, |_, _| drops += 1);
    }
    assert!(drops * 2 < waiting, "{drops} of {waiting}");
}

#[test]
fn overflow_drops_the_oldest_of_the_fattest_flow_only() {
    let mut queue = Queue::new(QueueConfig {
        max_bytes: Bytes::new(100_000),
        ..QueueConfig::default()
    });
    for n in 0..20 {
        queue.enqueue(
            Instant::ZERO,
            packet(1_000 + n, 1_000, false),
            FlowId::at(2),
            none_dropped,
        );
    }
    let mut dropped = Vec::new();
    for n in 0..500 {
        queue.enqueue(
            Instant::ZERO,
            packet(n, 1_000, false),
            FlowId::at(1),
            |packet, reason| {
                assert_eq!(reason, QueueDrop::Overflow);
                dropped.push(number(&packet));
            },
        );
        assert!(queue.bytes() <= Bytes::new(100_000));
    }
    assert_eq!(dropped, (0..420).collect::<Vec<_>>());
    queue.set_max_bytes(Bytes::new(30_000));
    let mut dropped = 0;
    queue.enqueue(
        Instant::ZERO,
        packet(1_020, 1_000, false),
        FlowId::at(2),
        |packet, _| {
            assert!(number(&packet) < 500 || dropped >= 59);
            dropped += 1;
        },
    );
    assert_eq!((dropped, queue.bytes()), (71, Bytes::new(30_000)));
}

#[test]
fn with_many_flows_one_pass_drops_several() {
    let mut queue = Queue::new(QueueConfig {
        max_packets: 2_000,
        ..QueueConfig::default()
    });
    let mut overflows = Vec::new();
    for n in 0..3_000_u32 {
        // 640 flows have one packet each, the rest belongs to flow 1000.
        let flow = if n < 640 { n } else { 1_000 };
        let mut dropped = 0;
        queue.enqueue(
            Instant::ZERO,
            packet(n, 200, false),
            FlowId::at(flow.into()),
            |packet, _| {
                assert!(number(&packet) >= 640);
                dropped += 1;
            },
        );
        overflows.extend((dropped > 0).then_some(dropped));
        assert!(queue.len() <= 2_000);
    }
    assert!(overflows.len() <= 1_000 / 40 + 1 && overflows.iter().all(|n| *n == 41));
}

#[test]
fn packets_without_bytes_or_larger_than_the_cap_do_not_hang_the_queue() {
    let mut queue = Queue::new(QueueConfig {
        max_bytes: Bytes::new(1_000),
        max_packets: 2,
        ..QueueConfig::default()
    });
    let mut dropped = 0;
    for _ in 0..5 {
        queue.enqueue(
            Instant::ZERO,
            PacketBuf::default(),
            FlowId::at(1),
            |_, _| dropped += 1,
        );
    }
    assert_eq!((queue.len(), dropped), (2, 3));
    queue.enqueue(
        Instant::ZERO,
        packet(1, 1_500, false),
        FlowId::at(2),
        |_, _| dropped += 1,
    );
    assert_eq!((queue.bytes(), dropped), (Bytes::ZERO, 4));
}

/// A pure ACK over IPv4, with the given number of bytes of no-op options.
fn ack(number: u32, options: u8) -> PacketBuf {
    let mut bytes = vec![0; 40 + usize::from(options)];
    (bytes[0], bytes[3], bytes[9]) = (0x45, 40 + options, 6);
    bytes[28..32].copy_from_slice(&number.to_be_bytes());
    (bytes[32], bytes[33]) = (0x50 + (options / 4 * 16), 0x10);
    bytes[40..].fill(1);
    let mut packet = PacketBuf::from(bytes);
    packet.parse().expect("a packet");
    packet
}

#[test]
fn of_acknowledgements_that_wait_the_newest_has_the_place_of_the_first() {
    let mut queue = queue();
    queue.set_ack_room(Bytes::ZERO);
    let mut gone = Vec::new();
    let mut take = |at, packet, flow| {
        queue.enqueue(at_us(at), packet, FlowId::at(flow), |packet, reason| {
            assert_eq!(reason, QueueDrop::Superseded);
            gone.push(number(&packet));
        });
    };
    take(1, ack(100, 0), 1);
    take(2, ack(300, 4), 1);
    take(3, ack(700, 0), 2);
    take(4, ack(400, 8), 1);
    // ACKs that are out of order, are duplicates, or belong to another flow with the same place supersede nothing.
    take(5, ack(350, 0), 1);
    take(6, ack(350, 0), 1);
    take(7, packet(1, 60, false), 1);
    take(8, ack(500, 0), 1);
    queue.enqueue(
        at_us(9),
        ack(600, 0),
        FlowId::at(1).with_hash(99),
        none_dropped,
    );
    assert_eq!(gone, [100, 300]);
    assert_eq!(
        (queue.len(), queue.bytes()),
        (7, Bytes::new(48 + 4 * 40 + 60 + 40))
    );
    let mut out = Vec::new();
    while let Some(queued) = queue.dequeue(at_us(9), none_dropped) {
        out.push((number(&queued.packet), queued.enqueued_at));
    }
    let of_first = [(400, 1), (350, 5), (350, 6), (1, 7), (500, 8), (600, 9)];
    let of_first = of_first.map(|(number, at)| (number, at_us(at)));
    assert_eq!(out[..6], of_first);
    assert_eq!(out[6], (700, at_us(3)));
    assert_eq!(queue.bytes(), Bytes::ZERO);
}

#[test]
fn acknowledgements_that_have_room_are_all_kept() {
    let mut queue = queue();
    queue.set_ack_room(Bytes::new(100));
    for number in 1..=2 {
        queue.enqueue(Instant::ZERO, ack(number, 0), FlowId::at(1), none_dropped);
    }
    let mut gone = 0;
    queue.enqueue(Instant::ZERO, ack(3, 0), FlowId::at(1), |_, _| gone += 1);
    assert_eq!((queue.len(), gone), (2, 1));
}

#[test]
fn every_packet_comes_out_exactly_once_and_in_order_within_its_flow() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let max_bytes = Bytes::new(2_000 + rng.below(200_000));
        let max_packets = 1 + usize::try_from(rng.below(400)).expect("small");
        let mut queue = Queue::new(QueueConfig {
            target: Duration::from_micros(rng.below(10_000)),
            interval: Duration::from_micros(1 + rng.below(100_000)),
            limit: Duration::from_micros(rng.below(50_000)),
            patience: Duration::from_micros(rng.below(100_000)),
            max_bytes,
            max_packets,
            allowance: Bytes::new(rng.below(40_000)),
            ack_room: Bytes::new(rng.below(4_000)),
            allowed: Duration::from_micros(rng.below(20_000)),
        });
        let flows = 1 + rng.below(200);
        // The packets that should be waiting, by flow, as numbers and lengths in order.
        let mut waiting: Vec<VecDeque<(u32, usize)>> = vec![VecDeque::new(); 256];
        let (mut now, mut flow_of) = (Instant::ZERO, Vec::new());
        let pressure = rng.uniform();
        for n in 0..20_000_u32 {
            now += Duration::from_nanos(rng.below(1_000_000));
            let mut gone = Vec::new();
            if rng.chance(pressure) {
                let flow = rng.below(flows) * rng.below(flows) / flows;
                let len = 32 + usize::try_from(rng.below(1_400)).expect("small");
                flow_of.resize(n as usize + 1, 0);
                flow_of[n as usize] = usize::try_from(flow).expect("small");
                waiting[flow_of[n as usize]].push_back((n, len));
                let packet = packet(n, len, rng.chance(0.3));
                queue.enqueue(
                    now,
                    packet,
                    FlowId::at(flow).with_hash(rng.below(99)),
                    |packet, reason| {
                        assert_eq!(reason, QueueDrop::Overflow);
                        gone.push(packet);
                    },
                );
            } else {
                let was_empty = queue.is_empty();
                let queued = queue.dequeue(now, |packet, reason| {
                    assert_eq!(reason, QueueDrop::Aqm);
                    gone.push(packet);
                });
                assert!(queued.is_some() || queue.is_empty());
                assert!(!was_empty || queued.is_none());
                if let Some(queued) = queued {
                    assert!(queued.enqueued_at <= now);
                    gone.push(queued.packet);
                }
            }
            for packet in gone {
                let flow = &mut waiting[flow_of[number(&packet) as usize]];
                assert_eq!(flow.pop_front(), Some((number(&packet), packet.len())));
            }
            assert!(queue.bytes() <= max_bytes && queue.len() <= max_packets);
            if rng.chance(0.01) {
                queue.release_memory();
                let all = || waiting.iter().flatten();
                assert_eq!(queue.len(), all().count());
                let bytes = all().map(|(_, len)| len).sum();
                assert_eq!(queue.bytes(), Bytes::of_len(bytes));
            }
        }
        while let Some(queued) = queue.dequeue(now, none_or_aqm(&mut waiting, &flow_of)) {
            let flow = &mut waiting[flow_of[number(&queued.packet) as usize]];
            assert_eq!(
                flow.pop_front().map(|(n, _)| n),
                Some(number(&queued.packet))
            );
        }
        assert!(waiting.iter().all(VecDeque::is_empty));
        assert_eq!((queue.bytes(), queue.active_flows), (Bytes::ZERO, 0));
    }
}

fn none_or_aqm(
    waiting: &mut [VecDeque<(u32, usize)>],
    flow_of: &[usize],
) -> impl FnMut(PacketBuf, QueueDrop) {
    |packet, _| {
        let flow = &mut waiting[flow_of[number(&packet) as usize]];
        assert_eq!(flow.pop_front().map(|(n, _)| n), Some(number(&packet)));
    }
}
