//! A decaying histogram of hold times.

use core::time::Duration;

/// Hold times of about the last [`MEMORY`] packets, in buckets a quarter of an octave wide.
#[derive(Debug, Default)]
pub(super) struct HoldTimes {
    /// Number of packets by bucket. Empty until the first packet.
    counts: Vec<u32>,
    total: u32,
}

impl HoldTimes {
    /// Records the hold time of one packet.
    pub(super) fn record(&mut self, hold: Duration) {
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        self.counts[bucket_of(hold)] += 1;
        self.total += 1;
        if self.total >= MEMORY {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns the 95th percentile, rounded up to the end of its bucket.
    pub(super) fn p95(&self) -> Duration {
        let rank = self.total - self.total / 20;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && seen > 0 {
                return end_of(bucket);
            }
        }
        Duration::ZERO
    }
}

/// Number of buckets. Bucket 0 counts packets that were not held. Bucket `b` ends at 2^(b/4) microseconds, the last
/// bucket at 16 s.
const BUCKETS: usize = 97;
const MEMORY: u32 = 8192;

fn bucket_of(hold: Duration) -> usize {
    let micros = u32::try_from(hold.as_micros()).unwrap_or(u32::MAX);
    if micros == 0 {
        return 0;
    }
    let octave = micros.ilog2();
    let quarter = ((u64::from(micros) << 2) >> octave) & 3;
    (octave as usize * 4 + quarter as usize + 1).min(BUCKETS - 1)
}

fn end_of(bucket: usize) -> Duration {
    let Some(step) = bucket.checked_sub(1) else {
        return Duration::ZERO;
    };
    let (octave, quarter) = (step / 4, step % 4);
    Duration::from_micros((1_u64 << octave) + ((quarter as u64 + 1) << octave) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_ignores_the_slowest_twentieth() {
        let mut holds = HoldTimes::default();
        assert_eq!(holds.p95(), Duration::ZERO);
        for i in 0..1000 {
            holds.record(if i % 25 == 0 {
                Duration::from_millis(80)
            } else {
                Duration::from_millis(3)
            });
        }
        assert!(
            (Duration::from_millis(3)..Duration::from_millis(4)).contains(&holds.p95()),
            "{:?}",
            holds.p95()
        );
        for _ in 0..20_000 {
            holds.record(Duration::ZERO);
        }
        assert_eq!(holds.p95(), Duration::ZERO);
    }

    #[test]
    fn every_duration_lies_in_its_bucket() {
        for micros in [1_u64, 2, 3, 4, 5, 7, 8, 100, 999, 1_000_000] {
            let bucket = bucket_of(Duration::from_micros(micros));
            assert!(end_of(bucket) >= Duration::from_micros(micros), "{micros}");
            assert!(
                end_of(bucket - 1) <= Duration::from_micros(micros),
                "{micros}"
            );
        }
    }
}
