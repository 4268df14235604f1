//! Threads that look clients up at the same time, in a store that answers over a network.
//!
//! The thread of [`Asking`](super::Asking) decides, and these threads wait for the store. The key of a new client is looked
//! up once at a time, however many of its initiations arrive meanwhile. Known clients are looked up again by threads of
//! their own, and one thread asks for changes only, because removals and the state of the store must not wait for new
//! clients, nor these for them. An answer that may be from before a change is followed by another one, so the order in which
//! answers about one client arrive does not matter.
//!
//! Bounds: the questions of new clients are bounded by the caller, further look-ups by the number of their
//! threads, and lists of changes by one. The threads end with [`Lookers`], after their last answer.

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
    /// The answer about the key of a new client.
    Found([u8; KEY_LEN], Result<Option<Found>, StoreError>),
    /// The answer about the key of a known client.
    Again([u8; KEY_LEN], Result<Option<Found>, StoreError>),
    /// The changes since the last list, and the moment of this list.
    Listed(Result<(Mark, Changed), StoreError>),
}

/// Who waits for the answer about the key of a new client.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Questions of the engine.
    pub(super) requests: Vec<EnrolmentRequest>,
    /// Whether the client has changed since it is being looked up, so that the answer may be from before.
    pub(super) is_changed: bool,
}

/// The threads, and the questions that they are to answer.
pub(super) struct Lookers {
    keys: Sender<[u8; KEY_LEN]>,
    lists: Sender<Mark>,
    again_keys: Sender<[u8; KEY_LEN]>,
    waiting: BTreeMap<[u8; KEY_LEN], Waiting>,
    /// Known clients that are looked up again, and whether they have changed since then.
    again: BTreeMap<[u8; KEY_LEN], bool>,
    /// Number of threads for known clients.
    most_again: usize,
    is_listing: bool,
}

impl Lookers {
    /// Starts one thread for each of `lookups`: one for changes, a third of the others for known clients, and the rest for
    /// new ones. They pass on to `notes` what they were told. `None` without lookups.
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
        let most_again = lookups.len() / 3;
        let (again_keys, todo) = mpsc::channel();
        let todo = Arc::new(Mutex::new(todo));
        for lookup in lookups.drain(..most_again) {
            spawn(&todo, notes, lookup, find_again)?;
        }
        let (keys, todo) = mpsc::channel();
        let todo = Arc::new(Mutex::new(todo));
        for lookup in lookups {
            spawn(&todo, notes, lookup, find)?;
        }
        Ok(Some(Self {
            keys,
            lists,
            again_keys,
            waiting: BTreeMap::new(),
            again: BTreeMap::new(),
            most_again,
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
    pub(super) fn has_room(&self) -> bool {
        self.again.len() < self.most_again
    }

    /// Looks up a known client again, if it is not being looked up again.
    pub(super) fn ask_again(&mut self, key: [u8; KEY_LEN]) {
        self.again.entry(key).or_insert_with(|| {
            let _ = self.again_keys.send(key);
            false
        });
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
                self.again
                    .values_mut()
                    .for_each(|is_changed| *is_changed = true);
            }
            Some(Changed::Keys(keys)) => {
                for key in keys {
                    if let Some(waiting) = self.waiting.get_mut(key) {
                        waiting.is_changed = true;
                    }
                    if let Some(is_changed) = self.again.get_mut(key) {
                        *is_changed = true;
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

    /// Returns who has waited for the answer about the new client `key`, which has arrived.
    pub(super) fn on_found(&mut self, key: &[u8; KEY_LEN]) -> Waiting {
        self.waiting.remove(key).unwrap_or_default()
    }

    /// Returns whether the known client `key`, about which an answer has arrived, has changed since the question.
    pub(super) fn on_found_again(&mut self, key: &[u8; KEY_LEN]) -> bool {
        self.again.remove(key).unwrap_or_default()
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

fn find_again(lookup: &mut dyn Lookups, key: [u8; KEY_LEN]) -> Told {
    Told::Again(key, lookup.find(&key))
}

fn list(lookup: &mut dyn Lookups, mut mark: Mark) -> Told {
    let changed = lookup.changes_since(&mut mark);
    Told::Listed(changed.map(|changed| (mark, changed)))
}

#[cfg(test)]
mod tests;
