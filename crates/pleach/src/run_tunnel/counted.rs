//! The bytes that the clients of an engine have carried since they were last counted, for the store of clients.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::endpoint::{Endpoint, accounts::Usage};

use crate::keys::KEY_LEN;

/// Interval of counting.
pub(super) const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Counters of the engine's peers, as they were last counted.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<[u8; KEY_LEN], Usage>);

impl Counted {
    /// Returns the bytes that each peer of the engine has carried since the last call, by name.
    pub(super) fn count(&mut self, endpoint: &Endpoint) -> BTreeMap<String, Usage> {
        let mut all = BTreeMap::new();
        let mut counted = BTreeMap::new();
        for (peer, usage) in endpoint.usage() {
            let before = self.0.get(&peer.public_key).copied();
            all.extend(used(&peer.name, usage, before.unwrap_or_default()));
            counted.insert(peer.public_key, usage);
        }
        self.0 = counted;
        all
    }

    /// Returns the bytes that the peer `name` has carried since the last call, before it is removed.
    pub(super) fn forget(
        &mut self,
        endpoint: &Endpoint,
        public_key: &[u8; KEY_LEN],
        name: &str,
    ) -> BTreeMap<String, Usage> {
        let before = self.0.remove(public_key).unwrap_or_default();
        let usage = endpoint.usage_of(public_key);
        usage.map_or_else(BTreeMap::new, |usage| used(name, usage, before))
    }
}

/// Returns the bytes that the client `name` has carried since `before`, if any.
fn used(name: &str, now: Usage, before: Usage) -> BTreeMap<String, Usage> {
    let more = since(now, before);
    let is_any = more != Usage::default();
    is_any
        .then(|| (name.to_owned(), more))
        .into_iter()
        .collect()
}

/// Returns the bytes carried since `before`. A peer whose counters are lower was added anew.
fn since(now: Usage, before: Usage) -> Usage {
    let is_anew = now.up_bytes < before.up_bytes || now.down_bytes < before.down_bytes;
    if is_anew {
        return now;
    }
    Usage {
        up_bytes: now.up_bytes - before.up_bytes,
        down_bytes: now.down_bytes - before.down_bytes,
    }
}
