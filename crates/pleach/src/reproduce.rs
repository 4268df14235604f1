//! Connects the command line with the reproduction of published figures.

mod workload;

use std::{
    fs,
    hash::{DefaultHasher, Hasher as _},
    io::{self, Write as _},
    path::Path,
    process::Command,
};

use anyhow::Context as _;
use indicatif::ProgressBar;
use pleach_reproduce::{
    Experiment, Extent, Kept, Origin, Runner, Series, Unknown, dbas::model::Workload,
};
use pleach_sim::{
    results::{Results, World},
    scenario::Scenario,
};

use crate::sim;

/// Returns the experiments that contain a figure or experiment named in `ids`. If `ids` is empty, returns all
/// experiments.
///
/// # Errors
/// A name that is unknown.
pub(crate) fn select(ids: &[String]) -> Result<Vec<Experiment>, Unknown> {
    pleach_reproduce::select(pleach_reproduce::all(), ids)
}

/// Prints the contents of `experiments` and their duration.
///
/// # Errors
/// If the output cannot be written.
pub(crate) fn list(experiments: &[Experiment]) -> anyhow::Result<()> {
    print(&pleach_reproduce::list(experiments))
}

/// Options with which experiments run.
pub(crate) struct Options<'a> {
    /// Environment in which experiments run: simulator or lab.
    pub(crate) world: World,
    /// Selection of the cells that run.
    pub(crate) extent: Extent,
    /// Number of seeds. If `None`, the environment determines the number.
    pub(crate) seeds: Option<u64>,
    /// Directory in which the results are stored, if any.
    pub(crate) keep: Option<&'a Path>,
}

/// Prints the documentation page for the results that are stored in `directory`.
///
/// # Errors
/// If the results cannot be read, or if the page cannot be printed.
pub(crate) fn report(directory: &Path) -> anyhow::Result<()> {
    let kept = Kept::read(directory)?;
    print(&pleach_reproduce::markdown(&pleach_reproduce::all(), &kept))
}

/// Runs `experiments`, writes the table and the page into `out`, stores the results if requested, and prints the table.
///
/// # Errors
/// If an experiment fails, or if a file cannot be written.
pub(crate) fn run(
    experiments: &[Experiment],
    options: &Options<'_>,
    out: &Path,
) -> anyhow::Result<()> {
    let Options {
        world,
        extent,
        keep,
        ..
    } = *options;
    let seeds = options.seeds.unwrap_or(match world {
        World::Lab => 1,
        World::Sim => pleach_reproduce::SEEDS,
    });
    let program = build()?;
    if world == World::Lab {
        // This must happen before the progress bar starts a thread.
        pleach_lab::netns::prepare()?;
    }
    let progress = ProgressBar::no_length();
    let all = pleach_reproduce::all();
    let records = pleach_reproduce::run(
        &all,
        experiments,
        Series {
            world,
            extent,
            seeds,
            program: &program,
        },
        out,
        &Worlds,
        &progress,
    )?;
    if let Some(kept) = keep {
        let worlds = pleach_reproduce::Directory::new(out, &program)?.read(experiments)?;
        let count = pleach_reproduce::keep(kept, experiments, &worlds, world, &origin(program)?)?;
        print(&format!("kept: {count} targets in {}\n", kept.display()))?;
    }
    print(&pleach_reproduce::table(&records))?;
    print(&format!("report: {}\n", out.join("report.html").display()))
}

/// Returns the commit and the machine of this run.
fn origin(program: String) -> anyhow::Result<Origin> {
    let ask = |program: &str, args: &[&str]| -> anyhow::Result<String> {
        let output = Command::new(program)
            .args(args)
            .output()
            .with_context(|| format!("--keep: cannot run {program}"))?;
        anyhow::ensure!(
            output.status.success(),
            "--keep: {program} failed; remedy: run it in a clone of the repository"
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Origin {
        commit: ask(
            "git",
            &["describe", "--always", "--dirty", "--abbrev=12", "--match="],
        )?,
        date: ask("date", &["-u", "+%Y-%m-%d"])?,
        machine: format!(
            "{}, {cores} cores, Linux {}",
            model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            ask("uname", &["-r"])?
        ),
        version: program,
    })
}

/// Returns the version of this program and a hash of its file, so that any two different builds have different names.
fn build() -> anyhow::Result<String> {
    let program = fs::read("/proc/self/exe").context("cannot read this program")?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&program);
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("{version} (build {:016x})", hasher.finish()))
}

/// Environments for experiments: simulator and lab.
struct Worlds;

impl Runner for Worlds {
    fn run(&self, world: World, scenario: &Scenario, work: &Path) -> anyhow::Result<Results> {
        match world {
            World::Lab => {
                let options = pleach_lab::Options {
                    quiet: true,
                    ..pleach_lab::Options::default()
                };
                pleach_lab::run(scenario, work, &options)
            }
            World::Sim => sim::simulate(scenario, &|_| {}),
        }
    }

    fn play(&self, workload: &Workload, work: &Path) -> anyhow::Result<Results> {
        workload::play(workload, work)
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")
}
