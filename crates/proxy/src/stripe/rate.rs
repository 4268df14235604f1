//! What a lane carries and how far it is, from TCP's own account of it.
//!
//! Acknowledged bytes are counted in windows of [`WINDOW`]. If data waited for the lane at both ends of a window, the
//! window says what the lane carries: the estimate moves half of the way up, a quarter of the way down. If not, it is a
//! lower bound, and the estimate grows by a fiftieth, so that a lane once thought bad is tried again.
//!
//! The delay is half of the least round trip, and all by which the present one exceeds it: queues are on the way of the data.

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// TCP's account of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSample {
    /// Smoothed round trip; zero if unknown.
    pub rtt: Duration,
    /// Least round trip; zero if unknown.
    pub min_rtt: Duration,
    /// Bytes acknowledged since the beginning.
    pub acked_bytes: u64,
    /// Bytes that wait in the kernel.
    pub unsent_bytes: u64,
}

/// Estimates of one lane.
#[derive(Clone, Debug)]
pub struct LaneEstimator {
    rate: Option<Bitrate>,
    sample: LaneSample,
    window_began_at: Instant,
    window_bytes: u64,
    was_busy: bool,
}

impl LaneEstimator {
    /// Nothing is known.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            rate: None,
            sample: LaneSample {
                rtt: Duration::ZERO,
                min_rtt: Duration::ZERO,
                acked_bytes: 0,
                unsent_bytes: 0,
            },
            window_began_at: now,
            window_bytes: 0,
            was_busy: false,
        }
    }

    /// Notes TCP's account. Whether something was acknowledged since the last one.
    pub fn on_sample(&mut self, now: Instant, sample: LaneSample) -> bool {
        let acked = sample.acked_bytes.saturating_sub(self.sample.acked_bytes);
        let is_busy = sample.unsent_bytes > 0;
        self.sample = sample;
        self.window_bytes += acked;
        self.was_busy &= is_busy;
        let length = now.since(self.window_began_at);
        if length >= WINDOW
            && let Some(found) = Bitrate::from_transfer(Bytes::new(self.window_bytes), length)
        {
            let found = found.as_bps();
            let rate = match (self.rate.map(Bitrate::as_bps), self.was_busy) {
                (None, _) => Some(found).filter(|found| *found > 0),
                (Some(rate), true) if found > rate => Some(rate + (found - rate) / 2),
                (Some(rate), true) => Some(rate - (rate - found) / 4),
                (Some(rate), false) => Some(found.max(rate.saturating_add(rate / 50))),
            };
            self.rate = rate.map(|bps| Bitrate::from_bps(bps).max(LEAST).min(MOST));
            self.window_began_at = now;
            self.window_bytes = 0;
            self.was_busy = is_busy;
        }
        acked > 0
    }

    /// What it carries, or a first guess.
    #[must_use]
    pub fn rate(&self) -> Bitrate {
        self.rate.unwrap_or(UNKNOWN)
    }

    /// How long data take to the other end.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.sample.rtt.saturating_sub(self.sample.min_rtt / 2)
    }

    /// Smoothed round trip.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.sample.rtt
    }

    /// What waits in the kernel.
    #[must_use]
    pub fn unsent(&self) -> Bytes {
        Bytes::new(self.sample.unsent_bytes)
    }
}

/// Some round trips of most links.
const WINDOW: Duration = Duration::from_millis(100);
const UNKNOWN: Bitrate = Bitrate::from_mbps(10);
const LEAST: Bitrate = Bitrate::from_bps(16_000);
const MOST: Bitrate = Bitrate::from_mbps(100_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_windows_measure_and_idle_ones_grow_hopeful() {
        let mut lane = LaneEstimator::new(Instant::ZERO);
        assert_eq!(lane.rate(), UNKNOWN);
        let mut acked_bytes = 0;
        let mut now_ms = 0;
        let mut feed = |lane: &mut LaneEstimator, mbps: u64, unsent_bytes, windows| {
            for _ in 0..windows * 4 {
                now_ms += 25;
                let bytes = Bitrate::from_mbps(mbps).bytes_in(Duration::from_millis(25));
                acked_bytes += bytes.get();
                let sample = LaneSample {
                    rtt: Duration::from_millis(50),
                    min_rtt: Duration::from_millis(20),
                    acked_bytes,
                    unsent_bytes,
                };
                assert_eq!(
                    lane.on_sample(Instant::from_millis(now_ms), sample),
                    mbps > 0
                );
            }
        };
        feed(&mut lane, 20, 9000, 10);
        assert_eq!(lane.rate(), Bitrate::from_mbps(20));
        feed(&mut lane, 4, 9000, 20);
        assert!((4..=5).contains(&(lane.rate().as_bps() / 1_000_000)));
        feed(&mut lane, 0, 0, 36);
        assert!((7..=10).contains(&(lane.rate().as_bps() / 1_000_000)));
        assert_eq!(lane.delay(), Duration::from_millis(40));
    }
}
