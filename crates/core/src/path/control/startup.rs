//! Startup: the capacity is searched by sending a multiple of what arrives, or from a remembered rate.
//!
//! The rate grows until more was sent than arrived and a round later no quarter more arrives, twice; a long queue or congestion
//! ends it at once.

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

/// A search under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Startup {
    basis: Basis,
    /// Rounds in a row in which a push brought no quarter more; a longer queue counts as one more.
    flat_rounds: u32,
}

/// What the search begins with.
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

    /// Takes a round that was pushed and brought no more (`is_flat`), under a queue that is long already or not.
    pub(super) const fn on_round(&mut self, is_flat: bool, has_queue: bool) {
        self.flat_rounds = if is_flat {
            self.flat_rounds + 1 + has_queue as u32
        } else {
            0
        };
    }

    /// Whether the search is over.
    pub(super) const fn is_flat(&self) -> bool {
        self.flat_rounds >= FLAT_ROUNDS
    }

    /// Puts a remembered rate to the test; whether it is right and the path saturated: its queue is a third above `low`.
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

    /// The remembered rate, if the path seems to be the one remembered.
    pub(super) fn remembered(&self, rtt: Duration) -> Option<Bitrate> {
        match self.basis {
            Basis::Nothing => None,
            Basis::Memory(recalled) => recalled.rate(rtt),
        }
    }

    /// The pace; `max`: the largest delivery rate.
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

/// BBR's full-pipe check takes three rounds (draft-ietf-ccwg-bbr section 4.3.1.2); a round here is of paths that are not
/// window-limited.
const FLAT_ROUNDS: u32 = 2;
/// Sent in the first round trip: 16 full packets, TCP's initial window (RFC 6928) and half as much.
const FIRST_WINDOW: Bytes = Bytes::new(24_000);
/// A shorter round trip is not measured exactly.
const LEAST_FIRST_RTT: Duration = Duration::from_millis(4);
/// TCP in slow start doubles its rate within a round trip, and the latest sample is older than that.
const SEARCH_PERCENT: u64 = 250;
