//! Runs a scenario in the lab and returns its results.
//!
//! A run is a sequence of *phases*, each in a new world: the scenario itself (repeated as often as it says), then the
//! same traffic over each baseline. A phase builds the world, starts the daemons, waits until the tunnel answers, sets
//! the instant of time zero, lets traffic and events run by the clock, and collects the measurements.
//!
//! The output directory contains the configuration and the logs of the daemons of each phase.

mod daemon;
mod equalizers;
mod phase;

use core::time::Duration;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pleach_sim::{
    collect,
    measure::PhaseReport,
    phases::{Setup, setups},
    results::{Results, World},
    scenario::{Recovery, Scenario},
};

use crate::{media, run::phase::Phase};

/// Options for running a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The daemon's binary. `None`: `$PLEACH_BIN`, otherwise this program.
    pub binary: Option<PathBuf>,
    /// Whether to omit the baselines.
    pub skip_baselines: bool,
    /// Whether to hide the progress.
    pub quiet: bool,
    /// Whether the daemons write their decisions to `NAME.trace.jsonl` beside their logs.
    pub trace: bool,
}

/// Runs `scenario` in network namespaces. The daemons' configuration and logs are written below the directory `out`.
///
/// Each phase takes [`Scenario::duration`] and a few seconds more. Call [`netns::prepare`](crate::netns::prepare)
/// before.
///
/// # Errors
/// Fails if the machine does not permit the world that the scenario needs, or if a daemon fails to start. A run that
/// must not be trusted is not an error: see [`Results::refused`].
pub fn run(scenario: &Scenario, out: &Path, options: &Options) -> anyhow::Result<Results> {
    anyhow::ensure!(
        scenario.recovery != Recovery::Fack,
        "[tcp] recovery: current kernels do not have \"fack\"; use `pleach sim run`, or write \"dupack\""
    );
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = fs::canonicalize(out)?;
    let binary = match (&options.binary, env::var_os("PLEACH_BIN")) {
        (Some(binary), _) => binary.clone(),
        (None, Some(binary)) => binary.into(),
        (None, None) => env::current_exe()?,
    };
    let films = media::films(scenario, &out)?;
    let setups = setups(scenario, options.skip_baselines);
    let progress = progress(scenario, setups.len(), options.quiet);
    let mut repeats: Vec<PhaseReport> = Vec::new();
    let mut baselines: Vec<(Setup, PhaseReport)> = Vec::new();
    for (index, setup) in (0_u32..).zip(setups) {
        progress.set_message(setup.label.clone());
        let phase = Phase {
            scenario,
            films: &films,
            setup: &setup,
            binary: &binary,
            trace: options.trace,
            dir: out.join(&setup.dir),
            seed: scenario.seed.wrapping_add(u64::from(setup.repeat)),
            progress: &progress,
            elapsed: scenario.duration * index,
        };
        let report = phase
            .run()
            .with_context(|| format!("phase `{}`", setup.label))?;
        if setup.is_main {
            repeats.push(report);
        } else {
            baselines.push((setup, report));
        }
    }
    progress.finish_and_clear();
    Ok(collect::join(scenario, World::Lab, repeats, &baselines))
}

fn progress(scenario: &Scenario, phases: usize, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let seconds = scenario.duration.as_secs() * u64::try_from(phases).unwrap_or(1);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} s, {eta} left  {msg}");
    let bar = ProgressBar::new(seconds);
    bar.enable_steady_tick(Duration::from_millis(500));
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
