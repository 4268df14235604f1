//! Section 5.4 and figure 6: greedy TCP on the DSL outside the tunnel, together with UDP through the tunnel at 41.5 and
//! then at 63 Mbit/s, for three values of `T_dwd`.
//!
//! TCP runs from 0 s, UDP from 10 to 68.7 s and from 88.7 to 165.1 s (200 000 and 400 000 packets). k is 1, and the
//! maximum weight is 50. The paper has no numbers for the figure, so the checks only compare which of two values is
//! larger.

use core::ops::Range as Span;

use super::testbed::{self, DSL_MBPS, Parameters};
use crate::{
    experiment::{
        Cell, Check, Experiment, Figure, Kind, Measure, Panel, Range, Role, Source, Target,
    },
    runs::Runs,
    series,
};

const T_DWD_MS: [u32; 3] = [50, 500, 1000];
const DURATION_S: f64 = 166.0;
/// Time range in seconds of the first UDP flow, without the first 5 s.
const FIRST: Span<f64> = 15.0..68.7;
/// Time range in seconds of the last 10 s of the first UDP flow.
const LATE: Span<f64> = 58.7..68.7;
/// Payload of a TCP segment, divided by the length of the IP packet.
const TCP_SHARE: f64 = 1448.0 / 1500.0;

/// Returns the experiment: three cells, one target.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "l3-tcp-cross-traffic",
        paper: "L3",
        about: "greedy TCP on the DSL, then UDP through the tunnel, for three T_dwd (5.4)",
        cells: T_DWD_MS.map(cell).to_vec(),
        targets: vec![target()],
        figures: vec![Figure {
            id: "figure-6",
            title: "Figure 6: TCP cross traffic on the DSL",
            caption: "k = 1. What UDP put on either link, and the TCP beside it.",
            panels: T_DWD_MS.map(panel).into(),
        }],
    }
}

fn cell_name(t_dwd_ms: u32) -> String {
    format!("l3-tcp-cross-traffic-dwd{t_dwd_ms}")
}

fn cell(t_dwd_ms: u32) -> Cell {
    let name = cell_name(t_dwd_ms);
    let about = format!("TCP on the DSL, then UDP through the tunnel: T_dwd {t_dwd_ms} ms");
    let parameters = Parameters {
        k: 1.0,
        t_dwd_ms,
        w_mobile_max: 50,
    };
    let toml = testbed::scenario(&name, &about, DURATION_S, parameters)
        + &testbed::tcp(1, 0.0, DURATION_S)
        + &testbed::udp("udp-41", 41.5, 10.0, 68.7)
        + &testbed::udp("udp-63", 63.0, 88.7, 165.1);
    Cell {
        name,
        toml,
        kind: Kind::Scenario,
    }
}

fn target() -> Target {
    let check = |what: &str, unit, accepted, reason, measure: Measure| Check {
        what: what.to_owned(),
        unit,
        published: None,
        accepted,
        reason,
        role: Role::Judged,
        measure,
    };
    let ratio = |of: fn(&Runs, u32) -> Option<f64>, over, under| -> Measure {
        Box::new(move |runs: &Runs| Some(of(runs, over)? / of(runs, under)?.max(0.01)))
    };
    Target {
        id: "R-L3-13",
        what: "small T_dwd returns UDP to the DSL fast; only a large one leaves room for TCP",
        checks: vec![
            check(
                "TCP beside the first UDP flow, T_dwd 1000 over 50 ms",
                "times",
                Range::at_least(1.0),
                "\"only with a high value of T_dwd can we ... leave spare capacity for the TCP\": a direction",
                ratio(tcp_load, 1000, 50),
            ),
            check(
                "LTE's load from the first UDP flow, T_dwd 500 over 50 ms",
                "times",
                Range::at_least(1.0),
                "\"the smaller T_dwd is, the faster traffic shifts back\": a direction",
                ratio(lte_load, 500, 50),
            ),
            check(
                "LTE's load from the first UDP flow, T_dwd 1000 over 500 ms",
                "times",
                Range::at_least(1.0),
                "\"the smaller T_dwd is, the faster traffic shifts back\": a direction",
                ratio(lte_load, 1000, 500),
            ),
            check(
                "LTE's load in the last 10 s of the first UDP flow, T_dwd 1000 ms",
                "Mbit/s",
                Range::at_least(1.0),
                "\"permanently shift some of the UDP traffic\": 1 Mbit/s is one step of the weight at this rate",
                Box::new(|runs| testbed::load(runs.get(&cell_name(1000))?, "lte", LATE)),
            ),
            check(
                "LTE's highest load within 2 s of the first UDP flow's start, the least of three T_dwd",
                "Mbit/s",
                Range::at_least(1.0),
                "\"in all three plots the initial loss burst ... leads to a shift\": more than one step of the weight",
                Box::new(|runs| {
                    let peaks = T_DWD_MS.map(|t| {
                        let results = runs.get(&cell_name(t))?;
                        let load = &series::link(results, "lte")?.down_mbps;
                        let window = series::window(results, load, 10.0..12.0);
                        window
                            .iter()
                            .copied()
                            .filter(|v| v.is_finite())
                            .reduce(f64::max)
                    });
                    let peaks: Option<Vec<f64>> = peaks.into_iter().collect();
                    peaks?.into_iter().reduce(f64::min)
                }),
            ),
            check(
                "TCP alone, 5 to 10 s, over what the DSL carries, the least of three T_dwd",
                "times",
                Range::new(0.9, 1.0),
                "\"able to fully utilize the available bandwidth\": nine tenths, as TCP probes for it",
                Box::new(|runs| {
                    let shares = T_DWD_MS.map(|t| {
                        let results = runs.get(&cell_name(t))?;
                        let tcp = &series::flow_series(results, "tcp")?.goodput_mbps;
                        let rate = series::mean(series::window(results, tcp, 5.0..10.0))?;
                        Some(rate / (DSL_MBPS * TCP_SHARE))
                    });
                    let shares: Option<Vec<f64>> = shares.into_iter().collect();
                    shares?.into_iter().reduce(f64::min)
                }),
            ),
        ],
        cells: T_DWD_MS.map(cell_name).to_vec(),
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn lte_load(runs: &Runs, t_dwd_ms: u32) -> Option<f64> {
    testbed::load(runs.get(&cell_name(t_dwd_ms))?, "lte", FIRST)
}

fn tcp_load(runs: &Runs, t_dwd_ms: u32) -> Option<f64> {
    let results = runs.get(&cell_name(t_dwd_ms))?;
    let tcp = &series::flow_series(results, "tcp")?.goodput_mbps;
    series::mean(series::window(results, tcp, FIRST))
}

fn panel(t_dwd_ms: u32) -> Panel {
    Panel {
        title: format!("T_dwd = {t_dwd_ms} ms"),
        draw: Box::new(move |runs| {
            let results = runs.get(&cell_name(t_dwd_ms))?;
            let dsl = &series::link(results, "dsl")?.down_mbps;
            let lte = &series::link(results, "lte")?.down_mbps;
            let tcp = &series::flow_series(results, "tcp")?.goodput_mbps;
            let udp: Vec<f64> = dsl
                .iter()
                .zip(tcp)
                .map(|(all, tcp)| (all - tcp / TCP_SHARE).max(0.0))
                .collect();
            let lines = vec![
                testbed::line("UDP on the DSL", &udp),
                testbed::line("UDP on the LTE", lte),
                testbed::line("TCP on the DSL", tcp),
            ];
            Some(testbed::chart(
                results,
                "UDP and TCP over time",
                "Mbit/s",
                lines,
            ))
        }),
    }
}
