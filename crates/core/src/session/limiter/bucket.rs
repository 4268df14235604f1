//! A token bucket stored as one instant: the generic cell rate algorithm (ITU-T I.371).

use core::time::Duration;

use crate::time::{Instant, saturating_nanos};

/// Number of tokens per second, and number of tokens in a full bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens per second; 0 counts as 1.
    pub per_second: u32,
    /// Tokens in a full bucket; 0 counts as 1.
    pub burst: u32,
}

impl Rate {
    /// Returns a rate.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second, burst }
    }

    pub(super) fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

/// A token bucket, represented by the instant at which it will be full again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(Instant);

impl Bucket {
    /// A full bucket.
    pub const FULL: Self = Self(Instant::ZERO);

    /// Takes a token.
    ///
    /// # Errors
    /// The time until a token is available.
    pub fn take(&mut self, now: Instant, rate: Rate) -> Result<(), Duration> {
        self.take_every(now, rate.interval(), rate.burst)
    }

    /// Takes a token of a bucket that gets a token every `interval` and holds `burst` tokens; 0 counts as 1.
    ///
    /// # Errors
    /// The time until a token is available.
    pub fn take_every(
        &mut self,
        now: Instant,
        interval: Duration,
        burst: u32,
    ) -> Result<(), Duration> {
        let full_at = self.0.max(now) + interval;
        let room = Duration::from_nanos(
            saturating_nanos(interval).saturating_mul(u64::from(burst.max(1))),
        );
        let fill = full_at.since(now);
        if fill > room {
            return Err(fill.saturating_sub(room));
        }
        self.0 = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let rate = Rate::new(20, 10);
        let mut bucket = Bucket::FULL;
        let mut now = Instant::from_millis(1);
        assert_eq!(
            (0..100).filter(|_| bucket.take(now, rate).is_ok()).count(),
            10
        );
        let wait = bucket.take(now, rate).expect_err("empty");
        assert_eq!(wait, Duration::from_millis(50));
        now += wait;
        assert_eq!(
            (0..100).filter(|_| bucket.take(now, rate).is_ok()).count(),
            1
        );
    }
}
