//! Base delay, standing queue and jitter of a path, from the minimum one-way delays of its reports.
//!
//! - *Standing delay*: the minimum over 40 ms and 24 packets ([`Standing`]). Jitter is shorter.
//! - *Base delay*: the minimum of standing delays over 10 s. Once a drain has shown that a queue was none, the path's own delay
//!   depends on load, and only standing delays under load count ([`Load`]).
//! - *Standing queue*: standing delay less base delay.
//! - *Jitter*: the mean difference of the delays of successive reports. A queue does not move the delay from one report to the
//!   next.

use core::time::Duration;

use super::{Signals, load::Load, standing::Standing};
use crate::{
    path::{
        delay::RelativeDelay,
        rate::DeliveryRate,
        window::{MIN_WINDOW, WindowedMin},
    },
    time::Instant,
    units::Bitrate,
};

/// The queue of one path.
#[derive(Clone, Debug)]
pub(in crate::path) struct Queue {
    /// Delays below are microseconds beyond the first.
    reference: Option<RelativeDelay>,
    delays: Standing,
    latest_us: i32,
    jitter: Duration,
    base: WindowedMin<i32>,
    base_of: BaseOf,
    load: Load,
    /// When a delay was last considered for the base.
    based_at: Instant,
    standing: Duration,
    reported_at: Instant,
    emptied_at: Instant,
}

/// Delays that count for the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BaseOf {
    All,
    /// Under load only: the path's own delay grows with it.
    Loaded,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            reference: None,
            delays: Standing::default(),
            latest_us: 0,
            jitter: Duration::ZERO,
            base: WindowedMin::new(MIN_WINDOW),
            base_of: BaseOf::All,
            load: Load::default(),
            based_at: Instant::ZERO,
            standing: Duration::ZERO,
            reported_at: Instant::ZERO,
            emptied_at: Instant::ZERO,
        }
    }
}

impl Queue {
    /// Takes a report. `is_known`: the path was saturated lately; a base under load is forgotten otherwise.
    pub(in crate::path) fn on_report(
        &mut self,
        now: Instant,
        signals: &Signals,
        rate: &DeliveryRate,
        is_known: bool,
    ) {
        if self.reference.is_none() {
            self.emptied_at = now;
        }
        let reference = *self.reference.get_or_insert(signals.delay);
        let delay_us = signals.delay.micros_from(reference);
        let step = Duration::from_micros(delay_us.abs_diff(self.latest_us).into());
        self.latest_us = delay_us;
        self.jitter = self.jitter * 15 / 16 + step.min(MOST_STEP) / 16;
        let standing_us = self.delays.insert(now, delay_us, signals.received);
        if !is_known {
            self.base_of = BaseOf::All;
        }
        let max = rate.max().unwrap_or(Bitrate::ZERO);
        self.load.on_report(now, signals, max);
        if self.counts(now, rate) {
            self.base.insert(now, standing_us);
            self.based_at = now;
        }
        let base_us = self.base.min().unwrap_or(standing_us);
        let standing_us = standing_us.saturating_sub(base_us);
        self.standing = Duration::from_micros(u64::try_from(standing_us).unwrap_or(0));
        self.reported_at = now;
        if self.standing < EMPTY {
            self.emptied_at = now;
        }
    }

    /// Whether the present delay counts for the base. Under [`BaseOf::Loaded`] one does after 5 s in any case.
    fn counts(&self, now: Instant, rate: &DeliveryRate) -> bool {
        let max = rate.max().unwrap_or(Bitrate::ZERO);
        let latest = rate.latest().map_or(max, |sample| sample.rate);
        match self.base_of {
            BaseOf::All => true,
            BaseOf::Loaded => {
                let is_steady = self.load.is_steady(now);
                latest >= max.scale(1, 2) && (is_steady || now.since(self.based_at) > EMPTY_EVERY)
            }
        }
    }

    /// The present delay is the path's own: a drain did not reduce it. `of_load`: delays without load count no longer.
    /// Returns the queue that was none.
    pub(in crate::path) fn rebase(&mut self, now: Instant, of_load: bool) -> Duration {
        self.base = WindowedMin::new(MIN_WINDOW);
        self.base.insert(now, self.delays.min());
        if of_load {
            self.base_of = BaseOf::Loaded;
        }
        self.emptied_at = now;
        core::mem::take(&mut self.standing)
    }

    /// The standing queue of the last report.
    pub(in crate::path) const fn standing(&self) -> Duration {
        self.standing
    }

    /// The standing queue, if nothing was sent since the last report.
    pub(in crate::path) fn remaining(&self, now: Instant) -> Duration {
        self.standing.saturating_sub(now.since(self.reported_at))
    }

    /// How much the delay of the last report exceeds the base delay.
    pub(in crate::path) fn latest(&self) -> Duration {
        let base_us = self.base.min().unwrap_or(self.latest_us);
        let late_us = self.latest_us.saturating_sub(base_us);
        Duration::from_micros(u64::try_from(late_us).unwrap_or(0))
    }

    /// The mean difference of the delays of successive reports.
    pub(in crate::path) const fn jitter(&self) -> Duration {
        self.jitter
    }

    /// Whether the queue has to be emptied, for the base delay may be a queue that never went.
    pub(in crate::path) fn is_stale(&self, now: Instant) -> bool {
        now.since(self.emptied_at) > EMPTY_EVERY
    }
}

/// A larger difference of two reports is not jitter.
const MOST_STEP: Duration = Duration::from_millis(50);
/// A shorter queue counts as empty: below the jitter of any access.
pub(in crate::path) const EMPTY: Duration = Duration::from_millis(1);
/// How often the queue has to be empty: twice within the window of the base delay.
const EMPTY_EVERY: Duration = Duration::from_secs(5);
