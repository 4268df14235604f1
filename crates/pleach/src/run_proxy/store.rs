//! Estimates of a proxy, stored in an SQLite database across restarts: the demands of applications, the rates of links,
//! and the volume that links have carried of their budgets.
//!
//! There are three tables with at most a few thousand rows. They are replaced in one transaction. If the file is no
//! database, it is left unchanged and reported, and the proxy starts without stored estimates.

use std::path::Path;

use pleach_core::units::Bitrate;
use pleach_proxy::{daemon::report::Learnt, estimate::application::Demand};
use rusqlite::{Connection, Result, params};

/// An open database.
#[derive(Debug)]
pub(crate) struct Store {
    connection: Connection,
}

impl Store {
    /// Opens the database at `path`. Creates the database and its directory if they do not exist.
    ///
    /// # Errors
    /// The file cannot be opened, or is not such a database.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS demand (app TEXT PRIMARY KEY, up INTEGER NOT NULL, down INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS link (name TEXT PRIMARY KEY, up_bps INTEGER NOT NULL, down_bps INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS usage (link TEXT NOT NULL, first_day INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (link, first_day));",
        )?;
        Ok(Self { connection })
    }

    /// Returns the stored estimates.
    ///
    /// # Errors
    /// An error of the database.
    pub(crate) fn load(&self) -> Result<Learnt> {
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        let mut demands = self
            .connection
            .prepare("SELECT app, up, down FROM demand ORDER BY app")?;
        let demands = demands.query_map([], |row| {
            let (up, down) = (number(row.get(1)?), number(row.get(2)?));
            Ok((row.get(0)?, Demand { up, down }))
        })?;
        let mut links = self
            .connection
            .prepare("SELECT name, up_bps, down_bps FROM link ORDER BY name")?;
        let links = links.query_map([], |row| {
            let rate = |value| Bitrate::from_bps(number(value));
            Ok((row.get(0)?, rate(row.get(1)?), rate(row.get(2)?)))
        })?;
        let mut usage = self
            .connection
            .prepare("SELECT link, first_day, bytes FROM usage ORDER BY link, first_day")?;
        let usage = usage.query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, number(row.get(2)?)))
        })?;
        Ok(Learnt {
            demands: demands.collect::<Result<_>>()?,
            links: links.collect::<Result<_>>()?,
            usage: usage.collect::<Result<_>>()?,
        })
    }

    /// Replaces the stored estimates. Entries of links that this process has not seen remain unchanged.
    ///
    /// # Errors
    /// An error of the database. Nothing is changed in this case.
    pub(crate) fn save(&mut self, learnt: &Learnt) -> Result<()> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let transaction = self.connection.transaction()?;
        transaction.execute("DELETE FROM demand", [])?;
        for (app, demand) in &learnt.demands {
            transaction.execute(
                "INSERT INTO demand VALUES (?1, ?2, ?3)",
                params![app, number(demand.up), number(demand.down)],
            )?;
        }
        for (name, up, down) in &learnt.links {
            if *up > Bitrate::ZERO || *down > Bitrate::ZERO {
                transaction.execute(
                    "INSERT OR REPLACE INTO link VALUES (?1, ?2, ?3)",
                    params![name, number(up.as_bps()), number(down.as_bps())],
                )?;
            }
        }
        for (link, _, _) in &learnt.usage {
            transaction.execute("DELETE FROM usage WHERE link = ?1", params![link])?;
        }
        for (link, first_day, bytes) in &learnt.usage {
            transaction.execute(
                "INSERT INTO usage VALUES (?1, ?2, ?3)",
                params![link, first_day, number(*bytes)],
            )?;
        }
        transaction.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_again() {
        let directory = tempfile::TempDir::new().expect("temporary directory");
        let path = directory.path().join("new/apps.db");
        let demand = Demand {
            up: 7,
            down: 1 << 40,
        };
        let rate = Bitrate::from_mbps(20);
        let learnt = Learnt {
            demands: vec![(":443".to_owned(), demand), ("curl".to_owned(), demand)],
            links: vec![
                ("lte".to_owned(), Bitrate::ZERO, Bitrate::ZERO),
                ("wifi".to_owned(), Bitrate::ZERO, rate),
            ],
            usage: vec![
                ("lte".to_owned(), 20_000, 1 << 40),
                ("lte".to_owned(), 20_031, 7),
            ],
        };
        let mut store = Store::open(&path).expect("a new database");
        for _ in 0..2 {
            store.save(&learnt).expect("saves");
        }
        drop(store);
        let found = Store::open(&path)
            .and_then(|store| Ok(store.load()?))
            .expect("loads");
        assert_eq!(found.demands, learnt.demands);
        assert_eq!(found.usage, learnt.usage);
        assert_eq!(
            found.links,
            learnt.links[1..],
            "nothing is known of the other"
        );
    }

    #[test]
    fn a_file_that_is_no_database_is_left_alone() {
        let directory = tempfile::TempDir::new().expect("temporary directory");
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "not a database, but somebody's notes").expect("writes");
        assert!(Store::open(&path).is_err());
        let left = std::fs::read_to_string(&path).expect("still there");
        assert!(left.starts_with("not a database"));
    }
}
