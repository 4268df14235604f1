//! The store of clients in a PostgreSQL database, which several gateways may share.
//!
//! A gateway that starts makes the tables, or applies the migrations that they lack ([`schema`]); a newer schema is refused. A
//! database without tables becomes a store by [`PostgresStore::create`] only, never later, and a running gateway refuses
//! another store at the same place: an empty store instead of a lost one would disconnect all clients.
//!
//! Each change is one transaction. Transactions that change clients or invitations follow each other, whoever makes
//! them: they hold an advisory lock, which the triggers of the tables take as well. So what [`decisions`] has read is true
//! until its transaction ends, and changes become visible in the order of their numbers.
//!
//! A broken connection is made again by the next call. Each step of a call ends in bounded time ([`link`]), and the server
//! ends the transaction of a gateway that has vanished ([`OPTIONS`]). Messages of the database are reported without their
//! details, which may contain rows with keys.

mod link;
mod places;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    session::invitation::Claim,
};
use tokio_postgres::{Config, Statement, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    Changed, ClientStore, MOST_RUNS, Mark, Members, Places, StoreError, StoredClient, UsageBatch,
    decisions::{self, Rows as _},
    raw::{bps, signed},
    tls,
};
use crate::{
    config::PostgresConfig,
    keys::{self, KEY_LEN},
    onboard::store::{Invitation, Offer, Refusal},
};
use link::{ADDRESS_WITHIN, ANSWER_WITHIN, Failure, Link};
use schema::{BEGIN, CLIENTS_LOCK, USAGE_LOCK};

/// A store of clients in a PostgreSQL database.
pub(crate) struct PostgresStore {
    config: Config,
    /// How connections are encrypted; `None` for connections within this host.
    tls: Option<MakeRustlsConnect>,
    /// Name of the database in messages.
    place: String,
    /// Id of the store.
    id: String,
    /// `None` while there is no connection.
    open: Option<Open>,
    /// Whether the connection is another one than at the last question for changes.
    is_other: bool,
}

/// A connection, and the statement of the most frequent question.
struct Open {
    link: Link,
    find: Statement,
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
        let wrong = |what: String| StoreError::Unavailable {
            place: place.clone(),
            what,
        };
        let parsed = config.connection.parse::<Config>();
        let mut settings = parsed.map_err(|error| wrong(error.to_string()))?;
        if let Some(password) = &config.password {
            settings.password(password.expose());
        }
        let options = match settings.get_options() {
            Some(given) => format!("{given} {OPTIONS}"),
            None => OPTIONS.to_owned(),
        };
        settings
            .application_name("pleach")
            .connect_timeout(ADDRESS_WITHIN)
            .tcp_user_timeout(ANSWER_WITHIN)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .options(&options);
        let tls = tls::config(&config.authorities).map_err(wrong)?;
        let tls = tls.map(MakeRustlsConnect::new);
        settings.ssl_mode(match &tls {
            Some(_) => SslMode::Require,
            None => SslMode::Disable,
        });
        let mut this = Self {
            config: settings,
            tls,
            place: place.clone(),
            id: String::new(),
            open: None,
            is_other: true,
        };
        let opened = this.connect(may_be_empty);
        let (open, id) = opened.map_err(|failure| failure.told(&place))?;
        (this.open, this.id) = (Some(open), id);
        Ok(this)
    }

    /// Connects, and returns the connection with the id of the store.
    fn connect(&self, may_be_empty: bool) -> Result<(Open, String), Failure> {
        let link = Link::open(&self.config, self.tls.as_ref())?;
        let id = schema::prepare(&link, &self.place, may_be_empty)?;
        let find = link.prepare(rows::FIND)?;
        Ok((Open { link, find }, id))
    }

    /// Runs `work` on a connection.
    fn read<T>(
        &mut self,
        work: impl FnOnce(&mut Open) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let open = self.open.take().filter(|open| !open.link.is_closed());
        let result = match open.map_or_else(|| self.reconnect(), Ok) {
            Ok(open) => work(self.open.insert(open)),
            Err(failure) => Err(failure),
        };
        result.map_err(|failure| {
            if failure.ends_connection() {
                self.open = None;
            }
            failure.told(&self.place)
        })
    }

    fn reconnect(&mut self) -> Result<Open, Failure> {
        let (open, id) = self.connect(false)?;
        if id != self.id {
            return Err(another(&self.place));
        }
        self.is_other = true;
        Ok(open)
    }

    /// Runs `work` in a transaction: [`Self::write_within`] the usual time.
    fn write<T>(
        &mut self,
        lock: i64,
        work: impl FnOnce(&mut Open) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.write_within(LOCK_WITHIN, lock, work)
    }

    /// Runs `work` in a transaction, which is committed if `work` succeeds. Transactions with the same `lock` follow each
    /// other; they wait for at most `patience`.
    fn write_within<T>(
        &mut self,
        patience: Duration,
        lock: i64,
        work: impl FnOnce(&mut Open) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.read(|open| {
            let patience = patience.as_millis();
            open.link
                .run(&format!("{BEGIN}; SET LOCAL lock_timeout = {patience}"))?;
            let locked = open
                .link
                .query("SELECT pg_advisory_xact_lock($1)", &[&lock]);
            let result = locked.and_then(|_| work(open));
            match &result {
                Ok(_) => open.link.run("COMMIT")?,
                Err(failure) if failure.ends_connection() => {}
                Err(_) => open.link.run("ROLLBACK")?,
            }
            result
        })
    }
}

/// Returns the failure that another store is at the place of the store.
fn another(place: &str) -> Failure {
    let what = "another store than before is there; restart the gateway if it is to be used";
    Failure::Stale(StoreError::Unavailable {
        place: place.to_owned(),
        what: what.to_owned(),
    })
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
        self.write(CLIENTS_LOCK, |open| {
            decisions::invite(open, offer, now, networks, taken)
        })
    }

    fn remove(&mut self, name: &str) -> Result<bool, StoreError> {
        self.write(CLIENTS_LOCK, |open| {
            let clients = open
                .link
                .execute("DELETE FROM clients WHERE name = $1", &[&name])?;
            let open = open
                .link
                .execute("DELETE FROM invitations WHERE name = $1", &[&name])?;
            Ok(clients + open > 0)
        })
    }
}

impl ClientStore for PostgresStore {
    fn find(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, StoreError> {
        self.read(|open| open.client_of(public_key))
    }

    fn add(&mut self, client: &StoredClient) -> Result<(), StoreError> {
        self.write(CLIENTS_LOCK, |open| decisions::add(open, client))
    }

    fn set_caps(&mut self, name: &str, caps: Caps) -> Result<bool, StoreError> {
        self.write(CLIENTS_LOCK, |open| {
            let changed = open.link.execute(
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
        // Most claims of strangers end here, without the lock.
        let is_known = self.read(|open| open.knows_invitation(claim))?;
        if !is_known {
            return Err(Refusal::Unknown);
        }
        // New clients wait in the same thread, so a claim is rather tried again by its client.
        self.write_within(CLAIM_WITHIN, CLIENTS_LOCK, |open| {
            decisions::claim(open, claim, public_key, gateway_key, now)
        })?
    }

    fn changes_since(&mut self, mark: &mut Mark) -> Result<Changed, StoreError> {
        let (id, place) = (self.id.clone(), self.place.clone());
        let (now, changed) = self.read(|open| {
            let row = open.link.query_one(
                "SELECT id, coalesce((SELECT max(number) FROM changes), 0),
                 coalesce((SELECT min(number) FROM changes), 0), oldest FROM store",
                &[],
            )?;
            // The tables may have been replaced, or changed by a newer gateway, under this connection.
            if row.try_get::<_, &str>(0)? != id || row.try_get::<_, i64>(3)? > schema::KNOWN {
                return Err(another(&place));
            }
            let now = Mark {
                store: row.try_get(0)?,
                last: row.try_get(1)?,
            };
            let first: i64 = row.try_get(2)?;
            if now == *mark {
                return Ok((now, Changed::Keys(Vec::new())));
            }
            if !now.lists_all_since(mark, first) {
                return Ok((now, Changed::Any));
            }
            let found = open.link.query(
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
        // Whether a copy of an earlier time was restored meanwhile is not known.
        let is_other = core::mem::take(&mut self.is_other);
        Ok(if is_other { Changed::Any } else { changed })
    }

    fn id(&mut self) -> Result<String, StoreError> {
        Ok(self.id.clone())
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
        self.write(USAGE_LOCK, |open| {
            open.link.execute(
                "INSERT INTO runs VALUES ($1, $2::bigint - 1, $3) ON CONFLICT DO NOTHING",
                &[&batch.run, &batch.number, &at],
            )?;
            let is_new = open.link.execute(
                "UPDATE runs SET batch = $2, at = $3 WHERE id = $1 AND batch < $2",
                &[&batch.run, &batch.number, &at],
            )?;
            if is_new == 0 {
                // The batch was added before, but its writer has not seen it.
                return Ok(());
            }
            open.link.execute(
                "INSERT INTO usage (name, up_bytes, down_bytes, at)
                 SELECT name, up, down, $4 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS new (name, up, down)
                 ON CONFLICT (name) DO UPDATE SET up_bytes = usage.up_bytes + excluded.up_bytes,
                 down_bytes = usage.down_bytes + excluded.down_bytes, at = excluded.at",
                &[&names, &up, &down, &at],
            )?;
            open.link.execute(
                "DELETE FROM runs
                 WHERE id <> $2 AND id NOT IN (SELECT id FROM runs ORDER BY at DESC LIMIT $1)",
                &[&MOST_RUNS, &batch.run],
            )?;
            Ok(())
        })
    }

    fn usage(&mut self) -> Result<BTreeMap<String, Usage>, StoreError> {
        self.read(|open| {
            let found = open
                .link
                .query("SELECT name, up_bytes, down_bytes FROM usage", &[])?;
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

    fn places(&mut self) -> Option<&mut dyn Places> {
        Some(self)
    }
}

/// Longest wait for the lock of a transaction: less than a statement may take.
const LOCK_WITHIN: Duration = Duration::from_secs(4);
/// Longest wait for the lock of a claim.
const CLAIM_WITHIN: Duration = Duration::from_millis(200);
/// Settings of the session: where the tables are, how long a statement and a lock may take, and after how long the server
/// gives up a gateway that has vanished within a transaction, with its locks.
const OPTIONS: &str = "-c search_path=pleach -c statement_timeout=4500 -c lock_timeout=4000 \
    -c idle_in_transaction_session_timeout=5000 -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 \
    -c tcp_keepalives_count=3 -c tcp_user_timeout=5000";
/// Time without data after which the kernel looks whether the server still exists, and then again.
const KEEPALIVE: Duration = Duration::from_secs(5);
