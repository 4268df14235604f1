//! RTT estimation, RFC 9002 section 5.

use core::time::Duration;

use super::INITIAL_RTT;

/// RFC 9002 `kGranularity`.
pub(super) const GRANULARITY: Duration = Duration::from_millis(1);

/// Estimator of one sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttEstimator {
    latest: Duration,
    smoothed: Option<Duration>,
    variation: Duration,
    min: Duration,
}

impl RttEstimator {
    /// Processes a sample. `ack_delay` is the delay of the acknowledgement that the peer reports.
    pub(super) fn on_sample(&mut self, rtt: Duration, ack_delay: Duration) {
        self.latest = rtt;
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.variation = rtt / 2;
            self.min = rtt;
            return;
        };
        self.min = self.min.min(rtt);
        let adjusted = if self.min + ack_delay <= rtt {
            rtt - ack_delay
        } else {
            rtt
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = Some((smoothed * 7 + adjusted) / 8);
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Returns the smoothed RTT, or the initial value before the first sample.
    pub(super) fn mean(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTT)
    }

    /// Returns the age at which a packet is lost: section 6.1.2.
    pub(super) fn loss_delay(&self) -> Duration {
        let rtt = self.mean().max(self.latest);
        (rtt * 9 / 8).max(GRANULARITY)
    }

    /// Returns the time to the first probe, without the peer's delay: section 6.2.1.
    pub(super) fn probe_timeout(&self) -> Duration {
        let variation = match self.smoothed {
            Some(_) => self.variation,
            None => INITIAL_RTT / 2,
        };
        self.mean() + (variation * 4).max(GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn begins_with_a_second_and_follows_the_samples() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.probe_timeout(), 999 * MS);
        rtt.on_sample(80 * MS, Duration::ZERO);
        assert_eq!(rtt.probe_timeout(), 240 * MS);
        assert_eq!(rtt.loss_delay(), 90 * MS);
        // The peer's delay is subtracted, unless the rest would fall below the minimum.
        rtt.on_sample(100 * MS, 20 * MS);
        assert_eq!(rtt.smoothed(), Some(80 * MS));
        rtt.on_sample(88 * MS, 20 * MS);
        assert_eq!(rtt.smoothed(), Some(81 * MS));
    }
}
