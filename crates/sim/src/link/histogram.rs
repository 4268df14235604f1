//! A histogram of durations with a fixed size and a relative error of at most 1/16.
//!
//! Log-linear buckets: sixteen per power of two, as in HdrHistogram (Tene), starting at 1 ns.

use core::time::Duration;

use pleach_core::time::saturating_nanos;

const SUB_BITS: u32 = 4;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

/// Counts of durations. Uses 8 kB of memory.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            total: 0,
            max_ns: 0,
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, value: Duration) {
        let nanos = saturating_nanos(value);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(nanos);
    }

    /// Returns the number of counted durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the longest duration. Zero if no duration was counted.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the duration that a share `quantile` (0 to 1) of all durations does not exceed, rounded up to the end of
    /// its bucket. Zero if the histogram is empty.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "counts are far below 2^53"
    )]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (quantile.clamp(0.0, 1.0) * self.total as f64)
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_end(index).min(self.max_ns));
            }
        }
        Duration::ZERO
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let index = (u64::from(shift) << SUB_BITS) + (nanos >> shift);
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

fn upper_end(index: usize) -> u64 {
    let index = u64::try_from(index).unwrap_or(0);
    let sub = 1 << SUB_BITS;
    if index < 2 * sub {
        return index;
    }
    let shift = index / sub - 1;
    let low = u128::from(index % sub + sub) << shift;
    u64::try_from(low + (1 << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_range_within_a_sixteenth() {
        for exponent in 0..63 {
            for offset in [0_u64, 1, 3] {
                let nanos = (1_u64 << exponent) + offset;
                let end = upper_end(bucket(nanos));
                assert!(
                    end >= nanos && end - nanos <= nanos / 16,
                    "{nanos} in bucket ending {end}"
                );
                assert_eq!(bucket(end), bucket(nanos));
                assert_eq!(bucket(end + 1), bucket(nanos) + 1);
            }
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_follow_the_data() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        (1..=100).for_each(|ms| histogram.record(Duration::from_millis(ms)));
        let p50 = histogram.quantile(0.5);
        assert!(
            p50 >= Duration::from_millis(50) && p50 < Duration::from_millis(54),
            "{p50:?}"
        );
        assert_eq!(histogram.quantile(1.0), Duration::from_millis(100));
    }
}
