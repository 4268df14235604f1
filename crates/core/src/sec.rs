//! Split error correction: the parity of a datagram is sent on another path than the datagram. A datagram that arrives
//! with a few wrong bits is then corrected instead of lost.
//!
//! Becke et al. 2013 (see `sched/pdc.rs`), section III-C: a packet is cut into blocks of 120 bits, each with parity
//! that identifies wrong bits. There are two codes ([`Code`]):
//!
//! - *Hamming* (127, 120), as published: 7 bits per block, corrects one wrong bit; 88 bytes for 1500 (5.9 %).
//! - *BCH*, pleach's own choice: 16 bits per block, corrects two wrong bits; 200 bytes for 1500 (13.3 %).
//!
//! [`Code::encode`] computes the parity, [`Code::correct`] corrects a copy that arrived with errors. If a block has
//! more wrong bits than the code can correct, this is detected, or the block is corrected wrongly: the codes do not
//! verify the result. **The caller must verify the datagram's tag after a correction, and drop the datagram if the tag
//! does not match.** So parity from any sender cannot make a datagram pass that was not encrypted by the peer. Parity
//! is expected to be intact, because its own datagram is authenticated; with the Hamming code a wrong parity bit does
//! no harm either.
//!
//! Packets keep their length; the last block is padded with zeros. Nothing is allocated. Cost: a table look-up per
//! byte.
//!
//! `tunnel/sec.rs` uses this module. `pleach reproduce R-CSN-8` evaluates it.

mod bch;
mod hamming;
#[cfg(test)]
mod tests;

/// Number of bytes of a block, which has separate parity: 120 bits.
pub const BLOCK_BYTES: usize = 15;

/// Number of bits of a block.
const BLOCK_BITS: usize = 8 * BLOCK_BYTES;

/// Code with which parity is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Shortened BCH (255, 239): corrects two wrong bits in each block.
    Bch,
    /// Hamming (127, 120): corrects one wrong bit in each block.
    Hamming,
}

/// More bits are wrong than the code can correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more bits are wrong than the parity can tell")]
pub struct Uncorrectable;

/// Positions of the wrong bits of one block; 0 is the most significant bit of the first byte.
type Wrong = [Option<u8>; 2];

impl Code {
    /// Returns the number of parity bits of a block.
    #[must_use]
    pub const fn bits(self) -> usize {
        match self {
            Self::Bch => 16,
            Self::Hamming => 7,
        }
    }

    /// Returns the number of bytes of parity for a packet of `len` bytes.
    #[must_use]
    pub const fn parity_len(self, len: usize) -> usize {
        (len.div_ceil(BLOCK_BYTES) * self.bits()).div_ceil(8)
    }

    /// Writes the parity of `packet` to the start of `parity`. Returns its length in bytes, or `None` if `parity` is
    /// shorter than [`parity_len`](Self::parity_len).
    pub fn encode(self, packet: &[u8], parity: &mut [u8]) -> Option<usize> {
        let len = self.parity_len(packet.len());
        let parity = parity.get_mut(..len)?;
        parity.fill(0);
        for (index, block) in packet.chunks(BLOCK_BYTES).enumerate() {
            put_bits(
                parity,
                index * self.bits(),
                self.bits(),
                self.parity_of(block),
            );
        }
        Some(len)
    }

    /// Corrects `packet` by its `parity`. Returns the number of wrong bits. If the correction of a block fails, the
    /// blocks before it remain corrected.
    ///
    /// # Errors
    /// If a block has more wrong bits than the code can correct, or `parity` does not belong to a packet of this
    /// length.
    pub fn correct(self, packet: &mut [u8], parity: &[u8]) -> Result<usize, Uncorrectable> {
        self.correct_up_to(usize::MAX, packet, parity)
    }

    /// Like [`correct`](Self::correct), but fails as soon as more than `most` bits were wrong.
    ///
    /// # Errors
    /// Like [`correct`](Self::correct), and if more than `most` bits were wrong.
    pub fn correct_up_to(
        self,
        most: usize,
        packet: &mut [u8],
        parity: &[u8],
    ) -> Result<usize, Uncorrectable> {
        if parity.len() != self.parity_len(packet.len()) {
            return Err(Uncorrectable);
        }
        let mut mended = 0;
        for (index, block) in packet.chunks_mut(BLOCK_BYTES).enumerate() {
            let sent = get_bits(parity, index * self.bits(), self.bits());
            let difference = sent ^ self.parity_of(block);
            if difference == 0 {
                continue;
            }
            let wrong = match self {
                Self::Bch => bch::locate(difference),
                Self::Hamming => hamming::locate(difference),
            };
            for bit in wrong.ok_or(Uncorrectable)?.into_iter().flatten() {
                let byte = block.get_mut(usize::from(bit / 8)).ok_or(Uncorrectable)?;
                *byte ^= 0x80 >> (bit % 8);
                mended += 1;
            }
            if mended > most {
                return Err(Uncorrectable);
            }
        }
        Ok(mended)
    }

    fn parity_of(self, block: &[u8]) -> u16 {
        match self {
            Self::Bch => bch::parity(block),
            Self::Hamming => hamming::parity(block),
        }
    }
}

/// Returns a table of the contribution of each value of each byte of a block to the parity, from the contribution of
/// each bit.
const fn by_byte(of_bit: &[u16; BLOCK_BITS]) -> [[u16; 256]; BLOCK_BYTES] {
    let mut table = [[0; 256]; BLOCK_BYTES];
    let mut byte = 0;
    while byte < BLOCK_BYTES {
        let mut value = 0;
        while value < 256 {
            let mut bit = 0;
            while bit < 8 {
                if value & (0x80 >> bit) != 0 {
                    table[byte][value] ^= of_bit[8 * byte + bit];
                }
                bit += 1;
            }
            value += 1;
        }
        byte += 1;
    }
    table
}

/// Returns the sum of the contributions of the bytes of `block`.
fn look_up(table: &[[u16; 256]; BLOCK_BYTES], block: &[u8]) -> u16 {
    let bytes = table.iter().zip(block);
    bytes.fold(0, |sum, (table, byte)| sum ^ table[usize::from(*byte)])
}

/// Writes the low `count` bits of `value`, at most 16, at bit offset `at`.
fn put_bits(bytes: &mut [u8], at: usize, count: usize, value: u16) {
    for bit in 0..count {
        if value >> (count - 1 - bit) & 1 != 0 {
            bytes[(at + bit) / 8] |= 0x80 >> ((at + bit) % 8);
        }
    }
}

fn get_bits(bytes: &[u8], at: usize, count: usize) -> u16 {
    (at..at + count).fold(0, |value, bit| {
        value << 1 | u16::from(bytes[bit / 8] >> (7 - bit % 8) & 1)
    })
}
