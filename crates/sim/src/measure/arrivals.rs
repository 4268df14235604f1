//! Set of the arrived datagrams of a flow, with counts of reordering.

/// Highest number of datagrams of a flow. Later datagrams are not counted.
const MAX_LEN: usize = 1 << 28;
/// Number of sequence numbers after a late datagram that are searched for datagrams that overtook it.
const MAX_DEPTH: usize = 1 << 16;

/// The sequence numbers of a flow that have arrived.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    seen: Vec<bool>,
    count: u64,
    in_order: u64,
    depth_max: u64,
}

/// Kind of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A copy of a datagram that has already arrived, or a datagram beyond the counted range.
    Copy,
    /// The number is above all numbers before.
    InOrder,
    /// A datagram with a higher number arrived before.
    Late,
}

impl Arrivals {
    /// Records the arrival of `number`.
    pub fn note(&mut self, number: u64) -> Arrival {
        let Ok(index) = usize::try_from(number) else {
            return Arrival::Copy;
        };
        if index >= MAX_LEN {
            return Arrival::Copy;
        }
        let in_order = index >= self.seen.len();
        if in_order {
            self.seen.resize(index + 1, false);
        }
        if self.seen[index] {
            return Arrival::Copy;
        }
        self.seen[index] = true;
        self.count += 1;
        if in_order {
            self.in_order += 1;
            return Arrival::InOrder;
        }
        let later = self.seen[index + 1..].iter().take(MAX_DEPTH);
        let depth = later.filter(|&&seen| seen).count();
        self.depth_max = self.depth_max.max(u64::try_from(depth).unwrap_or(0));
        Arrival::Late
    }

    /// Returns the number of datagrams that arrived, without copies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of datagrams that arrived in order.
    #[must_use]
    pub fn in_order(&self) -> u64 {
        self.in_order
    }

    /// Returns the highest number of later datagrams that arrived before a late one. The search covers 65 536 numbers.
    #[must_use]
    pub fn depth_max(&self) -> u64 {
        self.depth_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_those_that_overtook() {
        let mut arrivals = Arrivals::default();
        let kinds = [0, 2, 3, 5, 1, 3].map(|number| arrivals.note(number));
        let (new, late, copy) = (Arrival::InOrder, Arrival::Late, Arrival::Copy);
        assert_eq!(kinds, [new, new, new, new, late, copy]);
        assert_eq!((arrivals.count(), arrivals.in_order()), (5, 4));
        assert_eq!(arrivals.depth_max(), 3);
        assert_eq!(arrivals.note(u64::MAX), copy);
    }
}
