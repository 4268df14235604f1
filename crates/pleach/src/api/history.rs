//! What links did over 30 days, in bounded space: SQLite, three resolutions.
//!
//! | step | kept | rows a link |
//! | --- | --- | --- |
//! | 1 s | an hour | 3600 |
//! | 1 min | two days | 2880 |
//! | 1 h | 30 days | 720 |
//!
//! Seconds are collected in memory and written once a [`FLUSH_SECONDS`], in one transaction, to spare flash; minutes and hours are made of them
//! there. So a crash loses a minute. Some 0.6 MB a link; [`MAX_LINKS`] links have a history.
//!
//! A file that is damaged or no database is set aside under the name `….damaged`, and the history begins anew. Any other failure,
//! such as no permission or another daemon that has the file, leaves it alone, and no history is kept.
//!
//! The clock is not trusted: at boot it may say 1970, or years ahead. So rows go because there are more than their number, never
//! because of their age; those of the future of the moment, which are nobody's to read, are counted by themselves.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, Result, params};
use serde::Serialize;
use utoipa::ToSchema;

use super::live::Live;

/// What a link did in a step.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct Moment {
    /// Begin of the step, in seconds since 1970-01-01 UTC.
    pub(super) at: i64,
    /// Sent, mean in 10^6 bit/s.
    pub(super) tx_mbps: f64,
    /// Received, mean in 10^6 bit/s.
    pub(super) rx_mbps: f64,
    /// Round trip, mean in milliseconds.
    pub(super) rtt_ms: Option<f64>,
    /// Queue on the way out, the longest in milliseconds.
    pub(super) queue_delay_ms: Option<f64>,
    /// Loss on the way out, mean, 0 to 1.
    pub(super) loss: f64,
    /// Capacity on the way out, mean in 10^6 bit/s.
    pub(super) capacity_mbps: Option<f64>,
}

/// A part of the history.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Excerpt {
    /// Length of a step in seconds: 1, 60 or 3600.
    pub(super) step: i64,
    /// By name of the link, in the order of time.
    pub(super) links: BTreeMap<String, Vec<Moment>>,
}

/// The open file, and what is not in it yet.
pub(super) struct History {
    connection: Connection,
    pending: Vec<(String, Moment)>,
}

impl History {
    /// Opens the file at `path`, and makes it and its directory if they are missing. The second value: where a damaged one was put.
    ///
    /// # Errors
    /// It cannot be opened, or is damaged and cannot be set aside.
    pub(super) fn open(path: &Path) -> anyhow::Result<(Self, Option<PathBuf>)> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let (connection, aside) = match connect(path) {
            Ok(connection) => (connection, None),
            Err(error) if is_damage(&error) => {
                let mut name = path.as_os_str().to_owned();
                name.push(".damaged");
                let aside = PathBuf::from(name);
                fs::rename(path, &aside).map_err(|_| error)?;
                (connect(path)?, Some(aside))
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                return Err(anyhow::Error::new(error).context(
                    "another daemon keeps its history there; set another `history` in [dashboard]",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let history = Self {
            connection,
            pending: Vec::new(),
        };
        Ok((history, aside))
    }

    /// Takes in a second; writes when a minute's worth is together.
    ///
    /// # Errors
    /// The database's, as when there is no space; what was to be written then is forgotten.
    pub(super) fn take(&mut self, live: &Live) -> Result<()> {
        let at = i64::try_from(live.at_ms / 1000).unwrap_or(i64::MAX);
        for link in live.links.iter().take(MAX_LINKS) {
            let (Some(tx_mbps), Some(rx_mbps)) = (link.tx_mbps, link.rx_mbps) else {
                continue;
            };
            let moment = Moment {
                at,
                tx_mbps,
                rx_mbps,
                rtt_ms: link.status.rtt_ms,
                queue_delay_ms: link.status.queue_delay_ms,
                loss: link.status.loss,
                capacity_mbps: link.status.capacity_mbps,
            };
            self.pending.push((link.status.name.clone(), moment));
        }
        let first = self.pending.first().map_or(at, |(_, moment)| moment.at);
        if at.abs_diff(first) >= FLUSH_SECONDS || self.pending.len() >= MAX_PENDING {
            self.flush(at)?;
        }
        Ok(())
    }

    /// Writes what is pending at time `now`, sums up, and forgets what is too old.
    ///
    /// # Errors
    /// The database's; then the file is as it was, and what was pending is forgotten.
    pub(super) fn flush(&mut self, now: i64) -> Result<()> {
        let pending = core::mem::take(&mut self.pending);
        let times = pending.iter().map(|(_, moment)| moment.at);
        let oldest = times.clone().min().unwrap_or(now);
        let newest = times.max().unwrap_or(now);
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare(
                "INSERT OR REPLACE INTO history VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            for (link, moment) in &pending {
                insert.execute(params![
                    moment.at,
                    link,
                    moment.tx_mbps,
                    moment.rx_mbps,
                    moment.rtt_ms,
                    moment.queue_delay_ms,
                    moment.loss,
                    moment.capacity_mbps
                ])?;
            }
            for (fine, step) in [(1, 60), (60, 3600)] {
                transaction
                    .prepare(
                        "INSERT OR REPLACE INTO history
                         SELECT ?1, at / ?1 * ?1 AS start, link, avg(tx), avg(rx), avg(rtt), max(queue), avg(loss), avg(capacity)
                         FROM history WHERE step = ?2 AND at >= ?3 AND at <= ?4 GROUP BY start, link",
                    )?
                    .execute(params![step, fine, oldest.div_euclid(step) * step, newest])?;
            }
            for (step, kept) in KEPT {
                let most = kept / step;
                for (side, order, beyond) in [("<=", "DESC", "<="), (">", "ASC", ">=")] {
                    transaction
                        .prepare(&format!(
                            "DELETE FROM history WHERE step = ?1 AND at {side} ?2 AND at {beyond} (
                                 SELECT DISTINCT at FROM history WHERE step = ?1 AND at {side} ?2
                                 ORDER BY at {order} LIMIT 1 OFFSET ?3)"
                        ))?
                        .execute(params![step, now + FUTURE_SECONDS, most])?;
                }
            }
        }
        transaction.commit()
    }

    /// From `from` to `to`, in seconds since 1970, in the finest resolution that reaches back so far and stays below
    /// [`MAX_STEPS`] steps. Seconds that are not written yet are in no minute and hour.
    ///
    /// # Errors
    /// The database's.
    pub(super) fn read(&self, now: i64, from: i64, to: i64) -> Result<Excerpt> {
        let to = to.min(now + FUTURE_SECONDS);
        let fits = |(step, kept): &(i64, i64)| {
            from >= now - kept - step && (to - from) / step <= MAX_STEPS
        };
        let step = KEPT
            .iter()
            .find(|kept| fits(kept))
            .map_or(3600, |(step, _)| *step);
        let mut select = self.connection.prepare(
            "SELECT link, at, tx, rx, rtt, queue, loss, capacity FROM history
             WHERE step = ?1 AND at >= ?2 AND at <= ?3 ORDER BY at LIMIT ?4",
        )?;
        let rows = select.query_map(params![step, from, to, MAX_ROWS], |row| {
            let moment = Moment {
                at: row.get(1)?,
                tx_mbps: row.get(2)?,
                rx_mbps: row.get(3)?,
                rtt_ms: row.get(4)?,
                queue_delay_ms: row.get(5)?,
                loss: row.get(6)?,
                capacity_mbps: row.get(7)?,
            };
            Ok((row.get(0)?, moment))
        })?;
        let mut links: BTreeMap<String, Vec<Moment>> = BTreeMap::new();
        for row in rows {
            let (link, moment) = row?;
            links.entry(link).or_default().push(moment);
        }
        let pending = self.pending.iter().filter(|_| step == 1);
        for (link, moment) in pending.filter(|(_, moment)| (from..=to).contains(&moment.at)) {
            links.entry(link.clone()).or_default().push(moment.clone());
        }
        Ok(Excerpt { step, links })
    }
}

impl Excerpt {
    /// As CSV (RFC 4180), a line a step and link.
    pub(super) fn csv(&self) -> String {
        let mut text =
            "at,link,tx_mbps,rx_mbps,rtt_ms,queue_delay_ms,loss,capacity_mbps\r\n".to_owned();
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        for (link, moments) in &self.links {
            for moment in moments {
                text.push_str(&format!(
                    "{},\"{}\",{},{},{},{},{},{}\r\n",
                    moment.at,
                    link.replace('"', "\"\""),
                    moment.tx_mbps,
                    moment.rx_mbps,
                    number(moment.rtt_ms),
                    number(moment.queue_delay_ms),
                    moment.loss,
                    number(moment.capacity_mbps),
                ));
            }
        }
        text
    }
}

/// Whether `error` means that the file is no database, or a broken one.
fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    let is_broken = matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    );
    is_broken || matches!(error, rusqlite::Error::InvalidQuery)
}

/// Opens, or makes, a history that is whole, for this process alone.
fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // Losing the last minute is better than waiting for a slow disk.
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE;
         PRAGMA journal_mode = TRUNCATE;
         PRAGMA synchronous = NORMAL;
         PRAGMA auto_vacuum = FULL;
         CREATE TABLE IF NOT EXISTS history (
             step INTEGER NOT NULL, at INTEGER NOT NULL, link TEXT NOT NULL, tx REAL NOT NULL, rx REAL NOT NULL,
             rtt REAL, queue REAL, loss REAL NOT NULL, capacity REAL, PRIMARY KEY (step, at, link)
         ) WITHOUT ROWID;
         BEGIN EXCLUSIVE;
         COMMIT;",
    )?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        Ok(connection)
    } else {
        Err(rusqlite::Error::InvalidQuery)
    }
}

/// Resolution, and time of which steps are kept, in seconds, finest first.
const KEPT: [(i64, i64); 3] = [(1, 3600), (60, 2 * 86_400), (3600, 30 * 86_400)];

/// How long somebody else may have the file when it is opened.
const BUSY: Duration = Duration::from_secs(1);

/// Seconds between two writes.
const FLUSH_SECONDS: u64 = 60;

/// Rows in memory at most: a minute of all links.
const MAX_PENDING: usize = MAX_LINKS * 64;

/// Links with a history.
const MAX_LINKS: usize = 64;

/// Rows of the future beyond this are of a clock that is, or was, wrong.
const FUTURE_SECONDS: i64 = 3600;

/// Steps of an answer, a link: an hour in seconds, two days in minutes.
const MAX_STEPS: i64 = 3600;

/// Rows of an answer: some 10 MB of JSON.
const MAX_ROWS: i64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LinkStatus, StatusReport};

    fn live(at: i64, links: usize, mbps: f64) -> Live {
        let status = StatusReport {
            links: (0..links)
                .map(|number| LinkStatus {
                    rtt_ms: Some(20.0),
                    ..LinkStatus::bare(&format!("l{number}"), "eth0")
                })
                .collect(),
            ..StatusReport::default()
        };
        let rates =
            (0..links).map(|number| ((String::new(), format!("l{number}")), (mbps, mbps / 4.0)));
        Live::new(
            u64::try_from(at * 1000).expect("after 1970"),
            &status,
            &rates.collect(),
            None,
        )
    }

    const START: i64 = 1_700_000_000 / 3600 * 3600;

    fn fresh() -> (tempfile::TempDir, PathBuf, History) {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("new/history.db");
        let (history, aside) = History::open(&path).expect("opens");
        assert_eq!(aside, None);
        (directory, path, history)
    }

    #[test]
    fn seconds_become_minutes_and_hours() {
        let (_directory, path, mut history) = fresh();
        for second in 0..7200 {
            let mbps = if second < 3600 { 4.0 } else { 8.0 };
            history
                .take(&live(START + second, 1, mbps))
                .expect("writes");
        }
        let now = START + 7200;
        let unwritten = history.read(now, now - 10, now).expect("reads");
        assert_eq!((unwritten.step, unwritten.links["l0"].len()), (1, 10));
        history.flush(now).expect("writes");
        drop(history);
        let (history, _) = History::open(&path).expect("kept over a restart");
        let read = |from: i64| history.read(now, from, now).expect("reads");
        let seconds = read(now - 600);
        assert_eq!((seconds.step, seconds.links["l0"].len()), (1, 600));
        let minutes = read(now - 7200);
        assert_eq!((minutes.step, minutes.links["l0"].len()), (60, 120));
        assert_eq!(minutes.links["l0"][0].tx_mbps, 4.0);
        let hours = read(now - 29 * 86_400);
        assert_eq!((hours.step, hours.links["l0"].len()), (3600, 2));
        let rates: Vec<f64> = hours.links["l0"]
            .iter()
            .map(|moment| moment.rx_mbps)
            .collect();
        assert_eq!(rates, [1.0, 2.0]);
        let csv = hours.csv();
        assert_eq!(csv.lines().count(), 3);
        assert!(
            csv.contains(&format!("{START},\"l0\",4,1,20,,0,\r\n")),
            "{csv}"
        );
    }

    #[test]
    fn a_month_of_eight_links_stays_small() {
        let (_directory, path, mut history) = fresh();
        // A day in seconds, a month in flushes of hours.
        for second in (0..86_400).step_by(10) {
            history.take(&live(START + second, 8, 4.0)).expect("writes");
        }
        for hour in 24..24 * 40 {
            history
                .take(&live(START + hour * 3600, 8, 4.0))
                .expect("writes");
        }
        let now = START + 40 * 86_400;
        history.flush(now).expect("writes");
        let size = fs::metadata(&path).expect("file").len();
        let month = history.read(now, now - 30 * 86_400, now).expect("reads");
        assert!(
            month.links["l7"].len() <= 721,
            "{}",
            month.links["l7"].len()
        );
        assert!(size < 6 << 20, "{size} bytes");
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("history.db");
        fs::write(
            &path,
            "no database, but long enough to be taken for one by nobody".repeat(100),
        )
        .expect("file");
        let (mut history, aside) = History::open(&path).expect("begins anew");
        let aside = aside.expect("set aside");
        assert!(
            fs::read_to_string(&aside)
                .expect("kept")
                .starts_with("no database")
        );
        history.take(&live(START, 1, 1.0)).expect("works");
        history.flush(START).expect("works");
        drop(history);
        // Cut in the middle.
        let bytes = fs::read(&path).expect("file");
        fs::write(&path, &bytes[..bytes.len() / 2]).expect("file");
        assert!(History::open(&path).expect("begins anew").1.is_some());
    }

    #[test]
    fn a_wrong_clock_at_boot_erases_nothing() {
        let (_directory, _path, mut history) = fresh();
        let end = START + 7200;
        for second in START..end {
            history.take(&live(second, 1, 4.0)).expect("writes");
        }
        history.flush(end).expect("writes");
        let known = |history: &History| {
            let lens = [end - 3000, end - 7000, START - 20 * 86_400].map(|from| {
                let read = history.read(end, from, end).expect("reads");
                (read.step, read.links["l0"].len())
            });
            lens.to_vec()
        };
        let before = known(&history);
        // 1970, and years ahead, for ten minutes each. They displace as many seconds as ten minutes always do.
        for boot in [0, START + 10 * 365 * 86_400] {
            for second in 0..600 {
                history.take(&live(boot + second, 1, 1.0)).expect("writes");
            }
            history.flush(boot + 600).expect("writes");
        }
        assert_eq!(known(&history), before);
        // And it is bounded all the same.
        let rows: i64 = history
            .connection
            .query_row("SELECT count(*) FROM history WHERE step = 1", [], |row| {
                row.get(0)
            })
            .expect("counts");
        assert!(rows <= 2 * 3700, "{rows}");
    }

    #[test]
    fn only_a_damaged_file_is_set_aside() {
        let (_directory, path, mut history) = fresh();
        history.take(&live(START, 1, 1.0)).expect("works");
        history.flush(START).expect("works");
        // Another daemon has it.
        let error = History::open(&path).err().expect("taken");
        assert!(format!("{error:#}").contains("another daemon"), "{error:#}");
        drop(history);
        let (history, aside) = History::open(&path).expect("free again");
        assert_eq!(aside, None);
        let read = history.read(START, START - 10, START).expect("reads");
        assert_eq!(read.links["l0"].len(), 1);
        // What cannot be opened at all.
        let directory = path.with_extension("d");
        fs::create_dir(&directory).expect("directory");
        assert!(History::open(&directory).is_err());
        assert!(directory.is_dir(), "left alone");
    }

    #[test]
    fn a_clock_that_jumps_leaves_nothing_behind() {
        let (_directory, _path, mut history) = fresh();
        let future = START + 10 * 365 * 86_400;
        for at in [
            START,
            future,
            future + 100,
            START + 1,
            START + 100,
            START + 200,
        ] {
            history.take(&live(at, 1, 1.0)).expect("writes");
        }
        history.flush(START + 200).expect("writes");
        let all = history.read(START + 200, 0, i64::MAX / 2).expect("reads");
        let known: Vec<i64> = all.links["l0"].iter().map(|moment| moment.at).collect();
        assert_eq!(known, [START]);
        assert!(history.pending.len() <= MAX_PENDING);
    }
}
