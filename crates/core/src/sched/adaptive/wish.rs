//! The paths that the flow of a packet may use, and how long the packet waits for a better one.

use core::time::Duration;

use super::{gate::Gate, paths::is_late};
use crate::{
    sched::PathView,
    time::Instant,
    trace::{IdleReason, Verdict},
    units::Bytes,
};

/// The paths and waiting times allowed for the flow of a packet.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) gate: Gate,
    /// The time by which an awaited path must have sent the packet and its backlog.
    pub(super) patience: Instant,
    /// The backlog that matters to the flow, in bytes.
    pub(super) waits: Bytes,
    /// Whether some path other than late ones is admitted.
    pub(super) is_any: bool,
    /// The RTT that ACK pacing keeps for the flow; zero if none is kept.
    pub(super) kept: Duration,
    /// Whether more packets of the flow wait.
    pub(super) has_more: bool,
    /// The min RTT of the quickest path.
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

    /// Whether a late path takes only packets further behind in the flow. If ACK pacing keeps an RTT as long as the
    /// late path's, the path is used like any other.
    pub(super) fn only_behind(&self, path: &PathView) -> bool {
        // Delays are never the same as when that was decided, and of large flows it is less.
        let is_kept = self.kept >= self.least_rtt.unwrap_or_default() + path.extra_delay / 2;
        self.is_any && is_late(path, self.gate.from) && !(self.has_more && is_kept)
    }
}
