//! `./dev bench ablate`: measures the effect of each mechanism of `adaptive`.
//!
//! Every part of the profile and every rule of the engine ([`Mechanism`](pleach_core::profile::Mechanism)) is switched
//! off by itself. The same simulated transfers are run with and without it: same links, same traffic, same seed. The
//! figure of a run is a goodput, or the inverse of a delay, so that more is better. The effect of a mechanism is the
//! mean over all cases of ln(with / without), with a 95 % confidence interval over the cases.
//!
//! *Stage 1* screens all mechanisms over 60 cases (profiles, pairs, random pairs) with one CUBIC and one BBR download
//! each. *Stage 2* tests the mechanisms that the screening leaves open with the kinds of traffic that they affect:
//! eight CUBIC connections, QUIC, an upload, small requests alone and in parallel with a download, UDP with a deadline,
//! a link that fails.
//!
//! The verdict on a mechanism is:
//!
//! - *stays* if its interval lies above [`LEAST_EFFECT`](table::LEAST_EFFECT). It also stays if, in the median of
//!   [`CONFIRM_RUNS`] seeds, a pair falls below 0.95 of its better link without the mechanism but not with it.
//! - *idle* if its interval lies below the bound and no pair falls.
//! - *open* otherwise.
//!
//! Figures are stored in `bench-results/ablate/runs.jsonl` under the text of their scenario and a hash of the engine's
//! sources. So an interrupted bench continues where it was. `-- --help` lists the options.
#![cfg(all(feature = "lab", feature = "sim"))]
#![expect(clippy::print_stdout, reason = "the table is what it is for")]

#[path = "ablate/rule.rs"]
mod rule;
#[path = "ablate/runs.rs"]
mod runs;
#[path = "profiles/sets.rs"]
#[expect(dead_code, reason = "the bench of profiles uses all of it")]
mod sets;
#[path = "profiles/simulate.rs"]
mod simulate;
#[path = "ablate/table.rs"]
mod table;
#[path = "ablate/workload.rs"]
mod workload;

use std::{fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use crate::{
    rule::Rule,
    runs::{Job, Runs},
    table::Row,
    workload::{Workload, cases},
};

/// Measures the effect of each mechanism.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only these mechanisms; names joined by `+` are switched off together [default: each alone].
    #[arg(long)]
    only: Vec<String>,
    /// Screening with CUBIC and BBR, or all other traffic.
    #[arg(long, value_enum, default_value_t = Stage::Screen)]
    stage: Stage,
    /// Only this traffic of the stage.
    #[arg(long, value_enum)]
    traffic: Vec<Workload>,
    /// Cases of each kind of traffic.
    #[arg(long, default_value_t = 60)]
    cases: usize,
    /// Seed of the random pairs among the cases.
    #[arg(long, default_value_t = 401)]
    seed: u64,
    /// Runs of each case, with the seeds 1, 2, …
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Prints the names of all mechanisms.
    #[arg(long)]
    list: bool,
    /// Option that cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Stage of the bench, which determines its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// One CUBIC and one BBR download.
    Screen,
    /// Eight CUBIC connections, QUIC, an upload, requests, UDP with a deadline, a failing link.
    Bearing,
}

/// Number of runs, of which the median is used, for a pair that crosses 0.95.
const CONFIRM_RUNS: u32 = 5;

fn main() -> ExitCode {
    match bench(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.list {
        Rule::all().for_each(|rule| println!("{}", rule.name()));
        return Ok(());
    }
    let rules = rules(arguments)?;
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench-results/ablate");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let runs = Runs::open(&out.join("runs.jsonl"))?;
    let workloads = match arguments.stage {
        Stage::Screen => Workload::SCREEN.as_slice(),
        Stage::Bearing => Workload::BEARING.as_slice(),
    };
    let is_wanted =
        |workload: &&Workload| arguments.traffic.is_empty() || arguments.traffic.contains(workload);
    let workloads: Vec<Workload> = workloads.iter().filter(is_wanted).copied().collect();
    let workloads = workloads.as_slice();
    let cases = cases(arguments.cases, arguments.seed);
    let mut jobs = Vec::new();
    for rule in core::iter::once(None).chain(rules.iter().map(Some)) {
        for &workload in workloads {
            for case in cases.iter().take(workload.most_cases()) {
                for run in 0..arguments.runs {
                    jobs.push(Job::bonded(case, workload, rule, run));
                    if rule.is_none() && workload.has_share() {
                        jobs.extend(Job::singles(case, workload, run));
                    }
                }
            }
        }
    }
    runs.all(&jobs, "runs")?;
    let compare = |rule: &Rule| Row::of(rule, &cases, workloads, arguments.runs, &runs);
    let rows: Vec<Row> = rules.iter().map(compare).collect();
    // A pair that falls below its better link in one run may do so by chance, so repeat it.
    let fallen = rows.iter().flat_map(|row| row.fallen(&cases));
    let again: Vec<Job<'_>> = fallen
        .flat_map(|(rule, case, workload)| {
            (0..CONFIRM_RUNS).flat_map(move |run| {
                let bonded = [None, Some(rule)].map(|rule| Job::bonded(case, workload, rule, run));
                bonded.into_iter().chain(Job::singles(case, workload, run))
            })
        })
        .collect();
    runs.all(&again, "pairs below 0.95 again")?;
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|row| row.confirm(&cases, CONFIRM_RUNS, &runs))
        .collect();
    let text = table::text(&rows, &cases);
    print!("{text}");
    let path = out.join("table.md");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the mechanisms that the arguments select.
fn rules(arguments: &Arguments) -> anyhow::Result<Vec<Rule>> {
    if arguments.only.is_empty() {
        return Ok(Rule::all().collect());
    }
    arguments
        .only
        .iter()
        .map(|names| Rule::named(names))
        .collect()
}
