//! The limit after a buffer overflow: a ceiling on the pacing rate that rises again over time.
//!
//! A buffer of a few packets overflows before its queue becomes visible. A window of packets ([`LossWindow`]) whose
//! loss is clearly above the loss floor therefore counts as congestion, and sets a ceiling 3 % below the delivered
//! rate (10 % if more than a quarter was lost). The ceiling stays for one second or four RTTs, whichever is longer,
//! and then rises by 2, 4, 8 … 25 % every two RTTs.
//!
//! The ceiling is removed when it is 50 % above the maximum delivery rate, or when the search for the capacity
//! restarts. Losses of packets sent before the ceiling do not set another ceiling. Two RTTs and one round after the
//! ceiling was set, all of these packets have been reported.

use core::time::Duration;

use super::LEAST_ROUND;
use crate::{
    path::model::{Model, Signals, loss_window::LossWindow},
    time::Instant,
    units::Bitrate,
};

/// The limit set by congestion, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    ceiling: Option<Ceiling>,
}

/// An upper bound on the pacing rate.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    pace: Bitrate,
    since: Instant,
    /// When the ceiling was last raised, and the next step in percent.
    raised_at: Instant,
    step: u64,
}

impl Limit {
    /// The maximum pacing rate; `None` if there is no limit.
    pub(super) fn ceiling(&self) -> Option<Bitrate> {
        self.ceiling.map(|ceiling| ceiling.pace)
    }

    /// Removes the limit, because the search for the capacity restarts.
    pub(super) const fn open(&mut self) {
        self.ceiling = None;
    }

    /// Sets a ceiling because of congestion, unless the lost packets may have been sent before the last ceiling.
    /// Returns whether a ceiling was set.
    pub(super) fn on_congestion(
        &mut self,
        now: Instant,
        signals: &Signals,
        model: &mut Model,
        window: LossWindow,
        is_searching: bool,
    ) -> bool {
        let before = self.ceiling;
        if before.is_some_and(|ceiling| !ceiling.is_settled(now, signals)) {
            return false;
        }
        // After heavy loss the full queue must be drained as well.
        let kept_percent = if window.is_heavy() { 90 } else { 97 };
        let carried = model.gross(window.rate).scale(kept_percent, 100);
        // A ceiling of zero would never rise.
        if carried == Bitrate::ZERO {
            return false;
        }
        // Senders that back off make the delivery rate fall below the capacity. Therefore the first overflow starts
        // from the maximum delivery rate, and further overflows lower the ceiling by bounded steps.
        let max = model.rate.max().map(|max| model.gross(max));
        let is_heavy = window.is_heavy() && !is_searching;
        let least = match (is_heavy, before) {
            (true, before) => before
                .map(|before| before.pace)
                .or(max)
                .map(|rate| rate.scale(70, 100)),
            (false, Some(before)) => Some(before.pace.scale(85, 100)),
            (false, None) => max.map(|max| max.scale(kept_percent, 100)),
        };
        // A ceiling is below the rate that the path carried, so loss under it is evidence of cross traffic or of a
        // slower path.
        if before.is_some() {
            let is_slower = window.lost > window.packets / 10;
            model
                .cross
                .on_test(now, false, is_slower.then_some(carried));
        }
        model.on_saturated(now);
        let pace = carried.max(least.unwrap_or(Bitrate::ZERO));
        self.ceiling = Some(Ceiling::new(now, pace));
        true
    }

    /// Raises the ceiling if a step is due, or removes it.
    pub(super) fn on_report(&mut self, now: Instant, signals: &Signals, model: &Model) {
        let Some(ceiling) = &mut self.ceiling else {
            return;
        };
        ceiling.rise(now, signals.rtt);
        if ceiling.pace > model.max_rate().scale(150, 100) {
            self.ceiling = None;
        }
    }
}

impl Ceiling {
    const fn new(now: Instant, pace: Bitrate) -> Self {
        Self {
            pace,
            since: now,
            raised_at: now,
            step: 2,
        }
    }

    /// Whether the losses reported now are of packets sent under the ceiling.
    fn is_settled(&self, now: Instant, signals: &Signals) -> bool {
        now.since(self.since) >= signals.rtt * 2 + LEAST_ROUND
    }

    /// Raises the ceiling if a step is due. `rtt` is the current RTT, because the RTT at the overflow may have been
    /// seconds longer.
    fn rise(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.since) < HOLD.max(rtt * 4) {
            self.raised_at = now;
        } else if now.since(self.raised_at) >= (rtt * 2).max(LEAST_RISE) {
            self.raised_at = now;
            self.pace = self.pace.scale(100 + self.step, 100);
            self.step = (self.step * 2).min(25);
        }
    }
}

/// Time for which the ceiling stays before it rises. CUBIC and BBR probe for more capacity one second or more after a
/// loss.
const HOLD: Duration = Duration::from_secs(1);
/// Minimum time between two rises: two delivery-rate samples.
const LEAST_RISE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_set_behind_a_queue_of_seconds_rises_when_that_has_gone() {
        let at = Instant::from_millis;
        let pace = Bitrate::from_mbps(9);
        for (rtt_ms, rises) in [(50, true), (2_400, false)] {
            let mut ceiling = Ceiling::new(at(0), pace);
            for ms in (0..=1_300).step_by(50) {
                ceiling.rise(at(ms), Duration::from_millis(rtt_ms));
            }
            assert_eq!(ceiling.pace > pace, rises, "{rtt_ms} ms");
        }
    }
}
