//! Section V, figure 7: automatic weights that follow the background traffic on two links of 10 Mbit/s, compared with
//! equal weights (TEQL).
//!
//! The background changes every 20 s between 10 s and 110 s. The paper shows its rates in a plot only. The rates used
//! here are 2 and 8, 8 and 2, 5 and 5, 0 and 9, 9 and 0 Mbit/s of UDP on link 0 and link 1. The paper does
//! not state its measurement interval and filter either; pleach uses its own (`crates/equalizer/src/auto.rs`,
//! `background.rs`).
//!
//! "Ideal" is the maximum goodput of TCP in the capacity that the background leaves.

use pleach_sim::results::Results;

use super::testbed::{LINK_2, Line, Run, Tcp, goodput_between, ideal, line, over_time, reaches};
use crate::{
    experiment::{Cell, Check, Experiment, Figure, Panel, Range, Source, Target},
    runs::Runs,
    series,
};

const NAME: &str = "nat-background";
const MBPS: f64 = 10.0;
/// Rates of the background on link 0 and link 1 in Mbit/s, for each phase of 20 s.
const PHASES: [[f64; 2]; 5] = [[2.0, 8.0], [8.0, 2.0], [5.0, 5.0], [0.0, 9.0], [9.0, 0.0]];
const BEGIN_S: f64 = 10.0;
const PHASE_S: f64 = 20.0;
const SECONDS: u32 = 120;
/// Payload of a datagram in a packet of 1500 bytes.
const PAYLOAD_BYTES: f64 = 1472.0;

/// Source of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    /// Equal weights, as TEQL uses.
    Equal,
    /// Automatic weights, as NATALIE uses.
    Auto,
}

impl Weights {
    const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Equal => "teql",
        }
    }

    const fn keys(self) -> &'static str {
        match self {
            Self::Auto => "spread = \"packet\"\nweights = \"auto\"",
            Self::Equal => "spread = \"packet\"",
        }
    }
}

/// Returns the experiment: four simulated cells, four cells in the lab, one target.
#[must_use]
pub fn experiment() -> Experiment {
    let of = |weights| Tcp::ALL.map(|tcp| cells(weights, tcp)).concat();
    Experiment {
        name: NAME,
        paper: "NAT",
        about: "one TCP flow beside background that changes every 20 s (V)",
        cells: [of(Weights::Equal), of(Weights::Auto)].concat(),
        targets: vec![target()],
        figures: vec![Figure {
            id: "figure-7",
            title: "Figure 7: auto-weighting beside background",
            caption: "Two links of 10 Mbit/s. The background is not the paper's, which stands in a plot only.",
            panels: panels(),
        }],
    }
}

fn name(weights: Weights, tcp: Tcp) -> String {
    format!("nat-background-{}-{}", weights.name(), tcp.name())
}

fn cells(weights: Weights, tcp: Tcp) -> Vec<Cell> {
    let more = [0, 1].map(background).concat();
    Run {
        name: name(weights, tcp),
        about: "two links of 10 Mbit/s, background that changes every 20 s".to_owned(),
        seconds: SECONDS,
        lab_seconds: Some(SECONDS),
        lines: [Line::plain(MBPS); 2],
        spread: weights.keys(),
        back: LINK_2,
        tcp,
        more,
    }
    .cells()
}

/// Returns the background traffic on a link as scenario text.
///
/// Each packet is sent up to 1 ms late, as by a real program. If packets were sent at exact intervals, in step with the
/// transmissions of the link, either the background or TCP would get all places in a full queue.
fn background(link: usize) -> String {
    let mut points = vec!["{ at = \"0s\", rate = \"0bit\" }".to_owned()];
    for (number, phase) in (0_u32..).zip(PHASES.iter().chain([&[0.0; 2]])) {
        let at = BEGIN_S + PHASE_S * f64::from(number);
        let rate = phase[link] * PAYLOAD_BYTES / 1500.0;
        points.push(format!("{{ at = \"{at}s\", rate = \"{rate:.6}Mbit\" }}"));
    }
    let points = points.join(",\n    ");
    format!(
        "
[[traffic]]
kind = \"udp\"
name = \"background-{link}\"
direction = \"up\"
link = \"l{link}\"
size = \"{PAYLOAD_BYTES}B\"
jitter = \"1ms\"
rates = [                     # of payload
    {points},
]
"
    )
}

/// Returns the begin in s, the end in s, and the ideal in Mbit/s of each phase.
fn phases() -> impl Iterator<Item = (f64, f64, f64)> {
    (0_u32..).zip(PHASES).map(|(number, background)| {
        let begin = BEGIN_S + PHASE_S * f64::from(number);
        (
            begin,
            begin + PHASE_S,
            ideal(2.0 * MBPS - background[0] - background[1]),
        )
    })
}

/// Returns the smallest goodput of a phase, as a share of the phase's ideal.
fn least(runs: &Runs, weights: Weights, tcp: Tcp) -> Option<f64> {
    let cell = name(weights, tcp);
    let share = |(begin, end, ideal): (f64, f64, f64)| {
        Some(goodput_between(runs, &cell, begin, end)? / ideal)
    };
    let all: Option<Vec<f64>> = phases().map(share).collect();
    all?.into_iter().reduce(f64::min)
}

/// Returns the longest time in seconds between a change of the background and the time at which the mean goodput over
/// 0.5 s is 0.9 of the ideal.
fn recovery(results: &Results) -> Option<f64> {
    let time = |(begin, end, ideal): (f64, f64, f64)| {
        Some(reaches(results, 0.9 * ideal, 0.5, begin, end)? - begin)
    };
    let all: Option<Vec<f64>> = phases().map(time).collect();
    all?.into_iter().reduce(f64::max)
}

fn target() -> Target {
    let mut checks = Vec::new();
    for tcp in Tcp::ALL {
        checks.push(Check::statement(
            format!("{}: automatic weights, least mean of a phase, of the ideal", tcp.title()),
            "",
            Range::at_least(0.95),
            "\"very near the maximum available bandwidth\": a twentieth is missing at most over 20 s",
            Box::new(move |runs| least(runs, Weights::Auto, tcp)),
        ));
        checks.push(Check::statement(
            format!(
                "{}: longest time after a change to nine tenths of the ideal over 0.5 s",
                tcp.title()
            ),
            "s",
            Range::at_most(1.0),
            "\"several measurement intervals to recalculate\"; the paper's interval is not given, five of 200 ms were assumed for the range; \
             ours is 50 ms",
            Box::new(move |runs| recovery(runs.get(&name(Weights::Auto, tcp))?)),
        ));
        checks.push(Check::statement(
            format!("{}: equal weights (TEQL), least mean of a phase, of the ideal", tcp.title()),
            "",
            Range::at_most(0.7),
            "\"frequently not close to the ideal throughput\": three tenths are missing at least where the background is unequal",
            Box::new(move |runs| least(runs, Weights::Equal, tcp)),
        ));
    }
    Target {
        id: "R-NAT-10",
        what: "background that changes every 20 s: equal weights are often far from the ideal, automatic ones near it, with dips of several \
               intervals",
        checks,
        cells: [Weights::Equal, Weights::Auto]
            .iter()
            .flat_map(|&weights| Tcp::ALL.map(|tcp| name(weights, tcp)))
            .collect(),
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn panels() -> Vec<Panel> {
    let mut panels = vec![Panel {
        title: "(a) background".to_owned(),
        draw: Box::new(|runs| {
            let results = runs.get(&name(Weights::Auto, Tcp::Paper))?;
            let mut lines = Vec::new();
            for link in [0, 1] {
                let flow = series::flow_series(results, &format!("background-{link}"))?;
                lines.push(line(&format!("link {link}"), flow.sent_mbps.clone(), false));
            }
            Some(over_time(results, "Background over time", lines))
        }),
    }];
    for tcp in Tcp::ALL {
        for (weights, what) in [
            (Weights::Equal, "(b) equal weights"),
            (Weights::Auto, "(c) automatic weights"),
        ] {
            panels.push(Panel {
                title: format!("{what}: {}", tcp.title()),
                draw: Box::new(move |runs| {
                    let results = runs.get(&name(weights, tcp))?;
                    let flow = series::flow_series(results, "tcp")?.goodput_mbps.clone();
                    let best = left(results, flow.len());
                    let lines = vec![line("ideal", best, true), line("the flow", flow, false)];
                    Some(over_time(results, "Throughput over time", lines))
                }),
            });
        }
    }
    panels
}

/// Returns the ideal over time in Mbit/s, as `count` samples.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn left(results: &Results, count: usize) -> Vec<f64> {
    let interval_s = results.series.interval_ms / 1e3;
    let at = |sample: usize| {
        let time = sample as f64 * interval_s;
        let mut all = phases();
        let phase = all.find(|(begin, end, _)| (*begin..*end).contains(&time));
        phase.map_or(ideal(2.0 * MBPS), |(_, _, ideal)| ideal)
    };
    (0..count).map(at).collect()
}
