//! BBR on links of known behaviour.

use super::*;
use crate::{link::loss::Loss, tcp::CongestionControl};

fn pair(link: LinkConfig, seed: u64) -> Pair {
    let config = TcpConfig {
        cc: CongestionControl::Bbr,
        ..TcpConfig::default()
    };
    Pair::bulk(config, link, seed)
}

/// Returns the window and the smoothed RTT in milliseconds every 10 ms from `from_s` to `to_s`.
fn watch(pair: &mut Pair, from_s: u64, to_s: u64) -> Vec<(u32, u64)> {
    let ms = from_s * 1_000..to_s * 1_000;
    ms.step_by(10)
        .map(|at| {
            pair.run_until(Instant::from_millis(at));
            let stats = pair.end(0).stats();
            let rtt = stats.smoothed_rtt.unwrap_or_default().as_millis();
            (stats.cwnd_pkts, u64::try_from(rtt).unwrap_or(u64::MAX))
        })
        .collect()
}

#[test]
fn fills_a_link_that_loses_one_in_a_hundred() {
    // 20 Mbit/s, an RTT of 50 ms, and a queue of one bandwidth-delay product. The loss and the RTT probe reduce the
    // goodput slightly.
    let link = LinkConfig {
        loss: Loss::Bernoulli(0.01),
        ..line(20, 25, 125_000)
    };
    let mut pair = pair(link, 3);
    let share = pair.goodput(seconds(5), seconds(65)) / capacity(20);
    assert!((0.94..=0.99).contains(&share), "{share}");
}

#[test]
fn keeps_a_deep_queue_below_one_bandwidth_delay_product() {
    // 20 Mbit/s with an RTT of 50 ms are 83 segments. The queue could store eight times as many.
    let mut pair = pair(line(20, 25, 1_000_000), 1);
    let share = pair.goodput(seconds(2), seconds(9)) / capacity(20);
    assert!(share > 0.97, "{share}");
    let samples = watch(&mut pair, 9, 19);
    let longest = samples.iter().map(|(_, rtt)| *rtt).max();
    assert!(longest < Some(100), "{longest:?}");
    let stats = pair.end(0).stats();
    assert_eq!((stats.lost_pkts, stats.timeouts), (0, 0), "{stats:?}");
}

#[test]
fn goes_down_to_four_segments_every_ten_seconds() {
    let mut pair = pair(line(20, 25, 250_000), 1);
    let samples = watch(&mut pair, 2, 34);
    let dips = samples
        .windows(2)
        .filter(|pair| pair[0].0 > 4 && pair[1].0 == 4)
        .count();
    let low = samples.iter().filter(|(cwnd, _)| *cwnd == 4).count();
    assert!((2..=3).contains(&dips), "{dips}");
    // The window is low for 200 ms plus the time until this is detected: 20 to 30 samples each.
    assert!((20..=30).contains(&(low / dips)), "{low} of {dips}");
}

#[test]
fn a_short_queue_costs_losses_but_not_the_rate() {
    let mut pair = pair(line(50, 20, 50_000), 1);
    let share = pair.goodput(seconds(3), seconds(9)) / capacity(50);
    let stats = pair.end(0).stats();
    assert!(share > 0.9, "{share} {stats:?}");
    assert!(stats.timeouts == 0, "{stats:?}");
}

#[test]
fn what_an_application_holds_back_is_not_taken_for_the_path() {
    // First an unlimited load, then a stream of 1 Mbit/s for five seconds, then again an unlimited load at the rate
    // found first.
    let link = line(20, 25, 125_000);
    let config = TcpConfig {
        cc: CongestionControl::Bbr,
        ..TcpConfig::default()
    };
    let mut pair = Pair::new(config, config, link.clone(), link, 1);
    pair.end(0).write(4_000_000);
    pair.run_until(seconds(4));
    for ms in (4_000..9_000).step_by(100) {
        pair.run_until(Instant::from_millis(ms));
        pair.end(0).write(12_500);
    }
    pair.run_until(seconds(9));
    let before = pair.received();
    pair.end(0).write(5_000_000);
    let late = Instant::from_millis(9_800);
    pair.run_until(late);
    let rate = (pair.received() - before) as f64 / 0.8;
    assert!(rate > 0.85 * capacity(20), "{rate}");
}

#[test]
fn segments_leave_at_the_rate_of_the_link_not_in_windows() {
    // Most packets of a fast sender find the slow link free. At most a few wait in its queue.
    let mut pair = pair(line(10, 50, 1_000_000), 1);
    pair.run_until(seconds(5));
    let samples = watch(&mut pair, 5, 9);
    let mean = samples.iter().map(|(_, rtt)| *rtt).sum::<u64>() / samples.len() as u64;
    assert!((100..120).contains(&mean), "{mean}");
}

#[test]
fn a_black_hole_is_survived() {
    use crate::link::{LinkChange, LinkState};
    let mut pair = pair(line(20, 25, 125_000), 1);
    for (state, from_s) in [(LinkState::Blackhole, 4), (LinkState::Up, 6)] {
        pair.run_until(seconds(from_s));
        let change = LinkChange {
            state: Some(state),
            ..LinkChange::default()
        };
        pair.links[0].apply(seconds(from_s), &change);
    }
    // The third retransmission gets through. The rate found before is still known.
    let share = pair.goodput(seconds(8), seconds(18)) / capacity(20);
    let stats = pair.end(0).stats();
    assert!(stats.timeouts >= 2, "{stats:?}");
    assert!(share > 0.9, "{share} {stats:?}");
}
