//! Simulates a subset of the published figures and compares the verdicts with reviewed ones, so that a change of the
//! engine cannot change a verdict unnoticed.
//!
//! Each check has one line: `ok`, `MISSED`, `beside` (does not decide the verdict) or `–` (not measured), then the
//! name of the check. If a change is intended, accept it with `PLEACH_BLESS=1 cargo test --workspace --test figures`
//! and give the reason in the commit.
//!
//! The engine runs without the daemon, which alone reads classes. So cells with classes are refused here; no judged
//! check needs them.

use std::{env, fs, path::Path};

use indicatif::ProgressBar;
use pleach_reproduce::{
    Extent, Record, Role, Runner, Series, Verdict, all, dbas::model::Workload, run, select,
};
use pleach_sim::{
    results::{Results, World},
    run::{EngineOnly, Options},
    scenario::Scenario,
};

const REVIEWED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/figures/reviewed.txt");

/// Experiments of three papers that take about one minute on two cores.
const SUBSET: &[&str] = &["l3-single-flow", "csn-strategies", "OS"];

struct Engine;

impl Runner for Engine {
    fn run(&self, _: World, scenario: &Scenario, _: &Path) -> anyhow::Result<Results> {
        let options = Options {
            program: &EngineOnly,
            skip_baselines: true,
            progress: &|_| {},
        };
        // The engine does not read classes. A scenario with classes counts as refused.
        Ok(
            pleach_sim::run::run(scenario, &options).unwrap_or_else(|error| Results {
                refused: Some(error.to_string()),
                ..Results::default()
            }),
        )
    }

    fn play(&self, workload: &Workload, _: &Path) -> anyhow::Result<Results> {
        anyhow::bail!("{}: no lab here", workload.name)
    }
}

#[test]
fn published_figures_come_out_as_reviewed() {
    let out = tempfile::tempdir().expect("a directory");
    let asked: Vec<String> = SUBSET.iter().map(|&name| name.to_owned()).collect();
    let mut chosen = select(all(), &asked).expect("all are known");
    for experiment in &mut chosen {
        experiment.cells.retain(|cell| !cell.is_variant());
    }
    let records = run(
        &all(),
        &chosen,
        Series {
            world: World::Sim,
            extent: Extent::All,
            seeds: 1,
            program: "test",
        },
        out.path(),
        &Engine,
        &ProgressBar::hidden(),
    )
    .expect("all run");
    let is_judged = |record: &&Record| record.sim_verdict != Some(Verdict::Incomplete);
    let judged = records.iter().filter(is_judged).count();
    assert!(judged >= 25, "{judged} targets of {}", records.len());
    let text: String = records.iter().map(lines).collect();
    if env::var_os("PLEACH_BLESS").is_some() {
        fs::write(REVIEWED, text).expect("writable");
        return;
    }
    let reviewed = fs::read_to_string(REVIEWED).unwrap_or_default();
    if text != reviewed {
        let diff = similar::TextDiff::from_lines(&reviewed, &text);
        let diff = diff
            .unified_diff()
            .header("reviewed", "measured")
            .to_string();
        panic!(
            "figures come out otherwise than crates/reproduce/tests/figures/reviewed.txt says:\n{diff}\nif that is meant: \
             PLEACH_BLESS=1 cargo test --workspace --test figures"
        );
    }
}

/// Returns the verdict of a target in the simulator, and a line for each of its checks.
fn lines(record: &Record) -> String {
    let verdict = record.sim_verdict.map_or("–", Verdict::name);
    let mut text = format!("{} {verdict}: {}\n", record.id, record.what);
    let headline = ("(the first)", &record.headline, record.role);
    let parts = record.parts.iter();
    let parts = parts.map(|part| (part.what.as_str(), &part.measured, part.role));
    for (what, measured, role) in [headline].into_iter().chain(parts) {
        if matches!(role, Role::Without(_)) {
            continue;
        }
        let [low, high] = measured.accepted;
        let is_inside = |value: f64| {
            low.is_none_or(|low| value >= low) && high.is_none_or(|high| value <= high)
        };
        let word = match (measured.sim.map(is_inside), role) {
            (None, _) => "–",
            (Some(_), Role::Beside | Role::Without(_)) => "beside",
            (Some(true), Role::Judged) => "ok",
            (Some(false), Role::Judged) => "MISSED",
        };
        text += &format!("    {word:<6} {what}\n");
    }
    text
}
