//! Holds packets of quick links so that packets sent together arrive together.
//!
//! One TCP flow over links of unequal delay does not survive the disorder: with 10 and 90 ms and equal weights the paper's
//! flow never reaches the sum of two links of 10 Mbit/s (section IV.A). Disorder can be taken away where it is made: a
//! packet for a quick link waits at the sender for as long as a slow link is slower. The flow then sees one link of the slow one's
//! delay and the sum of the rates. Worth it for transfers, not for what is impatient.
//!
//! What counts is the difference of the ways to the same far end. The caller sends a probe over every link now and
//! then; if the answers take one way back, their round trips differ by just that. Of the last 5 to 10 s
//! the shortest round trip of each link counts: a queue that comes and goes is none of a link's delay, and holding
//! for it would build the next one. A link whose probes have not come back for that long is left out, and so
//! is what a link is slower than [`MAX_HOLD`]: no packet waits longer.
//!
//! Holds change from one packet to the next by what the probes say; a link's packets keep their order if the caller sends
//! none before those that went earlier.
//!
//! Not in the paper, which leaves links of too unequal delay alone (its guideline's third rule).

use core::time::Duration;

use pleach_core::time::Instant;

use crate::MAX_LINKS;

/// How long packets of each link have to wait.
#[derive(Clone, Debug, Default)]
pub struct DelayEqualizer {
    links: [Ways; MAX_LINKS],
}

/// The shortest round trip of two windows.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    /// When the current window began, and the shortest in it.
    current: Option<(Instant, Duration)>,
    /// The shortest in the window before, which ended when the current one began.
    before: Option<Duration>,
}

impl DelayEqualizer {
    /// A probe over link `index` was answered at `now`, `round_trip` after it was sent.
    pub fn on_round_trip(&mut self, now: Instant, index: usize, round_trip: Duration) {
        let Some(ways) = self.links.get_mut(index) else {
            return;
        };
        match &mut ways.current {
            Some((began_at, least)) if now.since(*began_at) < WINDOW => {
                *least = round_trip.min(*least);
            }
            current => {
                ways.before = current
                    .filter(|(began_at, _)| now.since(*began_at) < WINDOW * 2)
                    .map(|(_, least)| least);
                *current = Some((now, round_trip));
            }
        }
    }

    /// The shortest round trip over link `index` lately; `None` while nothing is known of it.
    #[must_use]
    pub fn round_trip(&self, now: Instant, index: usize) -> Option<Duration> {
        self.links.get(index)?.least(now)
    }

    /// How long a packet for link `index` waits at `now`; zero while nothing is known of the link.
    ///
    /// `is_used`: whether link so-and-so has packets at all; nobody waits for one that has none.
    #[must_use]
    pub fn hold(&self, now: Instant, index: usize, is_used: impl Fn(usize) -> bool) -> Duration {
        let Some(own) = self.round_trip(now, index) else {
            return Duration::ZERO;
        };
        let others = self.links.iter().enumerate();
        let others = others.filter(|(other, _)| is_used(*other));
        let differences = others.filter_map(|(_, ways)| Some(ways.least(now)?.saturating_sub(own)));
        differences
            .filter(|difference| *difference <= MAX_HOLD)
            .max()
            .filter(|hold| *hold >= MIN_HOLD)
            .unwrap_or_default()
    }
}

impl Ways {
    fn least(&self, now: Instant) -> Option<Duration> {
        let (began_at, least) = self.current?;
        if now.since(began_at) >= WINDOW * 2 {
            return None;
        }
        Some(self.before.map_or(least, |before| before.min(least)))
    }
}

/// A queue has been empty once within so long, or it is a standing one.
const WINDOW: Duration = Duration::from_secs(5);

/// Shorter waits are those of links as good as alike: the chance of one probe.
pub const MIN_HOLD: Duration = Duration::from_micros(500);

/// Longest wait: beyond, a link is too slow to be made one with the others.
pub const MAX_HOLD: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn quick_links_wait_for_the_slowest_that_is_used() {
        let mut delays = DelayEqualizer::default();
        assert_eq!(delays.hold(at(0), 0, |_| true), Duration::ZERO);
        for (index, round_trip) in [20, 100, 50].into_iter().enumerate() {
            delays.on_round_trip(at(0), index, round_trip * MS);
        }
        let holds =
            |is_used: fn(usize) -> bool| [0, 1, 2].map(|at_| delays.hold(at(0), at_, is_used));
        assert_eq!(holds(|_| true), [80 * MS, Duration::ZERO, 50 * MS]);
        assert_eq!(
            holds(|index| index != 1),
            [30 * MS, Duration::ZERO, Duration::ZERO]
        );
    }

    #[test]
    fn queues_do_not_count_and_are_forgotten_slowly() {
        let mut delays = DelayEqualizer::default();
        delays.on_round_trip(at(0), 0, 20 * MS);
        for millis in (0..=4_800).step_by(200) {
            delays.on_round_trip(at(millis), 0, 20 * MS);
            delays.on_round_trip(
                at(millis),
                1,
                if millis == 3_000 { 60 * MS } else { 200 * MS },
            );
        }
        assert_eq!(delays.hold(at(4_800), 0, |_| true), 40 * MS);
        // The way is longer now: two windows later that is believed.
        for millis in (5_000..=15_000).step_by(200) {
            delays.on_round_trip(at(millis), 0, 20 * MS);
            delays.on_round_trip(at(millis), 1, 100 * MS);
        }
        assert_eq!(delays.hold(at(15_000), 0, |_| true), 80 * MS);
    }

    #[test]
    fn nobody_waits_for_a_link_that_is_silent_or_far_too_slow() {
        let mut delays = DelayEqualizer::default();
        delays.on_round_trip(at(0), 0, 20 * MS);
        delays.on_round_trip(at(0), 1, 521 * MS);
        assert_eq!(delays.hold(at(0), 0, |_| true), Duration::ZERO);
        delays.on_round_trip(at(0), 1, 120 * MS);
        assert_eq!(delays.hold(at(9_000), 0, |_| true), 100 * MS);
        delays.on_round_trip(at(9_900), 0, 20 * MS);
        assert_eq!(delays.hold(at(10_000), 0, |_| true), Duration::ZERO);
        assert_eq!(delays.hold(at(10_000), MAX_LINKS, |_| true), Duration::ZERO);
    }
}
