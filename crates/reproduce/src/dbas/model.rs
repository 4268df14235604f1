//! Simulates random connections over links, each of which divides its rate equally: the situation that DBAS's claims
//! are about.
//!
//! This is a fluid model. Each link serves its connections by *processor sharing*: as long as it has work, its whole
//! rate is used, and every connection gets the same part. Many TCP connections of one RTT over one bottleneck behave
//! approximately like this. One property of TCP is added: on a link that loses packets, a connection is no faster
//! than its AIMD allows (`model/link.rs`). The model omits handshakes, slow start, timeouts on crowded links and
//! headers. It also omits the server's link of 6 Mbit/s, which all links together never fill.
//!
//! The links are chosen by the proxy's own code (`model/chooser.rs`). For whole connections this is the complete
//! [`Placer`](pleach_proxy::placer::Placer) with its estimators. For chunks it is the same
//! [`Scheduler`](pleach_proxy::sched::Scheduler), called once for each chunk of the connection. The other end can
//! buffer all chunks that arrive early, so a striped connection is done when its last part is done.
//!
//! A [`Workload`] has its own file format, as a transfer has. The same file and seed give the same numbers. In
//! namespaces the same connections ([`arrivals()`]) are opened as real connections, and the results are computed in
//! the same way ([`results`]).

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

/// Definition of throughput. The results of a case have one flow for each definition, named after the case with a
/// suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All bytes, divided by the time until the last byte arrived. The delays are the median and 95th percentile of
    /// connections' times.
    UntilDone,
    /// Bytes that arrived while new connections were opened, divided by this time.
    WhileArriving,
    /// Mean over the connections of each connection's bytes divided by its duration.
    PerConnection,
    /// Throughput of the long connection while the others were opened.
    LongOne,
}

impl Reading {
    const ALL: [Self; 4] = [
        Self::UntilDone,
        Self::WhileArriving,
        Self::PerConnection,
        Self::LongOne,
    ];

    /// Returns the name of the flow of `case` that reports this throughput.
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

/// Runs every case [`Workload::repeat`] times, each time with a different seed. Each reported number is the mean over
/// a case's runs.
///
/// Run `n` has the same connections under every scheduler.
#[must_use]
pub fn run(workload: &Workload) -> Results {
    let play = |case: &Case| {
        let seeds = workload.seeds();
        seeds.map(|seed| world::run(workload, case, seed)).collect()
    };
    let outcomes: Vec<Vec<Outcome>> = workload.case.iter().map(play).collect();
    results(workload, World::Sim, &outcomes)
}

/// Returns the results of `workload`. `outcomes` are those of each case's runs in `world`.
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
