//! Connects the command line to the lab.

use std::{fs, path::Path, time::Duration};

use anyhow::Context as _;
use pleach_sim::results::Results;
use serde::Serialize;

use crate::scenarios;

pub(crate) mod crowd;
pub(crate) mod hostile;
pub(crate) mod soak;

/// Runs the scenario file `path` in namespaces over emulated links and writes `results.json` and `report.html` into
/// `out`. With `trace`, each daemon writes its decisions into the directory of its run.
///
/// # Errors
/// A bad scenario, missing rights or tools, or a failed run.
pub(crate) fn run(path: &Path, out: &Path, trace: bool) -> anyhow::Result<()> {
    pleach_lab::netns::prepare()?;
    let scenario = scenarios::load(path)?;
    let options = pleach_lab::Options {
        trace,
        ..pleach_lab::Options::default()
    };
    let results = pleach_lab::run(&scenario, out, &options)?;
    let results = Results {
        command: format!("pleach lab run {} --out {}", path.display(), out.display()),
        ..results
    };
    scenarios::publish(&scenario, &results, out)
}

/// Writes the figures of a measurement to the file `path`.
///
/// # Errors
/// If the file cannot be written.
fn write_json(path: &Path, report: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Reads a duration of a measurement.
fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 1s to 24h, such as 30s".to_owned();
    let time = humantime::parse_duration(text).map_err(|_| expected())?;
    let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
    range.contains(&time).then_some(time).ok_or_else(expected)
}
