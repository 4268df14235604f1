//! What a lane carries and how far it is, from TCP's own account of it.
//!
//! The rate is what TCP sends at: its congestion window in a round trip. It is right at once, while the window still grows,
//! when a loss has halved it, and on a lane that had little to do.
//!
//! The delay is half of the least round trip, and all by which the present one exceeds it: queues are on the way of the data.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// TCP's account of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Smoothed round trip; zero if unknown.
    pub rtt: Duration,
    /// Least round trip; zero if unknown.
    pub min_rtt: Duration,
    /// Bytes acknowledged since the beginning.
    pub acked_bytes: u64,
    /// Congestion window.
    pub window_bytes: u64,
    /// Bytes that wait in the kernel.
    pub unsent_bytes: u64,
}

/// Estimates of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneEstimator(LaneSample);

impl LaneEstimator {
    /// Notes TCP's account. Whether something was acknowledged since the last one.
    pub fn on_sample(&mut self, sample: LaneSample) -> bool {
        let is_progress = sample.acked_bytes > self.0.acked_bytes;
        self.0 = sample;
        is_progress
    }

    /// What it carries, or a first guess.
    #[must_use]
    pub fn rate(&self) -> Bitrate {
        let rate = Bitrate::from_transfer(Bytes::new(self.0.window_bytes), self.0.rtt);
        rate.map_or(UNKNOWN, |rate| rate.max(LEAST).min(MOST))
    }

    /// How long data take to the other end.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.0.rtt.saturating_sub(self.0.min_rtt / 2)
    }

    /// Smoothed round trip.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.0.rtt
    }

    /// What waits in the kernel.
    #[must_use]
    pub fn unsent(&self) -> Bytes {
        Bytes::new(self.0.unsent_bytes)
    }
}

/// Before the first round trip.
const UNKNOWN: Bitrate = Bitrate::from_mbps(1);
/// Bounds, so that predictions stay numbers.
const LEAST: Bitrate = Bitrate::from_bps(16_000);
const MOST: Bitrate = Bitrate::from_mbps(100_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_carries_its_window_in_a_round_trip() {
        let mut lane = LaneEstimator::default();
        assert_eq!((lane.rate(), lane.delay()), (UNKNOWN, Duration::ZERO));
        let sample = LaneSample {
            rtt: Duration::from_millis(50),
            min_rtt: Duration::from_millis(20),
            acked_bytes: 1,
            window_bytes: 125_000,
            unsent_bytes: 7,
        };
        assert!(lane.on_sample(sample));
        assert!(!lane.on_sample(sample));
        assert_eq!(lane.rate(), Bitrate::from_mbps(20));
        assert_eq!(lane.delay(), Duration::from_millis(40));
    }
}
