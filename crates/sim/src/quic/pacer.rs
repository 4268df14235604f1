//! Pacing by a token bucket, RFC 9002 section 7.7: 5/4 of a window per RTT, in bursts of two milliseconds or ten
//! packets.

use core::time::Duration;

use pleach_core::time::{Instant, saturating_nanos};

/// Duration of the longest burst in nanoseconds. The bucket's capacity is the number of bytes that are sent in this
/// time at a rate of one window per RTT.
const BURST_NANOS: u128 = 2_000_000;

/// Smallest and largest capacity of the bucket in packets.
const BURST_PKTS: (u64, u64) = (10, 256);

/// The token bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    capacity: u64,
    window: u64,
    tokens: u64,
    filled_at: Instant,
}

impl Pacer {
    /// Creates a full bucket.
    pub(super) fn new(now: Instant, smoothed_rtt: Duration, window: u64, packet: u64) -> Self {
        let capacity = capacity(smoothed_rtt, window, packet);
        Self {
            capacity,
            window,
            tokens: capacity,
            filled_at: now,
        }
    }

    /// Removes `bytes` tokens.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// Returns the time at which a packet of `packet` bytes may be sent. `None`: now.
    pub(super) fn delay(
        &mut self,
        now: Instant,
        smoothed_rtt: Duration,
        window: u64,
        packet: u64,
    ) -> Option<Instant> {
        if window != self.window {
            self.window = window;
            self.capacity = capacity(smoothed_rtt, window, packet);
            self.tokens = self.tokens.min(self.capacity);
        }
        if self.tokens >= packet {
            return None;
        }
        let rtt = u128::from(saturating_nanos(smoothed_rtt)).max(1);
        let elapsed = u128::from(saturating_nanos(now.since(self.filled_at)));
        let new = u128::from(window) * elapsed * 5 / (rtt * 4);
        let new = u64::try_from(new).unwrap_or(u64::MAX);
        self.tokens = self.tokens.saturating_add(new).min(self.capacity);
        self.filled_at = now;
        if self.tokens >= packet {
            return None;
        }
        let missing = u128::from(packet.max(self.capacity) - self.tokens);
        let wait = rtt * missing * 4 / (u128::from(window.max(1)) * 5);
        let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        Some(now + wait.max(Duration::from_micros(1)))
    }
}

fn capacity(smoothed_rtt: Duration, window: u64, packet: u64) -> u64 {
    let rtt = u128::from(saturating_nanos(smoothed_rtt)).max(1);
    let share = u64::try_from(u128::from(window) * BURST_NANOS / rtt).unwrap_or(u64::MAX);
    let (least, most) = BURST_PKTS;
    share.clamp(least * packet, most * packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_five_quarters_of_a_window_go_per_round_trip() {
        let rtt = Duration::from_millis(100);
        let (window, packet) = (100_000, 1_000);
        let mut now = Instant::ZERO;
        let mut pacer = Pacer::new(now, rtt, window, packet);
        let mut sent = 0;
        while now < Instant::from_millis(1_000) {
            match pacer.delay(now, rtt, window, packet) {
                Some(at) => now = at,
                None => {
                    pacer.on_sent(packet);
                    sent += packet;
                }
            }
        }
        // Ten windows, plus a quarter, plus the full bucket at the start.
        assert!((1_240_000..=1_270_000).contains(&sent), "{sent}");
    }
}
