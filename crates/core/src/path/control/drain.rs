//! Drain: less is sent than the path carries until its queue is gone.
//!
//! A saturated path delivers its capacity, so the latest delivery rate counts if it is below the largest; but at least three
//! quarters of the largest, so that a path that only seems saturated loses little.
//!
//! Each drain is a test, because a path's own delay may have grown, or grow with load as a radio link's does. If the queue is as
//! long after four round trips although half of it would be gone, and all that was sent arrived, it is none: the base delay is
//! measured anew. If less arrived than was sent, the path has become slower, and the drain goes on by the delivery rate.

use core::time::Duration;

use crate::{
    path::model::{LEAST_RATE, Model},
    time::Instant,
    units::Bitrate,
};

/// A drain under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    since: Instant,
    /// The queue when it began, and the longest since.
    from: Duration,
    peak: Duration,
    /// The largest sending rate that arrived, since a round trip after the beginning.
    delivered: Bitrate,
    pace: Bitrate,
    /// By how much the pace is below the capacity.
    cut_percent: u32,
}

/// What a report says of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// The queue is below the goal.
    Empty,
    /// The delay is the path's own.
    NoQueue,
    /// Not over.
    Open,
    /// The queue is still there.
    Again(Drain),
}

impl Drain {
    /// A drain of the standing queue to `goal`, by what the path delivers.
    pub(super) fn begin(now: Instant, rtt: Duration, goal: Duration, model: &Model) -> Self {
        let max = model.max_rate();
        let carried = model.latest_rate().max(max.scale(3, 4)).min(max);
        Self::of(now, model.queue.standing(), goal, rtt, model.gross(carried))
    }

    /// A drain that would take about four round trips, as far as the cut is within its bounds.
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

    /// Takes a report. `tests`: a queue that does not go may be the path's own delay.
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
        // As soon as no sample covers the time before the drain.
        if elapsed > rtt + model.rate.least_time() {
            self.delivered = self.delivered.max(model.gross(model.latest_rate()));
        }
        if queue < goal {
            return Verdict::Empty;
        }
        // What is sent less than the path carries shortens a queue, as reports show from a round trip after the beginning on.
        let reduced = |elapsed: Duration| elapsed * self.cut_percent / 100;
        let is_testable = reduced(elapsed) > self.from / 2;
        let is_shown = reduced(elapsed.saturating_sub(rtt)) > self.from * 3 / 4;
        if elapsed <= (rtt * 4).max(LEAST_TEST) || (is_testable && !is_shown) {
            return Verdict::Open;
        }
        let is_slower = self.delivered < self.pace.scale(90, 100);
        // A queue that has grown is one: datagrams sent before the drain went on arriving for a round trip.
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

/// Reports and probes, which no pacer holds: on a slow path they would undo a drain.
const UNPACED: Bitrate = Bitrate::from_bps(80_000);
/// Shortest drain that is a test.
const LEAST_TEST: Duration = Duration::from_millis(250);
/// A shorter queue may be jitter that the mean does not show.
const NOT_JITTER: Duration = Duration::from_millis(25);
