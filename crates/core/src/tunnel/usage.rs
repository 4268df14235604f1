//! When paths last carried packets of their own, and when the host last had any.

use core::time::Duration;

use crate::{ids::PathId, time::Instant};

/// Times of the newest packets.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// The newest time this tunnel has been told.
    now: Instant,
    offered_at: Option<Instant>,
    carried_at: [Option<Instant>; PathId::MAX],
}

impl Usage {
    /// Takes note of the time.
    pub(super) fn on_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// The newest time this tunnel has been told.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// The host has a packet to send, or packets wait.
    pub(super) fn on_offered(&mut self, now: Instant) {
        self.offered_at = Some(now);
    }

    /// A packet that no other path carries goes on `id`.
    pub(super) fn on_carried(&mut self, now: Instant, id: PathId) {
        self.carried_at[id.index()] = Some(now);
    }

    /// Whether there has been nothing to send of late.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_recent(self.offered_at)
    }

    /// Whether `id` has carried packets of its own of late.
    pub(super) fn is_used(&self, id: PathId) -> bool {
        self.is_recent(self.carried_at[id.index()])
    }

    fn is_recent(&self, at: Option<Instant>) -> bool {
        at.is_some_and(|at| self.now.since(at) < RECENT)
    }
}

/// A path that has carried nothing for so long is idle: long against round trips, short against a person's patience.
const RECENT: Duration = Duration::from_secs(1);
