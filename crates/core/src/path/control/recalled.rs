//! The test of a remembered rate.
//!
//! Startup begins at [`FIRST_PERCENT`] of the remembered rate. Then:
//!
//! - A queue or loss shows that the path is slower. One report whose minimum delay is long ends the test, so too high
//!   a rate is sent for only one RTT and one report interval. Startup continues from the delivery rate.
//! - If [`NEAR_PERCENT`] of the remembered rate is delivered, the remembered rate is about right, and the pacing rate
//!   becomes [`NEXT_PERCENT`] of it. A short queue then shows that the path is saturated. If no queue appears within
//!   two RTTs, the path carries more, and startup continues.
//!
//! A remembered rate that is too low costs two RTTs. A remembered rate that is too high builds a queue: the data sent
//! above the capacity in one RTT.

use core::time::Duration;

use crate::{path::memory::PathMemory, time::Instant, units::Bitrate};

/// A remembered rate that is not confirmed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recalled {
    memory: PathMemory,
    /// Since when the delivery rate has been near the remembered rate.
    near_since: Option<Instant>,
}

/// Result of the test after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The remembered rate is about right, and the path is saturated.
    Full,
    /// Undecided.
    Open,
    /// The remembered rate is wrong.
    Wrong,
}

/// The measurements by which a remembered rate is tested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// The standing queue.
    pub(super) queue: Duration,
    /// How much the minimum delay of this report exceeds the base delay.
    pub(super) late: Duration,
    /// Standing queue from which the path counts as saturated.
    pub(super) low: Duration,
    /// Standing queue above which the remembered rate is too high.
    pub(super) high: Duration,
    /// Maximum delivery rate.
    pub(super) most: Option<Bitrate>,
    /// Time to wait for a queue: two RTTs.
    pub(super) patience: Duration,
}

impl Recalled {
    pub(super) const fn new(memory: PathMemory) -> Self {
        Self {
            memory,
            near_since: None,
        }
    }

    /// The rate that a scheduling policy may assume for a path with this `rtt`; `None` if the RTT indicates another
    /// path.
    pub(super) fn rate(self, rtt: Duration) -> Option<Bitrate> {
        let rate = self.memory.rate.scale(FIRST_PERCENT, 100);
        self.memory.fits(rtt).then_some(rate)
    }

    /// The pacing rate of startup. `pace`: the pacing rate of startup without a remembered rate.
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

/// Pacing rate before the first report, in percent of the remembered rate.
const FIRST_PERCENT: u64 = 70;
/// Delivery rate, in percent of the remembered rate, from which the memory counts as about right: the initial 70 %
/// minus a measurement error.
const NEAR_PERCENT: u64 = 60;
/// Pacing rate once the memory counts as about right, in percent of the remembered rate. A tenth more than the
/// capacity builds a queue of some milliseconds within two RTTs.
const NEXT_PERCENT: u64 = 110;
