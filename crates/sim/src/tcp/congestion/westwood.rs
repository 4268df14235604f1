//! Westwood+: after a loss, the window is the product of estimated bandwidth and minimum RTT.
//!
//! Mascolo et al. 2001 (the idea), Grieco and Mascolo 2004 (Westwood+): once per RTT, but at most every 50 ms, the
//! delivered bytes give a sample `b_k = d_k / Δ_k`. The estimate is `BWE_k = 7/8 BWE_{k-1} + 1/8 b_k`. After a loss
//! `ssthresh = BWE · RTT_min / MSS`. As in Linux, the sample passes the filter twice in a row, and the first sample
//! initialises both filters. Growth is Reno's. Recovery reduces the window towards half and sets the estimated window
//! at its end. A timeout restarts the measurement of `RTT_min`.

use core::time::Duration;

use pleach_core::time::{Instant, saturating_nanos};

use super::MIN_SSTHRESH;

/// Shortest interval of a sample.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// State of Westwood+.
#[derive(Clone, Debug, Default)]
pub(crate) struct Westwood {
    interval_started_at: Option<Instant>,
    /// `d_k`: bytes delivered in this interval.
    interval_bytes: u64,
    /// Bandwidth filtered once and twice, in bytes per second.
    filtered: Option<[f64; 2]>,
    rtt: Option<Duration>,
    rtt_min: Option<Duration>,
}

impl Westwood {
    pub(super) fn on_rtt_sample(&mut self, rtt: Duration) {
        self.rtt = Some(rtt);
        self.rtt_min = Some(self.rtt_min.map_or(rtt, |min| min.min(rtt)));
    }

    pub(super) fn on_delivered(&mut self, now: Instant, delivered_bytes: u64) {
        let started_at = *self.interval_started_at.get_or_insert(now);
        let interval = now.since(started_at);
        if let Some(rtt) = self.rtt
            && interval > rtt.max(MIN_INTERVAL)
        {
            self.end_interval(interval);
            self.interval_started_at = Some(now);
        }
        self.interval_bytes += delivered_bytes;
    }

    fn end_interval(&mut self, interval: Duration) {
        let sample = bytes_to_f64(self.interval_bytes) / interval.as_secs_f64();
        self.interval_bytes = 0;
        self.filtered = Some(match self.filtered {
            None => [sample; 2],
            Some([once, twice]) => {
                let once = (7.0 * once + sample) / 8.0;
                [once, (7.0 * twice + once) / 8.0]
            }
        });
    }

    /// Returns `BWE · RTT_min / MSS`. `None` before the first estimate.
    pub(super) fn bandwidth_window(&self, mss: u32) -> Option<u32> {
        let [_, estimate] = self.filtered?;
        let pkts = estimate * bytes_to_f64(saturating_nanos(self.rtt_min?)) / 1e9 / f64::from(mss);
        Some(to_pkts(pkts).max(MIN_SSTHRESH))
    }

    pub(super) fn on_timeout(&mut self) {
        self.rtt_min = self.rtt;
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an estimate needs no more than 53 bits"
)]
fn bytes_to_f64(n: u64) -> f64 {
    n as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, which is meant"
)]
fn to_pkts(window: f64) -> u32 {
    window as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MSS: u32 = 1_000;

    #[test]
    fn steady_delivery_gives_bandwidth_times_minimal_round_trip() {
        // 1000 bytes every millisecond are 1 MB/s, which is 80 segments in 80 ms.
        let mut westwood = Westwood::default();
        westwood.on_rtt_sample(80 * MS);
        westwood.on_rtt_sample(120 * MS);
        assert_eq!(westwood.bandwidth_window(MSS), None);
        for ms in 0..10_000 {
            westwood.on_delivered(Instant::from_millis(ms), 1_000);
        }
        assert_eq!(westwood.bandwidth_window(MSS), Some(80));
    }

    #[test]
    fn estimate_follows_the_filter_of_the_paper() {
        let mut westwood = Westwood::default();
        westwood.on_rtt_sample(60 * MS);
        let samples = [1_000_u64, 3_000, 500, 8_000];
        let interval = 61 * MS;
        let mut now = Instant::ZERO;
        let (mut once, mut twice) = (0.0, 0.0);
        for (i, bytes) in samples.into_iter().enumerate() {
            westwood.on_delivered(now, bytes);
            now += interval;
            westwood.on_delivered(now, 0);
            let sample = bytes_to_f64(bytes) / interval.as_secs_f64();
            once = if i == 0 {
                sample
            } else {
                (7.0 * once + sample) / 8.0
            };
            twice = if i == 0 {
                once
            } else {
                (7.0 * twice + once) / 8.0
            };
            let [_, estimate] = westwood.filtered.expect("an interval ended");
            assert!((estimate / twice - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn short_intervals_are_not_sampled() {
        let mut westwood = Westwood::default();
        westwood.on_rtt_sample(5 * MS);
        (0..=50).for_each(|ms| westwood.on_delivered(Instant::from_millis(ms), 1));
        assert_eq!(westwood.filtered, None);
        westwood.on_delivered(Instant::from_millis(51), 1);
        assert!(westwood.filtered.is_some());
    }

    #[test]
    fn a_timeout_measures_the_minimum_anew() {
        let mut westwood = Westwood::default();
        westwood.on_rtt_sample(5 * MS);
        westwood.on_rtt_sample(50 * MS);
        westwood.on_timeout();
        assert_eq!(westwood.rtt_min, Some(50 * MS));
    }
}
