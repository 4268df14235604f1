//! Which connections the peer has ever asked for: numbers from 0, which may come out of order and more than once.
//!
//! Bound: [`MAX_AHEAD`] numbers beyond the first that has not come.

use std::collections::BTreeSet;

use super::{MAX_AHEAD, Violation, frame::ConnId};

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// All before it have come.
    below: u32,
    /// Those behind it that have.
    beyond: BTreeSet<u32>,
}

impl Opened {
    /// Notes `id`; whether it is new.
    ///
    /// # Errors
    /// It is farther ahead than an honest peer gets, or the last number, behind which there is none.
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

    /// Whether `id` has come.
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
