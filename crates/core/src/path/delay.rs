//! One-way delay of a path, up to a constant that all paths share.
//!
//! Sender and receiver timestamp packets with unsynchronised clocks: 32-bit microseconds that wrap. The arrival
//! timestamp minus the departure timestamp is the one-way delay plus the unknown offset of the two clocks, modulo
//! 2^32 µs: a [`RelativeDelay`]. The offset is the same on every path between the two hosts, so differences are exact.
//! The difference between the relative delays of two paths shows which path has the shorter delay, and by how much. The
//! difference between the present delay and the delay of the fastest packet of the last 10 s shows the queue. The idea
//! is the relative delay estimator of Song et al.
//!
//! The estimates are the minimum and maximum of the last 10 s, and the mean and mean deviation smoothed over 200 ms
//! (the first eight samples weigh more). [`OneWayDelay::high`] is the mean plus 4 deviations, but at most the maximum
//! of the last 10 s. The resequencer uses it, because it must wait for nearly all packets and no longer.
//!
//! Clock errors: a step of more than 10 s restarts the estimate at once. After a smaller step, the minimum and
//! maximum are right again within 10 s, the mean within one second of samples. Drift adds at most window × drift to
//! the queue: 1 ms at 100 ppm.

use core::{cmp::Reverse, time::Duration};

use super::window::{MIN_WINDOW, WindowedMin};
use crate::time::Instant;

/// A one-way delay plus the unknown clock offset of the two hosts: microseconds modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeDelay(pub u32);

impl RelativeDelay {
    /// Computes the delay from the sender's and the receiver's timestamps, both [`Instant::wire_micros`] of their own
    /// clocks.
    #[must_use]
    pub const fn from_stamps(tx_us: u32, rx_us: u32) -> Self {
        Self(rx_us.wrapping_sub(tx_us))
    }

    /// How much longer this delay is than `other`; zero if it is shorter. Valid for differences below 35 minutes.
    #[must_use]
    pub fn beyond(self, other: Self) -> Duration {
        let micros = self.micros_from(other);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Signed difference to `other` in microseconds.
    #[must_use]
    pub const fn micros_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// One-way delay estimate of one direction of one path.
#[derive(Clone, Debug)]
pub struct OneWayDelay {
    /// The first sample. The other delays of this structure are microseconds relative to it.
    reference: RelativeDelay,
    samples: u64,
    last_sample_at: Instant,
    latest_us: i32,
    /// The smoothed delay, scaled by 2^16.
    smoothed: i64,
    /// The mean deviation, scaled by 2^16.
    deviation: i64,
    min: WindowedMin<i32>,
    max: WindowedMin<Reverse<i32>>,
}

impl Default for OneWayDelay {
    fn default() -> Self {
        Self::new()
    }
}

impl OneWayDelay {
    /// Creates an estimate without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            reference: RelativeDelay(0),
            samples: 0,
            last_sample_at: Instant::ZERO,
            latest_us: 0,
            smoothed: 0,
            deviation: 0,
            min: WindowedMin::new(MIN_WINDOW),
            max: WindowedMin::new(MIN_WINDOW),
        }
    }

    /// Adds the delay of one packet, or of one report about packets.
    pub fn on_sample(&mut self, now: Instant, delay: RelativeDelay) {
        let mut micros = delay.micros_from(self.reference);
        let jump = (i64::from(micros) << 16).abs_diff(self.smoothed) >> 16;
        if self.samples == 0 || jump > STEP_US || micros.unsigned_abs() > MAX_FROM_REFERENCE_US {
            self.restart(now, delay);
            micros = 0;
        }
        let gain = self.gain(now.since(self.last_sample_at));
        let error = (i64::from(micros) << 16) - self.smoothed;
        self.smoothed += (error >> 16) * gain;
        self.deviation += ((error.abs() - self.deviation) >> 16) * gain;
        self.latest_us = micros;
        self.min.insert(now, micros);
        self.max.insert(now, Reverse(micros));
        self.samples += 1;
        self.last_sample_at = now;
    }

    /// The newest sample; `None` before the first sample.
    #[must_use]
    pub fn latest(&self) -> Option<RelativeDelay> {
        self.absolute(self.latest_us)
    }

    /// The minimum of the last 10 s, which is the delay of the path without its queue; `None` before the first
    /// sample.
    #[must_use]
    pub fn min(&self) -> Option<RelativeDelay> {
        self.absolute(self.min.min()?)
    }

    /// The smoothed delay; `None` before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Option<RelativeDelay> {
        self.absolute(i32::try_from(self.smoothed >> 16).unwrap_or(0))
    }

    /// The smoothed mean deviation; zero before the second sample.
    #[must_use]
    pub fn deviation(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.deviation >> 16).unwrap_or(0))
    }

    /// A delay that nearly all packets stay below: smoothed + 4 deviations, at most the maximum of the last 10 s.
    /// `None` before the first sample.
    #[must_use]
    pub fn high(&self) -> Option<RelativeDelay> {
        let Reverse(max) = self.max.min()?;
        let high = (self.smoothed + 4 * self.deviation) >> 16;
        self.absolute(i32::try_from(high).unwrap_or(max).min(max))
    }

    /// When the newest sample was taken; `None` before the first sample.
    #[must_use]
    pub fn sampled_at(&self) -> Option<Instant> {
        (self.samples > 0).then_some(self.last_sample_at)
    }

    /// How much the newest sample exceeds the minimum; zero before the first sample.
    #[must_use]
    pub fn queue_delay(&self) -> Duration {
        let beyond_min = |latest: RelativeDelay| Some(latest.beyond(self.min()?));
        self.latest().and_then(beyond_min).unwrap_or(Duration::ZERO)
    }

    fn absolute(&self, micros: i32) -> Option<RelativeDelay> {
        let value = self.reference.0.wrapping_add_signed(micros);
        (self.samples > 0).then_some(RelativeDelay(value))
    }

    fn restart(&mut self, now: Instant, delay: RelativeDelay) {
        *self = Self::new();
        self.reference = delay;
        self.last_sample_at = now;
    }

    /// The weight of a sample taken `elapsed` after the previous sample, scaled by 2^16: `elapsed` over the time
    /// constant, at most a half. The first samples weigh more, so that the mean is right from the start.
    fn gain(&self, elapsed: Duration) -> i64 {
        let share = (elapsed.as_micros() << 16) / SMOOTHING.as_micros();
        let share = i64::try_from(share).unwrap_or(i64::MAX);
        let early = if self.samples < 8 {
            (1 << 16) / (i64::try_from(self.samples).unwrap_or(0) + 2)
        } else {
            MIN_GAIN
        };
        share.clamp(early, 1 << 15)
    }
}

/// Time constant of mean and deviation: a few RTTs, and longer than the bursts of a radio link.
const SMOOTHING: Duration = Duration::from_millis(200);

/// Minimum weight, 2^-10, scaled by 2^16. It applies to samples of a burst with one arrival time.
const MIN_GAIN: i64 = 1 << 6;

/// Change of the delay, in microseconds, above which it is a clock step, not a queue.
const STEP_US: u64 = 10_000_000;

/// Difference to the reference, in microseconds, at which the estimate restarts, before the difference can wrap. A
/// drift of 100 ppm reaches it in four months.
const MAX_FROM_REFERENCE_US: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Feeds samples of `base_us` + up to `jitter_us`, one per `every`. Returns the time after the last sample.
    fn feed(
        delay: &mut OneWayDelay,
        mut now: Instant,
        count: u32,
        every: Duration,
        (base_us, jitter_us): (u32, u64),
    ) -> Instant {
        let mut rng = Rng::new(3);
        for _ in 0..count {
            let jitter = u32::try_from(rng.below(jitter_us.max(1))).expect("small");
            delay.on_sample(now, RelativeDelay(base_us.wrapping_add(jitter)));
            now += every;
        }
        now
    }

    #[test]
    fn differences_between_paths_survive_the_wrap() {
        let (mut dsl, mut lte) = (OneWayDelay::new(), OneWayDelay::new());
        // The clocks differ such that the shorter delay is just below the wrap and the longer one above it.
        dsl.on_sample(Instant::ZERO, RelativeDelay::from_stamps(5_000, 4_000));
        lte.on_sample(Instant::ZERO, RelativeDelay::from_stamps(5_000, 24_000));
        let (dsl, lte) = (dsl.min().expect("sample"), lte.min().expect("sample"));
        assert_eq!(lte.beyond(dsl), Duration::from_millis(20));
        assert_eq!(dsl.beyond(lte), Duration::ZERO);
        assert_eq!(dsl.micros_from(lte), -20_000);
    }

    #[test]
    fn queue_is_what_lies_above_the_minimum() {
        let mut delay = OneWayDelay::new();
        assert_eq!((delay.min(), delay.queue_delay()), (None, Duration::ZERO));
        for (at, micros) in [(0, u32::MAX - 50), (10, u32::MAX), (20, 949)] {
            delay.on_sample(Instant::from_millis(at), RelativeDelay(micros));
        }
        assert_eq!(delay.queue_delay(), Duration::from_micros(1_000));
    }

    #[test]
    fn mean_deviation_and_high_match_uniform_jitter() {
        let mut delay = OneWayDelay::new();
        let every = Duration::from_micros(500);
        feed(&mut delay, Instant::ZERO, 4_000, every, (7_000, 20_000));
        let base = RelativeDelay(7_000);
        let smoothed = delay.smoothed().expect("samples").micros_from(base);
        assert!((8_500..11_500).contains(&smoothed), "{smoothed}");
        let deviation = delay.deviation().as_micros();
        assert!((4_200..5_800).contains(&deviation), "{deviation}");
        // The mean plus 4 deviations exceeds the maximum of a uniform distribution: the maximum of the window bounds
        // it.
        let high = delay.high().expect("samples").micros_from(base);
        assert!((19_000..20_000).contains(&high), "{high}");
    }

    #[test]
    fn one_outlier_does_not_move_high() {
        let mut delay = OneWayDelay::new();
        let every = Duration::from_millis(1);
        let now = feed(&mut delay, Instant::ZERO, 2_000, every, (0, 1_000));
        let before = delay.high().expect("samples");
        delay.on_sample(now, RelativeDelay(80_000));
        let moved = delay.high().expect("samples").micros_from(before);
        assert!((0..3_000).contains(&moved), "{moved}");
    }

    #[test]
    fn clock_steps_are_forgotten_within_the_window_even_with_few_samples() {
        for step in [500_000_u32, 500_000_u32.wrapping_neg(), 9_000_000] {
            let mut delay = OneWayDelay::new();
            let every = Duration::from_millis(500);
            let now = feed(&mut delay, Instant::ZERO, 100, every, (1_000, 200));
            feed(
                &mut delay,
                now,
                21,
                every,
                (1_000_u32.wrapping_add(step), 200),
            );
            let base = RelativeDelay(1_000_u32.wrapping_add(step));
            let min = delay.min().expect("samples").micros_from(base);
            let high = delay.high().expect("samples").micros_from(base);
            assert!((0..200).contains(&min), "step {step}: min {min}");
            assert!((0..1_000).contains(&high), "step {step}: high {high}");
            assert!(delay.queue_delay() < Duration::from_micros(200));
        }
    }

    #[test]
    fn a_large_step_restarts_at_once() {
        let mut delay = OneWayDelay::new();
        let every = Duration::from_millis(1);
        let now = feed(&mut delay, Instant::ZERO, 100, every, (1_000, 200));
        delay.on_sample(now, RelativeDelay(3_000_000_000));
        assert_eq!(delay.min(), Some(RelativeDelay(3_000_000_000)));
        assert_eq!(delay.deviation(), Duration::ZERO);
    }

    #[test]
    fn drift_follows_for_hours_through_the_wrap() {
        let mut delay = OneWayDelay::new();
        // 1000 ppm of drift, ten times the worst quartz, sampled every second until the stamps have wrapped.
        let mut now = Instant::ZERO;
        let mut base = u32::MAX - 2_000_000;
        for _ in 0..20_000 {
            delay.on_sample(now, RelativeDelay(base));
            assert!(delay.queue_delay() <= Duration::from_millis(10));
            now += Duration::from_secs(1);
            base = base.wrapping_add(1_000);
        }
    }

    #[test]
    fn arbitrary_stamps_never_panic() {
        let mut delay = OneWayDelay::new();
        let mut rng = Rng::new(5);
        let mut now = Instant::ZERO;
        for _ in 0..50_000 {
            let bits = u32::try_from(rng.next_u64() >> 32).expect("32 bits");
            delay.on_sample(now, RelativeDelay(bits >> rng.below(32)));
            now += Duration::from_nanos(rng.next_u64() >> (20 + rng.below(44)));
            let _ = (delay.high(), delay.smoothed(), delay.queue_delay());
        }
    }
}
