//! Evaluates measured values: makes a [`Record`] of each target, with the values and a verdict.
//!
//! A target is judged in each world (simulator, lab) in which at least one of its cells can run. The verdict in a
//! world is:
//!
//! - *missed* if the mean of a judged check over all seeds is out of range, or the headlines are not in the published
//!   order;
//! - otherwise *incomplete* if a value is missing, for example because the lab refused a run, or another build of the
//!   program ran it;
//! - otherwise *reproduced*.
//!
//! The verdict of the target is the worst of its verdicts in the worlds.

use std::collections::{BTreeMap, BTreeSet};

use pleach_sim::results::World;
use serde::{Deserialize, Serialize};

use crate::{
    experiment::{Cell, Experiment, Kind, Role, Source, Target},
    runs::{Runs, Worlds},
};

/// One target in `results.json`. The first check is the headline; the others are `parts`.
///
/// Other programs read the keys: keys may be added, but not renamed.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Id of the target.
    pub id: String,
    /// Short name of the paper.
    pub paper: String,
    /// Name of the experiment.
    pub experiment: String,
    /// The published statement, in words.
    pub what: String,
    /// Where the statement comes from.
    pub source: Source,
    /// The values of the headline.
    #[serde(flatten)]
    pub headline: Measured,
    /// Whether the headline decides the verdict.
    pub role: Role,
    /// Whether the target is reproduced in all worlds. `None` if the verdict is incomplete.
    pub ok: Option<bool>,
    /// The verdict over all worlds.
    pub verdict: Verdict,
    /// The verdict in the simulator. `None` if no cell of the target can run there.
    pub sim_verdict: Option<Verdict>,
    /// The verdict in the lab. `None` if no cell of the target can run there.
    pub lab_verdict: Option<Verdict>,
    /// Notes for the reader, one line each: values out of range, missing or refused runs, shorter runs, known causes.
    pub notes: Vec<String>,
    /// The other checks.
    pub parts: Vec<Part>,
    /// Names of the cells that the target needs.
    pub scenarios: Vec<String>,
    /// Ids of the figures of the target's experiment in the report.
    pub figures: Vec<String>,
}

/// Published and measured values of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Unit of the values.
    pub unit: String,
    /// The published value, if it is a number.
    pub published: Option<f64>,
    /// Value in the simulator: the mean over the seeds.
    pub sim: Option<f64>,
    /// Value in the lab: the mean over the runs.
    pub lab: Option<f64>,
    /// Spread of the simulator's values over the seeds.
    pub sim_spread: Option<Spread>,
    /// Spread of the lab's values over the runs.
    pub lab_spread: Option<Spread>,
    /// Smallest and largest accepted value. `None`: no limit on this side.
    pub accepted: [Option<f64>; 2],
    /// Reason for the accepted range.
    pub reason: String,
}

/// Spread of the values of several seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub seeds: usize,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
}

/// Result of a check other than the headline.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// The measured quantity, in words.
    pub what: String,
    /// The values.
    #[serde(flatten)]
    pub measured: Measured,
    /// Whether the check decides the verdict.
    pub role: Role,
    /// Whether the value is in range in every world that has a value. `None` if no world has a value.
    pub ok: Option<bool>,
}

/// Verdict on a target, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A value is out of range, or the headlines are not in the published order.
    Missed,
    /// A value is missing.
    Incomplete,
    /// All values are in range and in the published order.
    Reproduced,
}

impl Verdict {
    /// Returns the verdict in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Missed => "missed",
            Self::Reproduced => "reproduced",
        }
    }

    const fn ok(self) -> Option<bool> {
        match self {
            Self::Incomplete => None,
            Self::Missed => Some(false),
            Self::Reproduced => Some(true),
        }
    }
}

impl From<Option<bool>> for Verdict {
    fn from(ok: Option<bool>) -> Self {
        match ok {
            None => Self::Incomplete,
            Some(false) => Self::Missed,
            Some(true) => Self::Reproduced,
        }
    }
}

/// Source of measured values.
pub trait Values {
    /// Returns the finite values of check `index` of `target` in `world`, one for each seed.
    fn of(&self, target: &Target, index: usize, world: World) -> Vec<f64>;

    /// Returns notes on the runs of `target` in `world`, one line each, for example that runs were shorter.
    fn notes(&self, experiment: &Experiment, target: &Target, world: World) -> Vec<String>;

    /// Returns the runs of `target` in `world` that do not count, with one line for each reason.
    fn refused(&self, target: &Target, world: World) -> Vec<String>;

    /// Whether the same build of the program measured both targets in `world`.
    fn is_same_build(&self, one: &Target, other: &Target, world: World) -> bool;
}

impl Values for Worlds {
    fn of(&self, target: &Target, index: usize, world: World) -> Vec<f64> {
        let Some(check) = target.checks.get(index) else {
            return Vec::new();
        };
        let values = self.seeds(world).filter_map(|runs| (check.measure)(runs));
        values.filter(|value| value.is_finite()).collect()
    }

    fn notes(&self, experiment: &Experiment, target: &Target, world: World) -> Vec<String> {
        match world {
            World::Lab => smaller(experiment, target, &self.lab).into_iter().collect(),
            World::Sim => Vec::new(),
        }
    }

    fn refused(&self, target: &Target, world: World) -> Vec<String> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for runs in self.seeds(world) {
            for (cell, why) in runs.refused() {
                if target.cells.iter().any(|name| name == cell) {
                    reasons.entry(why).or_default().push(cell);
                }
            }
        }
        let line = |(why, cells): (&str, Vec<&str>)| match cells[..] {
            [cell, _, ..] => format!(
                "{}: {cell} and {} more do not count: {why}",
                name(world),
                cells.len() - 1
            ),
            [cell] => format!("{}: {cell} does not count: {why}", name(world)),
            [] => String::new(),
        };
        reasons.into_iter().map(line).collect()
    }

    fn is_same_build(&self, _: &Target, _: &Target, _: World) -> bool {
        // `Directory::read` has already excluded the runs of other builds.
        true
    }
}

/// Returns the record of each target of `experiments` that has a measured value or a refused run.
#[must_use]
pub fn evaluate(experiments: &[Experiment], values: &dyn Values) -> Vec<Record> {
    let mut records = Vec::new();
    for experiment in experiments {
        for target in &experiment.targets {
            let record = record(experiment, target, experiments, values);
            let measured = |m: &Measured| m.sim.is_some() || m.lab.is_some();
            let is_refused = || {
                let mut worlds = [World::Sim, World::Lab].into_iter();
                worlds.any(|world| !values.refused(target, world).is_empty())
            };
            if measured(&record.headline)
                || record.parts.iter().any(|part| measured(&part.measured))
                || is_refused()
            {
                records.push(record);
            }
        }
    }
    records
}

fn record(
    experiment: &Experiment,
    target: &Target,
    all: &[Experiment],
    values: &dyn Values,
) -> Record {
    let mut notes = Vec::new();
    let mut checks: Vec<Part> = (0..target.checks.len())
        .map(|index| part(target, index, values, &mut notes))
        .collect();
    let mut verdict_in = |world| {
        defined(experiment, target, world).then(|| {
            let (verdict, more) = judge(target, all, values, world);
            notes.extend(more);
            notes.extend(values.notes(experiment, target, world));
            notes.extend(values.refused(target, world));
            verdict
        })
    };
    let (sim, lab) = (verdict_in(World::Sim), verdict_in(World::Lab));
    let verdict = sim.into_iter().chain(lab).min();
    let verdict = verdict.unwrap_or(Verdict::Incomplete);
    if verdict == Verdict::Missed && !target.known.is_empty() {
        notes.push(target.known.to_owned());
    }
    let role = checks.first().map_or(Role::Judged, |check| check.role);
    let headline = (!checks.is_empty()).then(|| checks.remove(0).measured);
    Record {
        id: target.id.to_owned(),
        paper: experiment.paper.to_owned(),
        experiment: experiment.name.to_owned(),
        what: target.what.to_owned(),
        source: target.source,
        headline: headline.unwrap_or_else(nothing),
        role,
        ok: verdict.ok(),
        verdict,
        sim_verdict: sim,
        lab_verdict: lab,
        notes,
        parts: checks,
        scenarios: target.cells.clone(),
        figures: experiment
            .figures
            .iter()
            .map(|figure| figure.id.to_owned())
            .collect(),
    }
}

/// Whether a cell of `target` can run in `world`.
fn defined(experiment: &Experiment, target: &Target, world: World) -> bool {
    let mut cells = experiment.cells.iter();
    cells.any(|cell| target.cells.contains(&cell.name) && cell.runs_in(world))
}

/// Returns the verdict in one world, and a note if the published order is violated or cannot be judged.
fn judge(
    target: &Target,
    all: &[Experiment],
    values: &dyn Values,
    world: World,
) -> (Verdict, Option<String>) {
    let judged = (0..target.checks.len()).filter(|&i| target.checks[i].role == Role::Judged);
    let oks = judged.map(|index| {
        let value = mean(&values.of(target, index, world))?;
        Some(target.checks[index].accepted.accepts(value))
    });
    let (in_order, why) = order(target, all, values, world);
    let ok = all_of(oks.chain([in_order]));
    let why = why.map(|why| format!("{}: {why}", name(world)));
    (ok.into(), why)
}

/// Returns a note that lists the scenarios of `target` that ran in the lab, if the lab has scenarios of its own
/// ([`Kind::Played`]), which are fewer or shorter than the simulated ones.
fn smaller(experiment: &Experiment, target: &Target, runs: &Runs) -> Option<String> {
    let cells = experiment.cells.iter().filter(|cell| !cell.is_variant());
    let mine: Vec<&Cell> = cells
        .filter(|cell| target.cells.contains(&cell.name))
        .collect();
    let played = mine.iter().filter(|cell| cell.kind == Kind::Played);
    let ran: Vec<&&Cell> = played
        .filter(|cell| runs.get(&cell.name).is_some())
        .collect();
    if ran.is_empty() {
        return None;
    }
    let seconds = |cells: &mut dyn Iterator<Item = u64>| {
        let all: BTreeSet<u64> = cells.collect();
        let all: Vec<String> = all.iter().map(u64::to_string).collect();
        all.join(", ")
    };
    let simulated = mine.iter().filter(|cell| cell.kind == Kind::Simulated);
    let names: Vec<&str> = ran.iter().map(|cell| cell.name.as_str()).collect();
    Some(format!(
        "lab: of the {} scenarios here {} ran, of {} s in place of {}: {}",
        simulated.clone().count(),
        ran.len(),
        seconds(&mut ran.iter().map(|cell| cell.duration().as_secs())),
        seconds(&mut simulated.map(|cell| cell.duration().as_secs())),
        names.join(", ")
    ))
}

fn part(target: &Target, index: usize, values: &dyn Values, notes: &mut Vec<String>) -> Part {
    let check = &target.checks[index];
    let of = |world| {
        let values = values.of(target, index, world);
        (mean(&values), spread(&values))
    };
    let ((sim, sim_spread), (lab, lab_spread)) = (of(World::Sim), of(World::Lab));
    let mut ok = None;
    for (world, value) in [(World::Sim, sim), (World::Lab, lab)] {
        let Some(value) = value else { continue };
        let inside = check.accepted.accepts(value);
        ok = Some(ok.unwrap_or(true) && inside);
        if !inside && check.role == Role::Judged {
            let unit = check.unit;
            notes.push(format!(
                "{}: {} is {value:.3} {unit}",
                name(world),
                check.what
            ));
        }
    }
    Part {
        what: check.what.clone(),
        measured: Measured {
            unit: check.unit.to_owned(),
            published: check.published,
            sim,
            lab,
            sim_spread,
            lab_spread,
            accepted: [check.accepted.low, check.accepted.high],
            reason: check.reason.to_owned(),
        },
        role: check.role,
        ok,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    crate::series::mean(values).filter(|mean| mean.is_finite())
}

fn spread(values: &[f64]) -> Option<Spread> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some(Spread {
        seeds: values.len(),
        least,
        most,
    })
}

/// Returns whether the headline of `target` is in the published order with the headlines of the targets in
/// [`Target::order`], and a note if not. `None` if a value is missing.
fn order(
    target: &Target,
    all: &[Experiment],
    values: &dyn Values,
    world: World,
) -> (Option<bool>, Option<String>) {
    let Some(mine) = target.order.iter().position(|id| *id == target.id) else {
        return (Some(true), None);
    };
    let headline = |target: &Target| mean(&values.of(target, 0, world));
    let Some(value) = headline(target) else {
        return (None, None);
    };
    let find = |id: &str| {
        let mut targets = all.iter().flat_map(|experiment| &experiment.targets);
        targets.find(|target| target.id == id)
    };
    let mut missing = false;
    let mut wrong = Vec::new();
    for (place, id) in target.order.iter().enumerate().filter(|&(p, _)| p != mine) {
        let other = find(id).filter(|other| values.is_same_build(target, other, world));
        match other.and_then(headline) {
            None => missing = true,
            Some(other) if (place < mine) == (other > value) && other != value => {}
            Some(_) => wrong.push(*id),
        }
    }
    if !wrong.is_empty() {
        let why = format!("not in the published order with {}", wrong.join(", "));
        return (Some(false), Some(why));
    }
    if missing {
        let why = format!(
            "the order of all {} is judged once all ran with the same build of the program",
            target.order.len()
        );
        return (None, Some(why));
    }
    (Some(true), None)
}

/// Returns false if an element is false; otherwise `None` (unknown) if an element is `None`; otherwise true.
fn all_of(oks: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for ok in oks {
        all = match (all, ok) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (None, _) | (_, None) => None,
            (Some(true), Some(true)) => Some(true),
        };
    }
    all
}

pub(crate) fn name(world: World) -> &'static str {
    match world {
        World::Lab => "lab",
        World::Sim => "sim",
    }
}

fn nothing() -> Measured {
    Measured {
        unit: String::new(),
        published: None,
        sim: None,
        lab: None,
        sim_spread: None,
        lab_spread: None,
        accepted: [None, None],
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests;
