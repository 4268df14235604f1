//! Drain: the path is paced below its capacity until the standing queue is gone.
//!
//! A saturated path delivers its capacity, so the pacing rate is derived from the latest delivery rate if this rate
//! is below the maximum. It is derived from at least three quarters of the maximum, so that a path that only seems
//! saturated loses little throughput.
//!
//! Each drain is also a test whether the delay is a queue, because the base delay may have grown, or may grow with
//! load as on radio links. The delay is not a queue if, after four RTTs, it has not shrunk although the drain should
//! have removed half of the queue, and everything sent arrived. Then the base delay is measured again. If less
//! arrived than was sent, the path has become slower, and a new drain starts from the delivered rate.

use core::time::Duration;

use crate::{
    path::model::{LEAST_RATE, Model},
    time::Instant,
    units::Bitrate,
};

/// The current drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    since: Instant,
    /// Standing queue when the drain began.
    from: Duration,
    /// Longest standing queue since the drain began.
    peak: Duration,
    /// Maximum delivery rate, divided by (1 - loss floor). Only samples from about one RTT after the start of the drain
    /// on count.
    delivered: Bitrate,
    pace: Bitrate,
    /// Percentage by which the pacing rate is below the capacity.
    cut_percent: u32,
}

/// Result of a drain after a report.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// The standing queue is below the goal.
    Empty,
    /// The delay belongs to the path; it is not a queue.
    NoQueue,
    /// The drain goes on.
    Open,
    /// The queue remains: a new drain starts.
    Again(Drain),
}

impl Drain {
    /// Begins a drain of the standing queue down to `goal`, paced by the delivery rate.
    pub(super) fn begin(now: Instant, rtt: Duration, goal: Duration, model: &Model) -> Self {
        let max = model.max_rate();
        let carried = model.latest_rate().max(max.scale(3, 4)).min(max);
        Self::of(now, model.queue.standing(), goal, rtt, model.gross(carried))
    }

    /// Creates a drain whose pacing rate removes the excess queue in about four RTTs, with a cut of 8 to 40 %.
    fn of(now: Instant, queue: Duration, goal: Duration, rtt: Duration, carried: Bitrate) -> Self {
        let excess = queue.saturating_sub(goal).as_micros();
        let percent = excess * 100 / (rtt * 4).as_micros().max(1);
        let cut = u32::try_from(percent).unwrap_or(100).clamp(8, 40);
        let pace = carried.scale(u64::from(100 - cut), 100);
        Self {
            since: now,
            from: queue,
            peak: queue,
            delivered: Bitrate::ZERO,
            pace: pace.saturating_sub(UNPACED).max(LEAST_RATE),
            cut_percent: cut,
        }
    }

    pub(super) const fn pace(&self) -> Bitrate {
        self.pace
    }

    /// Processes a report. `tests`: whether a delay that does not shrink may be accepted as the path's own delay.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        rtt: Duration,
        goal: Duration,
        tests: bool,
        model: &mut Model,
    ) -> Verdict {
        let queue = model.queue.standing();
        let elapsed = now.since(self.since);
        self.peak = self.peak.max(queue);
        // From this time on, delivery-rate samples do not cover the time before the drain.
        if elapsed > rtt + model.rate.least_time() {
            self.delivered = self.delivered.max(model.gross(model.latest_rate()));
        }
        if queue < goal {
            return Verdict::Empty;
        }
        // Sending below the capacity shortens a queue; reports show the effect from one RTT after the drain began.
        let reduced = |elapsed: Duration| elapsed * self.cut_percent / 100;
        let is_testable = reduced(elapsed) > self.from / 2;
        let is_shown = reduced(elapsed.saturating_sub(rtt)) > self.from * 3 / 4;
        if elapsed <= (rtt * 4).max(LEAST_TEST) || (is_testable && !is_shown) {
            return Verdict::Open;
        }
        let is_slower = self.delivered < self.pace.scale(90, 100);
        // A delay that grew is a queue: for one RTT, datagrams sent before the drain kept arriving at the bottleneck.
        let has_grown = self.peak > (self.from * 3 / 2).max(NOT_JITTER) + model.jitter() * 2;
        let is_as_long = queue > self.from / 2 && !has_grown;
        let is_gone = queue <= self.from / 2 || !is_testable;
        let slower = is_slower.then_some(self.delivered);
        model.cross.on_test(now, is_gone, slower);
        if tests && is_as_long && is_testable && !is_slower {
            model.queue.rebase(now);
            return Verdict::NoQueue;
        }
        let carried = self.delivered.min(model.gross(model.max_rate()));
        Verdict::Again(Self::of(now, queue, goal, rtt, carried))
    }
}

/// Rate of reports and probes, which are not paced. Their rate is subtracted from the pacing rate, because on a slow
/// path they would undo a drain.
const UNPACED: Bitrate = Bitrate::from_bps(80_000);
/// Minimum duration of a drain that tests whether the delay is a queue.
const LEAST_TEST: Duration = Duration::from_millis(250);
/// Lower limit of the delay above which a delay that grew during a drain counts as a queue. A shorter delay may be
/// jitter that the mean jitter does not show.
const NOT_JITTER: Duration = Duration::from_millis(25);
