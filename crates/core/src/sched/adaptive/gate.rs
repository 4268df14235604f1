//! The gate: the set of paths that help a packet.

use core::time::Duration;

use super::paths::{carried_where, is_late, is_member, quickest, usual_queue, worthless};
use crate::{
    ids::PathId,
    profile::{Mechanism, Mechanisms},
    sched::PathView,
    trace::IdleReason,
};

/// The paths that a packet may take.
#[derive(Debug)]
pub(super) struct Gate {
    /// The extra delay at which the flow's group of paths begins.
    pub(super) from: Duration,
    pub(super) is_large: bool,
    /// The quickest path of the group.
    pub(super) quickest: Option<PathId>,
    /// The min RTT of the quickest path.
    pub(super) round_trip: Option<Duration>,
    /// The queue delay of the quickest path when it is saturated.
    pub(super) usual: Duration,
    /// The capacity of all paths, in bits per second.
    pub(super) total: u128,
    mechanisms: Mechanisms,
}

impl Gate {
    pub(super) fn new(
        paths: &[PathView],
        from: Duration,
        is_large: bool,
        mechanisms: Mechanisms,
    ) -> Self {
        let quickest = quickest(paths, from);
        Self {
            from,
            is_large,
            quickest: quickest.map(|path| path.id),
            round_trip: quickest.and_then(|path| path.least_rtt),
            usual: usual_queue(quickest),
            total: carried_where(paths, |_| true),
            mechanisms,
        }
    }

    /// Whether a packet may take a path.
    pub(super) fn admits(&self, path: &PathView) -> bool {
        self.exclusion(path).is_none()
    }

    /// Why a packet may not take a path; `None` if it may take it.
    pub(super) fn exclusion(&self, path: &PathView) -> Option<IdleReason> {
        let has = |mechanism| self.mechanisms.has(mechanism);
        if !path.usable {
            return Some(IdleReason::Down);
        }
        let is_late = self.is_large && is_late(path, self.from) && has(Mechanism::LatePaths);
        if !is_member(path, self.from) && !is_late {
            let by = path.extra_delay;
            return Some(IdleReason::TooLate { by });
        }
        let is_alone = self.quickest == Some(path.id) && path.is_searching;
        if is_alone || !self.is_large || !has(Mechanism::WorthShare) {
            return None;
        }
        worthless(path, self.total, self.usual)
    }
}
