use super::{groups::group, *};
use crate::{
    sched::tests::{packet, ready_paths},
    units::Bitrate,
};

/// Paths with the given rates in Mbit/s and delays in milliseconds beyond the quickest path.
pub(super) fn paths_of(lines: &[(u64, u64)]) -> Vec<PathView> {
    let mut paths = ready_paths(lines.len());
    for (path, (mbps, ms)) in paths.iter_mut().zip(lines) {
        path.rate = Some(Bitrate::from_mbps(*mbps));
        path.extra_delay = Duration::from_millis(*ms);
        path.smoothed_rtt = Some(Duration::from_millis(20 + 2 * ms));
    }
    paths
}

/// The decisions for `count` packets of a flow with a backlog, sent 100 µs apart.
fn picks(policy: &mut Adaptive, paths: &[PathView], from_ms: u64, count: u32) -> Vec<Pick> {
    let packet = PacketInfo {
        backlog: Bytes::new(100_000),
        ..packet()
    };
    let start = Instant::from_millis(from_ms);
    let picks =
        (0..count).map(|i| policy.pick(start + Duration::from_micros(100) * i, paths, &packet));
    picks.collect()
}

fn share(picks: &[Pick], index: usize) -> usize {
    let is_it = |pick: &&Pick| match pick {
        Pick::One(to) | Pick::Shadowed { index: to, .. } => *to == index,
        Pick::Copies(_) | Pick::Behind { .. } | Pick::Wait => false,
    };
    picks.iter().filter(is_it).count() * 100 / picks.len()
}

#[test]
fn like_paths_share_by_what_they_carry() {
    let paths = paths_of(&[(60, 0), (40, 0)]);
    let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
    assert!((55..65).contains(&share(&picks, 0)));
}

#[test]
fn a_path_far_behind_carries_none_of_a_flow() {
    let paths = paths_of(&[(60, 0), (60, 400)]);
    let picks = picks(&mut Adaptive::new(), &paths, 0, 12_000);
    assert_eq!(share(&picks, 1), 0);
}

#[test]
fn a_late_path_takes_what_would_come_later_still() {
    // In 155 ms the quickest path, which is busy, sends 97 kB.
    let mut paths = paths_of(&[(5, 0), (6, 155)]);
    paths[0].ready = false;
    let is_sent = |backlog: u64, round_trip_ms: u64| {
        let packet = PacketInfo {
            backlog: Bytes::new(backlog),
            // The flow is large from its first packet on.
            own_backlog: Bytes::new(64_000),
            to_last: Bytes::new(backlog),
            round_trip: Duration::from_millis(round_trip_ms),
            has_behind: true,
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        matches!(pick, Pick::One(1) | Pick::Behind { index: 1, .. })
    };
    assert!(!is_sent(90_000, 0));
    assert!(is_sent(104_000, 0));
    assert!(is_sent(40_000, 155), "its round trips are as long");
    assert!(!is_sent(20_000, 155), "not for a short burst");
    // Neither a small flow uses the late path, nor a flow that has no further packet in the queue.
    for own_backlog in [0, 64_000] {
        let packet = PacketInfo {
            backlog: Bytes::new(200_000),
            own_backlog: Bytes::new(own_backlog),
            round_trip: Duration::from_millis(155),
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        assert_eq!(pick, Pick::Wait, "{own_backlog}");
    }
}

#[test]
fn a_small_flow_waits_for_the_quickest_while_that_brings_all_of_it_sooner() {
    // Extra delay of the second path in ms, the flow's own backlog, and the bytes that leave the queue until the
    // flow's last packet does.
    for (ms, own_backlog, to_last, waits) in [
        (30, 0, 0, true),
        (30, 36_000, 36_000, true),
        (30, 40_000, 40_000, false),
        (30, 18_000, 36_000, true),
        (30, 5_000, 40_000, false),
        (100, 30_000, 60_000, true),
        (100, 30_000, 64_000, false),
    ] {
        let mut paths = paths_of(&[(10, 0), (11, ms)]);
        paths[0].ready = false;
        let packet = PacketInfo {
            backlog: Bytes::new(500_000),
            own_backlog: Bytes::new(own_backlog),
            to_last: Bytes::new(to_last),
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        let is_wait = pick == Pick::Wait;
        assert_eq!(is_wait, waits, "{ms} ms, {to_last}: {pick:?}");
    }
}

#[test]
fn near_paths_carry_together_what_waits() {
    // 190 kB take 150 ms on one path, and 50 ms on three.
    let mut paths = paths_of(&[(10, 0), (10, 0), (10, 0), (10, 140)]);
    for path in &mut paths[..3] {
        path.ready = false;
    }
    let packet = PacketInfo {
        backlog: Bytes::new(190_000),
        own_backlog: Bytes::new(190_000),
        to_last: Bytes::new(190_000),
        has_behind: true,
        ..packet()
    };
    let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
    assert_eq!(pick, Pick::Wait);
    let pick = Adaptive::new().pick(Instant::from_millis(50), &paths[2..], &packet);
    // The late path takes not this packet, but the packet that would arrive 140 ms later.
    let Pick::Behind { index: 1, ahead } = pick else {
        panic!("{pick:?}");
    };
    assert!((170_000..180_000).contains(&ahead.get()), "{ahead:?}");
}

#[test]
fn late_paths_do_not_take_the_place_of_a_jammed_one() {
    let mut paths = paths_of(&[(80, 0), (30, 150)]);
    paths[0].queue_delay = Duration::from_millis(115);
    let picks = picks(&mut Adaptive::new(), &paths, 0, 200);
    assert!(share(&picks, 0) > 60, "{}", share(&picks, 0));
}

#[test]
fn a_jammed_path_that_soon_has_room_is_waited_for_beside_a_late_one() {
    let mut paths = paths_of(&[(80, 0), (30, 150)]);
    paths[0].queue_delay = Duration::from_millis(115);
    paths[0].ready = false;
    let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet());
    assert_eq!(pick, Pick::Wait);
}

#[test]
fn what_waits_for_the_quickest_may_wait_until_a_late_path_is_worth_it() {
    for (lines, ms) in [
        ([(5, 0), (6, 155)], 155),
        // The second path is near enough to be mixed; too late; too slow to help.
        ([(5, 0), (6, 100)], 0),
        ([(5, 0), (6, 400)], 0),
        ([(50, 0), (6, 155)], 0),
        // Large flows leave the near path for the second path.
        ([(2, 0), (100, 200)], 0),
    ] {
        let mut paths = paths_of(&lines);
        for is_searching in [false, true] {
            paths[1].is_searching = is_searching;
            let wait = Adaptive::new().longest_wait(&paths);
            assert_eq!(wait, Duration::from_millis(ms), "{lines:?}, {is_searching}");
        }
    }
}

#[test]
fn a_large_flow_goes_where_much_more_is_carried_and_a_small_one_does_not() {
    let paths = paths_of(&[(2, 0), (100, 200)]);
    let mut policy = Adaptive::new();
    let first = picks(&mut policy, &paths, 0, 40);
    assert_eq!(share(&first, 0), 100);
    let rest = picks(&mut policy, &paths, 100, 2_000);
    assert!(share(&rest, 1) > 95);
}

#[test]
fn a_flow_is_large_once_near_paths_would_bring_it_later_than_others() {
    // The near path sends 25 or 100 kB within the extra delay of the second path. A flow of 160 kB is always large.
    for (lines, first) in [
        ([(1, 0), (100, 200)], 20),
        ([(1, 0), (1, 400)], 200),
        ([(4, 0), (1_000, 200)], 80),
        ([(40, 0), (1_000, 200)], 128),
    ] {
        let paths = paths_of(&lines);
        let mut policy = Adaptive::new();
        let mut picks = (0..200).map(|_| policy.pick(Instant::from_millis(50), &paths, &packet()));
        let near = picks.position(|pick| !matches!(pick, Pick::One(0)));
        assert_eq!(near.unwrap_or(200), first, "{lines:?}");
    }
}

#[test]
fn what_waits_of_a_flow_makes_it_large_at_once() {
    // A burst that would be large at its end takes the later path from its beginning, not only for its second half.
    let paths = paths_of(&[(4, 0), (1_000, 200)]);
    for (waits, near) in [(98_000, true), (99_000, false)] {
        let packet = PacketInfo {
            own_backlog: Bytes::new(waits),
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        assert_eq!(matches!(pick, Pick::One(0)), near, "{waits}");
    }
}

#[test]
fn what_is_near_is_left_for_a_late_path_only_if_it_adds_next_to_nothing() {
    for (mbps, ms, leaves, stays) in [
        (40, 150, false, false),
        (80, 150, false, true),
        (120, 150, true, true),
        (80, 350, true, true),
    ] {
        let paths = paths_of(&[(20, 0), (mbps, ms)]);
        let goes = |eager| group(&paths, eager, alone(&paths)) > Duration::ZERO;
        assert_eq!(goes(Eager::ToLeave), leaves, "{mbps} Mbit/s, {ms} ms");
        assert_eq!(goes(Eager::ToStay), stays, "{mbps} Mbit/s, {ms} ms");
    }
}

#[test]
fn what_more_paths_bring_counts_against_all_that_would_be_left() {
    let from = |lines: &[(u64, u64)], eager| {
        group(&paths_of(lines), eager, alone(&paths_of(lines))).as_millis()
    };
    for (lines, leaves_to) in [
        ([(20, 0), (10, 250), (100, 350)], 250),
        ([(20, 0), (75, 200), (90, 400)], 0),
        ([(20, 0), (75, 200), (190, 400)], 400),
        ([(3, 0), (30, 100), (30, 120)], 100),
        ([(13, 0), (30, 100), (30, 120)], 0),
    ] {
        assert_eq!(from(&lines, Eager::ToLeave), leaves_to, "{lines:?}");
    }
    // A flow that has left the near paths does not return because of a few milliseconds.
    for (ms, stays) in [(310, 310), (290, 0)] {
        let lines = [(50, 0), (90, ms)];
        assert_eq!(from(&lines, Eager::ToLeave), 0);
        assert_eq!(from(&lines, Eager::ToStay), stays);
    }
}

#[test]
fn what_a_later_path_brings_counts_from_when_it_is_full() {
    // Two doublings of the window fill the slow path, seven the fast path.
    for (lines, is_taken) in [([(2, 0), (6, 340)], true), ([(50, 0), (100, 340)], false)] {
        let paths = paths_of(&lines);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
        assert_eq!(share(&picks, 1) > 90, is_taken, "{lines:?}");
    }
}

#[test]
fn what_waits_counts_once() {
    let mut paths = paths_of(&[(100, 0)]);
    let mut policy = Adaptive::new();
    for ms in 0..100 {
        paths[0].ready = false;
        assert_eq!(
            policy.pick(Instant::from_millis(ms), &paths, &packet()),
            Pick::Wait
        );
    }
    paths[0].ready = true;
    // 64 kB are 51 packets.
    let mut larges = (0..60).map(|_| {
        policy.pick(Instant::from_millis(100), &paths, &packet());
        flow_of(&mut policy.flows, &packet()).is_some_and(|flow| flow.is_large)
    });
    assert_eq!(larges.position(|is_large| is_large), Some(51));
}

#[test]
fn a_burst_waits_for_the_path_that_soon_has_sent_it_and_a_standing_queue_does_not() {
    for (round_trip, expected) in [(20, 42), (25, 42), (50, 100)] {
        assert_eq!(waits_of(round_trip), expected, "{round_trip}");
    }
}

/// Number of milliseconds, of 100, in which a burst that always needs 8 ms more waits for the quickest path, whose
/// RTT is `round_trip` milliseconds.
fn waits_of(round_trip: u64) -> u32 {
    let mut paths = paths_of(&[(100, 0), (20, 40)]);
    paths[0].least_rtt = Some(Duration::from_millis(round_trip));
    let mut policy = Adaptive::new();
    picks(&mut policy, &paths, 0, 80);
    policy.pick(Instant::from_millis(50), &paths, &packet());
    let mut waits = 0;
    for ms in 100..200 {
        let packet = PacketInfo {
            backlog: Bytes::new(100_000),
            ..packet()
        };
        let mut pick = |is_ready| {
            paths[0].ready = is_ready;
            policy.pick(Instant::from_millis(ms), &paths, &packet)
        };
        waits += u32::from(pick(false) == Pick::Wait);
        assert_eq!(pick(true), Pick::One(0));
    }
    // The quickest path would have sent the burst 8 ms later. The wait ends when this is more than 50 ms after the
    // beginning of the burst.
    waits
}

#[test]
fn a_flow_that_near_paths_carry_well_stays_and_one_that_left_returns_for_a_reason() {
    let paths = paths_of(&[(20, 0), (70, 350)]);
    let mut policy = Adaptive::new();
    let mut share_at = |paths: &[PathView], every_us: u64, from_ms: u64| {
        let pick = |i: u64| {
            let now = Instant::from_millis(from_ms)
                + Duration::from_micros(every_us) * u32::try_from(i).expect("few");
            policy.pick(now, paths, &packet())
        };
        share(&(0..2_000).map(pick).collect::<Vec<_>>(), 1)
    };
    assert_eq!(share_at(&paths, 2_000, 0), 0, "a quarter of what is near");
    assert!(share_at(&paths, 200, 10_000) > 90);
    // The later path carries too little for a flow to move there, but enough for a flow to stay there.
    let paths = paths_of(&[(20, 0), (40, 350)]);
    assert!(share_at(&paths, 200, 10_400) > 90);
    let paths = paths_of(&[(20, 0), (10, 500)]);
    assert_eq!(share_at(&paths, 200, 10_800), 0);
    // No flow leaves the near path for a late path that carries only a little more.
    for late in [28, 10] {
        let paths = paths_of(&[(20, 0), (late, 150)]);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
        assert_eq!(share(&picks, 1), 0, "{late}");
    }
}

#[test]
fn a_round_trip_is_that_of_later_paths_only_where_those_carry_much() {
    // Rate (Mbit/s) and extra delay (ms) of the second path, then the expected RTT of a flow without jitter (µs) and
    // with jitter (ms). The first path has 100 Mbit/s. If the second path does not matter to a new flow, the
    // expected RTT is that of the first path and an eighth of it.
    for (mbps, later, us, jittery_ms) in [
        (600, 30, 50_000, 54),
        (500, 30, 22_500, 28),
        (60, 10, 30_000, 34),
    ] {
        let mut paths = paths_of(&[(100, 0), (mbps, later)]);
        let policy = Adaptive::new();
        assert_eq!(policy.round_trip(&paths), Duration::ZERO, "not known");
        paths[0].least_rtt = Some(Duration::from_millis(20));
        assert_eq!(
            policy.round_trip(&paths),
            Duration::from_micros(us),
            "{mbps}"
        );
        paths[0].rtt_spread = Duration::from_millis(8);
        let jittery = Duration::from_millis(jittery_ms);
        assert_eq!(policy.round_trip(&paths), jittery, "{mbps}");
    }
    let mut paths = paths_of(&[(100, 0), (500, 30)]);
    paths[0].least_rtt = Some(Duration::from_millis(20));
    for (lines, round_trip, us) in [
        // The RTT would grow by a quarter.
        ([(100, 0), (200, 30)], 119, 119_000),
        ([(100, 0), (200, 30)], 120, 150_000),
        // 44 kB in the longer RTT, and 50 kB.
        ([(7, 0), (35, 30)], 20, 50_000),
        ([(8, 0), (40, 30)], 20, 22_500),
        // The extra RTT is half of the longer RTT.
        ([(100, 0), (200, 15)], 20, 20_000),
        ([(100, 0), (200, 24)], 20, 22_000),
        // A path that does not help adds nothing.
        ([(100, 0), (2, 30)], 20, 20_000),
        // A path that carries so much more that a large flow would leave the near path for it, and one that does not.
        ([(40, 0), (120, 150)], 20, 170_000),
        ([(40, 0), (100, 150)], 20, 22_500),
    ] {
        let mut paths = paths_of(&lines);
        paths[0].least_rtt = Some(Duration::from_millis(round_trip));
        let kept = Adaptive::new().round_trip(&paths);
        assert_eq!(kept, Duration::from_micros(us), "{lines:?}");
    }
    for (spread, us) in [(39, 22_500), (40, 70_000)] {
        paths[1].rtt_spread = Duration::from_millis(spread);
        let policy = Adaptive::new();
        assert_eq!(policy.round_trip(&paths), Duration::from_micros(us));
    }
}

#[test]
fn a_round_trip_has_a_queue_of_acknowledgements_in_it_where_the_path_back_is_thin() {
    // A queue of 6000 bytes takes 48 ms at 1 Mbit/s, and 24 ms at 2 Mbit/s. Acknowledgements do not wait longer than
    // the extra delay of another path.
    for (lines, ms) in [
        ([(1, 0), (32, 30)], 50),
        ([(1, 0), (33, 30)], 80),
        ([(1, 0), (33, 60)], 128),
        ([(2, 0), (64, 60)], 80),
        ([(2, 0), (65, 60)], 104),
    ] {
        let mut paths = paths_of(&lines);
        paths[0].least_rtt = Some(Duration::from_millis(20));
        let kept = Adaptive::new().round_trip(&paths);
        assert_eq!(kept, Duration::from_millis(ms), "{lines:?}");
    }
    let mut paths = paths_of(&[(1, 0), (40, 12), (40, 60)]);
    paths[0].least_rtt = Some(Duration::from_millis(20));
    let kept = |paths: &[PathView]| Adaptive::new().round_trip(paths);
    assert_eq!(kept(&paths), Duration::from_millis(92), "back by the next");
    paths[0].is_searching = true;
    assert_eq!(kept(&paths), Duration::from_millis(80), "not known");
}

#[test]
fn a_slow_and_late_path_is_not_worth_it() {
    let paths = paths_of(&[(200, 0), (5, 50)]);
    let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
    assert!(share(&picks, 1) < 5);
}

#[test]
fn what_stands_in_a_slow_paths_queue_counts_as_delay() {
    // The second path has an eighth of the total capacity. Four packets take 5 ms on it in the first case, 48 ms in
    // the second.
    for (fast, is_used) in [(70, true), (7, false)] {
        let paths = paths_of(&[(fast, 0), (fast / 7, 95)]);
        let picks = picks(&mut Adaptive::new(), &paths, 0, 20_000);
        assert_eq!(share(&picks, 1) > 5, is_used, "{fast} Mbit/s");
    }
}

#[test]
fn a_policy_never_waits_for_ever() {
    let mut paths = paths_of(&[(1, 0), (1, 300)]);
    paths[0].rate = None;
    paths[0].loss_ppm = 900_000;
    let picks = picks(&mut Adaptive::new(), &paths, 0, 2_000);
    assert!(!picks.contains(&Pick::Wait));
}

#[test]
fn nothing_waits_for_a_late_path_that_cannot_take_it() {
    // The near path has a queue of 170 ms, so a packet would arrive sooner over the late path.
    let mut paths = paths_of(&[(20, 0), (20, 120)]);
    paths[0].queue_delay = Duration::from_millis(170);
    for (has_behind, ready, len, index) in [
        (true, true, 500_000, 1),
        (false, true, 500_000, 0),
        (true, false, 1_000, 0),
    ] {
        paths[1].ready = ready;
        let packet = PacketInfo {
            backlog: Bytes::new(len),
            own_backlog: Bytes::new(500_000),
            to_last: Bytes::new(500_000),
            has_behind,
            ..packet()
        };
        let pick = Adaptive::new().pick(Instant::from_millis(50), &paths, &packet);
        let is_it = match pick {
            Pick::One(to) | Pick::Shadowed { index: to, .. } => to == 0 && index == 0,
            Pick::Behind { index: to, .. } => to == 1 && index == 1,
            Pick::Copies(_) | Pick::Wait => false,
        };
        assert!(is_it, "{has_behind} {ready}: {pick:?}");
    }
}
