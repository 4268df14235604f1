//! Delays packets of links with a short delay so that packets sent together arrive together.
//!
//! One TCP flow over links of unequal delay suffers from reordering: in the NATALIE paper (section IV.A), a flow over
//! two links of 10 Mbit/s with delays of 10 and 90 ms and equal weights never reaches the sum of their rates. The
//! reordering can be prevented at the sender: a packet for a link with a shorter delay waits for the difference to
//! the link with the longest delay. The flow then sees one link with the longest delay and the sum of the rates. This
//! is useful for bulk transfers, but not for traffic that needs a short delay.
//!
//! The relevant value is the difference of the one-way delays to the same remote host. The caller regularly sends a
//! probe over every link. If the replies return over the same path, the RTTs differ by exactly this value. For each
//! link the shortest RTT of the last 5 to 10 s counts: a transient queue is not part of a link's delay, and delaying
//! packets because of it would build the next queue. A link whose probes have not been answered for that long is
//! ignored. A link whose delay is longer by more than [`MAX_HOLD`] is ignored too: no packet waits longer than that.
//!
//! Hold times may change from one packet to the next. A link's packets stay in order if the caller does not send a
//! packet before the packets that it accepted earlier.
//!
//! This method is not in the NATALIE paper, which does not combine links whose delays differ too much (third rule of
//! its guideline).

use core::time::Duration;

use pleach_core::time::Instant;

use crate::MAX_LINKS;

/// Computes how long packets of each link have to wait.
#[derive(Clone, Debug, Default)]
pub struct DelayEqualizer {
    links: [Ways; MAX_LINKS],
}

/// The shortest RTTs of two windows.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    /// Start of the current window, and the shortest RTT in it.
    current: Option<(Instant, Duration)>,
    /// Shortest RTT in the previous window, which ended when the current window began.
    before: Option<Duration>,
}

impl DelayEqualizer {
    /// Records that a probe over link `index` was answered at `now`, with an RTT of `round_trip`.
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

    /// Returns the shortest RTT over link `index` in the last 5 to 10 s. `None` if it is unknown.
    #[must_use]
    pub fn round_trip(&self, now: Instant, index: usize) -> Option<Duration> {
        self.links.get(index)?.least(now)
    }

    /// Returns how long a packet for link `index` waits at `now`. Zero while the delay of the link is unknown.
    ///
    /// `is_used`: whether a link has packets at all. The delay of a link without packets does not count.
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

/// Length of a window. If a queue has not been empty within this time, it is a standing queue.
const WINDOW: Duration = Duration::from_secs(5);

/// Shortest hold time. Smaller differences are within the noise of a probe.
pub const MIN_HOLD: Duration = Duration::from_micros(500);

/// Longest hold time. If the difference is larger, the link is too slow to be combined with the others.
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
        // The path's delay has become longer. This takes effect two windows later.
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
