//! Clients that have connected to this gateway of a fleet, until the store knows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pleach_core::time::Instant;

use crate::{
    clients::{Arrived, Departures, Places, StoreError},
    keys::KEY_LEN,
};

/// Arrivals that the store does not know yet.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Name of this gateway in the store.
    gateway: String,
    /// When each client has connected.
    waiting: BTreeMap<[u8; KEY_LEN], Instant>,
    /// When the next arrivals are to be written; `None` if none are waiting.
    due: Option<Instant>,
    /// Clients that another gateway may still announce.
    contested: BTreeSet<[u8; KEY_LEN]>,
    /// When it is asked next whether it still may, and the time after that if it does: a gateway may be dead for days.
    ask_at: Instant,
    ask_after: Duration,
    /// Whether the last attempt has failed.
    is_failing: bool,
}

impl Arrivals {
    /// Returns the state at the start of the gateway `gateway`.
    pub(super) const fn new(gateway: String) -> Self {
        Self {
            gateway,
            waiting: BTreeMap::new(),
            due: None,
            contested: BTreeSet::new(),
            ask_at: Instant::ZERO,
            ask_after: ASK_EVERY,
            is_failing: false,
        }
    }

    /// Notes that a client has connected at the time `at`.
    pub(super) fn add(&mut self, now: Instant, public_key: [u8; KEY_LEN], at: Instant) {
        self.waiting.insert(public_key, at);
        self.due.get_or_insert(now + TOGETHER);
    }

    /// Returns when [`Self::write`] is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Lets the arrivals wait until `at`, because the store cannot be used.
    pub(super) fn wait_until(&mut self, at: Instant) {
        if self.due.is_some() {
            self.due = Some(at);
        }
    }

    /// Writes the arrivals. Returns what the store knows about the clients.
    ///
    /// # Errors
    /// If the store cannot be changed. The arrivals are tried again after [`AGAIN`].
    pub(super) fn write(
        &mut self,
        now: Instant,
        places: &mut dyn Places,
    ) -> Result<Arrived, StoreError> {
        let written = if self.waiting.is_empty() {
            Ok(Arrived::default())
        } else {
            places.arrive(&self.gateway, &self.waiting)
        };
        if let Ok(arrived) = &written {
            self.waiting.clear();
            if !arrived.contested.is_empty() {
                (self.ask_at, self.ask_after) = (now, ASK_EVERY);
            }
            self.contested.extend(&arrived.contested);
        }
        self.due = written.is_err().then_some(now + AGAIN);
        written
    }

    /// Returns the clients that have left this gateway for another one.
    ///
    /// # Errors
    /// If the store cannot be changed.
    pub(super) fn departed(&self, places: &mut dyn Places) -> Result<Departures, StoreError> {
        places.departed(&self.gateway)
    }

    /// Returns the clients that no other gateway announces any more.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) fn settled(
        &mut self,
        now: Instant,
        places: &mut dyn Places,
    ) -> Result<BTreeSet<[u8; KEY_LEN]>, StoreError> {
        if self.contested.is_empty() || now < self.ask_at {
            return Ok(BTreeSet::new());
        }
        let still = places.contested(&self.gateway, &self.contested)?;
        let settled = self.contested.extract_if(.., |key| !still.contains(key));
        let settled: BTreeSet<_> = settled.collect();
        if !settled.is_empty() {
            self.ask_after = ASK_EVERY;
        }
        self.ask_at = now + self.ask_after;
        self.ask_after = (self.ask_after * 2).min(ASK_RARELY);
        Ok(settled)
    }

    /// Notes that a client is not known here any more.
    pub(super) fn forget(&mut self, public_key: &[u8; KEY_LEN]) {
        self.waiting.remove(public_key);
        self.contested.remove(public_key);
    }

    /// Logs a failure, of successive ones only the first.
    pub(super) fn tell(&mut self, error: Option<&StoreError>) {
        if let Some(error) = error.filter(|_| !self.is_failing) {
            tracing::warn!(
                "where clients are is not written to the store, and tried again: {error}"
            );
        }
        self.is_failing = error.is_some();
    }
}

/// Time within which arrivals are written together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Shortest and longest interval of questions about clients that another gateway may still announce.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_RARELY: Duration = Duration::from_secs(30);
/// Time after a failure after which the arrivals are tried again.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that records what is written, or fails.
    #[derive(Default)]
    struct Recorder {
        is_away: bool,
        written: Vec<BTreeMap<[u8; KEY_LEN], Instant>>,
        contested: BTreeSet<[u8; KEY_LEN]>,
        /// Number of questions about contested clients.
        questions: u32,
    }

    impl Places for Recorder {
        fn arrive(
            &mut self,
            _: &str,
            arrived: &BTreeMap<[u8; KEY_LEN], Instant>,
        ) -> Result<Arrived, StoreError> {
            if self.is_away {
                return Err(StoreError::Full);
            }
            self.written.push(arrived.clone());
            Ok(Arrived {
                contested: self.contested.clone(),
                ..Arrived::default()
            })
        }

        fn contested(
            &mut self,
            _: &str,
            keys: &BTreeSet<[u8; KEY_LEN]>,
        ) -> Result<BTreeSet<[u8; KEY_LEN]>, StoreError> {
            self.questions += 1;
            Ok(self.contested.intersection(keys).copied().collect())
        }

        fn departed(&mut self, _: &str) -> Result<Departures, StoreError> {
            Ok(Departures::new())
        }

        fn all(&mut self) -> Result<BTreeMap<[u8; KEY_LEN], (String, u64)>, StoreError> {
            Ok(BTreeMap::new())
        }
    }

    #[test]
    fn a_client_is_settled_when_the_other_gateway_has_asked_however_late() {
        let mut arrivals = Arrivals::new("gw1".to_owned());
        let mut store = Recorder::default();
        let start = Instant::from_millis(100_000);
        store.contested = BTreeSet::from([[1; KEY_LEN], [2; KEY_LEN]]);
        for key in 1..=3 {
            arrivals.add(start, [key; KEY_LEN], start);
        }
        arrivals.write(start, &mut store).expect("written");
        let mut settled = |store: &mut Recorder, seconds| {
            let now = start + Duration::from_secs(seconds);
            arrivals.settled(now, store).expect("readable")
        };
        assert!(settled(&mut store, 0).is_empty());
        store.contested.remove(&[1; KEY_LEN]);
        assert!(settled(&mut store, 0).is_empty(), "asked a moment ago");
        assert_eq!(settled(&mut store, 1), BTreeSet::from([[1; KEY_LEN]]));
        // The other gateway is dead: the questions become rare.
        let questions = (2..602).filter(|second| {
            let before = store.questions;
            settled(&mut store, *second);
            store.questions > before
        });
        assert!((20..30).contains(&questions.count()));
        store.contested.clear();
        assert_eq!(settled(&mut store, 700), BTreeSet::from([[2; KEY_LEN]]));

        store.contested = BTreeSet::from([[3; KEY_LEN]]);
        arrivals.add(start, [3; KEY_LEN], start);
        arrivals.write(start, &mut store).expect("written");
        arrivals.forget(&[3; KEY_LEN]);
        store.contested.clear();
        let settled = arrivals.settled(start, &mut store).expect("readable");
        assert!(settled.is_empty());
    }

    #[test]
    fn arrivals_wait_while_the_store_is_away_and_keep_their_times() {
        let mut arrivals = Arrivals::new("gw1".to_owned());
        let mut store = Recorder {
            is_away: true,
            ..Recorder::default()
        };
        let start = Instant::ZERO + Duration::from_secs(100);
        assert_eq!(arrivals.due(), None);
        arrivals.add(start, [1; KEY_LEN], start);
        arrivals.add(start, [2; KEY_LEN], start);
        assert_eq!(arrivals.due(), Some(start + TOGETHER));
        assert!(arrivals.write(start, &mut store).is_err());
        let later = start + Duration::from_secs(60);
        assert!(arrivals.due().is_some_and(|due| due <= later));
        arrivals.add(later, [2; KEY_LEN], later);
        store.is_away = false;
        arrivals.write(later, &mut store).expect("back");
        let wanted = BTreeMap::from([([1; KEY_LEN], start), ([2; KEY_LEN], later)]);
        assert_eq!(store.written, [wanted]);
        assert_eq!(arrivals.due(), None);
        arrivals.write(later, &mut store).expect("nothing to write");
        assert_eq!(store.written.len(), 1);
    }
}
