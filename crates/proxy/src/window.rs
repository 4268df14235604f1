//! Receive windows: how much the servers at the other end of a link may have on the way to us.
//!
//! Connections that begin together overfill a modem's queue: each server sends ten segments before it hears anything, and doubles that
//! until something is lost, often the end of an answer, which is then repeated after a timeout. Only the receiver knows of all of
//! them, and TCP lets it say how much each may have on the way. So while several share a link whose rate is known, each gets the
//! rate that is its part, times its round trip and [`STANDING`]: the link stays full, and its queue short.
//!
//! Parts are max-min fair (Bertsekas and Gallager, *Data Networks*, 6.5.2): what one does not take is the others'. Whoever takes
//! little now may still have an equal part when it wants more, so that it need not ask; all of them together would be too much for
//! the time between two looks.
//!
//! Windows must not become what keeps a link from being full: a rate taken for too low would confirm itself, and round trips of radio
//! links are mostly longer than the shortest. So they let pass more than the rate, half as much again over the longest round trips, and
//! grow ([`Slack`]) while connections take all they get and the link still shows less than it is known to carry.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// A connection that shares a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// What came over it lately.
    pub rate: Bitrate,
    /// What it may take at most now; `None`: it is new, or bound by nothing.
    pub part: Option<Bitrate>,
}

/// How much larger than computed windows are on a link, for those computed do not fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    percent: u64,
}

impl Default for Slack {
    fn default() -> Self {
        Self { percent: 100 }
    }
}

impl Slack {
    /// Notes, at each look, what the `sharers` of a link take that is known to carry `rate`.
    pub fn on_look(&mut self, rate: Bitrate, sharers: &[Sharer]) {
        let shown_bps: u64 = sharers.iter().map(|one| one.rate.as_bps()).sum();
        let want_more = sharers.iter().any(|one| taken_bps(one).is_none());
        let is_full = shown_bps >= rate.scale(FULL_PERCENT, 100).as_bps();
        self.percent = if is_full {
            (self.percent * 95 / 100).max(100)
        } else if want_more {
            (self.percent * 105 / 100).min(MOST_PERCENT)
        } else {
            self.percent
        };
    }

    /// `window` with it.
    #[must_use]
    pub fn widen(self, window: Bytes) -> Option<Bytes> {
        let bytes = Bytes::new(window.get().saturating_mul(self.percent) / 100);
        (bytes < UNBOUND).then_some(bytes)
    }
}

/// The part of `rate` that each sharer may take. O(n log n).
#[must_use]
pub fn parts(rate: Bitrate, sharers: &[Sharer]) -> Vec<Bitrate> {
    let count = u64::try_from(sharers.len()).unwrap_or(u64::MAX);
    let equal_bps = rate.as_bps() / count.max(1);
    let mut order: Vec<usize> = (0..sharers.len()).collect();
    order.sort_unstable_by_key(|&index| taken_bps(&sharers[index]).unwrap_or(u64::MAX));
    let mut left_bps = rate.as_bps();
    let mut parts = vec![Bitrate::ZERO; sharers.len()];
    for (index, count) in order.into_iter().zip((1..=count).rev()) {
        let fair_bps = left_bps / count;
        let taken_bps = taken_bps(&sharers[index]);
        let wish_bps = taken_bps.map(|taken_bps| (taken_bps * WISH_TO_USE).max(equal_bps));
        parts[index] = Bitrate::from_bps(wish_bps.unwrap_or(fair_bps).min(fair_bps));
        left_bps -= taken_bps.unwrap_or(fair_bps).min(fair_bps);
    }
    parts
}

/// The receive window for a connection of round trip `base` that may take `part` of its link; `None`: as large as it likes.
#[must_use]
pub fn window(part: Bitrate, base: Duration) -> Option<Bytes> {
    let bytes = part.bytes_in(base + (base / 2).max(STANDING));
    (bytes < UNBOUND).then(|| bytes.max(LEAST))
}

/// What a sharer takes that could have more; `None`: it takes all it gets.
fn taken_bps(sharer: &Sharer) -> Option<u64> {
    let taken_bps = sharer.rate.as_bps();
    let part = sharer.part?;
    (taken_bps < part.as_bps() / 2).then_some(taken_bps)
}

/// What may wait in the link's queue, as time: it has to bridge what the round trips vary by, and the time between two looks.
pub const STANDING: Duration = Duration::from_millis(30);
/// Fewer segments than this cannot be told to be lost by those behind them.
const LEAST: Bytes = Bytes::new(4 * 1460);
/// With so much or more the kernel's own window, which begins here, is left alone.
const UNBOUND: Bytes = Bytes::new(64 << 10);
/// A link that shows so much of what it is known to carry is full.
const FULL_PERCENT: u64 = 90;
/// Then the known rate is wrong rather than windows too small.
const MOST_PERCENT: u64 = 400;
/// Who takes less than its part may take so many times as much.
const WISH_TO_USE: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn sharer(mbps: u64, part: Option<u64>) -> Sharer {
        Sharer {
            rate: Bitrate::from_mbps(mbps),
            part: part.map(Bitrate::from_mbps),
        }
    }

    fn mbps(total: u64, sharers: &[Sharer]) -> Vec<u64> {
        let parts = parts(Bitrate::from_mbps(total), sharers);
        parts.iter().map(|part| part.as_bps() / 1_000_000).collect()
    }

    #[test]
    fn equals_share_alike_and_the_modest_leave_theirs_to_the_rest() {
        assert_eq!(mbps(20, &[sharer(0, None); 4]), [5; 4]);
        assert_eq!(mbps(20, &[]), [0; 0]);
        let sharers = [sharer(1, Some(6)), sharer(6, Some(6)), sharer(1, Some(6))];
        assert_eq!(mbps(21, &sharers), [7, 19, 7]);
        // More than half of what it may take: it may want more.
        let both = [sharer(4, Some(6)), sharer(6, Some(6))];
        assert_eq!(mbps(20, &both), [10; 2]);
        let idle = [sharer(0, Some(5)), sharer(9, Some(10)), sharer(4, Some(20))];
        assert_eq!(mbps(21, &idle), [7, 17, 8]);
    }

    #[test]
    fn windows_grow_while_they_may_be_what_keeps_a_link_from_being_full() {
        let mut slack = Slack::default();
        let mut looks = |sharers: &[Sharer], count: usize| {
            (0..count).for_each(|_| slack.on_look(Bitrate::from_mbps(20), sharers));
            slack.widen(Bytes::new(10_000)).map(Bytes::get)
        };
        let slow = [sharer(7, Some(10)), sharer(7, Some(10))];
        assert_eq!(looks(&slow, 1), Some(10_500));
        assert_eq!(looks(&slow, 100), Some(40_000));
        let idle = [sharer(1, Some(10)), sharer(1, Some(10))];
        assert_eq!(looks(&idle, 100), Some(40_000), "shows nothing");
        let full = [sharer(10, Some(10)), sharer(9, Some(10))];
        assert_eq!(looks(&full, 100), Some(10_000));
        assert_eq!(slack.widen(Bytes::new(70_000)), None);
    }

    #[test]
    fn windows_cover_the_round_trip_and_what_may_stand_in_the_queue() {
        let ms = Duration::from_millis;
        let window = |mbps, base_ms| {
            let bytes = window(Bitrate::from_mbps(mbps), ms(base_ms));
            bytes.map(Bytes::get)
        };
        // 5 Mbit/s for 20 + 30 ms, and for 80 + 40 ms.
        assert_eq!(window(5, 20), Some(31_250));
        assert_eq!(window(2, 80), Some(30_000));
        assert_eq!(window(0, 20), Some(5_840), "enough to notice a loss");
        assert_eq!(window(100, 20), None, "the kernel's own affair");
    }
}
