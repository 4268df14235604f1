use pleach_sim::results::{FlowResult, LinkSeries, Series};

use super::*;

/// Returns a run of 40 s in which the flow lost `loss_percent`. `load` gives the link series by second.
fn run(loss_percent: f64, load: impl Fn(usize) -> (f64, f64, f64)) -> Results {
    let series = |pick: fn((f64, f64, f64)) -> f64| {
        (0..400)
            .map(|sample| pick(load(sample / 10)))
            .collect::<Vec<f64>>()
    };
    Results {
        flows: vec![FlowResult {
            name: UDP.to_owned(),
            loss: loss_percent / 100.0,
            sent_pkts: Some(1000),
            ..FlowResult::default()
        }],
        series: Series {
            interval_ms: 100.0,
            links: vec![
                LinkSeries {
                    name: "dsl".to_owned(),
                    down_mbps: series(|s| s.0),
                    lost_down_pkts: series(|_| 10.0),
                    ..LinkSeries::default()
                },
                LinkSeries {
                    name: "lte".to_owned(),
                    down_mbps: series(|s| s.1),
                    weight: series(|s| s.2),
                    ..LinkSeries::default()
                },
            ],
            ..Series::default()
        },
        ..Results::default()
    }
}

fn value(id: &str, check: usize, runs: &Runs) -> Option<f64> {
    let targets = experiment().targets;
    let target = targets.iter().find(|target| target.id == id)?;
    (target.checks[check].measure)(runs)
}

#[test]
fn loss_is_read_off_its_own_cell() {
    let mut runs = Runs::default();
    runs.insert("l3-single-flow-k05-dwd250", run(0.6, |_| (60.0, 0.0, 0.0)));
    assert_eq!(value("R-L3-5", 0, &runs), Some(0.6));
    assert_eq!(value("R-L3-4", 0, &runs), None);
}

#[test]
fn weights_and_loads_are_read_at_the_peak() {
    let mut runs = Runs::default();
    for (k, t_dwd) in all_cells() {
        // The flow's rate increases at 10 s, is at its peak at 20 s, and decreases at 30 s.
        let (peak, swing) = (45.0 - 5.0 * k, 10.0 * k);
        let back = f64::from(t_dwd) / 100.0;
        let results = run(7.0 - f64::from(t_dwd) / 100.0, move |second| match second {
            16..25 => {
                let sign = if second % 2 == 0 { 1.0 } else { -1.0 };
                (62.5 - k, peak + sign * swing, 33.0)
            }
            25.. => (62.5, 50.0 + back, 20.0),
            _ => (62.5, 1.0, 5.0),
        });
        runs.insert(&cell_name(k, t_dwd), results);
    }
    assert_eq!(value("R-L3-15", 0, &runs), Some(33.0));
    let oscillation = value("R-L3-10", 0, &runs).expect("all ran");
    assert!((oscillation - 10.0).abs() < 0.2, "{oscillation}");
    let unused = value("R-L3-10", 1, &runs).expect("all ran");
    assert!((unused - 0.9 / 62.5 * 100.0).abs() < 1e-6, "{unused}");
    let slower = value("R-L3-10", 2, &runs).expect("all ran");
    assert!((slower - 4.5).abs() < 1e-6, "{slower}");
    let loss = value("R-L3-10", 4, &runs).expect("all ran");
    assert!((loss - 2.0 / 6.5).abs() < 1e-6, "{loss}");
    // 10 packets are lost in 100 ms in which 62.4 Mbit/s are delivered.
    let dead = value("R-L3-16", 0, &runs).expect("all ran");
    let delivered = 62.4e6 * 0.1 / (8.0 * 1492.0);
    assert!((dead - 1000.0 / (10.0 + delivered)).abs() < 1e-6, "{dead}");
}

#[test]
fn the_ideal_line_is_the_demand_up_to_the_rate() {
    let mut runs = Runs::default();
    runs.insert(&cell_name(0.1, 50), run(1.0, |_| (60.0, 0.0, 0.0)));
    let chart = (figure().panels[0].draw)(&runs).expect("ran");
    let ideal = chart
        .lines
        .iter()
        .find(|line| line.is_ideal)
        .expect("there");
    assert_eq!(ideal.values.len(), 400);
    assert_eq!(ideal.values[200], DSL_MBPS);
    let end = *ideal.values.last().expect("400");
    assert!(end <= DSL_MBPS);
}

#[test]
fn packets_on_the_lines_are_the_papers() {
    assert_eq!(testbed::MTU, 1426);
    assert_eq!(PAYLOAD_BYTES, 1398);
    let cell = cell(0.5, 250);
    assert!(cell.toml.contains("mtu = 1426"), "{}", cell.toml);
    assert!(cell.toml.contains("59.030831Mbit"), "{}", cell.toml);
    assert!(cell.toml.contains("queue = \"381952B\""), "{}", cell.toml);
    assert!((ideal_weight_at(64.0) - 32.03).abs() < 0.01);
    assert!((ideal_weight_at(62.5) - 34.0).abs() < 1e-9);
}
