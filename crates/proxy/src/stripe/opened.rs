//! The set of connections that the peer has ever requested. Their numbers begin at 0, and may arrive out of order and
//! more than once.
//!
//! Bound: [`MAX_AHEAD`] numbers beyond the first missing number.

use std::collections::BTreeSet;

use super::{MAX_AHEAD, Violation, frame::ConnId};

/// The set of connection numbers that the peer has used.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// All numbers below this one have arrived.
    below: u32,
    /// Numbers above `below` that have arrived.
    beyond: BTreeSet<u32>,
}

impl Opened {
    /// Adds `id` to the set. Returns whether it is new.
    ///
    /// # Errors
    /// Fails if `id` is farther ahead than an honest peer can be, or if it is the last number, which has no
    /// successor.
    pub(super) fn enter(&mut self, id: ConnId) -> Result<bool, Violation> {
        if self.has(id) {
            return Ok(false);
        }
        if id.0 - self.below >= MAX_AHEAD || id.0 == u32::MAX {
            return Err(Violation::Flood);
        }
        self.beyond.insert(id.0);
        while self.beyond.remove(&self.below) {
            self.below += 1;
        }
        Ok(true)
    }

    /// Whether `id` is in the set.
    pub(super) fn has(&self, id: ConnId) -> bool {
        id.0 < self.below || self.beyond.contains(&id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once_in_any_order_within_the_bound() {
        let mut opened = Opened::default();
        for (id, expected) in [(1, true), (0, true), (1, false), (0, false), (3, true)] {
            assert_eq!(opened.enter(ConnId(id)), Ok(expected), "{id}");
        }
        assert!(!opened.has(ConnId(2)) && opened.has(ConnId(3)));
        assert_eq!(opened.enter(ConnId(2 + MAX_AHEAD)), Err(Violation::Flood));
        assert_eq!(opened.enter(ConnId(1 + MAX_AHEAD)), Ok(true));
        assert_eq!(opened.enter(ConnId(2)), Ok(true));
        assert_eq!(opened.beyond.len(), 1, "those in order need no place");
    }

    #[test]
    fn the_last_number_of_all_is_never_new() {
        let mut opened = Opened {
            below: u32::MAX - 1,
            beyond: BTreeSet::new(),
        };
        assert_eq!(opened.enter(ConnId(u32::MAX - 1)), Ok(true));
        assert_eq!(opened.enter(ConnId(u32::MAX)), Err(Violation::Flood));
        assert!(opened.has(ConnId(0)));
    }
}
