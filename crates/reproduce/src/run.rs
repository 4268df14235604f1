//! Running experiments and writing what they gave.

use core::time::Duration;
use std::{path::Path, sync::Mutex};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use pleach_sim::{
    results::{Results, World},
    scenario::Scenario,
};
use rayon::prelude::*;

use crate::{
    evaluate::{Record, evaluate, name},
    experiment::{Cell, Experiment, cells_by_name},
    report,
    runs::Directory,
};

/// What runs a scenario.
pub trait Runner: Sync {
    /// Runs `scenario` in `world`; what it writes beside its results goes below `work`.
    ///
    /// # Errors
    /// If it cannot run there.
    fn run(&self, world: World, scenario: &Scenario, work: &Path) -> anyhow::Result<Results>;
}

/// Runs the cells of `chosen` in `world` and judges, with what earlier calls left below `out`, all targets of `all`; the
/// records of `chosen` are returned.
///
/// `chosen` is what [`select`](crate::select) left of `all`. Simulated cells run on all cores, those in the lab one
/// after the other. After each cell, table and page are written anew, so that what ran counts if this is interrupted.
///
/// # Errors
/// The first cell that does not run, or a file that cannot be read or written.
pub fn run(
    all: &[Experiment],
    chosen: &[Experiment],
    world: World,
    out: &Path,
    runner: &dyn Runner,
    progress: &ProgressBar,
) -> anyhow::Result<Vec<Record>> {
    let directory = Directory::new(out)?;
    let cells: Vec<&Cell> = cells_by_name(chosen).into_values().collect();
    for cell in &cells {
        directory.write_scenario(cell)?;
    }
    style(progress, &cells, world);
    // One at a time writes the table and the page.
    let writing = Mutex::new(());
    let run_one = |cell: &&Cell| -> anyhow::Result<()> {
        let scenario = cell.scenario()?;
        progress.set_message(cell.name.clone());
        let results = runner
            .run(world, &scenario, &directory.work(cell))
            .with_context(|| format!("experiment `{}`", cell.name))?;
        let results = Results {
            command: again(world, cell),
            ..results
        };
        let _guard = writing.lock();
        directory.write_run(cell, world, &results)?;
        write(all, &directory)?;
        progress.inc(scenario.duration.as_secs());
        Ok(())
    };
    match world {
        World::Lab => cells.iter().try_for_each(run_one)?,
        World::Sim => cells.par_iter().try_for_each(run_one)?,
    }
    progress.finish_and_clear();
    let mut records = write(all, &directory)?;
    let targets = chosen.iter().flat_map(|experiment| &experiment.targets);
    let ids: Vec<&str> = targets.map(|target| target.id).collect();
    records.retain(|record| ids.contains(&record.id.as_str()));
    Ok(records)
}

/// The command that runs `cell` again, from the output directory.
pub(crate) fn again(world: World, cell: &Cell) -> String {
    let world = name(world);
    format!("pleach {world} run scenarios/{}.toml --out out", cell.name)
}

/// Writes table and page of what lies in `directory`.
fn write(all: &[Experiment], directory: &Directory) -> anyhow::Result<Vec<Record>> {
    let worlds = directory.read(all)?;
    let records = evaluate(all, &worlds);
    let mut json = serde_json::to_string_pretty(&records)?;
    json.push('\n');
    directory.write("results.json", &json)?;
    directory.write("report.html", &report::html(&records, all, &worlds))?;
    Ok(records)
}

/// How long the cells take: in the simulator, in the lab.
pub(crate) fn expected_seconds(cells: &[Cell]) -> (f64, f64) {
    let total: Duration = cells.iter().map(Cell::duration).sum();
    let around: Duration = cells.iter().map(|_| LAB_SET_UP).sum();
    let sim = total.as_secs_f64() * SIM_COST;
    (sim, (total + around).as_secs_f64())
}

/// Real time for one simulated second of about 8000 datagrams through the tunnel, on one core: measured 0.017 with the
/// release build on a machine of two cores.
const SIM_COST: f64 = 0.02;
/// Building a world and waiting for the tunnel.
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
