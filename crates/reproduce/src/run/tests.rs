use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::{evaluate::Verdict, experiment::Role, registry, select};

/// Returns the experiments that `asked` selects, without variants.
fn plain(asked: &str) -> anyhow::Result<Vec<Experiment>> {
    let mut chosen = select(registry::all(), &[asked.to_owned()])?;
    for experiment in &mut chosen {
        experiment.cells.retain(|cell| !cell.is_variant());
    }
    Ok(chosen)
}

/// Returns the same results for every run, and counts the runs.
#[derive(Default)]
struct Fake {
    runs: AtomicUsize,
    fails: bool,
}

impl Runner for Fake {
    fn run(&self, world: World, scenario: &Scenario, _: &Path) -> anyhow::Result<Results> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(!self.fails, "no rights");
        let udp = pleach_sim::results::FlowResult {
            name: "udp".to_owned(),
            loss: if world == World::Sim { 0.005 } else { 0.5 },
            sent_pkts: Some(1),
            ..Default::default()
        };
        Ok(Results {
            scenario: scenario.name.clone(),
            world,
            flows: vec![udp],
            ..Results::default()
        })
    }

    fn play(&self, workload: &Workload, _: &Path) -> anyhow::Result<Results> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(Results {
            scenario: workload.name.clone(),
            world: World::Lab,
            ..Results::default()
        })
    }
}

fn run_one(out: &Path, world: World, fake: &Fake) -> anyhow::Result<Vec<Record>> {
    run_with(out, world, fake, "a")
}

fn run_with(out: &Path, world: World, fake: &Fake, program: &str) -> anyhow::Result<Vec<Record>> {
    let all = registry::all();
    let chosen = plain("R-L3-5")?;
    let hidden = ProgressBar::hidden();
    run(
        &all,
        &chosen,
        Series {
            world,
            extent: Extent::All,
            seeds: 1,
            program,
        },
        out,
        fake,
        &hidden,
    )
}

#[test]
fn both_worlds_of_two_calls_stand_in_one_table() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    let records = run_one(out.path(), World::Sim, &fake).expect("runs");
    assert_eq!((records.len(), fake.runs.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(
        (records[0].headline.sim, records[0].headline.lab),
        (Some(0.5), None)
    );
    let records = run_one(out.path(), World::Lab, &fake).expect("runs");
    assert_eq!(
        (records[0].headline.sim, records[0].headline.lab),
        (Some(0.5), Some(50.0))
    );
    assert_eq!(records[0].ok, Some(false));
    for file in [
        "results.json",
        "report.html",
        "scenarios/l3-single-flow-k05-dwd250.toml",
        "runs/sim/l3-single-flow-k05-dwd250.json",
    ] {
        assert!(out.path().join(file).exists(), "{file}");
    }
}

#[test]
fn seeds_are_runs_of_their_own_and_stand_as_a_spread() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    let all = registry::all();
    let chosen = plain("R-L3-5").expect("known");
    let with = |extent, seeds| {
        let hidden = ProgressBar::hidden();
        let path = out.path();
        run(
            &all,
            &chosen,
            Series {
                world: World::Sim,
                extent,
                seeds,
                program: "a",
            },
            path,
            &fake,
            &hidden,
        )
        .expect("runs")
    };
    let records = with(Extent::All, 3);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 3);
    let seeds = records[0].headline.sim_spread.map(|spread| spread.seeds);
    assert_eq!(seeds, Some(3));
    with(Extent::Missing, 5);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 5, "two more");
    let cell = &chosen[0].cells[0];
    let seeded = cell
        .seeded(2)
        .expect("a scenario")
        .scenario()
        .expect("valid");
    assert_eq!(seeded.seed, cell.scenario().expect("valid").seed + 2);
}

#[test]
fn results_of_another_scenario_do_not_count() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    run_one(out.path(), World::Lab, &fake).expect("runs");
    let scenario = out.path().join("scenarios/l3-single-flow-k05-dwd250.toml");
    fs::write(&scenario, "name = \"another\"").expect("writable");
    let records = run_one(out.path(), World::Sim, &fake).expect("runs");
    assert_eq!(
        (records[0].headline.sim, records[0].headline.lab),
        (Some(0.5), None)
    );
}

#[test]
fn results_of_another_build_are_told_and_do_not_count() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    run_with(out.path(), World::Lab, &fake, "a").expect("runs");
    let records = run_with(out.path(), World::Sim, &fake, "b").expect("runs");
    let headline = &records[0].headline;
    assert_eq!((headline.sim, headline.lab), (Some(0.5), None));
    assert_eq!(records[0].lab_verdict, Some(Verdict::Incomplete));
    let told = |note: &String| note.starts_with("lab: ") && note.contains("ran it, a;");
    assert!(records[0].notes.iter().any(told), "{:?}", records[0].notes);
    let records = run_with(out.path(), World::Lab, &fake, "b").expect("runs");
    assert_eq!(records[0].headline.lab, Some(50.0));
}

#[test]
fn variants_run_in_the_simulator_and_stand_beside() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    let all = registry::all();
    let chosen = select(registry::all(), &["R-L3-5".to_owned()]).expect("known");
    let run_in = |world| {
        let series = Series {
            world,
            extent: Extent::All,
            seeds: 1,
            program: "a",
        };
        let hidden = ProgressBar::hidden();
        run(&all, &chosen, series, out.path(), &fake, &hidden).expect("runs")
    };
    run_in(World::Lab);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 1, "no variants there");
    let records = run_in(World::Sim);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 3, "the DSL's");
    let part = records[0]
        .parts
        .iter()
        .find(|part| part.role == Role::Without("dsl"));
    let value = part.and_then(|part| part.measured.sim);
    assert_eq!(value, Some(0.5));
}

#[test]
fn workloads_are_played_in_the_lab_as_their_file_says() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    let all = registry::all();
    let chosen = plain("R-DB-6").expect("there is one");
    run(
        &all,
        &chosen,
        Series {
            world: World::Lab,
            extent: Extent::All,
            seeds: 1,
            program: "a",
        },
        out.path(),
        &fake,
        &ProgressBar::hidden(),
    )
    .expect("runs");
    assert_eq!(fake.runs.load(Ordering::Relaxed), chosen[0].cells.len());
    let cell = &chosen[0].cells[0];
    assert!(again(World::Lab, cell).contains("--in lab"));
    let workload = cell.workload().expect("valid");
    let lab = workload.in_lab();
    assert_eq!(
        (lab.repeat, lab.seconds),
        (workload.lab.repeat, workload.lab.seconds)
    );
    assert_eq!(lab.seeds().count(), 1);
}

#[test]
fn an_interrupted_lab_goes_on_where_it_was_and_tells_which_points_ran() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake::default();
    let all = registry::all();
    let chosen = plain("R-NAT-3").expect("there is one");
    let lab = |extent| {
        let hidden = ProgressBar::hidden();
        run(
            &all,
            &chosen,
            Series {
                world: World::Lab,
                extent,
                seeds: 1,
                program: "a",
            },
            out.path(),
            &fake,
            &hidden,
        )
        .expect("runs")
    };
    lab(Extent::Missing);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 4, "none had run");
    let cell = "nat-delay-long-paper-10mbit-90ms.json";
    fs::remove_file(out.path().join("runs/lab").join(cell)).expect("it ran");
    lab(Extent::Missing);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 5, "that one");
    let text = fs::read_to_string(out.path().join("results.json")).expect("written");
    assert_eq!(text, "[]\n", "this fake has no such flow");
    lab(Extent::All);
    assert_eq!(fake.runs.load(Ordering::Relaxed), 9);
    let played = chosen[0].cells.iter();
    let mut played = played.filter(|cell| cell.kind == Kind::Played);
    let again = again(World::Lab, played.next().expect("one"));
    assert!(
        again.starts_with("pleach lab run scenarios/lab/nat-"),
        "{again}"
    );
    assert!(
        out.path()
            .join("scenarios/lab")
            .join(cell.replace("json", "toml"))
            .exists()
    );
}

#[test]
fn what_does_not_run_is_named() {
    let out = tempfile::tempdir().expect("a directory");
    let fake = Fake {
        fails: true,
        ..Fake::default()
    };
    let error = run_one(out.path(), World::Sim, &fake).expect_err("it fails");
    let text = format!("{error:#}");
    assert!(
        text.contains("l3-single-flow-k05-dwd250") && text.contains("no rights"),
        "{text}"
    );
}
