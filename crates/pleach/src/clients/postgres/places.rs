//! The table of places: at which gateway each client has connected last.
//!
//! Each statement is a transaction of its own. A client that changes its gateway leaves the name of the former one in its
//! row, until that gateway has asked for it. If the client changes again before, only the latest former gateway is told;
//! the others notice that the client is silent.

use std::collections::BTreeMap;

use super::PostgresStore;
use crate::{
    clients::{Places, StoreError, raw::signed},
    keys::{self, KEY_LEN},
};

impl Places for PostgresStore {
    fn arrive(
        &mut self,
        gateway: &str,
        arrived: &BTreeMap<[u8; KEY_LEN], u64>,
        is_late: bool,
    ) -> Result<(), StoreError> {
        let keys: Vec<String> = arrived.keys().map(keys::encode_public).collect();
        let times: Vec<i64> = arrived.values().map(|at| signed(*at)).collect();
        self.read(|open| {
            open.link.execute(
                "INSERT INTO places AS known (public_key, gateway, since)
                 SELECT key, $1::text, at FROM unnest($2::text[], $3::bigint[]) AS new (key, at)
                 ON CONFLICT (public_key) DO UPDATE SET gateway = excluded.gateway,
                 since = greatest(excluded.since, known.since + 1),
                 former = CASE WHEN known.gateway = excluded.gateway THEN known.former ELSE known.gateway END
                 WHERE NOT $4::boolean OR excluded.since > known.since",
                &[&gateway, &keys, &times, &is_late],
            )?;
            Ok(())
        })
    }

    fn departed(&mut self, gateway: &str) -> Result<Vec<[u8; KEY_LEN]>, StoreError> {
        self.read(|open| {
            let left = open.link.query(
                "UPDATE places SET former = NULL WHERE former = $1 RETURNING public_key",
                &[&gateway],
            )?;
            let mut keys = Vec::new();
            for row in left {
                keys.extend(keys::decode(row.try_get(0)?).ok().map(|key| *key));
            }
            Ok(keys)
        })
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
