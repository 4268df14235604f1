//! The systematic Hamming code (127, 120). Of the positions 1 to 127, those that are powers of two hold parity.
//!
//! The parity of a block is the exclusive or of the positions of its set bits. A wrong data bit changes the parity by
//! the bit's position, a wrong parity bit changes the parity by a power of two. The code is perfect: two wrong bits
//! always look like one wrong bit at another position.

use super::{BLOCK_BITS, BLOCK_BYTES, Wrong, by_byte, look_up};

pub(super) fn parity(block: &[u8]) -> u16 {
    look_up(&TABLE, block)
}

/// Returns the bit that changes the parity by `difference`; the result contains no bit if a bit of the parity is wrong.
pub(super) fn locate(difference: u16) -> Option<Wrong> {
    let bit = BIT_AT.get(usize::from(difference))?;
    Some([(*bit != PARITY).then_some(*bit), None])
}

/// Position of each data bit.
const PLACES: [u16; BLOCK_BITS] = {
    let mut places = [0; BLOCK_BITS];
    let (mut bit, mut place) = (0, 1_u16);
    while bit < BLOCK_BITS {
        if !place.is_power_of_two() {
            places[bit] = place;
            bit += 1;
        }
        place += 1;
    }
    places
};

/// Data bit at each position.
const BIT_AT: [u8; 128] = {
    let mut bits = [PARITY; 128];
    let mut bit = 0_u8;
    while (bit as usize) < BLOCK_BITS {
        bits[PLACES[bit as usize] as usize] = bit;
        bit += 1;
    }
    bits
};

const PARITY: u8 = u8::MAX;
static TABLE: [[u16; 256]; BLOCK_BYTES] = by_byte(&PLACES);
