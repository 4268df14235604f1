//! What the flow of a packet may use: which paths it is admitted to, and how long it waits for a better one.

use core::time::Duration;

use super::{gate::Gate, paths::is_late};
use crate::{
    sched::PathView,
    time::Instant,
    trace::{IdleReason, Verdict},
    units::Bytes,
};

/// What the flow of a packet may use.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) gate: Gate,
    /// By when an awaited path must have sent the packet and what waits.
    pub(super) patience: Instant,
    /// Bytes that wait and matter to the flow.
    pub(super) waits: Bytes,
    /// Whether some path other than late ones is admitted.
    pub(super) is_any: bool,
    /// The round trip that ACK pacing makes for the flow; zero if it makes none.
    pub(super) kept: Duration,
    /// Whether more of the flow waits.
    pub(super) has_more: bool,
    /// The quickest path's shortest round trip.
    pub(super) least_rtt: Option<Duration>,
}

impl Wish {
    pub(super) fn admits(&self, path: &PathView) -> bool {
        self.gate.admits(path)
    }

    /// Why a path is not admitted.
    pub(super) fn excluded(&self, path: &PathView) -> Verdict {
        let by = path.extra_delay;
        let reason = self.gate.exclusion(path);
        Verdict::Excluded(reason.unwrap_or(IdleReason::TooLate { by }))
    }

    /// Whether a late path takes only what comes further behind in the flow. Where ACK pacing makes round trips as long as
    /// over the path, it is like any other.
    pub(super) fn only_behind(&self, path: &PathView) -> bool {
        // Delays are never the same as when that was decided, and of large flows it is less.
        let is_kept = self.kept >= self.least_rtt.unwrap_or_default() + path.extra_delay / 2;
        self.is_any && is_late(path, self.gate.from) && !(self.has_more && is_kept)
    }
}
