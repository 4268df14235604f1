//! From runs to records: what was measured, and whether it counts as the same.

use std::collections::BTreeSet;

use pleach_sim::results::World;
use serde::Serialize;

use crate::{
    experiment::{Cell, Check, Experiment, Kind, Target},
    runs::{Runs, Worlds},
};

/// One target in `results.json`. The first check is the headline; the others are `parts`.
///
/// The names are a contract with other programs: some may be added, none renamed.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Id of the target.
    pub id: String,
    /// Paper it is from.
    pub paper: String,
    /// Experiment it belongs to.
    pub experiment: String,
    /// What was published, in words.
    pub what: String,
    /// The headline's number.
    #[serde(flatten)]
    pub headline: Measured,
    /// Whether all checks hold in every world that ran, and the order; `None` while something is missing.
    pub ok: Option<bool>,
    /// What is missed or missing, one line each.
    pub notes: Vec<String>,
    /// The other checks.
    pub parts: Vec<Part>,
    /// Scenarios it rests on, below `scenarios/`.
    pub scenarios: Vec<String>,
    /// Figures of its experiment in the report.
    pub figures: Vec<String>,
}

/// One number of a record.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its unit.
    pub unit: String,
    /// The published value, if it is a number.
    pub published: Option<f64>,
    /// What the simulator gave.
    pub sim: Option<f64>,
    /// What the lab gave.
    pub lab: Option<f64>,
    /// Least and largest accepted value; `None` is open.
    pub accepted: [Option<f64>; 2],
    /// Why this range.
    pub reason: String,
}

/// A check beside the headline.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// What is measured.
    pub what: String,
    /// The number.
    #[serde(flatten)]
    pub measured: Measured,
    /// Whether it is in range in every world that ran; `None` if none did.
    pub ok: Option<bool>,
}

/// What one check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Something is missing.
    Open,
    /// Outside the range, or out of order.
    Missed,
    /// As published.
    Reproduced,
}

impl From<Option<bool>> for Verdict {
    fn from(ok: Option<bool>) -> Self {
        match ok {
            None => Self::Open,
            Some(false) => Self::Missed,
            Some(true) => Self::Reproduced,
        }
    }
}

/// The record of each target of `experiments` of which something was measured.
#[must_use]
pub fn evaluate(experiments: &[Experiment], worlds: &Worlds) -> Vec<Record> {
    let mut records = Vec::new();
    for experiment in experiments {
        for target in &experiment.targets {
            let record = record(experiment, target, experiments, worlds);
            let values = |m: &Measured| m.sim.is_some() || m.lab.is_some();
            if values(&record.headline) || record.parts.iter().any(|part| values(&part.measured)) {
                records.push(record);
            }
        }
    }
    records
}

fn record(experiment: &Experiment, target: &Target, all: &[Experiment], worlds: &Worlds) -> Record {
    let mut notes = Vec::new();
    let mut checks: Vec<Part> = target
        .checks
        .iter()
        .map(|check| part(check, worlds, &mut notes))
        .collect();
    let mut ok = all_of(checks.iter().map(|check| check.ok));
    for world in [World::Sim, World::Lab] {
        // A world without this target's runs is not judged, nor is the order in it.
        if measure(target, worlds.of(world)).is_some() {
            let (in_order, why) = order(target, all, worlds.of(world));
            notes.extend(why.map(|why| format!("{}: {why}", name(world))));
            ok = all_of([ok, in_order]);
        }
        if world == World::Lab {
            notes.extend(smaller(experiment, target, &worlds.lab));
        }
        for (cell, why) in worlds.of(world).refused() {
            if target.cells.iter().any(|name| name == cell) {
                notes.push(format!("{}: {cell} does not count: {why}", name(world)));
            }
        }
    }
    if ok == Some(false) && !target.known.is_empty() {
        notes.push(target.known.to_owned());
    }
    let headline = (!checks.is_empty()).then(|| checks.remove(0).measured);
    Record {
        id: target.id.to_owned(),
        paper: experiment.paper.to_owned(),
        experiment: experiment.name.to_owned(),
        what: target.what.to_owned(),
        headline: headline.unwrap_or_else(nothing),
        ok,
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

/// Which of the scenarios of `target` ran in the lab, if it does not run all of them there, or not as long.
fn smaller(experiment: &Experiment, target: &Target, runs: &Runs) -> Option<String> {
    let cells = experiment.cells.iter();
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

fn part(check: &Check, worlds: &Worlds, notes: &mut Vec<String>) -> Part {
    let value = |world| (check.measure)(worlds.of(world)).filter(|value| value.is_finite());
    let (sim, lab) = (value(World::Sim), value(World::Lab));
    let mut ok = None;
    for (world, value) in [(World::Sim, sim), (World::Lab, lab)] {
        let Some(value) = value else { continue };
        let inside = check.accepted.accepts(value);
        ok = Some(ok.unwrap_or(true) && inside);
        if !inside {
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
            accepted: [check.accepted.low, check.accepted.high],
            reason: check.reason.to_owned(),
        },
        ok,
    }
}

/// Whether the headline of `target` stands among those of its order as published; what is wrong or missing.
fn order(target: &Target, all: &[Experiment], runs: &Runs) -> (Option<bool>, Option<String>) {
    let Some(mine) = target.order.iter().position(|id| *id == target.id) else {
        return (Some(true), None);
    };
    let Some(value) = measure(target, runs) else {
        return (None, None);
    };
    let find = |id: &str| {
        let mut targets = all.iter().flat_map(|experiment| &experiment.targets);
        targets.find(|target| target.id == id)
    };
    let mut missing = false;
    let mut wrong = Vec::new();
    for (place, id) in target.order.iter().enumerate().filter(|&(p, _)| p != mine) {
        match find(id).and_then(|other| measure(other, runs)) {
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
            "the order of all {} is judged once all ran",
            target.order.len()
        );
        return (None, Some(why));
    }
    (Some(true), None)
}

fn measure(target: &Target, runs: &Runs) -> Option<f64> {
    let check = target.checks.first()?;
    (check.measure)(runs).filter(|value| value.is_finite())
}

/// False if one is, else unknown if one is.
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
        accepted: [None, None],
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests;
