//! Base delay, standing queue and jitter of a path, from the minimum one-way delays of its reports.
//!
//! - *Standing delay*: the minimum over 40 ms and 24 packets ([`Standing`]); jitter does not last that long.
//! - *Base delay*: the minimum of standing delays over 10 s. It is measured again from the start when a drain has
//!   shown that the delay is not a queue.
//! - *Standing queue*: standing delay less base delay.
//! - *Jitter*: the mean absolute difference between the delays of successive reports. A queue hardly changes from one
//!   report to the next, so it does not count as jitter.

use core::time::Duration;

use super::{Signals, standing::Standing};
use crate::{
    path::{
        delay::RelativeDelay,
        window::{MIN_WINDOW, WindowedMin},
    },
    time::Instant,
};

/// The queue of one path.
#[derive(Clone, Debug)]
pub(in crate::path) struct Queue {
    /// The first delay. The fields `latest_us` and `base` are in microseconds relative to it.
    reference: Option<RelativeDelay>,
    delays: Standing,
    latest_us: i32,
    jitter: Duration,
    base: WindowedMin<i32>,
    standing: Duration,
    reported_at: Instant,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            reference: None,
            delays: Standing::default(),
            latest_us: 0,
            jitter: Duration::ZERO,
            base: WindowedMin::new(MIN_WINDOW),
            standing: Duration::ZERO,
            reported_at: Instant::ZERO,
        }
    }
}

impl Queue {
    /// Processes a report.
    pub(in crate::path) fn on_report(&mut self, now: Instant, signals: &Signals) {
        let reference = *self.reference.get_or_insert(signals.delay);
        let delay_us = signals.delay.micros_from(reference);
        let step = Duration::from_micros(delay_us.abs_diff(self.latest_us).into());
        self.latest_us = delay_us;
        self.jitter = self.jitter * 15 / 16 + step.min(MOST_STEP) / 16;
        let standing_us = self.delays.insert(now, delay_us, signals.received);
        self.base.insert(now, standing_us);
        let base_us = self.base.min().unwrap_or(standing_us);
        let standing_us = standing_us.saturating_sub(base_us);
        self.standing = Duration::from_micros(u64::try_from(standing_us).unwrap_or(0));
        self.reported_at = now;
    }

    /// Makes the present standing delay the base delay, because a drain did not reduce it.
    pub(in crate::path) fn rebase(&mut self, now: Instant) {
        self.base = WindowedMin::new(MIN_WINDOW);
        self.base.insert(now, self.delays.min());
        self.standing = Duration::ZERO;
    }

    /// Forgets all delays, because the clocks of the two ends may have drifted apart since the last report.
    pub(in crate::path) fn forget_delays(&mut self) {
        *self = Self {
            jitter: self.jitter,
            ..Self::default()
        };
    }

    /// The standing queue of the last report.
    pub(in crate::path) const fn standing(&self) -> Duration {
        self.standing
    }

    /// The standing queue that remains now if nothing was sent since the last report.
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
}

/// Maximum counted difference between the delays of two reports; a larger difference is not jitter.
const MOST_STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn report(queue: &mut Queue, at: u64, delay_us: u32) {
        let signals = Signals {
            delay: RelativeDelay(delay_us),
            rtt: Duration::from_millis(20),
            received: 12,
            lost: 0,
            floor_ppm: None,
            is_limited: false,
            sent_bytes: 0,
            received_bytes: 0,
            pace: None,
        };
        queue.on_report(Instant::from_millis(at), &signals);
    }

    #[test]
    fn a_drift_of_the_clocks_during_a_rest_is_no_queue() {
        let hour = 3_600_000;
        for (forgets, standing) in [(true, 0), (false, 72)] {
            let mut queue = Queue::default();
            for number in 0..50 {
                report(&mut queue, number * 20, 10_000);
            }
            if forgets {
                queue.forget_delays();
            }
            for number in 0..50 {
                report(&mut queue, hour + number * 20, 82_000);
            }
            assert_eq!(queue.standing(), Duration::from_millis(standing));
        }
    }
}
