//! The parts of an experiment: cells (files that run), targets with checks, and figures.

use core::time::Duration;
use std::collections::BTreeMap;

use anyhow::Context as _;
use pleach_sim::{
    report::Chart,
    results::World,
    scenario::{Scenario, ScenarioError},
    transfer::Transfer,
};
use serde::{Deserialize, Serialize};

use crate::{calibration::VARIANT, csn::correction::Correction, dbas::model::Workload, runs::Runs};

/// Function that computes a number from the runs. `None` if a run that it needs is missing.
pub type Measure = Box<dyn Fn(&Runs) -> Option<f64> + Send + Sync>;
/// Function that makes a plot from the runs. `None` if there is nothing to plot.
pub type Draw = Box<dyn Fn(&Runs) -> Option<Chart> + Send + Sync>;

/// Runs that belong together, with the targets and figures that depend on them.
pub struct Experiment {
    /// Name on the command line, unique, which begins with the paper's name: `l3-single-flow`.
    pub name: &'static str,
    /// Short name of the paper: `L3`.
    pub paper: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// The cells that the experiment runs.
    pub cells: Vec<Cell>,
    /// The published statements that are checked.
    pub targets: Vec<Target>,
    /// The paper's figures.
    pub figures: Vec<Figure>,
}

/// One unit that runs: a scenario, a transfer, a workload or a correction, as the text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name of the cell's files, unique in each world among all experiments.
    pub name: String,
    /// Text of the file. The file refers to no other files.
    pub toml: String,
    /// Kind of the file.
    pub kind: Kind,
}

/// Kind of a cell's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A [`Scenario`], for both worlds.
    #[default]
    Scenario,
    /// A [`Scenario`] for the lab only. It replaces the simulated scenario with the same name and differs from it in
    /// settings that present kernels do not have or that would take too long. It runs at the same time as others.
    Played,
    /// A [`Scenario`] for the simulator only.
    Simulated,
    /// A [`Transfer`], for the simulator only, with the name of its experiment.
    Transfer(&'static str),
    /// A [`Correction`], for the simulator only, with the name of its experiment.
    Correction(&'static str),
    /// A [`Workload`], for both worlds, with the name of its experiment.
    Workload(&'static str),
    /// A [`Workload`] for the simulator only, with the name of its experiment.
    Modelled(&'static str),
}

/// A published statement.
pub struct Target {
    /// Id, unique: `R-L3-5`.
    pub id: &'static str,
    /// The statement, in one line.
    pub what: &'static str,
    /// The checks that judge the statement, at least one. The first is the headline.
    pub checks: Vec<Check>,
    /// Names of the cells that the checks need.
    pub cells: Vec<String>,
    /// Ids of targets, sorted by their published headline, largest first. The measured headlines must have the same
    /// order. Empty if no order was published.
    pub order: &'static [&'static str],
    /// Origin of the values and ranges.
    pub source: Source,
    /// Known cause of a missed verdict. Empty if no cause is known.
    pub known: &'static str,
}

/// One measured number of a target.
pub struct Check {
    /// The measured quantity, in words.
    pub what: String,
    /// Unit of the number; empty for a pure number.
    pub unit: &'static str,
    /// The published value, if it is a number.
    pub published: Option<f64>,
    /// Values that count as equal to the published value.
    pub accepted: Range,
    /// Reason for the range.
    pub reason: &'static str,
    /// Whether the check decides the verdict.
    pub role: Role,
    /// Function that computes the number from the runs.
    pub measure: Measure,
}

/// Origin of the statement of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The statement follows from the paper's equations; the paper does not print it.
    Derived,
    /// The statement follows by arithmetic from inputs of the scenario or from fitted values. It shows consistency
    /// and is not a result.
    Input,
    /// The statement is an aim or comparison of this project.
    Ours,
    /// The paper contains the statement.
    Published,
}

impl Source {
    /// Returns the origin in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Derived => "derived",
            Self::Input => "input",
            Self::Ours => "ours",
            Self::Published => "published",
        }
    }
}

/// Purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The check is shown for comparison and does not decide the verdict: an input, a calibrated value, or a value of
    /// this project.
    Beside,
    /// The check decides the verdict.
    Judged,
    /// The check repeats a judged check with the replacement of a calibrated value ([`Without`](crate::Without)) with
    /// this id. It does not decide the verdict.
    Without(&'static str),
}

impl Check {
    /// Returns a judged check of a statement for which the paper has no number.
    #[must_use]
    pub fn statement(
        what: String,
        unit: &'static str,
        accepted: Range,
        reason: &'static str,
        measure: Measure,
    ) -> Self {
        Self {
            what,
            unit,
            published: None,
            accepted,
            reason,
            role: Role::Judged,
            measure,
        }
    }

    /// Returns the check with the role [`Role::Beside`], so that it does not decide the verdict.
    #[must_use]
    pub fn beside(self) -> Self {
        Self {
            role: Role::Beside,
            ..self
        }
    }
}

/// A closed range of accepted values. A side that is `None` has no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Smallest accepted value.
    pub low: Option<f64>,
    /// Largest accepted value.
    pub high: Option<f64>,
}

/// One of the paper's figures.
pub struct Figure {
    /// The paper's name of the figure, in lower case without blanks: `figure-3`.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Caption.
    pub caption: &'static str,
    /// The plots of the figure.
    pub panels: Vec<Panel>,
}

/// One plot.
pub struct Panel {
    /// Title of the plot.
    pub title: String,
    /// Function that makes the plot.
    pub draw: Draw,
}

impl Range {
    /// Returns the range from `low` to `high`.
    #[must_use]
    pub const fn new(low: f64, high: f64) -> Self {
        Self {
            low: Some(low),
            high: Some(high),
        }
    }

    /// Returns the range of all values of at least `low`.
    #[must_use]
    pub const fn at_least(low: f64) -> Self {
        Self {
            low: Some(low),
            high: None,
        }
    }

    /// Returns the range of all values of at most `high`.
    #[must_use]
    pub const fn at_most(high: f64) -> Self {
        Self {
            low: None,
            high: Some(high),
        }
    }

    /// Returns the range of all values above `low`.
    #[must_use]
    pub const fn above(low: f64) -> Self {
        Self::at_least(low.next_up())
    }

    /// Returns the range of all values below `high`.
    #[must_use]
    pub const fn below(high: f64) -> Self {
        Self::at_most(high.next_down())
    }

    /// Returns the range from `value / factor` to `value * factor`.
    #[must_use]
    pub fn within_factor(value: f64, factor: f64) -> Self {
        Self::new(value / factor, value * factor)
    }

    /// Whether `value` is in the range. NaN is in no range that has a limit.
    #[must_use]
    pub fn accepts(&self, value: f64) -> bool {
        self.low.is_none_or(|low| value >= low)
            && self.high.is_none_or(|high| value <= high)
            && !value.is_nan()
    }
}

impl Cell {
    /// Parses the text as a scenario.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let name = format!("{}.toml", self.name);
        Scenario::parse_alone(&name, &self.toml)
    }

    /// Parses the text as a transfer.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn transfer(&self) -> anyhow::Result<Transfer> {
        Transfer::parse(&self.toml).with_context(|| format!("transfer `{}`", self.name))
    }

    /// Parses the text as a workload.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        Workload::parse(&self.toml).with_context(|| format!("workload `{}`", self.name))
    }

    /// Parses the text as an experiment with error correction.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn correction(&self) -> anyhow::Result<Correction> {
        Correction::parse(&self.toml).with_context(|| format!("correction `{}`", self.name))
    }

    /// Returns the cell with the seed for repetition `more`: in a scenario, the seed is increased by `more`; in a
    /// transfer, by `more` times the number of runs of each case. `None` for the other kinds, which repeat their runs
    /// with several seeds by themselves.
    #[must_use]
    pub fn seeded(&self, more: u64) -> Option<Self> {
        let (seed, step) = match self.kind {
            Kind::Played | Kind::Scenario | Kind::Simulated => (self.scenario().ok()?.seed, 1),
            Kind::Transfer(_) => {
                let transfer = self.transfer().ok()?;
                (transfer.seed, u64::from(transfer.repeat))
            }
            Kind::Correction(_) | Kind::Modelled(_) | Kind::Workload(_) => return None,
        };
        let rest = self
            .toml
            .lines()
            .filter(|line| !line.starts_with("seed = "));
        let seed = seed.wrapping_add(more.wrapping_mul(step));
        let lines: Vec<&str> = rest.collect();
        Some(Self {
            toml: format!("seed = {seed}\n{}\n", lines.join("\n")),
            ..self.clone()
        })
    }

    /// Whether the cell is a variant: a copy of another cell without a calibrated value
    /// ([`CALIBRATIONS`](crate::CALIBRATIONS)).
    #[must_use]
    pub fn is_variant(&self) -> bool {
        self.name.contains(VARIANT)
    }

    /// Returns the duration of the scenario. Zero if the text has an error, or the cell is not a scenario.
    #[must_use]
    pub fn duration(&self) -> Duration {
        match self.kind {
            Kind::Played | Kind::Scenario | Kind::Simulated => self
                .scenario()
                .map_or(Duration::ZERO, |scenario| scenario.duration),
            Kind::Correction(_) | Kind::Modelled(_) | Kind::Transfer(_) | Kind::Workload(_) => {
                Duration::ZERO
            }
        }
    }

    /// Whether the cell can run in `world`.
    #[must_use]
    pub fn runs_in(&self, world: World) -> bool {
        match self.kind {
            Kind::Scenario | Kind::Workload(_) => true,
            Kind::Played => world == World::Lab,
            Kind::Correction(_) | Kind::Modelled(_) | Kind::Simulated | Kind::Transfer(_) => {
                world == World::Sim
            }
        }
    }
}

/// Returns the cells of `experiments` that run in `world`, by name.
pub(crate) fn cells_by_name(experiments: &[Experiment], world: World) -> BTreeMap<&str, &Cell> {
    let cells = experiments.iter().flat_map(|experiment| &experiment.cells);
    let cells = cells.filter(|cell| cell.runs_in(world));
    cells.map(|cell| (cell.name.as_str(), cell)).collect()
}
