//! Clients that have connected to this gateway of a fleet, until the store knows it.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::time::Instant;

use crate::{
    clients::{Departures, Places, StoreError},
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

    /// Writes the arrivals. Returns clients that have connected to another gateway since they have arrived here.
    ///
    /// # Errors
    /// If the store cannot be changed. The arrivals are tried again after [`AGAIN`].
    pub(super) fn write(
        &mut self,
        now: Instant,
        places: &mut dyn Places,
    ) -> Result<Departures, StoreError> {
        let written = if self.waiting.is_empty() {
            Ok(Departures::new())
        } else {
            places.arrive(&self.gateway, &self.waiting)
        };
        if written.is_ok() {
            self.waiting.clear();
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
    }

    impl Places for Recorder {
        fn arrive(
            &mut self,
            _: &str,
            arrived: &BTreeMap<[u8; KEY_LEN], Instant>,
        ) -> Result<Departures, StoreError> {
            if self.is_away {
                return Err(StoreError::Full);
            }
            self.written.push(arrived.clone());
            Ok(Departures::new())
        }

        fn departed(&mut self, _: &str) -> Result<Departures, StoreError> {
            Ok(Departures::new())
        }

        fn all(&mut self) -> Result<BTreeMap<[u8; KEY_LEN], (String, u64)>, StoreError> {
            Ok(BTreeMap::new())
        }
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
