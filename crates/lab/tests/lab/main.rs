//! Scenarios between real namespaces, without daemons.

mod links;
mod media;

use std::sync::{Mutex, PoisonError};

use pleach_lab::{Options, netns};
use pleach_sim::{results::Results, scenario::Scenario};
use tempfile::TempDir;

/// How often a run is repeated if the machine was not there in time for it.
const ATTEMPTS: usize = 6;

/// Runs a scenario, no two at a time, and again if the emulator was late; results, and where its files are. `None`, aloud,
/// where namespaces are not allowed or it was late each time.
pub(crate) fn run(text: &str) -> Option<(Results, TempDir)> {
    static MACHINE: Mutex<()> = Mutex::new(());
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = netns::Netns::new("probe") {
        eprintln!("SKIPPED, nothing was tested: {error:#}");
        return None;
    }
    let scenario = Scenario::parse_alone("test.toml", text).expect("valid scenario");
    let options = Options {
        quiet: true,
        ..Options::default()
    };
    for _ in 0..ATTEMPTS {
        let out = TempDir::new().expect("a directory");
        let results = pleach_lab::run(&scenario, out.path(), &options).expect("the scenario runs");
        let Some(refused) = &results.refused else {
            return Some((results, out));
        };
        eprintln!("once more: {refused}");
    }
    eprintln!("SKIPPED, nothing was judged: the machine is too busy");
    None
}
