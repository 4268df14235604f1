//! Simulates a scenario on virtual clocks and returns its results.
//!
//! The phases are those of the lab. Each phase has its own simulated world and does not depend on the others, so the
//! phases run in parallel on all cores. The ends of the tunnel are the production engine ([`Endpoint`]). The caller
//! provides the parts of the daemon outside the engine ([`Program`]): parsing of policies and the answer to `status`.
//!
//! Kernel MPTCP is not modelled here. Its baseline is omitted, and the results say so.

mod engine_with;
mod graph;
mod phase;
mod scheduler;

use std::sync::Arc;

use pleach_core::{class::Class, endpoint::Endpoint, sched::SchedulerSettings, trace::Observers};
use rayon::prelude::*;

pub use self::engine_with::EngineWith;
pub use crate::world::WorldError;
use crate::{
    collect,
    measure::PhaseReport,
    phases::{Setup, setups},
    results::{Results, Transport, World},
    scenario::{End, Scenario},
    tcp::UnknownCongestionControl,
};

/// Functions of the daemon outside the engine.
pub trait Program: Sync {
    /// Parses a `[scheduler]` section: the policy and the profile.
    ///
    /// # Errors
    /// Returns a description of the error in one line.
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String>;

    /// Parses `[[class]]` sections: the traffic classes.
    ///
    /// # Errors
    /// Returns a description of the error in one line.
    fn classes(&self, classes: &[toml::Table]) -> Result<Vec<Class>, String> {
        match classes {
            [] => Ok(Vec::new()),
            [_, ..] => Err("[[tunnel.class]] is not supported here".to_owned()),
        }
    }

    /// Returns observers of the engines' decisions in the first run of the scenario itself.
    fn observers(&self) -> Option<Arc<dyn Observers>> {
        None
    }

    /// Returns the answer of the daemon at `end` to `status --json`.
    fn status(
        &self,
        end: End,
        scheduler: &SchedulerSettings<String>,
        endpoint: &Endpoint,
    ) -> serde_json::Value;
}

/// The engine without the rest of the daemon, for tests and measurements. It accepts policies by the engine's names and
/// keys, and answers `status` with `null`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOnly;

impl Program for EngineOnly {
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String> {
        scheduler::read(table)
    }

    fn status(&self, _: End, _: &SchedulerSettings<String>, _: &Endpoint) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Reason why a scenario could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A congestion control is not modelled.
    #[error("traffic `{traffic}`: {error}")]
    CongestionControl {
        /// Name of the traffic.
        traffic: String,
        /// The error, with the name in the scenario and the known names.
        error: UnknownCongestionControl,
    },
    /// The traffic needs real programs.
    #[error(
        "traffic `{traffic}`: kind = \"video\" is real H.264, which only `pleach lab run` supports; remove it, or write kind = \"udp\" with profile = \"video\""
    )]
    LabOnly {
        /// Name of the traffic.
        traffic: String,
    },
    /// `[tunnel]` names an unknown policy, or contains keys that the policy does not have, or a class is invalid.
    #[error("[tunnel]: {0}")]
    Policy(String),
    /// A datagram of some traffic does not fit into a packet. The simulator does not fragment.
    #[error(
        "traffic `{traffic}`: datagrams of {size_bytes} bytes need fragmentation, which the simulator does not support; write at most {max_bytes}"
    )]
    TooLong {
        /// Name of the traffic.
        traffic: String,
        /// Size in the scenario.
        size_bytes: u64,
        /// Largest size that fits.
        max_bytes: u64,
    },
    /// The tunnel did not come up.
    #[error("the tunnel did not come up within {seconds} s (phase `{phase}`, seed {seed})")]
    TunnelDown {
        /// Time limit for the tunnel in seconds.
        seconds: u64,
        /// Label of the phase.
        phase: String,
        /// The phase's seed.
        seed: u64,
    },
    /// A guard stopped the simulation.
    #[error("phase `{phase}`, seed {seed}: {error}")]
    World {
        /// Label of the phase.
        phase: String,
        /// The phase's seed.
        seed: u64,
        /// The error.
        error: WorldError,
    },
}

/// Result of a phase.
#[derive(Debug)]
pub struct PhaseOutcome {
    /// The measurements.
    pub report: PhaseReport,
    /// Hash of all events: time, node, length, and the first and last bytes of each packet, in order.
    pub trace_hash: u64,
    /// Number of packets that arrived at a host or a link.
    pub packet_events: u64,
}

/// Options for running a scenario.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The parts of the daemon outside the engine.
    pub program: &'a dyn Program,
    /// Whether to omit the baselines.
    pub skip_baselines: bool,
    /// Callback that gets the label of each finished phase, from any thread.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// Returns the phases that [`run`] simulates.
#[must_use]
pub fn phases(scenario: &Scenario, skip_baselines: bool) -> Vec<Setup> {
    let mut setups = setups(scenario, skip_baselines);
    setups.retain(|setup| setup.transport != Transport::Mptcp);
    setups
}

/// Runs `scenario` on virtual clocks, with the phases in parallel on all cores.
///
/// The same scenario, seed and options give the same results, except for values that come from [`Options::program`].
///
/// # Errors
/// Fails if the scenario cannot be simulated. Returns the error of the first failed phase in their order.
pub fn run(scenario: &Scenario, options: &Options<'_>) -> Result<Results, RunError> {
    let setups = phases(scenario, options.skip_baselines);
    let outcomes: Vec<Result<PhaseOutcome, RunError>> = setups
        .par_iter()
        .map(|setup| {
            let outcome = run_phase(scenario, setup, options.program);
            (options.progress)(&setup.label);
            outcome
        })
        .collect();
    let (mut repeats, mut baselines) = (Vec::new(), Vec::new());
    for (setup, outcome) in setups.into_iter().zip(outcomes) {
        let report = outcome?.report;
        if setup.is_main {
            repeats.push(report);
        } else {
            baselines.push((setup, report));
        }
    }
    let mut results = collect::join(scenario, World::Sim, repeats, &baselines);
    let all = setups_of_mptcp(scenario, options.skip_baselines);
    if all {
        let note = "the simulator has no MPTCP: `pleach lab run` measures the kernel's MPTCP";
        results.notes.push(note.to_owned());
    }
    Ok(results)
}

/// Checks that `scenario` can be simulated, without simulating it.
///
/// # Errors
/// Fails if the scenario requires a feature that the simulator or the program does not have.
pub fn check(scenario: &Scenario, options: &Options<'_>) -> Result<(), RunError> {
    let setups = phases(scenario, options.skip_baselines);
    setups.iter().try_for_each(|setup| {
        let phase = phase::Phase::new(scenario, setup, options.program)?;
        phase.check()
    })
}

/// Runs one phase of `scenario`, with the seed of its repetition.
///
/// # Errors
/// Fails if the phase cannot be simulated.
pub fn run_phase(
    scenario: &Scenario,
    setup: &Setup,
    program: &dyn Program,
) -> Result<PhaseOutcome, RunError> {
    phase::Phase::new(scenario, setup, program)?.run()
}

fn setups_of_mptcp(scenario: &Scenario, skip_baselines: bool) -> bool {
    let setups = setups(scenario, skip_baselines);
    setups
        .iter()
        .any(|setup| setup.transport == Transport::Mptcp)
}
