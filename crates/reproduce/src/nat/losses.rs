//! Section IV.B, figure 5: two links with the same rate that lose packets at random, with the best weights for these
//! losses.
//!
//! The figures are surfaces, and the text has no numbers of them. It names losses of .01, .04 and .1. The choices here:
//!
//! - Losses: 0, .01, .02, .04 and .1 on each link.
//! - Weights: the paper's ratios go "from 0 to infinity". Here they are 1 to 3, 1 to 1 and 3 to 1, and the best of them
//!   counts. The ratios 0 and infinity are one link alone, with which the result of both links is compared.
//! - Duration: the paper does not state it. Here it is 120 s, as in section IV.A.
//! - Lab: losses of 0, .01, .04 and .1, equal weights, 15 s.

use super::testbed::{LINK_2, Line, PACKETS, Run, Tcp, across, goodput, line, points};
use std::collections::BTreeSet;

use crate::{
    experiment::{Cell, Check, Experiment, Figure, Panel, Range, Role, Source, Target},
    runs::Runs,
};

const NAME: &str = "nat-losses";
/// Losses on a link in per mille.
const LOSSES: [u32; 5] = [0, 10, 20, 40, 100];
const RATES: [u32; 2] = [1, 10];
/// Weights of link 1; link 0 has weight 100.
const WEIGHTS: [u32; 3] = [33, 100, 300];
const SECONDS: u32 = 120;
const LAB_SECONDS: u32 = 15;

/// Whether runs with this loss, in per mille, are also run in the lab.
fn is_played(loss: u32) -> bool {
    loss != 20
}

/// Whether runs with this weight of link 1 are also run in the lab.
fn is_weight_played(weight: u32) -> bool {
    weight == 100
}

/// Returns the experiment: 100 simulated cells, two targets.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: NAME,
        paper: "NAT",
        about: "one TCP flow over two links that lose packets (IV.B)",
        cells: RATES.iter().flat_map(|&mbps| cells(mbps)).collect(),
        targets: vec![slow_links(), fast_links()],
        figures: vec![Figure {
            id: "figure-5",
            title: "Figure 5: throughput by the loss of both links",
            caption: "The best of three weights; beside it the less lossy link alone. A line for each loss of link 0.",
            panels: RATES
                .iter()
                .flat_map(|&mbps| [panel(mbps, true), panel(mbps, false)])
                .collect(),
        }],
    }
}

/// Returns the name of the run over both links with these losses in per mille.
fn both(mbps: u32, first: u32, second: u32, weight: u32) -> String {
    let (low, high) = (first.min(second), first.max(second));
    format!("nat-loss-{mbps}mbit-{low}-{high}-w{weight}")
}

/// Returns the name of the run over one link with this loss in per mille.
fn alone(mbps: u32, loss: u32) -> String {
    format!("nat-loss-{mbps}mbit-{loss}-alone")
}

fn cells(mbps: u32) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (at, &first) in LOSSES.iter().enumerate() {
        let one = Line {
            loss: f64::from(first) / 1e3,
            ..Line::plain(mbps.into())
        };
        let unused = Line { weight: 0, ..one };
        cells.extend(of(alone(mbps, first), [one, unused], is_played(first)));
        for &second in &LOSSES[at..] {
            let other = |weight| Line {
                loss: f64::from(second) / 1e3,
                weight,
                ..one
            };
            for weight in WEIGHTS {
                let lines = [one, other(weight)];
                let is_played =
                    [first, second].into_iter().all(is_played) && is_weight_played(weight);
                cells.extend(of(both(mbps, first, second, weight), lines, is_played));
            }
        }
    }
    cells
}

fn of(name: String, lines: [Line; 2], is_played: bool) -> Vec<Cell> {
    Run {
        about: format!("links of {} Mbit/s that lose packets", lines[0].mbps),
        name,
        seconds: SECONDS,
        lab_seconds: is_played.then_some(LAB_SECONDS),
        lines,
        spread: PACKETS,
        back: LINK_2,
        tcp: Tcp::Paper,
        more: String::new(),
    }
    .cells()
}

fn names(mbps: u32) -> Vec<String> {
    let names: BTreeSet<String> = cells(mbps).into_iter().map(|cell| cell.name).collect();
    names.into_iter().collect()
}

/// Returns the goodput in Mbit/s over both links with the best of the weights.
fn best(runs: &Runs, mbps: u32, first: u32, second: u32) -> Option<f64> {
    let weights = points(runs, &WEIGHTS, is_weight_played).into_iter();
    let all = weights.map(|weight| goodput(runs, &both(mbps, first, second, weight)));
    let all: Vec<f64> = all.collect::<Option<_>>()?;
    all.into_iter().reduce(f64::max)
}

/// Returns the goodput over both links, divided by the goodput over the link with the lower loss alone.
fn gain(runs: &Runs, mbps: u32, first: u32, second: u32) -> Option<f64> {
    let better = goodput(runs, &alone(mbps, first.min(second)))?;
    Some(best(runs, mbps, first, second)? / better)
}

/// Returns the [`gain`] of each pair of losses for which `choose` returns true.
fn gains(runs: &Runs, mbps: u32, choose: fn(u32, u32) -> bool) -> Option<Vec<f64>> {
    let losses = points(runs, &LOSSES, is_played);
    let mut gains = Vec::new();
    for (at, &first) in losses.iter().enumerate() {
        for &second in &losses[at..] {
            if choose(first, second) {
                gains.push(gain(runs, mbps, first, second)?);
            }
        }
    }
    Some(gains)
}

fn slow_links() -> Target {
    Target {
        id: "R-NAT-5",
        what: "1 Mbit/s: both links together beat the better one for most pairs of losses, and equal it where both lose a tenth",
        checks: vec![
            Check::statement(
                "share of the 15 pairs (in the lab 10) with a gain".to_owned(),
                "",
                Range::at_least(0.7),
                "\"in most cases\": more than two thirds",
                Box::new(|runs| {
                    let gains = gains(runs, 1, |_, _| true)?;
                    crate::series::mean(
                        &gains
                            .iter()
                            .map(|gain| f64::from(u8::from(*gain > 1.0)))
                            .collect::<Vec<_>>(),
                    )
                }),
            ),
            Check {
                what: "both lose .1: together over one alone".to_owned(),
                unit: "times",
                published: Some(1.0),
                accepted: Range::within_factor(1.0, 1.2),
                reason: "equal, but for the chance of single runs at a tenth of loss: a factor of 1.2",
                role: Role::Judged,
                measure: Box::new(|runs| gain(runs, 1, 100, 100)),
            },
        ],
        cells: names(1),
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn fast_links() -> Target {
    Target {
        id: "R-NAT-6",
        what: "10 Mbit/s: a large gain where both lose .01 at most, a slight one from .01 to .04, less than the better link where both lose \
               more; the larger bandwidth suffers more",
        checks: vec![
            Check::statement(
                "both .01 at most: least gain".to_owned(),
                "times",
                Range::at_least(1.25),
                "\"large throughput gain\": a quarter at least",
                Box::new(|runs| {
                    gains(runs, 10, |_, second| second <= 10)?
                        .into_iter()
                        .reduce(f64::min)
                }),
            ),
            Check::statement(
                "both from .01 to .04, one of them above .01: mean gain".to_owned(),
                "times",
                Range::new(1.0, 1.25),
                "\"only slightly better\": less than what counts as large",
                Box::new(|runs| {
                    let between =
                        |first: u32, second: u32| first >= 10 && (20..=40).contains(&second);
                    crate::series::mean(&gains(runs, 10, between)?)
                }),
            ),
            Check::statement(
                "both .1: gain".to_owned(),
                "times",
                Range::at_most(1.0),
                "above .04 \"actually lower than just using the better one\"",
                Box::new(|runs| gain(runs, 10, 100, 100)),
            ),
            Check::statement(
                "both .04: share of the ideal at 10 Mbit/s over that at 1 Mbit/s".to_owned(),
                "times",
                Range::at_most(0.5),
                "the larger bandwidth suffers more: at most half as much of it is used",
                Box::new(|runs| {
                    let of = |mbps: u32| Some(best(runs, mbps, 40, 40)? / f64::from(mbps));
                    Some(of(10)? / of(1)?)
                }),
            ),
        ],
        cells: [names(1), names(10)].concat(),
        order: &[],
        source: Source::Published,
        known: "with a delay of 10 ms one way, losses limit the flow rather than the links: .02 leaves 4.3 Mbit/s of one link and 4.7 \
                of two. The paper gives no delay; with 5 ms all checks are in range",
    }
}

fn panel(mbps: u32, is_both: bool) -> Panel {
    let what = if is_both {
        "both links"
    } else {
        "the better link alone"
    };
    Panel {
        title: format!("{mbps} Mbit/s, {what}"),
        draw: Box::new(move |runs| {
            let losses = points(runs, &LOSSES, is_played);
            let mut lines = Vec::new();
            for &first in &losses {
                let of = |second: u32| {
                    if is_both {
                        best(runs, mbps, first, second)
                    } else {
                        goodput(runs, &alone(mbps, first.min(second)))
                    }
                };
                let values = losses.iter().map(|&second| of(second));
                lines.push(line(
                    &format!("link 0 loses {}", loss(first)),
                    values.collect::<Option<_>>()?,
                    false,
                ));
            }
            let places = losses.into_iter().map(loss).collect();
            Some(across(
                "Throughput by loss",
                "loss of link 1",
                places,
                lines,
            ))
        }),
    }
}

fn loss(thousandths: u32) -> String {
    (f64::from(thousandths) / 1e3).to_string()
}
