//! Where a peer answered: the outcome of asking, by address, for some time.
//!
//! At most [`MAX_PLACES`] are remembered; the oldest goes first. Nobody is waited for: who is not known yet is asked beside a
//! plain connection, and the next connection gains from it.

use core::time::Duration;
use std::{collections::BTreeMap, net::IpAddr};

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
pub struct Places(BTreeMap<IpAddr, (Answer, Instant)>);

impl Places {
    /// What is known of `ip`; `None`: ask.
    #[must_use]
    pub fn answer(&self, now: Instant, ip: IpAddr) -> Option<Answer> {
        let (answer, at) = self.0.get(&ip)?;
        let age = match answer {
            Answer::Asked => ASKING,
            Answer::Peer(_) => PEER_AGE,
            Answer::Nobody => NOBODY_AGE,
        };
        (now.since(*at) < age).then_some(*answer)
    }

    /// Notes what is known of `ip` now. O(log n), and O(n) when full.
    pub fn note(&mut self, now: Instant, ip: IpAddr, answer: Answer) {
        self.0.insert(ip, (answer, now));
        if self.0.len() > MAX_PLACES {
            let oldest = self.0.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(ip) = oldest.map(|(ip, _)| *ip) {
                self.0.remove(&ip);
            }
        }
    }
}

/// Most addresses remembered.
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
        for n in 2..=u32::try_from(MAX_PLACES).expect("small") + 1 {
            places.note(at(1000), ip(n), Answer::Nobody);
        }
        assert_eq!(places.0.len(), MAX_PLACES);
        assert_eq!(places.answer(at(1000), ip(1)), None);
    }
}
