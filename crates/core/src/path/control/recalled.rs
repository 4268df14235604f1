//! A remembered rate, put to the test.
//!
//! Startup begins at [`FIRST_PERCENT`] of a remembered rate. Then:
//!
//! - A queue or loss: the path is slower. One report whose minimum delay is long ends the test, so the excess is a round trip and a
//!   report long; startup goes on by the delivery rate.
//! - [`NEAR_PERCENT`] of the memory is delivered: the memory is about right. The pace goes to [`NEXT_PERCENT`]. A short queue
//!   then shows that the path is saturated; without a queue within two round trips it carries more, and startup goes on.
//!
//! A memory that is too low costs two round trips, and one that is too high a queue of a round trip times the excess.

use core::time::Duration;

use crate::{path::memory::PathMemory, time::Instant, units::Bitrate};

/// A remembered rate that is not confirmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recalled {
    memory: PathMemory,
    /// Since when about as much was delivered.
    near_since: Option<Instant>,
}

/// What a report says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is about right, and the path is full.
    Full,
    /// Nothing yet.
    Open,
    /// It is wrong.
    Wrong,
}

/// What a report says of the path while its rate is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// The standing queue, and how much the least delay of this report is beyond the path's own.
    pub(super) queue: Duration,
    pub(super) late: Duration,
    /// A queue above these needs no more, or is too long.
    pub(super) low: Duration,
    pub(super) high: Duration,
    /// The largest rate delivered.
    pub(super) most: Option<Bitrate>,
    /// Two round trips.
    pub(super) patience: Duration,
}

impl Recalled {
    pub(super) const fn new(memory: PathMemory) -> Self {
        Self {
            memory,
            near_since: None,
        }
    }

    /// What a policy may take the path for, whose round trip is `rtt`; `None` if it seems to be another.
    pub(super) fn rate(self, rtt: Duration) -> Option<Bitrate> {
        let rate = self.memory.rate.scale(FIRST_PERCENT, 100);
        self.memory.fits(rtt).then_some(rate)
    }

    /// The pace of the search, which without memory would be `pace`.
    pub(super) fn pace(self, rtt: Duration, pace: Bitrate) -> Bitrate {
        let next = self.memory.rate.scale(NEXT_PERCENT, 100);
        match self.rate(rtt) {
            None => pace,
            Some(_) if self.near_since.is_some() => next,
            Some(rate) => pace.max(rate).min(next),
        }
    }

    pub(super) fn on_report(&mut self, now: Instant, evidence: &Evidence) -> Verdict {
        let Evidence {
            queue,
            late,
            low,
            high,
            most,
            patience,
        } = *evidence;
        let most = most.unwrap_or(Bitrate::ZERO);
        let is_near = most >= self.memory.rate.scale(NEAR_PERCENT, 100);
        if is_near && queue >= low {
            return Verdict::Full;
        }
        if queue > high || late > high * 2 {
            return Verdict::Wrong;
        }
        if !is_near {
            return Verdict::Open;
        }
        let since = *self.near_since.get_or_insert(now);
        if most >= self.memory.rate && now.since(since) > patience {
            return Verdict::Wrong;
        }
        Verdict::Open
    }
}

/// What of a remembered rate is sent before anything has come back.
const FIRST_PERCENT: u64 = 70;
/// What of it must be delivered for it to be about right: what is sent at first, less what measuring misses.
const NEAR_PERCENT: u64 = 60;
/// What is sent then: a tenth more is a queue of some milliseconds within two round trips, if it is right.
const NEXT_PERCENT: u64 = 110;
