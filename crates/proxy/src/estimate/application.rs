//! How much a connection of an application will move.
//!
//! The paper's equation 1, on each connection's end: `C = (1 - a) C + a CC` with `a` = 1/8, kept per application (the
//! process's name) and per destination port, which serves where no process is known. What was never seen before is
//! taken for the median of the last connections, at the beginning 22.38 kB, the paper's web page. At most
//! [`MAX_KEYS`] applications and ports are remembered; the one unused for longest goes first.

use std::collections::{BTreeMap, VecDeque};

use pleach_core::{time::Instant, units::Bytes};

/// What is remembered of one application or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes to servers in a connection.
    pub up: u64,
    /// Bytes from servers in a connection.
    pub down: u64,
}

/// Remembers demands.
#[derive(Debug, Default)]
pub struct Demands {
    known: BTreeMap<String, (Demand, Instant)>,
    /// Sizes of the last connections, for the median.
    recent: VecDeque<u64>,
}

impl Demand {
    /// Both directions.
    #[must_use]
    pub fn total(self) -> Bytes {
        Bytes::new(self.up.saturating_add(self.down))
    }
}

impl Demands {
    /// What a connection of `app` to `port` will probably move.
    #[must_use]
    pub fn expected(&self, app: Option<&str>, port: u16) -> Demand {
        let of_app = app.and_then(|app| self.known.get(app));
        let of_port = || self.known.get(&port_key(port));
        match of_app.or_else(of_port) {
            Some((demand, _)) => *demand,
            None => self.prior(),
        }
    }

    /// Notes the end of a connection of `app` to `port` that moved `moved`.
    pub fn note(&mut self, now: Instant, app: Option<&str>, port: u16, moved: Demand) {
        let prior = self.prior();
        for key in app.map(str::to_owned).into_iter().chain([port_key(port)]) {
            let (demand, used_at) = self.known.entry(key).or_insert((prior, now));
            demand.up = smoothed(demand.up, moved.up);
            demand.down = smoothed(demand.down, moved.down);
            *used_at = now;
        }
        while self.known.len() > MAX_KEYS {
            let by_age = self.known.iter().min_by_key(|(_, (_, used_at))| *used_at);
            let Some(oldest) = by_age.map(|(key, _)| key.clone()) else {
                break;
            };
            self.known.remove(&oldest);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(moved.total().get());
    }

    /// All that is known, for keeping: name of the application, or `:PORT`.
    pub fn known(&self) -> impl Iterator<Item = (&str, Demand)> {
        let entries = self.known.iter();
        entries.map(|(key, (demand, _))| (key.as_str(), *demand))
    }

    /// Takes back what [`Self::known`] gave to an earlier run.
    pub fn restore(&mut self, now: Instant, known: impl IntoIterator<Item = (String, Demand)>) {
        let room = MAX_KEYS.saturating_sub(self.known.len());
        let entries = known.into_iter().take(room);
        self.known
            .extend(entries.map(|(key, demand)| (key, (demand, now))));
    }

    /// What somebody never seen before will move.
    fn prior(&self) -> Demand {
        let mut sizes: Vec<u64> = self.recent.iter().copied().collect();
        let middle = sizes.len() / 2;
        let median = if sizes.len() < LEAST_FOR_MEDIAN {
            FIRST_DEMAND
        } else {
            *sizes.select_nth_unstable(middle).1
        };
        Demand {
            up: 0,
            down: median,
        }
    }
}

/// No process is called so.
fn port_key(port: u16) -> String {
    format!(":{port}")
}

/// `(1 - 1/8) old + 1/8 new`, rounded to nearest.
fn smoothed(old: u64, new: u64) -> u64 {
    let sum = 7 * u128::from(old) + u128::from(new) + 4;
    u64::try_from(sum / 8).unwrap_or(u64::MAX)
}

/// Most applications and ports remembered.
pub const MAX_KEYS: usize = 1024;

/// The paper's mean web connection, 22.38 kB.
pub const FIRST_DEMAND: u64 = 22_380;

const RECENT: usize = 63;
const LEAST_FOR_MEDIAN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn down(down: u64) -> Demand {
        Demand { up: 0, down }
    }

    #[test]
    fn demand_follows_the_papers_equation() {
        let mut demands = Demands::default();
        assert_eq!(demands.expected(Some("ftp"), 21), down(FIRST_DEMAND));
        demands.note(Instant::ZERO, Some("ftp"), 21, down(1_000_000));
        let first = (7 * FIRST_DEMAND + 1_000_000 + 4) / 8;
        assert_eq!(demands.expected(Some("ftp"), 21), down(first));
        // Known by the port to whoever comes next, while the application has a mind of its own.
        assert_eq!(demands.expected(Some("scp"), 21), down(first));
        for _ in 0..100 {
            demands.note(Instant::ZERO, Some("ftp"), 21, down(1_000_000));
        }
        assert!(demands.expected(None, 21).down > 999_000);
    }

    #[test]
    fn strangers_are_taken_for_the_median() {
        let mut demands = Demands::default();
        for size in [1, 5_000, 5_000, 9_000, 1 << 40] {
            demands.note(Instant::ZERO, None, 80, down(size));
        }
        assert_eq!(demands.expected(Some("new"), 9999), down(5_000));
    }

    #[test]
    fn memory_is_bounded_and_survives_a_restart() {
        let mut demands = Demands::default();
        for n in 0..2 * MAX_KEYS as u64 {
            let name = format!("app{n}");
            demands.note(Instant::from_millis(n), Some(&name), 80, down(7));
        }
        assert_eq!(demands.known().count(), MAX_KEYS);
        let kept: Vec<_> = demands
            .known()
            .map(|(key, demand)| (key.to_owned(), demand))
            .collect();
        let mut again = Demands::default();
        again.restore(Instant::ZERO, kept);
        assert!(again.known().eq(demands.known()));
    }
}
