//! Clients at a service that is asked by HTTP.
//!
//! The service knows the clients, and is only read. It has two resources, both in JSON (`docs/clients.md`):
//!
//! | resource | contents |
//! | --- | --- |
//! | `clients?public_key=KEY` | the client with this key |
//! | `changes?after=NUMBER` | the keys of the clients that have changed after this number |
//!
//! The second one has the meaning of the list of changes in a database, so a gateway learns of changes by one request a
//! second, however many clients are connected.
//!
//! An answer that is not of the documented form says nothing about clients: it counts as a service that is away. In
//! particular, an unknown client is one about which the service says so, with its key. Otherwise a proxy without its
//! service, or a wrong path, would disconnect all clients.
//!
//! Each look-up waits for the network, so several threads look up at the same time ([`CONNECTIONS`]), each by a
//! connection of its own ([`link`]).
//!
//! The gateway keeps the last answers in an SQLite file of its own, so that it serves known clients after a restart while
//! the service is away. Byte counters are in that file, too.

mod link;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use hyper::StatusCode;
use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::invitation::Claim,
    time::Instant,
};
use pleach_linux::clock;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{
    Changed, ClientStore, Found, Lookups, Mark, Members, StoreError, StoredClient, UsageBatch,
    raw::RawClient,
    sqlite::{Kind, SqliteStore},
    tls,
};
use crate::{
    config::HttpConfig,
    keys::{self, KEY_LEN},
    onboard::store::{Invitation, Offer, Refusal},
};
use link::{Link, Target};

/// Clients at a service, and the file with its answers.
pub(crate) struct HttpStore {
    remote: Remote,
    local: SqliteStore,
    next_drop: Instant,
}

impl HttpStore {
    /// Opens the file with the answers of the service of `config`, and creates it if it is missing. Drops the answers of
    /// another service. The service may be away.
    ///
    /// A damaged file is put aside, because the service knows the clients.
    ///
    /// # Errors
    /// If the file cannot be opened, belongs to another program, or has a newer schema.
    pub(crate) fn create(config: &HttpConfig) -> Result<Self, StoreError> {
        let mut local = match SqliteStore::create_kind(&config.cache, Kind::Answers) {
            Err(error @ StoreError::Damaged { .. }) => {
                let aside = config.cache.with_added_extension("damaged");
                tracing::warn!(
                    "[clients] cache: {error}; it is now {}, and a new one is begun",
                    aside.display()
                );
                fs::rename(&config.cache, &aside)?;
                SqliteStore::create_kind(&config.cache, Kind::Answers)
            }
            opened => opened,
        }
        .map_err(of_cache)?;
        local.keep_for(config.to_string().trim_end_matches('/'))?;
        Self::new(config, local)
    }

    /// Opens the existing file with the answers of the service of `config`.
    ///
    /// # Errors
    /// As [`Self::create`], or if the file is missing or damaged.
    pub(crate) fn open(config: &HttpConfig) -> Result<Self, StoreError> {
        Self::new(
            config,
            SqliteStore::open_kind(&config.cache, Kind::Answers).map_err(of_cache)?,
        )
    }

    fn new(config: &HttpConfig, local: SqliteStore) -> Result<Self, StoreError> {
        Ok(Self {
            remote: Remote::new(config)?,
            local,
            next_drop: Instant::ZERO,
        })
    }

    fn managed(&self) -> StoreError {
        StoreError::Managed {
            place: self.remote.place.to_string(),
        }
    }
}

impl Members for HttpStore {
    /// Returns the clients of the last answers.
    fn clients(&mut self) -> Result<Vec<StoredClient>, StoreError> {
        self.local.clients()
    }

    fn invitations(&mut self) -> Result<Vec<Invitation>, StoreError> {
        Ok(Vec::new())
    }

    fn invite(
        &mut self,
        _: &Offer<'_>,
        _: u64,
        _: &[IpNet],
        _: &[IpNet],
    ) -> Result<Invitation, StoreError> {
        Err(self.managed())
    }

    fn remove(&mut self, _: &str) -> Result<bool, StoreError> {
        Err(self.managed())
    }
}

impl ClientStore for HttpStore {
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, StoreError> {
        let found = self.remote.find(public_key)?;
        Ok(found.map(|found| found.client))
    }

    fn add(&mut self, _: &StoredClient) -> Result<(), StoreError> {
        Err(self.managed())
    }

    fn set_caps(&mut self, _: &str, _: Caps) -> Result<bool, StoreError> {
        Err(self.managed())
    }

    fn claim(
        &mut self,
        _: &Claim,
        _: &[u8; KEY_LEN],
        _: &[u8; KEY_LEN],
        _: u64,
    ) -> Result<(StoredClient, bool), Refusal> {
        Err(Refusal::Unknown)
    }

    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError> {
        self.remote.changes_since(mark)
    }

    fn id(&mut self) -> Result<String, StoreError> {
        self.local.id().map_err(of_cache)
    }

    fn add_usage(&mut self, batch: &UsageBatch) -> Result<(), StoreError> {
        self.local.add_usage(batch).map_err(of_cache)
    }

    fn usage(&mut self) -> Result<BTreeMap<String, Usage>, StoreError> {
        self.local.usage()
    }

    fn lookups(&self) -> Vec<Box<dyn Lookups>> {
        let remote = |_| Box::new(self.remote.another()) as Box<dyn Lookups>;
        (0..CONNECTIONS).map(remote).collect()
    }

    fn remembered(
        &mut self,
        oldest: Duration,
    ) -> Result<Vec<(StoredClient, Duration)>, StoreError> {
        let now = clock::unix_seconds();
        let found = self.local.clients()?;
        let found = found.into_iter().filter_map(|client| {
            // An answer from the future was written while the clock was wrong.
            let age = Duration::from_secs(now.abs_diff(client.added_at));
            let client = StoredClient {
                added_at: 0,
                ..client
            };
            (age < oldest).then_some((client, age))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(_, age)| *age);
        Ok(found)
    }

    fn remember(
        &mut self,
        answers: &BTreeMap<[u8; KEY_LEN], Option<StoredClient>>,
        oldest: Duration,
    ) -> Result<(), StoreError> {
        let (now, seconds) = (clock::now(), clock::unix_seconds());
        let at = |client: &StoredClient| StoredClient {
            added_at: seconds,
            ..client.clone()
        };
        let answers = answers
            .iter()
            .map(|(key, client)| (*key, client.as_ref().map(at)));
        let is_due = self.next_drop <= now;
        let oldest = is_due.then(|| seconds.saturating_sub(oldest.as_secs()));
        let replaced = self.local.replace(&answers.collect(), oldest);
        replaced.map_err(of_cache)?;
        if is_due {
            self.next_drop = now + DROP_EVERY;
        }
        Ok(())
    }
}

/// Names the key whose file is in trouble.
fn of_cache(mut error: StoreError) -> StoreError {
    if let StoreError::Unavailable { place, .. } = &mut error {
        *place = format!("[clients] cache {place}");
    }
    error
}

/// The service.
struct Remote {
    /// Address in messages.
    place: Arc<str>,
    target: Arc<Target>,
    link: Link,
}

impl Remote {
    fn new(config: &HttpConfig) -> Result<Self, StoreError> {
        let place: Arc<str> = config.to_string().into();
        let wrong = |what: String| StoreError::Unavailable {
            place: place.to_string(),
            what,
        };
        let tls = tls::config(&config.authorities).map_err(wrong)?;
        let target = Arc::new(Target::new(config, tls).map_err(wrong)?);
        Ok(Self {
            link: Link::new(Arc::clone(&target)),
            place,
            target,
        })
    }

    /// Returns the same service, with a connection of its own.
    fn another(&self) -> Self {
        Self {
            place: Arc::clone(&self.place),
            link: Link::new(Arc::clone(&self.target)),
            target: Arc::clone(&self.target),
        }
    }

    /// Asks for `resource`. Returns the body with its status, which is 200 or 404.
    fn get(
        &mut self,
        resource: &str,
        most: usize,
    ) -> Result<(StatusCode, Zeroizing<Vec<u8>>), StoreError> {
        let reply = self.link.get(resource, most);
        let reply = reply.map_err(|what| self.wrong(what))?;
        let status = reply.status;
        let hint = match status {
            StatusCode::OK | StatusCode::NOT_FOUND => return Ok((status, reply.body)),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ": write the token that it expects into token_file, and restart the gateway"
            }
            status if status.is_redirection() => {
                ": redirects are not followed; correct [clients] store"
            }
            _ => "",
        };
        Err(self.wrong(format!("it answers {status}{hint}")))
    }

    /// Reads a body. The message of the parser is not shown, because it may contain a part of a key.
    fn parsed<'a, T: Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T, StoreError> {
        serde_json::from_slice(body).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            self.wrong(format!(
                "its answer does not have the documented form (line {line}, column {column})"
            ))
        })
    }

    fn wrong(&self, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable {
            place: self.place.to_string(),
            what: what.into(),
        }
    }
}

impl Lookups for Remote {
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<Found>, StoreError> {
        let key = keys::encode_public(public_key);
        // The other characters of base64 stand for themselves in a query (RFC 3986 section 3.4).
        let in_query = key
            .replace('+', "%2B")
            .replace('/', "%2F")
            .replace('=', "%3D");
        let asked = self.get(&format!("clients?public_key={in_query}"), MOST_CLIENT)?;
        let (status, body) = asked;
        if status == StatusCode::NOT_FOUND {
            // Also a proxy, or another service at this address, answers so.
            let unknown: Result<Unknown, _> = serde_json::from_slice(&body);
            let is_meant = unknown.is_ok_and(|unknown| unknown.public_key == key);
            return if is_meant {
                Ok(None)
            } else {
                Err(self.wrong("it answers 404 without the key in question; correct the path in [clients] store"))
            };
        }
        let row: Row = self.parsed(&body)?;
        if row.public_key != key {
            return Err(self.wrong("its answer is about another key than it was asked about"));
        }
        let life = row
            .life
            .map(|seconds| seconds.clamp(SHORTEST_LIFE.as_secs_f64(), LONGEST_LIFE.as_secs_f64()))
            .map(Duration::from_secs_f64);
        let client = row.raw().checked()?;
        Ok(Some(Found { client, life }))
    }

    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError> {
        let asked = self.get(&format!("changes?after={}", mark.last), MOST_LIST)?;
        let (StatusCode::OK, body) = asked else {
            return Err(self.wrong(
                "it answers 404 to a question for changes; correct the path in [clients] store",
            ));
        };
        let list: List = self.parsed(&body)?;
        let is_id = (1..=MOST_ID).contains(&list.store.len());
        if !is_id || !(0..=LARGEST).contains(&list.last) {
            return Err(
                self.wrong("its list of changes has no id, or its last number is out of range")
            );
        }
        let keys = list.public_keys.iter().map(|key| keys::decode(key));
        let keys = keys
            .map(|key| key.map(|key| *key))
            .collect::<Result<Vec<_>, _>>();
        let keys = keys
            .map_err(|_| self.wrong("its list of changes has a text that is not a public key"))?;
        let now = Mark {
            store: list.store,
            last: list.last,
        };
        let changed = if now == *mark {
            Changed::Keys(Vec::new())
        } else if now.lists_all_since(mark, list.first) {
            Changed::Keys(keys)
        } else {
            Changed::Any
        };
        *mark = now;
        Ok(changed)
    }
}

/// A client as the service describes it.
#[derive(Deserialize)]
struct Row {
    name: String,
    public_key: String,
    preshared_key: Option<String>,
    allowed_ips: Vec<String>,
    /// Caps in bit/s.
    rate_up: Option<i64>,
    rate_down: Option<i64>,
    /// Time in seconds after which the gateway asks again.
    life: Option<f64>,
}

impl Row {
    fn raw(self) -> RawClient {
        RawClient {
            name: self.name,
            public_key: self.public_key,
            preshared_key: self.preshared_key.map(Zeroizing::new),
            allowed_ips: self.allowed_ips.join(","),
            rates: [self.rate_up, self.rate_down],
            added_at: 0,
        }
    }
}

/// That the service does not know a client.
#[derive(Deserialize)]
struct Unknown {
    public_key: String,
}

/// Clients that have changed.
#[derive(Deserialize)]
struct List {
    /// Identifies the list.
    store: String,
    /// Number of the oldest change that the service still knows.
    first: i64,
    /// Number of the last change in this answer.
    last: i64,
    public_keys: Vec<String>,
}

/// Number of connections: 16 for new clients, which are 320 a second if each look-up takes 50 ms, 8 for known clients, and
/// one for lists of changes.
const CONNECTIONS: usize = 25;
/// Largest description of a client in bytes.
const MOST_CLIENT: usize = 64 * 1024;
/// Largest list of changes in bytes: 10 000 keys have half of it.
const MOST_LIST: usize = 1024 * 1024;
/// Longest id of a service.
const MOST_ID: usize = 64;
/// Largest number of a change: the largest one that every reader of JSON has exactly.
const LARGEST: i64 = (1 << 53) - 1;
/// Bounds of the time after which the gateway asks again: a removal takes effect within seconds without a list of changes, and
/// no answer is older than a day.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Interval at which answers are dropped that are too old to be used.
const DROP_EVERY: Duration = Duration::from_secs(3600);
