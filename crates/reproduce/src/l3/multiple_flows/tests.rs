use pleach_sim::results::{LinkSeries, Series};

use super::*;

/// Returns runs of 70 s. `lte` and `lost` give the LTE's load and each link's losses by sample.
fn runs(lte: impl Fn(usize) -> f64, lost: impl Fn(usize) -> f64) -> Runs {
    let series = |of: &dyn Fn(usize) -> f64| (0..700).map(of).collect::<Vec<f64>>();
    let results = Results {
        series: Series {
            interval_ms: 100.0,
            links: vec![
                LinkSeries {
                    name: "dsl".to_owned(),
                    lost_down_pkts: series(&lost),
                    ..LinkSeries::default()
                },
                LinkSeries {
                    name: "lte".to_owned(),
                    down_mbps: series(&lte),
                    lost_down_pkts: series(&|_| 0.0),
                    ..LinkSeries::default()
                },
            ],
            flows: vec![FlowSeries {
                name: "first".to_owned(),
                sent_mbps: series(&|_| 80.0),
                ..FlowSeries::default()
            }],
            ..Series::default()
        },
        ..Results::default()
    };
    let mut runs = Runs::default();
    runs.insert(CELL, results);
    runs
}

fn value(target: &Target, check: usize, runs: &Runs) -> Option<f64> {
    (target.checks[check].measure)(runs)
}

#[test]
fn the_shift_back_is_timed_from_the_flows_end() {
    let load = |sample| match sample {
        50..120 => 25.0,
        120..165 => 11.0,
        _ => 0.0,
    };
    let runs = runs(load, |_| 0.0);
    let target = shift_back();
    let seconds = value(&target, 0, &runs).expect("it falls");
    assert!((seconds - 4.5).abs() < 1e-6, "{seconds}");
    assert_eq!(value(&target, 1, &runs), Some(11.0));
    let never = self::runs(|_| 11.0, |_| 0.0);
    assert_eq!(value(&target, 0, &never), None);
}

#[test]
fn bursts_are_counted_at_starts_and_losses_after() {
    let lost = |sample| match sample {
        51 | 201 | 501 => 300.0,
        300 => 90.0,
        _ => 0.0,
    };
    let runs = runs(|_| 0.0, lost);
    let target = bursts();
    // The largest excess, 37.5 Mbit/s for 50 ms, is 157 packets.
    let least = value(&target, 0, &runs).expect("ran");
    assert!(
        (least - 300.0 / (37.5e6 * 0.05 / 11936.0)).abs() < 1e-6,
        "{least}"
    );
    let packets = 80e6 * 18.0 / (8.0 * 1398.0);
    let after = value(&target, 1, &runs).expect("ran");
    assert!((after - 90.0 / packets * 100.0).abs() < 1e-6, "{after}");
}
