//! Clients that have connected to this gateway of a fleet, until the store knows it.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::time::Instant;

use crate::{
    clients::{Places, StoreError},
    keys::KEY_LEN,
};

/// Arrivals that the store does not know yet.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Name of this gateway in the store.
    gateway: String,
    waiting: BTreeMap<[u8; KEY_LEN], Arrival>,
    /// When the next arrivals are to be written; `None` if none are waiting.
    due: Option<Instant>,
    /// Whether the last attempt has failed.
    is_failing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Time of day, in milliseconds since 1970.
    at_ms: u64,
    noted_at: Instant,
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

    /// Notes that a client has connected at the time of day `at_ms`, in milliseconds since 1970.
    pub(super) fn add(&mut self, now: Instant, public_key: [u8; KEY_LEN], at_ms: u64) {
        let arrival = Arrival {
            at_ms,
            noted_at: now,
        };
        self.waiting.insert(public_key, arrival);
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

    /// Writes the arrivals. Those that have waited for long do not replace later news.
    ///
    /// # Errors
    /// If the store cannot be changed. The arrivals are tried again after [`AGAIN`].
    pub(super) fn write(
        &mut self,
        now: Instant,
        places: &mut dyn Places,
    ) -> Result<(), StoreError> {
        for is_late in [true, false] {
            let is_of_these = |arrival: &Arrival| (now.since(arrival.noted_at) > PROMPT) == is_late;
            let batch: BTreeMap<[u8; KEY_LEN], u64> = self
                .waiting
                .iter()
                .filter(|(_, arrival)| is_of_these(arrival))
                .map(|(key, arrival)| (*key, arrival.at_ms))
                .collect();
            if batch.is_empty() {
                continue;
            }
            if let Err(error) = places.arrive(&self.gateway, &batch, is_late) {
                self.due = Some(now + AGAIN);
                return Err(error);
            }
            self.waiting.retain(|key, _| !batch.contains_key(key));
        }
        self.due = None;
        Ok(())
    }

    /// Returns the clients that have left this gateway for another one.
    ///
    /// # Errors
    /// If the store cannot be changed.
    pub(super) fn departed(
        &self,
        places: &mut dyn Places,
    ) -> Result<Vec<[u8; KEY_LEN]>, StoreError> {
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
/// Age up to which an arrival is the latest news, whatever the clocks of other gateways say: a client needs about a second to
/// change its gateway.
const PROMPT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that records what is written, or fails.
    #[derive(Default)]
    struct Recorder {
        is_away: bool,
        written: Vec<(usize, bool)>,
    }

    impl Places for Recorder {
        fn arrive(
            &mut self,
            _: &str,
            arrived: &BTreeMap<[u8; KEY_LEN], u64>,
            is_late: bool,
        ) -> Result<(), StoreError> {
            if self.is_away {
                return Err(StoreError::Full);
            }
            self.written.push((arrived.len(), is_late));
            Ok(())
        }

        fn departed(&mut self, _: &str) -> Result<Vec<[u8; KEY_LEN]>, StoreError> {
            Ok(Vec::new())
        }

        fn all(&mut self) -> Result<BTreeMap<[u8; KEY_LEN], (String, u64)>, StoreError> {
            Ok(BTreeMap::new())
        }
    }

    #[test]
    fn arrivals_wait_while_the_store_is_away_and_are_late_then() {
        let mut arrivals = Arrivals::new("gw1".to_owned());
        let mut store = Recorder {
            is_away: true,
            ..Recorder::default()
        };
        let start = Instant::ZERO + Duration::from_secs(100);
        assert_eq!(arrivals.due(), None);
        arrivals.add(start, [1; KEY_LEN], 5);
        arrivals.add(start, [2; KEY_LEN], 5);
        assert_eq!(arrivals.due(), Some(start + TOGETHER));
        assert!(arrivals.write(start, &mut store).is_err());
        let later = start + Duration::from_secs(60);
        assert!(arrivals.due().is_some_and(|due| due <= later));
        arrivals.add(later, [2; KEY_LEN], 6);
        arrivals.add(later, [3; KEY_LEN], 6);
        store.is_away = false;
        arrivals.write(later, &mut store).expect("back");
        assert_eq!(store.written, [(1, true), (2, false)]);
        assert_eq!(arrivals.due(), None);
        arrivals.write(later, &mut store).expect("nothing to write");
        assert_eq!(store.written.len(), 2);
    }
}
