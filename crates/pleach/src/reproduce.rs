//! The bridge from the command line to the published figures.

mod workload;

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;
use indicatif::ProgressBar;
use pleach_reproduce::{Experiment, Extent, Runner, Unknown, dbas::model::Workload};
use pleach_sim::{
    results::{Results, World},
    scenario::Scenario,
};

use crate::sim;

/// The experiments that have what `ids` names; all of them if there is none.
///
/// # Errors
/// A name that names nothing.
pub(crate) fn select(ids: &[String]) -> Result<Vec<Experiment>, Unknown> {
    pleach_reproduce::select(pleach_reproduce::all(), ids)
}

/// Prints what `experiments` have, and how long they take.
///
/// # Errors
/// If it cannot be printed.
pub(crate) fn list(experiments: &[Experiment]) -> anyhow::Result<()> {
    print(&pleach_reproduce::list(experiments))
}

/// Runs `experiments` in `world`, writes table and page into `out` and prints the table.
///
/// # Errors
/// If something does not run or cannot be written.
pub(crate) fn run(
    experiments: &[Experiment],
    world: World,
    extent: Extent,
    out: &Path,
) -> anyhow::Result<()> {
    if world == World::Lab {
        // Before the progress bar starts a thread.
        pleach_lab::netns::prepare()?;
    }
    let progress = ProgressBar::no_length();
    let all = pleach_reproduce::all();
    let records = pleach_reproduce::run(&all, experiments, world, extent, out, &Worlds, &progress)?;
    print(&pleach_reproduce::table(&records))?;
    print(&format!("report: {}\n", out.join("report.html").display()))
}

/// Simulator and lab.
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
