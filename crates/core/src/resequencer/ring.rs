//! The table of the states of sequence numbers.

use super::{Entry, UNKNOWN};
use crate::ids::Seq;

/// One entry for each number of a span whose length is a power of two: the entry of G is at `G & (len - 1)`.
///
/// The table takes no memory before its first change and after [`Self::release`]. Until then all its entries are
/// [`UNKNOWN`].
#[derive(Debug, Default)]
pub(super) struct Ring(Vec<Entry>);

impl Ring {
    /// Returns a table of at least `len` entries, all of them [`UNKNOWN`].
    pub(super) fn of_len(len: usize) -> Self {
        Self(vec![UNKNOWN; len.next_power_of_two().max(FIRST_SPAN)])
    }

    /// Returns the number of entries.
    pub(super) const fn len(&self) -> usize {
        if self.0.is_empty() {
            FIRST_SPAN
        } else {
            self.0.len()
        }
    }

    /// Returns the entry of `seq`.
    pub(super) fn get(&self, seq: Seq) -> Entry {
        self.0.get(self.index(seq)).copied().unwrap_or(UNKNOWN)
    }

    /// Returns the entry of `seq` for a change.
    pub(super) fn get_mut(&mut self, seq: Seq) -> &mut Entry {
        let index = self.index(seq);
        if self.0.is_empty() {
            *self = Self::of_len(FIRST_SPAN);
        }
        &mut self.0[index]
    }

    /// Makes all entries [`UNKNOWN`].
    pub(super) fn clear(&mut self) {
        self.0.fill(UNKNOWN);
    }

    /// Makes all entries [`UNKNOWN`] and frees the memory.
    pub(super) fn release(&mut self) {
        self.0 = Vec::new();
    }

    /// Doubles the number of entries. `next` is the number after the newest entry, whose values are copied.
    pub(super) fn grow(&mut self, next: Seq) {
        let mut grown = Self::of_len(self.len() * 2);
        let mut seq = next;
        for _ in 0..self.len() {
            seq = seq.minus(1);
            *grown.get_mut(seq) = self.get(seq);
        }
        *self = grown;
    }

    const fn index(&self, seq: Seq) -> usize {
        seq.0 as usize & (self.len() - 1)
    }
}

/// Initial number of entries.
const FIRST_SPAN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resequencer::State;

    #[test]
    fn entries_survive_growth_and_are_forgotten_at_a_release() {
        let mut ring = Ring::default();
        assert_eq!(ring.0.capacity(), 0);
        assert_eq!(ring.get(Seq(u32::MAX)).state, State::Released);
        for number in 0..FIRST_SPAN {
            let seq = Seq(u32::try_from(number).expect("few"));
            ring.get_mut(seq).own = seq.0;
        }
        ring.grow(Seq(1_024));
        assert_eq!(ring.len(), 2 * FIRST_SPAN);
        assert!((0..1_024).all(|number| ring.get(Seq(number)).own == number));
        assert_eq!(ring.get(Seq(1_024)).own, UNKNOWN.own);
        ring.release();
        assert_eq!((ring.len(), ring.0.capacity()), (FIRST_SPAN, 0));
        assert_eq!(ring.get(Seq(5)).own, UNKNOWN.own);
    }
}
