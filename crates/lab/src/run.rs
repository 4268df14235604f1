//! From a scenario file to results.
//!
//! A run is a sequence of *phases*, one after the other on a fresh world each: the scenario itself (as often as it
//! says), then the same traffic over each baseline. Within a phase: build the world, start the daemons and wait until
//! the tunnel answers, agree on the instant at which time is zero, let traffic and events run by the clock, collect.
//!
//! What goes to the output directory: `results.json`, `report.html`, and per phase the daemons' configuration and logs.

mod collect;
mod daemon;
mod phase;

use core::time::Duration;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pleach_sim::scenario::{Baseline, Files, Scenario, TrafficKind};

pub use crate::run::collect::unmet_expectations;
use crate::{
    netns,
    results::{self, Repeat, Results, Transport},
    run::{
        collect::bulk_goodput,
        phase::{Phase, PhaseReport, Setup},
    },
};

/// How to run a scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The daemon's binary; `None`: `$PLEACH_BIN`, else this very program.
    pub binary: Option<PathBuf>,
    /// Replaces the scenario's seed.
    pub seed: Option<u64>,
    /// Whether to leave out the baselines.
    pub skip_baselines: bool,
    /// Whether to show no progress.
    pub quiet: bool,
}

/// Reads and checks a scenario file. `"traces:NAME"` is looked up in `$PLEACH_TRACES`.
///
/// # Errors
/// If the file cannot be read, or the first mistake in it.
pub fn load_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files = Files {
        scenario: path,
        traces: env::var_os("PLEACH_TRACES").map(PathBuf::from),
        read: &mut |path: &Path| fs::read_to_string(path),
    };
    Ok(Scenario::parse(&text, &mut files)?)
}

/// Runs the scenario file and writes `results.json` and `report.html` into the directory `out`.
///
/// Takes as long as the scenario's phases; [`Scenario::duration`] each, and a few seconds around it. Call it before
/// the process has started threads if it does not run as root.
///
/// # Errors
/// If the scenario is wrong, the machine does not allow the world it needs, or a daemon fails to come up. A run that
/// is not to be trusted is no error: see [`Results::refused`].
pub fn run(scenario: &Path, out: &Path, options: &Options) -> anyhow::Result<Results> {
    netns::prepare()?;
    let path = scenario;
    let mut scenario = load_scenario(path)?;
    if let Some(seed) = options.seed {
        scenario.seed = seed;
    }
    let results = run_scenario(&scenario, out, options)?;
    let results = Results {
        command: format!("pleach lab run {} --out {}", path.display(), out.display()),
        ..results
    };
    results.write(out)?;
    for line in unmet_expectations(&scenario, &results) {
        tracing::warn!("expectation not met: {line}");
    }
    Ok(results)
}

/// Runs a scenario that is already loaded and writes nothing but the daemons' files. See [`run()`].
///
/// # Errors
/// As [`run()`].
pub fn run_scenario(scenario: &Scenario, out: &Path, options: &Options) -> anyhow::Result<Results> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = fs::canonicalize(out)?;
    let binary = match (&options.binary, env::var_os("PLEACH_BIN")) {
        (Some(binary), _) => binary.clone(),
        (None, Some(binary)) => binary.into(),
        (None, None) => env::current_exe()?,
    };
    let setups = setups(scenario, options);
    let progress = progress(scenario, setups.len(), options.quiet);
    let mut repeats: Vec<PhaseReport> = Vec::new();
    let mut baselines: Vec<(Setup, PhaseReport)> = Vec::new();
    for (index, setup) in (0_u32..).zip(setups) {
        progress.set_message(setup.label.clone());
        let phase = Phase {
            scenario,
            setup: &setup,
            binary: &binary,
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
    Ok(join(scenario, repeats, &baselines))
}

/// The median run with everything beside it.
fn join(
    scenario: &Scenario,
    mut repeats: Vec<PhaseReport>,
    baselines: &[(Setup, PhaseReport)],
) -> Results {
    let goodputs: Vec<f64> = repeats
        .iter()
        .map(|report| bulk_goodput(scenario, report, false))
        .collect();
    let mut order: Vec<usize> = (0..repeats.len()).collect();
    order.sort_by(|&a, &b| goodputs[a].total_cmp(&goodputs[b]));
    let median = order.get(order.len().saturating_sub(1) / 2).copied();
    let late = repeats
        .iter()
        .map(|report| ("a repetition", report))
        .chain(
            baselines
                .iter()
                .map(|(setup, report)| (setup.label.as_str(), report)),
        )
        .find_map(|(label, report)| {
            let p99 = collect::lateness(report).p99;
            (p99 > results::LATENESS_LIMIT_US)
                .then(|| format!("the emulator was late during {label}: p99 {p99:.0} µs"))
        });
    let chosen = median.map(|index| repeats.swap_remove(index));
    let mut results = chosen.map_or_else(Results::default, |report| {
        let mut results = collect::results(scenario, &report);
        results.baselines = baselines
            .iter()
            .map(|(setup, baseline)| collect::baseline(scenario, setup, baseline, &report))
            .collect();
        results
    });
    results.judge_lateness();
    results.refused = results.refused.take().or(late);
    if goodputs.len() > 1 {
        results.repeats = vec![Repeat::new("goodput_mbps", goodputs)];
    }
    results
}

/// The phases of a run, in order.
fn setups(scenario: &Scenario, options: &Options) -> Vec<Setup> {
    let mut setups = Vec::new();
    let main = match scenario.tunnel {
        Some(_) => Transport::Tunnel,
        None => Transport::Raw,
    };
    for repeat in 0..scenario.repeat {
        setups.push(Setup {
            label: format!("{main} {} of {}", repeat + 1, scenario.repeat),
            dir: format!("run-{}", repeat + 1),
            repeat,
            is_main: true,
            transport: main.clone(),
            links: (0..scenario.links.len()).collect(),
            with_tunnel: scenario.tunnel.is_some(),
            tcp_only: false,
        });
    }
    let baselines = scenario
        .baselines
        .iter()
        .filter(|_| !options.skip_baselines);
    for baseline in baselines {
        let setup = |label: String, dir: String, transport, links| Setup {
            label,
            dir,
            repeat: 0,
            is_main: false,
            transport,
            links,
            with_tunnel: *baseline == Baseline::Single,
            tcp_only: *baseline != Baseline::Single,
        };
        let alone = |kind: &str, words: &str| {
            let one = |(index, link): (usize, &pleach_sim::scenario::LinkSpec)| {
                let name = &link.name;
                let transport = Transport::Single(name.clone());
                let dir = format!("{kind}-{name}");
                setup(
                    format!("{words} over {name} alone"),
                    dir,
                    transport,
                    vec![index],
                )
            };
            scenario
                .links
                .iter()
                .enumerate()
                .map(one)
                .collect::<Vec<_>>()
        };
        match baseline {
            Baseline::Mptcp => {
                let all = (0..scenario.links.len()).collect();
                let (label, dir) = ("kernel MPTCP".to_owned(), "mptcp".to_owned());
                setups.push(setup(label, dir, Transport::Mptcp, all));
            }
            Baseline::Raw => setups.extend(alone("raw", "plain TCP")),
            Baseline::Single => setups.extend(alone("single", "the tunnel")),
        }
    }
    let has_tcp = scenario
        .traffic
        .iter()
        .any(|traffic| matches!(traffic.kind, TrafficKind::Tcp { .. }));
    setups.retain(|setup| has_tcp || !setup.tcp_only);
    setups
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
