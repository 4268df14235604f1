//! Reads scenario files and writes results, for the commands of the lab and the simulator.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use pleach_sim::{
    collect::unmet_expectations,
    report,
    results::Results,
    scenario::{Files, Scenario},
};

/// Reads and checks a scenario file. `"traces:NAME"` is looked up in `$PLEACH_TRACES`.
///
/// # Errors
/// If the file cannot be read, or the first mistake in it.
pub(crate) fn load(path: &Path) -> anyhow::Result<Scenario> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files = Files {
        scenario: path,
        traces: env::var_os("PLEACH_TRACES").map(PathBuf::from),
        read: &mut |path: &Path| fs::read_to_string(path),
    };
    Ok(Scenario::parse(&text, &mut files)?)
}

/// Writes `results.json` and `report.html` into `dir`, which is created if missing, and prints the table.
///
/// # Errors
/// If a directory or file cannot be written.
pub(crate) fn publish(scenario: &Scenario, results: &Results, dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, text) in [
        ("results.json", results.to_json()?),
        ("report.html", report::render(results)),
    ] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for line in unmet_expectations(scenario, results) {
        tracing::warn!("expectation not met: {line}");
    }
    io::stdout()
        .write_all(report::table(results).as_bytes())
        .context("cannot print the results")
}
