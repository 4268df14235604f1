//! The store of clients in an SQLite file.
//!
//! The schema has a version, `user_version` of the file. Opening the store applies the migrations that the file lacks
//! ([`MIGRATIONS`]); a newer file is refused. `application_id` says that the file is such a store.
//!
//! The file may be moved away, replaced or restored at any time. An open file that was moved can still be read, so each
//! call compares the file at the path with the open one, and opens it again if it is another one. A file that is missing
//! or empty becomes a store by [`SqliteStore::create`] only, never later: an empty store in place of a lost one would
//! disconnect all clients.
//!
//! Every change is one transaction, and on disk when the call returns. Other programs may read and write the file at the
//! same time; a call waits for them for at most [`BUSY`].
//!
//! A gateway that asks a [service](super::http) keeps the answers in such a file, too. It is of another [`Kind`], so that
//! neither is taken for the other.

mod rows;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::invitation::Claim,
};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};

use super::{
    Changed, ClientStore, MOST_RUNS, Mark, Members, StoreError, StoredClient, UsageBatch,
    decisions,
    raw::{bps, signed},
};
use crate::{
    keys::{self, KEY_LEN},
    onboard::store::{Invitation, Offer, Refusal},
};

/// A store of clients in an SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    path: PathBuf,
    kind: Kind,
    /// The open file, and its device and inode. `None` while the file cannot be opened.
    open: Option<(Connection, (u64, u64))>,
    /// Whether another file was opened at the path since the last question for changes.
    is_other: bool,
}

/// What the clients in a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The clients of the gateway. Others may change them.
    Store,
    /// Answers of a service. `added_at` of a client is the time of the answer; `id` of the store is the service's address.
    Answers,
}

impl Kind {
    /// Returns the `application_id` of the file: letters in ASCII.
    const fn application(self) -> i64 {
        match self {
            // plch
            Self::Store => 0x706c_6368,
            // plca
            Self::Answers => 0x706c_6361,
        }
    }

    /// Returns the key of `[clients]` that names the file.
    const fn key(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Answers => "cache",
        }
    }

    /// Returns what to do about a damaged file.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Store => "restore a copy, or remove the file to begin with an empty store",
            Self::Answers => {
                "restart the gateway, which then keeps answers and bytes in a new [clients] cache"
            }
        }
    }

    /// Returns the longest wait for another program that has locked the file.
    const fn busy(self) -> Duration {
        match self {
            Self::Store => BUSY,
            Self::Answers => BUSY_ANSWERS,
        }
    }
}

impl SqliteStore {
    /// Opens the store at `path`. Creates it and its directory if they are missing, and applies migrations.
    ///
    /// # Errors
    /// If the file cannot be opened, is damaged, belongs to another program, or has a newer schema.
    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        Self::create_kind(path, Kind::Store)
    }

    /// As [`Self::create`], for a file of `kind`.
    pub(super) fn create_kind(path: &Path, kind: Kind) -> Result<Self, StoreError> {
        if let Some(directory) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(directory);
            made.map_err(|error| unavailable(path, &error))?;
        }
        // The file contains pre-shared keys.
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let created = options.open(path);
        created.map_err(|error| unavailable(path, &error))?;
        Self::first(path, kind, true)
    }

    /// Opens the store at `path`, which must exist, and applies migrations.
    ///
    /// # Errors
    /// As [`Self::create`], or if the file is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_kind(path, Kind::Store)
    }

    /// As [`Self::open`], for a file of `kind`.
    pub(super) fn open_kind(path: &Path, kind: Kind) -> Result<Self, StoreError> {
        Self::first(path, kind, false)
    }

    fn first(path: &Path, kind: Kind, may_be_empty: bool) -> Result<Self, StoreError> {
        let found = fs::metadata(path).map_err(|error| unavailable(path, &error))?;
        let connection = connect(path, kind, may_be_empty)?;
        Ok(Self {
            path: path.to_owned(),
            kind,
            open: Some((connection, (found.dev(), found.ino()))),
            is_other: true,
        })
    }

    /// Returns the connection to the file that is at the path now.
    fn connection(&mut self) -> Result<&mut Connection, StoreError> {
        let found = fs::metadata(&self.path).map_err(|error| {
            self.open = None;
            unavailable(&self.path, &error)
        })?;
        let identity = (found.dev(), found.ino());
        if self.open.as_ref().is_none_or(|(_, open)| *open != identity) {
            self.open = None;
            self.is_other = true;
            let connection = connect(&self.path, self.kind, false)?;
            self.open = Some((connection, identity));
        }
        match &mut self.open {
            Some((connection, _)) => Ok(connection),
            None => Err(unavailable(&self.path, &"not open")),
        }
    }

    /// Runs `work` on the open file.
    fn read<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let result = work(self.connection()?);
        result.map_err(|failure| self.error(failure))
    }

    /// Runs `work` in a transaction, which is committed if `work` succeeds.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let connection = self.connection()?;
        let result = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(Failure::from)
            .and_then(|mut transaction| {
                let value = work(&mut transaction)?;
                transaction.commit()?;
                Ok(value)
            });
        result.map_err(|failure| self.error(failure))
    }

    /// Replaces the answers about the clients with these keys; `None`: the service does not know the client any more. Drops
    /// answers from before `oldest`, in seconds since 1970, which takes longer with more of them.
    pub(super) fn replace(
        &mut self,
        answers: &BTreeMap<[u8; KEY_LEN], Option<StoredClient>>,
        oldest: Option<u64>,
    ) -> Result<(), StoreError> {
        self.write(|file| {
            for (key, client) in answers {
                rows::replace(file, key, client.as_ref())?;
            }
            if let Some(oldest) = oldest {
                file.execute("DELETE FROM clients WHERE added_at < ?1", [signed(oldest)])?;
            }
            Ok(())
        })
    }

    /// Says whose answers the file has, and drops those of another service.
    pub(super) fn keep_for(&mut self, service: &str) -> Result<(), StoreError> {
        self.write(|file| {
            let is_other = file.execute("UPDATE store SET id = ?1 WHERE id <> ?1", [service])?;
            if is_other > 0 {
                file.execute("DELETE FROM clients", [])?;
            }
            Ok(())
        })
    }

    fn error(&mut self, failure: Failure) -> StoreError {
        match failure {
            Failure::Database(error) => {
                // The next call opens the file again, which finds out what is the matter with it.
                self.open = None;
                database_error(&self.path, self.kind, &error)
            }
            Failure::Store(error) => error,
        }
    }
}

/// Why work on a file failed.
pub(super) enum Failure {
    Database(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Failure {
    /// A value that has another type than its column is a mistake in its row, and not a broken store.
    fn from(error: rusqlite::Error) -> Self {
        let is_mistake = matches!(
            error,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::Utf8Error(..)
        );
        if is_mistake {
            return Self::Store(StoreError::BadRow {
                name: "?".to_owned(),
                what: error.to_string(),
            });
        }
        Self::Database(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Members for SqliteStore {
    fn clients(&mut self) -> Result<Vec<StoredClient>, StoreError> {
        self.read(rows::clients)
    }

    fn invitations(&mut self) -> Result<Vec<Invitation>, StoreError> {
        self.read(rows::invitations)
    }

    fn invite(
        &mut self,
        offer: &Offer<'_>,
        now: u64,
        networks: &[IpNet],
        taken: &[IpNet],
    ) -> Result<Invitation, StoreError> {
        self.write(|file| decisions::invite(file, offer, now, networks, taken))
    }

    fn remove(&mut self, name: &str) -> Result<bool, StoreError> {
        self.write(|file| {
            let clients = file.execute("DELETE FROM clients WHERE name = ?1", [name])?;
            let open = file.execute("DELETE FROM invitations WHERE name = ?1", [name])?;
            Ok(clients + open > 0)
        })
    }
}

impl ClientStore for SqliteStore {
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, StoreError> {
        self.read(|connection| rows::client_of(connection, public_key))
    }

    fn add(&mut self, client: &StoredClient) -> Result<(), StoreError> {
        self.write(|file| decisions::add(file, client))
    }

    fn set_caps(&mut self, name: &str, caps: Caps) -> Result<bool, StoreError> {
        self.write(|file| {
            let changed = file.execute(
                "UPDATE clients SET rate_up = ?2, rate_down = ?3 WHERE name = ?1",
                params![name, bps(caps.up), bps(caps.down)],
            )?;
            Ok(changed > 0)
        })
    }

    fn claim(
        &mut self,
        claim: &Claim,
        public_key: &[u8; KEY_LEN],
        gateway_key: &[u8; KEY_LEN],
        now: u64,
    ) -> Result<(StoredClient, bool), Refusal> {
        self.write(|file| decisions::claim(file, claim, public_key, gateway_key, now))?
    }

    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError> {
        self.connection()?;
        let is_other = self.is_other;
        let (now, changed) = self.read(|connection| {
            let now = Mark {
                store: connection.query_row("SELECT id FROM store", [], |row| row.get(0))?,
                last: connection.query_row(
                    "SELECT coalesce(max(number), 0) FROM changes",
                    [],
                    |row| row.get(0),
                )?,
            };
            if now == *mark && !is_other {
                return Ok((now, Changed::Keys(Vec::new())));
            }
            let first: i64 = connection.query_row(
                "SELECT coalesce(min(number), 0) FROM changes",
                [],
                |row| row.get(0),
            )?;
            if is_other || !now.lists_all_since(mark, first) {
                return Ok((now, Changed::Any));
            }
            let mut select =
                connection.prepare("SELECT DISTINCT public_key FROM changes WHERE number > ?1")?;
            let keys = select.query_map([mark.last], |row| row.get::<_, String>(0))?;
            let keys: Vec<String> = keys.collect::<Result<_, _>>()?;
            let keys = keys.iter().filter_map(|key| keys::decode(key).ok());
            Ok((now, Changed::Keys(keys.map(|key| *key).collect())))
        })?;
        self.is_other = false;
        *mark = now;
        Ok(changed)
    }

    fn id(&mut self) -> Result<String, StoreError> {
        self.read(|file| Ok(file.query_row("SELECT id FROM store", [], |row| row.get(0))?))
    }

    fn add_usage(&mut self, batch: &UsageBatch) -> Result<(), StoreError> {
        self.write(|file| {
            file.execute(
                "INSERT INTO runs VALUES (?1, ?2 - 1, ?3) ON CONFLICT DO NOTHING",
                params![batch.run, batch.number, signed(batch.at)],
            )?;
            let is_new = file.execute(
                "UPDATE runs SET batch = ?2, at = ?3 WHERE id = ?1 AND batch < ?2",
                params![batch.run, batch.number, signed(batch.at)],
            )?;
            if is_new == 0 {
                // The batch was added before, but its writer has not seen it.
                return Ok(());
            }
            let mut add = file.prepare(
                "INSERT INTO usage VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO UPDATE SET
                 up_bytes = up_bytes + excluded.up_bytes, down_bytes = down_bytes + excluded.down_bytes,
                 at = excluded.at",
            )?;
            for (name, usage) in &batch.usage {
                let (up, down) = (signed(usage.up_bytes), signed(usage.down_bytes));
                add.execute(params![name, up, down, signed(batch.at)])?;
            }
            file.execute(
                "DELETE FROM runs WHERE id <> ?2 AND id NOT IN (SELECT id FROM runs ORDER BY at DESC LIMIT ?1)",
                params![MOST_RUNS, batch.run],
            )?;
            Ok(())
        })
    }

    fn usage(&mut self) -> Result<BTreeMap<String, Usage>, StoreError> {
        self.read(|connection| {
            let mut select =
                connection.prepare("SELECT name, up_bytes, down_bytes FROM usage ORDER BY name")?;
            let found = select.query_map([], |row| {
                let bytes = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                let usage = Usage {
                    up_bytes: bytes(1)?,
                    down_bytes: bytes(2)?,
                };
                Ok((row.get(0)?, usage))
            })?;
            Ok(found.collect::<Result<_, _>>()?)
        })
    }
}

/// Opens the existing file at `path`, and applies the migrations that it lacks. `may_be_empty`: makes a store of an empty
/// file.
fn connect(path: &Path, kind: Kind, may_be_empty: bool) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let mut connection = opened.map_err(|error| database_error(path, kind, &error))?;
    let migrated = migrate(&mut connection, path, kind, may_be_empty);
    migrated.map_err(|failure| match failure {
        Failure::Database(error) => database_error(path, kind, &error),
        Failure::Store(error) => error,
    })?;
    Ok(connection)
}

fn migrate(
    connection: &mut Connection,
    path: &Path,
    kind: Kind,
    may_be_empty: bool,
) -> Result<(), Failure> {
    connection.busy_timeout(kind.busy())?;
    let known = signed(MIGRATIONS.len() as u64);
    let (application, version) = identity(connection)?;
    if application == kind.application() && version <= known {
        // A file with a journal of its own can be moved and copied as one file while nobody writes.
        connection.execute_batch(JOURNAL)?;
        if version == known {
            return Ok(());
        }
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated the file meanwhile.
    let (application, version) = identity(&transaction)?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_new = application == 0 && version == 0 && tables == 0;
    if is_new && !may_be_empty {
        return Err(unavailable(
            path,
            &"the file is empty; restore it with `mv` from a copy beside it",
        )
        .into());
    }
    if application != kind.application() && !is_new {
        let (place, key) = (shown(path), kind.key());
        return Err(StoreError::Foreign { place, key }.into());
    }
    if version > known {
        let (place, found) = (shown(path), version);
        return Err(StoreError::Newer {
            place,
            found,
            known,
        }
        .into());
    }
    let applied = usize::try_from(version).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(applied) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", kind.application())?;
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    connection.execute_batch(JOURNAL)?;
    Ok(())
}

fn identity(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let value = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    Ok((value("application_id")?, value("user_version")?))
}

fn database_error(path: &Path, kind: Kind, error: &rusqlite::Error) -> StoreError {
    let is_damage = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    );
    if is_damage {
        let (place, what) = (shown(path), error.to_string());
        let remedy = kind.remedy();
        return StoreError::Damaged {
            place,
            remedy,
            what,
        };
    }
    unavailable(path, error)
}

fn unavailable(path: &Path, what: &impl ToString) -> StoreError {
    StoreError::Unavailable {
        place: shown(path),
        what: what.to_string(),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The statements that make a schema of version n + 1 of one of version n, in order. A migration never changes after its
/// release.
const MIGRATIONS: [&str; 2] = [include_str!("sqlite/1.sql"), include_str!("sqlite/2.sql")];
/// How the file is written.
const JOURNAL: &str = "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL;";
/// Longest wait for another program that has locked the file.
const BUSY: Duration = Duration::from_secs(2);
/// The same for answers of a service, which are written between questions.
const BUSY_ANSWERS: Duration = Duration::from_millis(200);
