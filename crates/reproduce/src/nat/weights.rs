//! Section IV.B, figure 6: the best weights if link 1 loses packets and link 0 does not.
//!
//! Choices that the paper leaves open:
//!
//! - Rates of case II: 10 with 5 Mbit/s and 10 with 2 Mbit/s, that is, the rates of case III exchanged.
//! - Losses: 0, .01, .02, .04 and .1. The paper's text names only some of the losses of its curves.
//! - Weights: eight weights of link 1, from 0 to link 1 alone; link 0 has weight 100.
//! - Duration: 60 s.
//! - Lab: all losses except .02, and four weights: each link alone, the ratio of the rates, and a smaller weight
//!   (`Case::is_played`). Runs are 10 s long.

use super::testbed::{LINK_2, Line, PACKETS, Run, Tcp, across, goodput, line, points};
use std::collections::BTreeSet;

use crate::{
    experiment::{Cell, Check, Experiment, Figure, Panel, Range, Source, Target},
    runs::Runs,
};

const NAME: &str = "nat-weights";
/// Losses on link 1 in per mille.
const LOSSES: [u32; 5] = [0, 10, 20, 40, 100];
const SECONDS: u32 = 60;
const LAB_SECONDS: u32 = 10;
/// Weight that represents link 1 alone.
const ALONE: u32 = u32::MAX;
/// Share of the best throughput from which on a throughput counts as the best. The tolerance is needed because losses
/// are random and each point is a single run.
const PEAK: f64 = 0.95;

/// Two links, and the weights that are compared on them.
#[derive(Clone, Copy, Debug)]
struct Case {
    panel: char,
    /// Rates of link 0 and link 1 in Mbit/s.
    mbps: [u32; 2],
    /// Weights of link 1, ascending. One of them is the ratio of the rates.
    weights: [u32; 8],
}

const CASES: [Case; 6] = [
    Case {
        panel: 'a',
        mbps: [1, 1],
        weights: [0, 25, 50, 75, 100, 150, 200, ALONE],
    },
    Case {
        panel: 'b',
        mbps: [10, 10],
        weights: [0, 25, 50, 75, 100, 150, 200, ALONE],
    },
    Case {
        panel: 'c',
        mbps: [10, 5],
        weights: [0, 10, 20, 35, 50, 75, 100, ALONE],
    },
    Case {
        panel: 'd',
        mbps: [10, 2],
        weights: [0, 5, 10, 20, 35, 50, 100, ALONE],
    },
    Case {
        panel: 'e',
        mbps: [5, 10],
        weights: [0, 50, 100, 150, 200, 300, 500, ALONE],
    },
    Case {
        panel: 'f',
        mbps: [2, 10],
        weights: [0, 100, 200, 350, 500, 750, 1000, ALONE],
    },
];

/// Returns the experiment: 216 simulated cells, three targets.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: NAME,
        paper: "NAT",
        about: "one TCP flow over two links, one of which loses packets, by their weights (IV.B)",
        cells: CASES.iter().flat_map(cells).collect(),
        targets: vec![equal(), slower(), faster()],
        figures: vec![Figure {
            id: "figure-6",
            title: "Figure 6: throughput by the weight of link 1",
            caption: "Link 0 loses nothing and weighs 100. A line for each loss of link 1.",
            panels: CASES.iter().map(panel).collect(),
        }],
    }
}

impl Case {
    /// Returns the weight of link 1 that corresponds to the ratio of the rates.
    const fn by_rate(&self) -> u32 {
        100 * self.mbps[1] / self.mbps[0]
    }

    /// Whether runs with this weight of link 1 are also run in the lab.
    fn is_played(&self, weight: u32) -> bool {
        let by_rate = self
            .weights
            .iter()
            .position(|weight| *weight == self.by_rate());
        let below = by_rate.and_then(|at| self.weights.get(at.checked_sub(2)?));
        [0, self.by_rate(), ALONE].contains(&weight) || below == Some(&weight)
    }

    fn name(&self, loss: u32, weight: u32) -> String {
        let [first, second] = self.mbps;
        let weights = match weight {
            // Link 1 carries no data, so its loss is irrelevant.
            0 => return format!("nat-weight-{first}-{second}mbit-w0"),
            ALONE => "alone".to_owned(),
            weight => format!("w{weight}"),
        };
        format!("nat-weight-{first}-{second}mbit-loss{loss}-{weights}")
    }

    fn goodput(&self, runs: &Runs, loss: u32, weight: u32) -> Option<f64> {
        goodput(runs, &self.name(loss, weight))
    }

    /// Returns the best goodput in Mbit/s with weights between `from` and `to`.
    fn best(&self, runs: &Runs, loss: u32, from: u32, to: u32) -> Option<f64> {
        let tried = points(runs, &self.weights, |weight| self.is_played(weight));
        let tried = tried
            .into_iter()
            .filter(|weight| (from..=to).contains(weight));
        let all: Option<Vec<f64>> = tried
            .map(|weight| self.goodput(runs, loss, weight))
            .collect();
        all?.into_iter().reduce(f64::max)
    }

    /// Returns the goodput with `weight`, as a share of the best goodput over all weights.
    fn of_best(&self, runs: &Runs, loss: u32, weight: u32) -> Option<f64> {
        Some(self.goodput(runs, loss, weight)? / self.best(runs, loss, 0, ALONE)?)
    }
}

fn cells(case: &Case) -> Vec<Cell> {
    let mut cells = Vec::new();
    for loss in LOSSES {
        for weight in case.weights {
            if weight > 0 || loss == 0 {
                cells.extend(of(case, loss, weight));
            }
        }
    }
    cells
}

/// Whether runs with this loss, in per mille, are also run in the lab.
fn is_played(loss: u32) -> bool {
    loss != 20
}

fn of(case: &Case, loss: u32, weight: u32) -> Vec<Cell> {
    let [first, second] = case.mbps.map(|mbps| Line::plain(mbps.into()));
    let (own, other) = match weight {
        ALONE => (0, 100),
        weight => (100, weight),
    };
    let first = Line {
        weight: own,
        ..first
    };
    let second = Line {
        weight: other,
        loss: f64::from(loss) / 1e3,
        ..second
    };
    Run {
        name: case.name(loss, weight),
        about: format!(
            "links of {} and {} Mbit/s, the second lossy",
            first.mbps, second.mbps
        ),
        seconds: SECONDS,
        lab_seconds: (is_played(loss) && case.is_played(weight)).then_some(LAB_SECONDS),
        lines: [first, second],
        spread: PACKETS,
        back: LINK_2,
        tcp: Tcp::Paper,
        more: String::new(),
    }
    .cells()
}

fn names(cases: &[Case]) -> Vec<String> {
    let names: BTreeSet<String> = cases.iter().flat_map(cells).map(|cell| cell.name).collect();
    names.into_iter().collect()
}

/// Returns the check of how close weights by the ratio of the rates are to the best weights. The check's value is the
/// smallest share of the best goodput over these losses.
fn peaks(
    what: &str,
    case: Case,
    losses: &'static [u32],
    least: f64,
    reason: &'static str,
) -> Check {
    let [first, second] = case.mbps;
    Check::statement(
        format!(
            "{first} and {second} Mbit/s, {what}: throughput by the ratio of the rates, of the best"
        ),
        "",
        Range::at_least(least),
        reason,
        Box::new(move |runs| {
            let losses = points(runs, losses, is_played).into_iter();
            let all = losses.map(|loss| case.of_best(runs, loss, case.by_rate()));
            all.collect::<Option<Vec<f64>>>()?
                .into_iter()
                .reduce(f64::min)
        }),
    )
}

const BEST: &str = "it is the best: nothing beats it by more than a twentieth, as single runs go";

fn equal() -> Target {
    let [a, b, ..] = CASES;
    Target {
        id: "R-NAT-7",
        what: "equal rates: weights by rate are best up to a loss of .1 at 1 Mbit/s and .01 at 10 Mbit/s; beyond, less is, and gains little",
        checks: vec![
            peaks("loss up to .1", a, &LOSSES, PEAK, BEST),
            peaks("loss up to .01", b, &[0, 10], PEAK, BEST),
            Check::statement(
                "10 and 10 Mbit/s, loss of .02 to .1: the best with both over the better link alone, the most".to_owned(),
                "times",
                Range::at_most(1.2),
                "\"only marginally higher\": a fifth at most",
                Box::new(move |runs| {
                    let gain = |loss: u32| {
                        let alone = b.goodput(runs, loss, 0)?.max(b.goodput(runs, loss, ALONE)?);
                        Some(b.best(runs, loss, 1, ALONE - 1)? / alone)
                    };
                    let losses = points(runs, &LOSSES[2..], is_played);
                    let gains: Option<Vec<f64>> = losses.into_iter().map(gain).collect();
                    gains?.into_iter().reduce(f64::max)
                }),
            ),
            Check::statement(
                "10 and 10 Mbit/s, loss of .02 to .1: the best weight below 100 over the best from 100 on, the least".to_owned(),
                "times",
                Range::at_least(1.0),
                "\"the weight ratio that maximizes throughput decreases\" below one",
                Box::new(move |runs| {
                    let ratio = |loss: u32| {
                        Some(b.best(runs, loss, 0, 99)? / b.best(runs, loss, 100, ALONE)?)
                    };
                    let losses = points(runs, &LOSSES[2..], is_played);
                    let ratios: Option<Vec<f64>> = losses.into_iter().map(ratio).collect();
                    ratios?.into_iter().reduce(f64::min)
                }),
            ),
        ],
        cells: names(&[a, b]),
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn slower() -> Target {
    let [_, _, c, d, ..] = CASES;
    let small = "loss of 0 and .01";
    let mut checks = Vec::new();
    for case in [c, d] {
        checks.push(peaks(small, case, &[0, 10], PEAK, BEST));
    }
    for case in [c, d] {
        checks.push(peaks(
            "loss of .02 and .04",
            case,
            &[20, 40],
            0.85,
            "\"only marginally less than the highest\": 15 % at most",
        ));
        let [first, second] = case.mbps;
        checks.push(Check::statement(
            format!("{first} and {second} Mbit/s, loss of .1: the lossless link alone, of the best"),
            "",
            Range::at_least(0.9),
            "\"prudent to use only the lossless link\", with a \"small throughput degradation\": a tenth at most",
            Box::new(move |runs| case.of_best(runs, 100, 0)),
        ));
    }
    Target {
        id: "R-NAT-8",
        what: "the lossy link is the slower one: weights by rate are best at small loss, nearly so beyond, but for .1, where the lossless \
               link alone does",
        checks,
        cells: names(&[c, d]),
        order: &[],
        source: Source::Published,
        known: "with a delay of 10 ms one way, losses limit the flow: weights by rate send a third of all over the link of 5 Mbit/s, of \
                which .04 are 1.3 % of the flow. The paper gives no delay; with 0 to 5 ms all checks are in range",
    }
}

fn faster() -> Target {
    let [_, _, _, _, e, f] = CASES;
    let mut checks = Vec::new();
    for case in [e, f] {
        checks.push(peaks("without loss", case, &[0], PEAK, BEST));
    }
    for case in [e, f] {
        let [first, second] = case.mbps;
        checks.push(Check::statement(
            format!("{first} and {second} Mbit/s, loss of .01: the lossy link alone, of the best"),
            "",
            Range::at_least(PEAK),
            "\"the highest throughput is typically achieved by just using the lossy, high bandwidth link alone\"",
            Box::new(move |runs| case.of_best(runs, 10, ALONE)),
        ));
        checks.push(Check::statement(
            format!("{first} and {second} Mbit/s, loss of .1: the best weight from 0 to the ratio of the rates, of the best of all"),
            "",
            Range::at_least(PEAK),
            "with larger loss the best lies \"in the interval 0 <= w1/w0 <= b1/b0\"",
            Box::new(move |runs| {
                Some(case.best(runs, 100, 0, case.by_rate())? / case.best(runs, 100, 0, ALONE)?)
            }),
        ));
    }
    Target {
        id: "R-NAT-9",
        what: "the lossy link is the faster one: weights by rate are best without loss, the fast link alone as loss grows, weights from 0 to \
               the ratio of the rates at large loss",
        checks,
        cells: names(&[e, f]),
        order: &[],
        source: Source::Published,
        known: "beside 5 Mbit/s the lossy link alone is never best, whatever the delay (0.66 to 0.69 at .01 with 0 to 10 ms): with weights \
                by rate a third of the packets takes the lossless link. Beside 2 Mbit/s it is as published up to .02",
    }
}

fn panel(case: &Case) -> Panel {
    let case = *case;
    let [first, second] = case.mbps;
    Panel {
        title: format!("({}) {first} and {second} Mbit/s", case.panel),
        draw: Box::new(move |runs| {
            let weights = points(runs, &case.weights, |weight| case.is_played(weight));
            let mut lines = Vec::new();
            for loss in points(runs, &LOSSES, is_played) {
                let of = |&weight: &u32| case.goodput(runs, loss, weight);
                let values: Option<Vec<f64>> = weights.iter().map(of).collect();
                let name = format!("link 1 loses {}", f64::from(loss) / 1e3);
                lines.push(line(&name, values?, false));
            }
            let place = |weight: u32| match weight {
                ALONE => "alone".to_owned(),
                weight => weight.to_string(),
            };
            let places = weights.into_iter().map(place).collect();
            Some(across(
                "Throughput by weight",
                "weight of link 1",
                places,
                lines,
            ))
        }),
    }
}
