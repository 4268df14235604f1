use pleach_core::rng::Rng;

use super::*;

const WIFI: LinkId = LinkId(0);
const LTE: LinkId = LinkId(1);

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn lane(link: LinkId, mbps: u64) -> Lane {
    Lane {
        link,
        rate: Bitrate::from_mbps(20),
        free: Bitrate::from_mbps(mbps),
        start: Duration::from_millis(40),
        round_trip: Duration::from_millis(20),
    }
}

/// Returns an answer of `len` bytes whose first connection has carried data at `mbps` Mbit/s for 100 ms.
fn answer(len: u64, mbps: u64) -> Parts {
    let mut parts = Parts::new(ms(0), Some(WIFI), len, 0);
    parts.on_first(ms(90), mbps * 12_500);
    parts.look(ms(100));
    parts
}

/// Returns an answer as [`answer`] does, 200 ms later.
fn older(len: u64, mbps: u64) -> Parts {
    let mut parts = answer(len, mbps);
    parts.on_first(ms(290), mbps * 25_000);
    parts.look(ms(300));
    parts
}

#[test]
fn both_links_are_done_at_the_same_time() {
    let mut parts = answer(1_250_000, 20);
    // 1 MB is left, which takes the first connection 0.4 s. LTE carries 10 Mbit/s from 40 ms on, beside 20 Mbit/s of
    // the first connection. This is a third of the bytes of the remaining 0.36 s.
    let plan = parts.plan(ms(100), &[lane(LTE, 10)], false).expect("room");
    assert_eq!((plan.link, plan.range.clone()), (LTE, 950_000..1_250_000));
    assert_eq!(
        parts.plan(ms(101), &[lane(LTE, 10)], false),
        None,
        "it has enough"
    );
    assert_eq!(parts.first_end(), 1_250_000, "until the server agrees");
    parts.accept(ms(140), plan.key, 300_000);
    assert_eq!(parts.first_end(), 950_000);
}

#[test]
fn what_saves_little_is_left_alone() {
    assert_eq!(
        answer(300_000, 20).plan(ms(100), &[lane(LTE, 10)], false),
        None
    );
    assert_eq!(
        answer(9_000_000, 20).plan(ms(100), &[lane(LTE, 0)], false),
        None
    );
    assert_eq!(answer(9_000_000, 20).plan(ms(100), &[], false), None);
    // The first connection's own link still has enough of this answer to carry.
    assert_eq!(
        answer(9_000_000, 20).plan(ms(100), &[lane(WIFI, 20)], false),
        None
    );
}

#[test]
fn at_the_end_of_an_answer_a_slow_connection_gets_help_on_its_own_link() {
    let plan = older(200_000, 2).plan(ms(300), &[lane(WIFI, 20)], false);
    let plan = plan.expect("most of the link is free");
    assert!(
        plan.range.start < 100_000 && plan.range.end == 200_000,
        "{plan:?}"
    );
    assert_eq!(
        older(700_000, 15).plan(ms(300), &[lane(WIFI, 20)], false),
        None
    );
    assert_eq!(
        older(2_000_000, 2).plan(ms(300), &[lane(WIFI, 20)], false),
        None
    );
}

#[test]
fn what_has_just_begun_is_not_taken_for_slow() {
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    assert_eq!(answer(200_000, 2).plan(ms(100), &lanes, false), None);
    assert!(older(200_000, 2).plan(ms(300), &lanes, false).is_some());
    // Other connections leave no more capacity on the first connection's link.
    let lanes = [lane(WIFI, 2), lane(LTE, 10)];
    assert!(answer(200_000, 2).plan(ms(100), &lanes, false).is_some());
}

#[test]
fn what_a_link_has_left_is_not_given_away_twice() {
    // The young connection will soon use the free capacity of its link, so a second connection there does not help,
    // whatever the length.
    for len in [250_000, 400_000, 500_000] {
        let plan = answer(len, 2).plan(ms(100), &[lane(WIFI, 20)], false);
        assert_eq!(plan, None, "{len}");
    }
}

#[test]
fn what_is_done_takes_no_part_of_a_link() {
    let share = |left: Range<u64>, mbps: u64, is_young: bool| Share {
        link: Some(WIFI),
        left,
        rate: Some(Bitrate::from_mbps(mbps)),
        is_young,
    };
    let shares = [
        share(0..0, 10, true),
        share(10..100_000, 4, false),
        share(100_000..200_000, 1, true),
        share(200_000..300_000, 2, true),
        share(300_000..400_000, 0, true),
    ];
    let rates = soon(&shares, &[lane(WIFI, 20)]);
    let mbps = rates
        .iter()
        .map(|share| share.rate.map_or(0, Bitrate::as_bps) / 1_000_000);
    assert_eq!(mbps.collect::<Vec<u64>>(), [10, 4, 8, 8, 0]);
}

#[test]
fn what_rests_is_fetched_elsewhere() {
    let mut parts = answer(1_000_000, 8);
    for at in [200, 300, 400, 500, 600, 700, 800, 900, 1000] {
        parts.look(ms(at));
    }
    let plan = parts.plan(ms(1000), &[lane(LTE, 10)], false).expect("room");
    assert!(
        plan.range.start < 115_000 && plan.range.end == 1_000_000,
        "{plan:?}"
    );
}

#[test]
fn what_falls_silent_far_from_the_end_is_fetched_elsewhere_once_no_more_may_be_kept() {
    let mut parts = answer(40_000_000, 20);
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    for step in 4..400 {
        let now = ms(step * 30);
        while let Some(plan) = parts.plan(now, &lanes, false) {
            parts.accept(now, plan.key, parts.delivered());
        }
        let fetches = parts.fetches.iter();
        let keys: Vec<u64> = fetches.map(|fetch| fetch.key).collect();
        for key in keys {
            parts.on_bytes(now, key, &[0; 50_000]);
        }
        assert!(parts.ahead() <= AHEAD);
        // The first connection carries no more bytes, and does not close either.
        while parts.is_first_done() && !parts.next_bytes().is_empty() {
            let len = parts.next_bytes().len();
            parts.on_passed(len);
        }
        parts.look(now);
    }
    assert!(parts.is_done(), "{} are there", parts.delivered());
}

#[test]
fn no_small_pieces_are_asked_for_while_as_much_is_kept_as_may_be() {
    let mut parts = answer(40_000_000, 20);
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    let mut small = 0;
    for step in 4..1200 {
        let now = ms(step * 10);
        while let Some(plan) = parts.plan(now, &lanes, false) {
            parts.accept(now, plan.key, parts.delivered());
            let is_last = plan.range.end == 40_000_000;
            small += u64::from(plan.range.end - plan.range.start < MIN_CHUNK && !is_last);
        }
        // Fetches carry their bytes at once, while the first connection is slow.
        let fetches = parts.fetches.iter();
        let keys: Vec<u64> = fetches.map(|fetch| fetch.key).collect();
        for key in keys {
            parts.on_bytes(now, key, &[0; 400_000]);
        }
        if parts.is_first_done() {
            let len = parts.next_bytes().len().min(20_000);
            parts.on_passed(len);
        } else {
            let left = parts.first_end() - parts.delivered();
            parts.on_first(now, left.min(20_000));
        }
        parts.look(now);
    }
    assert_eq!(small, 0);
}

#[test]
fn a_link_that_others_fill_is_not_chosen_for_its_short_round_trip() {
    let mut parts = answer(1_000_000, 8);
    parts.end_first();
    let near = Lane {
        start: Duration::from_millis(20),
        ..lane(WIFI, 0)
    };
    let plan = parts.plan(ms(100), &[near, lane(LTE, 5)], false);
    assert_eq!(plan.expect("nobody brings it").link, LTE);
    // If all links are saturated, one is used nevertheless. Its fetch does not count as stalled when it has just
    // begun.
    let mut parts = answer(170_000, 8);
    parts.end_first();
    let lanes = [lane(LTE, 0), near];
    let plan = parts.plan(ms(100), &lanes, false);
    let plan = plan.expect("nobody brings it");
    assert_eq!(plan.link, WIFI);
    parts.accept(ms(130), plan.key, 100_000);
    // The other link has free capacity a moment later.
    let lanes = [lane(LTE, 10), near];
    assert_eq!(parts.plan(ms(131), &lanes, false), None, "asked for twice");
}

#[test]
fn the_end_of_an_answer_does_not_wait_for_timers() {
    let mut parts = answer(252_000, 20);
    assert_eq!(parts.plan(ms(200), &[lane(WIFI, 20)], false), None);
    let plan = parts
        .plan(ms(220), &[lane(WIFI, 20)], false)
        .expect("it rests");
    assert_eq!(plan.range, 250_000..252_000);
}

#[test]
fn who_is_far_away_does_not_rest_between_two_round_trips() {
    let far = Lane {
        round_trip: Duration::from_millis(300),
        ..lane(WIFI, 20)
    };
    let mut parts = answer(252_000, 20);
    assert_eq!(parts.plan(ms(530), &[far], false), None);
    let plan = parts.plan(ms(550), &[far], false).expect("it rests");
    assert_eq!(plan.range, 250_000..252_000);
}

#[test]
fn a_broken_connections_bytes_are_fetched_over_the_link_that_has_them_soonest() {
    let mut parts = answer(1_000_000, 8);
    parts.end_first();
    let plan = parts.plan(ms(100), &[lane(LTE, 5), lane(WIFI, 8)], false);
    let plan = plan.expect("nobody brings it");
    assert_eq!((plan.link, plan.range.clone()), (WIFI, 100_000..1_000_000));
    assert!(parts.next_bytes().is_empty() && !parts.is_hopeless());
    parts.end_fetch(ms(100), plan.key);
    let mut now = ms(100);
    for failures in 2..14 {
        assert!(!parts.is_hopeless(), "{failures}");
        assert_eq!(parts.plan(now, &[lane(LTE, 5)], false), None, "not at once");
        now += Duration::from_secs(1);
        let plan = parts.plan(now, &[lane(LTE, 5)], true).expect("once more");
        parts.end_fetch(now, plan.key);
    }
    assert!(parts.is_hopeless());
    now += Duration::from_secs(9);
    assert_eq!(parts.plan(now, &[lane(LTE, 5)], false), None);
}

#[test]
fn a_link_over_which_a_fetch_failed_is_not_chosen_again_at_once() {
    let mut parts = answer(4_000_000, 8);
    parts.end_first();
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    let plan = parts
        .plan(ms(100), &lanes, false)
        .expect("nobody brings it");
    assert_eq!(plan.link, WIFI);
    parts.end_fetch(ms(700), plan.key);
    let plan = parts
        .plan(ms(730), &lanes, false)
        .expect("nobody brings it");
    assert_eq!(plan.link, LTE);
    parts.accept(ms(800), plan.key, 100_000);
    let plan = parts
        .plan(ms(5_700), &lanes, false)
        .expect("it is tried again");
    assert_eq!(plan.link, WIFI);
}

#[test]
fn a_fetch_of_which_nothing_comes_is_told() {
    let mut parts = answer(1_250_000, 20);
    let plan = parts.plan(ms(100), &[lane(LTE, 10)], false).expect("room");
    assert_eq!(parts.look(ms(680)), [0; 0]);
    assert_eq!(parts.look(ms(681)), [plan.key]);
    parts.end_fetch(ms(100), plan.key);
    assert_eq!(parts.first_end(), 1_250_000, "nothing was promised");
    assert!(!parts.wants(plan.key));
    // The next fetch may take twice as long until the server begins, and 2 s without data after that.
    parts.on_first(ms(700), 1);
    let plan = parts.plan(ms(700), &[lane(LTE, 10)], false).expect("room");
    assert_eq!(parts.look(ms(1780)), [0; 0]);
    parts.accept(ms(1780), plan.key, 300_000);
    assert_eq!(parts.look(ms(3780)), [0; 0]);
    assert_eq!(parts.look(ms(3781)), [plan.key]);
}

#[test]
fn the_time_a_server_takes_to_begin_is_remembered() {
    let mut parts = answer(8_000_000, 20);
    parts.end_first();
    let mut now = ms(100);
    for _ in 0..4 {
        let plan = parts.plan(now, &[lane(LTE, 10)], false).expect("nobody's");
        for _ in 0..40 {
            now += Duration::from_millis(30);
            if parts.has_given {
                assert_eq!(parts.look(now), [0; 0]);
            }
        }
        parts.accept(now, plan.key, parts.delivered());
        let len = usize::try_from(plan.range.end - plan.range.start).expect("small");
        parts.on_bytes(now, plan.key, &vec![0; len]);
    }
}

#[test]
fn a_part_that_comes_too_late_ends_nothing() {
    let mut parts = answer(1_250_000, 20);
    let plan = parts.plan(ms(100), &[lane(LTE, 10)], false).expect("room");
    assert!(
        parts.on_first(ms(600), 1_000_000),
        "it is not wanted any more"
    );
    assert!(!parts.wants(plan.key));
    let mut parts = answer(1 << 40, 20);
    let plan = parts.plan(ms(100), &[lane(LTE, 10)], false).expect("room");
    parts.accept(ms(600), plan.key, plan.range.end);
    assert_eq!(parts.first_end(), 1 << 40);
}

#[test]
fn the_same_bytes_are_asked_for_once() {
    let mut parts = answer(300_000, 20);
    parts.look(ms(400));
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    let plan = parts.plan(ms(400), &lanes, false).expect("it rests");
    assert_eq!(plan.range, 250_000..300_000);
    assert_eq!(parts.plan(ms(401), &lanes, false), None);
}

#[test]
fn a_server_that_always_breaks_off_is_asked_on_while_it_brings_something() {
    let mut parts = answer(4_000_000, 8);
    parts.end_first();
    let mut now = ms(100);
    let mut fetches = 0;
    while !parts.is_done() {
        now += Duration::from_secs(2);
        let plan = parts.plan(now, &[lane(LTE, 5)], false).expect("it goes on");
        parts.accept(now, plan.key, parts.delivered());
        let half = (plan.range.end - plan.range.start).div_ceil(2);
        parts.on_bytes(
            now,
            plan.key,
            &vec![0; usize::try_from(half.max(8_000)).expect("small")],
        );
        parts.end_fetch(now, plan.key);
        while !parts.next_bytes().is_empty() {
            let len = parts.next_bytes().len();
            parts.on_passed(len);
        }
        fetches += 1;
        assert!(!parts.is_hopeless(), "{fetches}");
    }
    assert!(fetches > 13, "{fetches}");
}

#[test]
fn who_has_given_parts_may_refuse_for_a_moment() {
    let mut parts = answer(8_000_000, 20);
    let plan = parts.plan(ms(100), &[lane(LTE, 10)], false).expect("room");
    parts.accept(ms(200), plan.key, 300_000);
    parts.refuse();
    parts.end_first();
    assert!(!parts.is_hopeless());
    let mut parts = answer(8_000_000, 20);
    parts.refuse();
    assert!(!parts.is_hopeless(), "the first connection brings it");
    parts.end_first();
    assert!(parts.is_hopeless());
}

#[test]
fn no_more_than_a_window_is_kept_ahead() {
    let mut parts = answer(1 << 40, 20);
    let lanes = [lane(WIFI, 20), lane(LTE, 10)];
    let mut furthest = 0;
    for at in 2..2000 {
        while let Some(plan) = parts.plan(ms(at * 100), &lanes, false) {
            parts.accept(ms(at * 100), plan.key, parts.delivered());
            furthest = furthest.max(plan.range.end);
        }
        assert!(furthest <= parts.delivered() + AHEAD, "{furthest}");
        let keys: Vec<u64> = parts.fetches.iter().map(|fetch| fetch.key).collect();
        for key in keys {
            parts.on_bytes(ms(at * 100), key, &[0; 125_000]);
        }
        if !parts.is_first_done() {
            parts.on_first(
                ms(at * 100),
                250_000.min(parts.first_end() - parts.delivered()),
            );
        }
        while !parts.next_bytes().is_empty() {
            let len = parts.next_bytes().len();
            parts.on_passed(len);
        }
        parts.look(ms(at * 100));
    }
    assert!(parts.delivered() > 300 << 20, "{}", parts.delivered());
}

/// Returns `len` bytes of the content from position `at`.
fn content(pattern: &[u8], at: u64, len: usize) -> &[u8] {
    let begin = usize::try_from(at % u64::from(PERIOD)).expect("small");
    &pattern[begin..begin + len]
}

const PERIOD: u8 = 251;

/// Connections arrive, break, stall and are refused in any order. The client receives the bytes of the answer in
/// order, and all of them unless the transfer is hopeless.
#[test]
fn whatever_happens_bytes_leave_in_order_and_once() {
    let pattern: Vec<u8> = (0..PERIOD).collect();
    let pattern = pattern.repeat(400);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let most = if seed % 2 == 0 { 3_000_000 } else { 20_000_000 };
        let len = 20_000 + rng.below(most);
        let mut parts = Parts::new(ms(0), Some(WIFI), len, rng.below(10_000));
        let mut passed = parts.delivered();
        let mut keys: Vec<Plan> = Vec::new();
        let mut came: Vec<(u64, u64)> = Vec::new();
        let mut is_first_up = true;
        let patience = 200_000;
        for step in 0..patience {
            let now = ms(step * 10);
            match rng.below(12) {
                0 if is_first_up && rng.below(30) == 0 => {
                    is_first_up = false;
                    parts.end_first();
                }
                1..=3 if is_first_up && !parts.is_first_done() => {
                    let bytes = rng.below(20_000).min(parts.first_end() - parts.delivered());
                    assert_eq!(passed, parts.delivered());
                    parts.on_first(now, bytes);
                    passed += bytes;
                }
                4 | 5 => {
                    let lanes = [lane(WIFI, rng.below(20)), lane(LTE, rng.below(20))];
                    if let Some(plan) = parts.plan(now, &lanes, false) {
                        assert!(plan.range.start < plan.range.end && plan.range.end <= len);
                        keys.push(plan);
                    }
                }
                6 => {
                    if let Some(plan) = keys.pop() {
                        if rng.below(4) == 0 {
                            parts.end_fetch(now, plan.key);
                        } else {
                            // Bytes of the first connection that are on their way to the client.
                            let left = parts.first_end().saturating_sub(parts.delivered());
                            let taken = parts.delivered() + rng.below(5_000).min(left);
                            parts.accept(now, plan.key, taken);
                            came.push((plan.key, plan.range.start));
                        }
                    }
                }
                7..=9 if !came.is_empty() => {
                    let which = usize::try_from(rng.below(came.len() as u64)).expect("few");
                    let (key, at) = came[which];
                    let more = rng.below(30_000);
                    let bytes = content(&pattern, at, usize::try_from(more).expect("small"));
                    let wants_more = parts.on_bytes(now, key, bytes);
                    came[which].1 = at + more;
                    if !wants_more || rng.below(40) == 0 {
                        parts.end_fetch(now, key);
                        came.remove(which);
                    }
                }
                10 => {
                    for key in parts.look(now) {
                        parts.end_fetch(now, key);
                        keys.retain(|plan| plan.key != key);
                        came.retain(|(other, _)| *other != key);
                    }
                }
                _ => {
                    let bytes = parts.next_bytes().to_vec();
                    if parts.is_first_done() && !bytes.is_empty() {
                        let wanted = content(&pattern, passed, bytes.len());
                        assert!(bytes == wanted, "{seed}");
                        passed += bytes.len() as u64;
                        parts.on_passed(bytes.len());
                    }
                }
            }
            assert_eq!(passed, parts.delivered(), "{seed}");
            if parts.is_done() || parts.is_hopeless() {
                break;
            }
            assert!(step < patience - 1, "{seed} does not end");
        }
        assert!(passed <= len);
        let held: usize = parts.fetches.iter().map(|fetch| fetch.data.len()).sum();
        assert!(held as u64 <= AHEAD);
    }
}

#[test]
fn what_a_silent_first_connection_was_to_bring_next_is_fetched_whatever_else_is_full() {
    let full = [lane(WIFI, 0), lane(LTE, 0)];
    for (lanes, only_next) in [(full, false), ([lane(WIFI, 20), lane(LTE, 10)], true)] {
        let mut parts = answer(40_000_000, 20);
        for at in 2..21 {
            parts.look(ms(at * 100));
        }
        assert_eq!(parts.plan(ms(2_050), &lanes, only_next), None);
        let delivered = parts.delivered();
        let plan = parts.plan(ms(2_100), &lanes, only_next).expect("a fetch");
        assert_eq!(plan.range.start, delivered);
        assert_eq!(parts.plan(ms(2_110), &lanes, true), None, "it is asked for");
        parts.accept(ms(2_200), plan.key, delivered);
        assert!(parts.is_first_done());
    }
}

#[test]
fn a_pause_shorter_than_a_round_trip_is_no_end_of_what_has_just_begun() {
    let far = Lane {
        start: Duration::from_millis(400),
        round_trip: Duration::from_millis(200),
        ..lane(WIFI, 20)
    };
    let lanes = [far, lane(LTE, 10)];
    let mut parts = Parts::new(ms(0), Some(WIFI), 10_000_000, 14_000);
    parts.look(ms(60));
    for at in (61..299).step_by(10) {
        assert_eq!(parts.plan(ms(at), &lanes, false), None, "{at} ms");
        parts.look(ms(at));
    }
}

#[test]
fn the_round_trip_of_a_link_in_doubt_counts_as_well() {
    let far = Lane {
        start: Duration::from_millis(400),
        round_trip: Duration::from_millis(300),
        ..lane(WIFI, 20)
    };
    let mut parts = older(752_000, 20);
    parts.on_first(ms(310), 1_000);
    parts.doubts.push((WIFI, ms(300)));
    let delivered = parts.delivered();
    let plan = parts.plan(ms(440), &[far, lane(LTE, 10)], false);
    let begin = plan.map(|plan| plan.range.start);
    assert!(begin.is_none_or(|begin| begin > delivered), "more is due");
}

#[test]
fn what_rests_is_fetched_over_the_link_that_has_it_first() {
    for slow in [WIFI, LTE] {
        let lanes = [WIFI, LTE].map(|link| Lane {
            start: Duration::from_millis(if link == slow { 1_000 } else { 40 }),
            ..lane(link, 20)
        });
        let mut parts = older(760_000, 20);
        let plan = parts.plan(ms(500), &lanes, false).expect("a fetch");
        assert_ne!(plan.link, slow);
        assert_eq!(plan.range.start, parts.delivered());
    }
}
