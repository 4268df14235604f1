//! Rate and delay of a lane (a TCP connection to a peer), from TCP's statistics.
//!
//! The rate is the rate at which TCP sends: its congestion window divided by the RTT. This estimate is valid at once:
//! while the window still grows, after a loss has halved it, and on a lane with little traffic.
//!
//! The delay is half of the minimum RTT, plus the amount by which the present RTT exceeds the minimum. This assumes
//! that queues are in the direction of the data.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// TCP's statistics of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Smoothed RTT; zero if unknown.
    pub rtt: Duration,
    /// Minimum RTT; zero if unknown.
    pub min_rtt: Duration,
    /// Bytes acknowledged since the beginning.
    pub acked_bytes: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Number of unsent bytes in the kernel.
    pub unsent_bytes: u64,
    /// Whether sent data are not acknowledged.
    pub is_in_flight: bool,
}

/// Estimates of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneEstimator(LaneSample);

impl LaneEstimator {
    /// Stores TCP's statistics. Returns whether bytes were acknowledged since the last call.
    pub fn on_sample(&mut self, sample: LaneSample) -> bool {
        let is_progress = sample.acked_bytes > self.0.acked_bytes;
        self.0 = sample;
        is_progress
    }

    /// Returns the estimated rate, or a first guess.
    #[must_use]
    pub fn rate(&self) -> Bitrate {
        let rate = Bitrate::from_transfer(Bytes::new(self.0.window_bytes), self.0.rtt);
        rate.map_or(UNKNOWN, |rate| rate.max(LEAST).min(MOST))
    }

    /// Returns the one-way delay to the other end.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.0.rtt.saturating_sub(self.0.min_rtt / 2)
    }

    /// Returns the smoothed RTT.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.0.rtt
    }

    /// Whether the kernel has data of the lane that the other end has not acknowledged.
    #[must_use]
    pub fn is_outstanding(&self) -> bool {
        self.0.is_in_flight || self.0.unsent_bytes > 0
    }

    /// Returns the number of unsent bytes in the kernel.
    #[must_use]
    pub fn unsent(&self) -> Bytes {
        Bytes::new(self.0.unsent_bytes)
    }
}

/// Assumed rate before the first RTT is measured.
const UNKNOWN: Bitrate = Bitrate::from_mbps(1);
/// Bounds of the rate, so that predicted times stay finite.
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
            is_in_flight: false,
        };
        assert!(lane.on_sample(sample));
        assert!(!lane.on_sample(sample));
        assert_eq!(lane.rate(), Bitrate::from_mbps(20));
        assert_eq!(lane.delay(), Duration::from_millis(40));
    }
}
