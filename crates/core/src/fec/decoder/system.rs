//! The equations of a decoder without their bytes: which of the missing packets do the repair symbols kept determine?
//!
//! Gauss-Jordan elimination of at most [`MAX_PENDING`] equations in at most [`MAX_UNKNOWNS`] unknowns. Each row carries
//! along of which symbols it is the sum and with what factors, as in inverting a matrix.

use super::{
    super::{HISTORY_PKTS, MAX_PENDING, MAX_UNKNOWNS, gf256},
    HISTORY,
    kept::Kept,
    row_of,
};
use crate::ids::Seq;

/// A row has the coefficients of the unknowns, and from here on its [`System::combination`].
const COMBINATION: usize = MAX_UNKNOWNS;

/// The equations.
#[derive(Debug)]
pub(super) struct System {
    rows: [[u8; MAX_UNKNOWNS + MAX_PENDING]; MAX_PENDING],
    len: usize,
    /// The missing packets, in the order of their numbers; of columns too.
    unknowns: [Seq; MAX_UNKNOWNS],
    unknowns_len: usize,
    rank: usize,
}

impl System {
    /// No equation.
    pub(super) fn new() -> Self {
        Self {
            rows: [[0; MAX_UNKNOWNS + MAX_PENDING]; MAX_PENDING],
            len: 0,
            unknowns: [Seq(0); MAX_UNKNOWNS],
            unknowns_len: 0,
            rank: 0,
        }
    }

    /// Makes an equation of each symbol `kept`, in their order. False if there are more unknowns than there is room for.
    pub(super) fn set(
        &mut self,
        kept: &Kept,
        known: &[bool; HISTORY_PKTS],
        newest: Option<Seq>,
    ) -> bool {
        (self.len, self.unknowns_len, self.rank) = (0, 0, 0);
        let Some(newest) = newest else {
            return true;
        };
        let mut missing = [false; HISTORY_PKTS];
        for id in kept.list().iter().flat_map(|k| k.repair.ids()) {
            missing[row_of(id)] = !known[row_of(id)];
        }
        let mut columns = [0; HISTORY_PKTS];
        for id in (0..HISTORY).rev().map(|age| newest.minus(age)) {
            if missing[row_of(id)] {
                let Some(unknown) = self.unknowns.get_mut(self.unknowns_len) else {
                    return false;
                };
                *unknown = id;
                columns[row_of(id)] = self.unknowns_len;
                self.unknowns_len += 1;
            }
        }
        for (row, kept) in self.rows.iter_mut().zip(kept.list()) {
            row.fill(0);
            row[COMBINATION + self.len] = 1;
            self.len += 1;
            for (id, &coefficient) in kept.repair.ids().zip(&kept.coefficients) {
                if missing[row_of(id)] {
                    row[columns[row_of(id)]] = coefficient;
                }
            }
        }
        true
    }

    /// Brings the equations to reduced row echelon form. Solutions come in the order of their numbers.
    pub(super) fn reduce(&mut self) {
        let rows = &mut self.rows[..self.len];
        for column in 0..self.unknowns_len {
            let Some(pivot) = (self.rank..rows.len()).find(|row| rows[*row][column] != 0) else {
                continue;
            };
            rows.swap(self.rank, pivot);
            let inverse = gf256::inverse(rows[self.rank][column]);
            let mut pivot = [0; MAX_UNKNOWNS + MAX_PENDING];
            gf256::mul_add(&mut pivot, &rows[self.rank], inverse);
            for row in &mut *rows {
                let factor = row[column];
                gf256::mul_add(row, &pivot, factor);
            }
            rows[self.rank] = pivot;
            self.rank += 1;
        }
    }

    /// After [`Self::reduce`]: how many rows have an unknown left. Those come first; the others follow from them.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The factors of the symbols kept of which this row is the sum.
    pub(super) fn combination(&self, row: usize) -> [u8; MAX_PENDING] {
        let mut factors = [0; MAX_PENDING];
        factors.copy_from_slice(&self.rows[row][COMBINATION..]);
        factors
    }

    /// After [`Self::reduce`]: the only unknown in this row, if it is the only one; its coefficient is 1.
    pub(super) fn solution(&self, row: usize) -> Option<Seq> {
        let coefficients = &self.rows[row][..self.unknowns_len];
        let mut left = coefficients.iter().zip(&self.unknowns);
        let mut left = left.by_ref().filter(|(c, _)| **c != 0);
        let (_, id) = left.next()?;
        left.next().is_none().then_some(*id)
    }
}
