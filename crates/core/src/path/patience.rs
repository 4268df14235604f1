//! How long after it was sent a packet's arrival is usually known.
//!
//! Mean and mean deviation of the ages of the oldest packets that reports cover, as for a round trip, but learned slowly:
//! a path that becomes slow makes every report a little later than the one before, and an estimate as quick as RFC 9002's
//! would run along with it and never find it late.

use core::time::Duration;

/// The ages of one path's packets when they are reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    mean: Option<Duration>,
    deviation: Duration,
}

impl Patience {
    /// Takes note of a report; `age`: since the oldest packet that it covers was sent.
    pub fn on_report(&mut self, age: Duration) {
        let age = age.min(MOST_AGE);
        let mean = *self.mean.get_or_insert(age);
        self.deviation = (self.deviation * (GAIN - 1) + mean.abs_diff(age)) / GAIN;
        self.mean = Some((mean * (GAIN - 1) + age) / GAIN);
    }

    /// The age that hardly any packet reaches: four mean deviations beyond the mean; zero before the first report.
    #[must_use]
    pub fn usual(&self) -> Duration {
        self.mean.unwrap_or_default() + self.deviation * 4
    }
}

/// One report counts as much as this many together.
const GAIN: u32 = 128;
/// A packet that was under way for longer was held up by more than jitter.
const MOST_AGE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_becomes_usual() {
        let mut patience = Patience::default();
        assert_eq!(patience.usual(), Duration::ZERO);
        for report in 0..400 {
            // 40 to 100 ms, in no order.
            let age = 40 + report * 37 % 61;
            patience.on_report(Duration::from_millis(age));
        }
        let usual = patience.usual();
        assert!(usual > Duration::from_millis(100), "{usual:?}");
        assert!(usual < Duration::from_millis(160), "{usual:?}");
    }

    #[test]
    fn a_path_that_becomes_slow_is_late_before_that_is_usual() {
        let mut patience = Patience::default();
        for _ in 0..400 {
            patience.on_report(Duration::from_millis(40));
        }
        // A report every 10 ms, each 9 ms older than the one before.
        let is_late = |report: &u64| {
            let age = Duration::from_millis(40 + report * 9);
            let is_late = age > patience.usual() + Duration::from_millis(50);
            patience.on_report(age);
            is_late
        };
        let found = (0..100).find(is_late);
        assert!(found.is_some_and(|report| report < 12), "{found:?}");
    }
}
