//! The store of clients in a PostgreSQL database, which several gateways may share.
//!
//! The schema has a version, in the table `store`. A gateway that starts applies the migrations that the database lacks
//! ([`MIGRATIONS`]); a newer schema is refused. A database without the tables becomes a store by
//! [`PostgresStore::create`] only, never later: an empty store in place of a lost one would disconnect all clients.
//!
//! Each change is one transaction. Transactions that change clients or invitations follow each other, whoever makes
//! them: they hold an advisory lock, which the triggers of the table take as well. So what [`decisions`] has read is true
//! until its transaction ends, and changes become visible in the order of their numbers.
//!
//! A broken connection is made again by the next call. A call takes at most about [`CONNECT_WITHIN`] and [`ANSWER_WITHIN`].
//! Messages of the database are reported without their details, which may contain rows with keys.

mod rows;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, error::Error as _, fmt::Write as _, sync::Arc, time::Duration};

use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::invitation::Claim,
};
use postgres::{Client, Config, NoTls, Transaction, config::SslMode, error::SqlState};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    Changed, ClientStore, MOST_CHANGES, MOST_RUNS, Mark, Members, StoreError, StoredClient,
    UsageBatch, decisions,
    raw::{bps, signed},
};
use crate::{
    config::PostgresConfig,
    keys::{self, KEY_LEN},
    onboard::store::{Invitation, Offer, Refusal},
};

/// A store of clients in a PostgreSQL database.
pub(crate) struct PostgresStore {
    config: Config,
    /// How connections are encrypted; `None` for connections within this host.
    tls: Option<MakeRustlsConnect>,
    /// Name of the database in messages.
    place: String,
    /// `None` while there is no connection.
    client: Option<Client>,
}

impl PostgresStore {
    /// Opens the store that `config` describes. Makes a store of a database without tables, and applies migrations.
    ///
    /// # Errors
    /// If the database cannot be reached, belongs to another program, or has a newer schema.
    pub(crate) fn create(config: &PostgresConfig) -> Result<Self, StoreError> {
        Self::first(config, true)
    }

    /// Opens the store that `config` describes, and applies migrations.
    ///
    /// # Errors
    /// As [`Self::create`], or if the database has no tables.
    pub(crate) fn open(config: &PostgresConfig) -> Result<Self, StoreError> {
        Self::first(config, false)
    }

    fn first(config: &PostgresConfig, may_be_empty: bool) -> Result<Self, StoreError> {
        let place = config.to_string();
        let wrong = |what: String| unavailable(&place, what);
        let mut settings: Config = config
            .connection
            .parse()
            .map_err(|error| wrong(text(&error)))?;
        if let Some(password) = &config.password {
            settings.password(password.expose());
        }
        settings
            .application_name("pleach")
            .connect_timeout(CONNECT_WITHIN)
            .tcp_user_timeout(ANSWER_WITHIN)
            .keepalives_idle(KEEPALIVE);
        if settings.get_options().is_none() {
            let ms = ANSWER_WITHIN.as_millis();
            settings.options(&format!("-c statement_timeout={ms} -c lock_timeout={ms}"));
        }
        let tls = match &config.ca_file {
            Some(file) => {
                settings.ssl_mode(SslMode::Require);
                let read = CertificateDer::pem_file_iter(file)
                    .and_then(|found| found.collect::<Result<Vec<_>, _>>());
                let read = read.map_err(|error| wrong(format!("{}: {error}", file.display())))?;
                Some(encryption(read).map_err(|error| wrong(error.to_string()))?)
            }
            None => {
                settings.ssl_mode(SslMode::Disable);
                None
            }
        };
        let mut this = Self {
            config: settings,
            tls,
            place,
            client: None,
        };
        let mut client = this.connect()?;
        let migrated = migrate(&mut client, &this.place, may_be_empty);
        migrated.map_err(|failure| this.error(failure))?;
        this.client = Some(client);
        Ok(this)
    }

    fn connect(&self) -> Result<Client, StoreError> {
        let connected = match &self.tls {
            Some(tls) => self.config.connect(tls.clone()),
            None => self.config.connect(NoTls),
        };
        connected.map_err(|error| unavailable(&self.place, text(&error)))
    }

    /// Runs `work` on a connection.
    fn read<T>(
        &mut self,
        work: impl FnOnce(&mut Client) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let mut client = self.connect()?;
                // Another database may be at this place now.
                let migrated = migrate(&mut client, &self.place, false);
                migrated.map_err(|failure| self.error(failure))?;
                client
            }
        };
        let result = work(self.client.insert(client));
        result.map_err(|failure| self.error(failure))
    }

    /// Runs `work` in a transaction, which is committed if `work` succeeds. No other transaction changes clients or
    /// invitations meanwhile.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.read(|client| {
            let mut transaction = client.transaction()?;
            transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
            let value = work(&mut transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    fn error(&mut self, failure: Failure) -> StoreError {
        match failure {
            Failure::Database(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                StoreError::Exists
            }
            Failure::Database(error) => {
                // The next call connects again.
                self.client = None;
                unavailable(&self.place, text(&error))
            }
            Failure::Store(error) => error,
        }
    }
}

/// Why work on the database failed.
pub(super) enum Failure {
    Database(postgres::Error),
    Store(StoreError),
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Members for PostgresStore {
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
        self.write(|database| decisions::invite(database, offer, now, networks, taken))
    }

    fn remove(&mut self, name: &str) -> Result<bool, StoreError> {
        self.write(|database| {
            let clients = database.execute("DELETE FROM clients WHERE name = $1", &[&name])?;
            let open = database.execute("DELETE FROM invitations WHERE name = $1", &[&name])?;
            Ok(clients + open > 0)
        })
    }
}

impl ClientStore for PostgresStore {
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, StoreError> {
        self.read(|client| rows::client_of(client, public_key))
    }

    fn add(&mut self, client: &StoredClient) -> Result<(), StoreError> {
        self.write(|database| decisions::add(database, client))
    }

    fn set_caps(&mut self, name: &str, caps: Caps) -> Result<bool, StoreError> {
        self.write(|database| {
            let changed = database.execute(
                "UPDATE clients SET rate_up = $2, rate_down = $3 WHERE name = $1",
                &[&name, &bps(caps.up), &bps(caps.down)],
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
        self.write(|database| decisions::claim(database, claim, public_key, gateway_key, now))?
    }

    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError> {
        let (now, changed) = self.read(|client| {
            let row = client.query_one(
                "SELECT id, coalesce((SELECT max(number) FROM changes), 0),
                 coalesce((SELECT min(number) FROM changes), 0) FROM store",
                &[],
            )?;
            let now = Mark {
                store: row.try_get(0)?,
                last: row.try_get(1)?,
            };
            let first: i64 = row.try_get(2)?;
            if now == *mark {
                return Ok((now, Changed::Keys(Vec::new())));
            }
            let has_all = now.store == mark.store && now.last > mark.last && first <= mark.last + 1;
            if !has_all || now.last - mark.last > MOST_CHANGES {
                return Ok((now, Changed::Any));
            }
            let found = client.query(
                "SELECT public_key FROM changes WHERE number > $1 AND number <= $2
                 GROUP BY public_key ORDER BY min(number)",
                &[&mark.last, &now.last],
            )?;
            let mut keys = Vec::new();
            for row in found {
                keys.extend(keys::decode(row.try_get(0)?).ok().map(|key| *key));
            }
            Ok((now, Changed::Keys(keys)))
        })?;
        *mark = now;
        Ok(changed)
    }

    fn add_usage(&mut self, batch: &UsageBatch) -> Result<(), StoreError> {
        let names: Vec<&str> = batch.usage.keys().map(String::as_str).collect();
        let up: Vec<i64> = batch
            .usage
            .values()
            .map(|usage| signed(usage.up_bytes))
            .collect();
        let down: Vec<i64> = batch
            .usage
            .values()
            .map(|usage| signed(usage.down_bytes))
            .collect();
        let at = signed(batch.at);
        self.write(|database| {
            database.execute(
                "INSERT INTO runs VALUES ($1, $2::bigint - 1, $3) ON CONFLICT DO NOTHING",
                &[&batch.run, &batch.number, &at],
            )?;
            let is_new = database.execute(
                "UPDATE runs SET batch = $2, at = $3 WHERE id = $1 AND batch < $2",
                &[&batch.run, &batch.number, &at],
            )?;
            if is_new == 0 {
                // The batch was added before, but its writer has not seen it.
                return Ok(());
            }
            database.execute(
                "INSERT INTO usage (name, up_bytes, down_bytes, at)
                 SELECT name, up, down, $4 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS new (name, up, down)
                 ON CONFLICT (name) DO UPDATE SET up_bytes = usage.up_bytes + excluded.up_bytes,
                 down_bytes = usage.down_bytes + excluded.down_bytes, at = excluded.at",
                &[&names, &up, &down, &at],
            )?;
            database.execute(
                "DELETE FROM runs WHERE id NOT IN (SELECT id FROM runs ORDER BY at DESC LIMIT $1)",
                &[&MOST_RUNS],
            )?;
            Ok(())
        })
    }

    fn usage(&mut self) -> Result<BTreeMap<String, Usage>, StoreError> {
        self.read(|client| {
            let found = client.query("SELECT name, up_bytes, down_bytes FROM usage", &[])?;
            let mut all = BTreeMap::new();
            for row in found {
                let bytes = |column: usize| row.try_get::<_, i64>(column).map(i64::unsigned_abs);
                let usage = Usage {
                    up_bytes: bytes(1)?,
                    down_bytes: bytes(2)?,
                };
                all.insert(row.try_get(0)?, usage);
            }
            Ok(all)
        })
    }
}

/// Applies the migrations that the database lacks. `may_be_empty`: makes a store of a database without tables.
fn migrate(client: &mut Client, place: &str, may_be_empty: bool) -> Result<(), Failure> {
    let known = signed(MIGRATIONS.len() as u64);
    let mut transaction = client.transaction()?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    let found = transaction.query_one(
        "SELECT to_regclass('store') IS NOT NULL, to_regclass('clients') IS NOT NULL",
        &[],
    )?;
    let (is_store, has_clients): (bool, bool) = (found.try_get(0)?, found.try_get(1)?);
    let version: i64 = match (is_store, has_clients) {
        (true, true) => transaction
            .query_one("SELECT version FROM store", &[])?
            .try_get(0)?,
        (false, false) if may_be_empty => 0,
        (false, false) => {
            let what = "the database has no tables of pleach; restore a copy, or begin with an empty store by starting the gateway";
            return Err(unavailable(place, what.to_owned()).into());
        }
        (true, false) | (false, true) => {
            let place = place.to_owned();
            return Err(StoreError::Foreign { place }.into());
        }
    };
    if version > known {
        let (place, found) = (place.to_owned(), version);
        return Err(StoreError::Newer {
            place,
            found,
            known,
        }
        .into());
    }
    let applied = usize::try_from(version).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(applied) {
        transaction.batch_execute(migration)?;
    }
    if version < known {
        transaction.execute("UPDATE store SET version = $1", &[&known])?;
    }
    transaction.commit()?;
    Ok(())
}

/// Returns how connections to a server are encrypted, whose certificate one of `authorities` has signed.
fn encryption(
    authorities: Vec<CertificateDer<'static>>,
) -> Result<MakeRustlsConnect, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Returns what an error says, without the details of the database.
fn text(error: &postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.message().to_owned();
    }
    let mut text = error.to_string();
    if let Some(source) = error.source() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, ": {source}");
    }
    text
}

fn unavailable(place: &str, what: String) -> StoreError {
    StoreError::Unavailable {
        place: place.to_owned(),
        what,
    }
}

/// The statements that make a schema of version n + 1 of one of version n, in order. A migration never changes after its
/// release.
const MIGRATIONS: [&str; 1] = [include_str!("postgres/1.sql")];
/// Number of the advisory lock: `plch` in ASCII; the triggers of the schema have the same.
const LOCK: i64 = 0x706c_6368;
/// Longest time for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Longest time for an answer, and for a lock.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time without data after which the kernel looks whether the server still exists.
const KEEPALIVE: Duration = Duration::from_secs(10);
