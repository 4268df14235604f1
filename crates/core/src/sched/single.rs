//! `single`: one path carries everything, and another only while that one does not work.
//!
//! The chosen path, while it is usable; otherwise the usable path with the lowest id. No bonding: the baseline that
//! every other policy must beat, and plain failover.

use super::{PacketInfo, PathView, Pick, Scheduler, only};
use crate::{ids::PathId, time::Instant};

/// Uses one path; falls over to the usable path with the lowest id, and returns.
///
/// Waits when that path is usable but not ready.
#[derive(Clone, Debug)]
pub struct Single {
    preferred: Option<PathId>,
}

impl Single {
    /// Prefers `preferred`, or the lowest id if `None`.
    #[must_use]
    pub const fn new(preferred: Option<PathId>) -> Self {
        Self { preferred }
    }
}

impl Scheduler for Single {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let preferred = paths
            .iter()
            .position(|path| path.usable && Some(path.id) == self.preferred);
        only(
            paths,
            preferred.or_else(|| paths.iter().position(|path| path.usable)),
        )
    }
}
