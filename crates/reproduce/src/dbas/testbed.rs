//! Common settings of the experiments: table I, the schedulers, evaluating and drawing sweeps.
//!
//! The paper leaves the following open; these values are chosen here:
//!
//! - *Throughput*: the paper does not define which bytes are divided by which time. 13 connections of 22.38 KB and
//!   one of 0.285 MB per second demand 4.6 Mbit/s, more than any two interfaces carry. So connections are opened for
//!   60 s, and throughput is the sum of their bytes divided by the time until the last one is done
//!   ([`Reading::UntilDone`]). Other definitions are measured as well. KB is 1000 bytes.
//! - *Sizes* and *estimates*: only mean sizes are given, and the quality of the estimates is not stated. So
//!   everything runs twice. In the condition *told*, all sizes equal their mean, and the proxy is told rates and
//!   demands. In the condition *learned*, sizes are exponential, and the proxy begins without knowledge and has only
//!   its own estimators. The schedulers of chunks are told the rates in both conditions, because two cooperating ends
//!   can measure them.
//! - *Interface 2* has a nominal rate of "1, 2": 1 Mbit/s for figures 4 and 5, because the text speaks of slow
//!   interfaces, and 2 Mbit/s for figure 6, which states this rate.
//! - *RTT*: not given; 50 ms.
//! - Figure 6: "a single long-lived connection … coupled with several short-lived connections (β_large = 0.25)".
//!   There are no small connections here, because 13 of them per second would fill an interface by themselves. The
//!   long one never ends, so throughput is the bytes that arrive within the 60 s.

use pleach_sim::{report::Chart, report::ChartLine, results::FlowResult};

use super::model::{Choice, Reading};
use crate::{
    experiment::{Cell, Check, Draw, Kind, Panel, Range},
    runs::Runs,
};

/// Schedulers of whole connections, as in figures (a).
pub const CONNECTIONS: [Choice; 4] = [
    Choice::OnlyFirst,
    Choice::RoundRobin,
    Choice::WeightedRoundRobin,
    Choice::MaxThroughput,
];
/// Schedulers of chunks, and the single interface for comparison, as in figures (b).
pub const CHUNKS: [Choice; 3] = [
    Choice::OnlyFirst,
    Choice::ChunksRoundRobin,
    Choice::ChunksWeightedRoundRobin,
];
/// All schedulers that run.
pub const CHOICES: [Choice; 8] = [
    Choice::Optimal,
    Choice::OnlyFirst,
    Choice::OnlyLast,
    Choice::RoundRobin,
    Choice::WeightedRoundRobin,
    Choice::MaxThroughput,
    Choice::ChunksRoundRobin,
    Choice::ChunksWeightedRoundRobin,
];
/// Both conditions.
pub const CONDITIONS: [Conditions; 2] = [Conditions::Told, Conditions::Learned];

/// How much the schedulers know about rates and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// Exact rates and sizes, which do not vary.
    Told,
    /// Estimates of rates and sizes. The sizes vary.
    Learned,
}

impl Conditions {
    /// Returns the name used in names of cells.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Learned => "learned",
        }
    }

    const fn keys(self) -> &'static str {
        match self {
            Self::Told => "sizes = \"fixed\"\n",
            Self::Learned => "sizes = \"exponential\"\nlearns = true\n",
        }
    }
}

/// A sweep: cases that are the points of one axis.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name of its cells, without the experiment's name.
    pub name: &'static str,
    /// Label of the axis.
    pub axis: &'static str,
    /// Points of the axis.
    pub points: Vec<Point>,
    /// Definition of the throughput.
    pub reading: Reading,
}

/// One point of a sweep.
#[derive(Clone, Debug)]
pub struct Point {
    /// Label of the point on the axis.
    pub name: String,
    /// Mean number of small connections per second.
    pub small_per_s: f64,
    /// Mean number of large connections per second.
    pub large_per_s: f64,
    /// Whether there is a long-lived connection.
    pub long: bool,
    /// Rate of the second interface in kbit/s; the first has 2000.
    pub second_kbps: u32,
    /// Share of packets that the second interface loses.
    pub second_loss: f64,
}

impl Point {
    /// Returns a point with table I's nominal values and the second interface at 1 Mbit/s.
    #[must_use]
    pub fn nominal(name: String) -> Self {
        Self {
            name,
            small_per_s: 13.0,
            large_per_s: 1.0,
            long: false,
            second_kbps: 1000,
            second_loss: 0.0,
        }
    }
}

/// Settings of a cell that experiments vary.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Lines of the file about sizes and learning.
    pub keys: &'static str,
    /// Time in seconds during which connections are opened.
    pub seconds: u32,
    /// Number of runs.
    pub repeat: u32,
}

/// Returns the paper's name of a scheduler.
#[must_use]
pub const fn title(choice: Choice) -> &'static str {
    match choice {
        Choice::Optimal => "optimal",
        Choice::OnlyFirst => "only IF1",
        Choice::OnlyLast => "only IF2",
        Choice::RoundRobin => "CO round robin",
        Choice::WeightedRoundRobin => "CO weighted",
        Choice::MaxThroughput => "CO max throughput",
        Choice::ChunksRoundRobin => "PO round robin",
        Choice::ChunksWeightedRoundRobin => "PO weighted",
    }
}

impl Sweep {
    /// Returns the name of the cell with `choice` under `conditions`.
    #[must_use]
    pub fn cell_name(&self, conditions: Conditions, choice: Choice) -> String {
        format!("{}-{}-{}", self.name, conditions.name(), choice.name())
    }

    /// Returns all cells of the sweep in `experiment`.
    #[must_use]
    pub fn cells(&self, experiment: &'static str) -> Vec<Cell> {
        let cells = CONDITIONS.iter().flat_map(|&conditions| {
            let terms = Terms {
                keys: conditions.keys(),
                seconds: 60,
                repeat: 15,
            };
            CHOICES.map(|choice| {
                let name = self.cell_name(conditions, choice);
                cell(experiment, name, choice, terms, &self.points)
            })
        });
        cells.collect()
    }

    /// Returns the names of all cells of the sweep.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let names = CONDITIONS
            .iter()
            .flat_map(|&conditions| CHOICES.map(|choice| self.cell_name(conditions, choice)));
        names.collect()
    }

    /// Returns the throughput at every point, by the sweep's own definition.
    #[must_use]
    pub fn values(&self, runs: &Runs, conditions: Conditions, choice: Choice) -> Option<Vec<f64>> {
        self.read(runs, conditions, choice, self.reading)
    }

    /// Returns the throughput at every point, by the definition `reading`.
    #[must_use]
    pub fn read(
        &self,
        runs: &Runs,
        conditions: Conditions,
        choice: Choice,
        reading: Reading,
    ) -> Option<Vec<f64>> {
        let cell = self.cell_name(conditions, choice);
        let points = self.points.iter();
        points
            .map(|point| value(runs, &cell, &point.name, reading))
            .collect()
    }

    /// Returns, at every point, the throughput of `choice` divided by the best of `others`.
    #[must_use]
    pub fn over(
        &self,
        runs: &Runs,
        conditions: Conditions,
        choice: Choice,
        others: &[Choice],
    ) -> Option<Vec<f64>> {
        let mine = self.values(runs, conditions, choice)?;
        let others = others
            .iter()
            .map(|&other| self.values(runs, conditions, other));
        let others: Vec<Vec<f64>> = others.collect::<Option<_>>()?;
        let ratios = mine.iter().enumerate().map(|(index, mine)| {
            let values = others.iter().filter_map(|other| other.get(index).copied());
            mine / values.fold(0.0, f64::max)
        });
        Some(ratios.collect())
    }

    /// Returns by how many percent the throughput is below the optimum at the worst point.
    #[must_use]
    pub fn below_optimum(
        &self,
        runs: &Runs,
        conditions: Conditions,
        choice: Choice,
    ) -> Option<f64> {
        let ratios = self.over(runs, conditions, choice, &[Choice::Optimal])?;
        Some((1.0 - least(&ratios)?) * 100.0)
    }

    /// Returns a panel with a line for each of `choices` and for the optimum.
    #[must_use]
    pub fn panel(&self, title: &str, conditions: Conditions, choices: &'static [Choice]) -> Panel {
        let sweep = self.clone();
        Panel {
            title: format!("{title}, {}", conditions.name()),
            draw: Box::new(move |runs| sweep.draw(runs, conditions, choices)),
        }
    }

    fn draw(&self, runs: &Runs, conditions: Conditions, choices: &[Choice]) -> Option<Chart> {
        let line = |&choice: &Choice| {
            Some(ChartLine {
                name: title(choice).to_owned(),
                values: self.values(runs, conditions, choice)?,
                is_ideal: choice == Choice::Optimal,
            })
        };
        let drawn = choices.iter().chain(&[Choice::Optimal]);
        let lines: Vec<ChartLine> = drawn.filter_map(line).collect();
        let names = self.points.iter().map(|point| point.name.clone());
        (!lines.is_empty()).then(|| Chart {
            label: format!("throughput by {}", self.axis),
            unit: "Mbit/s".to_owned(),
            across: Some((self.axis.to_owned(), names.collect())),
            lines,
            ..Chart::default()
        })
    }
}

/// Maximum time in seconds during which connections are opened in namespaces.
const LAB_SECONDS: f64 = 10.0;

/// Returns a cell with `points` and `choice`.
#[must_use]
pub fn cell(
    experiment: &'static str,
    name: String,
    choice: Choice,
    terms: Terms,
    points: &[Point],
) -> Cell {
    let mut toml = format!(
        "name = \"{name}\"\nchoice = \"{}\"\n{}seconds = {}.0\nrepeat = {}\nlab = {{ seconds = {:?}, repeat = 1 }}\nrtt_ms = 50\nsmall = \"22380B\"\nlarge = \"285kB\"\n",
        choice.name(),
        terms.keys,
        terms.seconds,
        terms.repeat,
        f64::from(terms.seconds).min(LAB_SECONDS),
    );
    for point in points {
        toml += &format!(
            "\n[[case]]\nname = \"{}\"\nsmall_per_s = {:?}\nlarge_per_s = {:?}\nlong = {}\n",
            point.name, point.small_per_s, point.large_per_s, point.long
        );
        toml += &format!(
            "link = [{{ rate = \"2Mbit\" }}, {{ rate = \"{}kbit\", loss = {:?} }}]\n",
            point.second_kbps, point.second_loss
        );
    }
    Cell {
        name,
        toml,
        kind: Kind::Workload(experiment),
    }
}

/// Returns the throughput at one point of a cell.
#[must_use]
pub fn value(runs: &Runs, cell: &str, point: &str, reading: Reading) -> Option<f64> {
    let name = reading.flow(point);
    let mut flows = runs.get(cell)?.flows.iter();
    flows
        .find(|flow| flow.name == name)
        .map(|flow: &FlowResult| flow.goodput_mbps)
}

/// Returns the minimum. `None` if `values` is empty.
#[must_use]
pub fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// Returns the maximum. `None` if `values` is empty.
#[must_use]
pub fn largest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

/// Adds a check for each of the two conditions.
pub fn both(
    checks: &mut Vec<Check>,
    (what, unit): (&str, &'static str),
    accepted: Range,
    reason: &'static str,
    measure: fn(&Runs, Conditions) -> Option<f64>,
) {
    for conditions in CONDITIONS {
        checks.push(Check::statement(
            format!("{}: {what}", conditions.name()),
            unit,
            accepted,
            reason,
            Box::new(move |runs| measure(runs, conditions)),
        ));
    }
}

/// Returns a chart of the measured values as one line, beside the published value.
#[must_use]
pub fn bars(
    label: &'static str,
    names: Vec<String>,
    published: f64,
    measure: impl Fn(&Runs) -> Vec<f64> + Send + Sync + 'static,
) -> Draw {
    Box::new(move |runs| {
        let values = measure(runs);
        let known = values.iter().any(|value| value.is_finite());
        known.then(|| Chart {
            label: label.to_owned(),
            unit: "%".to_owned(),
            across: Some(("variant".to_owned(), names.clone())),
            lines: vec![
                ChartLine {
                    name: "published".to_owned(),
                    values: vec![published; names.len()],
                    is_ideal: true,
                },
                ChartLine {
                    name: "measured".to_owned(),
                    values,
                    is_ideal: false,
                },
            ],
            ..Chart::default()
        })
    })
}
