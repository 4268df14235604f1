//! Simulates one case: over all links as the base scenario says, and over each link alone without the tunnel.
//!
//! The run over a link alone carries the same traffic except pings, with the same seed, events and duration. Cases that
//! differ only in parameters of the tunnel have the same runs over single links, so these runs are simulated once and
//! their rates are stored.

use core::time::Duration;
use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use rayon::prelude::*;

use super::{Case, Row, Sweep};
use crate::{
    collect::{self, is_bulk},
    phases::{Setup, setups},
    results::{FlowResult, Results, Transport, World, mean_after},
    run::{Program, RunError, run_phase},
    scenario::{Scenario, ScenarioError, Traffic, TrafficKind},
};

/// Reason why a sweep has stopped.
#[derive(Debug, thiserror::Error)]
pub enum SweepError<E> {
    /// A case is invalid.
    #[error("{0}")]
    Case(ScenarioError),
    /// The row of a case was not accepted.
    #[error("{0}")]
    Row(E),
    /// The threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// Rates over each link alone, by group of cases.
///
/// Bound: one entry per group, and so at most [`super::MAX_CASES`] entries of some 100 bytes.
#[derive(Debug, Default)]
pub(super) struct Singles(Mutex<BTreeMap<u64, Arc<OnceLock<LinkRates>>>>);

/// Rate over each link alone in Mbit/s, in the order of the links.
type LinkRates = Result<Vec<Option<f64>>, RunError>;

impl Sweep {
    /// Simulates the cases with these numbers, after it has checked all of them, on `jobs` threads (0: one per core).
    /// Passes the row of each case to `on_row` as soon as it is known, in any order and from any thread. Rows lack `id`
    /// and `version`.
    ///
    /// # Errors
    /// Fails before the first simulation if a case is invalid. Stops at the first error of `on_row`.
    pub fn run<E: Send>(
        &self,
        numbers: &[u64],
        jobs: usize,
        program: &dyn Program,
        on_row: &(dyn Fn(Row) -> Result<(), E> + Sync),
    ) -> Result<(), SweepError<E>> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(jobs).build()?;
        threads.install(|| {
            let checked = numbers.par_iter().map(|number| {
                let case = self.case(*number)?;
                self.check_case(&case, program)
            });
            // The first error in order of the cases, whichever thread is faster.
            let first = checked.find_first(Result::is_err);
            first.unwrap_or(Ok(())).map_err(SweepError::Case)?;
            numbers.par_iter().try_for_each(|number| {
                let case = self.case(*number).map_err(SweepError::Case)?;
                on_row(self.measure(&case, program)).map_err(SweepError::Row)
            })
        })
    }

    /// Simulates `case` and returns its row without `id` and `version`.
    #[must_use]
    pub fn measure(&self, case: &Case, program: &dyn Program) -> Row {
        let scenario = &case.scenario;
        let json = |value: &Option<toml::Value>| serde_json::to_value(value).unwrap_or_default();
        let parameters = case.parameters.iter();
        let row = Row {
            sweep: self.name.clone(),
            case: case.number,
            cases: self.cases(),
            seed: scenario.seed,
            policy: scenario
                .tunnel
                .as_ref()
                .map_or_else(String::new, |tunnel| tunnel.policy.clone()),
            parameters: parameters
                .map(|(key, value)| (key.clone(), json(value)))
                .collect(),
            ..Row::default()
        };
        match without_panic(|| self.figures(case, program)) {
            Ok(figures) => Row {
                sweep: row.sweep,
                case: row.case,
                cases: row.cases,
                seed: row.seed,
                policy: row.policy,
                parameters: row.parameters,
                ..figures
            }
            .rounded(),
            Err(error) => Row {
                error: Some(error),
                ..row
            },
        }
    }

    /// Returns a row that contains only the figures of `case`.
    fn figures(&self, case: &Case, program: &dyn Program) -> Result<Row, RunError> {
        let scenario = &case.scenario;
        let mut main = setups(scenario, true);
        main.truncate(1);
        let setup = &main[0];
        let report = run_phase(scenario, setup, program)?.report;
        let results = collect::join(scenario, World::Sim, vec![report], &[]);
        let rate_mbps = rate_mbps(scenario, &results, self.warm_up);
        let links_mbps = match rate_mbps {
            Some(_) => self.links_alone(case, program)?,
            None => vec![None; scenario.links.len()],
        };
        let alone = || links_mbps.iter().flatten().copied();
        let share = |whole: f64| rate_mbps.map(|rate| rate / whole);
        let names = scenario.links.iter().map(|link| link.name.clone());
        let sum = |counts: &[Option<u64>]| {
            let mut known = counts.iter().flatten().peekable();
            known.peek()?;
            Some(known.sum::<u64>())
        };
        let flows: Vec<&FlowResult> = results
            .flows
            .iter()
            .filter(|flow| is_own(scenario, &flow.name))
            .collect();
        let sent: Vec<_> = flows.iter().map(|flow| flow.sent_pkts).collect();
        let received: Vec<_> = flows.iter().map(|flow| flow.received_pkts).collect();
        let retransmits: Vec<_> = flows.iter().map(|flow| flow.retransmits).collect();
        Ok(Row {
            rate_mbps,
            share_of_best: share(alone().fold(0.0, f64::max)),
            share_of_sum: share(alone().sum()),
            links_mbps: names.zip(links_mbps).collect(),
            delay_ms: match &results.pings {
                Some(pings) => pings.loaded.rtt_ms,
                None => flows.first().map(|flow| flow.delay_ms).unwrap_or_default(),
            },
            loss: sum(&sent).and_then(|sent| lost(sent, sum(&received)?)),
            retransmits: sum(&retransmits),
            ..Row::default()
        })
    }

    /// Returns the rate over each link of `case` alone.
    fn links_alone(&self, case: &Case, program: &dyn Program) -> LinkRates {
        let group = self.group(case.number);
        let entry = {
            let mut groups = self
                .singles
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(groups.entry(group).or_default())
        };
        // If another thread is simulating these links, this waits for its result.
        let rates = entry.get_or_init(|| {
            let mut scenario = case.scenario.clone();
            scenario
                .traffic
                .retain(|traffic| !matches!(traffic.kind, TrafficKind::Ping { .. }));
            scenario.tunnel = None;
            scenario.equalizers.clear();
            let alone = |link| link_alone(&scenario, link, self.warm_up, program);
            (0..scenario.links.len()).map(alone).collect()
        });
        rates.clone()
    }
}

/// Returns the result of `simulate`. A panic is an error of this case, so that the other cases of the sweep still run.
fn without_panic<T>(simulate: impl FnOnce() -> Result<T, RunError>) -> Result<T, String> {
    // What a case shares with others is the rates over single links, which a panic leaves empty.
    match panic::catch_unwind(AssertUnwindSafe(simulate)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(cause) => {
            let text = cause.downcast_ref::<&str>().copied();
            let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
            Err(format!(
                "the program panicked: {}",
                text.unwrap_or("without a message")
            ))
        }
    }
}

/// Simulates `scenario` over link number `link` alone, and returns its rate in Mbit/s.
fn link_alone(
    scenario: &Scenario,
    link: usize,
    warm_up: Duration,
    program: &dyn Program,
) -> Result<Option<f64>, RunError> {
    let name = &scenario.links[link].name;
    let setup = Setup {
        label: format!("{name} alone"),
        dir: String::new(),
        repeat: 0,
        is_main: false,
        transport: Transport::Single(name.clone()),
        links: vec![link],
        with_tunnel: false,
        tcp_only: false,
    };
    let report = run_phase(scenario, &setup, program)?.report;
    let results = collect::join(scenario, World::Sim, vec![report], &[]);
    Ok(rate_mbps(scenario, &results, warm_up))
}

/// Whether the flow `name` of `scenario` is not cross traffic, which uses a single link outside the tunnel.
fn is_own(scenario: &Scenario, name: &str) -> bool {
    let mut traffic = scenario.traffic.iter();
    traffic.any(|traffic| traffic.name == name && traffic.link.is_none())
}

/// Returns the payload of all bulk flows after the warm-up, in Mbit/s. `None` if there is no bulk flow.
fn rate_mbps(scenario: &Scenario, results: &Results, warm_up: Duration) -> Option<f64> {
    let counts = |traffic: &Traffic| is_bulk(traffic, false) && traffic.link.is_none();
    let flows = scenario.traffic.iter().filter(|traffic| counts(traffic));
    let series = flows.filter_map(|traffic| {
        let mut series = results.series.flows.iter();
        series.find(|series| series.name == traffic.name)
    });
    let mut means = series
        .map(|series| {
            let interval_ms = results.series.interval_ms;
            mean_after(warm_up, interval_ms, &series.goodput_mbps).unwrap_or_default()
        })
        .peekable();
    means.peek()?;
    Some(means.sum())
}

/// Returns the share of `sent` packets that is missing among `received` packets. `None` if nothing was sent.
#[expect(clippy::cast_precision_loss, reason = "numbers of packets")]
fn lost(sent: u64, received: u64) -> Option<f64> {
    (sent > 0).then(|| sent.saturating_sub(received) as f64 / sent as f64)
}
