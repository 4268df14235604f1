//! `HyStart` (Ha and Rhee 2011): leaves slow start before the queue overflows.
//!
//! Both of Linux's detectors are on, with Linux's thresholds, from a window of [`LOW_WINDOW`]. Slow start ends when the
//! train of acknowledgements of a round lasts longer than half the minimum RTT, or when the smallest of the first
//! [`MIN_SAMPLES`] RTTs of a round exceeds the minimum by an eighth. As in Linux, up to half a millisecond is added for
//! aggregated acknowledgements ([`ACK_DELAY_LIMIT`]); the allowance decreases with the rate of the flow.

use core::time::Duration;

use pleach_core::time::Instant;

/// Window in segments from which the detectors are active.
pub(super) const LOW_WINDOW: u32 = 16;

/// Number of RTT samples that are examined per round.
const MIN_SAMPLES: u32 = 8;

/// Largest gap between acknowledgements within a train.
const ACK_GAP: Duration = Duration::from_millis(2);

/// Bounds of the delay threshold.
const MIN_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_THRESHOLD: Duration = Duration::from_millis(16);

/// Upper bound of the allowance for aggregation.
const ACK_DELAY_LIMIT: Duration = Duration::from_millis(1);

/// State of one round.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    round_started_at: Instant,
    round_end: u64,
    last_ack_at: Instant,
    min_rtt: Option<Duration>,
    samples: u32,
}

impl HyStart {
    /// Begins a round that ends when position `nxt` is acknowledged.
    pub(super) fn start_round(&mut self, now: Instant, nxt: u64) {
        *self = Self {
            round_started_at: now,
            round_end: nxt,
            last_ack_at: now,
            min_rtt: None,
            samples: 0,
        };
    }

    /// Whether slow start should end. `rtt` is the newest sample and `delay_min` the smallest ever. `window_time` is
    /// the transmission time of 128 KiB at the flow's rate (its allowance for aggregated acknowledgements).
    pub(super) fn should_exit(
        &mut self,
        now: Instant,
        una: u64,
        nxt: u64,
        rtt: Duration,
        delay_min: Duration,
        window_time: Duration,
    ) -> bool {
        if una > self.round_end {
            self.start_round(now, nxt);
        }
        let mut should_exit = false;
        if now.since(self.last_ack_at) <= ACK_GAP {
            self.last_ack_at = now;
            let threshold = (delay_min + window_time.min(ACK_DELAY_LIMIT)) / 2;
            should_exit |= now.since(self.round_started_at) > threshold;
        }
        let min_rtt = self.min_rtt.map_or(rtt, |min| min.min(rtt));
        self.min_rtt = Some(min_rtt);
        if self.samples < MIN_SAMPLES {
            self.samples += 1;
        } else {
            let margin = (delay_min / 8).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
            should_exit |= min_rtt > delay_min + margin;
        }
        should_exit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Feeds `count` acknowledgements of one round, `gap` apart. Returns the number of acknowledgements until slow
    /// start should end.
    fn leave_after(count: u64, gap: Duration, rtt: Duration, delay_min: Duration) -> Option<u64> {
        let mut hystart = HyStart::default();
        hystart.start_round(Instant::ZERO, 1_000_000);
        let mut now = Instant::ZERO;
        (1..=count).find(|_| {
            now += gap;
            hystart.should_exit(now, 5, 2_000_000, rtt, delay_min, Duration::ZERO)
        })
    }

    #[test]
    fn a_long_train_ends_slow_start_at_half_the_round_trip() {
        assert_eq!(leave_after(100, MS, 40 * MS, 40 * MS), Some(21));
        assert_eq!(leave_after(20, MS, 40 * MS, 40 * MS), None);
    }

    #[test]
    fn gaps_break_the_train() {
        assert_eq!(leave_after(100, 3 * MS, 40 * MS, 40 * MS), None);
    }

    #[test]
    fn a_risen_delay_ends_slow_start_after_eight_samples() {
        assert_eq!(leave_after(100, 3 * MS, 46 * MS, 40 * MS), Some(9));
        assert_eq!(leave_after(100, 3 * MS, 44 * MS, 40 * MS), None);
    }
}
