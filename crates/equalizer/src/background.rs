//! Background of a link (the traffic of others): a mean that restarts when the traffic has changed.
//!
//! A filter that follows changes quickly passes on the noise of every interval, and a slower filter is too slow. So
//! changes are detected separately, by cumulative sums. The traffic above the expected value, minus a slack of
//! [`SLACK`] of the link's rate, is added to a sum as long as the sum is positive. The same is done for traffic below
//! the expected value. A change is detected when a sum reaches the amount that the link carries in [`ENOUGH`]. The
//! sum is the amount of data by which the current weights were wrong. So a large change is detected within tens of
//! milliseconds, a small change in the time in which it does equal harm, and noise is rarely mistaken for a change.
//!
//! After a change, the background is the mean of the intervals since the sum began, without the first interval, in
//! which the change may have happened at any moment. If there is only that interval, it is used, and the next one may
//! correct it. From then on the background is the mean of all intervals since, until their number is so large that the
//! mean becomes a filter with the time constant [`MEMORY`].
//!
//! Source for the sums: E. S. Page, *Continuous Inspection Schemes*, 1954. The NATALIE paper only says "filtered".

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// An estimate of a link's background.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Background {
    /// Mean in bit/s. `None` before the first interval.
    mean: Option<f64>,
    /// Total time of the intervals in the mean, in seconds.
    time: f64,
    more: Run,
    less: Run,
}

/// Consecutive intervals on one side of the expected value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Run {
    /// Sum of the deviations beyond the slack, in bits.
    sum: f64,
    /// Bits and seconds of all intervals since the run began, except the first.
    bits: f64,
    time: f64,
}

impl Background {
    /// Returns the estimate. Zero before the first interval.
    #[must_use]
    pub fn rate(&self) -> Bitrate {
        bitrate(self.mean.unwrap_or(0.0))
    }

    /// Processes an interval: other traffic passed `bytes` to the link in `length`, which is not zero. `rate` is the
    /// rate of the link. Returns true if an increase of the background was detected.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn on_interval(&mut self, bytes: Bytes, length: Duration, rate: Bitrate) -> bool {
        let (bits, time) = (bytes.get() as f64 * 8.0, length.as_secs_f64());
        let rate = rate.as_bps() as f64;
        let Some(mean) = self.mean else {
            self.start(bits, time);
            return false;
        };
        let excess = bits - mean * time;
        let slack = SLACK * rate * time;
        let enough = ENOUGH.as_secs_f64() * rate;
        let is_more = self.more.on_interval(bits, time, excess - slack, enough);
        let is_less = self.less.on_interval(bits, time, -excess - slack, enough);
        let run = if is_more { self.more } else { self.less };
        if !is_more && !is_less {
            self.time += time;
            let gain = (time / self.time).max(1.0 - (-time / MEMORY.as_secs_f64()).exp());
            self.mean = Some(mean + gain * (bits / time - mean));
        } else if run.time > 0.0 {
            self.start(run.bits, run.time);
        } else {
            self.start(bits, time);
        }
        is_more
    }

    fn start(&mut self, bits: f64, time: f64) {
        *self = Self {
            mean: Some(bits / time),
            time,
            ..Self::default()
        };
    }
}

impl Run {
    /// Adds an interval. Returns true if the sum reaches `enough`.
    fn on_interval(&mut self, bits: f64, time: f64, beyond: f64, enough: f64) -> bool {
        if self.sum > 0.0 {
            self.bits += bits;
            self.time += time;
        }
        self.sum += beyond;
        if self.sum <= 0.0 {
            *self = Self::default();
        }
        self.sum >= enough
    }
}

/// Converts bit/s. Negative values become zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts saturate"
)]
pub(crate) fn bitrate(bps: f64) -> Bitrate {
    Bitrate::from_bps(bps.max(0.0) as u64)
}

/// Deviation that does not count, as a part of the link's rate.
pub const SLACK: f64 = 0.05;

/// Sum from which a change is detected, given as the time that the link needs to carry it. The queues of access links
/// are longer.
pub const ENOUGH: Duration = Duration::from_millis(20);

/// Time constant of the filter: a sample every 200 ms has a weight of 0.3.
pub const MEMORY: Duration = Duration::from_millis(560);

#[cfg(test)]
mod tests {
    use pleach_core::rng::Rng;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(50);
    const RATE: Bitrate = Bitrate::from_mbps(10);

    fn feed(background: &mut Background, mbps: u64, intervals: u32) {
        for _ in 0..intervals {
            background.on_interval(Bitrate::from_mbps(mbps).bytes_in(INTERVAL), INTERVAL, RATE);
        }
    }

    #[test]
    fn a_change_is_known_at_the_end_of_the_first_whole_interval() {
        for (from, to) in [(0, 9), (9, 0), (2, 8), (8, 2), (5, 0), (3, 5)] {
            let mut background = Background::default();
            feed(&mut background, from, 40);
            // The change happens at three quarters of an interval.
            let bits =
                |mbps: u64, part: u64| Bitrate::from_mbps(mbps).bytes_in(INTERVAL).get() * part / 4;
            let mixed = Bytes::new(bits(from, 3) + bits(to, 1));
            background.on_interval(mixed, INTERVAL, RATE);
            feed(
                &mut background,
                to,
                if to.abs_diff(from) > 2 { 1 } else { 4 },
            );
            let found = background.rate().as_mbps();
            assert!((found - to as f64).abs() < 0.3, "{from} to {to}: {found}");
        }
    }

    #[test]
    fn noise_is_averaged_and_seldom_a_change() {
        let mut rng = Rng::new(3);
        let mut background = Background::default();
        let mut far = 0;
        for interval in 0..5_000 {
            // 5 Mbit/s of packets of 1000 bytes at random times are about 31 packets per interval.
            let packets = (0..1000).filter(|_| rng.below(1000) < 31).count();
            background.on_interval(Bytes::of_len(packets * 1000), INTERVAL, RATE);
            let off = (background.rate().as_mbps() - 4.96).abs();
            far += u32::from(interval > 20 && off > 1.0);
        }
        assert!(
            far < 50,
            "off by more than 1 Mbit/s in {far} of 5 000 intervals"
        );
    }

    #[test]
    fn one_odd_interval_is_forgotten_soon() {
        let mut background = Background::default();
        feed(&mut background, 1, 100);
        feed(&mut background, 9, 1);
        feed(&mut background, 1, 2);
        assert!(
            background.rate() < Bitrate::from_mbps(2),
            "{:?}",
            background.rate()
        );
    }
}
