//! Bytes of clients that are not in the store yet.
//!
//! A batch that was tried must be tried again unchanged until it is known to be written, because a failed attempt may
//! have been written all the same. The store adds a batch only once, by the id of the run and the number of the batch.
//! So a crash loses the bytes since the last batch, and nothing is counted twice.

use std::collections::BTreeMap;

use pleach_core::endpoint::accounts::Usage;

use crate::clients::UsageBatch;

/// Bytes that are not in the store yet.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// The batch that is being tried, or the last one that was written, which is empty then.
    batch: UsageBatch,
    /// Bytes for the next batch.
    waiting: BTreeMap<String, Usage>,
}

impl Unwritten {
    /// Returns the state at the start of the run with the id `run`.
    pub(super) fn new(run: String) -> Self {
        let batch = UsageBatch {
            run,
            ..UsageBatch::default()
        };
        Self {
            batch,
            waiting: BTreeMap::new(),
        }
    }

    /// Adds bytes.
    pub(super) fn add(&mut self, usage: BTreeMap<String, Usage>) {
        for (name, more) in usage {
            let sum = self.waiting.entry(name).or_default();
            sum.up_bytes += more.up_bytes;
            sum.down_bytes += more.down_bytes;
        }
    }

    /// Returns the batch to write now. `seconds`: time of day, since 1970.
    pub(super) fn next(&mut self, seconds: u64) -> Option<&UsageBatch> {
        if self.batch.usage.is_empty() {
            if self.waiting.is_empty() {
                return None;
            }
            self.batch.number += 1;
            self.batch.at = seconds;
            self.batch.usage = core::mem::take(&mut self.waiting);
        }
        Some(&self.batch)
    }

    /// Notes that the batch is written.
    pub(super) fn on_written(&mut self) {
        self.batch.usage.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(up_bytes: u64) -> BTreeMap<String, Usage> {
        let usage = Usage {
            up_bytes,
            down_bytes: 0,
        };
        BTreeMap::from([("home".to_owned(), usage)])
    }

    #[test]
    fn a_batch_is_unchanged_until_it_is_written() {
        let mut unwritten = Unwritten::new("run".to_owned());
        assert_eq!(unwritten.next(1), None);
        unwritten.add(bytes(1));
        unwritten.add(bytes(2));
        let first = unwritten.next(1).expect("a batch").clone();
        assert_eq!((first.number, &first.usage), (1, &bytes(3)));
        unwritten.add(bytes(10));
        assert_eq!(unwritten.next(2), Some(&first));
        unwritten.on_written();
        let second = unwritten.next(3).expect("a batch").clone();
        assert_eq!((second.number, second.at), (2, 3));
        assert_eq!(second.usage, bytes(10));
        unwritten.on_written();
        assert_eq!(unwritten.next(4), None);
    }
}
