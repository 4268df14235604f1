//! Addresses at which a peer has answered: the results of asking, stored for some time.
//!
//! At most [`MAX_PLACES`] addresses are stored. When the table is full, addresses without a peer are removed first,
//! then the oldest. No connection waits for a result: an unknown address is asked in parallel with a plain
//! connection, and the next connection uses the result.

use core::time::Duration;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use pleach_core::time::Instant;

/// Result of asking an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The address is being asked.
    Asked,
    /// The known peer of this number answered.
    Peer(usize),
    /// No peer answered, or none that is known.
    Nobody,
}

/// Addresses at which a peer has answered.
#[derive(Debug, Default)]
pub struct Places {
    answers: BTreeMap<IpAddr, (Answer, Instant)>,
    /// Targets that a peer, identified by its number, has refused.
    refused: BTreeMap<(usize, SocketAddr), Instant>,
}

impl Places {
    /// Returns the stored result for `ip`. `None` if the address should be asked.
    #[must_use]
    pub fn answer(&self, now: Instant, ip: IpAddr) -> Option<Answer> {
        let (answer, at) = self.answers.get(&ip)?;
        let age = match answer {
            Answer::Asked => ASKING,
            Answer::Peer(_) => PEER_AGE,
            Answer::Nobody => NOBODY_AGE,
        };
        (now.since(*at) < age).then_some(*answer)
    }

    /// Stores the result for `ip`. O(log n), and O(n) if the table is full.
    pub fn note(&mut self, now: Instant, ip: IpAddr, answer: Answer) {
        self.answers.insert(ip, (answer, now));
        if self.answers.len() > MAX_PLACES {
            // Addresses without a peer are many, and can be asked again.
            let worth = |(answer, at): &(Answer, Instant)| (matches!(answer, Answer::Peer(_)), *at);
            let least = self.answers.iter().min_by_key(|(_, known)| worth(known));
            if let Some(ip) = least.map(|(ip, _)| *ip) {
                self.answers.remove(&ip);
            }
        }
    }

    /// Whether `peer` has recently refused connections to `target`.
    #[must_use]
    pub fn is_refused(&self, now: Instant, peer: usize, target: SocketAddr) -> bool {
        let at = self.refused.get(&(peer, target));
        at.is_some_and(|at| now.since(*at) < NOBODY_AGE)
    }

    /// Stores that `peer` does not allow connections to `target`. O(log n), and O(n) if the table is full.
    pub fn note_refused(&mut self, now: Instant, peer: usize, target: SocketAddr) {
        self.refused.insert((peer, target), now);
        if self.refused.len() > MAX_PLACES {
            let oldest = self.refused.iter().min_by_key(|(_, at)| **at);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.refused.remove(&key);
            }
        }
    }
}

/// Maximum number of addresses stored, and of targets that peers have refused.
pub const MAX_PLACES: usize = 4096;
/// Time after which a pending request is considered lost: longer than asking may take.
const ASKING: Duration = Duration::from_secs(30);
/// Time for which a peer is remembered. It may be long because each striped connection shows again whether the peer
/// exists.
const PEER_AGE: Duration = Duration::from_secs(24 * 3600);
/// Time for which the absence of a peer is remembered. A server on which pleach was installed is found after this
/// time.
const NOBODY_AGE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_age_and_the_table_has_a_bound() {
        let mut places = Places::default();
        let at = |seconds: u64| Instant::from_millis(seconds * 1000);
        let ip = |n: u32| IpAddr::from(n.to_be_bytes());
        assert_eq!(places.answer(at(0), ip(1)), None);
        places.note(at(0), ip(1), Answer::Asked);
        assert_eq!(places.answer(at(29), ip(1)), Some(Answer::Asked));
        assert_eq!(places.answer(at(30), ip(1)), None);
        places.note(at(30), ip(1), Answer::Nobody);
        assert_eq!(places.answer(at(629), ip(1)), Some(Answer::Nobody));
        assert_eq!(places.answer(at(630), ip(1)), None);
        places.note(at(630), ip(1), Answer::Peer(2));
        assert_eq!(places.answer(at(9000), ip(1)), Some(Answer::Peer(2)));
        let most = u32::try_from(MAX_PLACES).expect("small");
        for n in 2..=most + 1 {
            places.note(at(1000 + u64::from(n)), ip(n), Answer::Nobody);
        }
        assert_eq!(places.answers.len(), MAX_PLACES);
        assert_eq!(places.answer(at(9000), ip(1)), Some(Answer::Peer(2)));
        assert!(!places.answers.contains_key(&ip(2)), "the oldest stranger");
        for n in 2..=most + 1 {
            places.note(at(9000 + u64::from(n)), ip(n), Answer::Peer(0));
        }
        assert_eq!(places.answers.len(), MAX_PLACES);
        assert!(!places.answers.contains_key(&ip(1)), "the oldest peer");
    }

    #[test]
    fn what_a_peer_does_not_allow_is_remembered_for_that_alone() {
        let mut places = Places::default();
        let at = |seconds: u64| Instant::from_millis(seconds * 1000);
        let target = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        places.note_refused(at(0), 1, target(80));
        assert!(places.is_refused(at(599), 1, target(80)));
        assert!(!places.is_refused(at(600), 1, target(80)));
        assert!(
            !places.is_refused(at(1), 1, target(81)) && !places.is_refused(at(1), 0, target(80))
        );
        let most = u16::try_from(MAX_PLACES).expect("small");
        for port in 100..=100 + most {
            places.note_refused(at(u64::from(port)), 1, target(port));
        }
        assert_eq!(places.refused.len(), MAX_PLACES);
        assert!(places.is_refused(at(500), 1, target(500)));
    }
}
