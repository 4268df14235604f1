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
    /// The admitted paths.
    pub(super) gate: Gate,
    /// The time by which an awaited path must have sent the packet and its backlog.
    pub(super) patience: Instant,
    /// The backlog that matters to the flow, in bytes.
    pub(super) waits: Bytes,
    /// Whether a usable path that is not late is admitted.
    pub(super) is_any: bool,
    /// The RTT to which ACK pacing extends the flow's RTTs; zero if it does not extend them.
    pub(super) kept: Duration,
    /// Whether more packets of the flow wait in the queue.
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

    /// Whether a late path takes only later packets of the flow. If ACK pacing extends the flow's RTT to that of the
    /// late path, the path is used like any other.
    pub(super) fn only_behind(&self, path: &PathView) -> bool {
        // Half of the extra delay is sufficient: delays may have changed since the RTT was chosen, and large flows get
        // a shorter RTT.
        let is_kept = self.kept >= self.least_rtt.unwrap_or_default() + path.extra_delay / 2;
        self.is_any && is_late(path, self.gate.from) && !(self.has_more && is_kept)
    }
}
