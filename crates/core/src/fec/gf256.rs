//! Arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), the field of RFC 8681 section 3.6.
//!
//! Addition is exclusive or. Single products go through tables of logarithms (base 2, which generates the field).
//! Products of whole slices use no table: a lookup per byte defeats vector units, and the byte shuffles that make tables
//! of nibbles fast are out of reach of safe code. Instead all bytes of a vector are doubled at once, eight times; the
//! optimiser turns this into vector code on any machine. Many products that are added up share the doublings, see
//! [`super::symbols`].

/// The polynomial without its leading term.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of 2, twice over so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = {
    let mut table = [0; 510];
    let (mut i, mut x) = (0, 1);
    while i < 510 {
        table[i] = x;
        x = double(x);
        i += 1;
    }
    table
};

/// Logarithms of 1 to 255; that of zero is not used.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i: u8 = 0;
    while i < 255 {
        table[EXP[i as usize] as usize] = i;
        i += 1;
    }
    table
};

/// 2 times `x`.
const fn double(x: u8) -> u8 {
    (x << 1) ^ ((x >> 7) * POLYNOMIAL)
}

/// `a` times `b`.
pub(super) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])]
}

/// The number that times `a` is 1; zero for zero.
pub(super) fn inverse(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// 2 times each of the eight bytes of `x`.
pub(super) const fn double_each(x: u64) -> u64 {
    const TOP: u64 = 0x8080_8080_8080_8080;
    const LOW: u64 = 0x0101_0101_0101_0101;
    let top = x & TOP;
    // 0xff in every byte whose top bit was set.
    let overflown = (top << 1).wrapping_sub(top >> 7);
    ((x ^ top) << 1) ^ (overflown & (LOW * POLYNOMIAL as u64))
}

/// Adds `coefficient` times `src` to `dst`, byte by byte, as far as the shorter of them reaches.
pub(super) fn mul_add(dst: &mut [u8], src: &[u8], coefficient: u8) {
    match coefficient {
        0 => {}
        1 => {
            for (d, s) in dst.iter_mut().zip(src) {
                *d ^= s;
            }
        }
        c => {
            // All ones where the bit of the coefficient is set.
            let masks: [u8; 8] = core::array::from_fn(|bit| 0_u8.wrapping_sub((c >> bit) & 1));
            for (d, s) in dst.iter_mut().zip(src) {
                // Horner's rule over the bits, highest first.
                let product = masks.iter().rev().fold(0, |p, m| double(p) ^ (s & m));
                *d ^= product;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The definition: product of polynomials, then the remainder by long division.
    fn slow_mul(a: u8, b: u8) -> u8 {
        let mut product: u16 = 0;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        u8::try_from(product).unwrap()
    }

    #[test]
    fn products_and_inverses_are_those_of_the_field() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} times {b}");
            }
            assert_eq!(double(a), slow_mul(a, 2));
            assert_eq!(slow_mul(a, inverse(a)), u8::from(a != 0));
        }
    }

    #[test]
    fn every_byte_doubles_in_every_place_whatever_stands_beside_it() {
        for neighbours in [0, u64::MAX, 0x8080_8080_8080_8080, 0x7f7f_7f7f_7f7f_7f7f] {
            for place in 0..8 {
                for byte in 0..=255_u8 {
                    let mut bytes = neighbours.to_le_bytes();
                    bytes[place] = byte;
                    let doubled = double_each(u64::from_le_bytes(bytes)).to_le_bytes();
                    assert_eq!(doubled, bytes.map(|byte| slow_mul(byte, 2)));
                }
            }
        }
    }

    #[test]
    fn multiplication_is_associative_and_distributes_over_addition() {
        for a in 0..=255 {
            for b in (0..=255).step_by(7) {
                for c in (0..=255).step_by(5) {
                    assert_eq!(mul(a, mul(b, c)), mul(mul(a, b), c));
                    assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
                }
            }
        }
    }

    #[test]
    fn eight_bytes_double_like_one() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            let x = rng.next_u64();
            assert_eq!(
                double_each(x).to_le_bytes(),
                x.to_le_bytes().map(|byte| slow_mul(byte, 2))
            );
        }
    }

    #[test]
    fn slices_multiply_like_bytes() {
        let mut rng = Rng::new(2);
        for len in [0, 1, 15, 16, 17, 64, 100] {
            for coefficient in 0..=255 {
                let (mut dst, mut src) = (vec![0; len], vec![0; len]);
                rng.fill(&mut dst);
                rng.fill(&mut src);
                let expected: Vec<u8> = dst
                    .iter()
                    .zip(&src)
                    .map(|(d, s)| d ^ slow_mul(*s, coefficient))
                    .collect();
                mul_add(&mut dst, &src, coefficient);
                assert_eq!(dst, expected);
            }
        }
    }
}
