//! The controller in its place in a path, over a line ([`Line`]): every sample, loss and pace passes through
//! [`Path::on_report`](crate::path::Path::on_report).

use super::*;
use crate::{
    path::{
        line::{Line, RTT},
        model::{buffer::Depth, cross::CrossTraffic, loss_window::LossWindow},
    },
    units::Bytes,
};

const INTERVAL: u64 = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Whether the capacity is being searched; whether the path has been saturated lately; whether a loss ceiling holds.
fn state(line: &Line) -> (bool, bool, bool) {
    let control = line.path.control();
    let is_known = line.path.model().is_capacity_known(line.now);
    (control.is_searching(), is_known, control.is_limited())
}

#[test]
fn a_path_is_found_out_and_filled_with_a_short_queue() {
    let mut line = Line::new(50, 1_500_000);
    assert!(line.path.is_searching());
    line.run(1_000);
    assert!(!line.path.is_searching());
    let (mbps, lost) = line.run(10_000);
    assert!((48.5..=50.0).contains(&mbps), "{mbps}");
    assert_eq!(lost, 0.0);
    let mut longest = 0_f64;
    for _ in 0..5_000 {
        line.run(1);
        longest = longest.max(line.queue_ms());
    }
    assert!(longest < 20.0, "{longest} ms");
}

#[test]
fn what_a_short_queue_overflows_with_is_not_taken_for_the_paths_own_loss() {
    for kilobytes in [12, 19, 25] {
        let mut line = Line::new(20, kilobytes * 1_000);
        line.run(10_000);
        let (mbps, lost) = line.run(10_000);
        let floor = line.path.loss().floor_ppm().expect("windows");
        assert!(floor < 4_000, "{floor}, {kilobytes} kB");
        assert!(mbps > 18.8, "{mbps}, {kilobytes} kB");
        assert!(lost < 0.02, "{lost}, {kilobytes} kB");
    }
}

#[test]
fn a_path_that_begins_to_lose_is_soon_known_to() {
    let mut line = Line::new(30, 200_000);
    line.run(10_000);
    line.loss_ppm = 18_000;
    line.run(20_000);
    let ppm = line.path.loss().floor_ppm();
    assert!(ppm > Some(14_000), "{ppm:?}");
}

#[test]
fn a_burst_of_spurious_losses_is_no_congestion() {
    let mut line = Line::new(50, 1_500_000);
    line.demand = Bitrate::from_mbps(20);
    line.run(200);
    assert!(line.path.is_searching());
    // A third is NACKed, and arrives.
    line.overtaken_by = ms(15);
    line.run(30);
    line.overtaken_by = Duration::ZERO;
    let mut has_ceiling = false;
    for _ in 0..20 {
        line.run(10);
        has_ceiling |= state(&line).2;
    }
    assert!(has_ceiling, "taken for congestion at first");
    assert_eq!(state(&line), (true, false, false), "and then no longer");
}

#[test]
fn packets_that_are_lost_are_congestion() {
    let mut line = Line::new(50, 1_500_000);
    line.demand = Bitrate::from_mbps(20);
    line.run(200);
    assert!(line.path.is_searching());
    line.loss_ppm = 300_000;
    line.run(200);
    assert_eq!(state(&line), (false, true, true));
}

#[test]
fn a_share_is_congestion_however_few_packets_it_is_of() {
    for (packets, lost, is_congested) in [
        (60, 9, false),
        (60, 10, true),
        (99, 14, false),
        (99, 15, true),
        (300, 45, false),
        (300, 46, true),
    ] {
        let window = LossWindow {
            packets,
            lost,
            rate: Bitrate::ZERO,
        };
        assert_eq!(
            window.is_congested(None),
            is_congested,
            "{lost} of {packets}"
        );
    }
}

#[test]
fn what_the_sender_does_not_fill_is_searched_on() {
    let mut line = Line::new(50, 1_500_000);
    line.demand = Bitrate::from_mbps(5);
    line.run(5_000);
    assert!(line.path.is_searching());
    assert!(line.pace() > Some(Bitrate::from_mbps(12)));
}

#[test]
fn a_queue_too_short_to_be_seen_is_not_overflown_for_long() {
    // Ten packets: 1.6 ms.
    let mut line = Line::new(50, 10_000);
    line.run(3_000);
    let (mbps, lost) = line.run(20_000);
    assert!(mbps > 46.0, "{mbps}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn a_queue_that_has_overflowed_is_filled_slowly() {
    // 3.5 to 7 ms; told of at once, and later. (Of 3 ms 0.14 % is lost, 0.11 % before: less than counts as congestion.)
    let short = [22, 25, 31, 34].map(|kilobytes| (kilobytes, 0, 0.000_5));
    let told_later = short.map(|(kilobytes, _, most)| (kilobytes, 10, most));
    let far = [(43, 100, 0.0025)];
    for (kilobytes, rtt_ms, most) in [&short[..], &told_later, &far].concat() {
        let rtt = ms(rtt_ms);
        let mut line = Line::with(50, kilobytes * 1_000, rtt, true);
        line.run(5_000);
        let (mbps, lost) = line.run(20_000);
        let what = format!("{kilobytes} kB, {rtt_ms} ms");
        let least = if rtt_ms < 100 { 49.2 } else { 48.5 };
        assert!(mbps > least, "{mbps}, {what}");
        assert!(lost < most, "{lost}, {what}");
    }
}

#[test]
fn a_short_queue_that_jitter_hides_is_not_overflown_for_ever() {
    for seed in 1..=5 {
        // 3 ms.
        let mut line = Line::with(20, 7_500, ms(20), true).seeded(seed);
        line.jitter = ms(10);
        line.run(5_000);
        let (mbps, lost) = line.run(80_000);
        let floor = line.path.loss().floor_ppm().expect("windows");

        assert!(
            lost < 0.03 && floor < 40_000,
            "{lost}, {floor}, seed {seed}"
        );
        assert!(mbps > 18.5, "{mbps}, seed {seed}");
    }
}

#[test]
fn a_line_that_is_faster_now_is_followed_though_its_queue_was_short() {
    let mut line = Line::new(50, 31_000);
    line.jitter = ms(5);
    line.run(20_000);
    line.rate = Bitrate::from_mbps(200);
    line.limit = Bytes::new(2_000_000);
    line.run(3_000);
    let (mbps, _) = line.run(1_000);
    assert!(mbps > 180.0, "{mbps}");
}

#[test]
fn random_losses_do_not_slow_a_path_down() {
    let mut line = Line::new(50, 1_500_000);
    line.loss_ppm = 30_000;
    line.run(3_000);
    let (mbps, _) = line.run(10_000);
    assert!((47.0..=48.6).contains(&mbps), "{mbps}");
}

#[test]
fn jitter_is_no_queue() {
    let mut line = Line::new(50, 1_500_000);
    line.jitter = ms(20);
    line.run(3_000);
    let (mbps, _) = line.run(10_000);
    assert!(mbps > 45.0, "{mbps}");
}

#[test]
fn a_path_that_is_shorter_after_pauses_has_no_queue_for_that() {
    let mut line = Line::new(50, 1_500_000);
    line.loaded_delay = ms(30);
    line.run(3_000);
    let all: f64 = (0..20)
        .map(|_| {
            line.demand = Bitrate::from_mbps(1);
            line.run(60);
            line.demand = Bitrate::from_mbps(1_000);
            line.run(440).0
        })
        .sum();
    // 44.8 without a drain, 36.5 with one after every pause.
    assert!(all / 20.0 > 40.0, "{all}");
}

#[test]
fn a_longer_way_is_no_queue() {
    let mut line = Line::new(50, 1_500_000);
    line.run(3_000);
    // The path's own delay grows by 30 ms: reports cannot tell it from a queue, a drain can.
    line.rtt += ms(60);
    line.run(3_000);
    let (mbps, _) = line.run(5_000);
    assert!(mbps > 46.0, "{mbps}");
}

#[test]
fn a_path_that_became_slower_or_faster_is_followed() {
    let mut line = Line::new(64, 2_000_000);
    line.run(3_000);
    line.rate = Bitrate::from_mbps(8);
    line.run(6_000);
    let (mbps, _) = line.run(5_000);
    assert!(mbps > 7.0, "{mbps}");
    assert!(line.queue_ms() < 60.0, "{}", line.queue_ms());
    line.rate = Bitrate::from_mbps(64);
    line.run(2_000);
    let (mbps, _) = line.run(2_000);
    assert!(mbps > 60.0, "{mbps}");
}

#[test]
fn a_path_long_unused_is_searched_anew() {
    let mut line = Line::new(50, 1_500_000);
    line.run(3_000);
    assert!(!line.path.is_searching());
    line.demand = Bitrate::from_mbps(1);
    line.run(62_000);
    assert!(line.path.is_searching());
}

#[test]
fn a_path_that_is_not_searched_is_paced_while_it_is_full_only() {
    let mut line = Line::with(50, 1_500_000, RTT, false);
    line.demand = Bitrate::from_mbps(5);
    line.run(3_000);
    assert_eq!(line.pace(), None);
    // The host sends a burst of 600 kB.
    line.demand = Bitrate::from_mbps(1_000);
    line.run(5);
    line.demand = Bitrate::from_mbps(5);
    line.run(150);
    assert!(line.pace().is_some());
    line.run(2_000);
    assert_eq!(line.pace(), None);
    line.demand = Bitrate::from_mbps(70);
    line.run(1_000);
    for _ in 0..500 {
        line.run(INTERVAL);
        assert!(line.pace().is_some(), "full all the time");
    }
}

/// How long the queue is in the mean over 4 s, in milliseconds.
fn mean_queue(target_ms: Option<u64>) -> f64 {
    let mut line = Line::new(50, 5_000_000);
    line.set_aim(Aim {
        target_delay: target_ms.map(Duration::from_millis),
        ..Aim::default()
    });
    line.run(3_000);
    let mut sum = 0.0;
    for _ in 0..400 {
        line.run(INTERVAL);
        sum += line.queue_ms();
    }
    sum / 400.0
}

#[test]
fn the_queue_is_as_long_as_wanted() {
    let usual = mean_queue(None);
    assert_eq!(mean_queue(Some(5)), usual);
    assert!(mean_queue(Some(2)) < usual);
    let long = mean_queue(Some(60));
    assert!((30.0..90.0).contains(&long), "{long}");
}

/// What comes over a line that others fill from 5 s on, five seconds later.
fn beside_others(sharing: Sharing) -> f64 {
    let mut line = Line::new(50, 300_000);
    line.set_aim(Aim {
        sharing,
        ..Aim::default()
    });
    line.run(5_000);
    line.cross = Bitrate::from_mbps(50);
    line.run(5_000);
    line.run(5_000).0
}

#[test]
fn who_yields_gives_way_to_others() {
    let [yields, usual] = [Sharing::Yield, Sharing::Auto].map(beside_others);
    assert!(yields < 2.0 && yields < usual / 3.0, "{yields} {usual}");
}

#[test]
fn the_capacity_beside_cross_traffic_is_the_one_before_it_as_long_as_that_arrives() {
    let at = Instant::from_millis;
    let mbps = Bitrate::from_mbps;
    let shared = |cross: &CrossTraffic| cross.shared_capacity(at(3_000));
    let mut cross = CrossTraffic::default();
    cross.on_capacity(at(1_000), Some(mbps(50)));
    assert_eq!(shared(&cross), None, "no cross traffic");
    cross.on_test(at(2_000), true, None);
    assert_eq!(shared(&cross), None, "the queue was ours");
    cross.on_test(at(2_000), false, None);
    assert_eq!(shared(&cross), Some(mbps(50)));
    cross.on_capacity(at(2_500), Some(mbps(35)));
    assert_eq!(shared(&cross), Some(mbps(50)), "of what it was");
    cross.on_test(at(2_500), false, Some(mbps(20)));
    assert_eq!(shared(&cross), Some(mbps(20)), "the path is slower");
}

#[test]
fn samples_of_the_rate_are_longer_where_the_queue_overflows() {
    let least_time = |limit| {
        let mut line = Line::new(20, limit);
        line.jitter = ms(4);
        line.run(10_000);
        line.path.rate().least_time()
    };
    let (deep, shallow) = (least_time(1_500_000), least_time(12_000));
    assert!(shallow > deep, "{shallow:?} {deep:?}");
}

#[test]
fn a_long_queue_that_overflowed_while_the_line_was_slow_holds_nothing_down_once_it_is_gone() {
    let mut line = Line::new(100, 400_000);
    line.run(5_000);
    line.rate = Bitrate::from_mbps(10);
    let (_, lost) = line.run(400);
    assert!(lost > 0.1, "{lost}");
    line.rate = Bitrate::from_mbps(100);
    line.run(400);
    let (mbps, lost) = line.run(1_000);
    assert!(mbps > 90.0, "{mbps}");
    assert_eq!(lost, 0.0);
}

#[test]
fn a_buffer_counts_as_smaller_when_its_queue_turns_out_to_be_propagation_delay() {
    let mut line = Line::new(50, 600_000);
    // The buffer of 96 ms overflows in startup.
    line.run(3_000);
    let depth = |line: &Line| line.path.model().buffer_depth();
    let before = depth(&line).expect("has overflowed");
    assert!(before > ms(60), "{before:?}");
    line.loaded_delay = ms(80);
    line.run(5_000);
    let after = depth(&line);
    assert!(after.is_none_or(|after| after < ms(50)), "{after:?}");
}

#[test]
fn a_ceiling_is_lifted_only_where_a_deep_queue_has_drained() {
    let at = Instant::from_millis;
    for (depth_ms, rtt_ms, queue_ms, lifts) in [
        (60, 40, 10, true),
        (40, 40, 5, false),
        (60, 40, 20, false),
        (60, 600, 10, false),
        (170, 600, 10, true),
    ] {
        let depth = Depth {
            queue: ms(depth_ms),
            rate: Bitrate::from_mbps(50),
            at: at(20_000),
        };
        let has_drained = depth.has_drained(ms(queue_ms), ms(rtt_ms), ms(5));
        assert_eq!(has_drained, lifts, "{depth_ms} {rtt_ms} {queue_ms}");
    }
}

mod recalled;
