//! What an experiment consists of.

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

/// How a number is read off the runs; `None` if they do not have it.
pub type Measure = Box<dyn Fn(&Runs) -> Option<f64> + Send + Sync>;
/// How a plot is made of the runs; `None` if there is nothing to plot.
pub type Draw = Box<dyn Fn(&Runs) -> Option<Chart> + Send + Sync>;

/// Runs that belong together, and what is learnt from them.
pub struct Experiment {
    /// Name on the command line, unique, with the paper's in front: `l3-single-flow`.
    pub name: &'static str,
    /// Short name of the paper: `L3`.
    pub paper: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// What has to run.
    pub cells: Vec<Cell>,
    /// What it is judged by.
    pub targets: Vec<Target>,
    /// The paper's figures.
    pub figures: Vec<Figure>,
}

/// One thing that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name of its files, unique in each world among all experiments.
    pub name: String,
    /// The file's text. It reads no other files.
    pub toml: String,
    /// What kind of file.
    pub kind: Kind,
}

/// What a cell's file describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A [`Scenario`], for both worlds.
    #[default]
    Scenario,
    /// A [`Scenario`] for the lab only, in place of the simulated one of the same name: what kernels of today cannot do or what
    /// would take too long is another there. It runs beside others.
    Played,
    /// A [`Scenario`] for the simulator only.
    Simulated,
    /// A [`Transfer`], for the simulator only; the experiment it belongs to.
    Transfer(&'static str),
    /// A [`Correction`], for the simulator only; the experiment it belongs to.
    Correction(&'static str),
    /// A [`Workload`], for both worlds; the experiment it belongs to.
    Workload(&'static str),
}

/// A published statement.
pub struct Target {
    /// Its id, unique: `R-L3-5`.
    pub id: &'static str,
    /// What it says, in one line.
    pub what: &'static str,
    /// What it is judged by, at least one; the first is the headline.
    pub checks: Vec<Check>,
    /// Names of the cells it needs.
    pub cells: Vec<String>,
    /// Ids of targets in the order of their published headline, largest first, if measured ones have to keep it.
    pub order: &'static [&'static str],
    /// Where its values and ranges come from.
    pub source: Source,
    /// What is known of why it is missed where it is; empty: nothing beyond the numbers.
    pub known: &'static str,
}

/// One number of a target.
pub struct Check {
    /// What is measured.
    pub what: String,
    /// Its unit; empty for a pure number.
    pub unit: &'static str,
    /// The published value, if it is a number.
    pub published: Option<f64>,
    /// What counts as the same.
    pub accepted: Range,
    /// Why this range.
    pub reason: &'static str,
    /// Whether it decides the verdict.
    pub role: Role,
    /// How it is read off the runs.
    pub measure: Measure,
}

/// Where the statement of a target comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// It follows from the paper's equations; the paper does not print it.
    Derived,
    /// Arithmetic of what the scenario was given, or of what was fitted: it shows consistency and is no result.
    Input,
    /// This program's own aim or comparison.
    Ours,
    /// It stands in the paper.
    Published,
}

impl Source {
    /// In one word.
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

/// What a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Shown beside the others: an input, a value that was calibrated, or something of ours.
    Beside,
    /// It decides the verdict.
    Judged,
    /// What a judged check gives without the [`Calibration`](crate::Calibration) of this id; it decides nothing.
    Without(&'static str),
}

impl Check {
    /// One of a statement without a number.
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

    /// The same check, which decides nothing.
    #[must_use]
    pub fn beside(self) -> Self {
        Self {
            role: Role::Beside,
            ..self
        }
    }
}

/// A closed range; a side that is missing is open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Least accepted value.
    pub low: Option<f64>,
    /// Largest accepted value.
    pub high: Option<f64>,
}

/// One of the paper's figures.
pub struct Figure {
    /// What the paper calls it, in lower case without blanks: `figure-3`.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// What is to be seen.
    pub caption: &'static str,
    /// Its plots.
    pub panels: Vec<Panel>,
}

/// One plot.
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// How it is made.
    pub draw: Draw,
}

impl Range {
    /// From `low` to `high`.
    #[must_use]
    pub const fn new(low: f64, high: f64) -> Self {
        Self {
            low: Some(low),
            high: Some(high),
        }
    }

    /// At least `low`.
    #[must_use]
    pub const fn at_least(low: f64) -> Self {
        Self {
            low: Some(low),
            high: None,
        }
    }

    /// At most `high`.
    #[must_use]
    pub const fn at_most(high: f64) -> Self {
        Self {
            low: None,
            high: Some(high),
        }
    }

    /// More than `low`.
    #[must_use]
    pub const fn above(low: f64) -> Self {
        Self::at_least(low.next_up())
    }

    /// Less than `high`.
    #[must_use]
    pub const fn below(high: f64) -> Self {
        Self::at_most(high.next_down())
    }

    /// From `value / factor` to `value * factor`.
    #[must_use]
    pub fn within_factor(value: f64, factor: f64) -> Self {
        Self::new(value / factor, value * factor)
    }

    /// Whether `value` is inside; NaN is not.
    #[must_use]
    pub fn accepts(&self, value: f64) -> bool {
        self.low.is_none_or(|low| value >= low)
            && self.high.is_none_or(|high| value <= high)
            && !value.is_nan()
    }
}

impl Cell {
    /// The scenario.
    ///
    /// # Errors
    /// The first mistake in its text.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let name = format!("{}.toml", self.name);
        Scenario::parse_alone(&name, &self.toml)
    }

    /// The transfer.
    ///
    /// # Errors
    /// The first mistake in its text.
    pub fn transfer(&self) -> anyhow::Result<Transfer> {
        Transfer::parse(&self.toml).with_context(|| format!("transfer `{}`", self.name))
    }

    /// The workload.
    ///
    /// # Errors
    /// The first mistake in its text.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        Workload::parse(&self.toml).with_context(|| format!("workload `{}`", self.name))
    }

    /// The packets to damage and mend.
    ///
    /// # Errors
    /// The first mistake in its text.
    pub fn correction(&self) -> anyhow::Result<Correction> {
        Correction::parse(&self.toml).with_context(|| format!("correction `{}`", self.name))
    }

    /// The same cell with its seed raised by `more`, if it is a scenario or transfer; `None` for others, whose runs are
    /// repeated with several seeds by themselves.
    #[must_use]
    pub fn seeded(&self, more: u64) -> Option<Self> {
        let (seed, step) = match self.kind {
            Kind::Played | Kind::Scenario | Kind::Simulated => (self.scenario().ok()?.seed, 1),
            Kind::Transfer(_) => {
                let transfer = self.transfer().ok()?;
                (transfer.seed, u64::from(transfer.repeat))
            }
            Kind::Correction(_) | Kind::Workload(_) => return None,
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

    /// Whether it is another cell without a calibrated value ([`CALIBRATIONS`](crate::CALIBRATIONS)).
    #[must_use]
    pub fn is_variant(&self) -> bool {
        self.name.contains(VARIANT)
    }

    /// How long the scenario lasts; zero if it has a mistake, or is none.
    #[must_use]
    pub fn duration(&self) -> Duration {
        match self.kind {
            Kind::Played | Kind::Scenario | Kind::Simulated => self
                .scenario()
                .map_or(Duration::ZERO, |scenario| scenario.duration),
            Kind::Correction(_) | Kind::Transfer(_) | Kind::Workload(_) => Duration::ZERO,
        }
    }

    /// Whether it can run in `world`.
    #[must_use]
    pub fn runs_in(&self, world: World) -> bool {
        match self.kind {
            Kind::Scenario | Kind::Workload(_) => true,
            Kind::Played => world == World::Lab,
            Kind::Correction(_) | Kind::Simulated | Kind::Transfer(_) => world == World::Sim,
        }
    }
}

/// The cells of `experiments` that run in `world`, by name.
pub(crate) fn cells_by_name(experiments: &[Experiment], world: World) -> BTreeMap<&str, &Cell> {
    let cells = experiments.iter().flat_map(|experiment| &experiment.cells);
    let cells = cells.filter(|cell| cell.runs_in(world));
    cells.map(|cell| (cell.name.as_str(), cell)).collect()
}
