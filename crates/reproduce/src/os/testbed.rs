//! What the experiments share: the schedulers, the conditions, and reading numbers.
//!
//! What the paper leaves open, and what was chosen. *Packets*: "1 kb" with an MTU of "1 Kbytes"; here 1000 bytes.
//! *Losses*: bit errors of 2e-5 on average, which is 2 % of packets of 1 kbit. *Cross traffic*: Pareto periods of 10
//! ms to 1 s; its rate is not given; here 30 % of the line's while it is on. *Rates and delays* are "preset": the
//! sender knows the delays and what is left of the rates on average. *Flow-level*: not described; here eight flows,
//! each where it is through first.
//!
//! 2 % of loss leave a congestion window so small that it hides what an order costs. So everything runs twice: in
//! *exact* conditions, with neither loss nor cross traffic, where all that is lost is lost to disorder; and in
//! *rough* ones, with both.

use pleach_sim::{report::ChartLine, results::FlowResult, transfer::Order};

use crate::{
    experiment::{Cell, Kind},
    runs::Runs,
};

/// Schedulers whose results the paper has, with its own faucets; the last two are ours beside them.
pub const ORDERS: [Order; 6] = [
    Order::RoundRobin,
    Order::Window,
    Order::Flow,
    PUBLISHED,
    Order::Osia,
    Order::EarliestArrival,
];
/// OSIA as published: faucets that draw lots.
pub const PUBLISHED: Order = Order::OsiaRandom;

/// Table 1: (rate, delay in milliseconds).
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

/// What the lines are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// The transport takes nothing for lost: only the order counts.
    Order,
    /// It does; the lines are what the sender is told.
    Exact,
    /// Losses and cross traffic.
    Rough,
}

impl Conditions {
    /// As names of cells have it.
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

/// The paper's name of a scheduler.
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

/// Name of the cell of `experiment` with `order` under `conditions`.
#[must_use]
pub fn cell_name(experiment: &str, conditions: Conditions, order: Order) -> String {
    format!("{experiment}-{}-{}", conditions.name(), order.name())
}

/// A cell: `packets` over each of `cases`, which have names and lines.
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

/// The cases of table 1, named by their number of paths.
#[must_use]
pub fn table_1() -> Vec<(String, Vec<(String, u32)>)> {
    let cases = TABLE_1.iter().map(|lines| {
        let own = lines.iter().map(|(rate, ms)| ((*rate).to_owned(), *ms));
        (lines.len().to_string(), own.collect())
    });
    cases.collect()
}

/// A number of each case of a cell.
#[must_use]
pub fn values(runs: &Runs, cell: &str, read: fn(&FlowResult) -> Option<f64>) -> Option<Vec<f64>> {
    runs.get(cell)?.flows.iter().map(read).collect()
}

/// A number of one case of a cell.
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

/// Events of a flow.
#[must_use]
pub const fn events(flow: &FlowResult) -> Option<f64> {
    flow.dup_ack_events
}

/// Goodput of a flow.
#[must_use]
pub const fn goodput(flow: &FlowResult) -> Option<f64> {
    Some(flow.goodput_mbps)
}

/// A line of a chart.
#[must_use]
pub fn line(order: Order, values: Vec<f64>) -> ChartLine {
    ChartLine {
        name: title(order).to_owned(),
        values,
        is_ideal: false,
    }
}
