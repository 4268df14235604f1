//! Report age: the time from sending a packet until a report acknowledges it.
//!
//! The estimate consists of a mean and a mean deviation, like the RTT estimate of RFC 6298. It is updated more slowly:
//! a sample weighs 1/64, and at most one sample per 25 ms counts. When a path becomes slow, every report is a little
//! later than the previous one. An estimate as fast as the RTT's would follow this increase and never detect it.

use core::time::Duration;

use crate::time::Instant;

/// Report ages of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportAge {
    mean: Option<Duration>,
    deviation: Duration,
    taken_at: Instant,
}

impl ReportAge {
    /// Adds a report. `age`: time since the oldest datagram in flight that the report covers was sent.
    pub fn on_report(&mut self, now: Instant, age: Duration) {
        if self.mean.is_some() && now.since(self.taken_at) < SPACING {
            return;
        }
        self.taken_at = now;
        let age = age.min(MOST_AGE);
        let mean = *self.mean.get_or_insert(age);
        self.deviation = (self.deviation * (WEIGHT - 1) + mean.abs_diff(age)) / WEIGHT;
        self.mean = Some((mean * (WEIGHT - 1) + age) / WEIGHT);
    }

    /// An age that packets rarely reach: the mean plus four mean deviations; zero before the first report.
    #[must_use]
    pub fn usual(&self) -> Duration {
        self.mean.unwrap_or_default() + self.deviation * 4
    }
}

/// Minimum time between two samples.
const SPACING: Duration = Duration::from_millis(25);
/// Divisor: a sample has a weight of 1/64.
const WEIGHT: u32 = 64;
/// Upper limit of a sample: longer ages count as 500 ms. Jitter alone does not delay a report for longer.
const MOST_AGE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_becomes_usual() {
        let mut ages = ReportAge::default();
        assert_eq!(ages.usual(), Duration::ZERO);
        for report in 0..200 {
            // 40 to 100 ms, in no order.
            let age = 40 + report * 37 % 61;
            let now = Instant::from_millis(report * 25 + 1);
            ages.on_report(now, Duration::from_millis(age));
        }
        let usual = ages.usual();
        assert!(usual > Duration::from_millis(100), "{usual:?}");
        assert!(usual < Duration::from_millis(160), "{usual:?}");
    }

    #[test]
    fn a_path_that_becomes_slow_is_late_before_that_is_usual() {
        // Interval of reports in ms, growth of the report age per report in µs, maximum number of reports until
        // detection.
        for (every, older_us, most) in [(10, 9_000, 12), (5, 2_500, 60)] {
            let mut ages = ReportAge::default();
            let usual = Duration::from_millis(40);
            for report in 0..400 {
                ages.on_report(Instant::from_millis(report * every + 1), usual);
            }
            let is_late = |report: &u64| {
                let age = usual + Duration::from_micros(report * older_us);
                let is_late = age > ages.usual() + Duration::from_millis(50);
                ages.on_report(Instant::from_millis((400 + report) * every + 1), age);
                is_late
            };
            let found = (0..200).find(is_late);
            assert!(
                found.is_some_and(|report| report < most),
                "{found:?} of {most}"
            );
        }
    }
}
