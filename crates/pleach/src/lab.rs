//! The bridge from the command line to the lab.

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;

/// Runs `scenario` in namespaces over emulated links and writes `results.json` and `report.html` into `out`.
///
/// # Errors
/// A bad scenario, missing rights or tools, or a failed run.
pub(crate) fn run(scenario: &Path, out: &Path) -> anyhow::Result<()> {
    let results = pleach_lab::run(scenario, out, &pleach_lab::Options::default())?;
    let table = pleach_lab::report::table(&results);
    io::stdout()
        .write_all(table.as_bytes())
        .context("cannot print the results")
}
