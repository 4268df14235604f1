//! Pacing: segments are sent in small bursts, spaced by the controller's rate.
//!
//! This follows Linux's pacing inside TCP. A burst is the size of one segmentation offload packet, about a millisecond
//! at the rate. The next burst is sent when the current burst would be transmitted completely at that rate. Unused time
//! shortens the wait for the next burst by at most half. The first ten segments are not paced.

use core::time::Duration;

use pleach_core::time::{Instant, saturating_nanos};

/// Number of segments sent without pacing: the initial window.
const FREE_PKTS: u64 = 10;

/// Pacing requested by a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pacing {
    /// Rate of payload in bytes per second.
    pub(super) bytes_per_s: u64,
    /// Number of segments sent at once.
    pub(super) burst_pkts: u32,
}

/// Computes the earliest time of the next segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    next_at: Instant,
    /// State of the current burst: its departure time, its remaining segments, and unused time.
    burst_at: Instant,
    burst_left_pkts: u32,
    credit: Duration,
    sent_pkts: u64,
}

impl Pacer {
    /// Returns the earliest time at which the next segment may be sent.
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        if self.burst_at == now && self.burst_left_pkts > 0 {
            now
        } else {
            self.next_at
        }
    }

    /// Counts a segment of `len_bytes` that is sent at `now`.
    pub(super) fn on_sent(&mut self, now: Instant, len_bytes: u64, pacing: Pacing) {
        if self.burst_at != now || self.burst_left_pkts == 0 {
            self.burst_at = now;
            self.burst_left_pkts = pacing.burst_pkts.max(1);
            self.credit = now.since(self.next_at.min(now));
            self.next_at = self.next_at.max(now);
        }
        self.burst_left_pkts -= 1;
        self.sent_pkts += 1;
        if self.sent_pkts < FREE_PKTS {
            return;
        }
        let nanos = len_bytes.saturating_mul(1_000_000_000) / pacing.bytes_per_s.max(1);
        let taken = saturating_nanos(self.credit).min(nanos / 2);
        self.credit -= Duration::from_nanos(taken);
        self.next_at += Duration::from_nanos(nanos - taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACING: Pacing = Pacing {
        bytes_per_s: 1_000_000,
        burst_pkts: 2,
    };

    /// Sends as soon as permitted, until `end_ms`. Returns the number of segments sent.
    fn sent(pacer: &mut Pacer, from_ms: u64, end_ms: u64) -> u64 {
        let mut now = Instant::from_millis(from_ms);
        let mut count = 0;
        loop {
            now = now.max(pacer.next_at(now));
            if now >= Instant::from_millis(end_ms) {
                return count;
            }
            pacer.on_sent(now, 1_000, PACING);
            count += 1;
        }
    }

    #[test]
    fn keeps_the_rate_in_bursts() {
        let mut pacer = Pacer::default();
        // 1000 bytes per millisecond, after nine unpaced segments. The last burst may begin before the end.
        assert!((1_009..=1_010).contains(&sent(&mut pacer, 0, 1_000)));
        let now = Instant::from_millis(2_000);
        pacer.on_sent(now, 1_000, PACING);
        assert_eq!(pacer.next_at(now), now);
        pacer.on_sent(now, 1_000, PACING);
        assert!(pacer.next_at(now) > now);
    }

    #[test]
    fn unused_time_shortens_one_wait_by_half() {
        let mut pacer = Pacer::default();
        sent(&mut pacer, 0, 100);
        let now = Instant::from_millis(500);
        pacer.on_sent(now, 1_000, PACING);
        pacer.on_sent(now, 1_000, PACING);
        assert_eq!(pacer.next_at(now), now + Duration::from_millis(1));
    }
}
