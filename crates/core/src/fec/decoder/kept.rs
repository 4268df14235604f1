//! The repair symbols that a decoder stores, in order of arrival.

use crate::ids::Seq;

use super::super::{
    MAX_PENDING, MAX_UNKNOWNS, MAX_WINDOW_PKTS, Repair, coefficients::coefficients,
};

/// A stored repair symbol.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRepair {
    pub(super) repair: Repair,
    /// Number of missing packets among the packets that it covers.
    pub(super) missing: u8,
    /// Row of its bytes in the decoder's table.
    pub(super) row: usize,
    /// Coefficients of the packets that it covers, oldest first, followed by zeros.
    pub(super) coefficients: [u8; MAX_WINDOW_PKTS],
}

/// The stored repair symbols; at most [`MAX_PENDING`].
#[derive(Debug)]
pub(super) struct Kept {
    list: Vec<KeptRepair>,
    free_rows: Vec<usize>,
}

impl Kept {
    /// Returns an empty list, which will use [`MAX_PENDING`] rows from `first_row` on.
    pub(super) fn new(first_row: usize) -> Self {
        Self {
            list: Vec::with_capacity(MAX_PENDING),
            free_rows: (first_row..first_row + MAX_PENDING).collect(),
        }
    }

    /// Returns all stored symbols, oldest first.
    pub(super) fn list(&self) -> &[KeptRepair] {
        &self.list
    }

    pub(super) fn is_full(&self) -> bool {
        self.free_rows.is_empty()
    }

    /// Adds a symbol that lacks `missing` packets. Returns the row for its bytes; `None` if all rows are used.
    pub(super) fn push(&mut self, repair: Repair, missing: u8) -> Option<usize> {
        let row = self.free_rows.pop()?;
        let mut factors = [0; MAX_WINDOW_PKTS];
        coefficients(repair.key, factors.get_mut(..usize::from(repair.count))?);
        self.list.push(KeptRepair {
            repair,
            missing,
            row,
            coefficients: factors,
        });
        Some(row)
    }

    /// Records that the missing packet `id` is known now. Returns whether a stored symbol covers it.
    pub(super) fn on_known(&mut self, id: Seq) -> bool {
        let mut is_awaited = false;
        for kept in self.list.iter_mut().filter(|kept| kept.repair.covers(id)) {
            kept.missing = kept.missing.saturating_sub(1);
            is_awaited = true;
        }
        is_awaited
    }

    /// Returns the maximum number of missing packets with which a symbol may still help to recover a packet. Symbols
    /// that together determine a packet lack, except by chance, no more packets than there are symbols. So the result
    /// is the largest number n, within the limit of equations, such that at least n symbols lack at most n packets.
    pub(super) fn most_missing(&self) -> u8 {
        let mut lacking = [0_usize; MAX_UNKNOWNS + 1];
        for kept in &self.list {
            if let Some(count) = lacking.get_mut(usize::from(kept.missing)) {
                *count += 1;
            }
        }
        let (mut symbols, mut most) = (0, 0);
        for (missing, count) in (0_u8..).zip(lacking) {
            symbols += count;
            if symbols >= usize::from(missing) {
                most = missing;
            }
        }
        most
    }

    /// Drops the symbols for which `drop` returns true. `drop` receives index and symbol.
    pub(super) fn drop_if(&mut self, mut drop: impl FnMut(usize, &KeptRepair) -> bool) {
        let mut i = 0;
        self.list.retain(|kept| {
            let dropped = drop(i, kept);
            i += 1;
            if dropped {
                self.free_rows.push(kept.row);
            }
            !dropped
        });
    }
}
