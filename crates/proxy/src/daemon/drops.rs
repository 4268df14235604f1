//! Counts requests that were not served, by reason.

use std::{cell::RefCell, collections::BTreeMap};

/// Counters by reason.
#[derive(Debug, Default)]
pub(crate) struct Drops(RefCell<BTreeMap<&'static str, u64>>);

impl Drops {
    pub(crate) fn count(&self, reason: &'static str) {
        *self.0.borrow_mut().entry(reason).or_default() += 1;
    }

    /// Returns all counters.
    pub(crate) fn all(&self) -> BTreeMap<&'static str, u64> {
        self.0.borrow().clone()
    }
}
