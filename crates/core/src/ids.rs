//! Identifiers as types: paths and sequence numbers.

use core::fmt;

/// The number of a path. Each path uses one uplink of the client: the client numbers its links, and the gateway knows
/// the path by the same number. Both ends use it as an index of per-path tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// Maximum number of paths of a session; ids are `0..MAX`.
    pub const MAX: usize = 16;

    /// Number of AEAD counters of a session: for each path one for data datagrams and one for control datagrams. Each
    /// of these counters belongs to a *lane*.
    pub const LANES: usize = 2 * Self::MAX;

    /// The lane of this path's control datagrams; the lane of its data datagrams has the path's own number.
    #[must_use]
    pub const fn control_lane(self) -> Self {
        Self(self.0 | 0x10)
    }

    /// Returns all lanes, in order.
    pub(crate) fn lanes() -> impl Iterator<Item = Self> {
        (0..).map(Self).take(Self::LANES)
    }

    /// This id as a table index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A 32-bit sequence number that wraps (RFC 1982 serial number arithmetic).
///
/// The type has no `Ord`: of two numbers 2^31 apart neither is later. Use [`Seq::is_after`] and
/// [`Seq::distance_from`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The low 32 bits of a counter, as in the wire format.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the wire carries the low 32 bits"
    )]
    pub const fn of_counter(counter: u64) -> Self {
        Self(counter as u32)
    }

    /// The sequence number `n` after this one.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// The sequence number `n` before this one.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }

    /// Distance of this number from `base`; negative if this number is before `base`. Valid for distances below 2^31.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "two's complement is the serial number order"
    )]
    pub const fn distance_from(self, base: Self) -> i32 {
        self.0.wrapping_sub(base.0) as i32
    }

    /// Whether this number comes after `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn order_is_that_of_distances_below_half_of_all(base: u32, ahead in 1..1_u32 << 31) {
            let (base, later) = (Seq(base), Seq(base).plus(ahead));
            prop_assert!(later.is_after(base) && !base.is_after(later) && !base.is_after(base));
            prop_assert_eq!(i64::from(later.distance_from(base)), i64::from(ahead));
            prop_assert_eq!(later.minus(ahead), base);
            prop_assert_eq!(base.distance_from(later), -later.distance_from(base));
        }
    }

    #[test]
    fn order_survives_the_wrap() {
        assert!(Seq(2).is_after(Seq(u32::MAX)));
        assert_eq!(Seq(2).distance_from(Seq(u32::MAX)), 3);
        assert_eq!(Seq(1).minus(3), Seq(u32::MAX - 1));
    }
}
