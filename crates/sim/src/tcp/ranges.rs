//! Disjoint ranges of numbers: out-of-order data at a receiver, or selectively acknowledged segments at a sender.
//!
//! The ranges are in a sorted deque. Finding a range is O(log n); inserting moves the shorter side. n is the number of
//! holes in one window.

use core::ops::Range;
use std::collections::VecDeque;

/// A set of numbers as sorted, disjoint, non-adjacent, non-empty ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: VecDeque<Range<u64>>,
}

impl RangeSet {
    /// Adds `range` and calls `on_new` with each part that was not in the set, ascending.
    pub(crate) fn insert(&mut self, range: Range<u64>, mut on_new: impl FnMut(Range<u64>)) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let mut merged = range.clone();
        let mut uncovered_from = range.start;
        let mut last = first;
        while let Some(existing) = self.ranges.get(last).filter(|r| r.start <= range.end) {
            if uncovered_from < existing.start {
                on_new(uncovered_from..existing.start);
            }
            uncovered_from = uncovered_from.max(existing.end);
            merged.start = merged.start.min(existing.start);
            merged.end = merged.end.max(existing.end);
            last += 1;
        }
        if uncovered_from < range.end {
            on_new(uncovered_from..range.end);
        }
        if last > first + 1 {
            self.ranges.drain(first + 1..last);
        }
        match self.ranges.get_mut(first) {
            Some(slot) if last > first => *slot = merged,
            _ => self.ranges.insert(first, merged),
        }
    }

    /// Removes all numbers below `limit`.
    pub(super) fn remove_below(&mut self, limit: u64) {
        while let Some(first) = self.ranges.front_mut() {
            if first.end > limit {
                first.start = first.start.max(limit);
                break;
            }
            self.ranges.pop_front();
        }
    }

    /// Removes and returns the lowest range if it begins at or below `start`.
    pub(crate) fn take_touching(&mut self, start: u64) -> Option<Range<u64>> {
        if self.ranges.front()?.start > start {
            return None;
        }
        self.ranges.pop_front()
    }

    /// Returns the range that contains `number`.
    pub(super) fn find(&self, number: u64) -> Option<Range<u64>> {
        let i = self.ranges.partition_point(|r| r.end <= number);
        self.ranges.get(i).filter(|r| r.start <= number).cloned()
    }

    /// Returns the number after the highest number in the set.
    pub(super) fn end(&self) -> Option<u64> {
        self.ranges.back().map(|r| r.end)
    }

    /// Returns the ranges, highest first.
    pub(crate) fn iter_descending(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().rev().cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pleach_core::rng::Rng;

    use super::*;

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let mut fast = RangeSet::default();
            let mut slow = BTreeSet::new();
            for _ in 0..40 {
                let start = rng.below(100);
                let range = start..start + rng.below(12);
                let mut new = Vec::new();
                fast.insert(range.clone(), |part| new.extend(part));
                let expected: Vec<u64> = range.filter(|n| slow.insert(*n)).collect();
                assert_eq!(new, expected);
                if rng.chance(0.1) {
                    let limit = rng.below(60);
                    fast.remove_below(limit);
                    slow.retain(|n| *n >= limit);
                }
                let mut all: Vec<_> = fast.iter_descending().collect();
                all.reverse();
                assert!(all.windows(2).all(|w| w[0].end < w[1].start));
                assert!(all.iter().cloned().flatten().eq(slow.iter().copied()));
                let probe = rng.below(110);
                assert_eq!(fast.find(probe).is_some(), slow.contains(&probe));
                assert_eq!(fast.end(), slow.last().map(|n| n + 1));
            }
        }
    }

    #[test]
    fn takes_what_touches() {
        let mut set = RangeSet::default();
        set.insert(5..7, |_| {});
        assert_eq!(set.take_touching(4), None);
        assert_eq!(set.take_touching(5), Some(5..7));
        assert!(set.is_empty());
    }
}
