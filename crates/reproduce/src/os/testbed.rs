//! Common settings of the experiments: the schedulers, the conditions, and functions that read results.
//!
//! The paper leaves the following open; these values are chosen here:
//!
//! - *Packets*: the paper has "1 kb" with an MTU of "1 Kbytes". Here a packet has 1000 bytes.
//! - *Losses*: bit errors of 2e-5 on average, which is a loss of 2 % of packets of 1 kbit.
//! - *Cross traffic*: on and off periods of 10 ms to 1 s with a Pareto distribution. The rate is not given. Here it
//!   is 30 % of the line's rate while it is on.
//! - *Rates and delays* are "preset". Here the sender knows the delays and the average rates that cross traffic leaves.
//! - *Flow-level* scheduling is not described. Here the file is divided into eight flows. Each takes the line on
//!   which it would be complete first.
//!
//! With 2 % of loss, the congestion window is so small that it hides the cost of reordering. So everything runs
//! twice. In *exact* conditions there is neither loss nor cross traffic, and every reduction of goodput is due to
//! reordering. In *rough* conditions there are both.

use pleach_sim::{report::ChartLine, results::FlowResult, transfer::Order};

use crate::{
    experiment::{Cell, Kind},
    runs::Runs,
};

/// Schedulers that run. The paper has results of the first four; the last two are shown for comparison.
pub const ORDERS: [Order; 6] = [
    Order::RoundRobin,
    Order::Window,
    Order::Flow,
    PUBLISHED,
    Order::Osia,
    Order::EarliestArrival,
];
/// OSIA as published, where each packet takes a random line of its chunk.
pub const PUBLISHED: Order = Order::OsiaRandom;

/// Cases of table 1. Each line has a rate and a one-way delay in ms.
pub const TABLE_1: [&[(&str, u32)]; 4] = [
    &[("4Mbit", 60)],
    &[("3Mbit", 40), ("1Mbit", 80)],
    &[("2Mbit", 40), ("1.25Mbit", 80), ("0.75Mbit", 60)],
    &[
        ("1.25Mbit", 40),
        ("1Mbit", 20),
        ("1Mbit", 100),
        ("0.75Mbit", 80),
    ],
];

/// Conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// The transport does not react to events, so that only the order counts. No losses, no cross traffic.
    Order,
    /// The transport reacts to events as to losses. No losses, no cross traffic.
    Exact,
    /// The transport reacts to events as to losses. There are losses and cross traffic.
    Rough,
}

impl Conditions {
    /// Returns the name used in names of cells.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Exact => "exact",
            Self::Rough => "rough",
        }
    }

    const fn keys(self) -> &'static str {
        match self {
            Self::Order => "",
            Self::Exact => "reacts = true\n",
            Self::Rough => "reacts = true\nloss = 0.02\ncross = 0.3\nrepeat = 20\n",
        }
    }
}

/// Returns the paper's name of a scheduler.
#[must_use]
pub const fn title(order: Order) -> &'static str {
    match order {
        Order::RoundRobin => "round robin",
        Order::Weighted => "weighted",
        Order::Window => "CWND-aware",
        Order::Flow => "flow-level",
        Order::Osia => "OSIA, even faucets (ours)",
        Order::OsiaRandom => "OSIA",
        Order::EarliestArrival => "earliest arrival (ours)",
    }
}

/// Returns the name of the cell of `experiment` with `order` under `conditions`.
#[must_use]
pub fn cell_name(experiment: &str, conditions: Conditions, order: Order) -> String {
    format!("{experiment}-{}-{}", conditions.name(), order.name())
}

/// Returns a cell that transfers `packets` packets in each of `cases`. A case has a name and lines; a line has a rate
/// and a delay in ms.
#[must_use]
pub fn cell(
    experiment: &'static str,
    conditions: Conditions,
    order: Order,
    packets: u32,
    cases: &[(String, Vec<(String, u32)>)],
) -> Cell {
    let name = cell_name(experiment, conditions, order);
    let mut toml = format!(
        "name = \"{name}\"\npackets = {packets}\npacket = \"1000B\"\norder = \"{}\"\n{}",
        order.name(),
        conditions.keys()
    );
    for (case, lines) in cases {
        toml += &format!("\n[[case]]\nname = \"{case}\"\n");
        for (rate, delay_ms) in lines {
            toml += &format!("[[case.line]]\nrate = \"{rate}\"\ndelay_ms = {delay_ms}\n");
        }
    }
    Cell {
        name,
        toml,
        kind: Kind::Transfer(experiment),
    }
}

/// Returns the cases of table 1, named by their number of paths.
#[must_use]
pub fn table_1() -> Vec<(String, Vec<(String, u32)>)> {
    let cases = TABLE_1.iter().map(|lines| {
        let own = lines.iter().map(|(rate, ms)| ((*rate).to_owned(), *ms));
        (lines.len().to_string(), own.collect())
    });
    cases.collect()
}

/// Returns the number that `read` takes from the result, for each case of a cell.
#[must_use]
pub fn values(runs: &Runs, cell: &str, read: fn(&FlowResult) -> Option<f64>) -> Option<Vec<f64>> {
    runs.get(cell)?.flows.iter().map(read).collect()
}

/// Returns the number that `read` takes from the result, for one case of a cell.
#[must_use]
pub fn value(
    runs: &Runs,
    cell: &str,
    case: &str,
    read: fn(&FlowResult) -> Option<f64>,
) -> Option<f64> {
    let flows = &runs.get(cell)?.flows;
    read(flows.iter().find(|flow| flow.name == case)?)
}

/// Returns the number of events of a flow: third acknowledgements in a row that report the same packet as missing.
#[must_use]
pub const fn events(flow: &FlowResult) -> Option<f64> {
    flow.dup_ack_events
}

/// Returns the goodput of a flow in Mbit/s.
#[must_use]
pub const fn goodput(flow: &FlowResult) -> Option<f64> {
    Some(flow.goodput_mbps)
}

/// Returns a line of a chart.
#[must_use]
pub fn line(order: Order, values: Vec<f64>) -> ChartLine {
    ChartLine {
        name: title(order).to_owned(),
        values,
        is_ideal: false,
    }
}
