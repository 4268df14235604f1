//! Split error correction: parity of what travels on one path, to be carried by another, so that a datagram that arrives with a few
//! wrong bits is mended instead of lost.
//!
//! Becke et al. 2013 (see `sched/pdc.rs`), section III-C: a packet is cut into blocks of 120 bits, each with parity that finds its wrong
//! bits. Two codes ([`Code`]): *Hamming* (127, 120), as published: 7 bits a block, one wrong bit; 88 bytes for 1500 (5.9 %). *BCH*,
//! ours: 16 bits a block, two wrong bits; 200 bytes for 1500 (13.3 %).
//!
//! [`Code::encode`] makes the parity, [`Code::correct`] mends a copy that came with errors. More wrong bits in a block than the code is for
//! are found, or mended wrongly: nothing here is a check. **Whoever mends must verify the datagram's tag after that, and drop it if
//! it does not fit**; so parity, whoever sent it, cannot make a datagram pass that was not sealed. Parity is expected intact
//! (its own datagram is sealed); in the Hamming code a wrong parity bit does no harm either.
//!
//! Packets keep their length; the last block is filled with zeros. Nothing is allocated. Cost: a table look-up a byte.
//!
//! The tunnel's use of it: `tunnel/sec.rs`. Judged by `pleach reproduce R-CSN-8`.

mod bch;
mod hamming;
#[cfg(test)]
mod tests;

/// Bytes of a packet that have parity of their own: 120 bits.
pub const BLOCK_BYTES: usize = 15;

/// Bits of a block.
const BLOCK_BITS: usize = 8 * BLOCK_BYTES;

/// How parity is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Shortened BCH (255, 239): two wrong bits in each block.
    Bch,
    /// Hamming (127, 120): one wrong bit in each block.
    Hamming,
}

/// More bits are wrong than the code can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more bits are wrong than the parity can tell")]
pub struct Uncorrectable;

/// Wrong bits of one block, by their place; 0 is the most significant bit of its first byte.
type Wrong = [Option<u8>; 2];

impl Code {
    /// Parity bits of a block.
    #[must_use]
    pub const fn bits(self) -> usize {
        match self {
            Self::Bch => 16,
            Self::Hamming => 7,
        }
    }

    /// Bytes of parity for a packet of `len` bytes.
    #[must_use]
    pub const fn parity_len(self, len: usize) -> usize {
        (len.div_ceil(BLOCK_BYTES) * self.bits()).div_ceil(8)
    }

    /// Writes the parity of `packet` to the start of `parity`; how many bytes that are, or `None` if `parity` is shorter than
    /// [`parity_len`](Self::parity_len).
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

    /// Mends `packet` by its `parity`; how many bits were wrong. A packet that cannot be mended is left as far as it came.
    ///
    /// # Errors
    /// If a block has more wrong bits than the code can tell, or `parity` is not that of a packet of this length.
    pub fn correct(self, packet: &mut [u8], parity: &[u8]) -> Result<usize, Uncorrectable> {
        self.correct_up_to(usize::MAX, packet, parity)
    }

    /// As [`correct`](Self::correct), but gives up as soon as more than `most` bits were wrong.
    ///
    /// # Errors
    /// As [`correct`](Self::correct), and if it gives up.
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

/// A table of what each value of each byte of a block adds to its parity, from what each bit adds.
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

/// The sum of what the bytes of `block` add.
fn look_up(table: &[[u16; 256]; BLOCK_BYTES], block: &[u8]) -> u16 {
    let bytes = table.iter().zip(block);
    bytes.fold(0, |sum, (table, byte)| sum ^ table[usize::from(*byte)])
}

/// Writes the low `count` bits of `value`, at most 16, at bit `at`.
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
