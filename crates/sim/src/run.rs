//! From a scenario to results on a virtual clock.
//!
//! The same phases as in the lab, each in a world of its own; as none knows of the others, they run on all cores. The
//! tunnel's ends are the production engine ([`Endpoint`]); what of the daemon lies outside it, the reading of policies
//! and the answer to `status`, the caller provides ([`Program`]).
//!
//! Kernel MPTCP has no model here: its baseline is left out, and the results say so.

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

/// What the daemon does outside the engine.
pub trait Program: Sync {
    /// The policy and the profile that a section `[scheduler]` describes.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    fn scheduler(&self, table: &toml::Table) -> Result<SchedulerSettings<String>, String>;

    /// The classes of traffic that sections `[[class]]` describe.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    fn classes(&self, classes: &[toml::Table]) -> Result<Vec<Class>, String> {
        match classes {
            [] => Ok(Vec::new()),
            [_, ..] => Err("no [[tunnel.class]] can be read here".to_owned()),
        }
    }

    /// Who sees what the engines decide in the first run of the scenario itself.
    fn observers(&self) -> Option<Arc<dyn Observers>> {
        None
    }

    /// The answer to `status --json` of the daemon at `end`.
    fn status(
        &self,
        end: End,
        scheduler: &SchedulerSettings<String>,
        endpoint: &Endpoint,
    ) -> serde_json::Value;
}

/// The engine by itself: it reads policies by their own names and keys, and has no status. For tests and measurements.
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

/// Why a scenario could not be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A congestion control without a model.
    #[error("traffic `{traffic}`: {error}")]
    CongestionControl {
        /// Which traffic.
        traffic: String,
        /// What the scenario says, and what there is.
        error: UnknownCongestionControl,
    },
    /// Traffic that needs real programs.
    #[error(
        "traffic `{traffic}`: kind = \"video\" is real H.264, which only `pleach lab run` has; remove it, or write kind = \"udp\" with profile = \"video\""
    )]
    LabOnly {
        /// Which traffic.
        traffic: String,
    },
    /// `[tunnel]` has no such policy, or the policy no such keys; or a class is wrong.
    #[error("[tunnel]: {0}")]
    Policy(String),
    /// A datagram of some traffic does not fit a packet; the simulator does not fragment.
    #[error(
        "traffic `{traffic}`: datagrams of {size_bytes} bytes are fragmented, which the simulator does not do; write at most {max_bytes}"
    )]
    TooLong {
        /// Which traffic.
        traffic: String,
        /// What the scenario says.
        size_bytes: u64,
        /// What fits.
        max_bytes: u64,
    },
    /// The tunnel did not come up.
    #[error("the tunnel did not come up within {seconds} s (phase `{phase}`, seed {seed})")]
    TunnelDown {
        /// How long it was given.
        seconds: u64,
        /// In which phase.
        phase: String,
        /// The phase's seed.
        seed: u64,
    },
    /// A guard of the simulation.
    #[error("phase `{phase}`, seed {seed}: {error}")]
    World {
        /// In which phase.
        phase: String,
        /// The phase's seed.
        seed: u64,
        /// What happened.
        error: WorldError,
    },
}

/// What a phase did.
#[derive(Debug)]
pub struct PhaseOutcome {
    /// What was measured.
    pub report: PhaseReport,
    /// A hash of all that happened: time, node, length and both ends of each packet, in order.
    pub trace_hash: u64,
    /// How many packets arrived at a host or a link.
    pub packet_events: u64,
}

/// How to run a scenario.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What the daemon does outside the engine.
    pub program: &'a dyn Program,
    /// Whether to leave out the baselines.
    pub skip_baselines: bool,
    /// Told the label of each phase that ends, from any thread.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// The phases that [`run`] simulates.
#[must_use]
pub fn phases(scenario: &Scenario, skip_baselines: bool) -> Vec<Setup> {
    let mut setups = setups(scenario, skip_baselines);
    setups.retain(|setup| setup.transport != Transport::Mptcp);
    setups
}

/// Runs `scenario` on virtual clocks, phases side by side on all cores.
///
/// The same scenario, seed and options give the same results, apart from numbers that are the program's.
///
/// # Errors
/// If the scenario cannot be simulated; the first phase's, in their order.
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
        let note = "kernel MPTCP is not simulated: `pleach lab run` measures it";
        results.notes.push(note.to_owned());
    }
    Ok(results)
}

/// Runs one phase of `scenario`, with the seed of its repetition.
///
/// # Errors
/// If it cannot be simulated.
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
