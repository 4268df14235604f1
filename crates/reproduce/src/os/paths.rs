//! Section 5.4, figure 9: goodput over one to four paths whose rates sum to 4 Mbit/s (table 1).

use pleach_sim::{report::Chart, transfer::Order};

use super::testbed::{self, Conditions, ORDERS, PUBLISHED, goodput};
use crate::{
    experiment::{Check, Experiment, Figure, Panel, Range, Source, Target},
    runs::Runs,
};

const NAME: &str = "os-paths";
const PACKETS: u32 = 2_000;
const CONDITIONS: [Conditions; 2] = [Conditions::Exact, Conditions::Rough];

/// Returns the experiment: twelve cells, one target.
#[must_use]
pub fn experiment() -> Experiment {
    let cells = CONDITIONS.iter().flat_map(|&conditions| {
        let cell =
            move |order| testbed::cell(NAME, conditions, order, PACKETS, &testbed::table_1());
        ORDERS.map(cell)
    });
    let cells: Vec<_> = cells.collect();
    Experiment {
        name: NAME,
        paper: "OS",
        about: "one to four paths of 4 Mbit/s in all (5.4)",
        targets: vec![target(cells.iter().map(|cell| cell.name.clone()).collect())],
        cells,
        figures: vec![Figure {
            id: "figure-9",
            title: "Goodput by number of paths (figure 9)",
            caption: "Exact: neither loss nor cross traffic, what is lacking to 4 Mbit/s is lost to disorder. Rough: 2 % of \
                      loss, which one window alone cannot stand, and cross traffic.",
            panels: CONDITIONS
                .iter()
                .map(|&conditions| Panel {
                    title: conditions.name().to_owned(),
                    draw: Box::new(move |runs| draw(runs, conditions)),
                })
                .collect(),
        }],
    }
}

fn of(runs: &Runs, conditions: Conditions, order: Order) -> Option<Vec<f64>> {
    testbed::values(runs, &testbed::cell_name(NAME, conditions, order), goodput)
}

/// Returns the goodput over the largest number of paths, divided by the goodput over one path.
fn kept(runs: &Runs, conditions: Conditions, order: Order) -> Option<f64> {
    let values = of(runs, conditions, order)?;
    Some(values.last()? / values.first()?)
}

/// Returns the goodput of `order` divided by the smallest goodput of `others`: the maximum of this ratio over two to
/// four paths.
fn beside(runs: &Runs, conditions: Conditions, order: Order, others: &[Order]) -> Option<f64> {
    let mine = of(runs, conditions, order)?;
    let others = others.iter().map(|&other| of(runs, conditions, other));
    let others: Vec<Vec<f64>> = others.collect::<Option<_>>()?;
    let ratios = (1..mine.len()).map(|index| {
        let least = others.iter().filter_map(|other| other.get(index).copied());
        mine[index] / least.fold(f64::INFINITY, f64::min)
    });
    ratios.reduce(f64::max)
}

fn target(cells: Vec<String>) -> Target {
    let mut checks = Vec::new();
    for conditions in CONDITIONS {
        let name = conditions.name();
        checks.push(Check::statement(
            format!("{name}: round robin over the least of the others, at most"),
            "times",
            Range::at_most(1.0),
            "\"the aggregate goodput obtained by Round-Robin scheduling scheme is the smallest\"",
            Box::new(move |runs| {
                let others = [Order::Window, Order::Flow, PUBLISHED];
                beside(runs, conditions, Order::RoundRobin, &others)
            }),
        ));
        for other in [Order::Window, Order::Flow] {
            checks.push(Check::statement(
                format!("{name}: {} over OSIA, at most", testbed::title(other)),
                "times",
                Range::at_most(1.0),
                "figure 9 is said to show OSIA above the others wherever there is more than one path",
                Box::new(move |runs| beside(runs, conditions, other, &[PUBLISHED])),
            ));
        }
    }
    for order in [Order::Window, Order::Flow] {
        checks.push(Check::statement(
            format!("exact: {}, four paths over one", testbed::title(order)),
            "times",
            Range::at_most(0.95),
            "\"with the increase of number of paths, the goodput gained … gets reduced\", due to retransmissions; judged \
             where there are no others",
            Box::new(move |runs| kept(runs, Conditions::Exact, order)),
        ));
    }
    checks.push(Check::statement(
        "exact: OSIA, four paths over one".to_owned(),
        "times",
        Range::at_least(0.9),
        "\"degrades gracefully\", and delays 80 ms apart do \"not hurt the overall goodput\"",
        Box::new(|runs| kept(runs, Conditions::Exact, PUBLISHED)),
    ));
    checks.push(
        Check::statement(
            "exact: OSIA with even faucets (ours), four paths over one".to_owned(),
            "times",
            Range::at_least(0.9),
            "the same limit, for comparison",
            Box::new(|runs| kept(runs, Conditions::Exact, Order::Osia)),
        )
        .beside(),
    );
    Target {
        id: "R-OS-3",
        what: "with more paths round robin is worst, CWND-aware and flow-level fall, OSIA hardly",
        checks,
        cells,
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn draw(runs: &Runs, conditions: Conditions) -> Option<Chart> {
    let lines = ORDERS
        .iter()
        .filter_map(|&order| Some(testbed::line(order, of(runs, conditions, order)?)));
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then(|| Chart {
        label: "goodput by number of paths".to_owned(),
        unit: "Mbit/s".to_owned(),
        across: Some((
            "paths".to_owned(),
            (1..=4).map(|paths| paths.to_string()).collect(),
        )),
        lines,
        at_least: 4.0,
        ..Chart::default()
    })
}
