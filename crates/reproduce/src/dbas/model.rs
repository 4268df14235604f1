//! Connections that arrive by chance over links that each share their rate alike: where DBAS's claims are about.
//!
//! A fluid model. Each link serves what is on it by *processor sharing*: as long as it has work, all of its rate is used,
//! and every connection gets the same part, which many TCP connections of one round trip over one bottleneck come close to.
//! Of TCP there is one thing more: on a link that loses packets, a connection is no faster than its AIMD allows
//! (`model/link.rs`). Handshakes, slow start, timeouts of crowded links and headers are not modelled, nor is the server's link
//! of 6 Mbit/s, which all links together never fill.
//!
//! What chooses (`model/chooser.rs`) is the proxy's own code. Per connection it is the whole
//! [`Placer`](pleach_proxy::placer::Placer) with its estimators; per chunk the same
//! [`Scheduler`](pleach_proxy::sched::Scheduler), asked once for each chunk of the connection. The other end has room for
//! all that comes early, so a striped connection is done when the last of its parts is.
//!
//! A [`Workload`] is a file of its own kind, like a transfer; the same file and seed give the same numbers. In namespaces it is
//! played with real connections, the same ones ([`arrivals()`]), and read in the same way ([`results`]).

mod arrivals;
mod chooser;
mod link;
mod outcome;
mod settings;
#[cfg(test)]
mod tests;
mod world;

use pleach_sim::results::{FlowResult, Quantiles, Results, World};

pub use self::{
    arrivals::{App, Arrival, arrivals},
    chooser::Choice,
    outcome::Outcome,
    settings::{Case, Lab, LinkSettings, Sizes, Workload},
};

/// What a second flow of a case measures; its name is the case's with this behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All bytes by the time until the last has come; the median and 95th percentile of connections' times.
    UntilDone,
    /// Bytes that came while connections arrived, by that time.
    WhileArriving,
    /// The mean of each connection's own bytes by its own time.
    PerConnection,
    /// What the long connection got while the others arrived.
    LongOne,
}

impl Reading {
    const ALL: [Self; 4] = [
        Self::UntilDone,
        Self::WhileArriving,
        Self::PerConnection,
        Self::LongOne,
    ];

    /// The name of the flow of `case` that has it.
    #[must_use]
    pub fn flow(self, case: &str) -> String {
        let suffix = match self {
            Self::UntilDone => "",
            Self::WhileArriving => ", while they arrive",
            Self::PerConnection => ", per connection",
            Self::LongOne => ", the long one",
        };
        format!("{case}{suffix}")
    }
}

/// Runs every case as often as it says, each time with another seed; each number is the mean of a case's runs.
///
/// Run `n` of every scheduler sees the same connections.
#[must_use]
pub fn run(workload: &Workload) -> Results {
    let play = |case: &Case| {
        let seeds = workload.seeds();
        seeds.map(|seed| world::run(workload, case, seed)).collect()
    };
    let outcomes: Vec<Vec<Outcome>> = workload.case.iter().map(play).collect();
    results(workload, World::Sim, &outcomes)
}

/// The results of `workload`, whose cases' runs in `world` had `outcomes`, by case.
#[must_use]
pub fn results(workload: &Workload, world: World, outcomes: &[Vec<Outcome>]) -> Results {
    let cases = workload.case.iter().zip(outcomes);
    let flows = cases
        .flat_map(|(case, outcomes)| Reading::ALL.map(|reading| flow(case, reading, outcomes)));
    Results {
        scenario: workload.name.clone(),
        seed: workload.seed,
        world,
        policy: workload.choice.name().to_owned(),
        flows: flows.collect(),
        ..Results::default()
    }
}

fn flow(case: &Case, reading: Reading, outcomes: &[Outcome]) -> FlowResult {
    let mean = |read: &dyn Fn(&Outcome) -> f64| {
        let values: Vec<f64> = outcomes.iter().map(read).collect();
        crate::series::mean(&values)
    };
    let delay_ms = match reading {
        Reading::UntilDone => Quantiles {
            p50: mean(&|outcome| outcome.time_ms(0.5)),
            p95: mean(&|outcome| outcome.time_ms(0.95)),
            ..Quantiles::default()
        },
        Reading::WhileArriving | Reading::PerConnection | Reading::LongOne => Quantiles::default(),
    };
    FlowResult {
        name: reading.flow(&case.name),
        goodput_mbps: mean(&|outcome| outcome.mbps(reading)).unwrap_or(f64::NAN),
        duration_s: mean(&|outcome| outcome.done_s).unwrap_or(f64::NAN),
        delay_ms,
        ..FlowResult::default()
    }
}
