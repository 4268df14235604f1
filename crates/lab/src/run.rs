//! From a scenario to results.
//!
//! A run is a sequence of *phases*, one after the other on a fresh world each: the scenario itself (as often as it
//! says), then the same traffic over each baseline. Within a phase: build the world, start the daemons and wait until
//! the tunnel answers, agree on the instant at which time is zero, let traffic and events run by the clock, collect.
//!
//! Into the output directory go each phase's configuration and logs of the daemons.

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

/// How to run a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The daemon's binary; `None`: `$PLEACH_BIN`, else this very program.
    pub binary: Option<PathBuf>,
    /// Whether to leave out the baselines.
    pub skip_baselines: bool,
    /// Whether to show no progress.
    pub quiet: bool,
    /// Whether the daemons write what they decide, into `NAME.trace.jsonl` beside their logs.
    pub trace: bool,
}

/// Runs `scenario` in network namespaces; the daemons' configuration and logs go below the directory `out`.
///
/// Takes as long as the scenario's phases; [`Scenario::duration`] each, and a few seconds around it. Call
/// [`netns::prepare`](crate::netns::prepare) before.
///
/// # Errors
/// If the machine does not allow the world the scenario needs, or a daemon fails to come up. A run that is not to be
/// trusted is no error: see [`Results::refused`].
pub fn run(scenario: &Scenario, out: &Path, options: &Options) -> anyhow::Result<Results> {
    anyhow::ensure!(
        scenario.recovery != Recovery::Fack,
        "[tcp] recovery: no kernel of today has \"fack\"; use `pleach sim run`, or write \"dupack\""
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
