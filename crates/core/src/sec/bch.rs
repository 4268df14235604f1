//! A BCH code of length 255 that corrects two errors (Hocquenghem 1959; Bose and Ray-Chaudhuri 1960), shortened to 120
//! data bits.
//!
//! Let a be a primitive element of GF(256). Bit i adds a^i to the sum S1 and a^3i to the sum S3; both sums, 16 bits,
//! are the parity. As parity is sent separately and arrives intact, data and parity need not form a codeword: the sums
//! of the data are enough. One wrong bit i changes the sums by (a^i, a^3i). Two wrong bits i and j change them by S1 =
//! a^i + a^j and S3 = a^3i + a^3j, so a^i and a^j are the roots of x^2 + S1 x + (S3 / S1 + S1^2).

use super::{BLOCK_BITS, BLOCK_BYTES, Wrong, by_byte, look_up};

pub(super) fn parity(block: &[u8]) -> u16 {
    look_up(&TABLE, block)
}

/// Returns the bits that change the parity by `difference`, which is not 0; `None` if no two bits do.
pub(super) fn locate(difference: u16) -> Option<Wrong> {
    let [s1, s3] = difference.to_be_bytes();
    if s1 == 0 {
        return None;
    }
    let product = div(s3, s1) ^ mul(s1, s1);
    if product == 0 {
        let bit = LOG[usize::from(s1)];
        return (usize::from(bit) < BLOCK_BITS).then_some([Some(bit), None]);
    }
    let is_root = |bit: &u8| {
        let x = EXP[usize::from(*bit)];
        mul(x, x) ^ mul(s1, x) ^ product == 0
    };
    let mut roots = (0..BLOCK_BITS_U8).filter(is_root);
    Some([Some(roots.next()?), Some(roots.next()?)])
}

fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let log = usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)]);
    EXP[log % ORDER]
}

fn div(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let log = ORDER + usize::from(LOG[usize::from(a)]) - usize::from(LOG[usize::from(b)]);
    EXP[log % ORDER]
}

/// Number of powers of a.
const ORDER: usize = 255;
const BLOCK_BITS_U8: u8 = 120;
const _: () = assert!(BLOCK_BITS_U8 as usize == BLOCK_BITS);

/// Table of a^i for the primitive polynomial x^8 + x^4 + x^3 + x^2 + 1.
const EXP: [u8; ORDER] = {
    let mut powers = [0; ORDER];
    let (mut power, mut i) = (1_u8, 0);
    while i < ORDER {
        powers[i] = power;
        power = (power << 1) ^ if power & 0x80 != 0 { 0x1d } else { 0 };
        i += 1;
    }
    powers
};

/// Table of the exponent i for x = a^i; 0 has no exponent.
const LOG: [u8; 256] = {
    let mut logs = [0; 256];
    let mut i = 0_u8;
    while (i as usize) < ORDER {
        logs[EXP[i as usize] as usize] = i;
        i += 1;
    }
    logs
};

static TABLE: [[u16; 256]; BLOCK_BYTES] = {
    let mut of_bit = [0; BLOCK_BITS];
    let mut i = 0;
    while i < BLOCK_BITS {
        of_bit[i] = u16::from_be_bytes([EXP[i], EXP[3 * i % ORDER]]);
        i += 1;
    }
    by_byte(&of_bit)
};
