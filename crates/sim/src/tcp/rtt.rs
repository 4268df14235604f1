//! RTT estimation and retransmission timeout.
//!
//! RFC 6298 as in Linux. The deviation term never falls below [`MIN_DEVIATION`], so `RTO = SRTT + max(4 RTTVAR, 200
//! ms)` instead of a floor of one second on the sum. The deviation rises at once and falls once per RTT. If a sample
//! lies below the mean by more than the deviation, the deviation rises by only an eighth of the excess.

use core::time::Duration;

use pleach_core::time::Instant;

/// Timeout before the first sample, RFC 6298 section 2.1.
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);

/// Largest timeout, back-off included.
pub(super) const MAX_RTO: Duration = Duration::from_secs(120);

/// Smallest deviation term: Linux's `tcp_rto_min`.
pub(super) const MIN_DEVIATION: Duration = Duration::from_millis(200);

/// Length of a bucket of the minimum. The minimum expires after one to two buckets; Linux's window is 300 s.
const MIN_RTT_BUCKET: Duration = Duration::from_secs(150);

/// Estimator of one sender.
#[derive(Clone, Debug, Default)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    /// Mean deviation times four.
    deviation: Duration,
    /// Largest `deviation` of this round.
    max_deviation: Duration,
    /// Term that is added to the mean: four times the RFC's RTTVAR, with a lower bound.
    margin: Duration,
    /// Position whose acknowledgement ends the round.
    round_end: u64,
    backoff: u32,
    min: [Option<Duration>; 2],
    bucket_started_at: Instant,
}

impl RttEstimator {
    /// Processes a sample. `una` is the acknowledged position and `nxt` the next to be sent.
    pub(super) fn on_sample(&mut self, rtt: Duration, una: u64, nxt: u64) {
        self.backoff = 0;
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt * 2;
            self.margin = self.deviation.max(MIN_DEVIATION);
            self.max_deviation = self.margin;
            self.round_end = nxt;
            return;
        };
        let error = smoothed.abs_diff(rtt);
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
        let mean_deviation = self.deviation / 4;
        if error > mean_deviation {
            let rise = error - mean_deviation;
            self.deviation += if rtt < smoothed { rise / 8 } else { rise };
        } else {
            self.deviation -= mean_deviation - error;
        }
        if self.deviation > self.max_deviation {
            self.max_deviation = self.deviation;
            self.margin = self.margin.max(self.deviation);
        }
        if una > self.round_end {
            self.margin -= self.margin.saturating_sub(self.max_deviation) / 4;
            self.round_end = nxt;
            self.max_deviation = MIN_DEVIATION;
        }
    }

    /// Processes a sample for the minimum: the RTT without the receiver's delay.
    pub(super) fn on_min_sample(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.bucket_started_at) >= MIN_RTT_BUCKET {
            let [newest, _] = self.min;
            let is_stale = now.since(self.bucket_started_at) >= MIN_RTT_BUCKET * 2;
            self.min = [None, newest.filter(|_| !is_stale)];
            self.bucket_started_at = now;
        }
        let [newest, _] = &mut self.min;
        *newest = Some(newest.map_or(rtt, |min| min.min(rtt)));
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Returns the smallest RTT of the last minutes.
    pub(super) fn min(&self) -> Option<Duration> {
        self.min.iter().flatten().copied().min()
    }

    /// Returns the retransmission timeout, including back-off.
    pub(super) fn rto(&self) -> Duration {
        let base = self
            .smoothed
            .map_or(INITIAL_RTO, |smoothed| smoothed + self.margin);
        base.saturating_mul(1 << self.backoff.min(16)).min(MAX_RTO)
    }

    /// Doubles the timeout, RFC 6298 section 5.5.
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn first_sample_sets_mean_and_half_of_it_as_deviation() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.rto(), INITIAL_RTO);
        rtt.on_sample(300 * MS, 0, 10);
        assert_eq!(rtt.rto(), 300 * MS + 4 * 150 * MS);
    }

    #[test]
    fn steady_samples_leave_the_floor_of_the_deviation() {
        let mut rtt = RttEstimator::default();
        for round in 0..200 {
            rtt.on_sample(50 * MS, round, round);
        }
        let floor = 50 * MS + MIN_DEVIATION;
        assert!(rtt.rto() >= floor && rtt.rto() < floor + MS);
    }

    #[test]
    fn backs_off_exponentially_until_a_sample() {
        let mut rtt = RttEstimator::default();
        rtt.on_sample(100 * MS, 0, 1);
        let base = rtt.rto();
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto(), base * 4);
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto(), MAX_RTO);
        rtt.on_sample(100 * MS, 2, 3);
        assert!(rtt.rto() <= base);
    }

    #[test]
    fn minimum_is_forgotten() {
        let mut rtt = RttEstimator::default();
        rtt.on_min_sample(Instant::ZERO, 10 * MS);
        rtt.on_min_sample(Instant::from_millis(100_000), 20 * MS);
        assert_eq!(rtt.min(), Some(10 * MS));
        rtt.on_min_sample(Instant::from_millis(200_000), 20 * MS);
        rtt.on_min_sample(Instant::from_millis(360_000), 20 * MS);
        assert_eq!(rtt.min(), Some(20 * MS));
    }
}
