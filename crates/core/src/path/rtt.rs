//! Round-trip time of a path.
//!
//! RFC 9002 section 5: exponentially weighted mean (1/8) and mean deviation (1/4) of the samples. The ACK delay
//! reported by the peer is subtracted from a sample unless the result would be below the min RTT. There are two
//! differences:
//!
//! - The minimum is taken over the last 10 s instead of the life of the path, because routes and radio cells change.
//! - A sample that is less than half of the mean, and more than 100 ms below the mean, weighs 1/2 instead of 1/8. If
//!   the next sample is high again, the weight is corrected to 1/8. Such a sample occurs after a radio link was silent,
//!   when a queue of seconds has drained. On a path that policies avoid, samples are few, and with the normal weight
//!   the mean would stay too high for seconds more.

use core::time::Duration;

use super::window::{MIN_WINDOW, WindowedMin};
use crate::time::Instant;

/// Round-trip time estimate of one path.
#[derive(Clone, Debug)]
pub struct Rtt {
    latest: Option<Duration>,
    sampled_at: Option<Instant>,
    smoothed: Option<Duration>,
    rttvar: Duration,
    min: WindowedMin<Duration>,
    /// Weight of a sample in the mean, in thousandths.
    gain: u16,
    /// Mean deviation like `rttvar`, but starting at zero instead of half of the first sample.
    deviation: Duration,
    /// The mean that results if the newest sample has the usual weight; set if that sample was far below the mean.
    unfallen: Option<Duration>,
}

impl Default for Rtt {
    fn default() -> Self {
        Self::new()
    }
}

impl Rtt {
    /// Creates an estimate without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            latest: None,
            sampled_at: None,
            smoothed: None,
            rttvar: Duration::ZERO,
            min: WindowedMin::new(MIN_WINDOW),
            gain: DEFAULT_GAIN,
            deviation: Duration::ZERO,
            unfallen: None,
        }
    }

    /// Sets the weight of a sample in the mean, in thousandths, at most 1000. The default is 125, or 500 for a sample
    /// far below the mean. Any other weight also applies to such samples.
    pub fn set_gain(&mut self, gain: u16) {
        self.gain = gain.min(1_000);
    }

    /// Adds one sample. `rtt`: time from sending a packet to its acknowledgement. `ack_delay`: time for which the
    /// peer says it delayed the acknowledgement. Samples above [`MAX_RTT`] count as [`MAX_RTT`].
    pub fn on_sample(&mut self, now: Instant, rtt: Duration, ack_delay: Duration) {
        let rtt = rtt.min(MAX_RTT);
        self.latest = Some(rtt);
        self.sampled_at = Some(now);
        self.min.insert(now, rtt);
        let min_rtt = self.min.min().unwrap_or(rtt);
        let adjusted = if rtt.saturating_sub(ack_delay) >= min_rtt {
            rtt.saturating_sub(ack_delay)
        } else {
            rtt
        };
        if let Some(smoothed) = self.smoothed {
            let off = smoothed.abs_diff(adjusted);
            self.rttvar = (self.rttvar * 3 + off) / 4;
            self.deviation = (self.deviation * 3 + off) / 4;
            let has_fallen =
                |mean: Duration| adjusted < mean / 2 && mean.saturating_sub(adjusted) > LEAST_FALL;
            let mix = |mean: Duration, new: u16| {
                (mean * u32::from(1_000 - new) + adjusted * u32::from(new)) / 1_000
            };
            // If the previous sample was low only for a moment, as when a queue runs empty from time to time, give it
            // the usual weight.
            let unfallen = self.unfallen.take();
            let unfallen = unfallen.filter(|mean| !has_fallen(*mean) && adjusted > smoothed);
            let smoothed = unfallen.unwrap_or(smoothed);
            let usual = mix(smoothed, self.gain);
            self.smoothed = Some(if has_fallen(smoothed) && self.gain == DEFAULT_GAIN {
                self.unfallen = Some(usual);
                mix(smoothed, FALLEN_GAIN)
            } else {
                usual
            });
        } else {
            self.smoothed = Some(rtt);
            self.rttvar = rtt / 2;
        }
    }

    /// The newest sample, including the peer's ACK delay.
    #[must_use]
    pub const fn latest(&self) -> Option<Duration> {
        self.latest
    }

    /// When the newest sample was taken.
    #[must_use]
    pub const fn sampled_at(&self) -> Option<Instant> {
        self.sampled_at
    }

    /// The smoothed round-trip time; `None` before the first sample.
    #[must_use]
    pub const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The mean deviation of the samples; zero before the first sample.
    #[must_use]
    pub const fn rttvar(&self) -> Duration {
        self.rttvar
    }

    /// The min RTT of the last 10 s; `None` before the first sample.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        self.min.min()
    }

    /// Upper estimate of the excess of the RTT over the min RTT: the mean plus three mean deviations, minus the min
    /// RTT. It covers the longest RTT if the one-way delays are uniformly distributed.
    #[must_use]
    pub fn spread(&self) -> Duration {
        let high = self.smoothed.unwrap_or_default() + self.deviation * 3;
        high.saturating_sub(self.min().unwrap_or_default())
    }

    /// The probe timeout (RFC 9002 section 6.2.1), if the peer delays acknowledgements by at most `max_ack_delay`.
    #[must_use]
    pub fn pto(&self, max_ack_delay: Duration) -> Duration {
        let smoothed = self.smoothed.unwrap_or(INITIAL_RTT);
        let rttvar = self.smoothed.map_or(INITIAL_RTT / 2, |_| self.rttvar);
        smoothed + (rttvar * 4).max(GRANULARITY) + max_ack_delay
    }
}

/// RTT assumed before the first sample (RFC 9002 section 6.2.2).
pub const INITIAL_RTT: Duration = Duration::from_millis(333);

/// Upper limit of an RTT sample; a longer RTT indicates a sleeping host or a broken clock.
pub const MAX_RTT: Duration = Duration::from_secs(60);

/// Default weight of a sample, in thousandths.
const DEFAULT_GAIN: u16 = 125;
/// Weight of a sample below half of the mean and lower by more than `LEAST_FALL`, in thousandths.
const FALLEN_GAIN: u16 = 500;
const LEAST_FALL: Duration = Duration::from_millis(100);

/// Timer granularity: `kGranularity` of RFC 9002 section 6.1.2.
const GRANULARITY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn spread_is_what_was_seen() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.spread(), Duration::ZERO);
        rtt.on_sample(Instant::from_millis(1), ms(40), Duration::ZERO);
        assert_eq!(
            rtt.spread(),
            Duration::ZERO,
            "a first sample has no deviation"
        );
        for (at, sample) in (2..60).zip([40, 60].into_iter().cycle()) {
            rtt.on_sample(Instant::from_millis(at), ms(sample), Duration::ZERO);
        }
        // Half of the samples are 20 ms higher: the mean is 10 ms above the minimum, and three times the deviation is
        // 30 ms.
        assert!(
            (ms(38)..ms(44)).contains(&rtt.spread()),
            "{:?}",
            rtt.spread()
        );
    }

    #[test]
    fn first_sample_sets_mean_and_half_as_deviation() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.smoothed(), None);
        assert_eq!(rtt.pto(ms(25)), INITIAL_RTT * 3 + ms(25));
        rtt.on_sample(Instant::ZERO, ms(80), ms(10));
        assert_eq!((rtt.smoothed(), rtt.rttvar()), (Some(ms(80)), ms(40)));
        assert_eq!(rtt.pto(ms(25)), ms(80 + 160 + 25));
    }

    #[test]
    fn later_samples_follow_the_rfc_equations() {
        let mut rtt = Rtt::new();
        rtt.on_sample(Instant::ZERO, ms(80), ms(0));
        rtt.on_sample(Instant::from_millis(10), ms(120), ms(24));
        // adjusted = 96: rttvar = 3/4 40 + 1/4 16, smoothed = 7/8 80 + 1/8 96.
        assert_eq!((rtt.smoothed(), rtt.rttvar()), (Some(ms(82)), ms(34)));
        assert_eq!(rtt.latest(), Some(ms(120)));
    }

    #[test]
    fn a_queue_of_seconds_that_has_gone_is_forgotten_within_some_samples() {
        let mut rtt = Rtt::new();
        rtt.on_sample(Instant::ZERO, ms(8_000), ms(0));
        for quarter in 1..=8 {
            rtt.on_sample(Instant::from_millis(quarter * 250), ms(50), ms(0));
        }
        // Seven samples reduce the difference by half each, until little is left; the last one by an eighth.
        let smoothed = rtt.smoothed().expect("sampled");
        assert!((ms(103)..ms(106)).contains(&smoothed), "{smoothed:?}");
    }

    #[test]
    fn one_quick_answer_of_a_path_that_queues_is_no_fall() {
        let mut rtt = Rtt::new();
        for (round, sample) in (0..40).flat_map(|round| [60, 250, 250, 250].map(|ms| (round, ms))) {
            rtt.on_sample(Instant::from_millis(round * 1_000), ms(sample), ms(0));
        }
        let smoothed = rtt.smoothed().expect("sampled");
        assert!(
            (ms(190)..ms(220)).contains(&smoothed),
            "the mean is 202: {smoothed:?}"
        );
    }

    #[test]
    fn a_gain_that_was_set_holds_for_each_sample() {
        let mut rtt = Rtt::new();
        rtt.set_gain(250);
        for sample in [8_000, 80, 80] {
            rtt.on_sample(Instant::ZERO, ms(sample), ms(0));
        }
        assert_eq!(rtt.smoothed(), Some(ms(4_535)));
    }

    #[test]
    fn hold_time_never_takes_a_sample_below_the_minimum() {
        let mut rtt = Rtt::new();
        rtt.on_sample(Instant::ZERO, ms(80), ms(0));
        rtt.on_sample(Instant::from_millis(10), ms(88), ms(40));
        assert_eq!(rtt.smoothed(), Some(ms(81)));
        assert_eq!(rtt.min(), Some(ms(80)));
    }

    #[test]
    fn minimum_follows_a_longer_route_after_the_window() {
        let mut rtt = Rtt::new();
        rtt.on_sample(Instant::ZERO, ms(20), ms(0));
        for second in 1..=11 {
            rtt.on_sample(Instant::from_millis(second * 1000), ms(50), ms(0));
        }
        assert_eq!(rtt.min(), Some(ms(50)));
    }

    #[test]
    fn absurd_samples_are_bounded() {
        let mut rtt = Rtt::new();
        rtt.on_sample(Instant::ZERO, Duration::MAX, Duration::MAX);
        rtt.on_sample(Instant::ZERO, Duration::MAX, Duration::ZERO);
        assert_eq!(rtt.smoothed(), Some(MAX_RTT));
    }
}
