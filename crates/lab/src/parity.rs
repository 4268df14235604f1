//! One scenario in two worlds, the lab and the simulator: checks whether the simulator's results agree with the lab's
//! measurements.
//!
//! Each scenario runs in the lab and in the simulator with the same seeds, and therefore with the same losses: the
//! emulator draws losses by packet, so a packet with a given number is lost in both worlds or in neither. Then the
//! results are compared ([`compare()`]). The permitted differences are derived, not chosen:
//!
//! - *Effects that the simulator cannot know.* The hosts of the lab take time to wake up. Each lab run measures this
//!   time itself, with the ping before the traffic and the lateness of the link emulator: [`HostDelay`].
//! - *Chance.* The exact times of packets determine which packets find a full queue. So the scenario is simulated
//!   [`SHIFTS`] more times, with all delays slightly longer, up to the lateness of the emulator in the lab. The
//!   variance s² of a number over these runs is the contribution of chance to one run. For losses and the goodput of
//!   datagrams it is at least the binomial p (1 - p) / n, because another packet of the tunnel may be lost instead. The
//!   means of n runs in each world then differ by at most `t · s · sqrt(2/n)` in 99 of 100 comparisons (Student,
//!   [`SHIFTS`] degrees of freedom).
//! - *The model.* A model of TCP or QUIC must be right within a tenth ([`MODEL_SHARE`]). The engine is not a model but
//!   the daemon's own code, so it has no such allowance.
//!
//! A lab run that the lab itself refuses is not compared.

mod compare;

use core::{fmt, time::Duration};
use std::path::PathBuf;

use pleach_sim::{
    results::Results,
    run::{self, EngineOnly, RunError},
    scenario::Scenario,
};

pub use self::compare::{Check, HostDelay, MODEL_SHARE, Pair, Quantity, compare};
use crate::{Options, netns};

/// Number of simulated runs with longer delays.
pub const SHIFTS: u32 = 15;

/// Settings for running scenarios in the lab and in the simulator.
#[derive(Clone, Debug)]
pub struct Parity {
    /// The daemon's binary.
    pub binary: PathBuf,
    /// Directory for the files of the daemons.
    pub out: PathBuf,
    /// Number of runs in the lab, with consecutive seeds starting with the scenario's. At least 1.
    pub runs: u64,
}

/// Result of comparing a scenario.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The lab does not run on this machine. Contains the reason.
    NoLab(String),
    /// The lab ran, but the machine was too busy for valid measurements. Contains the reason.
    TooBusy(String),
    /// The compared numbers.
    Compared {
        /// One entry for each number.
        checks: Vec<Check>,
        /// Delay that the lab's hosts added, as a mean over the runs.
        host: HostDelay,
        /// Number of lab runs that were used.
        runs: usize,
    },
}

impl Parity {
    /// Runs `scenario` in the lab and in the simulator, [`Parity::runs`] times, without its baselines.
    ///
    /// Returns [`Outcome::NoLab`] if the lab cannot run (no namespaces), and [`Outcome::TooBusy`] if all its runs are
    /// refused.
    ///
    /// # Errors
    /// Fails if the scenario cannot be simulated.
    pub fn run(&self, scenario: &Scenario) -> Result<Outcome, RunError> {
        let mut outcome = Outcome::NoLab("no runs were requested".to_owned());
        let mut pairs = Vec::new();
        for run in 0..self.runs {
            let mut scenario = scenario.clone();
            scenario.seed = scenario.seed.wrapping_add(run);
            scenario.repeat = 1;
            match self.measure(&scenario) {
                Ok(lab) => pairs.push(pair(&scenario, lab)?),
                Err(why) => outcome = why,
            }
        }
        if pairs.is_empty() {
            return Ok(outcome);
        }
        let host = HostDelay::of(&pairs);
        Ok(Outcome::Compared {
            checks: compare(&pairs, host),
            host,
            runs: pairs.len(),
        })
    }

    /// Runs `scenario` in the lab. Returns the outcome if there is no valid run.
    fn measure(&self, scenario: &Scenario) -> Result<Results, Outcome> {
        let options = Options {
            binary: Some(self.binary.clone()),
            skip_baselines: true,
            quiet: true,
            trace: false,
        };
        let out = self
            .out
            .join(format!("{}-{}", scenario.name, scenario.seed));
        let results = netns::prepare()
            .and_then(|()| crate::run(scenario, &out, &options))
            .map_err(|error| Outcome::NoLab(format!("{error:#}")))?;
        match results.refused.clone() {
            None => Ok(results),
            Some(why) => Err(Outcome::TooBusy(why)),
        }
    }
}

impl fmt::Display for Outcome {
    /// Prints a table, or the reason why there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLab(why) => writeln!(f, "  SKIPPED: {why}"),
            Self::TooBusy(why) => writeln!(f, "  NOT JUDGED: {why}"),
            Self::Compared { checks, host, runs } => {
                writeln!(
                    f,
                    "  runs {runs}; hosts add {:.2} ms to a round trip, emulator late {:.2} ms",
                    host.idle_ms, host.lateness_ms
                )?;
                checks.iter().try_for_each(|check| writeln!(f, "  {check}"))
            }
        }
    }
}

/// Simulates the scenario of `lab`: unchanged, and with longer delays.
fn pair(scenario: &Scenario, lab: Results) -> Result<Pair, RunError> {
    let late_us = lab.lateness_us.map_or(0.0, |lateness| lateness.p99);
    let late = Duration::try_from_secs_f64(late_us * 1e-6).unwrap_or_default();
    let shifted = |step: u32| {
        let mut scenario = scenario.clone();
        for link in &mut scenario.links {
            link.down.delay += late * step / SHIFTS;
            link.up.delay += late * step / SHIFTS;
        }
        simulate(&scenario)
    };
    Ok(Pair {
        sim: simulate(scenario)?,
        shifted: (1..=SHIFTS).map(shifted).collect::<Result<_, _>>()?,
        lab,
    })
}

fn simulate(scenario: &Scenario) -> Result<Results, RunError> {
    let options = run::Options {
        program: &EngineOnly,
        skip_baselines: true,
        progress: &|_| {},
    };
    run::run(scenario, &options)
}
