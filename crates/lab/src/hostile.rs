//! Hostile clients and strangers at one gateway: what other clients lose, and what it costs.
//!
//! [`run()`] starts a real gateway with clients of the [`crowd`], and attacks it from threads in the namespace of the
//! crowd. Each scenario has a gateway of its own:
//!
//! | scenario | attacker | what is measured |
//! | --- | --- | --- |
//! | [`Which::Client`] | a client with a valid key that seals anything (`peer`, `mixes`) | throughput and ping of an honest client (`crowd::honest`), memory of the gateway |
//! | [`Which::Initiations`] | a host without a key that sends initiations from one address, and replays recorded ones | throughput and changes of keys of all clients |
//! | [`Which::Spoofed`] | a client with a valid key that forges its source address | bytes to the owner of that address |
//! | [`Which::Strays`] | a host without a key that sends datagrams of no meaning | processor time of the gateway, with one client and with many |
//!
//! Gateway, clients and attackers share the machine. If all cores are busy, the honest clients lose by that, too; the
//! report shows the processor time of attackers and gateway.
//!
//! [`crowd`]: crate::crowd

use core::time::Duration;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use indicatif::ProgressBar;
use pleach_core::units::Bitrate;

mod attack;
mod floods;
mod frames;
mod initiations;
mod mixes;
mod neighbour;
mod peer;
mod report;
pub(crate) mod sampler;
mod spoofed;
pub(crate) mod stage;
mod strays;

pub use report::{Fact, Limit, Report, Scenario};

use crate::crowd::{self, MOST_CLIENTS, gateway::World};

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// A hostile client beside an honest one.
    Client,
    /// A flood of initiations, and recorded initiations.
    Initiations,
    /// A client that forges its source address.
    Spoofed,
    /// Datagrams of no meaning, with one client and with many.
    Strays,
}

impl Which {
    /// All scenarios.
    pub const ALL: [Self; 4] = [Self::Client, Self::Initiations, Self::Strays, Self::Spoofed];
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gateway's binary. `None`: `$PLEACH_BIN`, otherwise this program.
    pub binary: Option<PathBuf>,
    /// The scenarios to run.
    pub scenarios: Vec<Which>,
    /// Duration of each measurement.
    pub time: Duration,
    /// Rate that the honest clients offer, in all.
    pub rate: Bitrate,
    /// Rate of a hostile client.
    pub attack: Bitrate,
    /// Number of clients that change keys during a flood of initiations.
    pub clients: u32,
    /// Age at which these clients change keys.
    pub rekey: Duration,
    /// Number of changes of keys of each of them.
    pub changes: u32,
    /// Initiations per second.
    pub flood: u64,
    /// Number of clients of the larger gateway that gets strays.
    pub crowd: u32,
    /// Strays per second.
    pub strays: u64,
    /// Duration for which source addresses are forged.
    pub spoof: Duration,
    /// Whether to hide the progress.
    pub quiet: bool,
}

impl Options {
    /// Returns the duration between measurements.
    fn pause(&self) -> Duration {
        self.time / 10
    }
}

/// What all scenarios of a run share.
struct Scene<'a> {
    world: &'a World,
    binary: &'a Path,
    progress: &'a ProgressBar,
}

/// Runs the scenarios one after the other.
///
/// Call [`netns::prepare`](crate::netns::prepare) before.
///
/// # Errors
/// Fails if an option is out of range, if the machine does not permit the namespaces, or if a gateway ends. Figures
/// beyond their limits are not an error: see [`Report::holds`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    for (name, clients) in [("clients", options.clients), ("crowd", options.crowd)] {
        ensure!(
            (1..=MOST_CLIENTS).contains(&clients),
            "--{name} {clients}: a number from 1 to {MOST_CLIENTS}"
        );
    }
    ensure!(
        options.spoof <= LONGEST_SPOOF,
        "--spoof {:?}: at most {LONGEST_SPOOF:?}, after which the client's keys expire",
        options.spoof
    );
    let binary = crowd::binary(options.binary.as_deref())?;
    let progress = crowd::progress(options.quiet);
    let mut scenarios = Vec::new();
    for which in &options.scenarios {
        let world = World::build()?;
        let scene = Scene {
            world: &world,
            binary: &binary,
            progress: &progress,
        };
        // Everything runs on threads inside the crowd's namespace. Daemons end with the thread that has started them.
        scenarios.push(world.crowd.run(|| match which {
            Which::Client => neighbour::run(&scene, options),
            Which::Initiations => initiations::run(&scene, options),
            Which::Spoofed => spoofed::run(&scene, options),
            Which::Strays => strays::run(&scene, options),
        })?);
    }
    progress.finish_and_clear();
    Ok(Report {
        cores: std::thread::available_parallelism().map_or(1, core::num::NonZeroUsize::get),
        scenarios,
    })
}

/// Longest time for which source addresses are forged: the attacker does not change its keys.
const LONGEST_SPOOF: Duration = Duration::from_secs(170);
