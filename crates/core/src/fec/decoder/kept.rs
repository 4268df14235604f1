//! The repair symbols a decoder keeps, in the order they came.

use super::super::{MAX_PENDING, MAX_WINDOW_PKTS, Repair, coefficients::coefficients};

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRepair {
    pub(super) repair: Repair,
    /// The row of its bytes in the decoder's table.
    pub(super) row: usize,
    /// Of the packets it covers, oldest first; zero beyond them.
    pub(super) coefficients: [u8; MAX_WINDOW_PKTS],
}

/// At most [`MAX_PENDING`] of them.
#[derive(Debug)]
pub(super) struct Kept {
    list: Vec<KeptRepair>,
    free_rows: Vec<usize>,
}

impl Kept {
    /// None; they will use [`MAX_PENDING`] rows from `first_row` on.
    pub(super) fn new(first_row: usize) -> Self {
        Self {
            list: Vec::with_capacity(MAX_PENDING),
            free_rows: (first_row..first_row + MAX_PENDING).collect(),
        }
    }

    /// All, oldest first.
    pub(super) fn list(&self) -> &[KeptRepair] {
        &self.list
    }

    pub(super) fn is_full(&self) -> bool {
        self.free_rows.is_empty()
    }

    /// Adds one and returns the row its bytes go to; `None` if there is no room.
    pub(super) fn push(&mut self, repair: Repair) -> Option<usize> {
        let row = self.free_rows.pop()?;
        let mut factors = [0; MAX_WINDOW_PKTS];
        coefficients(repair.key, factors.get_mut(..usize::from(repair.count))?);
        self.list.push(KeptRepair {
            repair,
            row,
            coefficients: factors,
        });
        Some(row)
    }

    /// Drops those for which `drop` is true, given index and symbol.
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
