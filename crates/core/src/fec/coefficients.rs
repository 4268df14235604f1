//! The coefficients of a repair symbol: RFC 8681 section 3.5 with density threshold 15, and its generator, TinyMT32.
//!
//! The generator is seeded with the repair key. The coefficient of the i-th packet of the window, oldest first, is the
//! low byte of the i-th output whose low byte is not zero. So every packet of the window has a nonzero coefficient, and
//! coefficients depend only on key and position, not on packet numbers.
//!
//! TinyMT32 (RFC 8682) is a Mersenne Twister of 127 bits of state. It is not suitable for secrets.

/// Writes the coefficients of a window of `out.len()` packets for `key`.
pub(super) fn coefficients(key: u16, out: &mut [u8]) {
    let mut generator = TinyMt32::new(u32::from(key));
    for coefficient in out {
        *coefficient = generator.nonzero_byte();
    }
}

/// TinyMT32 with the parameters of RFC 8682.
struct TinyMt32 {
    state: [u32; 4],
}

const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;

impl TinyMt32 {
    fn new(seed: u32) -> Self {
        let mut state = [seed, MAT1, MAT2, TMAT];
        for i in 1..8_u32 {
            let before = state[(i as usize - 1) & 3];
            let mixed = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30));
            state[i as usize & 3] ^= mixed.wrapping_add(i);
        }
        let mut this = Self { state };
        for _ in 0..8 {
            this.step();
        }
        this
    }

    fn step(&mut self) {
        let [s0, s1, s2, s3] = self.state;
        let mut x = (s0 & 0x7fff_ffff) ^ s1 ^ s2;
        x ^= x << 1;
        let y = s3 ^ (s3 >> 1) ^ x;
        // `odd` has all bits set if y is odd.
        let odd = 0_u32.wrapping_sub(y & 1);
        self.state = [s1, s2 ^ (odd & MAT1), x ^ (y << 10) ^ (odd & MAT2), y];
    }

    fn next_u32(&mut self) -> u32 {
        self.step();
        let [s0, _, s2, s3] = self.state;
        let t = s0.wrapping_add(s2 >> 8);
        s3 ^ t ^ (0_u32.wrapping_sub(t & 1) & TMAT)
    }

    fn nonzero_byte(&mut self) -> u8 {
        loop {
            let [byte, ..] = self.next_u32().to_le_bytes();
            if byte != 0 {
                return byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_is_that_of_the_rfc() {
        // RFC 8682 figure 2, first two lines: seed 1.
        let expected = [
            2_545_341_989,
            981_918_433,
            3_715_302_833,
            2_387_538_352,
            3_591_001_365,
            3_820_442_102,
            2_114_400_566,
            2_196_103_051,
            2_783_359_912,
            764_534_509,
        ];
        let mut generator = TinyMt32::new(1);
        assert_eq!(expected.map(|_| generator.next_u32()), expected);
    }

    #[test]
    fn coefficients_are_never_zero_and_prefixes_agree() {
        let (mut long, mut short) = ([0; 128], [0; 10]);
        for key in 0..=u16::MAX {
            coefficients(key, &mut long);
            coefficients(key, &mut short);
            assert!(!long.contains(&0));
            assert_eq!(long[..10], short);
        }
    }
}
