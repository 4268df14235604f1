//! The order in which packets arrive over the lines of table 1, in a transport that does not react to losses: sizes of
//! chunks (section 3.3) and number of events. An event is a third acknowledgement in a row that reports the same packet
//! as missing.

use core::time::Duration;

use pleach_core::{
    ids::PathId,
    sched::osia::plan::{Plan, Vessel},
    units::Bytes,
};
use pleach_sim::{
    report::Chart,
    transfer::{Order, Transfer},
};

use super::testbed::{self, Conditions, events, goodput};
use crate::{
    experiment::{Cell, Check, Experiment, Figure, Panel, Range, Source, Target},
    runs::Runs,
};

const NAME: &str = "os-in-order";
const PACKETS: u32 = 2_000;
const ORDERS: [Order; 5] = [
    Order::RoundRobin,
    Order::Weighted,
    Order::OsiaRandom,
    Order::Osia,
    Order::EarliestArrival,
];
/// Sizes in kbit of all chunks except the last, for 2, 3 and 4 paths, by equations 9 and 10.
const CHUNKS: [&[f64]; 3] = [&[120.0], &[40.0, 55.0], &[20.0, 90.0, 60.0]];
/// Number of events with round robin for 2, 3 and 4 paths, counted by another program.
const ROUND_ROBIN: [f64; 3] = [325.0, 247.0, 318.0];
/// Number of events with weighted round robin for 2, 3 and 4 paths, counted by another program.
const WEIGHTED: [f64; 3] = [492.0, 322.0, 370.0];
/// Number of events with OSIA and even faucets for 2, 3 and 4 paths, counted by another program. It is the upper limit.
const OSIA_MAX: [f64; 3] = [0.0, 0.0, 123.0];

/// Returns the experiment: five cells, three targets.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: NAME,
        paper: "OS",
        about: "2000 packets over the lines of table 1, nothing lost and nothing taken for lost (3.3)",
        cells: ORDERS.map(cell).to_vec(),
        targets: vec![chunks(), order(), timers()],
        figures: vec![Figure {
            id: "os-events",
            title: "Events over table 1 (not drawn in the paper)",
            caption: "How often a third acknowledgement in a row misses the same packet, of 2000 packets. The paper's \
                      faucets draw lots; even ones keep order.",
            panels: vec![Panel {
                title: "3-dupACK events".to_owned(),
                draw: Box::new(draw),
            }],
        }],
    }
}

fn cell(order: Order) -> Cell {
    let cases = testbed::table_1();
    testbed::cell(NAME, Conditions::Order, order, PACKETS, &cases)
}

fn cell_name(order: Order) -> String {
    testbed::cell_name(NAME, Conditions::Order, order)
}

fn chunks() -> Target {
    let mut checks = Vec::new();
    for (case, sizes) in CHUNKS.iter().enumerate() {
        for (chunk, kbit) in sizes.iter().enumerate() {
            checks.push(Check::statement(
                format!("{} paths: chunk {}", case + 2, chunk + 1),
                "kbit",
                Range::new(kbit - 0.01, kbit + 0.01),
                "derived from equations 9 and 10, exactly but for whole bytes; equation 13 as printed gives borders",
                Box::new(move |runs| volume(runs, case + 1, chunk)),
            ));
        }
    }
    Target {
        id: "R-OS-4",
        what: "sizes of the chunks: the first chunk for two paths",
        checks,
        cells: vec![cell_name(Order::Osia)],
        order: &[],
        source: Source::Derived,
        known: "",
    }
}

/// Returns the planned size in kbit of a chunk for the lines of a case. `None` if the case did not run.
fn volume(runs: &Runs, case: usize, chunk: usize) -> Option<f64> {
    let volume = plan(runs, case)?.chunks().get(chunk)?.volume?;
    let bytes = u32::try_from(volume.get()).ok()?;
    Some(f64::from(bytes) * 8.0 / 1e3)
}

/// Returns the plan for the lines of a case. `None` if the case did not run.
fn plan(runs: &Runs, case: usize) -> Option<Plan> {
    runs.get(&cell_name(Order::Osia))?;
    let transfer = Transfer::parse(&cell(Order::Osia).toml).ok()?;
    let lines = transfer.case.get(case)?.line.iter().zip(0_u8..);
    Plan::new(lines.map(|(line, id)| Vessel {
        id: PathId(id),
        rate: line.rate,
        level: Duration::from_millis(line.delay_ms.into()),
    }))
}

fn order() -> Target {
    let mut checks: Vec<Check> = Vec::new();
    let paths = |index: usize| format!("{} paths", index + 2);
    let of = |order, index: usize| {
        let case = (index + 2).to_string();
        move |runs: &Runs| testbed::value(runs, &cell_name(order), &case, events)
    };
    for (index, most) in OSIA_MAX.into_iter().enumerate() {
        checks.push(Check::statement(
            format!("OSIA with even faucets, {}: events", paths(index)),
            "",
            Range::at_most(most),
            "what the corrected equations gave in another program with even faucets: 0, 0 and 123, which are the limits",
            Box::new(of(Order::Osia, index)),
        ));
    }
    for index in 0..3 {
        checks.push(Check::statement(
            format!("earliest arrival, {}: events", paths(index)),
            "",
            Range::at_most(0.0),
            "the least predicted arrival never falls for packets of one length, so none overtakes another",
            Box::new(of(Order::EarliestArrival, index)),
        ));
    }
    for (order, known) in [
        (Order::RoundRobin, ROUND_ROBIN),
        (Order::Weighted, WEIGHTED),
    ] {
        for (index, known) in known.into_iter().enumerate() {
            checks.push(Check::statement(
                format!("{}, {}: events", testbed::title(order), paths(index)),
                "",
                Range::new(known * 0.95, known * 1.05),
                "the count of another program with the same definition, 5 % for the ends of the transfer",
                Box::new(of(order, index)),
            ));
        }
    }
    for (index, most) in OSIA_MAX.into_iter().enumerate() {
        let case = (index + 2).to_string();
        let measure = move |runs: &Runs| {
            let cell = cell_name(Order::RoundRobin);
            testbed::value(runs, &cell, &case, goodput)
        };
        checks.push(Check::statement(
            format!("round robin, {}: goodput", paths(index)),
            "Mbit/s",
            Range::new(1.9, 3.1),
            "the goodputs of another program, 1.98 to 2.96 Mbit/s, and 5 %",
            Box::new(measure),
        ));
        checks.push(
            Check::statement(
                format!(
                    "OSIA as published (faucets that draw lots), {}: events",
                    paths(index)
                ),
                "",
                Range::at_most(most),
                "the same limits, for comparison",
                Box::new(of(Order::OsiaRandom, index)),
            )
            .beside(),
        );
    }
    for index in 0..3 {
        let case = (index + 2).to_string();
        checks.push(Check::statement(
            format!("OSIA with even faucets, {}: goodput", paths(index)),
            "Mbit/s",
            Range::at_least(3.9),
            "4 Mbit/s in all, for 4 s, less the time until the first packets arrive",
            Box::new(move |runs| testbed::value(runs, &cell_name(Order::Osia), &case, goodput)),
        ));
    }
    Target {
        id: "R-OS-5",
        what: "corrected and with even faucets, OSIA delivers in order over lines that are as told: events over two paths",
        checks,
        cells: ORDERS.map(cell_name).to_vec(),
        order: &[],
        source: Source::Ours,
        known: "",
    }
}

/// Returns the target for theorem 2: the RTTs of table 1 make no retransmission timer expire.
fn timers() -> Target {
    let mut checks: Vec<Check> = Vec::new();
    for paths in 2..=4_usize {
        checks.push(Check::statement(
            format!(
                "{paths} paths: largest excess of a round trip over the mean, in mean deviations"
            ),
            "",
            Range::below(4.0),
            "theorem 2: below K, which is 4 in TCP (RFC 6298)",
            Box::new(move |runs| Some(plan(runs, paths - 1)?.timer_factor(Bytes::new(1_000)))),
        ));
    }
    Target {
        id: "R-OS-6",
        what: "theorem 2 over table 1: no timer goes off for the spread of round trips; two paths",
        checks,
        cells: vec![cell_name(Order::Osia)],
        order: &[],
        source: Source::Derived,
        known: "",
    }
}

fn draw(runs: &Runs) -> Option<Chart> {
    let lines = ORDERS.iter().filter_map(|&order| {
        let values = testbed::values(runs, &cell_name(order), events)?;
        Some(testbed::line(order, values))
    });
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then(|| Chart {
        label: "events by number of paths".to_owned(),
        unit: "events".to_owned(),
        across: Some((
            "paths".to_owned(),
            (1..=4).map(|paths| paths.to_string()).collect(),
        )),
        lines,
        ..Chart::default()
    })
}
