use core::time::Duration;

use super::{Receiving, Sending, sending::TAIL_AFTER};
use crate::{
    counters::DropReason,
    fec::{MAX_SYMBOL_BYTES, Repair},
    flows::FlowId,
    ids::{PathId, Seq},
    mark::{ClassId, Found, Mark},
    packet::Pool,
    path::sender::Numbered,
    time::Instant,
    wire::{
        Kind,
        control::MissingWriter,
        header::{COVERED, Header},
    },
};

fn numbered(pool: &mut Pool, seq: u32, bytes: &[u8], is_expendable: bool) -> Numbered {
    Numbered {
        global_seq: Seq(seq),
        flow_step: 3,
        flow: FlowId::of_hash(0),
        is_expendable,
        round_trip: Duration::ZERO,
        origin: None,
        packet: pool.copy_of(bytes),
    }
}

fn header(covered: u8, path_seq: u32) -> Header {
    Header {
        kind: Kind::Data,
        is_out_of_turn: false,
        is_copy: false,
        is_kept: false,
        is_answer_path: false,
        covered,
        path: PathId(2),
        receiver_index: 1,
        path_seq: Seq(path_seq),
        sent_us: 0,
    }
}

/// A retransmission time that is longer than the wait for a symbol.
const FAR: Duration = Duration::from_millis(100);

fn lose(sending: &mut Sending, id: PathId, pkts: u32, round_trip: Duration, floor_ppm: u32) {
    (0..pkts).for_each(|_| sending.on_lost(id, round_trip, floor_ppm));
}

/// Returns a sender whose paths lose one packet in fifty.
fn lossy() -> Sending {
    losing(20)
}

/// Returns a sender whose paths lose `per_thousand` of a thousand packets.
fn losing(per_thousand: u32) -> Sending {
    let mut sending = Sending::new(true);
    for _ in 0..3_000 {
        sending.on_sent(PathId(2), true);
    }
    lose(&mut sending, PathId(2), per_thousand * 3, FAR, 0);
    sending
}

/// Adds a packet worth a symbol, at the start of time, with a retransmission time of 100 ms.
fn push(sending: &mut Sending, numbered: &Numbered) {
    sending.push(Instant::ZERO, numbered, true, Duration::from_millis(100));
}

/// Takes the symbol that is due, with a one-way delay of zero.
fn take(sending: &mut Sending, key: u16, out: &mut [u8]) -> Option<Repair> {
    sending.take(Instant::ZERO, Duration::ZERO, key, out)
}

fn packet(seq: u32) -> Vec<u8> {
    let [byte, ..] = seq.to_le_bytes();
    (0..40 + byte % 7)
        .map(|i| byte.wrapping_mul(31) ^ i)
        .collect()
}

#[test]
fn symbols_follow_the_losses() {
    let mut pool = Pool::new(10, 100);
    let mut sending = Sending::new(true);
    let mut due_after = |sending: &mut Sending, from: u32| {
        (1..=100).find(|i| {
            let packet = numbered(&mut pool, from + i, &[7; 50], false);
            push(sending, &packet);
            sending.is_due(Instant::ZERO, false)
        })
    };
    for _ in 0..50_000 {
        sending.on_sent(PathId(0), true);
    }
    assert_eq!(due_after(&mut sending, 0), None, "none is lost");
    lose(&mut sending, PathId(0), 30, FAR, 0);
    let few = due_after(&mut sending, 1_000);
    let mut symbol = [0; MAX_SYMBOL_BYTES];
    assert!(take(&mut sending, 1, &mut symbol).is_some());
    lose(&mut sending, PathId(0), 300, FAR, 0);
    let many = due_after(&mut sending, 2_000);
    assert!(few.is_some() && many < few, "{few:?}, {many:?}");
    assert!(many >= Some(8), "an eighth at most");
}

#[test]
fn symbols_are_fewer_once_losses_are_known_and_while_the_next_is_soon() {
    for (mut sending, repaired_after_ms, gap_ms, expected) in [
        (Sending::new(true), 100, 0, (13, 48)),
        (losing(6), 100, 0, (40, 128)),
        (losing(6), 100, 2, (26, 64)),
        (losing(10), 100, 0, (26, 128)),
        (losing(10), 100, 2, (18, 64)),
        (losing(20), 100, 0, (20, 112)),
        (losing(20), 100, 2, (13, 48)),
        (losing(35), 100, 0, (16, 80)),
        (losing(35), 100, 2, (13, 48)),
        (losing(50), 100, 0, (10, 48)),
        (losing(50), 100, 2, (10, 40)),
        (losing(50), 20, 1, (10, 40)),
    ] {
        let repaired_after = Duration::from_millis(repaired_after_ms);
        let mut pool = Pool::new(10, 100);
        let mut due = Vec::new();
        for seq in 0..300 {
            let now = Instant::from_millis(u64::from(seq) * gap_ms);
            let packet = numbered(&mut pool, seq, &[7; 50], false);
            sending.push(now, &packet, true, repaired_after);
            if sending.is_due(now, false) {
                let mut symbol = [0; MAX_SYMBOL_BYTES];
                let made = take(&mut sending, 0, &mut symbol).expect("due");
                due.push((seq, made.count));
            }
        }
        let [.., (before, _), (last, count)] = due[..] else {
            panic!("{due:?}");
        };
        let found = (last - before, count);
        assert_eq!(found, expected, "{repaired_after_ms}, {gap_ms}");
    }
}

#[test]
fn a_new_association_that_sends_slowly_is_not_taken_to_lose_for_long() {
    // One data packet every 10 ms with ACKs between them, and then 30 data packets at once.
    for (for_ms, is_protected) in [(990, true), (1_000, false)] {
        let mut pool = Pool::new(10, 100);
        let mut sending = Sending::new(true);
        let round_trip = Duration::from_millis(100);
        for ms in 0..=for_ms {
            let packet = numbered(&mut pool, ms, &[7; 50], ms % 10 > 0);
            let now = Instant::from_millis(ms.into());
            sending.push(now, &packet, true, round_trip);
        }
        let now = Instant::from_millis(for_ms.into());
        for more in 1..=30 {
            let packet = numbered(&mut pool, for_ms + more, &[7; 50], false);
            sending.push(now, &packet, true, round_trip);
        }
        assert_eq!(sending.is_due(now, false), is_protected, "{for_ms}");
    }
}

#[test]
fn what_nobody_waits_for_dilutes_no_losses() {
    let mut pool = Pool::new(10, 100);
    let mut sending = Sending::new(true);
    for _ in 0..3_000 {
        sending.on_sent(PathId(0), true);
        (0..3).for_each(|_| sending.on_sent(PathId(1), false));
    }
    // 2 in 1000 of the packets whose loss matters are lost, and one in 2000 of all packets.
    lose(&mut sending, PathId(0), 6, FAR, 0);
    (0..40).for_each(|seq| push(&mut sending, &numbered(&mut pool, seq, &[7; 50], false)));
    assert!(sending.is_due(Instant::ZERO, false));
}

#[test]
fn losses_that_are_repaired_quickly_call_for_no_symbols() {
    for (round_trip, floor_ppm, calls) in [
        (19, 39_999, false),
        (19, 40_000, true),
        (44, 14_999, false),
        (44, 15_000, true),
        (45, 0, true),
    ] {
        let (mut pool, mut sending) = (Pool::new(10, 100), Sending::new(true));
        (0..5_000).for_each(|_| sending.on_sent(PathId(2), true));
        lose(
            &mut sending,
            PathId(2),
            60,
            Duration::from_millis(round_trip),
            floor_ppm,
        );
        for seq in 0..30 {
            push(&mut sending, &numbered(&mut pool, seq, &[7; 50], false));
        }
        assert_eq!(sending.is_due(Instant::ZERO, false), calls, "{round_trip}");
    }
}

/// Whether symbols are sent at 1000 packets per second with a loss of one in 4000, if a retransmission takes
/// `repaired_after`.
fn has_symbols(repaired_after: Duration) -> bool {
    let (mut pool, mut sending) = (Pool::new(10, 100), Sending::new(true));
    (0..20_000).for_each(|_| sending.on_sent(PathId(0), true));
    (0..16_000_u32).any(|seq| {
        let now = Instant::from_millis(seq.into());
        sending.on_sent(PathId(0), true);
        if seq % 4_000 == 0 {
            sending.on_lost(PathId(0), FAR, 0);
            sending.on_repair(now);
        }
        let packet = numbered(&mut pool, seq, &[7; 50], false);
        sending.push(now, &packet, true, repaired_after);
        sending.is_due(now, false)
    })
}

#[test]
fn few_losses_are_worth_symbols_where_each_costs_much_time() {
    assert!(
        has_symbols(Duration::from_millis(600)),
        "a seventh of the time"
    );
    assert!(!has_symbols(Duration::from_millis(300)));
}

#[test]
fn no_symbol_comes_later_than_the_packet_sent_again() {
    let repaired_after = Duration::from_millis(40);
    let symbols = |gap: Duration| {
        let (mut pool, mut sending) = (Pool::new(10, 100), lossy());
        let mut symbols = 0;
        for seq in 0..400 {
            let now = Instant::ZERO + gap * seq;
            let packet = numbered(&mut pool, seq, &[7; 50], false);
            sending.push(now, &packet, true, repaired_after);
            if sending.is_due(now, false) {
                let mut symbol = [0; MAX_SYMBOL_BYTES];
                symbols += u32::from(take(&mut sending, 0, &mut symbol).is_some());
            }
        }
        symbols
    };
    assert!(symbols(Duration::from_millis(1)) > 20);
    // A few symbols are sent until the interval between packets is known.
    assert!(symbols(Duration::from_millis(15)) <= 2);
}

#[test]
fn the_tail_is_covered_if_it_is_long_enough_and_worth_it() {
    let (mut pool, now) = (Pool::new(10, 100), Instant::from_millis(5));
    let mut sending = lossy();
    for (count, is_expendable, due) in [(2, false, false), (9, true, false), (3, false, true)] {
        for seq in 0..count {
            push(
                &mut sending,
                &numbered(&mut pool, seq, &[7; 50], is_expendable),
            );
            sending.rest(now);
        }
        let at = now + TAIL_AFTER;
        assert!(!sending.is_due(now, true) && !sending.is_due(at, false));
        assert_eq!(sending.is_due(at, true), due);
        assert_eq!(sending.tail_due(), due.then_some(at));
        let mut symbol = [0; MAX_SYMBOL_BYTES];
        let _ = take(&mut sending, 0, &mut symbol);
        assert!(!sending.is_due(at, true));
    }
    for seq in 0..5 {
        push(&mut sending, &numbered(&mut pool, seq, &[7; 50], false));
        sending.rest(now);
    }
    assert!(sending.tail_due().is_some());
    sending.give_up_tail(now + TAIL_AFTER);
    assert_eq!(sending.tail_due(), None);
    for seq in 5..10 {
        push(&mut sending, &numbered(&mut pool, seq, &[7; 50], false));
        sending.rest(now + TAIL_AFTER * seq);
        assert_eq!(sending.tail_due(), None, "a trickle");
    }
}

#[test]
fn a_release_in_the_middle_of_a_frame_leaves_no_symbol_behind() {
    let (mut pool, mut sending, mut next) = (Pool::new(10, 100), lossy(), 0);
    let mut send = |sending: &mut Sending, now: Instant, ends_frame: bool| {
        let mut numbered = numbered(&mut pool, next, &[7; 50], false);
        numbered.packet.set_mark(Some(Mark {
            found: Some(Found {
                id: ClassId(0),
                is_small: false,
            }),
            answer_on: None,
            due: Some(now + Duration::from_millis(50)),
            give_up_at: None,
            ends_frame,
        }));
        sending.push(now, &numbered, true, FAR);
        sending.rest(now);
        next += 1;
    };
    let mut now = Instant::from_millis(1);
    for _ in 0..5 {
        now += Duration::from_millis(33);
        (0..10).for_each(|packet| send(&mut sending, now, packet == 9));
        let mut symbol = [0; MAX_SYMBOL_BYTES];
        while sending.is_owed() {
            let _ = sending.take(now, Duration::ZERO, 0, &mut symbol);
        }
    }
    now += Duration::from_millis(33);
    (0..5).for_each(|_| send(&mut sending, now, false));
    let later = now + Duration::from_secs(60);
    assert!(sending.is_due(later, true), "the end of the frame");
    sending.release_memory();
    assert_eq!(sending.tail_due(), None);
    sending.pause(later);
    assert!(!sending.is_owed() && !sending.is_due(later, true));
}

#[test]
fn what_is_lost_is_computed_and_told_three_times() {
    let (mut pool, now) = (Pool::new(100, 100), Instant::from_millis(5));
    let (mut sending, mut receiving) = (lossy(), Receiving::default());
    let mut symbols = 0;
    let mut recovered = Vec::new();
    for seq in 0..200 {
        let bytes = packet(seq);
        push(&mut sending, &numbered(&mut pool, seq, &bytes, false));
        if seq % 50 != 33 && seq != 5 {
            let mut source = 3_u16.to_be_bytes().to_vec();
            source.extend(&bytes);
            receiving.on_source(now, Seq(seq), &source, &mut pool);
        }
        if !sending.is_due(now, false) {
            continue;
        }
        let mut symbol = [0; MAX_SYMBOL_BYTES];
        let made = take(&mut sending, header(0, symbols).key(), &mut symbol).expect("due");
        assert!(COVERED.contains(&made.count));
        let header = header(made.count, symbols);
        receiving
            .on_symbol(now, &header, made.first, &symbol[..made.len], &mut pool)
            .expect("well formed");
        symbols += 1;
        while let Some((found, flow_step, bytes)) = receiving.pop() {
            assert_eq!(flow_step, 3);
            assert_eq!(bytes.as_slice(), packet(found.0));
            recovered.push((found.0, seq));
        }
    }
    // Packets before the first symbol were not stored. Each later loss is recovered by the next symbol.
    assert_eq!(recovered, [(33, 39), (83, 99), (133, 139), (183, 199)]);
    for _ in 0..3 {
        let mut told = MissingWriter::default();
        receiving.tell(&mut told);
        let ranges: Vec<_> = told.ranges().expect("some").collect();
        assert_eq!(ranges, [33, 83, 133, 183].map(|seq| (Seq(seq), 1)));
    }
    let mut told = MissingWriter::default();
    receiving.tell(&mut told);
    assert_eq!(told.ranges(), None);
    sending.on_recovered([(Seq(83), 1)].into_iter());
    assert!(sending.has_recovered(Seq(83)) && !sending.has_recovered(Seq(83 + 1024)));
}

#[test]
fn packets_are_remembered_only_while_symbols_come() {
    let (mut pool, mut receiving) = (Pool::new(1, 100), Receiving::default());
    for i in 0..40_u32 {
        let now = Instant::from_millis(u64::from(i) * 4);
        let result = receiving.on_symbol(now, &header(4, i), Seq(i), &[0; 50], &mut pool);
        assert_eq!(result, Ok(()));
    }
    assert!(receiving.is_active());
    let later = Instant::from_millis(160) + Duration::from_secs(60);
    receiving.on_source(later, Seq(500), &[0; 50], &mut pool);
    assert!(!receiving.is_active(), "forgotten");
}

#[test]
fn a_symbol_that_cannot_be_is_refused() {
    let (mut pool, mut receiving) = (Pool::new(1, 100), Receiving::default());
    let mut give = |receiving: &mut Receiving, bytes: &[u8]| {
        receiving.on_symbol(Instant::ZERO, &header(8, 0), Seq(9), bytes, &mut pool)
    };
    assert_eq!(give(&mut receiving, &[1; 50]), Ok(()));
    receiving.on_source(Instant::ZERO, Seq(9), &[0; 50], &mut Pool::new(1, 100));
    for bytes in [&[0; MAX_SYMBOL_BYTES + 1][..], &[0]] {
        assert_eq!(give(&mut receiving, bytes), Err(DropReason::Malformed));
    }
    assert_eq!(give(&mut receiving, &[1; 50]), Ok(()));
}
