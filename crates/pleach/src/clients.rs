//! Clients of a gateway in a store, so that a gateway *asks* for a client instead of reading a list of all clients.
//!
//! A gateway asks at the first handshake of a client, with the client's public key ([`ClientStore::find`]). It keeps
//! the answer for a bounded time, and learns of changes by asking for them once a second
//! ([`ClientStore::changes_since`]). So nothing is pushed to gateways: a gateway that was away has missed nothing, and
//! its memory depends on the clients that are connected, not on the clients that exist.
//!
//! | module | contents |
//! | --- | --- |
//! | [`sqlite`] | the store in an SQLite file |
//! | [`postgres`] | the store in a PostgreSQL database |
//! | [`http`] | a service that is asked by HTTP, and the file with its answers |
//! | [`decisions`], [`raw`] | what every kind of store decides; rows as they are in a database, and their checks |
//! | [`tls`] | how connections to stores on other hosts are encrypted |
//! | [`files`] | the members of a gateway without a store: files of `[invitations]` |
//!
//! Format, columns and rules for other programs that write to the store: `docs/clients.md`.

mod decisions;
pub(crate) mod files;
pub(crate) mod http;
mod postgres;
mod raw;
#[cfg(test)]
#[path = "../tests/common/service.rs"]
pub(crate) mod service;
pub(crate) mod sqlite;
#[cfg(test)]
mod suite;
mod tls;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::invitation::Claim,
    time::Instant,
};

use self::{http::HttpStore, postgres::PostgresStore, sqlite::SqliteStore};
use crate::{
    config::{GatewayConfig, StorePlace},
    keys::{KEY_LEN, SecretKey},
    onboard::store::{Invitation, Offer, Refusal, Store},
};

/// A client of a gateway as a store describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredClient {
    /// Name of the client; unique in the store.
    pub(crate) name: String,
    /// Static public key of the client; unique in the store.
    pub(crate) public_key: [u8; KEY_LEN],
    /// Pre-shared key of client and gateway.
    pub(crate) preshared_key: Option<SecretKey>,
    /// Inner addresses of the client; at least one.
    pub(crate) allowed_ips: Vec<IpNet>,
    /// Rate caps.
    pub(crate) caps: Caps,
    /// Time at which the client was added, in seconds since 1970.
    pub(crate) added_at: u64,
}

impl StoredClient {
    /// Whether a session with `self` is also a session with `other`: only the caps and the time may differ.
    pub(crate) fn is_same_peer(&self, other: &Self) -> bool {
        let (caps, added_at) = (other.caps, other.added_at);
        let same = Self {
            caps,
            added_at,
            ..self.clone()
        };
        same == *other
    }
}

/// What a store says about a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The client.
    pub(crate) client: StoredClient,
    /// Time after which the gateway asks again; `None`: the usual time.
    pub(crate) life: Option<Duration>,
}

impl From<StoredClient> for Found {
    fn from(client: StoredClient) -> Self {
        Self { client, life: None }
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A row that another program has written does not have the documented form.
    #[error("client {name:?}: {what}; correct its row in the store")]
    BadRow {
        /// Name in the row.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The file is damaged.
    #[error("{place}: damaged ({what}); {remedy}")]
    Damaged {
        /// File of the store.
        place: String,
        /// What the user can do.
        remedy: &'static str,
        /// Message of the database.
        what: String,
    },
    /// There is a client with this name or key.
    #[error("there is a client with this name or key already")]
    Exists,
    /// The database belongs to another program.
    #[error("{place}: the database of another program; name another one in [clients] {key}")]
    Foreign {
        /// File or name of the database.
        place: String,
        /// Key that names it.
        key: &'static str,
    },
    /// No address of a network is free.
    #[error("no free address")]
    Full,
    /// The operating system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another program manages the clients.
    #[error(
        "the service {place} manages the clients of this gateway; add, change and remove them there"
    )]
    Managed {
        /// Address of the service.
        place: String,
    },
    /// The schema is newer than this program.
    #[error(
        "{place}: its schema has version {found}, but this program knows versions up to {known}; update pleach on this host"
    )]
    Newer {
        /// File or name of the database.
        place: String,
        /// Version in the database.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// An address belongs to another client.
    #[error(
        "{net} overlaps {other} of client {owner:?}; give every inner address to one client only"
    )]
    Overlap {
        /// Address of the client to be added.
        net: IpNet,
        /// Address of the other client.
        other: IpNet,
        /// Name of the other client.
        owner: String,
    },
    /// The store cannot be read or written at present.
    #[error("{place}: {what}")]
    Unavailable {
        /// File or name of the database.
        place: String,
        /// Message of the operating system or the database.
        what: String,
    },
}

/// What the commands `pleach gateway clients`, `invite` and `remove` do, whatever the source of clients is.
pub(crate) trait Members: Send {
    /// Returns all clients, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn clients(&mut self) -> Result<Vec<StoredClient>, StoreError>;

    /// Returns all invitations, including expired ones, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn invitations(&mut self) -> Result<Vec<Invitation>, StoreError>;

    /// Makes an invitation from `offer`, with addresses of `networks` that neither the store nor `taken` contains.
    /// Withdraws an open invitation for the same name, and removes expired ones. `now`: seconds since 1970.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if there is a client of this name, [`StoreError::Full`] if a network is full.
    fn invite(
        &mut self,
        offer: &Offer<'_>,
        now: u64,
        networks: &[IpNet],
        taken: &[IpNet],
    ) -> Result<Invitation, StoreError>;

    /// Removes the client `name` or its open invitation. Returns whether one of them existed.
    ///
    /// # Errors
    /// If the store cannot be changed.
    fn remove(&mut self, name: &str) -> Result<bool, StoreError>;
}

/// A store that a gateway asks. A look-up must not take longer with more clients.
pub(crate) trait ClientStore: Members {
    /// Returns the client with the public key `public_key`.
    ///
    /// # Errors
    /// If the store cannot be read, or if the client's row is wrong.
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, StoreError>;

    /// Adds `client`.
    ///
    /// # Errors
    /// [`StoreError::Exists`] or [`StoreError::Overlap`] if another client has its name, key or an address of it.
    fn add(&mut self, client: &StoredClient) -> Result<(), StoreError>;

    /// Sets the caps of the client `name`. Returns whether the client existed.
    ///
    /// # Errors
    /// If the store cannot be changed.
    fn set_caps(&mut self, name: &str, caps: Caps) -> Result<bool, StoreError>;

    /// Uses up the invitation that `claim` proves, for the owner of `public_key`. The client is on disk when the
    /// function returns. The same client may claim the invitation again. Also returns whether the client is new.
    ///
    /// # Errors
    /// The reason why the claim is refused; nothing has been changed then.
    fn claim(
        &mut self,
        claim: &Claim,
        public_key: &[u8; KEY_LEN],
        gateway_key: &[u8; KEY_LEN],
        now: u64,
    ) -> Result<(StoredClient, bool), Refusal>;

    /// Returns which clients have changed since `mark`, and sets `mark` to the present.
    ///
    /// # Errors
    /// If the store cannot be read; `mark` is unchanged then.
    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError>;

    /// Returns what identifies the store, so that bytes for it are not added to another one.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn id(&mut self) -> Result<String, StoreError>;

    /// Adds the bytes of `batch` to the counters, unless this batch was added before.
    ///
    /// # Errors
    /// If the store cannot be changed. It is then not known whether the batch was added, so the same batch must be
    /// tried again.
    fn add_usage(&mut self, batch: &UsageBatch) -> Result<(), StoreError>;

    /// Returns the counters of all clients that ever carried a byte, by name.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn usage(&mut self) -> Result<BTreeMap<String, Usage>, StoreError>;

    /// Returns the part of the store that says where clients are; `None` if only one gateway can use the store.
    fn places(&mut self) -> Option<&mut dyn Places> {
        None
    }

    /// Returns handles by which as many threads ask the store at the same time. Empty if the store is fast, and is asked
    /// by [`Self::find`] and [`Self::changes_since`].
    fn lookups(&self) -> Vec<Box<dyn Lookups>> {
        Vec::new()
    }

    /// Returns the answers of former runs that are younger than `oldest`, each with its age, the newest ones first.
    ///
    /// # Errors
    /// If the answers cannot be read.
    fn remembered(
        &mut self,
        oldest: Duration,
    ) -> Result<Vec<(StoredClient, Duration)>, StoreError> {
        let _ = oldest;
        Ok(Vec::new())
    }

    /// Remembers answers for later runs; `None`: the store does not know the client any more. Drops answers that are
    /// older than `oldest`.
    ///
    /// # Errors
    /// If the answers cannot be written. None of them is remembered then.
    fn remember(
        &mut self,
        answers: &BTreeMap<[u8; KEY_LEN], Option<StoredClient>>,
        oldest: Duration,
    ) -> Result<(), StoreError> {
        let _ = (answers, oldest);
        Ok(())
    }
}

/// What one of several threads asks a store, each with a connection of its own.
pub(crate) trait Lookups: Send {
    /// As [`ClientStore::find`].
    ///
    /// # Errors
    /// As there.
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<Found>, StoreError>;

    /// As [`ClientStore::changes_since`].
    ///
    /// # Errors
    /// As there.
    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError>;
}

/// Clients that have connected to another gateway, each with the time of that, or an earlier one.
pub(crate) type Departures = BTreeMap<[u8; KEY_LEN], Instant>;

/// What a store knows about clients that have connected to a gateway.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// Clients that have connected to another gateway since.
    pub(crate) departed: Departures,
    /// Clients that another gateway may still announce, as [`Places::contested`] returns them.
    pub(crate) contested: BTreeSet<[u8; KEY_LEN]>,
}

/// The part of a store that says at which of several gateways each client has connected last.
///
/// A gateway writes where its clients are, and asks for those that have left it. Nothing is pushed to other gateways.
pub(crate) trait Places {
    /// Writes that clients have connected to `gateway`, each at the given time. Those that have connected elsewhere later stay
    /// there.
    ///
    /// # Errors
    /// If the store cannot be changed. It is then not known which arrivals were written; to write them again does no harm.
    fn arrive(
        &mut self,
        gateway: &str,
        arrived: &BTreeMap<[u8; KEY_LEN], Instant>,
    ) -> Result<Arrived, StoreError>;

    /// Returns the clients that were at `gateway` and have connected to another one since the last call.
    ///
    /// # Errors
    /// If the store cannot be changed.
    fn departed(&mut self, gateway: &str) -> Result<Departures, StoreError>;

    /// Returns those of `keys` that are at `gateway` and were at another one before, which has not asked since
    /// ([`Self::departed`]). So it may still announce them.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn contested(
        &mut self,
        gateway: &str,
        keys: &BTreeSet<[u8; KEY_LEN]>,
    ) -> Result<BTreeSet<[u8; KEY_LEN]>, StoreError>;

    /// Returns for each client that ever connected its gateway, and since when, in milliseconds since 1970.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn all(&mut self) -> Result<BTreeMap<[u8; KEY_LEN], (String, u64)>, StoreError>;
}

/// A moment in the life of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Identifies the store: another file, or the same file after a restore, has another id or fewer changes.
    store: String,
    /// Number of the last change.
    last: i64,
}

impl Mark {
    /// Whether the store's list of changes, which begins with the number `first`, has all changes from `before` to this
    /// moment, and not too many.
    fn lists_all_since(&self, before: &Self, first: i64) -> bool {
        let is_later = self.store == before.store && self.last > before.last;
        is_later && first <= before.last + 1 && self.last - before.last <= MOST_CHANGES
    }
}

/// Clients that have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Any client may have changed.
    Any,
    /// The clients with these public keys were added, changed or removed. May be empty.
    Keys(Vec<[u8; KEY_LEN]>),
}

/// Bytes to be added to the counters of clients, once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageBatch {
    /// Id of the process that has counted the bytes.
    pub(crate) run: String,
    /// Number of the batch in this run, from 1 without gaps.
    pub(crate) number: i64,
    /// Time at which the batch was made, in seconds since 1970.
    pub(crate) at: u64,
    /// Bytes to be added, by name of the client.
    pub(crate) usage: BTreeMap<String, Usage>,
}

/// Opens what the commands for the members of `gateway` work on. `None` if the gateway has clients in its configuration
/// only. `create`: whether a missing store is created.
///
/// # Errors
/// If the store cannot be opened.
pub(crate) fn members(
    gateway: &GatewayConfig,
    create: bool,
) -> Result<Option<Box<dyn Members>>, StoreError> {
    if gateway.store.is_some() {
        let store = store(gateway, create)?;
        return Ok(store.map(|store| store as Box<dyn Members>));
    }
    let directory = gateway.invitations.as_ref();
    let directory = directory.and_then(|invitations| invitations.store.as_ref());
    let opened = directory.map(|directory| Store::open(directory));
    let opened = opened.transpose()?;
    Ok(opened.map(|store| Box::new(store) as Box<dyn Members>))
}

/// Opens the store of `gateway`. `None` if the gateway has no store. `create`: whether a missing store is created.
///
/// # Errors
/// If the store cannot be opened.
pub(crate) fn store(
    gateway: &GatewayConfig,
    create: bool,
) -> Result<Option<Box<dyn ClientStore>>, StoreError> {
    let Some(config) = &gateway.store else {
        return Ok(None);
    };
    Ok(Some(match (&config.place, create) {
        (StorePlace::Http(service), true) => Box::new(HttpStore::create(service)?),
        (StorePlace::Http(service), false) => Box::new(HttpStore::open(service)?),
        (StorePlace::Postgres(database), true) => Box::new(PostgresStore::create(database)?),
        (StorePlace::Postgres(database), false) => Box::new(PostgresStore::open(database)?),
        (StorePlace::Sqlite(path), true) => Box::new(SqliteStore::create(path)?),
        (StorePlace::Sqlite(path), false) => Box::new(SqliteStore::open(path)?),
    }))
}

/// Number of changes above which a gateway asks about all of its clients instead.
const MOST_CHANGES: i64 = 10_000;
/// Number of processes whose last batch a store knows.
const MOST_RUNS: i64 = 1000;
