//! Startup: searches for the capacity by sending at a multiple of the delivery rate, or from a remembered rate.
//!
//! A round is *flat* if the delivery rate grows by less than a quarter although the previous round sent over a quarter
//! more than the capacity. Startup ends after two consecutive flat rounds. A flat round that ends with a standing queue
//! of more than twice the level `HIGH` counts twice. Congestion, or a queue of more than four times that level, ends
//! startup at once.

use core::time::Duration;

use super::{
    LEAST_ROUND,
    recalled::{Evidence, Recalled, Verdict},
};
use crate::{
    path::{
        memory::PathMemory,
        model::{HIGH, Model, Signals},
    },
    time::Instant,
    units::{Bitrate, Bytes},
};

/// State of the search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Startup {
    basis: Basis,
    /// Number of consecutive flat rounds; a flat round that ends with a long queue counts twice.
    flat_rounds: u32,
}

/// Starting point of the search.
#[derive(Clone, Copy, Debug, Default)]
enum Basis {
    #[default]
    Nothing,
    Memory(Recalled),
}

impl Startup {
    pub(super) const fn from_memory(memory: PathMemory) -> Self {
        Self {
            basis: Basis::Memory(Recalled::new(memory)),
            flat_rounds: 0,
        }
    }

    /// Counts a finished round. `is_flat`: the delivery rate did not grow although the previous round sent more than
    /// the capacity. `has_queue`: the standing queue is long.
    pub(super) const fn on_round(&mut self, is_flat: bool, has_queue: bool) {
        self.flat_rounds = if is_flat {
            self.flat_rounds + 1 + has_queue as u32
        } else {
            0
        };
    }

    /// Whether the search is over because enough rounds were flat.
    pub(super) const fn is_flat(&self) -> bool {
        self.flat_rounds >= FLAT_ROUNDS
    }

    /// Tests a remembered rate. Returns whether the rate is about right and the path is saturated, which means that
    /// the standing queue is at least a third above `low`.
    pub(super) fn confirms(
        &mut self,
        now: Instant,
        signals: &Signals,
        low: Duration,
        model: &Model,
    ) -> bool {
        let Basis::Memory(recalled) = &mut self.basis else {
            return false;
        };
        let evidence = Evidence {
            queue: model.queue.standing(),
            late: model.queue.latest(),
            low: low + low / 3,
            high: model.noise(HIGH),
            most: model.rate.max(),
            patience: signals.rtt.max(LEAST_ROUND) * 2,
        };
        match recalled.on_report(now, &evidence) {
            Verdict::Full => return true,
            Verdict::Open => {}
            Verdict::Wrong => self.basis = Basis::Nothing,
        }
        false
    }

    /// The remembered rate, if the RTT fits the remembered path.
    pub(super) fn remembered(&self, rtt: Duration) -> Option<Bitrate> {
        match self.basis {
            Basis::Nothing => None,
            Basis::Memory(recalled) => recalled.rate(rtt),
        }
    }

    /// The pacing rate. `max`: maximum delivery rate.
    pub(super) fn pace(&self, rtt: Duration, max: Bitrate) -> Option<Bitrate> {
        let first = Bitrate::from_transfer(FIRST_WINDOW, rtt.max(LEAST_FIRST_RTT))?;
        let shown = max.scale(SEARCH_PERCENT, 100);
        let shown = match self.basis {
            Basis::Nothing => shown,
            Basis::Memory(recalled) => recalled.pace(rtt, shown),
        };
        Some(shown.max(first))
    }
}

/// Number of flat rounds that end startup. BBR's full-pipe check takes three rounds (draft-ietf-ccwg-bbr section
/// 4.3.1.2); here only rounds count whose previous round sent more than the capacity.
const FLAT_ROUNDS: u32 = 2;
/// Bytes sent in the first RTT: 16 full packets. TCP's initial window is 10 packets (RFC 6928).
const FIRST_WINDOW: Bytes = Bytes::new(24_000);
/// Minimum RTT assumed for the first RTT; shorter RTTs are not measured exactly.
const LEAST_FIRST_RTT: Duration = Duration::from_millis(4);
/// Pacing gain of startup, in percent. It is above 200, because TCP in slow start doubles its rate within an RTT and
/// the latest sample is older than an RTT.
pub(super) const SEARCH_PERCENT: u64 = 250;
