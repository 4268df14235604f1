//! The last answers of the store about clients. They serve clients while the store cannot be read, for at most [`STALE`].

use std::{collections::BTreeMap, time::Duration};

use pleach_core::time::Instant;

use super::unkept::Unkept;
use crate::{
    clients::{ClientStore, StoredClient},
    keys::KEY_LEN,
};

/// The last answer about each client, at most [`MOST`] besides those of the engine's clients.
#[derive(Debug)]
pub(super) struct Answers {
    known: BTreeMap<[u8; KEY_LEN], Known>,
    /// Answers that are not remembered yet for later runs; `None` if none are remembered, because the store is asked again
    /// at the next start.
    unkept: Option<Unkept>,
    /// Whether the last attempt to remember answers has failed.
    cannot_keep: bool,
}

#[derive(Debug)]
struct Known {
    client: StoredClient,
    /// When the store is asked again, if the engine has the client.
    due_at: Instant,
    /// When the answer is too old to be used while the store cannot be read.
    stale_at: Instant,
    /// Whether the engine has the client, or is about to get it.
    is_used: bool,
    /// Whether the engine has refused it, because its name or an address belongs to another client. The answer is then not
    /// remembered for later runs.
    is_clashing: bool,
}

impl Answers {
    /// Returns the state at the start. `are_remembered`: whether answers are remembered for later runs.
    pub(super) fn new(are_remembered: bool) -> Self {
        Self {
            known: BTreeMap::new(),
            unkept: are_remembered.then(Unkept::default),
            cannot_keep: false,
        }
    }

    /// Takes up the answers of former runs about clients that may still be served. `may_serve` says so of a client.
    pub(super) fn recall(
        &mut self,
        now: Instant,
        store: &mut dyn ClientStore,
        may_serve: impl Fn(&StoredClient) -> bool,
    ) {
        let former = match store.remembered(STALE) {
            Ok(former) => former,
            Err(error) => {
                tracing::warn!("the answers of the last run are not used: {error}");
                return;
            }
        };
        for (client, age) in former.into_iter().take(MOST) {
            if !may_serve(&client) {
                self.keep_later(client.public_key, None);
                continue;
            }
            let known = Known {
                due_at: now,
                stale_at: now + STALE.saturating_sub(age),
                is_used: false,
                is_clashing: false,
                client,
            };
            self.known.insert(known.client.public_key, known);
        }
    }

    /// Returns the clients about which there is an answer.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8; KEY_LEN]> {
        self.known.keys()
    }

    /// Returns the engine's clients whose answers are old.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &[u8; KEY_LEN]> {
        let is_due = move |known: &Known| known.is_used && known.due_at <= now;
        let due = self.known.iter().filter(move |(_, known)| is_due(known));
        due.map(|(key, _)| key)
    }

    /// Returns the last answer about a client, however old.
    pub(super) fn get(&self, key: &[u8; KEY_LEN]) -> Option<&StoredClient> {
        self.known.get(key).map(|known| &known.client)
    }

    /// Returns the last answer about a client, if it may be used while the store cannot be read.
    pub(super) fn usable(&self, now: Instant, key: &[u8; KEY_LEN]) -> Option<&StoredClient> {
        let known = self.known.get(key).filter(|known| now < known.stale_at);
        known.map(|known| &known.client)
    }

    /// Notes that the engine has a client.
    pub(super) fn on_admitted(&mut self, key: &[u8; KEY_LEN]) {
        let Some(known) = self.known.get_mut(key) else {
            return;
        };
        known.is_used = true;
        if known.is_clashing {
            known.is_clashing = false;
            let client = known.client.clone();
            self.keep_later(*key, Some(client));
        }
    }

    /// Notes that the engine has refused a client. The answer stays known: when it arrives here, the engine may have
    /// admitted the client by a later question, and must be told when it is gone.
    pub(super) fn on_clash(&mut self, key: &[u8; KEY_LEN]) {
        if let Some(known) = self.known.get_mut(key) {
            known.is_used = false;
            known.is_clashing = true;
            self.keep_later(*key, None);
        }
    }

    /// Notes whether the engine has a client, or is about to get it.
    pub(super) fn set_used(&mut self, key: &[u8; KEY_LEN], is_used: bool) {
        if let Some(known) = self.known.get_mut(key) {
            known.is_used = is_used;
        }
    }

    /// Replaces the answer about a known client, which holds for `life`.
    pub(super) fn renew(&mut self, now: Instant, client: StoredClient, life: Duration) {
        let key = client.public_key;
        let is_used = self.known.get(&key).is_some_and(|known| known.is_used);
        self.keep(now, client, life);
        self.set_used(&key, is_used);
    }

    /// Keeps an answer that the engine will use, and that holds for `life`.
    pub(super) fn keep(&mut self, now: Instant, client: StoredClient, life: Duration) {
        let former = self.known.get(&client.public_key);
        let is_clashing = former.is_some_and(|known| known.is_clashing);
        if former.is_none() && self.known.len() >= MOST {
            let mut unused = self.known.iter().filter(|(_, known)| !known.is_used);
            if let Some(key) = unused.next().map(|(key, _)| *key) {
                self.forget(&key);
            }
        }
        if !is_clashing {
            self.keep_later(client.public_key, Some(client.clone()));
        }
        let known = Known {
            due_at: now + life,
            stale_at: now + STALE,
            is_used: true,
            is_clashing,
            client,
        };
        self.known.insert(known.client.public_key, known);
    }

    /// Drops the answer about a client.
    pub(super) fn forget(&mut self, key: &[u8; KEY_LEN]) {
        self.known.remove(key);
        // Former runs may have an answer, too.
        self.keep_later(*key, None);
    }

    /// Drops the answer about a client from what is remembered for later runs, because the client has changed.
    pub(super) fn doubt(&mut self, key: [u8; KEY_LEN]) {
        self.keep_later(key, None);
    }

    fn keep_later(&mut self, key: [u8; KEY_LEN], answer: Option<StoredClient>) {
        if let Some(unkept) = &mut self.unkept {
            unkept.put(key, answer);
        }
    }

    /// Remembers answers for later runs.
    pub(super) fn remember(&mut self, store: &mut dyn ClientStore) {
        let unkept = self.unkept.as_mut();
        let Some(unkept) = unkept.filter(|unkept| !unkept.answers().is_empty()) else {
            return;
        };
        let kept = store.remember(unkept.answers(), STALE);
        match &kept {
            Ok(()) => unkept.clear(),
            Err(error) if !self.cannot_keep => {
                tracing::warn!("answers about clients cannot be kept for the next start: {error}");
            }
            Err(_) => {}
        }
        self.cannot_keep = kept.is_err();
    }
}

/// Maximum age of an answer that is used while the store cannot be read.
pub(super) const STALE: Duration = Duration::from_secs(24 * 3600);
/// Number of answers above which those for clients that the engine does not have are dropped.
const MOST: usize = 65_536;
