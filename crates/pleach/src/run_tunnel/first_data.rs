//! Clients of an engine that have just connected to a gateway of a fleet, until they are here: they have sent inner data, or are
//! still up after [`SETTLED`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pleach_core::{endpoint::enrolment::Seen, time::Instant};

use crate::keys::KEY_LEN;

/// The clients of an engine that are watched: while they are connected, and for [`WATCHED`] in any case.
#[derive(Debug, Default)]
pub(super) struct FirstData(BTreeMap<[u8; KEY_LEN], Watched>);

#[derive(Debug)]
struct Watched {
    since: Instant,
    /// Inner bytes that the client had sent before.
    bytes: u64,
    /// When the client is here if it is up.
    look_at: Instant,
}

impl Watched {
    /// Whether the client stays, at a time when it may be here although it sends nothing. A client that has gone without a
    /// goodbye may count as up for longer than that, so it must have been heard. One whose links are in reserve is rarely
    /// heard.
    fn stays(&self, now: Instant, seen: Seen) -> bool {
        let is_heard = seen.heard_at.is_some_and(|at| at > self.since + HEARD);
        seen.is_up && (is_heard || now >= self.since + RESERVE)
    }
}

impl FirstData {
    /// Begins to watch a client.
    pub(super) fn watch(&mut self, now: Instant, public_key: [u8; KEY_LEN], seen: Option<Seen>) {
        let watched = Watched {
            since: now,
            bytes: seen.unwrap_or_default().bytes,
            look_at: now + SETTLED,
        };
        self.0.insert(public_key, watched);
    }

    /// Returns when [`Self::take`] may have something to return although no client sends.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.0.values().map(|watched| watched.look_at).min()
    }

    /// Returns the clients that are here now, and watches them no longer. `seen`: what the engine says about a client.
    pub(super) fn take(
        &mut self,
        now: Instant,
        seen: impl Fn(&[u8; KEY_LEN]) -> Option<Seen>,
    ) -> BTreeSet<[u8; KEY_LEN]> {
        let mut here = BTreeSet::new();
        self.0.retain(|key, watched| {
            let seen = seen(key).unwrap_or_default();
            let is_due = now >= watched.look_at;
            let is_here = seen.bytes > watched.bytes || (is_due && watched.stays(now, seen));
            if is_here {
                here.insert(*key);
            } else if is_due {
                watched.look_at = now + LOOK_EVERY;
            }
            !is_here && (seen.is_connected || now < watched.since + WATCHED)
        });
        here
    }
}

/// Time after which a client that has connected and sends nothing is here: longer than a client waits for all of its links before
/// it uses the next gateway.
const SETTLED: Duration = Duration::from_millis(700);
/// Time after which such a client must have been heard: it probes an idle path after 550 ms.
const HEARD: Duration = Duration::from_millis(500);
/// Time after which a client need not have been heard: a silent path that is probed is down by then.
const RESERVE: Duration = Duration::from_secs(2);
/// Interval of looks at a client that is not up, or was not heard.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time for which a client is watched even if it is not connected, because it may have just come back.
const WATCHED: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(50_000);

    /// A client that was heard `heard` milliseconds after it had connected.
    fn seen(bytes: u64, is_up: bool, heard: u64) -> Option<Seen> {
        Some(Seen {
            bytes,
            is_up,
            is_connected: true,
            heard_at: Some(START + Duration::from_millis(heard)),
        })
    }

    fn watch(keys: &[u8]) -> FirstData {
        let mut watched = FirstData::default();
        for key in keys {
            watched.watch(START, [*key; KEY_LEN], seen(100, true, 0));
        }
        watched
    }

    #[test]
    fn a_client_is_here_when_it_sends_or_stays() {
        let mut watched = watch(&[1, 2]);
        let of = |key: &[u8; KEY_LEN]| seen(100 + u64::from(key[0] == 2), true, 560);
        assert!(watched.take(START, |_| seen(100, true, 0)).is_empty());
        assert_eq!(watched.take(START, of), BTreeSet::from([[2; KEY_LEN]]));
        assert!(watched.take(START, of).is_empty(), "once");
        let at = watched.next_at().expect("due");
        assert_eq!(at, START + SETTLED);
        assert_eq!(watched.take(at, of), BTreeSet::from([[1; KEY_LEN]]));
        assert_eq!(watched.next_at(), None);
    }

    #[test]
    fn a_client_that_has_fallen_silent_is_not_here() {
        // The paths of the first one are suspect; those of the second one are not yet, but it is heard no more.
        let mut watched = watch(&[1, 2]);
        let at = START + SETTLED;
        let of = |key: &[u8; KEY_LEN]| seen(100, key[0] == 2, 20);
        assert!(watched.take(at, of).is_empty());
        assert_eq!(watched.next_at(), Some(at + LOOK_EVERY));
        // The first one works again, long after; the second one has links that are in reserve only.
        let later = START + Duration::from_secs(8);
        assert_eq!(watched.take(later, of), BTreeSet::from([[2; KEY_LEN]]));
        let up = |_: &[u8; KEY_LEN]| seen(100, true, 9_000);
        let later = later + LOOK_EVERY;
        assert_eq!(watched.take(later, up), BTreeSet::from([[1; KEY_LEN]]));

        let mut watched = watch(&[1]);
        assert!(watched.take(later, |_| None).is_empty());
        assert!(watched.0.is_empty());
    }
}
