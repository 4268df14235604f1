//! Connects the command line to the simulator.

pub(crate) mod merge;
mod shard_file;
pub(crate) mod sweep;

use std::{
    io::{self, Write as _},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pleach_core::{class::Class, endpoint::Endpoint, sched::SchedulerSettings, trace::Observers};
use pleach_sim::{
    results::Results,
    run::{self, Options, Program},
    scenario::{End, Scenario},
};

use crate::{config, run_tunnel::report, scenarios, trace::TraceFile};

/// Simulates the scenario file `path`, with another seed if `seed` is given, and writes `results.json` and
/// `report.html` into `out`. With `trace`, also writes the decisions of the engines.
///
/// # Errors
/// If the scenario is wrong, or cannot be simulated.
pub(crate) fn run(path: &Path, out: &Path, seed: Option<u64>, trace: bool) -> anyhow::Result<()> {
    let mut scenario = scenarios::load(path)?;
    scenario.seed = seed.unwrap_or(scenario.seed);
    let progress = progress(run::phases(&scenario, false).len());
    let trace = trace.then(|| {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        TraceFile::direct(&out.join("trace.jsonl"))
    });
    let program = Daemon {
        trace: trace.transpose()?,
    };
    let results = simulate_with(&program, &scenario, &|phase| {
        progress.set_message(phase.to_owned());
        progress.inc(1);
    })?;
    progress.finish_and_clear();
    let results = Results {
        command: format!(
            "pleach sim run {} --out {} --seed {}",
            path.display(),
            out.display(),
            scenario.seed
        ),
        ..results
    };
    scenarios::publish(&scenario, &results, out)
}

/// Simulates `scenario`; `progress` is called at the end of each phase.
///
/// # Errors
/// If the scenario cannot be simulated.
#[cfg(feature = "reproduce")]
pub(crate) fn simulate(
    scenario: &Scenario,
    progress: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Results> {
    simulate_with(&Daemon::default(), scenario, progress)
}

fn simulate_with(
    program: &Daemon,
    scenario: &Scenario,
    progress: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<Results> {
    let options = Options {
        program,
        skip_baselines: false,
        progress,
    };
    Ok(run::run(scenario, &options)?)
}

/// The parts of this program's daemon outside of the engine.
#[derive(Debug, Default)]
struct Daemon {
    /// File for the decisions of the engine.
    trace: Option<TraceFile>,
}

impl Program for Daemon {
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String> {
        let text = toml::to_string(table).map_err(|error| error.to_string())?;
        let scheduler = config::read_scheduler(format!("[scheduler]\n{text}"));
        scheduler.map_err(|error| error.problem())
    }

    fn classes(&self, classes: &[toml::Table]) -> Result<Vec<Class>, String> {
        let text = |table| toml::to_string(table).map_err(|error| error.to_string());
        let sections = classes
            .iter()
            .map(|table| Ok(format!("[[class]]\n{}", text(table)?)));
        let sections: String = sections.collect::<Result<_, String>>()?;
        config::read_classes(sections).map_err(|error| error.problem())
    }

    fn observers(&self) -> Option<Arc<dyn Observers>> {
        let trace = self.trace.clone()?;
        Some(Arc::new(trace))
    }

    fn status(
        &self,
        end: End,
        scheduler: &SchedulerSettings<String>,
        endpoint: &Endpoint,
    ) -> serde_json::Value {
        let identity = report::Identity {
            is_client: end == End::Client,
            name: "pleach0",
            policy: scheduler.policy.name(),
        };
        // In simulator and lab, a link's device has the name of the link.
        let status = report::status(&identity, endpoint, |path| path.name.clone(), &[]);
        // The status contains only numbers and text, so serialising cannot fail.
        serde_json::to_value(status).unwrap_or_default()
    }
}

/// Prints a note to the user on stderr.
fn note(text: &str) {
    // If this fails, the note cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "note: {text}");
}

/// Makes a progress bar with one step per phase, hidden unless stderr is a terminal.
fn progress(phases: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(phases).unwrap_or(u64::MAX));
    match ProgressStyle::with_template("{bar:30} {pos}/{len} phases, {elapsed}  {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
