//! The tables of a store, in the schema `pleach` of a database, and their versions.
//!
//! A newer version says in the column `oldest` which versions of this program may still use its tables.

use super::link::{Failure, Link};
use crate::clients::StoreError;

/// Prepares a new connection: applies the migrations that the database lacks. `may_be_empty`: makes a store of a database
/// without tables. Returns the id of the store.
///
/// # Errors
/// If the database is no store, or its tables are too new.
pub(super) fn prepare(link: &Link, place: &str, may_be_empty: bool) -> Result<String, Failure> {
    let known = KNOWN;
    // Only a change of the tables needs the lock, so that a transaction of another program does not keep gateways from
    // reading.
    if let Some((id, version, oldest)) = found(link)? {
        if oldest > known {
            let (place, found) = (place.to_owned(), version);
            return Err(StoreError::Newer {
                place,
                found,
                known,
            }
            .into());
        }
        if version >= known {
            return Ok(id);
        }
    } else if !may_be_empty {
        let what = "the database has no tables of pleach; restore a copy, or start a gateway to begin with an empty store";
        return Err(StoreError::Unavailable {
            place: place.to_owned(),
            what: what.to_owned(),
        }
        .into());
    }
    link.run(BEGIN)?;
    link.query("SELECT pg_advisory_xact_lock($1)", &[&CLIENTS_LOCK])?;
    // Another gateway may have made them meanwhile.
    let applied = found(link)?.map_or(0, |(_, version, _)| version);
    for migration in MIGRATIONS
        .iter()
        .skip(usize::try_from(applied).unwrap_or(0))
    {
        link.migrate(migration)?;
    }
    link.run("COMMIT")?;
    let made = found(link)?.map(|(id, ..)| id);
    made.ok_or_else(|| {
        StoreError::Foreign {
            place: place.to_owned(),
            key: "store",
        }
        .into()
    })
}

/// Returns the store's id, its version, and the oldest version that may use it. `None` if the database has no tables.
fn found(link: &Link) -> Result<Option<(String, i64, i64)>, Failure> {
    let exists = link.query_one("SELECT to_regclass('pleach.store') IS NOT NULL", &[])?;
    if !exists.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let row = link.query_one("SELECT id, version, oldest FROM pleach.store", &[])?;
    Ok(Some((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
}

/// Begins a transaction that sees what others have committed before each of its statements.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Number of the advisory lock for clients and invitations: `plch` in ASCII; the triggers take it as well.
pub(super) const CLIENTS_LOCK: i64 = 0x706c_6368;
/// Number of the advisory lock for byte counters.
pub(super) const USAGE_LOCK: i64 = CLIENTS_LOCK + 1;

/// Newest version of the tables that this program knows.
pub(super) const KNOWN: i64 = 2;

/// The statements that make tables of version n + 1 of those of version n, in order; they also set `version` and `oldest`. A
/// migration never changes after its release.
pub(super) const MIGRATIONS: [&str; 2] = [include_str!("1.sql"), include_str!("2.sql")];
