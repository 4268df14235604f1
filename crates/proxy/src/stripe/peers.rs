//! Where a peer answered: the outcome of asking, by address, for some time.
//!
//! At most [`MAX_PLACES`] are remembered; those without a peer go first, then the oldest. Nobody is waited for: who is not known yet is asked beside a
//! plain connection, and the next connection gains from it.

use core::time::Duration;
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use pleach_core::time::Instant;

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is being asked.
    Asked,
    /// The known peer of this number answered.
    Peer(usize),
    /// Nobody did, or nobody known.
    Nobody,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Places {
    answers: BTreeMap<IpAddr, (Answer, Instant)>,
    /// What a peer, by its number, did not allow.
    refused: BTreeMap<(usize, SocketAddr), Instant>,
}

impl Places {
    /// What is known of `ip`; `None`: ask.
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

    /// Notes what is known of `ip` now. O(log n), and O(n) when full.
    pub fn note(&mut self, now: Instant, ip: IpAddr, answer: Answer) {
        self.answers.insert(ip, (answer, now));
        if self.answers.len() > MAX_PLACES {
            // Strangers are many and lose nothing: they are asked again.
            let worth = |(answer, at): &(Answer, Instant)| (matches!(answer, Answer::Peer(_)), *at);
            let least = self.answers.iter().min_by_key(|(_, known)| worth(known));
            if let Some(ip) = least.map(|(ip, _)| *ip) {
                self.answers.remove(&ip);
            }
        }
    }

    /// Whether `peer` has lately not allowed a connection to `target`.
    #[must_use]
    pub fn is_refused(&self, now: Instant, peer: usize, target: SocketAddr) -> bool {
        let at = self.refused.get(&(peer, target));
        at.is_some_and(|at| now.since(*at) < NOBODY_AGE)
    }

    /// Notes that `peer` does not allow a connection to `target` now. O(log n), and O(n) when full.
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

/// Most addresses remembered, and most targets that peers did not allow.
pub const MAX_PLACES: usize = 4096;
/// Longer than an asking may take.
const ASKING: Duration = Duration::from_secs(30);
/// Each striped connection finds out anew whether it is still there.
const PEER_AGE: Duration = Duration::from_secs(24 * 3600);
/// A server that just got a pleach is found after this.
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
