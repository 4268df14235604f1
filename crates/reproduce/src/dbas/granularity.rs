//! Section IV-B3, figure 6: one long-lived connection, and the gain of scheduling chunks over scheduling whole
//! connections.

use super::{
    model::{Choice, Reading},
    testbed::{self, CONDITIONS, Point, Sweep, least},
};
use crate::experiment::{Experiment, Figure, Range, Source, Target};

const NAME: &str = "db-granularity";
const SHOWN: [Choice; 6] = [
    Choice::OnlyFirst,
    Choice::RoundRobin,
    Choice::WeightedRoundRobin,
    Choice::MaxThroughput,
    Choice::ChunksRoundRobin,
    Choice::ChunksWeightedRoundRobin,
];
const WHOLE: [Choice; 5] = [
    Choice::OnlyFirst,
    Choice::OnlyLast,
    Choice::RoundRobin,
    Choice::WeightedRoundRobin,
    Choice::MaxThroughput,
];

/// Returns the experiment: 16 cells, one target.
#[must_use]
pub fn experiment() -> Experiment {
    let sweep = sweep();
    Experiment {
        name: NAME,
        paper: "DB",
        about: "one long-lived connection among short ones (IV-B3)",
        cells: sweep.cells(NAME),
        targets: vec![target()],
        figures: vec![Figure {
            id: "figure-6",
            title: "Granularity of scheduling (figure 6)",
            caption: "What arrives within 60 s. 2+2: as published; 2+1: interfaces that differ, which the paper's words on \
                      round robin suppose.",
            panels: CONDITIONS
                .iter()
                .map(|&conditions| sweep.panel("connections and chunks", conditions, &SHOWN))
                .collect(),
        }],
    }
}

fn sweep() -> Sweep {
    let point = |(name, second_kbps): (&str, u32)| Point {
        small_per_s: 0.0,
        large_per_s: 0.25,
        long: true,
        second_kbps,
        ..Point::nominal(name.to_owned())
    };
    Sweep {
        name: NAME,
        axis: "interfaces, Mbit/s",
        points: [("2+2", 2000), ("2+1", 1000)].map(point).to_vec(),
        reading: Reading::WhileArriving,
    }
}

/// Returns the value at the first point, the only one with published settings.
fn as_published(values: &[f64]) -> Option<f64> {
    values.first().copied()
}

fn target() -> Target {
    let mut checks = Vec::new();
    testbed::both(
        &mut checks,
        ("2+2: max throughput over only IF1", "times"),
        Range::new(0.9, 1.1),
        "\"the throughput achieved by the CO schedulers is the same as using only a single interface\"; a tenth can be seen",
        |runs, conditions| {
            let others = [Choice::OnlyFirst];
            as_published(&sweep().over(runs, conditions, Choice::MaxThroughput, &others)?)
        },
    );
    testbed::both(
        &mut checks,
        ("2+2: the long connection under max throughput", "Mbit/s"),
        Range::at_most(2.0),
        "it \"cannot distribute the packets of the single long-lived connection\": no more than one interface carries",
        |runs, conditions| {
            let mine = Choice::MaxThroughput;
            as_published(&sweep().read(runs, conditions, mine, Reading::LongOne)?)
        },
    );
    testbed::both(
        &mut checks,
        (
            "weighted chunks over the best of whole connections, at least",
            "times",
        ),
        Range::at_least(1.0),
        "\"PO weighted round robin achieves the highest throughput\"",
        |runs, conditions| {
            let mine = Choice::ChunksWeightedRoundRobin;
            least(&sweep().over(runs, conditions, mine, &WHOLE)?)
        },
    );
    testbed::both(
        &mut checks,
        ("2+1: weighted over round robin chunks", "times"),
        Range::at_least(1.1),
        "\"PO round robin performs poorly since it does not take interface heterogeneity into account\"; equal interfaces, as \
         published, have none",
        |runs, conditions| {
            let (mine, other) = (Choice::ChunksWeightedRoundRobin, Choice::ChunksRoundRobin);
            sweep()
                .over(runs, conditions, mine, &[other])?
                .get(1)
                .copied()
        },
    );
    testbed::both(
        &mut checks,
        ("weighted chunks below the optimum, at most", "%"),
        Range::at_most(5.0),
        "this program's own aim; the paper has 9 % at worst, in all figures",
        |runs, conditions| {
            sweep().below_optimum(runs, conditions, Choice::ChunksWeightedRoundRobin)
        },
    );
    Target {
        id: "R-DB-6",
        what: "one long-lived connection: whole connections gain nothing over one interface, chunks fill both",
        checks,
        cells: sweep().names(),
        order: &[],
        source: Source::Published,
        known: "The long connection gets no more than one interface, as published, but the short ones, 0.57 Mbit/s of them, \
                find the other one empty: that is what the sum gains",
    }
}
