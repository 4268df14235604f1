//! The replay window of a path: the sliding window of RFC 6479, and the recovery of a counter from its low 32 bits.
//!
//! A ring of 64 words of 64 bits remembers the counters behind the highest accepted one. A step forward clears whole
//! words instead of shifting, so at least 4096 - 64 = 4032 counters back are known. A window is asked twice: `check`
//! before decryption, so that a replay costs nothing, and `accept` after, so that a forgery moves nothing.

use thiserror::Error;

use crate::ids::Seq;

const WORDS: usize = 64;

/// How far behind the highest accepted counter another may be.
pub const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// Why a counter is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReplayError {
    /// Accepted before.
    #[error("counter seen before")]
    Seen,
    /// More than [`WINDOW`] behind the highest; it may have been accepted or not.
    #[error("counter too old")]
    TooOld,
}

/// The counters accepted on one path under one key; 520 bytes.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    highest: u64,
    words: [u64; WORDS],
}

impl ReplayWindow {
    /// A window that has accepted nothing yet and stands at `highest`.
    #[must_use]
    pub const fn starting_at(highest: u64) -> Self {
        Self {
            highest,
            words: [0; WORDS],
        }
    }

    /// The highest accepted counter, or where the window started.
    #[must_use]
    pub const fn highest(&self) -> u64 {
        self.highest
    }

    /// Whether `counter` would be accepted. O(1).
    ///
    /// # Errors
    /// Why not.
    pub const fn check(&self, counter: u64) -> Result<(), ReplayError> {
        if self.highest.saturating_sub(counter) > WINDOW {
            return Err(ReplayError::TooOld);
        }
        let (word, bit) = position(counter);
        if counter <= self.highest && self.words[word] & bit != 0 {
            return Err(ReplayError::Seen);
        }
        Ok(())
    }

    /// Records `counter`. O(1) within the window, at most 64 words to clear beyond it.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing is recorded then.
    pub fn accept(&mut self, counter: u64) -> Result<(), ReplayError> {
        self.check(counter)?;
        let (word, bit) = position(counter);
        let blocks_ahead = (counter / 64).saturating_sub(self.highest / 64);
        if blocks_ahead >= WORDS as u64 {
            self.words = [0; WORDS];
        } else {
            for step in 1..=blocks_ahead {
                self.words[position(self.highest.saturating_add(step * 64)).0] = 0;
            }
        }
        self.words[word] |= bit;
        self.highest = self.highest.max(counter);
        Ok(())
    }
}

/// The counter nearest to `highest` whose low 32 bits are `seq`: at most 2^31 behind, less than 2^31 ahead.
///
/// Near the ends of the range, where that would lie outside of it, the high bits of `highest` are taken.
#[must_use]
pub const fn extend(highest: u64, seq: Seq) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low 32 bits are what travels"
    )]
    let low = Seq(highest as u32);
    match highest.checked_add_signed(seq.distance_from(low) as i64) {
        Some(counter) => counter,
        None => (highest >> 32 << 32) | seq.0 as u64,
    }
}

/// Word and bit of a counter in the ring.
const fn position(counter: u64) -> (usize, u64) {
    ((counter / 64 % WORDS as u64) as usize, 1 << (counter % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn agrees_with_a_set_of_all_counters() {
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let start = [0, 1 << 40, u64::MAX - 20_000][usize::try_from(seed % 3).unwrap()];
            let mut window = ReplayWindow::starting_at(start);
            let mut twin = SlowTwin {
                highest: start,
                seen: BTreeSet::new(),
            };
            for _ in 0..3_000 {
                let spread = [8, 200, 5_000, 20_000][usize::try_from(rng.below(4)).unwrap()];
                let counter = (twin.highest - twin.highest.min(rng.below(spread)))
                    .saturating_add(rng.below(spread / 2));
                assert_eq!(
                    window.check(counter),
                    twin.check(counter),
                    "seed {seed} counter {counter}"
                );
                if rng.chance(0.8) {
                    assert_eq!(window.accept(counter), twin.accept(counter), "seed {seed}");
                }
                assert_eq!(window.highest(), twin.highest);
            }
        }
    }

    #[test]
    fn all_short_sequences_of_counters_around_the_edges_agree_with_a_set() {
        const BITS: u64 = 64 * WORDS as u64;
        let steps = [
            0,
            1,
            63,
            64,
            BITS - WINDOW,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            BITS - 1,
            BITS,
            BITS + 64,
            3 * BITS,
        ];
        for start in [0, 5, 64, (1 << 32) - 70, u64::MAX - 3 * BITS] {
            let counters = steps.map(|step| start + step);
            for sequence in 0..counters.len().pow(4) {
                let mut window = ReplayWindow::starting_at(start);
                let mut twin = SlowTwin {
                    highest: start,
                    seen: BTreeSet::new(),
                };
                let mut rest = sequence;
                for _ in 0..4 {
                    let counter = counters[rest % counters.len()];
                    rest /= counters.len();
                    assert_eq!(
                        window.accept(counter),
                        twin.accept(counter),
                        "sequence {sequence} from {start}"
                    );
                    assert_eq!(window.highest(), twin.highest);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20_000, ..Default::default() })]

        #[test]
        fn the_extension_of_a_number_is_the_nearest_counter(
            high in prop_oneof![0..3_u64, Just(u64::from(u32::MAX)), any::<u64>().prop_map(|high| high >> 32)],
            near in prop_oneof![0..4_u32, (0..4_u32).prop_map(|n| (1 << 31) - 2 + n), (0..4_u32).prop_map(|n| u32::MAX - n), any::<u32>()],
            seq in prop_oneof![0..4_u32, (0..4_u32).prop_map(|n| (1 << 31) - 2 + n), (0..4_u32).prop_map(|n| u32::MAX - n), any::<u32>()],
        ) {
            let highest = high << 32 | u64::from(near);
            let counter = extend(highest, Seq(seq));
            prop_assert_eq!(Seq::of_counter(counter), Seq(seq));
            let distance = i128::from(counter) - i128::from(highest);
            let is_nearest = (-(1_i128 << 31)..1 << 31).contains(&distance);
            // Otherwise the nearest one would lie outside the range.
            let wanted = distance - (1_i128 << 32) * if distance > 0 { 1 } else { -1 };
            let nearest = i128::from(highest) + wanted;
            prop_assert!(is_nearest || !(0..=i128::from(u64::MAX)).contains(&nearest));
        }
    }

    #[test]
    fn a_refused_counter_moves_nothing() {
        let mut window = ReplayWindow::starting_at(0);
        window.accept(10_000).unwrap();
        assert_eq!(window.accept(10_000), Err(ReplayError::Seen));
        assert_eq!(window.accept(10_000 - WINDOW - 1), Err(ReplayError::TooOld));
        assert_eq!(window.accept(10_000 - WINDOW), Ok(()));
        assert_eq!(window.highest(), 10_000);
    }

    #[test]
    fn extends_to_the_nearest_counter() {
        const WRAP: u64 = 1 << 32;
        assert_eq!(extend(5, Seq(9)), 9);
        assert_eq!(extend(WRAP - 1, Seq(3)), WRAP + 3);
        assert_eq!(extend(WRAP + 3, Seq(u32::MAX)), WRAP - 1);
        assert_eq!(extend(7 * WRAP + 100, Seq(50)), 7 * WRAP + 50);
        assert_eq!(extend(3, Seq(u32::MAX)), u64::from(u32::MAX));
        assert_eq!(extend(u64::MAX, Seq(0)), u64::MAX - u64::from(u32::MAX));
    }

    #[test]
    fn counters_survive_the_wrap_of_the_wire_number() {
        let mut window = ReplayWindow::starting_at((1 << 32) - 500);
        for counter in (1_u64 << 32) - 400..(1 << 32) + 400 {
            let seq = Seq(u32::try_from(counter & 0xffff_ffff).unwrap());
            assert_eq!(extend(window.highest(), seq), counter);
            assert_eq!(window.accept(counter), Ok(()));
        }
    }

    struct SlowTwin {
        highest: u64,
        seen: BTreeSet<u64>,
    }

    impl SlowTwin {
        fn check(&self, counter: u64) -> Result<(), ReplayError> {
            if counter < self.highest && self.highest - counter > WINDOW {
                Err(ReplayError::TooOld)
            } else if self.seen.contains(&counter) {
                Err(ReplayError::Seen)
            } else {
                Ok(())
            }
        }

        fn accept(&mut self, counter: u64) -> Result<(), ReplayError> {
            self.check(counter)?;
            self.seen.insert(counter);
            self.highest = self.highest.max(counter);
            Ok(())
        }
    }
}
