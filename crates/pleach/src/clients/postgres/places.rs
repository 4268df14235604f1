//! The table of places: at which gateway each client has connected last.
//!
//! Each statement is a transaction of its own. When a client changes its gateway, a trigger notes the former one, until that
//! gateway has asked, or the client has returned to it.
//!
//! All times are those of the database's clock. A gateway reads it before it writes, so a statement that is delayed on its way
//! writes a time that has passed, and does not replace what another gateway has written meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio_postgres::Row;

use super::{
    PostgresStore,
    link::{Failure, Link},
};
use crate::{
    clients::{Arrived, Departures, Places, StoreError, raw::signed},
    keys::{self, KEY_LEN},
};

impl Places for PostgresStore {
    fn arrive(
        &mut self,
        gateway: &str,
        arrived: &BTreeMap<[u8; KEY_LEN], Instant>,
    ) -> Result<Arrived, StoreError> {
        let keys: Vec<String> = arrived.keys().map(keys::encode_public).collect();
        let late = StoreError::Unavailable {
            place: self.place.clone(),
            what: "it needs too long to say the time".to_owned(),
        };
        self.read(|open| {
            let now = Now::read(&open.link)?;
            if clock::now().since(now.local) > PROMPT {
                return Err(late.into());
            }
            let times: Vec<i64> = arrived.values().map(|at| now.time_of(*at)).collect();
            // A time in the future was written before the clock of the database was set back.
            open.link.query(
                "INSERT INTO places AS known (public_key, gateway, since)
                 SELECT key, $1::text, at FROM unnest($2::text[], $3::bigint[]) AS new (key, at)
                 ON CONFLICT (public_key) DO UPDATE SET gateway = excluded.gateway, since = excluded.since
                 WHERE excluded.since >= known.since
                 OR known.since > extract(epoch FROM clock_timestamp()) * 1000 + 1000",
                &[&gateway, &keys, &times],
            )?;
            let elsewhere = open.link.query(
                "SELECT public_key, since FROM places WHERE public_key = ANY($2::text[]) AND gateway <> $1",
                &[&gateway, &keys],
            )?;
            let departed = now.departures(&elsewhere)?;
            Ok(Arrived {
                departed,
                contested: contested(&open.link, gateway, &keys)?,
            })
        })
    }

    fn departed(&mut self, gateway: &str) -> Result<Departures, StoreError> {
        self.read(|open| {
            let now = Now::read(&open.link)?;
            let left = open.link.query(
                "WITH left_here AS (DELETE FROM former_places WHERE gateway = $1 RETURNING public_key)
                 SELECT public_key, since FROM left_here JOIN places USING (public_key) WHERE places.gateway <> $1",
                &[&gateway],
            )?;
            now.departures(&left)
        })
    }

    fn contested(
        &mut self,
        gateway: &str,
        keys: &BTreeSet<[u8; KEY_LEN]>,
    ) -> Result<BTreeSet<[u8; KEY_LEN]>, StoreError> {
        let keys: Vec<String> = keys.iter().map(keys::encode_public).collect();
        self.read(|open| contested(&open.link, gateway, &keys))
    }

    fn all(&mut self) -> Result<BTreeMap<[u8; KEY_LEN], (String, u64)>, StoreError> {
        self.read(|open| {
            let found = open
                .link
                .query("SELECT public_key, gateway, since FROM places", &[])?;
            let mut all = BTreeMap::new();
            for row in found {
                let since: i64 = row.try_get(2)?;
                if let Ok(key) = keys::decode(row.try_get(0)?) {
                    all.insert(*key, (row.try_get(1)?, since.unsigned_abs()));
                }
            }
            Ok(all)
        })
    }
}

/// Returns those clients of `keys` that are at `gateway`, and that some other gateway does not know to have left it. A gateway that
/// has not asked for a day was renamed or removed.
fn contested(
    link: &Link,
    gateway: &str,
    keys: &[String],
) -> Result<BTreeSet<[u8; KEY_LEN]>, Failure> {
    let rows = link.query(
        "SELECT DISTINCT public_key FROM places JOIN former_places AS left_one USING (public_key)
         WHERE places.gateway = $1 AND public_key = ANY($2::text[])
         AND left_one.since > (extract(epoch FROM clock_timestamp()) - 86400) * 1000",
        &[&gateway, &keys],
    )?;
    let mut contested = BTreeSet::new();
    for row in rows {
        if let Ok(key) = keys::decode(row.try_get(0)?) {
            contested.insert(*key);
        }
    }
    Ok(contested)
}

/// A moment by the clock of the database, and by that of this host.
#[derive(Clone, Copy, Debug)]
struct Now {
    /// In milliseconds since 1970.
    ms: i64,
    /// Not later than `ms`.
    local: Instant,
}

impl Now {
    fn read(link: &Link) -> Result<Self, Failure> {
        let local = clock::now();
        let row = link.query_one(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            &[],
        )?;
        let ms = row.try_get(0)?;
        Ok(Self { ms, local })
    }

    /// Returns the time of the database at `at`, which is not later than `self`.
    fn time_of(self, at: Instant) -> i64 {
        let age = self.local.since(at).as_millis();
        self.ms - signed(u64::try_from(age).unwrap_or(u64::MAX))
    }

    /// Returns the clients of rows with a key and a time.
    fn departures(self, rows: &[Row]) -> Result<Departures, Failure> {
        let mut all = Departures::new();
        for row in rows {
            let since: i64 = row.try_get(1)?;
            let age = Duration::from_millis(u64::try_from(self.ms - since).unwrap_or(0));
            if let Ok(key) = keys::decode(row.try_get(0)?) {
                all.insert(*key, self.local - age);
            }
        }
        Ok(all)
    }
}

/// Time in which the database must say its time, so that an arrival is not written as later than it was by more than that.
const PROMPT: Duration = Duration::from_millis(500);
