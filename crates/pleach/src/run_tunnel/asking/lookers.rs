//! Threads that look clients up at the same time, in a store that answers over a network.
//!
//! The thread of [`Asking`](super::Asking) decides, and these threads wait for the store. A key is looked up once at a
//! time, however many initiations of its client arrive meanwhile. Looking up known clients again takes at most
//! [`MOST_AGAIN`] threads, so new clients need not wait for them. One thread asks for changes only, because removals and
//! the state of the store must not wait for new clients.
//!
//! Bounds: the questions of new clients are bounded by the caller, further look-ups by [`MOST_AGAIN`], and lists of
//! changes by one. The threads end with [`Lookers`], after their last answer.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use anyhow::Context as _;
use pleach_core::endpoint::enrolment::EnrolmentRequest;

use super::Note;
use crate::{
    clients::{Changed, Found, Lookups, Mark, StoreError},
    keys::KEY_LEN,
};

/// What a thread was told.
pub(super) enum Told {
    /// The answer about a key.
    Found([u8; KEY_LEN], Result<Option<Found>, StoreError>),
    /// The changes since the last list, and the moment of this list.
    Listed(Result<(Mark, Changed), StoreError>),
}

/// Who waits for the answer about a key.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Questions of the engine.
    pub(super) requests: Vec<EnrolmentRequest>,
    /// Whether the client was known, and its answer old.
    pub(super) is_again: bool,
    /// Whether the client has changed since it is being looked up, so that the answer may be from before.
    pub(super) is_changed: bool,
}

/// The threads, and the questions that they are to answer.
pub(super) struct Lookers {
    keys: Sender<[u8; KEY_LEN]>,
    lists: Sender<Mark>,
    waiting: BTreeMap<[u8; KEY_LEN], Waiting>,
    /// Number of keys in `waiting` that are looked up again.
    again: usize,
    is_listing: bool,
}

impl Lookers {
    /// Starts one thread for each of `lookups`. They pass on to `notes` what they were told. `None` without lookups.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub(super) fn start(
        mut lookups: Vec<Box<dyn Lookups>>,
        notes: &Sender<Note>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(lister) = lookups.pop() else {
            return Ok(None);
        };
        let (lists, todo) = mpsc::channel();
        spawn(&Arc::new(Mutex::new(todo)), notes, lister, list)?;
        let (keys, todo) = mpsc::channel();
        let todo = Arc::new(Mutex::new(todo));
        for lookup in lookups {
            spawn(&todo, notes, lookup, find)?;
        }
        Ok(Some(Self {
            keys,
            lists,
            waiting: BTreeMap::new(),
            again: 0,
            is_listing: false,
        }))
    }

    /// Looks up the client of a question.
    pub(super) fn ask(&mut self, request: EnrolmentRequest) {
        let key = request.public_key;
        let waiting = self.waiting.entry(key).or_insert_with(|| {
            // Fails only when the threads have ended.
            let _ = self.keys.send(key);
            Waiting::default()
        });
        waiting.requests.push(request);
    }

    /// Whether a known client may be looked up again now.
    pub(super) const fn has_room(&self) -> bool {
        self.again < MOST_AGAIN
    }

    /// Looks up a known client again, if it is not being looked up.
    pub(super) fn ask_again(&mut self, key: [u8; KEY_LEN]) {
        let waiting = self.waiting.entry(key).or_insert_with(|| {
            let _ = self.keys.send(key);
            Waiting::default()
        });
        if !waiting.is_again {
            waiting.is_again = true;
            self.again += 1;
        }
    }

    /// Asks for changes since `mark`, unless the answer to the last such question is missing.
    pub(super) fn list(&mut self, mark: &Mark) {
        if !self.is_listing {
            self.is_listing = true;
            let _ = self.lists.send(mark.clone());
        }
    }

    /// Notes that the list of changes has arrived, with its changes.
    pub(super) fn on_listed(&mut self, changed: Option<&Changed>) {
        self.is_listing = false;
        match changed {
            Some(Changed::Any) => {
                for waiting in self.waiting.values_mut() {
                    waiting.is_changed = true;
                }
            }
            Some(Changed::Keys(keys)) => {
                for key in keys {
                    if let Some(waiting) = self.waiting.get_mut(key) {
                        waiting.is_changed = true;
                    }
                }
            }
            None => {}
        }
    }

    /// Returns the questions of the engine that wait for an answer. They do not wait any more.
    pub(super) fn take_requests(&mut self) -> Vec<EnrolmentRequest> {
        let waiting = self.waiting.values_mut();
        waiting
            .flat_map(|waiting| waiting.requests.drain(..))
            .collect()
    }

    /// Returns who has waited for the answer about `key`, which has arrived.
    pub(super) fn on_found(&mut self, key: &[u8; KEY_LEN]) -> Waiting {
        let waiting = self.waiting.remove(key).unwrap_or_default();
        self.again -= usize::from(waiting.is_again);
        waiting
    }
}

/// Starts a thread that asks for each element of `todo`.
fn spawn<T: Send + 'static>(
    todo: &Arc<Mutex<Receiver<T>>>,
    notes: &Sender<Note>,
    mut lookup: Box<dyn Lookups>,
    ask: fn(&mut dyn Lookups, T) -> Told,
) -> anyhow::Result<()> {
    let (todo, notes) = (Arc::clone(todo), notes.clone());
    thread::Builder::new()
        .name("look up".to_owned())
        .spawn(move || {
            while let Some(job) = next(&todo) {
                if notes.send(Note::Told(ask(&mut *lookup, job))).is_err() {
                    return;
                }
            }
        })
        .context("thread for the service of clients")?;
    Ok(())
}

/// Waits for the next element. `None` when there will be no more.
fn next<T>(todo: &Mutex<Receiver<T>>) -> Option<T> {
    // A thread that has panicked did not change the receiver.
    let todo = todo.lock().unwrap_or_else(PoisonError::into_inner);
    todo.recv().ok()
}

fn find(lookup: &mut dyn Lookups, key: [u8; KEY_LEN]) -> Told {
    Told::Found(key, lookup.find(&key))
}

fn list(lookup: &mut dyn Lookups, mut mark: Mark) -> Told {
    let changed = lookup.changes_since(&mut mark);
    Told::Listed(changed.map(|changed| (mark, changed)))
}

/// Maximum number of known clients that are looked up again at the same time: half of the threads of a service.
const MOST_AGAIN: usize = 8;

#[cfg(test)]
mod tests;
