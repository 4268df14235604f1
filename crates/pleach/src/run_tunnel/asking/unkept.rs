//! Answers about clients that are not remembered yet for later runs.

use std::collections::{BTreeMap, VecDeque};

use crate::{clients::StoredClient, keys::KEY_LEN};

/// The last answer about each of these clients; `None`: the store does not know it. Above [`MOST`], the oldest one is
/// dropped.
#[derive(Debug, Default)]
pub(super) struct Unkept {
    answers: BTreeMap<[u8; KEY_LEN], Option<StoredClient>>,
    /// The keys in the order of their first answers.
    order: VecDeque<[u8; KEY_LEN]>,
}

impl Unkept {
    /// Adds an answer. It replaces the one about the same client.
    pub(super) fn put(&mut self, key: [u8; KEY_LEN], answer: Option<StoredClient>) {
        if self.answers.insert(key, answer).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }

    /// Returns the answers.
    pub(super) const fn answers(&self) -> &BTreeMap<[u8; KEY_LEN], Option<StoredClient>> {
        &self.answers
    }

    /// Drops the answers.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Maximum number of answers.
const MOST: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_answer_makes_room() {
        let mut unkept = Unkept::default();
        let key = |number: usize| {
            let mut key = [0; KEY_LEN];
            key[..8].copy_from_slice(&(number as u64).to_le_bytes());
            key
        };
        for _ in 0..2 {
            for number in 0..MOST {
                unkept.put(key(number), None);
            }
        }
        assert_eq!(unkept.answers().len(), MOST);
        unkept.put(key(MOST), None);
        assert_eq!(unkept.answers().len(), MOST);
        assert!(!unkept.answers().contains_key(&key(0)));
        unkept.clear();
        assert!(unkept.answers().is_empty());
    }
}
