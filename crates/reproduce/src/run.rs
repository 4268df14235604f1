//! Runs experiments and writes their results.

use core::time::Duration;
use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pleach_sim::{
    results::{Results, World},
    scenario::Scenario,
    transfer,
};
use rayon::prelude::*;

use crate::{
    csn::correction,
    dbas::model::{self, Lab, Workload},
    evaluate::{Record, evaluate, name},
    experiment::{Cell, Experiment, Kind, cells_by_name},
    report,
    runs::{Directory, SEEDS_MAX},
};

/// Runs scenarios and workloads. The caller of [`run()`] implements it.
pub trait Runner: Sync {
    /// Runs `scenario` in `world`. All files other than the returned results are written below `work`.
    ///
    /// # Errors
    /// Fails if the scenario cannot run in `world`.
    fn run(&self, world: World, scenario: &Scenario, work: &Path) -> anyhow::Result<Results>;

    /// Runs `workload`, which [`Workload::in_lab`] returned, in namespaces. All files other than the returned results
    /// are written below `work`.
    ///
    /// # Errors
    /// Fails if the workload cannot run in namespaces.
    fn play(&self, workload: &Workload, work: &Path) -> anyhow::Result<Results>;
}

/// Selection of the cells that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All cells.
    All,
    /// The cells without a valid result.
    Missing,
}

/// Settings of a call of [`run()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    /// World in which the cells run.
    pub world: World,
    /// Selection of the cells that run.
    pub extent: Extent,
    /// Number of runs of each scenario and transfer, at most [`SEEDS_MAX`]. Each run has another seed; the first is the
    /// seed in the file.
    pub seeds: u64,
    /// The build of the program that measures. Results of another build do not count.
    pub program: &'a str,
}

/// Runs the cells of `chosen` with the settings `series`, and judges all targets of `all` from these results and the
/// results of earlier calls below `out`. Returns the records of `chosen`.
///
/// - `chosen` is the part of `all` that [`select`](crate::select) returned.
/// - With [`Extent::Missing`], a cell is skipped if it has a valid result and its file has not changed since.
/// - Simulated cells run on all cores. In the lab, scenarios first run one after the other; then the cells that may
///   run at the same time as others run, one for every two cores.
/// - Table and page are written after each cell in the lab and after every `WRITE_EVERY` simulated cells. If the call
///   is interrupted, the cells that have run count.
///
/// # Errors
/// Fails if a cell cannot run, or a file cannot be read or written.
pub fn run(
    all: &[Experiment],
    chosen: &[Experiment],
    series: Series<'_>,
    out: &Path,
    runner: &dyn Runner,
    progress: &ProgressBar,
) -> anyhow::Result<Vec<Record>> {
    let Series {
        world,
        extent,
        seeds,
        program,
    } = series;
    let directory = Directory::new(out, program)?;
    let asked: Vec<&Cell> = cells_by_name(chosen, world).into_values().collect();
    anyhow::ensure!(
        !asked.is_empty(),
        "what was asked for runs in the simulator only; leave out `--in lab`"
    );
    let mut jobs = Vec::new();
    for cell in asked {
        for more in 0..seeds.clamp(1, SEEDS_MAX) {
            let seeded = match more {
                0 => Some(cell.clone()),
                more => cell.seeded(more),
            };
            let is_wanted = extent == Extent::All || !directory.has_run(cell, world, more)?;
            if let Some(seeded) = seeded.filter(|_| is_wanted) {
                jobs.push(Job { cell, more, seeded });
            }
        }
    }
    for job in &jobs {
        directory.write_scenario(job.cell)?;
    }
    let cells: Vec<&Cell> = jobs.iter().map(|job| &job.seeded).collect();
    style(progress, &cells, world);
    // Number of cells that have run. The lock also ensures that one thread at a time writes the table and the page.
    let done = Mutex::new(0_usize);
    let run_one = |job: &&Job<'_>| -> anyhow::Result<()> {
        let cell = &job.seeded;
        progress.set_message(cell.name.clone());
        let results = match cell.kind {
            Kind::Played | Kind::Scenario | Kind::Simulated => runner
                .run(world, &cell.scenario()?, &directory.work(cell))
                .with_context(|| format!("experiment `{}`", cell.name))?,
            Kind::Transfer(_) => transfer::run(&cell.transfer()?),
            Kind::Correction(_) => correction::run(&cell.correction()?),
            Kind::Modelled(_) => model::run(&cell.workload()?),
            Kind::Workload(_) => match world {
                World::Lab => runner
                    .play(&cell.workload()?.in_lab(), &directory.work(cell))
                    .with_context(|| format!("workload `{}`", cell.name))?,
                World::Sim => model::run(&cell.workload()?),
            },
        };
        let results = Results {
            command: again(world, cell),
            ..results
        };
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        directory.write_run(job.cell, world, job.more, &results)?;
        *done += 1;
        if world == World::Lab || done.is_multiple_of(WRITE_EVERY) {
            write(all, &directory)?;
        }
        progress.inc(cell.duration().as_secs());
        Ok(())
    };
    match world {
        World::Lab => {
            let (besides, alone): (Vec<&Job<'_>>, Vec<&Job<'_>>) =
                jobs.iter().partition(|job| beside(job.cell) > 1);
            alone.iter().try_for_each(run_one)?;
            let pool = rayon::ThreadPoolBuilder::new().num_threads(usize::from(lab_beside()));
            let pool = pool.build().context("threads")?;
            let each = besides.par_iter().with_max_len(1);
            pool.install(|| each.try_for_each(run_one))?;
        }
        World::Sim => {
            let each: Vec<&Job<'_>> = jobs.iter().collect();
            each.par_iter().try_for_each(run_one)?;
        }
    }
    progress.finish_and_clear();
    let mut records = write(all, &directory)?;
    let targets = chosen.iter().flat_map(|experiment| &experiment.targets);
    let ids: Vec<&str> = targets.map(|target| target.id).collect();
    records.retain(|record| ids.contains(&record.id.as_str()));
    Ok(records)
}

/// One run of a cell.
struct Job<'a> {
    cell: &'a Cell,
    /// Number of the repetition, which determines the seed ([`Cell::seeded`]). 0 is the seed in the file.
    more: u64,
    seeded: Cell,
}

/// Returns the command that runs `cell` again, to be called in the output directory.
pub(crate) fn again(world: World, cell: &Cell) -> String {
    match cell.kind {
        Kind::Played => format!("pleach lab run scenarios/lab/{}.toml --out out", cell.name),
        Kind::Scenario | Kind::Simulated => {
            let world = name(world);
            format!("pleach {world} run scenarios/{}.toml --out out", cell.name)
        }
        Kind::Workload(experiment) if world == World::Lab => {
            format!("pleach reproduce {experiment} --in lab --out out")
        }
        Kind::Correction(experiment)
        | Kind::Modelled(experiment)
        | Kind::Transfer(experiment)
        | Kind::Workload(experiment) => {
            format!("pleach reproduce {experiment} --out out")
        }
    }
}

/// Writes the table and the page from the results in `directory`.
fn write(all: &[Experiment], directory: &Directory) -> anyhow::Result<Vec<Record>> {
    let worlds = directory.read(all)?;
    let records = evaluate(all, &worlds);
    let mut json = serde_json::to_string_pretty(&records)?;
    json.push('\n');
    directory.write("results.json", &json)?;
    directory.write("report.html", &report::html(&records, all, &worlds))?;
    Ok(records)
}

/// Returns the expected real time in seconds that the cells take: in the simulator with [`SEEDS`] seeds, and in the lab
/// with one seed.
pub(crate) fn expected_seconds(cells: &[Cell]) -> (f64, f64) {
    let total = |has_tunnel: bool| -> Duration {
        let simulated = |cell: &&Cell| matches!(cell.kind, Kind::Scenario | Kind::Simulated);
        let some = cells.iter().filter(simulated);
        let some = some.filter(|cell| cell.toml.contains("[tunnel]") == has_tunnel);
        some.map(Cell::duration).sum()
    };
    let (tunnels, plain) = (total(true), total(false));
    let in_lab = cells.iter().filter(|cell| cell.runs_in(World::Lab));
    let lab: Duration = in_lab
        .map(|cell| {
            let at_once = u32::from(beside(cell));
            match played(cell) {
                Duration::ZERO => (LAB_SET_UP + cell.duration()) / at_once,
                played => LAB_SET_UP + played / at_once,
            }
        })
        .sum();
    let packets: f64 = cells.iter().map(transferred).sum();
    let workloads: f64 = cells.iter().map(arriving).sum();
    let once = tunnels.as_secs_f64() * SIM_COST
        + plain.as_secs_f64() * PLAIN_COST
        + packets * TRANSFER_COST;
    let seeds: f64 = (0..SEEDS).map(|_| 1.0).sum();
    let sim = once * seeds + workloads * WORKLOAD_COST;
    (sim, lab.as_secs_f64())
}

/// Returns the number of cells of the kind of `cell` that run at the same time in the lab.
fn beside(cell: &Cell) -> u8 {
    match cell.kind {
        Kind::Played | Kind::Workload(_) => lab_beside(),
        Kind::Correction(_)
        | Kind::Modelled(_)
        | Kind::Scenario
        | Kind::Simulated
        | Kind::Transfer(_) => 1,
    }
}

/// Returns the number of workloads (each with all its cases), or of [`Kind::Played`] scenarios (which carry at most
/// 20 Mbit/s), that run at the same time in namespaces: one for every two cores. On two cores, the start of a second one
/// delayed packets on the links of the first by 10 to 60 ms, and 25 of 54 were refused.
fn lab_beside() -> u8 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    u8::try_from(cores / 2).unwrap_or(u8::MAX).max(1)
}

/// Returns the number of packets in all runs of a transfer. 0 for other kinds of cells.
fn transferred(cell: &Cell) -> f64 {
    if !matches!(cell.kind, Kind::Transfer(_)) {
        return 0.0;
    }
    cell.transfer().map_or(0.0, |transfer| {
        let cases = u32::try_from(transfer.case.len()).unwrap_or(u32::MAX);
        f64::from(transfer.packets) * f64::from(transfer.repeat) * f64::from(cases)
    })
}

/// Returns the expected number of connections in all runs of a workload. 0 for other kinds of cells.
fn arriving(cell: &Cell) -> f64 {
    if !matches!(cell.kind, Kind::Modelled(_) | Kind::Workload(_)) {
        return 0.0;
    }
    cell.workload().map_or(0.0, |workload| {
        let cases = workload.case.iter();
        let per_s: f64 = cases.map(|case| case.small_per_s + case.large_per_s).sum();
        per_s * workload.seconds * f64::from(workload.repeat)
    })
}

/// Returns the expected time that a workload takes in namespaces. All its cases run at the same time, and the slowest
/// determines the time. Zero for other kinds of cells.
fn played(cell: &Cell) -> Duration {
    if !matches!(cell.kind, Kind::Workload(_)) {
        return Duration::ZERO;
    }
    cell.workload().map_or(Duration::ZERO, |workload| {
        let Lab { repeat, seconds } = workload.lab;
        Duration::from_secs_f64(f64::from(repeat) * seconds * BACKLOG)
    })
}

/// Ratio of the time until the last connection of an overloaded workload is complete to the time during which
/// connections arrive. It is between 2 and 18 in the DBAS paper's experiments.
const BACKLOG: f64 = 5.0;
/// Real time in seconds for one simulated second with about 8000 datagrams through the tunnel, on one core. The release
/// build on a machine with two cores needed 0.017 s.
const SIM_COST: f64 = 0.02;
/// Real time in seconds for one simulated second of one TCP flow of 10 to 20 Mbit/s without tunnel, on one core,
/// measured with the release build.
const PLAIN_COST: f64 = 0.0015;
/// Default number of seeds with which simulated cells run, enough for a mean and a spread.
pub const SEEDS: u64 = 8;
/// Number of simulated cells after which table and page are written. Writing them requires reading all results again.
const WRITE_EVERY: usize = 64;
/// Real time in seconds for one packet of a transfer, on one core.
const TRANSFER_COST: f64 = 2e-6;
/// Real time in seconds for one connection of a workload, on one core, measured with the release build.
const WORKLOAD_COST: f64 = 2.5e-6;
/// Time to build the namespaces and wait for the tunnel.
const LAB_SET_UP: Duration = Duration::from_secs(3);

fn style(progress: &ProgressBar, cells: &[&Cell], world: World) {
    let seconds = cells.iter().map(|cell| cell.duration().as_secs()).sum();
    progress.set_length(seconds);
    let unit = match world {
        World::Lab => "s",
        World::Sim => "simulated s",
    };
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{eta}} left  {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(500));
}

#[cfg(test)]
mod tests;
