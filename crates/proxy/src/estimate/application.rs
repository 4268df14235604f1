//! How much data a connection of an application will move.
//!
//! The estimate follows equation 1 of the DBAS paper and is updated at the end of each connection: `C = (1 - a) C + a
//! CC` with `a` = 1/8. It is stored per application (the process's name) and per destination port, which is used if
//! the process is not known. An application and port never seen before are expected to move the median of recent
//! connections; at the beginning 22.38 kB, which is the size of that paper's web page. At most [`MAX_KEYS`]
//! applications and ports are stored. The least recently used entry is removed first.
//!
//! Two more averages are computed in the same way, in addition to the paper:
//!
//! - The bytes of one answer, because a browser sends several requests over one connection.
//! - The deviation of connections from the mean. If sizes vary, the bytes that a connection has moved say little
//!   about the bytes that are left ([`Expected::left`]).
//!
//! Neither of these two is stored across a restart.

use std::collections::{BTreeMap, VecDeque};

use pleach_core::{time::Instant, units::Bytes};

/// Mean amount of data per connection of one application or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Number of bytes to servers per connection.
    pub up: u64,
    /// Number of bytes from servers per connection.
    pub down: u64,
}

/// Amount of data that a connection is expected to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Mean amount of data per connection.
    pub demand: Demand,
    /// Mean deviation of connections from the mean amount; zero if it is not known.
    pub deviation: Bytes,
    /// Mean amount of data per request and its answer.
    pub answer: Bytes,
}

/// Estimates for applications and ports.
#[derive(Debug, Default)]
pub struct Demands {
    known: BTreeMap<String, (Expected, Instant)>,
    /// Sizes of the most recent connections, for the median.
    recent: VecDeque<u64>,
}

impl Demand {
    /// Returns the sum of both directions.
    #[must_use]
    pub fn total(self) -> Bytes {
        Bytes::new(self.up.saturating_add(self.down))
    }
}

impl Expected {
    /// Returns the expectation of exactly `demand`, without deviation.
    #[must_use]
    pub fn exactly(demand: Demand) -> Self {
        Self {
            demand,
            deviation: Bytes::ZERO,
            answer: demand.total(),
        }
    }

    /// Returns how many bytes a connection that has moved `moved` bytes will probably still move.
    ///
    /// If sizes do not vary, the connection moves the rest of the mean. If sizes vary like exponentially distributed
    /// ones, the expected rest is the whole mean, however much was moved. In between, the rest is interpolated by the
    /// deviation. A connection beyond the mean is expected to move half of the mean plus half of the bytes moved so
    /// far: a compromise between the whole mean and as many bytes as it has moved, which would hold for sizes without
    /// a characteristic scale.
    #[must_use]
    pub fn left(self, moved: Bytes) -> Bytes {
        let (mean, moved) = (self.demand.total().get(), moved.get());
        let left = if moved < mean {
            // The mean absolute deviation of exponentially distributed sizes is 2/e of their mean.
            let exponential = (u128::from(mean) * 736 / 1000).max(1);
            let deviation = u128::from(self.deviation.get()).min(exponential);
            let again = u128::from(moved) * deviation / exponential;
            mean - moved + u64::try_from(again).unwrap_or(moved)
        } else {
            mean / 2 + moved / 2
        };
        Bytes::new(left)
    }
}

impl Demands {
    /// Returns the amount of data that a connection of `app` to `port` will probably move.
    #[must_use]
    pub fn expected(&self, app: Option<&str>, port: u16) -> Expected {
        let of_app = app.and_then(|app| self.known.get(app));
        let of_port = || self.known.get(&port_key(port));
        match of_app.or_else(of_port) {
            Some((expected, _)) => *expected,
            None => Expected::exactly(self.prior()),
        }
    }

    /// Records the end of a connection of `app` to `port` that moved `moved` bytes for `questions` requests.
    pub fn note(
        &mut self,
        now: Instant,
        app: Option<&str>,
        port: u16,
        moved: Demand,
        questions: u64,
    ) {
        let prior = self.prior();
        for key in app.map(str::to_owned).into_iter().chain([port_key(port)]) {
            let first = (Expected::exactly(prior), now);
            let (expected, used_at) = self.known.entry(key).or_insert(first);
            let Expected {
                demand,
                deviation,
                answer,
            } = expected;
            let one = moved.total().get() / questions.max(1);
            *answer = Bytes::new(smoothed(answer.get(), one));
            let off = demand.total().get().abs_diff(moved.total().get());
            *deviation = Bytes::new(smoothed(deviation.get(), off));
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

    /// Returns all estimates, to be stored: name of the application or `:PORT`, and demand.
    pub fn known(&self) -> impl Iterator<Item = (&str, Demand)> {
        let entries = self.known.iter();
        entries.map(|(key, (expected, _))| (key.as_str(), expected.demand))
    }

    /// Loads the estimates that [`Self::known`] returned in an earlier run.
    pub fn restore(&mut self, now: Instant, known: impl IntoIterator<Item = (String, Demand)>) {
        let room = MAX_KEYS.saturating_sub(self.known.len());
        let entries = known.into_iter().take(room);
        self.known
            .extend(entries.map(|(key, demand)| (key, (Expected::exactly(demand), now))));
    }

    /// Returns the expected demand of an application and port never seen before.
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

/// Returns the key of a port. No process has such a name.
fn port_key(port: u16) -> String {
    format!(":{port}")
}

/// Returns `(1 - 1/8) old + 1/8 new`, rounded to nearest.
fn smoothed(old: u64, new: u64) -> u64 {
    let sum = 7 * u128::from(old) + u128::from(new) + 4;
    u64::try_from(sum / 8).unwrap_or(u64::MAX)
}

/// Maximum number of applications and ports stored.
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

    fn expects(demands: &Demands, app: Option<&str>, port: u16) -> Demand {
        demands.expected(app, port).demand
    }

    #[test]
    fn what_is_left_depends_on_how_sizes_vary() {
        let left = |deviation: u64, moved: u64| {
            let deviation = Bytes::new(deviation);
            let expected = Expected {
                demand: down(1000),
                deviation,
                answer: Bytes::ZERO,
            };
            expected.left(Bytes::new(moved)).get()
        };
        // The deviation is zero, then that of exponentially distributed sizes, then half of it.
        assert_eq!([left(0, 0), left(0, 600)], [1000, 400]);
        assert_eq!([left(736, 0), left(736, 600)], [1000, 1000]);
        assert_eq!([left(368, 600), left(5000, 600)], [700, 1000]);
        assert_eq!([left(0, 1000), left(736, 9000)], [1000, 5000]);
    }

    #[test]
    fn deviation_is_learnt_beside_the_mean() {
        let mut demands = Demands::default();
        for _ in 0..100 {
            demands.note(Instant::ZERO, Some("same"), 1, down(5_000), 1);
        }
        assert!(demands.expected(Some("same"), 1).deviation < Bytes::new(50));
        for turn in 0..100 {
            let size = if turn % 2 == 0 { 1_000 } else { 9_000 };
            demands.note(Instant::ZERO, Some("either"), 2, down(size), 1);
        }
        let deviation = demands.expected(Some("either"), 2).deviation.get();
        assert!((3_500..4_500).contains(&deviation), "{deviation}");
    }

    #[test]
    fn what_comes_of_one_question_is_learnt_too() {
        let mut demands = Demands::default();
        assert_eq!(demands.expected(None, 80).answer, Bytes::new(FIRST_DEMAND));
        for _ in 0..100 {
            demands.note(Instant::ZERO, None, 80, down(120_000), 4);
            demands.note(Instant::ZERO, None, 25, down(120_000), 0);
        }
        let near = |port, wanted: u64| {
            let answer = demands.expected(None, port).answer.get();
            answer.abs_diff(wanted) < 100
        };
        assert!(near(80, 30_000) && near(25, 120_000));
    }

    #[test]
    fn demand_follows_the_papers_equation() {
        let mut demands = Demands::default();
        assert_eq!(expects(&demands, Some("ftp"), 21), down(FIRST_DEMAND));
        demands.note(Instant::ZERO, Some("ftp"), 21, down(1_000_000), 1);
        let first = (7 * FIRST_DEMAND + 1_000_000 + 4) / 8;
        assert_eq!(expects(&demands, Some("ftp"), 21), down(first));
        // A new application gets the estimate of the port; an application with an estimate of its own does not.
        assert_eq!(expects(&demands, Some("scp"), 21), down(first));
        for _ in 0..100 {
            demands.note(Instant::ZERO, Some("ftp"), 21, down(1_000_000), 1);
        }
        assert!(expects(&demands, None, 21).down > 999_000);
    }

    #[test]
    fn strangers_are_taken_for_the_median() {
        let mut demands = Demands::default();
        for size in [1, 5_000, 5_000, 9_000, 1 << 40] {
            demands.note(Instant::ZERO, None, 80, down(size), 1);
        }
        assert_eq!(expects(&demands, Some("new"), 9999), down(5_000));
    }

    #[test]
    fn memory_is_bounded_and_survives_a_restart() {
        let mut demands = Demands::default();
        for n in 0..2 * MAX_KEYS as u64 {
            let name = format!("app{n}");
            demands.note(Instant::from_millis(n), Some(&name), 80, down(7), 1);
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
