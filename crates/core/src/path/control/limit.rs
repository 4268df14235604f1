//! The limit after an overflow: a ceiling on the pace that rises again.
//!
//! A queue of a few packets overflows before it is seen. So a window of packets ([`LossWindow`]) with clearly more loss than the
//! loss floor is congestion, and sets a ceiling 3 % below what the path delivered (10 % if a quarter was lost). It holds for a
//! second or four round trips, and then rises by 2, 4, 8 … 25 % every two round trips.
//!
//! It ends when it is 50 % above the largest delivery rate, or when the capacity is searched anew. Losses of before the ceiling set
//! no other: they are all reported after two round trips and a round.

use core::time::Duration;

use super::LEAST_ROUND;
use crate::{
    path::model::{Model, Signals, loss_window::LossWindow},
    time::Instant,
    units::Bitrate,
};

/// What congestion by loss left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    ceiling: Option<Ceiling>,
}

/// A bound on the pace.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    pace: Bitrate,
    since: Instant,
    /// When it was last raised, and the next step in percent.
    raised_at: Instant,
    step: u64,
}

impl Limit {
    /// The largest pace, if there is a limit.
    pub(super) fn ceiling(&self) -> Option<Bitrate> {
        self.ceiling.map(|ceiling| ceiling.pace)
    }

    /// Lifts the limit: the capacity is searched anew.
    pub(super) const fn open(&mut self) {
        self.ceiling = None;
    }

    /// Takes congestion. Sets a ceiling, unless the losses may be of before the last; whether it did.
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
        // The queue that overflowed that much has to be drained as well.
        let kept_percent = if window.is_heavy() { 90 } else { 97 };
        let carried = model.gross(window.rate).scale(kept_percent, 100);
        // A ceiling of nothing would never rise.
        if carried == Bitrate::ZERO {
            return false;
        }
        // Senders that back off make the delivery rate fall below the capacity. So the largest delivery rate is believed at the
        // first overflow, and further ones lower the ceiling by steps.
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
        // Under a ceiling less was sent than the path carried.
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

    /// Raises the ceiling if that is due, or lifts it.
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

    /// Whether losses reported now were sent under the ceiling.
    fn is_settled(&self, now: Instant, signals: &Signals) -> bool {
        now.since(self.since) >= signals.rtt * 2 + LEAST_ROUND
    }

    /// Rises if that is due. `rtt` is the present round-trip time: the one at the overflow may have been seconds longer.
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

/// How long the ceiling does not rise: CUBIC and BBR probe for more a second or more after a loss.
const HOLD: Duration = Duration::from_secs(1);
/// Shortest time between two rises: two samples of the delivery rate.
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
