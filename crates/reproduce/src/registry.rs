//! All experiments, and the selection of experiments by name.

use std::fmt::Write as _;

use crate::{calibration, csn, dbas, experiment::Experiment, l3, nat, os, run::expected_seconds};

/// Returns all experiments, ordered by paper, with the variants without calibration.
#[must_use]
pub fn all() -> Vec<Experiment> {
    let mut all = l3::experiments();
    all.extend(csn::experiments());
    all.extend(os::experiments());
    all.extend(dbas::experiments());
    all.extend(nat::experiments());
    calibration::add_variants(&mut all);
    all
}

/// A name that matches no target, paper or experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Requested name.
    pub asked: String,
    /// Similar names, best first.
    pub near: Vec<String>,
}

impl core::fmt::Display for Unknown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "there is no target, paper or experiment {:?}",
            self.asked
        )?;
        if !self.near.is_empty() {
            write!(f, "; did you mean {}", self.near.join(", "))?;
        }
        f.write_str("; `pleach reproduce --list` shows all")
    }
}

impl core::error::Error for Unknown {}

/// Reduces `experiments` to the targets that `asked` names by id, paper or experiment, and to the cells that they
/// need. All targets remain if `asked` is empty. Upper and lower case are not distinguished.
///
/// # Errors
/// Fails with the first name that matches nothing.
pub fn select(experiments: Vec<Experiment>, asked: &[String]) -> Result<Vec<Experiment>, Unknown> {
    let names = names(&experiments);
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    if let Some(unknown) = asked
        .iter()
        .find(|asked| !names.iter().any(|name| same(name, asked)))
    {
        return Err(Unknown {
            asked: unknown.clone(),
            near: near(unknown, &names),
        });
    }
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| same(asked, name));
    let mut chosen = Vec::new();
    for mut experiment in experiments {
        if !is_asked(experiment.paper) && !is_asked(experiment.name) {
            experiment.targets.retain(|target| is_asked(target.id));
        }
        let needed: Vec<&String> = experiment.targets.iter().flat_map(|t| &t.cells).collect();
        experiment.cells.retain(|cell| needed.contains(&&cell.name));
        if !experiment.targets.is_empty() {
            chosen.push(experiment);
        }
    }
    Ok(chosen)
}

/// Returns a list with a line for each experiment (with its duration) and a line for each target.
#[must_use]
pub fn list(experiments: &[Experiment]) -> String {
    let mut out = String::new();
    let width = experiments
        .iter()
        .flat_map(|experiment| experiment.targets.iter().map(|target| target.id.len()))
        .max()
        .unwrap_or(0);
    for experiment in experiments {
        let minutes = |seconds: f64| match seconds {
            short if short < 90.0 => format!("{short:.0} s"),
            long => format!("{:.0} min", long / 60.0),
        };
        let (sim, lab) = expected_seconds(&experiment.cells);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{} ({}; sim about {}, lab {}): {}",
            experiment.name,
            experiment.paper,
            minutes(sim),
            minutes(lab),
            experiment.about
        );
        for target in &experiment.targets {
            let _ = writeln!(out, "  {:<width$}  {}", target.id, target.what);
        }
    }
    out
}

fn names(experiments: &[Experiment]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for experiment in experiments {
        names.extend([experiment.paper, experiment.name].map(str::to_owned));
        names.extend(experiment.targets.iter().map(|target| target.id.to_owned()));
    }
    names.dedup();
    names
}

fn near(asked: &str, names: &[String]) -> Vec<String> {
    let asked = asked.to_ascii_lowercase();
    let likeness = |name: &String| strsim::jaro_winkler(&asked, &name.to_ascii_lowercase());
    let mut near: Vec<&String> = names.iter().filter(|name| likeness(name) > 0.8).collect();
    near.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    near.dedup();
    near.into_iter().take(NEAR_MAX).cloned().collect()
}

const NEAR_MAX: usize = 4;

#[cfg(test)]
mod tests;
