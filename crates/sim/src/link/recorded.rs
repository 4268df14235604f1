//! One direction of a scenario's links with its events and measurements: applies timed changes to a [`Bundle`], and
//! records a [`Sample`] of every link each [`SAMPLE`].
//!
//! Before the instant passed to [`Recorded::begin`], the links run as configured and nothing is recorded. The caller
//! makes the calls in the order [`handle_timeout`](Recorded::handle_timeout), [`poll_state`](Recorded::poll_state),
//! [`poll_output`](Recorded::poll_output). Samples are stored for one day at most.

use core::time::Duration;
use std::collections::VecDeque;

use pleach_core::time::Instant;

use crate::{
    link::{
        Corrupt, LinkChange, LinkConfig, LinkState,
        bundle::{Bundle, Delivery, SharedConfig},
    },
    measure::{LinkReport, SAMPLE, Sample},
    scenario::{Action, Direction, Event, Scenario, SharedSpec},
};

/// Highest number of samples of a run: one day.
const MAX_SAMPLES: usize = 864_000;

/// One direction of several links in a scenario.
#[derive(Clone, Debug)]
pub struct Recorded<P> {
    bundle: Bundle<P>,
    direction: Direction,
    /// Pending changes, with the next change last.
    changes: Vec<TimedChange>,
    /// Start of the run. `None` once the run has begun.
    begin_at: Option<Instant>,
    /// End of the current sample. `None` before the run.
    sample_end: Option<Instant>,
    samples: Vec<Vec<Sample>>,
    sampled_bytes: Vec<u64>,
    sampled_losses: Vec<u64>,
    states: VecDeque<(usize, LinkState)>,
}

/// A change with its time.
#[derive(Clone, Debug)]
struct TimedChange {
    at: Instant,
    target: Target,
    change: LinkChange,
}

/// Target of a change: the index of a link, or of a shared bottleneck.
#[derive(Clone, Copy, Debug)]
enum Target {
    Link(usize),
    Shared(usize),
}

impl<P: Corrupt> Recorded<P> {
    /// Creates the links of `scenario` in one direction. They are followed by one unlimited link for each delay in
    /// `far`: the delays between the gateway and the far servers. The two directions use different random streams of
    /// `seed`.
    #[must_use]
    pub fn new(
        scenario: &Scenario,
        direction: Direction,
        far: &[Duration],
        seed: u64,
        now: Instant,
    ) -> Self {
        let links = scenario.links.iter();
        let far = far.iter().map(|&delay| {
            let line = LinkConfig {
                delay,
                ..LinkConfig::default()
            };
            (line, None)
        });
        let shared = |pick: fn(&SharedSpec) -> &SharedConfig| {
            scenario.shared.iter().map(pick).cloned().collect()
        };
        let bundle = match direction {
            Direction::Down => {
                let links = links.map(|link| (link.down.clone(), link.shared));
                Bundle::new(links.chain(far).collect(), shared(|s| &s.down), seed, now)
            }
            Direction::Up => {
                let links = links.map(|link| (link.up.clone(), link.shared));
                let seed = seed ^ 0x5555_5555_5555_5555;
                Bundle::new(links.chain(far).collect(), shared(|s| &s.up), seed, now)
            }
        };
        let count = scenario.links.len();
        Self {
            bundle,
            direction,
            changes: Vec::new(),
            begin_at: None,
            sample_end: None,
            samples: vec![Vec::new(); count],
            sampled_bytes: vec![0; count],
            sampled_losses: vec![0; count],
            states: VecDeque::new(),
        }
    }

    /// Schedules the start of the run at `at`: traces, counters and samples restart at that time. `events` are in
    /// order of time, and their times count from `at`.
    pub fn begin(&mut self, at: Instant, events: &[Event]) {
        self.begin_at = Some(at);
        let changes = events.iter().rev();
        let changes = changes.filter_map(|event| timed_change(event, at, self.direction));
        self.changes = changes.collect();
    }

    /// Performs the actions that are due: starts the run, records samples and applies changes. Returns whether the
    /// run begins with this call.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let began = self.begin_at.take_if(|at| *at <= now);
        if let Some(at) = began {
            self.bundle.restart(now);
            self.samples.iter_mut().for_each(Vec::clear);
            self.sampled_bytes.fill(0);
            self.sampled_losses.fill(0);
            // Sample ends count from `at`, not from `now`, so that a late caller does not record fewer samples.
            self.sample_end = Some(at + SAMPLE);
        }
        while let Some(end) = self.sample_end.filter(|&end| end <= now) {
            self.sample(end);
            self.sample_end = Some(end + SAMPLE);
        }
        // Changes are applied only after the run has begun, because their times are relative to its start.
        while self.begin_at.is_none()
            && let Some(change) = self.changes.pop_if(|change| change.at <= now)
        {
            match change.target {
                Target::Link(link) => {
                    self.bundle.apply(now, link, &change.change);
                    let state = change.change.state;
                    self.states.extend(state.map(|state| (link, state)));
                }
                Target::Shared(shared) => self.bundle.apply_shared(now, shared, &change.change),
            }
        }
        began.is_some()
    }

    /// Returns the next link whose state a change has set. The caller must inform the link's sender.
    pub fn poll_state(&mut self) -> Option<(usize, LinkState)> {
        self.states.pop_front()
    }

    /// Accepts a packet for link `link`; see [`Bundle::handle_packet`].
    pub fn handle_packet(&mut self, now: Instant, link: usize, len_bytes: usize, packet: P) {
        self.bundle.handle_packet(now, link, len_bytes, packet);
    }

    /// Returns the next packet that has arrived by `now`; see [`Bundle::poll_output`].
    pub fn poll_output(&mut self, now: Instant) -> Option<Delivery<P>> {
        self.bundle.poll_output(now)
    }

    /// Returns the time of the next event. `None` while all links are idle and no run is in progress.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let change = self.changes.last().map(|change| change.at);
        [
            self.bundle.poll_timeout(),
            self.begin_at.or(change),
            self.sample_end,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the measurements of each link of the scenario since the run began.
    #[must_use]
    pub fn report(&self) -> Vec<LinkReport> {
        let links = self.bundle.links().iter().zip(&self.samples);
        links
            .map(|(link, samples)| LinkReport {
                stats: *link.stats(),
                queue_delay: link.queue_delay().clone(),
                samples: samples.clone(),
            })
            .collect()
    }

    fn sample(&mut self, end: Instant) {
        for (link, samples) in self.samples.iter_mut().enumerate() {
            let stats = self.bundle.links()[link].stats();
            let (tx_bytes, lost_pkts) = (stats.tx_bytes, stats.lost_pkts());
            let sample = Sample {
                tx_bytes: tx_bytes.saturating_sub(self.sampled_bytes[link]),
                lost_pkts: lost_pkts.saturating_sub(self.sampled_losses[link]),
                longest_wait: self.bundle.take_longest_wait(link),
                capacity: self.bundle.capacity_between(link, end - SAMPLE, end),
            };
            self.sampled_bytes[link] = tx_bytes;
            self.sampled_losses[link] = lost_pkts;
            if samples.len() < MAX_SAMPLES {
                samples.push(sample);
            }
        }
    }
}

fn timed_change(event: &Event, begin: Instant, direction: Direction) -> Option<TimedChange> {
    let (target, directions, change) = match &event.action {
        Action::Link {
            link,
            directions,
            change,
        } => (Target::Link(*link), directions, change),
        Action::Shared {
            shared,
            directions,
            change,
        } => (Target::Shared(*shared), directions, change),
        Action::Daemon { .. } | Action::Weights { .. } => return None,
    };
    let is_included = match direction {
        Direction::Down => directions.has_down(),
        Direction::Up => directions.has_up(),
    };
    is_included.then(|| TimedChange {
        at: begin + event.at,
        target,
        change: change.clone(),
    })
}
