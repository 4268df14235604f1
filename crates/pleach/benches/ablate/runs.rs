//! Simulated runs, and their figures, which are stored on disk.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use pleach_sim::bonds::Case;

use crate::{rule::Rule, simulate, workload::Workload};

/// A run: the scenario to simulate, and the traffic that determines its figure.
#[derive(Clone, Debug)]
pub(crate) struct Job<'a> {
    case: &'a Case,
    workload: Workload,
    text: String,
}

impl<'a> Job<'a> {
    /// Returns the run through the tunnel without `rule`.
    pub(crate) fn bonded(
        case: &'a Case,
        workload: Workload,
        rule: Option<&Rule>,
        run: u32,
    ) -> Self {
        Self {
            case,
            workload,
            text: workload.bonded(case, rule, run),
        }
    }

    /// Returns the runs over each link alone.
    pub(crate) fn singles(case: &'a Case, workload: Workload, run: u32) -> Vec<Self> {
        let texts = workload.singles(case, run);
        texts
            .map(|text| Self {
                case,
                workload,
                text,
            })
            .collect()
    }
}

/// The figures of all runs that have been simulated.
#[derive(Debug)]
pub(crate) struct Runs {
    engine: u64,
    known: Mutex<BTreeMap<u64, Option<f64>>>,
    file: Mutex<File>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    key: u64,
    /// Figure of the run; `None` if the tunnel did not come up, or if the figure is missing.
    figure: Option<f64>,
}

impl Runs {
    /// Reads the file at `path`. Lines of other versions of the engine are ignored.
    ///
    /// # Errors
    /// If the file or the engine's sources cannot be read.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let known = lines.map(|line: Line| (line.key, line.figure)).collect();
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self {
            engine: engine()?,
            known: Mutex::new(known),
            file: Mutex::new(file.with_context(|| format!("cannot write {}", path.display()))?),
        })
    }

    /// Simulates all of `jobs` that have no figure yet, on all cores.
    ///
    /// # Errors
    /// If a scenario is malformed, or if a figure cannot be stored.
    pub(crate) fn all(&self, jobs: &[Job<'_>], what: &'static str) -> anyhow::Result<()> {
        let mut missing: BTreeMap<u64, &Job<'_>> = BTreeMap::new();
        for job in jobs {
            if self.find(job).is_none() {
                missing.insert(self.key(job), job);
            }
        }
        let bar = ProgressBar::new(u64::try_from(missing.len()).unwrap_or(u64::MAX));
        bar.set_message(what);
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}, {eta} left")
        {
            bar.set_style(style);
        }
        let missing: Vec<_> = missing.into_iter().collect();
        let done: anyhow::Result<()> = missing
            .par_iter()
            .with_max_len(1)
            .map(|(key, job)| {
                let scenario = simulate::scenario(&job.text)?;
                // Also store that the tunnel does not come up without the mechanism.
                let results = simulate::simulate(&scenario).ok();
                let figure = results.and_then(|results| job.workload.figure(job.case, &results));
                self.keep(*key, figure)?;
                bar.inc(1);
                Ok(())
            })
            .collect();
        bar.finish_and_clear();
        done
    }

    /// Returns the figure of `job`: `None` if the job has not run, `Some(None)` if the run gave no figure.
    pub(crate) fn find(&self, job: &Job<'_>) -> Option<Option<f64>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&self.key(job)).copied()
    }

    /// Returns the figure of `job`, if there is one.
    pub(crate) fn figure(&self, job: &Job<'_>) -> Option<f64> {
        self.find(job).flatten().filter(|figure| *figure > 0.0)
    }

    fn key(&self, job: &Job<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.engine.hash(&mut hasher);
        job.workload.name().hash(&mut hasher);
        job.text.hash(&mut hasher);
        hasher.finish()
    }

    fn keep(&self, key: u64, figure: Option<f64>) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&Line { key, figure })?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .context("cannot keep a run")?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, figure);
        Ok(())
    }
}

/// Returns a hash of the sources that determine the result of a simulated run.
fn engine() -> anyhow::Result<u64> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = Vec::new();
    for part in ["core/src", "sim/src"] {
        sources(&crates.join(part), &mut paths)?;
    }
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn sources(dir: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
