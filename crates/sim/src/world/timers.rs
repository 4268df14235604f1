//! Timers of the nodes: one timer per node, in order of time, and at equal times in the order in which they were set.
//!
//! The timers are a binary heap whose entries are never changed. If a node needs an earlier timer, it gets a second
//! entry, and the first entry is skipped when it is reached. If a node needs a later timer, it keeps its entry, and the
//! later time is looked up when the entry is reached. Most timers of a protocol are only postponed, so many changes
//! need only one push.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use pleach_core::time::Instant;

/// The next timer of every node.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// For each node, the valid entry, and the actual time of its timer.
    nodes: Vec<Timer>,
    sequence: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Timer {
    entry: Option<(Instant, u64)>,
    due: Option<Instant>,
}

impl Timers {
    /// Adds a node without a timer.
    pub(super) fn add_node(&mut self) {
        self.nodes.push(Timer::default());
    }

    /// Sets the timer of `node` to `due`, or removes it.
    pub(super) fn set(&mut self, node: usize, due: Option<Instant>) {
        let timer = &mut self.nodes[node];
        timer.due = due;
        let Some(due) = due else { return };
        if timer.entry.is_none_or(|(at, _)| at > due) {
            self.sequence += 1;
            timer.entry = Some((due, self.sequence));
            self.heap.push(Reverse((due, self.sequence, node)));
        }
    }

    /// Returns the time of the next timer.
    pub(super) fn next(&mut self) -> Option<Instant> {
        loop {
            let &Reverse((at, sequence, node)) = self.heap.peek()?;
            let timer = &mut self.nodes[node];
            if timer.entry == Some((at, sequence)) {
                if timer.due == Some(at) {
                    return Some(at);
                }
                timer.entry = None;
                let due = timer.due;
                self.heap.pop();
                self.set(node, due);
            } else {
                self.heap.pop();
            }
        }
    }

    /// Returns a node whose timer is at `now` or before, and removes its timer.
    pub(super) fn pop(&mut self, now: Instant) -> Option<usize> {
        self.next().filter(|&at| at <= now)?;
        let Reverse((_, _, node)) = self.heap.pop()?;
        self.nodes[node] = Timer::default();
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_core::rng::Rng;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn ties_go_to_who_was_set_first() {
        let mut timers = Timers::default();
        (0..3).for_each(|_| timers.add_node());
        for (node, due) in [(2, 5), (0, 5), (1, 3)] {
            timers.set(node, Some(at(due)));
        }
        timers.set(1, None);
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop(at(4)), None);
        assert_eq!((timers.pop(at(5)), timers.pop(at(5))), (Some(2), Some(0)));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn turns_come_as_from_a_list_that_is_searched() {
        let mut rng = Rng::new(1);
        let mut timers = Timers::default();
        let mut slow: Vec<Option<u64>> = vec![None; 7];
        slow.iter().for_each(|_| timers.add_node());
        for now in 0..20_000 {
            let node = usize::try_from(rng.below(7)).expect("small");
            let due = (rng.below(5) > 0).then(|| now + 1 + rng.below(50));
            slow[node] = due;
            timers.set(node, due.map(at));
            assert_eq!(
                timers.next(),
                slow.iter().flatten().min().map(|&due| at(due))
            );
            let mut turns = Vec::new();
            while let Some(node) = timers.pop(at(now)) {
                assert!(slow[node].take().is_some_and(|due| due <= now));
                turns.push(node);
            }
            assert!(slow.iter().flatten().all(|&due| due > now));
        }
    }
}
