//! Sections 5.2 and 5.3, figures 7 and 8: two paths. The first has 1 Mbit/s and 50 ms; rate and delay of the second are
//! multiples of these values.

use pleach_sim::{report::Chart, results::FlowResult, transfer::Order};

use super::testbed::{self, Conditions, ORDERS, PUBLISHED, events, goodput};
use crate::{
    experiment::{Check, Experiment, Figure, Panel, Range, Source, Target},
    runs::Runs,
    series::mean,
};

const NAME: &str = "os-ratios";
const PACKETS: u32 = 500;
/// Ratios of the second path's rate or delay to the first path's. The paper does not state them.
const RATIOS: [u32; 5] = [1, 2, 3, 4, 5];
const CONDITIONS: [Conditions; 2] = [Conditions::Exact, Conditions::Rough];

/// Returns the experiment: twelve cells, two targets.
#[must_use]
pub fn experiment() -> Experiment {
    let cells = CONDITIONS.iter().flat_map(|&conditions| {
        ORDERS.map(|order| testbed::cell(NAME, conditions, order, PACKETS, &cases()))
    });
    let cells: Vec<_> = cells.collect();
    let names: Vec<String> = cells.iter().map(|cell| cell.name.clone()).collect();
    Experiment {
        name: NAME,
        paper: "OS",
        about: "two paths by the ratios of their delays and rates (5.2, 5.3)",
        cells,
        targets: vec![disorder(names.clone()), goodputs(names)],
        figures: vec![
            figure("figure-7", "3-dupACK events (figure 7)", "events", events),
            figure("figure-8", "Goodput (figure 8)", "Mbit/s", goodput),
        ],
    }
}

fn cases() -> Vec<(String, Vec<(String, u32)>)> {
    let mut cases = Vec::new();
    for delay in RATIOS {
        for rate in RATIOS {
            let lines = vec![
                ("1Mbit".to_owned(), 50),
                (format!("{rate}Mbit"), 50 * delay),
            ];
            cases.push((case(delay, rate), lines));
        }
    }
    cases
}

fn case(delay: u32, rate: u32) -> String {
    format!("delay-{delay}-rate-{rate}")
}

type Read = fn(&FlowResult) -> Option<f64>;

/// Returns the mean over the cases with these ratios of delays and rates.
fn over(
    runs: &Runs,
    (conditions, order): (Conditions, Order),
    delays: &[u32],
    rates: &[u32],
    read: Read,
) -> Option<f64> {
    let cell = testbed::cell_name(NAME, conditions, order);
    let mut values = Vec::new();
    for delay in delays {
        for rate in rates {
            values.push(testbed::value(runs, &cell, &case(*delay, *rate), read)?);
        }
    }
    mean(&values)
}

fn all(runs: &Runs, conditions: Conditions, order: Order, read: Read) -> Option<f64> {
    over(runs, (conditions, order), &RATIOS, &RATIOS, read)
}

fn disorder(cells: Vec<String>) -> Target {
    let mut checks = Vec::new();
    for conditions in CONDITIONS {
        let of = move |runs: &Runs, order| all(runs, conditions, order, events);
        let name = conditions.name();
        checks.push(Check::statement(
            format!("{name}: round robin over OSIA"),
            "times",
            Range::at_least(1.5),
            "\"the packet reordering events are considerably prevented\": by a third at least; without any, the ratio has no \
             bound, so one event is added to both",
            Box::new(move |runs| {
                Some((of(runs, Order::RoundRobin)? + 1.0) / (of(runs, PUBLISHED)? + 1.0))
            }),
        ));
        checks.push(Check::statement(
            format!("{name}: CWND-aware over round robin"),
            "times",
            Range::at_most(1.0),
            "\"CWND-aware scheduling can lessen the occurring of 3 dupACKs\"",
            Box::new(move |runs| Some(of(runs, Order::Window)? / of(runs, Order::RoundRobin)?)),
        ));
        checks.push(Check::statement(
            format!("{name}: OSIA over flow-level"),
            "times",
            Range::at_most(2.0),
            "\"comparable\": within a factor of two, one event added to both",
            Box::new(move |runs| {
                Some((of(runs, PUBLISHED)? + 1.0) / (of(runs, Order::Flow)? + 1.0))
            }),
        ));
        checks.push(Check::statement(
            format!("{name}: round robin, the most over the least by ratio of delays"),
            "times",
            Range::at_most(2.0),
            "\"nearly independent of the delays\": within a factor of two over a five-fold delay, where rates differ",
            Box::new(move |runs| {
                let by_delay = RATIOS.map(|delay| {
                    let which = (conditions, Order::RoundRobin);
                    over(runs, which, &[delay], &RATIOS[1..], events)
                });
                let by_delay: Vec<f64> = by_delay.into_iter().collect::<Option<_>>()?;
                let most = by_delay.iter().copied().reduce(f64::max)?;
                Some(most / by_delay.iter().copied().reduce(f64::min)?)
            }),
        ));
    }
    for conditions in CONDITIONS {
        checks.push(
            Check::statement(
                format!(
                    "{}: round robin over OSIA with even faucets (ours)",
                    conditions.name()
                ),
                "times",
                Range::at_least(1.5),
                "the same limit, for comparison",
                Box::new(move |runs| {
                    let of = |order| all(runs, conditions, order, events);
                    Some((of(Order::RoundRobin)? + 1.0) / (of(Order::Osia)? + 1.0))
                }),
            )
            .beside(),
        );
    }
    Target {
        id: "R-OS-1",
        what: "round robin makes the most disorder, whatever the delays; CWND-aware less; flow-level and OSIA little",
        checks,
        cells,
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn goodputs(cells: Vec<String>) -> Target {
    let mut checks: Vec<Check> = Vec::new();
    for conditions in CONDITIONS {
        let name = conditions.name();
        for other in [Order::RoundRobin, Order::Window, Order::Flow] {
            checks.push(Check::statement(
                format!("{name}: OSIA over {}", testbed::title(other)),
                "times",
                Range::at_least(1.0),
                "figure 8 is said to show OSIA best: disorder hurts the first two, poor accuracy flow-level",
                Box::new(move |runs| {
                    let of = |order| all(runs, conditions, order, goodput);
                    Some(of(PUBLISHED)? / of(other)?)
                }),
            ));
        }
        checks.push(Check::statement(
            format!("{name}: round robin's growth with the rate over the least of the others'"),
            "times",
            Range::at_most(1.0),
            "round robin's goodput \"increases much slow\"",
            Box::new(move |runs| {
                let others = [Order::Window, Order::Flow, PUBLISHED];
                let others = others.map(|order| growth(runs, conditions, order));
                let others: Vec<f64> = others.into_iter().collect::<Option<_>>()?;
                let least = others.into_iter().reduce(f64::min)?;
                Some(growth(runs, conditions, Order::RoundRobin)? / least)
            }),
        ));
        checks.push(Check::statement(
            format!("{name}: what CWND-aware keeps at five-fold delay over what OSIA keeps"),
            "times",
            Range::at_most(1.0),
            "CWND-aware \"reduces the end-to-end goodput when the paths have different delays\", OSIA is made for them",
            Box::new(move |runs| {
                let kept = |order| {
                    let at = |delay: u32| over(runs, (conditions, order), &[delay], &RATIOS, goodput);
                    Some(at(5)? / at(1)?)
                };
                Some(kept(Order::Window)? / kept(PUBLISHED)?)
            }),
        ));
    }
    for conditions in CONDITIONS {
        checks.push(
            Check::statement(
                format!(
                    "{}: OSIA with even faucets (ours) over flow-level",
                    conditions.name()
                ),
                "times",
                Range::at_least(1.0),
                "the same limit, for comparison",
                Box::new(move |runs| {
                    let of = |order| all(runs, conditions, order, goodput);
                    Some(of(Order::Osia)? / of(Order::Flow)?)
                }),
            )
            .beside(),
        );
    }
    Target {
        id: "R-OS-2",
        what: "OSIA carries the most; round robin hardly gains from a faster path; delays hurt CWND-aware",
        checks,
        cells,
        order: &[],
        source: Source::Published,
        known: "",
    }
}

/// Returns the goodput at a ratio of rates of 5, divided by the goodput at equal rates.
fn growth(runs: &Runs, conditions: Conditions, order: Order) -> Option<f64> {
    let at = |rate: u32| over(runs, (conditions, order), &RATIOS, &[rate], goodput);
    Some(at(5)? / at(1)?)
}

fn figure(id: &'static str, title: &'static str, unit: &'static str, read: Read) -> Figure {
    let mut panels = Vec::new();
    for conditions in CONDITIONS {
        panels.push(Panel {
            title: format!(
                "{}, by ratio of delays (mean over rates)",
                conditions.name()
            ),
            draw: Box::new(move |runs| {
                chart(runs, conditions, ("D2/D1", unit), |which, ratio| {
                    over(runs, which, &[ratio], &RATIOS, read)
                })
            }),
        });
        panels.push(Panel {
            title: format!(
                "{}, by ratio of rates (mean over delays)",
                conditions.name()
            ),
            draw: Box::new(move |runs| {
                chart(runs, conditions, ("BW2/BW1", unit), |which, ratio| {
                    over(runs, which, &RATIOS, &[ratio], read)
                })
            }),
        });
    }
    Figure {
        id,
        title,
        caption: "500 packets over two paths. Exact: neither loss nor cross traffic. Rough: 2 % of loss and cross traffic, mean of \
                  20 runs a point. The paper draws both ratios at once.",
        panels,
    }
}

fn chart(
    runs: &Runs,
    conditions: Conditions,
    (label, unit): (&str, &str),
    at: impl Fn((Conditions, Order), u32) -> Option<f64>,
) -> Option<Chart> {
    let lines = ORDERS.iter().filter_map(|&order| {
        runs.get(&testbed::cell_name(NAME, conditions, order))?;
        let values = RATIOS.map(|ratio| at((conditions, order), ratio).unwrap_or(f64::NAN));
        Some(testbed::line(order, values.to_vec()))
    });
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then(|| Chart {
        label: format!("{unit} by {label}"),
        unit: unit.to_owned(),
        across: Some((
            label.to_owned(),
            RATIOS.iter().map(|ratio| ratio.to_string()).collect(),
        )),
        lines,
        ..Chart::default()
    })
}
