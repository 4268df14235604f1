//! Whether a large flow gains from paths later than the quickest.
//!
//! A sender whose window is limited, by its receiver or its memory, sends less the longer its round trip is. A later path,
//! for which all its packets then wait, can cost it more than that path brings. Windows cannot be seen, but what they do
//! can: if a flow's rate no longer grows though the near paths are not full, it does not need the others. It keeps to the
//! near ones, if it sends more there. Once those are full, it tries all again, and goes back as soon as it is seen to send less
//! for that. Each kind of try is made ever less often when it brings nothing.

use core::time::Duration;

use crate::{time::Instant, units::Bytes};

/// What one flow has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// The period under way: when it began, what the flow has sent in it, and what all had sent before.
    began_at: Instant,
    bytes: Bytes,
    all_before: u64,
    /// The most bits per second of a period so far, those of the last, and for how many they have not grown.
    most: u128,
    last: u128,
    flat: u8,
    /// For how many periods the near paths have not been full.
    roomy: u8,
    is_near: bool,
    /// For how many periods that has been so.
    settled: u8,
    /// What the flow sent, in bits per second, when it last used all paths; for how many periods it has been no better since.
    wide: u128,
    worse: u8,
    /// What it sent when it last filled the near paths alone, while that is not known to be less; for how many periods it has sent
    /// less since.
    narrow: u128,
    less: u8,
    /// To keep to near paths, and to use all again.
    near: Tries,
    all: Tries,
}

/// When something may be tried.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    next_at: Instant,
    pause: Duration,
}

impl Tries {
    /// None for a pause: as long as the last, or twice that.
    fn put_off(&mut self, now: Instant, is_as_long: bool) {
        let pause = if is_as_long {
            self.pause
        } else {
            self.pause * 2
        };
        self.pause = pause.clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.next_at = now + self.pause;
    }
}

/// What the paths are like when a flow is reviewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paths {
    /// Bits per second that the near ones carry.
    pub(super) near: u128,
    /// Whether there are others.
    pub(super) has_later: bool,
    /// The longest round trip.
    pub(super) longest: Duration,
    /// What all large flows have sent, ever.
    pub(super) all_sent: u64,
}

impl Reach {
    /// Whether it keeps to near paths.
    pub(super) const fn is_near(&self) -> bool {
        self.is_near
    }

    pub(super) fn on_sent(&mut self, len: Bytes) {
        self.bytes += len;
    }

    /// Looks back on a period, if one has passed.
    pub(super) fn review(&mut self, now: Instant, paths: impl FnOnce() -> Paths) {
        let elapsed = now.since(self.began_at);
        if elapsed < LEAST_PERIOD {
            return;
        }
        let paths = paths();
        let period = LEAST_PERIOD.max(paths.longest * PERIOD_ROUNDS);
        if elapsed < period {
            return;
        }
        let per_second = |bytes: u64| {
            u128::from(bytes) * 8 * Duration::from_secs(1).as_nanos() / elapsed.as_nanos()
        };
        let rate = per_second(self.bytes.get());
        let all = per_second(paths.all_sent.saturating_sub(self.all_before));
        (self.began_at, self.bytes, self.all_before) = (now, Bytes::ZERO, paths.all_sent);
        if elapsed > period * 2 {
            self.begin_anew();
            return;
        }
        let is_most = rate * 100 > self.most * GROWN_PERCENT;
        let grows = is_most || rate * 100 > self.last * GROWN_PERCENT;
        if is_most {
            (self.most, self.flat) = (rate, 0);
        } else if !grows {
            self.flat = self.flat.saturating_add(1);
        }
        self.last = rate;
        self.settled = self.settled.saturating_add(1);
        let is_flat = self.flat >= FLAT;
        let is_room = all * 100 < paths.near * FULL_PERCENT;
        self.roomy = in_a_row(self.roomy, is_room);
        let is_near = if self.is_near {
            let is_worse = is_flat && rate * 100 < self.wide * GAIN_PERCENT;
            self.worse = in_a_row(self.worse, is_worse);
            let is_in_vain = self.settled >= FLAT && self.worse >= FLAT;
            if is_in_vain {
                self.near.put_off(now, false);
            }
            let is_full = !is_room && now >= self.all.next_at;
            if is_full {
                self.all.put_off(now, false);
                self.narrow = rate;
            }
            !is_in_vain && !is_full
        } else {
            let is_try = self.settled <= TRIED && rate * 100 < self.narrow * GAIN_PERCENT;
            self.narrow = if is_try { self.narrow } else { 0 };
            let is_less = is_room && rate < self.narrow;
            self.less = in_a_row(self.less, is_less);
            let is_known = self.less >= FLAT || is_flat && self.roomy >= ROOMY;
            is_known && !grows && paths.has_later && now >= self.near.next_at
        };
        if is_near == self.is_near {
            return;
        }
        if is_near {
            self.all.put_off(now, true);
            self.wide = rate;
        }
        self.is_near = is_near;
        self.begin_anew();
    }

    /// Forgets what the periods so far have shown.
    const fn begin_anew(&mut self) {
        (self.most, self.last, self.flat, self.roomy) = (0, 0, 0, 0);
        (self.settled, self.worse, self.less) = (0, 0, 0);
    }
}

/// For how many periods something has been so, if it was for `before`.
const fn in_a_row(before: u8, is_so: bool) -> u8 {
    if is_so { before.saturating_add(1) } else { 0 }
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
/// For so many periods: a pause of less than one (BBR's, every 10 s) falls in two.
const ROOMY: u8 = 3;
/// For so many periods what it sends is held against what it sent without the others.
const TRIED: u8 = 8;
/// Keeping to them has to bring this, of what was sent before.
const GAIN_PERCENT: u128 = 105;
/// How long after a try the next may be, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(12);
const LONGEST_PAUSE: Duration = Duration::from_secs(96);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a flow sends in each half second, by whether it keeps to near paths that carry 300 Mbit/s, and `others` beside it.
    fn run(others: u64, mut mbps: impl FnMut(u64, bool) -> u64) -> Vec<bool> {
        let mut reach = Reach::default();
        let mut all_sent = 0;
        let mut states = Vec::new();
        for period in 0..60 {
            let bytes = |mbps: u64| mbps * 1_000_000 / 8 / 2;
            let sent = bytes(mbps(period, reach.is_near()));
            reach.on_sent(Bytes::new(sent));
            all_sent += sent + bytes(others);
            let paths = Paths {
                near: 300_000_000,
                has_later: true,
                longest: Duration::from_millis(80),
                all_sent,
            };
            reach.review(Instant::from_millis(1_000 + period * 500), || paths);
            states.push(reach.is_near());
        }
        states
    }

    fn near(states: &[bool]) -> usize {
        states.iter().filter(|is_near| **is_near).count()
    }

    #[test]
    fn a_flow_whose_window_is_small_keeps_to_near_paths_and_tries_all_again_once_those_are_full() {
        let states = run(0, |_, is_near| if is_near { 290 } else { 178 });
        assert_eq!(states.iter().position(|is_near| *is_near), Some(3));
        assert_eq!(states[3..].iter().position(|is_near| !is_near), Some(24));
        // It sees within two periods that it sends less.
        let tries: Vec<_> = states[27..].split(|is_near| *is_near).collect();
        assert!(tries.iter().all(|wide| wide.len() <= 2), "{states:?}");
        assert!(near(&states) > 52, "{states:?}");
        let states = run(0, |_, is_near| if is_near { 200 } else { 178 });
        assert!(states[3..].iter().all(|is_near| *is_near), "never full");
    }

    #[test]
    fn a_flow_that_grows_or_fills_the_near_paths_or_whose_like_do_uses_all() {
        assert_eq!(near(&run(0, |period, _| 20 + period * period)), 0);
        assert_eq!(near(&run(0, |_, _| 260)), 0);
        assert_eq!(near(&run(200, |_, _| 100)), 0);
    }

    #[test]
    fn a_flow_that_grows_again_after_a_fall_uses_all() {
        // Its window is worth less where round trips are longer, until it has grown.
        let sent = [180, 200, 150, 200, 260];
        let sent = |period: u64| sent.get(usize::try_from(period).unwrap_or(9)).copied();
        let states = run(0, |period, _| sent(period).unwrap_or(290));
        assert_eq!(near(&states), 0, "{states:?}");
        // However flat it was before, while it might not try to keep to the near ones.
        let states = run(0, |period, is_near| match (is_near, period) {
            (false, 0 | 8) => 200,
            (true, _) | (false, 0..31) => 150,
            (false, _) => (150 + 20 * (period - 30)).min(310),
        });
        let last = states.iter().rposition(|is_near| *is_near);
        assert_eq!(last, Some(6), "{states:?}");
        // Nor does one that has left the near paths, which it had filled, go back while it does.
        let mut since = 0;
        let states = run(0, |period, is_near| match (is_near, period) {
            (true, _) => 290,
            (false, 0..20) => 178,
            _ => {
                since += 1;
                (150 + 50 * since).min(400)
            }
        });
        assert!(states[27..].iter().all(|is_near| !is_near), "{states:?}");
    }

    #[test]
    fn a_pause_is_no_small_window() {
        for pause in [20, 100, 200, 230, 250] {
            let states = run(0, |period, _| if period % 20 == 10 { pause } else { 310 });
            assert_eq!(near(&states), 0, "{pause}");
            let states = run(0, |period, _| if period % 20 < 2 { pause } else { 310 });
            assert_eq!(near(&states), 0, "{pause} twice");
        }
    }

    #[test]
    fn a_pause_of_a_flow_that_gained_from_all_paths_is_no_reason_to_leave_them() {
        for (wide, pause_at, paused) in [(310, 3, 250), (291, 9, 250), (310, 3, 100)] {
            let mut since = 0;
            let states = run(0, |period, is_near| {
                // Small windows at first, which have grown when it tries all paths again.
                match (is_near, period) {
                    (true, _) => 290,
                    (false, 0..20) => 178,
                    _ => {
                        since += 1;
                        let is_pause = since == pause_at || since == pause_at + 1;
                        if is_pause { paused } else { wide }
                    }
                }
            });
            assert!(states[27..].iter().all(|is_near| !is_near), "{wide}");
        }
    }

    #[test]
    fn a_flow_that_gains_nothing_uses_all_again_and_tries_seldom() {
        for sent in [178, 100] {
            let states = run(0, |_, is_near| if is_near { sent } else { 178 });
            assert!((2..=9).contains(&near(&states)), "{states:?}");
        }
    }

    #[test]
    fn one_bad_period_throws_no_flow_out() {
        let states = run(0, |period, is_near| match (is_near, period) {
            (true, 20) => 80,
            (true, _) => 200,
            (false, _) => 178,
        });
        assert!(states[3..].iter().all(|is_near| *is_near), "{states:?}");
    }
}
