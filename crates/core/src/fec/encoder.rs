//! The sender's part: stores the last packets and creates repair symbols over the newest of them.
//!
//! Bounds: [`MAX_WINDOW_PKTS`] packets of [`MAX_PACKET_BYTES`]. Cost: a copy for each packet; for a repair symbol, see
//! [`super::symbols`].

use super::{
    LENGTH_BYTES, MAX_PACKET_BYTES, MAX_WINDOW_PKTS, Repair,
    coefficients::coefficients,
    symbols::{Symbols, Terms},
};
use crate::ids::Seq;

/// Creates repair symbols over the last packets of one stream.
#[derive(Debug)]
pub struct Encoder {
    /// Table of symbols; packet `id` is in row `id % rows`.
    symbols: Symbols,
    /// Number of rows: a power of two, at least `window_pkts`.
    rows: usize,
    window_pkts: usize,
    /// Number of packets in the window, which are `next - held .. next`.
    held: usize,
    /// Number that is expected next.
    next: Seq,
    terms: Box<Terms>,
}

impl Encoder {
    /// Returns an encoder that stores the last `window_pkts` packets: 1 to [`MAX_WINDOW_PKTS`]; other values are
    /// clamped.
    #[must_use]
    pub fn new(window_pkts: usize) -> Self {
        let window_pkts = window_pkts.clamp(1, MAX_WINDOW_PKTS);
        let rows = window_pkts.next_power_of_two();
        Self {
            symbols: Symbols::new(rows),
            rows,
            window_pkts,
            held: 0,
            next: Seq(0),
            terms: Box::new(Terms::new()),
        }
    }

    /// Adds the packet numbered `id`.
    ///
    /// A number that does not follow the previous number empties the window first, because a repair symbol covers
    /// consecutive packets only. A packet longer than [`MAX_PACKET_BYTES`] cannot be repaired and leaves the window
    /// empty.
    pub fn push(&mut self, id: Seq, bytes: &[u8]) {
        self.push_parts(id, &[], bytes);
    }

    /// Adds the packet numbered `id`, which consists of `head` and `tail`; see [`Self::push`].
    pub fn push_parts(&mut self, id: Seq, head: &[u8], tail: &[u8]) {
        if id != self.next {
            self.held = 0;
        }
        self.next = id.plus(1);
        if head.len() + tail.len() > MAX_PACKET_BYTES {
            self.held = 0;
            return;
        }
        self.symbols.set_packet(self.row(id), head, tail);
        self.held = self.window_pkts.min(self.held + 1);
    }

    /// Returns the number of packets in the window.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Writes a repair symbol over the `newest` packets to the start of `out`; over the whole window if it has fewer
    /// packets.
    ///
    /// Returns `None` and writes nothing if there is no packet to cover or `out` is too short;
    /// [`super::MAX_SYMBOL_BYTES`] are always enough. Symbols over the same packets should have different keys.
    pub fn repair(&mut self, newest: usize, key: u16, out: &mut [u8]) -> Option<Repair> {
        let count = u8::try_from(newest.min(self.held))
            .ok()
            .filter(|n| *n > 0)?;
        let first = self.next.minus(u32::from(count));
        let mut factors = [0; MAX_WINDOW_PKTS];
        let factors = &mut factors[..usize::from(count)];
        coefficients(key, factors);
        self.terms.clear();
        let mut len = LENGTH_BYTES;
        for (i, &coefficient) in (0..).zip(&*factors) {
            let row = self.row(first.plus(i));
            len = len.max(self.symbols.len(row));
            self.terms.push(row, coefficient);
        }
        self.symbols.combine(&self.terms, out.get_mut(..len)?);
        Some(Repair {
            first,
            count,
            key,
            len,
        })
    }

    fn row(&self, id: Seq) -> usize {
        id.0 as usize & (self.rows - 1)
    }
}
