//! A small seeded generator for all random values that are not secret: losses, jitter, test inputs.
//!
//! xoshiro256++ 1.0 (Blackman and Vigna, 2019) seeded through splitmix64. Its output for a seed never changes
//! between versions, because traces and published figures depend on it. Not for keys.

/// A deterministic random generator: the same seed gives the same sequence on every platform.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator for `seed`; every seed, including zero, is suitable.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = core::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        let (new_s1, new_s0) = (s1 ^ s2, s0 ^ s3);
        self.state = [new_s0, new_s1, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// A uniform number in `0..bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift (Lemire 2019) without rejection: the bias is below 2^-32 for the bounds used here.
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// A uniform number in `[0, 1)` with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true with the probability `probability` (clamped to 0..=1).
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// Draws an index with a probability in proportion to its weight. Returns `None` if the sum of the weights is zero.
    pub fn weighted(&mut self, mut weights: impl Iterator<Item = u64> + Clone) -> Option<usize> {
        let total = weights.clone().fold(0, u64::saturating_add);
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        weights.position(|weight| match left.checked_sub(weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        })
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_fixed() {
        // First outputs of the reference xoshiro256++ with state {1, 2, 3, 4}.
        let mut rng = Rng {
            state: [1, 2, 3, 4],
        };
        let first: [u64; 4] = core::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }

    #[test]
    fn an_index_is_drawn_in_proportion_to_its_weight() {
        let mut rng = Rng::new(7);
        let mut counts = [0_u32; 4];
        for _ in 0..10_000 {
            counts[rng.weighted([1, 0, 3, 1].into_iter()).expect("a weight")] += 1;
        }
        // The expected numbers are 2000, 0, 6000 and 2000; a standard deviation is at most 50.
        assert_eq!(counts[1], 0);
        for (count, expected) in counts.into_iter().zip([2_000_u32, 0, 6_000, 2_000]) {
            assert!(count.abs_diff(expected) < 200, "{counts:?}");
        }
        assert_eq!(rng.weighted([0, 0].into_iter()), None);
        assert_eq!(
            rng.weighted([u64::MAX, u64::MAX].into_iter()),
            Some(0),
            "the sum saturates"
        );
    }
}
