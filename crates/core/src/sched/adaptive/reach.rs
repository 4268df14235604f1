//! Whether a large flow gains from paths later than the quickest.
//!
//! A sender whose window is limited, by its receiver or its memory, sends less the longer its round trip is. A later path,
//! for which all its packets then wait, can cost it more than that path brings. Windows cannot be seen, but what they do
//! can: a flow whose rate no longer grows, and is less than the near paths carry by themselves, does not need the others.
//! It keeps to the near ones, if it sends more there. Once it fills those, it tries all again, ever less often.

use core::time::Duration;

use crate::{time::Instant, units::Bytes};

/// What one flow has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// The period under way, and what was sent in it.
    began_at: Instant,
    bytes: Bytes,
    /// The most bits per second of a period so far, and for how many it has not grown.
    most: u128,
    flat: u8,
    is_near: bool,
    /// For how many periods that has been so.
    settled: u8,
    /// What it sent, in bits per second, when it last used all paths.
    wide: u128,
    /// When the next try may be, and for how long the last kept others away.
    try_at: Instant,
    pause: Duration,
}

impl Reach {
    /// Whether it keeps to near paths.
    pub(super) const fn is_near(&self) -> bool {
        self.is_near
    }

    pub(super) fn on_sent(&mut self, len: Bytes) {
        self.bytes += len;
    }

    /// Looks back on a period, if one has passed; `near`: bits per second that near paths carry; `longest`: the longest
    /// round trip of all.
    pub(super) fn review(&mut self, now: Instant, longest: Duration, near: impl FnOnce() -> u128) {
        let elapsed = now.since(self.began_at);
        let period = LEAST_PERIOD.max(longest * PERIOD_ROUNDS);
        if elapsed < period {
            return;
        }
        let bits = u128::from(self.bytes.get()) * 8;
        let rate = bits * Duration::from_secs(1).as_nanos() / elapsed.as_nanos();
        (self.began_at, self.bytes) = (now, Bytes::ZERO);
        if elapsed > period * 2 {
            (self.most, self.flat) = (0, 0);
            return;
        }
        if rate * 100 > self.most * GROWN_PERCENT {
            (self.most, self.flat) = (rate, 0);
        } else {
            self.flat = self.flat.saturating_add(1);
        }
        let is_flat = self.flat >= FLAT;
        self.settled = self.settled.saturating_add(1);
        let is_below_near = rate * 100 < near() * FULL_PERCENT;
        let may_try = now >= self.try_at;
        let is_near = if self.is_near {
            let least = if is_flat { GAIN_PERCENT } else { KEPT_PERCENT };
            let gains_nothing = self.settled >= FLAT && rate * 100 < self.wide * least;
            if gains_nothing {
                self.put_off(now);
            }
            !gains_nothing && (is_below_near || !may_try)
        } else {
            is_flat && is_below_near && may_try
        };
        if is_near && !self.is_near {
            self.wide = rate;
            self.put_off(now);
        }
        if is_near != self.is_near {
            self.is_near = is_near;
            (self.most, self.flat, self.settled) = (0, 0, 0);
        }
    }

    fn put_off(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.try_at = now + self.pause;
    }
}

/// A rate is that of so long, and of so many round trips.
const LEAST_PERIOD: Duration = Duration::from_millis(500);
const PERIOD_ROUNDS: u32 = 4;
/// A rate has grown if it is this much of what it was.
const GROWN_PERCENT: u128 = 110;
/// One that has not for so many periods does not grow.
const FLAT: u8 = 2;
/// Near paths of which less than this is used are not full.
const FULL_PERCENT: u128 = 85;
/// Keeping to them has to bring this, of what was sent before; and is given up at once if it brings so little.
const GAIN_PERCENT: u128 = 105;
const KEPT_PERCENT: u128 = 90;
/// How long after a try the next may be, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(12);
const LONGEST_PAUSE: Duration = Duration::from_secs(96);

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a second at a time: what the flow sends then, by whether it keeps to near paths that carry 300 Mbit/s.
    fn run(mbps: impl Fn(u64, bool) -> u64) -> Vec<bool> {
        let mut reach = Reach::default();
        let mut states = Vec::new();
        for period in 0..60 {
            let sent = mbps(period, reach.is_near()) * 1_000_000 / 8 / 2;
            reach.on_sent(Bytes::new(sent));
            let now = Instant::from_millis(1_000 + period * 500);
            reach.review(now, Duration::from_millis(80), || 300_000_000);
            states.push(reach.is_near());
        }
        states
    }

    #[test]
    fn a_flow_whose_window_is_small_keeps_to_near_paths_and_tries_all_again_once_those_are_full() {
        let states = run(|_, is_near| if is_near { 290 } else { 178 });
        assert_eq!(states.iter().position(|is_near| *is_near), Some(3));
        assert_eq!(states[3..].iter().position(|is_near| !is_near), Some(24));
        let near = states.iter().filter(|is_near| **is_near).count();
        assert!(near > 45, "{near} of 60");
        let states = run(|_, is_near| if is_near { 200 } else { 178 });
        assert!(states[3..].iter().all(|is_near| *is_near), "never full");
    }

    #[test]
    fn a_flow_that_grows_or_fills_the_near_paths_uses_all() {
        assert!(!run(|period, _| 20 + period * period).contains(&true));
        assert!(!run(|_, _| 260).contains(&true));
    }

    #[test]
    fn a_flow_that_gains_nothing_uses_all_again_and_tries_seldom() {
        for (near, tries) in [(178, 10), (100, 8)] {
            let states = run(|_, is_near| if is_near { near } else { 178 });
            let count = states.iter().filter(|is_near| **is_near).count();
            assert!((2..=tries).contains(&count), "{count} of 60");
        }
    }
}
