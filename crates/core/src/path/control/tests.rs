//! Tests of the controller as part of a path, over a line ([`Line`]): every sample, loss and pacing rate passes
//! through [`Path::on_report`](crate::path::Path::on_report).

use super::*;
use crate::{
    path::{
        line::{Line, RTT},
        model::{cross::CrossTraffic, loss_window::LossWindow},
    },
    units::Bytes,
};

const INTERVAL: u64 = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Whether the search for the capacity is in progress, whether the path was saturated recently, and whether a loss
/// ceiling is in force.
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
    // The buffer holds ten packets, which take 1.6 ms.
    let mut line = Line::new(50, 10_000);
    line.run(3_000);
    let (mbps, lost) = line.run(20_000);
    assert!(mbps > 46.0, "{mbps}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn a_short_queue_that_jitter_hides_is_not_overflown_for_ever() {
    for seed in 1..=5 {
        // The buffer lasts 3 ms.
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
fn a_longer_way_is_no_queue() {
    let mut line = Line::new(50, 1_500_000);
    line.run(3_000);
    // The base delay grows by 30 ms: reports cannot tell it from a queue, a drain can.
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

/// Mean queueing delay over 4 s, in milliseconds.
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

/// Delivered rate in Mbit/s of a line with cross traffic, from five to ten seconds after the cross traffic has begun.
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
    assert!(yields < 2.0 && yields < usual / 2.0, "{yields} {usual}");
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

mod recalled;
