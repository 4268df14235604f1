//! Tail frames: control frames that announce that no datagram follows for now, so that a loss at the end of a burst
//! is detected like a loss in its middle.
//!
//! A later datagram reveals a loss as well, so after evenly spaced packets the tail frame is delayed by twice their
//! spacing. Otherwise, on a path of a few Mbit/s, each full packet would be followed by a tail frame, at a cost of 5 %
//! of the capacity. Small packets are rare and latency-sensitive, so their tail frame is delayed by 1 ms only.
//!
//! On a path without loss no tail frames are sent. While the loss is unknown, they are sent after full packets. A
//! loss in the first window of a flow would end the slow start of the flow's sender, if it were not repaired quickly.

use core::time::Duration;

use crate::time::Instant;

/// Tail frames of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tail {
    due: Option<Instant>,
    sent_at: Option<Instant>,
    /// Mean interval between packets.
    gap: Duration,
}

impl Tail {
    /// Records a datagram of `len` bytes sent now. `is_lossy`: whether the path loses packets; `None` if unknown.
    pub fn on_sent(&mut self, now: Instant, len: usize, is_lossy: Option<bool>) {
        let gap = self.sent_at.map_or(Duration::ZERO, |at| now.since(at));
        self.sent_at = Some(now);
        self.gap = self.gap * 7 / 8 + gap.min(LONGEST) / 8;
        if is_lossy.unwrap_or(len >= SMALL_BYTES) {
            let after = if len < SMALL_BYTES {
                SHORTEST
            } else {
                (self.gap * 2).clamp(SHORTEST, LONGEST)
            };
            self.due = Some(now + after);
        }
    }

    /// When a tail frame is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether a tail frame is due now. If so, the caller must send it.
    pub fn take(&mut self, now: Instant) -> bool {
        self.due.take_if(|at| *at <= now).is_some()
    }
}

/// Minimum delay of a tail frame. After this time a burst sent back to back is over.
const SHORTEST: Duration = Duration::from_millis(1);
/// Maximum delay of a tail frame: the packet interval of a voice call.
const LONGEST: Duration = Duration::from_millis(20);
/// Length in bytes below which a datagram is small.
const SMALL_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of tail frames for `count` datagrams of `len` bytes, `gap_us` apart.
    fn tails(count: u32, len: usize, gap_us: u64) -> u32 {
        let mut tail = Tail::default();
        let mut tails = 0;
        for i in 0..u64::from(count) {
            let at = Instant::ZERO + Duration::from_micros(i * gap_us);
            tails += u32::from(tail.take(at));
            tail.on_sent(at, len, Some(true));
        }
        tails
            + u32::from(
                tail.take(
                    Instant::ZERO + Duration::from_micros(u64::from(count) * gap_us + 40_000),
                ),
            )
    }

    #[test]
    fn a_stream_has_one_tail() {
        assert_eq!(tails(1_000, 1_400, 100), 1);
        // Some tail frames are sent until the spacing of the datagrams is known.
        assert!(tails(1_000, 1_400, 4_000) <= 10);
    }

    #[test]
    fn small_packets_have_each_their_own() {
        assert_eq!(tails(50, 200, 20_000), 50);
    }

    #[test]
    fn what_matters_to_nobody_has_none() {
        let mut tail = Tail::default();
        tail.on_sent(Instant::ZERO, 1_400, Some(false));
        assert_eq!(tail.due(), None);
    }

    #[test]
    fn of_what_is_not_known_to_be_lost_full_packets_have_one() {
        for (len, has_one) in [(1_400, true), (200, false)] {
            let mut tail = Tail::default();
            tail.on_sent(Instant::ZERO, len, None);
            assert_eq!(tail.take(Instant::from_millis(50)), has_one, "{len}");
        }
    }
}
