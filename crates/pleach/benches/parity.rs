//! `./dev bench parity`: runs every scenario of `scenarios/kernel` and `scenarios/parity` in the simulator and in the
//! lab, and prints the figures side by side. The exit code is 1 if a figure differs by more than its tolerance. To run
//! some scenarios only: `cargo bench -p pleach --bench parity -- NAME …`.
//!
//! The bench needs the lab's requirements, an otherwise idle machine, and six minutes.
#![cfg(all(feature = "lab", feature = "sim"))]
#![expect(clippy::print_stdout, reason = "the table is what it is for")]

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use pleach_lab::parity::{Check, Outcome, Parity};
use pleach_sim::scenario::{Files, Scenario};

/// Number of runs of a scenario in each world, each with its own seed.
const RUNS: u64 = 1;

fn main() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let parity = Parity {
        binary: env!("CARGO_BIN_EXE_pleach").into(),
        out: root.join("bench-results/parity"),
        runs: RUNS,
    };
    let (mut agree, mut differ, mut skipped) = (0, 0, 0);
    for dir in ["kernel", "parity"] {
        for scenario in scenarios(&root.join("scenarios").join(dir))? {
            if !named.is_empty() && !named.contains(&scenario.name) {
                continue;
            }
            let outcome = parity.run(&scenario)?;
            print!("{}\n{outcome}", scenario.name);
            match &outcome {
                Outcome::NoLab(_) | Outcome::TooBusy(_) => skipped += 1,
                Outcome::Compared { checks, .. } if checks.iter().all(Check::holds) => agree += 1,
                Outcome::Compared { .. } => differ += 1,
            }
        }
    }
    println!("{agree} scenarios agree, {differ} differ, {skipped} skipped");
    Ok(ExitCode::from(u8::from(differ > 0)))
}

/// Reads the scenario files in `dir`, by name.
fn scenarios(dir: &Path) -> anyhow::Result<Vec<Scenario>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path)?;
            let mut files = Files {
                scenario: path,
                traces: None,
                read: &mut |path: &Path| fs::read_to_string(path),
            };
            Ok(Scenario::parse(&text, &mut files)?)
        })
        .collect()
}
