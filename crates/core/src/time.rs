//! Points in time for the state machines.
//!
//! An [`Instant`] is a number of nanoseconds since an arbitrary epoch that the caller chose. It has no `now()`: the
//! daemon reads `CLOCK_BOOTTIME`, the simulator its virtual clock, and both pass the value in. Durations are
//! [`core::time::Duration`].

use core::{
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

/// A monotonic point in time: nanoseconds since the caller's epoch.
///
/// Arithmetic saturates: 2^64 ns are 584 years, so saturation indicates a bug in the caller, not a wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` after the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The low 32 bits of the microseconds since the epoch, which is the form of timestamps on the wire.
    ///
    /// They wrap every 71.6 minutes; compare them with wrapping subtraction only.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the wire carries the low 32 bits"
    )]
    pub const fn wire_micros(self) -> u32 {
        (self.0 / 1_000) as u32
    }

    /// Time elapsed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(rhs)))
    }
}

/// Nanoseconds of `duration` as `u64`, saturating after 584 years.
#[must_use]
pub fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Instant::from_millis(5);
        assert_eq!(t + Duration::from_millis(2), Instant::from_millis(7));
        assert_eq!(t - Duration::from_millis(9), Instant::ZERO);
        assert_eq!(Instant::ZERO.since(t), Duration::ZERO);
        assert_eq!(
            Instant::from_nanos(u64::MAX) + Duration::from_secs(1),
            Instant::from_nanos(u64::MAX)
        );
    }

    #[test]
    fn wire_timestamp_wraps() {
        let t = Instant::from_nanos(((1_u64 << 32) + 7) * 1_000);
        assert_eq!(t.wire_micros(), 7);
    }
}
