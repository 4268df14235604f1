//! RACK: time-based loss detection, RFC 8985 section 6.
//!
//! A segment is lost when a segment sent later was delivered and at least an RTT plus a reordering window has passed
//! since the earlier segment was sent. The window is zero while no reordering has been detected and the sender is in
//! recovery or three segments are selectively acknowledged. Otherwise it is a quarter of the minimum RTT. Each round
//! with a DSACK adds another quarter for the next 16 recoveries; the window is at most the smoothed RTT.
//!
//! One difference from the RFC: the timer waits for the first segment that could be lost, not for the last one, which
//! avoids iterating over all of them.

use core::time::Duration;

use pleach_core::time::Instant;

use super::scoreboard::Sent;

/// Number of recoveries for which a widened window remains, section 6.2.
const PERSIST_RECOVERIES: u32 = 16;

/// State of RACK in one sender.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// Sending time and end of the latest sent segment that was delivered.
    newest: Option<(Instant, u64)>,
    rtt: Duration,
    /// Reordering window in quarters of the minimum RTT.
    steps: u32,
    persist: u32,
    has_dsack: bool,
    /// Position that must be acknowledged before the window is widened again.
    round_end: u64,
    /// Whether reordering was ever detected.
    pub(super) is_reordering_seen: bool,
}

/// Inputs that determine the reordering window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) min_rtt: Duration,
    pub(super) smoothed_rtt: Duration,
    /// Whether the sender is in recovery or after a timeout.
    pub(super) is_recovering: bool,
    /// Whether at least the threshold of segments is selectively acknowledged.
    pub(super) is_threshold_reached: bool,
}

impl Rack {
    pub(super) const fn new() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            steps: 1,
            persist: 0,
            has_dsack: false,
            round_end: 0,
            is_reordering_seen: false,
        }
    }

    /// Processes a newly delivered segment (section 6.2 step 2). `segment` is its state before the delivery.
    pub(super) fn on_delivered(&mut self, now: Instant, segment: &Sent, min_rtt: Duration) {
        let rtt = now.since(segment.sent_at);
        if segment.was_resent && rtt < min_rtt {
            // The acknowledgement belongs to the original, not to the retransmission.
            return;
        }
        self.rtt = rtt;
        let sent = (segment.sent_at, segment.end);
        self.newest = Some(self.newest.map_or(sent, |newest| newest.max(sent)));
    }

    /// Records a DSACK: a retransmission was spurious.
    pub(super) fn on_dsack(&mut self) {
        self.has_dsack = true;
    }

    /// Widens the window once per round (section 6.2 step 4). `una` is the acknowledged position and `nxt` the next to
    /// be sent.
    pub(super) fn update_window(&mut self, una: u64, nxt: u64) {
        if una < self.round_end {
            self.has_dsack = false;
        }
        if self.has_dsack {
            self.steps = (self.steps + 1).min(255);
            self.has_dsack = false;
            self.round_end = nxt;
            self.persist = PERSIST_RECOVERIES;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// Called when a recovery ended without being undone.
    pub(super) fn on_recovery_end(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Called when a reduction proves unnecessary. The window stays wide for one more recovery.
    pub(super) fn on_undo(&mut self) {
        self.persist = (self.persist + 1).min(PERSIST_RECOVERIES);
    }

    /// Returns the reordering window.
    pub(super) fn window(&self, situation: &Situation) -> Duration {
        if !self.is_reordering_seen && (situation.is_recovering || situation.is_threshold_reached) {
            return Duration::ZERO;
        }
        (situation.min_rtt / 4 * self.steps).min(situation.smoothed_rtt)
    }

    /// Returns the time until `segment` counts as lost. `None` if no segment sent later was delivered.
    pub(super) fn time_left(
        &self,
        now: Instant,
        segment: &Sent,
        window: Duration,
    ) -> Option<Duration> {
        (self.newest? > (segment.sent_at, segment.end)).then(|| self.age_left(now, segment, window))
    }

    /// Returns the time until `segment` counts as lost for the retransmission timer (section 6.3), regardless of
    /// deliveries.
    pub(super) fn age_left(&self, now: Instant, segment: &Sent, window: Duration) -> Duration {
        (self.rtt + window).saturating_sub(now.since(segment.sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const CALM: Situation = Situation {
        min_rtt: Duration::from_millis(40),
        smoothed_rtt: Duration::from_millis(60),
        is_recovering: false,
        is_threshold_reached: false,
    };

    #[test]
    fn the_window_closes_in_recovery_unless_reordering_was_seen() {
        let mut rack = Rack::new();
        let recovering = Situation {
            is_recovering: true,
            ..CALM
        };
        assert_eq!(rack.window(&CALM), 10 * MS);
        assert_eq!(rack.window(&recovering), Duration::ZERO);
        rack.is_reordering_seen = true;
        assert_eq!(rack.window(&recovering), 10 * MS);
    }

    #[test]
    fn dsacks_widen_once_a_round_up_to_the_round_trip_and_wear_off() {
        let mut rack = Rack::new();
        rack.on_dsack();
        rack.update_window(0, 100);
        rack.on_dsack();
        rack.update_window(50, 200);
        assert_eq!(rack.window(&CALM), 20 * MS);
        for round in 1..9 {
            rack.on_dsack();
            rack.update_window(round * 100, round * 100 + 100);
        }
        assert_eq!(rack.window(&CALM), CALM.smoothed_rtt);
        (0..PERSIST_RECOVERIES).for_each(|_| rack.on_recovery_end());
        rack.update_window(2_000, 2_000);
        assert_eq!(rack.window(&CALM), 10 * MS);
    }
}
