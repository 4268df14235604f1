//! Which of a flow's numbered datagrams have arrived, and how far out of order.

/// Most datagrams of a flow; later ones are not counted.
const MAX_LEN: usize = 1 << 28;
/// Datagrams behind the newest within which a late one is looked for.
const MAX_DEPTH: usize = 1 << 16;

/// The sequence numbers of a flow that have arrived.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    seen: Vec<bool>,
    count: u64,
    in_order: u64,
    depth_max: u64,
}

/// What an arrival is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A copy of one that has arrived, or beyond what is counted.
    Copy,
    /// Its number is above all before it.
    InOrder,
    /// A later one came before it.
    Late,
}

impl Arrivals {
    /// Notes the arrival of `number`.
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

    /// How many arrived, copies not counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many of them arrived in order.
    #[must_use]
    pub fn in_order(&self) -> u64 {
        self.in_order
    }

    /// How many later ones arrived before a late one, at most; looks 65 536 numbers ahead.
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
