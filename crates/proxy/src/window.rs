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
//! links are mostly longer than the shortest. So they let pass more than the rate, half as much again over the longest round trips; while
//! they are in force the known rate does not fall ([`crate::estimate::link`]); and they come off for a while if a link shows less
//! than it is known to carry while they hold somebody up ([`Caution`]).

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// A connection that shares a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// What came over it lately.
    pub rate: Bitrate,
    /// What it may take at most now; `None`: it is new, or bound by nothing.
    pub part: Option<Bitrate>,
    /// Whether its window may be what keeps it from taking more.
    pub is_held_up: bool,
}

impl Sharer {
    /// Whether it takes next to nothing of what it may.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.part
            .is_some_and(|part| self.rate.as_bps() < part.as_bps() / IDLE_PART)
    }
}

/// Whether connections over a link may be bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caution {
    /// Looks in a row at which the link was not full though a bound held somebody up.
    short_looks: u32,
    /// Until when nobody is bound, and for how long that was.
    off_until: Option<Instant>,
    off_for: Duration,
}

impl Caution {
    /// Whether nobody is bound now.
    #[must_use]
    pub fn is_off(&self, now: Instant) -> bool {
        self.off_until.is_some_and(|until| now < until)
    }

    /// Notes, at each look, what the `sharers` of a link take that is known to carry `rate`; whether they may be bound.
    pub fn on_look(&mut self, now: Instant, rate: Bitrate, sharers: &[Sharer]) -> bool {
        if self.is_off(now) {
            return false;
        }
        let shown_bps: u64 = sharers.iter().map(|one| one.rate.as_bps()).sum();
        let is_short = shown_bps < rate.scale(FULL_PERCENT, 100).as_bps();
        if !is_short {
            self.short_looks = 0;
        } else if sharers.iter().any(|one| one.is_held_up) {
            self.short_looks += 1;
        }
        let is_wrong = self.short_looks > PATIENT_LOOKS;
        if is_wrong {
            self.short_looks = 0;
            let again = self
                .off_until
                .is_some_and(|until| now.since(until) < self.off_for * 2);
            self.off_for = if again {
                (self.off_for * 2).min(LONGEST_OFF)
            } else {
                FIRST_OFF
            };
            self.off_until = Some(now + self.off_for);
        }
        !is_wrong
    }
}

/// The part of `rate` that each sharer may take. O(n log n).
#[must_use]
pub fn parts(rate: Bitrate, sharers: &[Sharer]) -> Vec<Bitrate> {
    let count = u64::try_from(sharers.len()).unwrap_or(u64::MAX);
    // Of those that are idle few come back at a time.
    let idle = sharers.iter().filter(|one| one.is_idle()).count() as u64;
    let equal_bps = rate.as_bps() / (count - idle + idle / IDLE_AT_ONCE + 1);
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
const FULL_PERCENT: u64 = 95;
/// What begins is slow: a second at 50 ms a look.
const PATIENT_LOOKS: u32 = 20;
/// For how long nobody is bound when windows have kept a link from being full; twice as long each further time.
const FIRST_OFF: Duration = Duration::from_secs(10);
const LONGEST_OFF: Duration = Duration::from_secs(600);
/// Who takes less than one of so many parts of its own is idle, and of so many idle ones one comes back at a time.
const IDLE_PART: u64 = 16;
const IDLE_AT_ONCE: u64 = 4;
/// Who takes less than its part may take so many times as much.
const WISH_TO_USE: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn sharer(mbps: u64, part: Option<u64>) -> Sharer {
        Sharer {
            rate: Bitrate::from_mbps(mbps),
            part: part.map(Bitrate::from_mbps),
            is_held_up: true,
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
        assert_eq!(mbps(21, &sharers), [5, 19, 5]);
        // More than half of what it may take: it may want more.
        let both = [sharer(4, Some(6)), sharer(6, Some(6))];
        assert_eq!(mbps(20, &both), [10; 2]);
        let idle = [sharer(0, Some(5)), sharer(9, Some(10)), sharer(4, Some(20))];
        assert_eq!(mbps(21, &idle), [7, 17, 8], "idle, eager, modest");
    }

    #[test]
    fn bounds_come_off_for_longer_and_longer_where_they_keep_a_link_from_being_full() {
        let mut caution = Caution::default();
        let mut now = Instant::ZERO;
        let mut bound_for = |sharers: &[Sharer], looks: usize| {
            let looks = (0..looks).filter(|_| {
                now += Duration::from_millis(50);
                caution.on_look(now, Bitrate::from_mbps(20), sharers)
            });
            looks.count()
        };
        let full = [sharer(10, Some(10)), sharer(9, Some(10))];
        let short = [sharer(7, Some(10)), sharer(7, Some(10))];
        let content = short.map(|one| Sharer {
            is_held_up: false,
            ..one
        });
        assert_eq!(bound_for(&full, 100), 100);
        assert_eq!(bound_for(&content, 100), 100);
        assert_eq!(bound_for(&short, 20), 20, "it begins");
        assert_eq!(bound_for(&full, 1), 1);
        assert_eq!(bound_for(&short, 220), 20, "off for ten seconds");
        assert_eq!(bound_for(&short, 20 + 400), 20, "and for twenty");
        assert_eq!(bound_for(&full, 2), 2);
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
