use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

const BUDGET: Duration = Duration::from_millis(50);

/// Feeds numbered packets in; a packet's content is its number.
struct Harness {
    resequencer: Resequencer,
    now: Instant,
    repair: Option<Duration>,
    out: VecDeque<PacketBuf>,
    dropped: Vec<PacketBuf>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u32,
    flow_step: u16,
    path: u8,
    path_seq: u32,
    path_previous: Option<u32>,
}

impl Harness {
    fn new() -> Self {
        Self {
            resequencer: Resequencer::new(),
            now: Instant::ZERO,
            repair: None,
            out: VecDeque::new(),
            dropped: Vec::new(),
        }
    }

    fn arrive(&mut self, sent: Sent) -> Verdict {
        self.arrive_as(sent, false)
    }

    fn arrive_as(&mut self, sent: Sent, is_out_of_turn: bool) -> Verdict {
        let arrival = Arrival {
            seq: Seq(sent.seq),
            flow_step: sent.flow_step,
            way: Some(Way {
                path: PathId(sent.path),
                path_seq: Seq(sent.path_seq),
                path_previous: sent.path_previous.map(Seq),
                is_out_of_turn,
            }),
            deadline: self.now + BUDGET,
            repair: self.repair,
            packet: PacketBuf::from(sent.seq.to_be_bytes().to_vec()),
        };
        self.resequencer
            .on_packet(self.now, arrival, &mut self.out, &mut self.dropped)
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.resequencer.on_timeout(self.now, &mut self.out);
    }

    fn delivered(&mut self) -> Vec<u32> {
        self.out
            .drain(..)
            .map(|packet| u32::from_be_bytes(*packet.as_slice().first_chunk().expect("four bytes")))
            .collect()
    }
}

/// Numbers packets as a sender does: `schedule` gives (flow, path) for each.
fn number(schedule: &[(usize, u8)]) -> Vec<Sent> {
    let mut flows = [None::<u32>; 8];
    let mut paths = [(0_u32, None::<u32>); 8];
    (0..)
        .zip(schedule)
        .map(|(seq, &(flow, path))| {
            let flow_step = flows[flow]
                .replace(seq)
                .map_or(0, |previous| u16::try_from(seq - previous).unwrap_or(0));
            let (path_seq, previous) = paths[usize::from(path)];
            paths[usize::from(path)] = (path_seq + 1, Some(seq));
            Sent {
                seq,
                flow_step,
                path,
                path_seq,
                path_previous: previous,
            }
        })
        .collect()
}

/// How long anything is held from now on; `each_ms` is called each millisecond.
fn held_for(h: &mut Harness, mut each_ms: impl FnMut(&mut Harness)) -> Duration {
    let start = h.now;
    while h.resequencer.held_len() > 0 {
        each_ms(h);
        h.wait(Duration::from_millis(1));
    }
    h.now.since(start)
}

#[test]
fn two_paths_are_put_in_order() {
    let sent = number(&[(0, 0), (0, 1), (0, 0), (0, 1)]);
    let mut h = Harness::new();
    assert_eq!(h.arrive(sent[0]), Verdict::Released);
    assert_eq!(h.arrive(sent[2]), Verdict::Held);
    assert_eq!(h.arrive(sent[1]), Verdict::Released);
    assert_eq!(h.arrive(sent[3]), Verdict::Released);
    assert_eq!(h.delivered(), [0, 1, 2, 3]);
}

#[test]
fn what_was_sent_again_says_nothing_of_what_the_path_still_brings() {
    // 3 and 4 were sent ahead over path 1, where 4 was lost: sent again, it comes over path 0 before 1 and 2.
    for is_out_of_turn in [true, false] {
        let mut h = Harness::new();
        h.repair = Some(BUDGET);
        let sent = |seq, path, path_seq, path_previous| Sent {
            seq,
            flow_step: 1,
            path,
            path_seq,
            path_previous,
        };
        h.arrive(Sent {
            flow_step: 0,
            ..sent(0, 0, 0, None)
        });
        assert_eq!(h.arrive(sent(3, 1, 0, None)), Verdict::Held);
        assert_eq!(
            h.arrive_as(sent(4, 0, 1, Some(0)), is_out_of_turn),
            Verdict::Held
        );
        for _ in 0..10 {
            h.wait(BUDGET / 5);
        }
        let first: &[u32] = if is_out_of_turn { &[0] } else { &[0, 3, 4] };
        assert_eq!(h.delivered(), first);
        h.arrive(sent(1, 0, 2, Some(4)));
        h.arrive(sent(2, 0, 3, Some(1)));
        let then: &[u32] = if is_out_of_turn {
            &[1, 2, 3, 4]
        } else {
            &[1, 2]
        };
        assert_eq!(h.delivered(), then);
    }
}

#[test]
fn a_path_that_brought_only_what_was_out_of_turn_may_bring_the_rest() {
    // 2 came first of all on path 1, out of turn, and 1 follows there; 2 and 3 wait for it.
    let sent = |seq, path, path_seq, path_previous| Sent {
        seq,
        flow_step: u16::from(seq > 0),
        path,
        path_seq,
        path_previous,
    };
    for is_out_of_turn in [true, false] {
        let mut h = Harness::new();
        h.repair = Some(BUDGET);
        h.arrive(sent(0, 0, 0, None));
        let first = h.arrive_as(sent(2, 1, 0, None), is_out_of_turn);
        assert_eq!(first, Verdict::Held);
        assert_eq!(h.arrive(sent(3, 0, 1, Some(0))), Verdict::Held);
        for _ in 0..10 {
            h.wait(BUDGET / 5);
        }
        let delivered: &[u32] = if is_out_of_turn { &[0] } else { &[0, 2, 3] };
        assert_eq!(h.delivered(), delivered);
    }
}

#[test]
fn what_was_lost_before_a_datagram_without_a_packet_is_waited_for() {
    // 1 is lost on path 0; behind it come a datagram without a packet there, and 2 over path 1.
    let sent = number(&[(0, 0), (0, 0), (0, 1)]);
    let repair = BUDGET * 2;
    for (repairs, is_skipped, waits) in [
        (Some(repair), true, true),
        (Some(repair), false, false),
        (None, true, false),
    ] {
        let mut h = Harness::new();
        h.repair = repairs;
        h.arrive(sent[0]);
        h.wait(LONGEST_LATE_HOLD);
        let empty = if is_skipped { 2 } else { 1 };
        h.resequencer.on_empty(h.now, PathId(0), Seq(empty));
        assert_eq!(h.arrive(sent[2]), Verdict::Held);
        h.wait(BUDGET);
        let given_up: &[u32] = if waits { &[0] } else { &[0, 2] };
        assert_eq!(h.delivered(), given_up, "{repairs:?}, {is_skipped}");
        if waits {
            h.wait(repair - BUDGET - Duration::from_millis(1));
            assert!(h.delivered().is_empty());
            h.wait(Duration::from_millis(1));
            assert_eq!(h.delivered(), [2], "not for ever");
        }
    }
}

#[test]
fn what_a_path_loses_first_of_all_is_waited_for() {
    // 1 and 3 are the first of path 1 and lost, 4 is its next; 2 waits.
    let sent = number(&[(0, 0), (0, 1), (0, 0), (1, 1), (1, 1)]);
    let repair = BUDGET * 2;
    for (repairs, waits) in [(Some(repair), true), (None, false)] {
        let mut h = Harness::new();
        h.repair = repairs;
        h.arrive(sent[0]);
        assert_eq!(h.arrive(sent[2]), Verdict::Held);
        h.arrive(sent[4]);
        h.wait(Duration::from_millis(3));
        assert_eq!(h.delivered(), [0], "what the gap holds is not told");
        h.wait(BUDGET);
        assert_eq!(h.delivered().contains(&2), !waits, "{repairs:?}");
        h.wait(repair);
        assert_eq!(h.resequencer.held_len(), 0, "not for ever");
    }
}

#[test]
fn what_comes_of_a_path_that_is_not_at_its_beginning_shows_no_gap() {
    let mut sent = number(&[(0, 0), (0, 1), (0, 0), (1, 1)]);
    sent[3].path_seq += 1_000;
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    h.arrive(sent[0]);
    assert_eq!(h.arrive(sent[2]), Verdict::Held);
    h.arrive(sent[3]);
    h.wait(BUDGET);
    assert_eq!(h.resequencer.held_len(), 0);
}

#[test]
fn a_gap_seen_just_before_a_hold_ends_is_waited_for() {
    // 1 is lost on path 1, and 3 shows it 1 ms before the hold of 2 ends.
    let sent = number(&[(0, 1), (0, 1), (0, 0), (1, 1)]);
    let repair = BUDGET * 2;
    for (repairs, waits) in [(Some(repair), true), (None, false)] {
        let mut h = Harness::new();
        h.repair = repairs;
        h.arrive(sent[0]);
        assert_eq!(h.arrive(sent[2]), Verdict::Held);
        h.wait(BUDGET - Duration::from_millis(1));
        h.arrive(sent[3]);
        h.wait(Duration::from_millis(1));
        assert_eq!(h.delivered().contains(&2), !waits, "{repairs:?}");
        h.wait(Duration::from_millis(2));
        h.wait(repair);
        assert_eq!(h.resequencer.held_len(), 0, "not for ever");
    }
}

#[test]
fn what_is_skipped_again_and_again_prolongs_no_hold_again() {
    // 1 is lost on path 0, and then each second datagram without a packet.
    let sent = number(&[(0, 0), (0, 0), (0, 1)]);
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    h.arrive(sent[0]);
    h.wait(LONGEST_LATE_HOLD);
    h.arrive(sent[2]);
    // It waits for one retransmission, but not for another.
    for step in 0..=20_u32 {
        h.resequencer.on_empty(h.now, PathId(0), Seq(2 + step * 2));
        let is_held = h.resequencer.poll_timeout() > Some(h.now);
        assert!(is_held == (step < 20), "{step}");
        h.wait(BUDGET / 10);
    }
    assert_eq!(h.delivered(), [0, 2]);
}

#[test]
fn what_was_skipped_after_a_later_packet_or_has_come_is_not_waited_for() {
    // 1 is lost on path 1; path 0 has brought 3, or what it skipped comes after all.
    let sent = number(&[(0, 0), (0, 1), (0, 2), (1, 0)]);
    for has_passed in [true, false] {
        let mut h = Harness::new();
        h.repair = Some(BUDGET * 2);
        h.arrive(sent[0]);
        h.wait(LONGEST_LATE_HOLD);
        h.arrive(sent[2]);
        let mut skipped = 1;
        if has_passed {
            h.arrive(sent[3]);
            skipped = 2;
        }
        h.resequencer.on_empty(h.now, PathId(0), Seq(skipped + 1));
        if !has_passed {
            h.resequencer.on_empty(h.now, PathId(0), Seq(skipped));
        }
        h.wait(BUDGET);
        assert_eq!(h.resequencer.held_len(), 0, "{has_passed}");
    }
}

#[test]
fn a_flow_does_not_wait_for_another() {
    let sent = number(&[(0, 0), (1, 1), (1, 1), (0, 0)]);
    let mut h = Harness::new();
    assert_eq!(h.arrive(sent[1]), Verdict::Released);
    assert_eq!(h.arrive(sent[2]), Verdict::Released);
    assert_eq!(h.arrive(sent[3]), Verdict::Held);
    assert_eq!(h.arrive(sent[0]), Verdict::Released);
    assert_eq!(h.delivered(), [1, 2, 0, 3]);
}

#[test]
fn a_loss_on_a_single_path_is_known_after_three_packets() {
    let sent = number(&[(0, 0); 6]);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    for sent in &sent[2..5] {
        assert_eq!(h.arrive(*sent), Verdict::Held);
    }
    assert_eq!(h.delivered(), [0]);
    h.arrive(sent[5]);
    assert_eq!(h.delivered(), [2, 3, 4, 5]);
    assert_eq!(h.resequencer.stats().lost_known, 1);
}

#[test]
fn a_loss_is_known_after_two_milliseconds() {
    let sent = number(&[(0, 0); 3]);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    h.arrive(sent[2]);
    assert_eq!(h.resequencer.poll_timeout(), Some(Instant::from_millis(2)));
    h.wait(Duration::from_millis(2));
    assert_eq!(h.delivered(), [0, 2]);
    assert_eq!(h.resequencer.poll_timeout(), None);
}

#[test]
fn a_burst_lost_on_one_of_two_paths_waits_only_for_the_other_path() {
    // Path 0 loses 2, 4, 6; path 1 is slower and delivers 1, 3, 5, 7 later.
    let sent = number(&[
        (0, 0),
        (0, 1),
        (0, 0),
        (0, 1),
        (0, 0),
        (0, 1),
        (0, 0),
        (0, 1),
        (0, 0),
    ]);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    h.arrive(sent[8]);
    h.wait(Duration::from_millis(3));
    for i in [1, 3, 5] {
        h.arrive(sent[i]);
    }
    assert_eq!(h.delivered(), [0, 1, 3, 5]);
    h.arrive(sent[7]);
    assert_eq!(h.delivered(), [7, 8]);
    assert_eq!(h.resequencer.stats().lost_known, 3);
    assert_eq!(h.resequencer.stats().lost_expired, 0);
}

#[test]
fn the_successor_of_a_lost_packet_waits_for_older_ones_of_the_slow_path() {
    // 1 is slow on path 1, 2 is lost on path 0: 3 must not overtake 1.
    let sent = number(&[(0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
    let mut h = Harness::new();
    for i in [0, 3, 4, 5, 6] {
        h.arrive(sent[i]);
    }
    assert_eq!(h.delivered(), [0]);
    h.arrive(sent[1]);
    assert_eq!(h.delivered(), [1, 3, 4, 5, 6]);
}

#[test]
fn the_deadline_of_the_oldest_held_packet_frees_all_before_it() {
    let sent = number(&[(0, 0), (0, 1), (0, 1), (0, 0), (0, 1), (0, 0)]);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    h.arrive(sent[3]);
    h.wait(Duration::from_millis(20));
    h.arrive(sent[5]);
    h.wait(Duration::from_millis(30));
    assert_eq!(h.delivered(), [0, 3]);
    h.wait(Duration::from_millis(20));
    assert_eq!(h.delivered(), [5]);
    assert_eq!(h.arrive(sent[1]), Verdict::Late);
    assert_eq!(h.arrive(sent[1]), Verdict::Duplicate);
    assert_eq!(h.delivered(), [1]);
    assert_eq!(h.resequencer.held_len(), 0);
}

#[test]
fn a_slow_path_that_still_delivers_is_waited_for_beyond_the_deadline() {
    // Path 1 carries 1..=9 and its queue grows: 10 ms between its packets. Path 0 carries 10.
    let mut schedule = vec![(0, 0)];
    schedule.extend([(0, 1); 9]);
    schedule.push((0, 0));
    let sent = number(&schedule);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    h.arrive(sent[1]);
    h.arrive(sent[10]);
    for packet in &sent[2..10] {
        h.wait(Duration::from_millis(10));
        assert_eq!(h.arrive(*packet), Verdict::Released);
    }
    assert_eq!(h.delivered(), (0..=10).collect::<Vec<_>>());
    // But not for ever.
    let sent = number(&[(0, 0), (0, 1), (0, 1), (0, 0)]);
    let mut h = Harness::new();
    h.arrive(sent[0]);
    h.arrive(sent[3]);
    h.arrive(sent[1]);
    let held = held_for(&mut h, |_| ());
    assert_eq!(held, BUDGET, "path 1 brings nothing more");
}

#[test]
fn a_path_that_falls_silent_is_waited_for_if_what_it_keeps_is_sent_again() {
    // Path 1 carries 1 and 2 and stalls before 2; path 0 carries 0 and 3.
    let sent = number(&[(0, 0), (0, 1), (0, 1), (0, 0)]);
    let after_ms = Duration::from_millis;
    for (repair, quiet_ms, held_ms) in [
        (Some(BUDGET * 2), 0, 400),
        // A path whose last packet arrived long ago has no packet in flight.
        (Some(BUDGET * 2), 300, 100),
        (Some(BUDGET * 2), 400, 50),
        (None, 0, 50),
    ] {
        let mut h = Harness::new();
        h.repair = repair;
        h.arrive(sent[0]);
        h.arrive(sent[1]);
        h.wait(after_ms(quiet_ms));
        assert_eq!(h.arrive(sent[3]), Verdict::Held);
        let held = held_for(&mut h, |_| ());
        assert!(
            (after_ms(held_ms)..after_ms(held_ms + 3)).contains(&held),
            "{repair:?}, {quiet_ms} ms: {held:?}"
        );
    }
}

#[test]
fn a_path_that_brings_what_is_older_is_waited_for_but_not_for_ever() {
    // Path 1 carries 1..=1000 and is far behind; path 0 carries 1001.
    let mut schedule = vec![(0, 0)];
    schedule.extend([(1, 1); 999]);
    schedule.extend([(0, 1), (0, 0)]);
    let sent = number(&schedule);
    for (repair, held_ms) in [(Some(BUDGET * 2), 400), (None, 150)] {
        let mut h = Harness::new();
        h.repair = repair;
        h.arrive(sent[0]);
        h.arrive(sent[1001]);
        let mut older = sent[1..1000].iter();
        let held = held_for(&mut h, |h| {
            h.arrive(*older.next().expect("a thousand"));
        })
        .as_millis();
        assert!((held_ms..held_ms + 3).contains(&held), "{repair:?}: {held}");
    }
}

#[test]
fn what_is_known_lost_and_not_repaired_is_not_waited_for_as_what_is_late() {
    // Path 0 loses 2; path 1 delivered 0 and has no packet in flight.
    let sent = number(&[(0, 1), (0, 0), (0, 0), (0, 0)]);
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    h.arrive(sent[0]);
    h.arrive(sent[1]);
    assert_eq!(h.arrive(sent[3]), Verdict::Held);
    let held = held_for(&mut h, |_| ()).as_millis();
    assert!((102..105).contains(&held), "2 ms and a repair: {held}");
}

#[test]
fn how_long_a_packet_is_held_depends_on_what_its_own_flow_lacks() {
    for is_other_late in [true, false] {
        // Flow 1 lacks 1, flow 0 lacks 3. One is late on path 1, the other lost on path 0 and not repaired.
        let (path_of_1, path_of_3) = if is_other_late { (1, 0) } else { (0, 1) };
        let sent = number(&[(0, 1), (1, path_of_1), (2, 1), (0, path_of_3), (0, 0)]);
        let mut h = Harness::new();
        h.repair = Some(BUDGET * 2);
        h.arrive(sent[0]);
        if !is_other_late {
            h.arrive(sent[2]);
        }
        assert_eq!(h.arrive(sent[4]), Verdict::Held);
        let held = held_for(&mut h, |_| ()).as_millis();
        let held_ms = if is_other_late { 102 } else { 400 };
        assert!((held_ms..held_ms + 3).contains(&held), "{held}");
    }
}

#[test]
fn a_path_whose_end_is_told_is_not_waited_for_as_if_more_came() {
    // 2 and 3 are lost at the end of path 1, as is told; 2 is of the flow of 4.
    let sent = number(&[(0, 0), (1, 1), (0, 1), (1, 1), (0, 0)]);
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    h.arrive(sent[0]);
    h.arrive(sent[1]);
    let told = (Seq(2), Seq(3));
    h.resequencer.on_tail(h.now, PathId(1), told, &mut h.out);
    assert_eq!(h.arrive(sent[4]), Verdict::Held);
    let held = held_for(&mut h, |_| ()).as_millis();
    assert!((102..105).contains(&held), "2 ms and a repair: {held}");
}

#[test]
fn what_is_sent_again_on_a_path_that_was_silent_is_no_sign_that_more_comes() {
    // Path 1 has passed 4 and says nothing for long. 3 and 5 are lost on path 0; then 0, lost before, comes on path 1.
    let sent = number(&[(0, 0), (1, 0), (2, 0), (0, 0), (1, 1), (2, 0), (0, 0)]);
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    for seq in [1, 2, 4] {
        h.arrive(sent[seq]);
    }
    h.wait(LONGEST_LATE_HOLD + Duration::from_millis(100));
    h.arrive(Sent {
        path: 1,
        path_seq: 1,
        path_previous: Some(4),
        ..sent[0]
    });
    assert_eq!(h.arrive(sent[6]), Verdict::Held);
    let held = held_for(&mut h, |_| ()).as_millis();
    assert!((102..105).contains(&held), "2 ms and a repair: {held}");
}

#[test]
fn what_was_sent_again_behind_later_packets_is_no_sign_that_more_comes() {
    // 0 is lost on path 1 and comes behind 3 on path 0; 2 is missing, and path 1 has been silent for long.
    let sent = number(&[(2, 1), (0, 1), (0, 1), (0, 0)]);
    let mut h = Harness::new();
    h.repair = Some(BUDGET * 2);
    h.arrive(sent[1]);
    h.wait(LONGEST_LATE_HOLD);
    assert_eq!(h.arrive(sent[3]), Verdict::Held);
    h.arrive(Sent {
        path: 0,
        path_seq: 1,
        path_previous: Some(3),
        ..sent[0]
    });
    let held = held_for(&mut h, |_| ()).as_millis();
    assert!((50..53).contains(&held), "{held}");
}

#[test]
fn late_packets_widen_the_window_of_a_reordering_path() {
    let sent = number(&[(0, 0); 12]);
    let mut h = Harness::new();
    for i in [0, 2, 3, 4, 5] {
        h.arrive(sent[i]);
    }
    assert_eq!(h.arrive(sent[1]), Verdict::Late);
    h.delivered();
    for i in [7, 8, 9, 10] {
        assert_eq!(h.arrive(sent[i]), Verdict::Held);
    }
    assert_eq!(h.arrive(sent[6]), Verdict::Released);
    assert_eq!(h.delivered(), [6, 7, 8, 9, 10]);
}

#[test]
fn copies_are_dropped_and_their_buffers_returned() {
    let mut h = Harness::new();
    let sent = number(&[(0, 0), (0, 0)]);
    h.arrive(sent[0]);
    assert_eq!(h.arrive(Sent { path: 1, ..sent[0] }), Verdict::Duplicate);
    assert_eq!(h.dropped.len(), 1);
    let far = Sent {
        seq: 5000,
        flow_step: 0,
        path: 0,
        path_seq: 2,
        path_previous: None,
    };
    h.arrive(far);
    assert_eq!(h.arrive(sent[1]), Verdict::Released);
    assert_eq!(h.arrive(sent[0]), Verdict::Duplicate);
}

#[test]
fn the_table_grows_and_is_bounded() {
    let mut h = Harness::new();
    let held = |seq| Sent {
        seq,
        flow_step: 1,
        path: 0,
        path_seq: seq,
        path_previous: Some(seq - 1),
    };
    for seq in 1..40_000 {
        h.arrive(held(seq));
    }
    assert!(h.resequencer.held_len() <= MAX_HELD);
    assert!(h.resequencer.ring.len() <= MAX_SPAN as usize);
    // A peer that leaps ahead does not make us scan the gap.
    h.arrive(Sent {
        seq: 2_000_000_000,
        flow_step: 0,
        path: 0,
        path_seq: 50_000,
        path_previous: None,
    });
    assert_eq!(h.resequencer.held_len(), 0);
    assert_eq!(h.delivered().len(), 40_000);
}

#[test]
fn sequence_numbers_may_wrap() {
    let mut h = Harness::new();
    let start = u32::MAX - 3;
    for (path_seq, seq) in [(0, 0x6000_0000), (1, 0xc000_0000), (2, start)] {
        h.arrive(Sent {
            seq,
            flow_step: 0,
            path: 0,
            path_seq,
            path_previous: None,
        });
    }
    h.delivered();
    for back in (1..8_u32).rev() {
        let seq = start.wrapping_add(back);
        h.arrive(Sent {
            seq,
            flow_step: 1,
            path: (back % 2) as u8 + 1,
            path_seq: back,
            path_previous: None,
        });
    }
    assert_eq!(
        h.delivered(),
        (1..8_u32)
            .map(|i| start.wrapping_add(i))
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_sender_that_names_one_predecessor_twice_cannot_make_us_hold_for_ever() {
    let mut rng = Rng::new(3);
    let mut h = Harness::new();
    let mut arrived = 0;
    for seq in 0..5000_u32 {
        if rng.below(4) > 0 {
            let flow_step = u16::try_from(rng.below(6)).expect("small");
            let path = u8::try_from(rng.below(3)).expect("small");
            h.arrive(Sent {
                seq,
                flow_step,
                path,
                path_seq: seq,
                path_previous: None,
            });
            arrived += 1;
        }
        h.wait(Duration::from_micros(100));
    }
    h.wait(Duration::from_secs(1));
    assert_eq!(
        (h.resequencer.held_len(), h.delivered().len()),
        (0, arrived)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Paths of different speed that lose packets: no packet is duplicated or vanishes, and the packets that overtake their
    /// flow's predecessor are exactly the packets counted as late.
    #[test]
    fn order_within_a_flow_holds_whatever_is_lost(seed in 0_u64..u64::MAX, loss_pct in 0_u64..30, jitter in 0_u64..2000, repairs in any::<bool>()) {
        let mut rng = Rng::new(seed);
        let schedule: Vec<(usize, u8)> = (0..600).map(|_| {
            (usize::try_from(rng.below(4)).expect("small"), u8::try_from(rng.below(3)).expect("small"))
        }).collect();
        let sent = number(&schedule);
        let delays = [rng.below(40_000), rng.below(40_000), rng.below(40_000)];
        // (arrival in microseconds, index): order is kept within a path.
        let mut last = [0_u64; 3];
        let mut arrivals: Vec<(u64, usize)> = Vec::new();
        for (i, packet) in sent.iter().enumerate() {
            let path = usize::from(packet.path);
            let at = (i as u64 * 200 + delays[path] + rng.below(jitter + 1)).max(last[path]);
            last[path] = at;
            let is_lost = rng.below(100) < loss_pct;
            if !is_lost {
                arrivals.push((at, i));
            }
            if !is_lost && rng.below(100) < 3 {
                arrivals.push((at + rng.below(5000), i));
            }
        }
        arrivals.sort_unstable();
        let mut h = Harness::new();
        h.repair = repairs.then_some(BUDGET / 2);
        let mut late = 0_usize;
        for &(at, i) in &arrivals {
            let at = Instant::from_nanos(at * 1000);
            while let Some(deadline) = h.resequencer.poll_timeout().filter(|deadline| *deadline <= at) {
                h.now = deadline.max(h.now);
                let now = h.now;
                h.resequencer.on_timeout(now, &mut h.out);
                prop_assert!(h.resequencer.poll_timeout().is_none_or(|next| next > now));
            }
            h.now = at.max(h.now);
            late += usize::from(h.arrive(sent[i]) == Verdict::Late);
            prop_assert!(h.resequencer.held_len() <= MAX_HELD);
        }
        h.wait(Duration::from_secs(1));
        prop_assert_eq!(h.resequencer.held_len(), 0);
        let delivered = h.delivered();
        let mut unique = delivered.clone();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(unique.len(), delivered.len(), "delivered twice");
        let mut arrived: Vec<u32> = arrivals.iter().map(|&(_, i)| sent[i].seq).collect();
        arrived.sort_unstable();
        arrived.dedup();
        prop_assert_eq!(unique, arrived, "vanished");
        let mut newest = [None::<u32>; 8];
        let mut overtaken = 0;
        for seq in delivered {
            let flow = schedule[seq as usize].0;
            if newest[flow].is_some_and(|newest| newest > seq) {
                overtaken += 1;
            } else {
                newest[flow] = Some(seq);
            }
        }
        prop_assert!(overtaken <= late, "{overtaken} out of order, {late} counted");
        if delays.iter().max().expect("three") - delays.iter().min().expect("three") + jitter < 45_000 && jitter == 0 {
            prop_assert_eq!(overtaken, 0);
        }
    }
}

#[test]
fn a_datagram_without_a_packet_is_no_gap_and_hides_none() {
    let mut h = Harness::new();
    let sent = |seq, path_seq, previous| Sent {
        seq,
        flow_step: u16::from(seq > 0),
        path: 0,
        path_seq,
        path_previous: previous,
    };
    h.arrive(sent(0, 0, None));
    h.resequencer.on_empty(h.now, PathId(0), Seq(1));
    assert_eq!(h.arrive(sent(1, 2, Some(0))), Verdict::Released);
    assert!(!h.resequencer.paths[0].has_gaps());
    // The packet before the next one is lost.
    h.resequencer.on_empty(h.now, PathId(0), Seq(4));
    assert_eq!(h.arrive(sent(3, 5, Some(2))), Verdict::Held);
    h.wait(Duration::from_millis(3));
    assert_eq!(h.delivered(), [0, 1, 3]);
    assert_eq!(h.resequencer.stats().lost_known, 1);
}

#[test]
fn a_packet_that_was_computed_releases_what_waits_and_comes_once() {
    let mut h = Harness::new();
    let sent = number(&[(0, 0); 4]);
    h.arrive(sent[0]);
    assert_eq!(h.arrive(sent[2]), Verdict::Held);
    let computed = |h: &Harness| Arrival {
        seq: Seq(1),
        flow_step: 1,
        way: None,
        deadline: h.now + BUDGET,
        repair: None,
        packet: PacketBuf::from(1_u32.to_be_bytes().to_vec()),
    };
    for verdict in [Verdict::Released, Verdict::Duplicate] {
        let arrival = computed(&h);
        let got = h
            .resequencer
            .on_packet(h.now, arrival, &mut h.out, &mut h.dropped);
        assert_eq!(got, verdict);
    }
    assert_eq!(h.arrive(sent[1]), Verdict::Duplicate, "late, not lost");
    h.arrive(sent[3]);
    assert_eq!(h.delivered(), [0, 1, 2, 3]);
}
