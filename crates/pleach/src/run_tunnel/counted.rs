//! The bytes that the clients of an engine carry, for the store of clients.

use std::{collections::BTreeMap, sync::Arc};

use pleach_core::endpoint::{Endpoint, PeerConfig, accounts::Usage};

use super::ledger::{Account, Ledger};
use crate::keys::KEY_LEN;

/// The accounts of an engine's peers.
#[derive(Debug)]
pub(super) struct Counted {
    ledger: Arc<Ledger>,
    accounts: BTreeMap<[u8; KEY_LEN], Account>,
    /// Bytes of peers for which the ledger had no room, by name.
    waiting: BTreeMap<String, Usage>,
}

impl Counted {
    /// Returns the state of an engine without peers.
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            accounts: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Adds what the engine's peers have carried since the last call to their accounts. To be called after packets were
    /// passed on, so that no more is counted than was carried.
    pub(super) fn count(&mut self, endpoint: &mut Endpoint) {
        if !self.waiting.is_empty() {
            self.retry();
        }
        while let Some((peer, more)) = endpoint.poll_usage() {
            self.add(peer, more);
        }
    }

    /// Adds bytes for which there is room now.
    fn retry(&mut self) {
        let ledger = &self.ledger;
        self.waiting.retain(|name, more| {
            let account = ledger.account(name);
            account.iter().for_each(|account| account.add(*more));
            account.is_none()
        });
    }

    fn add(&mut self, peer: &PeerConfig, more: Usage) {
        if let Some(account) = self.accounts.get(&peer.public_key) {
            account.add(more);
        } else if let Some(account) = self.ledger.account(&peer.name) {
            account.add(more);
            self.accounts.insert(peer.public_key, account);
        } else {
            let sum = self.waiting.entry(peer.name.clone()).or_default();
            sum.up_bytes += more.up_bytes;
            sum.down_bytes += more.down_bytes;
        }
    }

    /// Adds the last bytes of the peer with the public key `public_key`, and gives its account back, before the peer is
    /// removed.
    pub(super) fn forget(&mut self, endpoint: &mut Endpoint, public_key: &[u8; KEY_LEN]) {
        if let Some((peer, last)) = endpoint.take_usage_of(public_key) {
            self.add(peer, last);
        }
        self.accounts.remove(public_key);
    }
}
