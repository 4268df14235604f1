//! One scenario in both worlds: does the simulator say what the lab measures?
//!
//! Each scenario runs in the lab and in the simulator with the same seeds, hence with the same losses: the emulator draws
//! by packet, so the packet of a number is lost in both worlds or in none. Then number stands beside number
//! ([`compare()`]). How far apart two honest worlds may lie is derived, not chosen:
//!
//! - *What the simulator cannot know.* The hosts of the lab take time to wake up. Each lab run measures it itself, with
//!   the ping before the traffic and the lateness of the link emulator: [`HostDelay`].
//! - *Chance.* The exact instants of packets decide which of them meet a full queue. So the scenario is simulated
//!   [`SHIFTS`] times more, with all delays a little longer, up to what the emulator was late in the lab. The variance s²
//!   of a number over these runs is what chance contributes to one run; for losses and the goodput of datagrams at least
//!   the binomial p (1 - p) / n, because another of the tunnel's own packets may take the blow. The means of n runs in
//!   each world then differ by at most `t · s · sqrt(2/n)` in 99 of 100 comparisons (Student, [`SHIFTS`] degrees of
//!   freedom).
//! - *The model.* A model of TCP or QUIC is asked to be right within a tenth ([`MODEL_SHARE`]). The engine is no model: it is the
//!   daemon's own code, and gets nothing.
//!
//! A lab run that the lab itself refuses proves nothing and is not compared.

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

/// Simulated runs with longer delays.
pub const SHIFTS: u32 = 15;

/// How to run scenarios in both worlds.
#[derive(Clone, Debug)]
pub struct Parity {
    /// The daemon's binary.
    pub binary: PathBuf,
    /// Directory for what the daemons leave.
    pub out: PathBuf,
    /// Runs in the lab, with seeds from the scenario's on. At least 1.
    pub runs: u64,
}

/// What came of a scenario.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The lab does not run here, and why.
    NoLab(String),
    /// The lab ran, but the machine was too busy for its figures to count, and why.
    TooBusy(String),
    /// The numbers side by side.
    Compared {
        /// One a number.
        checks: Vec<Check>,
        /// What the lab's hosts added, mean of the runs.
        host: HostDelay,
        /// How many lab runs were used.
        runs: usize,
    },
}

impl Parity {
    /// Runs `scenario` in both worlds, once each, without its baselines.
    ///
    /// A lab that does not come up here (no namespaces) gives [`Outcome::NoLab`], one whose runs are all refused
    /// [`Outcome::TooBusy`].
    ///
    /// # Errors
    /// If the scenario cannot be simulated.
    pub fn run(&self, scenario: &Scenario) -> Result<Outcome, RunError> {
        let mut outcome = Outcome::NoLab("no run was asked for".to_owned());
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

    /// A run in the lab, or the outcome if there is none that counts.
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
    /// A table, or why there is none.
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

/// Simulates what `lab` measured: as it is, and with longer delays.
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
