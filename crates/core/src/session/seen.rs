//! Remembers which initiations a responder has processed, so that it does curve operations only once for each.
//!
//! An initiation is identified by its mac1, which covers all bytes before it. A copy is detected by one look-up, before
//! any curve operation. Nobody can make the responder reject a genuine initiation in advance: an attacker who sees the
//! initiation and first sends other bytes with the same ephemeral key produces another mac1. An initiation that was
//! read without a proof of its address may arrive once more with a proof, because that is how the sender answers a
//! cookie reply.
//!
//! There are two generations, which change together with the cookie secret. An initiation with a proof is remembered at
//! least as long as its cookie is valid. So a recorded initiation is either known here or no longer proved. A recorded
//! initiation without a proof has an old timestamp, or its sender is asked for a proof.
//!
//! The last answered initiations of each peer are remembered longer ([`RecentInitiations`]), so that a copy of one of
//! them gets no answer at all. They are identified by their ephemeral keys, because they have been authenticated.
//!
//! Bound: 16 384 ids of 8 bytes in each of two generations, about 0.5 MiB. When a generation [is
//! full](SeenInitiations::is_full), the owner changes the secret, and thereby the generation, early.

use std::collections::BTreeMap;

use super::handshake::EphemeralId;
use crate::wire::handshake::InitiationView;

/// Identifies a datagram before it is authenticated: the first 64 bits of mac1. To create another datagram with the
/// same id takes 2^64 hashes while the genuine datagram is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacId(pub u64);

impl MacId {
    /// Returns the id of an initiation whose mac1 was checked.
    #[must_use]
    pub fn of(view: &InitiationView<'_>) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = view.macs().mac1();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// The initiations that were read.
#[derive(Debug, Default)]
pub struct SeenInitiations {
    /// Initiations of the current generation, each with whether it was read with a proof.
    current: BTreeMap<MacId, bool>,
    previous: BTreeMap<MacId, bool>,
}

impl SeenInitiations {
    /// Returns the state without any initiations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `id` was read before. If it is `proved` now, whether it was read with a proof. O(log n).
    #[must_use]
    pub fn contains(&self, id: MacId, proved: bool) -> bool {
        [&self.current, &self.previous]
            .into_iter()
            .filter_map(|generation| generation.get(&id))
            .any(|&was_proved| was_proved || !proved)
    }

    /// Records that `id` is read now.
    pub fn insert(&mut self, id: MacId, proved: bool) {
        self.current
            .entry(id)
            .and_modify(|was_proved| *was_proved |= proved)
            .or_insert(proved);
    }

    /// Whether a new generation is needed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.current.len() >= MAX_PER_GENERATION
    }

    /// Starts a new generation, because the cookie secret has changed, and forgets the generation before the current
    /// one.
    pub fn on_new_secret(&mut self) {
        self.previous = core::mem::take(&mut self.current);
    }
}

/// Ephemeral keys of a client's last 64 answered initiations; at most 0.5 KiB.
#[derive(Clone, Debug)]
pub struct RecentInitiations {
    /// Ring of ids, which grows up to [`Self::LEN`]. Then the oldest id is at `next`.
    ids: Vec<EphemeralId>,
    next: usize,
}

impl RecentInitiations {
    /// Number of initiations that are remembered.
    pub const LEN: usize = 64;

    /// Returns the state without any initiations.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ids: Vec::new(),
            next: 0,
        }
    }

    /// Whether this initiation was answered before: it is a replay, or a copy that was sent over another link. O(64).
    #[must_use]
    pub fn contains(&self, id: EphemeralId) -> bool {
        self.ids.contains(&id)
    }

    /// Records an initiation when it is answered. Returns `false` if it is already known. An initiation that gets a
    /// cookie reply is not recorded, because the same initiation arrives again with a cookie.
    pub fn insert(&mut self, id: EphemeralId) -> bool {
        if self.contains(id) {
            return false;
        }
        match self.ids.get_mut(self.next) {
            Some(oldest) => *oldest = id,
            None => self.ids.push(id),
        }
        self.next = (self.next + 1) % Self::LEN;
        true
    }
}

impl Default for RecentInitiations {
    fn default() -> Self {
        Self::new()
    }
}

/// Maximum number of ids in a generation: as many as the [`Limits`](super::limiter::Limits) of one core admit in 80 s.
const MAX_PER_GENERATION: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initiation_is_read_once_and_once_more_with_a_proof() {
        let mut seen = SeenInitiations::new();
        let id = MacId(7);
        assert!(!seen.contains(id, false) && !seen.contains(id, true));
        seen.insert(id, false);
        assert!(seen.contains(id, false) && !seen.contains(id, true));
        seen.insert(id, true);
        assert!(seen.contains(id, false) && seen.contains(id, true));
        seen.insert(id, false);
        assert!(seen.contains(id, true));
    }

    #[test]
    fn two_generations_are_kept() {
        let mut seen = SeenInitiations::new();
        for id in 0..MAX_PER_GENERATION as u64 {
            assert!(!seen.is_full());
            seen.insert(MacId(id), true);
        }
        assert!(seen.is_full());
        seen.on_new_secret();
        assert!(!seen.is_full() && seen.contains(MacId(3), true));
        seen.on_new_secret();
        assert!(!seen.contains(MacId(3), true));
    }

    #[test]
    fn recent_initiations_are_known_and_old_ones_forgotten() {
        let mut recent = RecentInitiations::new();
        assert!(!recent.contains(EphemeralId(0)));
        for id in 0..100 {
            assert!(recent.insert(EphemeralId(id)));
            assert!(!recent.insert(EphemeralId(id)));
        }
        assert!((36..100).all(|id| recent.contains(EphemeralId(id))));
        assert!((0..36).all(|id| !recent.contains(EphemeralId(id))));
    }
}
