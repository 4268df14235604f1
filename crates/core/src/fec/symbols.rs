//! Symbols in reused buffers, and their linear combinations.
//!
//! All work on packet bytes is one operation: the sum of symbols times coefficients. Encoder and decoder do it once for
//! each symbol that they output, never step by step.
//!
//! *Algorithm.* A coefficient is a sum of powers of two. So the sum over symbols of c·s is the sum over the eight bits
//! b of 2^b times the plain sum of the symbols whose coefficient has bit b. By Horner's rule this takes eight doublings
//! for the whole combination, and on average four exclusive ors for each symbol, in blocks that stay in registers. It
//! needs no table and no instructions that the compiler does not choose by itself; a look-up per byte is over three
//! times slower (`benches/fec.rs`).

use super::{
    HISTORY_PKTS, LENGTH_BYTES, MAX_EQUATIONS, MAX_PACKET_BYTES, MAX_SYMBOL_BYTES,
    gf256::double_each,
};

/// Number of bytes processed at once: eight vectors of 16 bytes, half the registers of the smallest x86-64.
const BLOCK: usize = 128;
const BLOCKS: usize = MAX_SYMBOL_BYTES.div_ceil(BLOCK);
/// Maximum number of terms of a combination: all terms that a decoder uses at once.
const MAX_TERMS: usize = HISTORY_PKTS + MAX_EQUATIONS;

/// Terms of a sum: at most [`MAX_TERMS`]; further terms are ignored.
#[derive(Debug)]
pub(super) struct Terms {
    /// For each bit of the coefficients, the rows of the terms that have it.
    rows: [[u16; MAX_TERMS]; 8],
    lens: [usize; 8],
    len: usize,
}

impl Terms {
    pub(super) fn new() -> Self {
        Self {
            rows: [[0; MAX_TERMS]; 8],
            lens: [0; 8],
            len: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.lens = [0; 8];
        self.len = 0;
    }

    /// Adds the symbol in `row`, times `coefficient`.
    pub(super) fn push(&mut self, row: usize, coefficient: u8) {
        let Ok(row) = u16::try_from(row) else {
            return;
        };
        if self.len == MAX_TERMS {
            return;
        }
        self.len += 1;
        for (bit, (rows, len)) in self.rows.iter_mut().zip(&mut self.lens).enumerate() {
            // The row is always written, and counted only if the bit is set, because a branch would be unpredictable.
            rows[*len] = row;
            *len += usize::from((coefficient >> bit) & 1);
        }
    }
}

/// A table of symbols, each padded with zeros to the maximum length.
#[derive(Debug)]
pub(super) struct Symbols {
    rows: Vec<[[u8; BLOCK]; BLOCKS]>,
    /// Lengths before the padding, in bytes.
    lens: Vec<usize>,
}

impl Symbols {
    /// Returns a table of `count` empty symbols.
    pub(super) fn new(count: usize) -> Self {
        Self {
            rows: vec![[[0; BLOCK]; BLOCKS]; count],
            lens: vec![0; count],
        }
    }

    /// Sets `row` to the symbol of the packet that consists of `head` and `tail`; a packet that is too long is cut.
    pub(super) fn set_packet(&mut self, row: usize, head: &[u8], tail: &[u8]) {
        let symbol = self.rows[row].as_flattened_mut();
        let head = &head[..head.len().min(MAX_PACKET_BYTES)];
        let tail = &tail[..tail.len().min(MAX_PACKET_BYTES - head.len())];
        let len = head.len() + tail.len();
        let length = u16::try_from(len).unwrap_or(u16::MAX);
        let (prefix, body) = symbol.split_at_mut(LENGTH_BYTES);
        prefix.copy_from_slice(&length.to_be_bytes());
        body[..head.len()].copy_from_slice(head);
        body[head.len()..len].copy_from_slice(tail);
        self.pad(row, LENGTH_BYTES + len);
    }

    /// Sets `row` to a copy of `symbol`; a symbol that is too long is cut.
    pub(super) fn set_symbol(&mut self, row: usize, symbol: &[u8]) {
        let symbol = &symbol[..symbol.len().min(MAX_SYMBOL_BYTES)];
        self.rows[row].as_flattened_mut()[..symbol.len()].copy_from_slice(symbol);
        self.pad(row, symbol.len());
    }

    /// Returns the length of the symbol in `row`, in bytes.
    pub(super) fn len(&self, row: usize) -> usize {
        self.lens[row]
    }

    /// Writes the sum of `terms` to `out`, up to the length of `out`.
    pub(super) fn combine(&self, terms: &Terms, out: &mut [u8]) {
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut sum = [0_u64; BLOCK / 8];
            for (rows, len) in terms.rows.iter().zip(terms.lens).rev() {
                sum = sum.map(double_each);
                for &row in &rows[..len] {
                    let (words, _) = self.rows[usize::from(row)][block].as_chunks();
                    for (sum, word) in sum.iter_mut().zip(words) {
                        *sum ^= u64::from_le_bytes(*word);
                    }
                }
            }
            for (out, sum) in out.chunks_mut(8).zip(sum) {
                out.copy_from_slice(&sum.to_le_bytes()[..out.len()]);
            }
        }
    }

    /// Sets the length of a row to `len`, and zeroes bytes of the previous symbol after it.
    fn pad(&mut self, row: usize, len: usize) {
        let before = self.lens[row];
        if before > len {
            self.rows[row].as_flattened_mut()[len..before].fill(0);
        }
        self.lens[row] = len;
    }
}
