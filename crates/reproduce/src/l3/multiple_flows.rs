//! Section 5.3, figures 4 and 5: UDP flows that start and stop; k 0.5, `T_dwd` 250 ms, throughput per 100 ms.
//!
//! The paper shows the demand in a figure only. Its text states two facts from which the rates are derived here:
//!
//! - Flows start at 5, 20 and 50 s.
//! - After a flow ends at 12 s, the LTE's load falls from 11 Mbit/s to 0 within 5 s. The weight of the LTE falls by
//!   one in each `T_dwd`, so 5 s are 20 steps, and the weight at 12 s was 20. Therefore the demand before 12 s was
//!   62.5 (1 + 20/50) = 87.5 Mbit/s. The 11 Mbit/s after it are the share 20/70 of the remaining demand, 38.5 Mbit/s.
//!
//! The demand is 100 Mbit/s from 20 to 40 s and 90 Mbit/s from 50 to 60 s, approximately as in figure 4.

use core::ops::Range as Span;

use pleach_sim::results::{FlowSeries, Results};

use super::testbed::{self, PACKET_BYTES, Parameters, W_FIXED};
use crate::{
    experiment::{Cell, Check, Experiment, Figure, Kind, Panel, Range, Role, Source, Target},
    runs::Runs,
    series,
};

const CELL: &str = "l3-multiple-flows";
/// Name, rate on the lines in Mbit/s, start in s and stop in s of each flow.
const FLOWS: [(&str, f64, f64, f64); 4] = [
    ("first", 38.5, 0.0, 70.0),
    ("second", 49.0, 5.0, 12.0),
    ("third", 61.5, 20.0, 40.0),
    ("fourth", 51.5, 50.0, 60.0),
];
/// Times in seconds at which a flow that overloads the DSL starts, each with the time at which this flow stops.
const STARTS: [(f64, f64); 3] = [(5.0, 12.0), (20.0, 40.0), (50.0, 60.0)];
const T_REPORT_S: f64 = 0.05;

/// Returns the experiment: one cell, two targets.
#[must_use]
pub fn experiment() -> Experiment {
    let parameters = Parameters {
        k: 0.5,
        t_dwd_ms: 250,
        w_mobile_max: 45,
    };
    let about = "UDP flows that come and go";
    let mut toml = testbed::scenario(CELL, about, 70.0, parameters);
    for (name, mbps, start, stop) in FLOWS {
        toml += &testbed::udp(name, mbps, start, stop);
    }
    Experiment {
        name: CELL,
        paper: "L3",
        about: "UDP flows that come and go beside each other (5.3)",
        cells: vec![Cell {
            name: CELL.to_owned(),
            toml,
            kind: Kind::Scenario,
        }],
        targets: vec![shift_back(), bursts()],
        figures: figures(),
    }
}

fn shift_back() -> Target {
    Target {
        id: "R-L3-11",
        what: "after a flow ends, the LTE's load falls from 11 Mbit/s to 0 in about 5 s",
        checks: vec![
            Check {
                what: "time until the LTE carries less than 0.2 Mbit/s for 0.5 s".to_owned(),
                unit: "s",
                published: Some(5.0),
                accepted: Range::new(4.0, 6.0),
                reason: "read off a plot to whole seconds (12 s, 17 s), so a second either way",
                role: Role::Judged,
                measure: Box::new(|runs| {
                    let results = runs.get(CELL)?;
                    let load = &series::link(results, "lte")?.down_mbps;
                    Some(series::falls_below(results, load, 0.2, 0.5, 12.0..20.0)? - 12.0)
                }),
            },
            Check {
                what: "LTE's load just after, 12.1 to 12.4 s".to_owned(),
                unit: "Mbit/s",
                published: Some(11.0),
                accepted: Range::new(9.0, 13.0),
                reason: "three steps of the weight either way of 20, about 1.2 Mbit/s each, and the plot's width",
                role: Role::Judged,
                measure: Box::new(|runs| testbed::load(runs.get(CELL)?, "lte", 12.1..12.4)),
            },
        ],
        cells: vec![CELL.to_owned()],
        order: &[],
        source: Source::Input,
        known: "",
    }
}

fn bursts() -> Target {
    Target {
        id: "R-L3-12",
        what: "a burst of losses at each start of a flow, of at least one T_report, then few",
        checks: vec![
            Check {
                what: "losses of the DSL within 1 s of a start over what a T_report of excess is, the least of three"
                    .to_owned(),
                unit: "times",
                published: Some(1.0),
                accepted: Range::at_least(1.0),
                reason: "\"at least one interval of T_report time to detect\"",
                role: Role::Judged,
                measure: Box::new(|runs| {
                    let results = runs.get(CELL)?;
                    least(STARTS.map(|(start, _)| burst(results, start)))
                }),
            },
            Check {
                what: "loss from 2 s after a start to the next change, the most of three".to_owned(),
                unit: "%",
                published: None,
                accepted: Range::at_most(1.0),
                reason: "\"a low loss rate is maintained afterwards\": 5.2 calls rates below one percent acceptable",
                role: Role::Judged,
                measure: Box::new(|runs| {
                    let results = runs.get(CELL)?;
                    let after = STARTS.map(|(start, end)| loss(results, start + 2.0..end));
                    after.into_iter().collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
                }),
            },
        ],
        cells: vec![CELL.to_owned()],
        order: &[],
        source: Source::Published,
        known: "",
    }
}

/// Returns the number of packets that the DSL lost within 1 s after `start`, divided by the number of packets by
/// which the demand exceeds the DSL's capacity within one `T_report`.
#[expect(clippy::cast_precision_loss, reason = "packet lengths are small")]
fn burst(results: &Results, start: f64) -> Option<f64> {
    let lost = &series::link(results, "dsl")?.lost_down_pkts;
    let window = series::window(results, lost, start..start + 1.0);
    if window.is_empty() {
        return None;
    }
    let demand: f64 = FLOWS
        .iter()
        .filter(|flow| flow.2 <= start && start < flow.3)
        .map(|flow| flow.1)
        .sum();
    let excess = (demand - testbed::DSL_MBPS) * 1e6 * T_REPORT_S / (8 * PACKET_BYTES) as f64;
    Some(series::sum(window) / excess)
}

/// Returns the share of the packets sent within `seconds` that the two lines lost together, in percent.
#[expect(clippy::cast_precision_loss, reason = "packet lengths are small")]
fn loss(results: &Results, seconds: Span<f64>) -> Option<f64> {
    let mut lost = 0.0;
    for link in ["dsl", "lte"] {
        let series = &series::link(results, link)?.lost_down_pkts;
        lost += series::sum(series::window(results, series, seconds.clone()));
    }
    let sent = series::total(flows(results).map(|flow| flow.sent_mbps.as_slice()));
    let megabits = series::sum(series::window(results, &sent, seconds));
    let packets =
        megabits * 1e6 * results.series.interval_ms / 1e3 / (8 * testbed::PAYLOAD_BYTES) as f64;
    (packets > 0.0).then(|| lost / packets * 100.0)
}

fn flows(results: &Results) -> impl Iterator<Item = &FlowSeries> {
    results.series.flows.iter()
}

fn least(values: [Option<f64>; 3]) -> Option<f64> {
    let values: Option<Vec<f64>> = values.into_iter().collect();
    values?.into_iter().reduce(f64::min)
}

fn figures() -> Vec<Figure> {
    let panel = |title: &str, draw: fn(&Runs) -> Option<pleach_sim::report::Chart>| Panel {
        title: title.to_owned(),
        draw: Box::new(draw),
    };
    vec![
        Figure {
            id: "figure-4",
            title: "Figure 4: UDP traffic demand",
            caption: "Payload of each flow. The paper does not tell the rates: these follow from its text.",
            panels: vec![panel("Sent", |runs| {
                let results = runs.get(CELL)?;
                let lines = flows(results)
                    .map(|flow| testbed::line(&flow.name, &flow.sent_mbps))
                    .collect();
                Some(testbed::chart(
                    results,
                    "Sent per flow over time",
                    "Mbit/s",
                    lines,
                ))
            })],
        },
        Figure {
            id: "figure-5",
            title: "Figure 5: behaviour with multiple UDP flows",
            caption: "k = 0.5, T_dwd = 250 ms, reorder timeout 50 ms, a point per 100 ms.",
            panels: vec![
                panel("Throughput per link", |runs| {
                    testbed::throughput(runs, CELL, Vec::new())
                }),
                panel("Payload sent and received in order, all flows", |runs| {
                    let results = runs.get(CELL)?;
                    let of =
                        |pick: fn(&FlowSeries) -> &[f64]| series::total(flows(results).map(pick));
                    let lines = vec![
                        testbed::line("sent", &of(|flow| &flow.sent_mbps)),
                        testbed::line("received in order", &of(|flow| &flow.in_order_mbps)),
                    ];
                    Some(testbed::chart(
                        results,
                        "Sent and received in order",
                        "Mbit/s",
                        lines,
                    ))
                }),
                panel("Packets lost per 100 ms", |runs| {
                    let results = runs.get(CELL)?;
                    let mut lines = Vec::new();
                    for (link, name) in [("dsl", "DSL"), ("lte", "LTE")] {
                        let lost = &series::link(results, link)?.lost_down_pkts;
                        lines.push(testbed::line(name, lost));
                    }
                    Some(testbed::chart(
                        results,
                        "Losses over time",
                        "packets",
                        lines,
                    ))
                }),
                panel("Weight of the LTE", |runs| {
                    let results = runs.get(CELL)?;
                    let weight = &series::link(results, "lte")?.weight;
                    let lines = vec![testbed::line("w_mobile", weight)];
                    let unit = format!("beside {W_FIXED} of the DSL");
                    Some(testbed::chart(results, "Weight over time", &unit, lines))
                }),
            ],
        },
    ]
}

#[cfg(test)]
mod tests;
