//! Results that are stored ("kept") in the repository: the values of each target, with the commit, date and machine
//! of the measurement.
//!
//! A directory has one file for each world, `sim.json` and `lab.json`. [`keep`] replaces the results of the given
//! targets and leaves the results of the others unchanged, so that a long series can be measured in parts. Each
//! target records the commit and build that measured it. The published order of targets is judged only among results
//! of the same build.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::Path};

use anyhow::Context as _;
use pleach_sim::results::World;
use serde::{Deserialize, Serialize};

use crate::{
    evaluate::{Values, name},
    experiment::{Experiment, Target},
    runs::Worlds,
};

/// Origin of a measurement: program, date and machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The commit of the program, with `-dirty` if files had changed.
    pub commit: String,
    /// The date, in the form `2026-11-29`.
    pub date: String,
    /// The machine in one line: processor, cores, kernel.
    pub machine: String,
    /// The version of the program, with its build.
    pub version: String,
}

/// Stored results of one world, by the id of the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeptWorld(BTreeMap<String, KeptTarget>);

/// Stored results of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptTarget {
    /// Origin of the measurement.
    pub origin: Origin,
    /// The values of each check, one for each seed. The key is [`Check::what`](crate::Check::what).
    pub values: BTreeMap<String, Vec<f64>>,
    /// Notes on the runs, for example refused or shorter runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Stored results of both worlds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    sim: KeptWorld,
    lab: KeptWorld,
}

impl Kept {
    /// Reads the results in `directory`. A missing file counts as empty.
    ///
    /// # Errors
    /// Fails if a file cannot be read or parsed.
    pub fn read(directory: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            sim: read(directory, World::Sim)?,
            lab: read(directory, World::Lab)?,
        })
    }

    /// Returns the stored results of the target `id` in `world`.
    #[must_use]
    pub fn target(&self, id: &str, world: World) -> Option<&KeptTarget> {
        let kept = match world {
            World::Lab => &self.lab,
            World::Sim => &self.sim,
        };
        kept.0.get(id)
    }
}

impl Values for Kept {
    fn of(&self, target: &Target, index: usize, world: World) -> Vec<f64> {
        let check = target.checks.get(index);
        let kept = self.target(target.id, world).zip(check);
        let values = kept.and_then(|(kept, check)| kept.values.get(&check.what));
        let finite = values.into_iter().flatten().copied();
        finite.filter(|value| value.is_finite()).collect()
    }

    fn notes(&self, _: &Experiment, target: &Target, world: World) -> Vec<String> {
        let kept = self.target(target.id, world);
        kept.map_or_else(Vec::new, |kept| kept.notes.clone())
    }

    fn refused(&self, _: &Target, _: World) -> Vec<String> {
        // `keep` stored the refused runs among the notes.
        Vec::new()
    }

    fn is_same_build(&self, one: &Target, other: &Target, world: World) -> bool {
        let of = |target: &Target| Some(&self.target(target.id, world)?.origin.version);
        of(one) == of(other)
    }
}

/// Stores in `directory` the results of the targets of `experiments` that `worlds` has in `world`. `origin` is the
/// origin of the measurement. Returns the number of targets stored.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub fn keep(
    directory: &Path,
    experiments: &[Experiment],
    worlds: &Worlds,
    world: World,
    origin: &Origin,
) -> anyhow::Result<usize> {
    let mut kept = read(directory, world)?;
    let mut count = 0;
    for experiment in experiments {
        for target in &experiment.targets {
            let values: BTreeMap<String, Vec<f64>> = (0..target.checks.len())
                .map(|index| {
                    let what = target.checks[index].what.clone();
                    (what, Values::of(worlds, target, index, world))
                })
                .filter(|(_, values)| !values.is_empty())
                .collect();
            if values.is_empty() {
                continue;
            }
            let mut notes = Values::notes(worlds, experiment, target, world);
            notes.extend(Values::refused(worlds, target, world));
            let target_kept = KeptTarget {
                origin: origin.clone(),
                values,
                notes,
            };
            kept.0.insert(target.id.to_owned(), target_kept);
            count += 1;
        }
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join(format!("{}.json", name(world)));
    let json = serde_json::to_string_pretty(&kept)? + "\n";
    fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(count)
}

fn read(directory: &Path, world: World) -> anyhow::Result<KeptWorld> {
    let path = directory.join(format!("{}.json", name(world)));
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(KeptWorld::default()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} holds no kept results; remedy: remove it, and measure again with --keep",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use pleach_sim::results::{FlowResult, Results};

    use super::*;
    use crate::{evaluate::evaluate, registry, select};

    fn origin(commit: &str) -> Origin {
        Origin {
            commit: commit.to_owned(),
            date: "2026-11-29".to_owned(),
            machine: "a machine".to_owned(),
            version: format!("0.1.0 (build {commit})"),
        }
    }

    fn lost(percent: f64) -> Worlds {
        let udp = FlowResult {
            name: "udp".to_owned(),
            loss: percent / 100.0,
            sent_pkts: Some(1),
            ..FlowResult::default()
        };
        let results = Results {
            flows: vec![udp],
            ..Results::default()
        };
        let mut worlds = Worlds::default();
        for cell in ["l3-single-flow-k05-dwd250", "l3-single-flow-k01-dwd50"] {
            worlds.sim.insert(cell, results.clone());
        }
        worlds
    }

    #[test]
    fn what_is_kept_is_judged_as_it_was_and_parts_are_replaced_one_by_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let all = registry::all();
        assert_eq!(Kept::read(dir.path()).expect("empty"), Kept::default());
        keep(dir.path(), &all, &lost(0.5), World::Sim, &origin("one")).expect("written");
        let one = select(registry::all(), &["R-L3-5".to_owned()]).expect("known");
        keep(dir.path(), &one, &lost(0.6), World::Sim, &origin("two")).expect("written");
        let kept = Kept::read(dir.path()).expect("read");
        let of = |id| kept.target(id, World::Sim).expect(id).origin.commit.clone();
        assert_eq!(
            (of("R-L3-5"), of("R-L3-1")),
            ("two".to_owned(), "one".to_owned())
        );
        let records = evaluate(&all, &kept);
        let record = records.iter().find(|record| record.id == "R-L3-5");
        let sim = record.and_then(|record| record.headline.sim).expect("kept");
        assert!((sim - 0.6).abs() < 1e-9);
        // The order of R-L3-5 is not judged, because the other targets of the order were measured by another build.
        let sim = record.and_then(|record| record.sim_verdict);
        assert_eq!(sim, Some(crate::Verdict::Incomplete));
        fs::write(dir.path().join("lab.json"), "[1]").expect("writable");
        let error = Kept::read(dir.path()).expect_err("something else");
        assert!(format!("{error:#}").contains("lab.json"), "{error:#}");
    }
}
