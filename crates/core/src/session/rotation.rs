//! The sessions with one peer. Keys change without the loss of a datagram, as in `WireGuard` (Donenfeld, NDSS 2017,
//! section 6.1).
//!
//! ```text
//!  initiator: response read       -> current            the old current -> previous
//!  responder: initiation answered -> next               (still sends with current)
//!             first datagram that a next decrypts: this next -> current, the old current -> previous, others dropped
//! ```
//!
//! An initiator that tries several links, or does not wait an RTT between attempts, gets several answers and uses the
//! first that arrives. So the responder stores several next sessions.
//!
//! Both ends receive on every session that they have; the session of a datagram is found by its local index. They send
//! on `current`. So the initiator must send a datagram at once on a new session (a keepalive is enough). Until then the
//! responder sends on the old session, or not at all if it has no old session.
//!
//! The initiator of `current` starts the next handshake when the session is [`REKEY_AFTER`] old or has encrypted
//! [`REKEY_AFTER_DATAGRAMS`]. A session is dropped at the age of [`REJECT_AFTER`]. A `previous` session is retained for
//! at least [`PREVIOUS_MIN`], so that datagrams in flight arrive.
//!
//! A peer's association id says whether its new session continues the counters ([`Change::Rekeyed`]) or belongs to a
//! restarted peer ([`Change::Restarted`]). The set remembers the counters even when all sessions have expired.
//! Therefore the id that an end puts into its Hello must have the lifetime of its [`SessionSet`] for that peer. A new
//! or cleared set needs a new id, because otherwise the peer would continue counters whose high bits this end has
//! forgotten. When a peer has restarted, the sessions of its former association are dropped at once, because the
//! numbers in their late datagrams have no meaning in the new association.
//!
//! Unlike `WireGuard`, a responder retains `previous` when a `next` is added. Bound: two sessions and [`MAX_NEXT`]
//! waiting sessions. Known limits: datagrams under the oldest keys are lost if both ends start handshakes at the same
//! time, or if two changes follow each other within a one-way delay.

use core::time::Duration;

use super::{
    handshake::Established,
    keys::{OpenError, Opened, Role, Session},
    per_lane::PerLane,
};
use crate::{
    ids::{PathId, Seq},
    time::Instant,
};

/// Age at which the initiator changes the keys; `WireGuard`'s REKEY-AFTER-TIME.
pub const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Number of datagrams after which the initiator changes the keys; `WireGuard`'s REKEY-AFTER-MESSAGES.
pub const REKEY_AFTER_DATAGRAMS: u64 = 1 << 60;
/// Age at which a session is no longer used; `WireGuard`'s REJECT-AFTER-TIME.
pub const REJECT_AFTER: Duration = Duration::from_secs(180);
/// Minimum duration for which the previous session still receives: longer than any datagram is in flight.
pub const PREVIOUS_MIN: Duration = Duration::from_secs(10);

/// Maximum number of answered handshakes that wait for their first datagram: nearly as many as one client may have
/// answered at once.
pub const MAX_NEXT: usize = 8;

/// Consequence of a new current session for the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The peer process is the same and has new keys. Counters and path state continue.
    Rekeyed,
    /// The peer is new or has restarted, and knows nothing of this end. Counters for sending restart on every
    /// path, at a number in `0..2^31`.
    Restarted,
}

/// The sessions with one peer.
#[derive(Debug, Default)]
pub struct SessionSet {
    current: Option<Slot>,
    previous: Option<Slot>,
    /// Answered sessions that are not confirmed, oldest first.
    next: Vec<Slot>,
    known: Option<Known>,
    given_up: Vec<u32>,
    ages: Ages,
}

/// Ages at which keys change and sessions expire.
#[derive(Clone, Copy, Debug)]
struct Ages {
    rekey_after: Duration,
    reject_after: Duration,
}

impl Default for Ages {
    fn default() -> Self {
        Self {
            rekey_after: REKEY_AFTER,
            reject_after: REJECT_AFTER,
        }
    }
}

#[derive(Debug)]
struct Slot {
    session: Session,
    /// Time at which the session is dropped.
    reject_at: Instant,
}

/// State with a longer lifetime than the sessions: the peer's counters.
#[derive(Debug)]
struct Known {
    association: u64,
    highest: PerLane<Option<u64>>,
}

impl SessionSet {
    /// Returns a set without sessions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes keys already at the age `rekey_after`, at most [`REKEY_AFTER`]. Sessions that begin from now on are
    /// dropped at one and a half times this age, as [`REJECT_AFTER`] is of [`REKEY_AFTER`]. For measurements of many
    /// changes in a short time.
    pub fn set_rekey_after(&mut self, rekey_after: Duration) {
        let rekey_after = rekey_after.min(REKEY_AFTER);
        self.ages = Ages {
            rekey_after,
            reject_after: rekey_after * 3 / 2,
        };
    }

    /// Adds the session of a handshake that this end started. The session becomes current at once, so send a datagram
    /// on it now.
    pub fn install_initiated(
        &mut self,
        now: Instant,
        established: Established,
        local_index: u32,
    ) -> Change {
        let slot = self.slot(now, established, local_index, Role::Initiator);
        if let Some(next) = self.next.pop() {
            // Both ends started a handshake. The peer may already send on the session that it started.
            let current = self.current.replace(next);
            self.give_up(current);
            self.give_up_next();
        }
        self.make_current(now, slot)
    }

    /// Adds the session of a handshake that this end answered. The session waits for its first datagram. If more than
    /// [`MAX_NEXT`] sessions wait, the oldest is dropped, so check [`Self::has_unconfirmed`] first.
    pub fn install_answered(&mut self, now: Instant, established: Established, local_index: u32) {
        let slot = self.slot(now, established, local_index, Role::Responder);
        let oldest = (self.next.len() == MAX_NEXT).then(|| self.next.remove(0));
        self.give_up(oldest);
        self.next.push(slot);
    }

    /// Whether an answered handshake waits for its first datagram. If so, answer another initiation only with a valid
    /// mac2, because otherwise a replayed initiation could displace a genuine handshake.
    #[must_use]
    pub const fn has_unconfirmed(&self) -> bool {
        !self.next.is_empty()
    }

    /// Decrypts a datagram for the session `local_index` in place; see [`Session::open`].
    ///
    /// Also returns a [`Change`] if this was the first datagram of a session, which is now current.
    ///
    /// # Errors
    /// The reason why the datagram is dropped.
    pub fn open(
        &mut self,
        now: Instant,
        local_index: u32,
        path: PathId,
        seq: Seq,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<(Opened, Option<Change>), OpenError> {
        let is = |slot: &Slot| slot.session.local_index() == local_index;
        let slot = [&mut self.current, &mut self.previous]
            .into_iter()
            .flatten()
            .chain(&mut self.next)
            .find(|slot| is(slot))
            .ok_or(OpenError::UnknownIndex)?;
        if now >= slot.reject_at {
            return Err(OpenError::Expired);
        }
        let opened = slot.session.open(path, seq, aad, in_out)?;
        let Some(confirmed) = self.next.iter().position(is) else {
            return Ok((opened, None));
        };
        let confirmed = self.next.remove(confirmed);
        self.give_up_next();
        Ok((opened, Some(self.make_current(now, confirmed))))
    }

    /// Returns the session to send on; `None` if there is no session or it is too old.
    #[must_use]
    pub fn sending(&mut self, now: Instant) -> Option<&mut Session> {
        self.current
            .as_mut()
            .filter(|slot| now < slot.reject_at)
            .map(|slot| &mut slot.session)
    }

    /// Returns the current session, even if it is too old to be used.
    #[must_use]
    pub fn current(&self) -> Option<&Session> {
        self.current.as_ref().map(|slot| &slot.session)
    }

    /// Whether this end should start a handshake because of the age or use of the current session. Returns `false`
    /// without a session, and at the end that did not start the session.
    #[must_use]
    pub fn needs_rekey(&self, now: Instant) -> bool {
        self.current().is_some_and(|session| {
            session.role() == Role::Initiator
                && (now.since(session.created_at()) >= self.ages.rekey_after
                    || session.sealed_datagrams() >= REKEY_AFTER_DATAGRAMS)
        })
    }

    /// Drops the sessions that have expired. Returns the time of the next call, which is always after `now`: when the
    /// next session is dropped, or [`Self::needs_rekey`] becomes true by age.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        let due = |slot: &mut Slot| now >= slot.reject_at;
        for slot in [self.current.take_if(due), self.previous.take_if(due)] {
            self.give_up(slot);
        }
        // The oldest session expires first.
        while self.next.first_mut().is_some_and(due) {
            let oldest = self.next.remove(0);
            self.give_up(Some(oldest));
        }
        let rekey_at = self
            .current()
            .filter(|session| session.role() == Role::Initiator)
            .map(|session| session.created_at() + self.ages.rekey_after)
            .filter(|&at| at > now);
        [&self.current, &self.previous]
            .into_iter()
            .flatten()
            .chain(&self.next)
            .map(|slot| slot.reject_at)
            .chain(rekey_at)
            .min()
    }

    /// Drops all sessions and the peer's counters. Later handshakes need a new association id.
    pub fn clear(&mut self) {
        for slot in [self.current.take(), self.previous.take()] {
            self.give_up(slot);
        }
        self.give_up_next();
        self.known = None;
    }

    /// Returns the next local index that no session uses any more, so that the owner frees it. Each installed session
    /// is returned here exactly once. Drain this method after every call that installs, opens, expires or clears
    /// sessions.
    pub fn poll_given_up(&mut self) -> Option<u32> {
        self.given_up.pop()
    }

    fn slot(
        &mut self,
        now: Instant,
        established: Established,
        local_index: u32,
        role: Role,
    ) -> Slot {
        self.learn();
        let mut session = Session::new(now, established, local_index, role);
        if let Some(known) = &self.known
            && known.association == session.remote_hello().association
        {
            for lane in PathId::lanes() {
                if let Some(Some(highest)) = known.highest.get(lane) {
                    session.continue_path(lane, *highest);
                }
            }
        }
        Slot {
            session,
            reject_at: now + self.ages.reject_after,
        }
    }

    fn make_current(&mut self, now: Instant, slot: Slot) -> Change {
        let association = slot.session.remote_hello().association;
        let mut old = self.current.replace(slot);
        if let Some(old) = &mut old {
            old.reject_at = old.reject_at.max(now + PREVIOUS_MIN);
        }
        let replaced = core::mem::replace(&mut self.previous, old);
        self.give_up(replaced);
        if self
            .known
            .as_ref()
            .is_some_and(|known| known.association == association)
        {
            return Change::Rekeyed;
        }
        let previous = self.previous.take();
        self.give_up(previous);
        self.known = Some(Known {
            association,
            highest: PerLane::default(),
        });
        Change::Restarted
    }

    fn give_up_next(&mut self) {
        while let Some(slot) = self.next.pop() {
            self.give_up(Some(slot));
        }
    }

    fn give_up(&mut self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            if let Some(known) = &mut self.known {
                known.learn(&slot.session);
            }
            self.given_up.push(slot.session.local_index());
        }
    }

    /// Copies the counters of the present sessions.
    fn learn(&mut self) {
        if let Some(known) = &mut self.known {
            for slot in [&self.current, &self.previous].into_iter().flatten() {
                known.learn(&slot.session);
            }
        }
    }
}

impl Known {
    fn learn(&mut self, session: &Session) {
        if session.remote_hello().association == self.association {
            for lane in PathId::lanes() {
                let Some(counter) = session.highest(lane) else {
                    continue;
                };
                if let Some(highest) = self.highest.get_mut(lane) {
                    *highest = (*highest).max(Some(counter));
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
