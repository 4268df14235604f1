//! Connects the command line to the lab.

use std::path::Path;

use pleach_sim::results::Results;

use crate::scenarios;

pub(crate) mod crowd;

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
