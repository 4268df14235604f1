//! The bridge from the command line to the lab.

use std::path::Path;

use pleach_sim::results::Results;

use crate::scenarios;

/// Runs the scenario file `path` in namespaces over emulated links and writes `results.json` and `report.html` into `out`.
///
/// # Errors
/// A bad scenario, missing rights or tools, or a failed run.
pub(crate) fn run(path: &Path, out: &Path) -> anyhow::Result<()> {
    pleach_lab::netns::prepare()?;
    let scenario = scenarios::load(path)?;
    let results = pleach_lab::run(&scenario, out, &pleach_lab::Options::default())?;
    let results = Results {
        command: format!("pleach lab run {} --out {}", path.display(), out.display()),
        ..results
    };
    scenarios::publish(&scenario, &results, out)
}
