//! The equations of a decoder without their bytes. They show which missing packets the stored repair symbols determine.
//!
//! Gauss-Jordan elimination of at most [`MAX_EQUATIONS`] equations in at most [`MAX_UNKNOWNS`] unknowns. As in the
//! inversion of a matrix, each row also records the symbols, with their factors, of which it is the sum.

use super::{
    super::{HISTORY_PKTS, MAX_EQUATIONS, MAX_PENDING, MAX_UNKNOWNS, Repair, gf256},
    HISTORY,
    kept::Kept,
    row_of,
};
use crate::ids::Seq;

/// Index at which the [`System::combination`] of a row begins, after the coefficients of the unknowns.
const COMBINATION: usize = MAX_UNKNOWNS;

/// A system of linear equations.
#[derive(Debug)]
pub(super) struct System {
    rows: [[u8; MAX_UNKNOWNS + MAX_EQUATIONS]; MAX_EQUATIONS],
    /// Symbol of each equation, as an index into the stored symbols.
    symbols: [usize; MAX_EQUATIONS],
    len: usize,
    /// Missing packets in the order of their numbers, which is the order of the columns.
    unknowns: [Seq; MAX_UNKNOWNS],
    unknowns_len: usize,
    rank: usize,
}

impl System {
    /// Returns a system without equations.
    pub(super) fn new() -> Self {
        Self {
            rows: [[0; MAX_UNKNOWNS + MAX_EQUATIONS]; MAX_EQUATIONS],
            symbols: [0; MAX_EQUATIONS],
            len: 0,
            unknowns: [Seq(0); MAX_UNKNOWNS],
            unknowns_len: 0,
            rank: 0,
        }
    }

    /// Makes an equation of each symbol in `kept` that lacks at most `most` packets, as long as there is space: first
    /// symbols that lack one packet, then symbols that cover `at`, then symbols with the nearest numbers. Makes no
    /// equations if they are too few to recover a packet. Returns whether all of these symbols were used.
    pub(super) fn set(
        &mut self,
        kept: &Kept,
        known: &[bool; HISTORY_PKTS],
        newest: Option<Seq>,
        most: u8,
        at: Seq,
    ) -> bool {
        (self.len, self.unknowns_len, self.rank) = (0, 0, 0);
        let Some(newest) = newest else {
            return true;
        };
        let mut order = [(false, 0, 0, 0); MAX_PENDING];
        let mut candidates = 0;
        for (i, kept) in kept.list().iter().enumerate() {
            if kept.missing <= most {
                // A symbol that lacks one packet recovers the packet, whatever its number is.
                let is_more = kept.missing > 1;
                order[candidates] = (is_more, gap(&kept.repair, at), kept.missing, i);
                candidates += 1;
            }
        }
        let order = &mut order[..candidates];
        order.sort_unstable();
        let mut is_unknown = [false; HISTORY_PKTS];
        let mut unknowns = 0;
        let mut fewest = u8::MAX;
        for (_, _, missing, i) in &*order {
            let repair = kept.list()[*i].repair;
            let is_new = |id: &Seq| !known[row_of(*id)] && !is_unknown[row_of(*id)];
            unknowns += repair.ids().filter(is_new).count();
            if unknowns > MAX_UNKNOWNS || self.len == MAX_EQUATIONS {
                break;
            }
            for id in repair.ids() {
                is_unknown[row_of(id)] |= !known[row_of(id)];
            }
            fewest = fewest.min(*missing);
            self.symbols[self.len] = *i;
            self.len += 1;
        }
        let is_all = self.len == candidates;
        if self.len < usize::from(fewest) {
            self.len = 0;
            return is_all;
        }
        self.symbols[..self.len].sort_unstable();
        let mut columns = [0; HISTORY_PKTS];
        for id in (0..HISTORY).rev().map(|age| newest.minus(age)) {
            if is_unknown[row_of(id)]
                && let Some(unknown) = self.unknowns.get_mut(self.unknowns_len)
            {
                *unknown = id;
                columns[row_of(id)] = self.unknowns_len;
                self.unknowns_len += 1;
            }
        }
        let symbols = self.symbols[..self.len].iter();
        for (i, (row, symbol)) in self.rows.iter_mut().zip(symbols).enumerate() {
            row.fill(0);
            row[COMBINATION + i] = 1;
            let kept = &kept.list()[*symbol];
            for (id, &coefficient) in kept.repair.ids().zip(&kept.coefficients) {
                if is_unknown[row_of(id)] {
                    row[columns[row_of(id)]] = coefficient;
                }
            }
        }
        is_all
    }

    /// Returns the symbols that are equations, as indices into the stored symbols.
    pub(super) fn symbols(&self) -> &[usize] {
        &self.symbols[..self.len]
    }

    /// Brings the equations to reduced row echelon form. The solutions are in the order of their numbers.
    pub(super) fn reduce(&mut self) {
        let rows = &mut self.rows[..self.len];
        for column in 0..self.unknowns_len {
            let Some(pivot) = (self.rank..rows.len()).find(|row| rows[*row][column] != 0) else {
                continue;
            };
            rows.swap(self.rank, pivot);
            let inverse = gf256::inverse(rows[self.rank][column]);
            let mut pivot = [0; MAX_UNKNOWNS + MAX_EQUATIONS];
            gf256::mul_add(&mut pivot, &rows[self.rank], inverse);
            for row in &mut *rows {
                let factor = row[column];
                gf256::mul_add(row, &pivot, factor);
            }
            rows[self.rank] = pivot;
            self.rank += 1;
        }
    }

    /// Returns the number of rows with an unknown, after [`Self::reduce`]. These rows come first; the other rows follow
    /// from them.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the factors of the [symbols](Self::symbols) whose sum is this row.
    pub(super) fn combination(&self, row: usize) -> [u8; MAX_EQUATIONS] {
        let mut factors = [0; MAX_EQUATIONS];
        factors.copy_from_slice(&self.rows[row][COMBINATION..]);
        factors
    }

    /// Returns the unknown in this row if it is the only one, after [`Self::reduce`]; its coefficient is 1.
    pub(super) fn solution(&self, row: usize) -> Option<Seq> {
        let coefficients = &self.rows[row][..self.unknowns_len];
        let mut left = coefficients.iter().zip(&self.unknowns);
        let mut left = left.by_ref().filter(|(c, _)| **c != 0);
        let (_, id) = left.next()?;
        left.next().is_none().then_some(*id)
    }
}

/// Returns the distance from `at` to the packets that a symbol covers.
fn gap(repair: &Repair, at: Seq) -> u32 {
    if repair.covers(at) {
        return 0;
    }
    let away = |edge: Seq| edge.distance_from(at).unsigned_abs();
    away(repair.first).min(away(repair.last()))
}

/// Sets of equations are bits of a `u32`.
const _: () = assert!(MAX_EQUATIONS <= 32);
