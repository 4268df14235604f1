//! `./dev bench profiles`: compares the tunnel over several links with each of its links alone, for sets of links.
//!
//! For each case, one download is measured over each link alone (*raw*: plain routing, no tunnel), then through the
//! tunnel over all links, and in the lab also over kernel MPTCP. Goodput is counted after the warm-up. The goodput of
//! single links does not depend on the tunnel and is stored in `bench-results/profiles/singles.json`, so that a
//! repeated run measures the tunnel only.
//!
//! `cargo bench -p pleach --bench profiles --profile quick -- --set sweep --count 60 --policy weighted`; `--help` lists
//! the options. After a change of the engine, the build profile `quick` builds in seconds; simulated figures do not
//! depend on it. For the lab, use the default build profile, because the speed of the daemons matters there.
#![cfg(all(feature = "lab", feature = "sim"))]
#![expect(clippy::print_stdout, reason = "the table is what it is for")]

#[path = "profiles/cache.rs"]
mod cache;
#[path = "profiles/figures.rs"]
mod figures;
#[path = "profiles/measure.rs"]
mod measure;
#[path = "profiles/options.rs"]
mod options;
#[path = "profiles/sets.rs"]
mod sets;
#[path = "profiles/simulate.rs"]
mod simulate;
#[path = "profiles/table.rs"]
mod table;

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::Parser as _;

use pleach_sim::bonds::Case;

use crate::options::{Options, Set, World};

fn main() -> ExitCode {
    match bench(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Options) -> anyhow::Result<()> {
    if options.place == World::Lab {
        // Must run before any thread starts.
        pleach_lab::netns::prepare()?;
    }
    let cases = cases(options);
    if cases.is_empty() {
        println!("no case to run");
        return Ok(());
    }
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench-results/profiles");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let outcomes = measure::measure(&cases, options, &out)?;
    print!("{}", table::text(&outcomes, options));
    if let Some(path) = options.json.as_ref().map(|path| out.join(path)) {
        let mut text = serde_json::to_string_pretty(&outcomes)?;
        text.push('\n');
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the cases that the options select, in the order of the sets.
fn cases(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for set in options.sets() {
        match set {
            Set::Pairs => cases.extend(sets::pairs()),
            Set::Many => cases.extend(sets::many()),
            Set::Profiles => cases.extend(sets::profiles()),
            Set::Recordings if env::var_os("PLEACH_TRACES").is_none() => {
                println!("SKIPPED: recordings: PLEACH_TRACES names no directory of recorded links");
            }
            Set::Recordings => cases.extend(sets::recordings()),
            Set::Sweep if options.place == World::Lab => {
                println!("SKIPPED: sweep: it is for the simulator, --in sim");
            }
            Set::Sweep => cases.extend(options.sweep().cases()),
        }
    }
    let wanted = |case: &Case| {
        let mut words = options.case.iter();
        options.case.is_empty() || words.any(|word| case.name.contains(word.as_str()))
    };
    cases.retain(wanted);
    if let Some(seconds) = options.seconds {
        for case in &mut cases {
            case.duration_s = seconds;
        }
    }
    cases
}
