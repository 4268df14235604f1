//! `single`: one path carries everything, and another only while that one does not work.
//!
//! The chosen path, while it is usable; otherwise the usable path of the lowest rank, then the lowest id. No bonding: the baseline that
//! every other policy must beat, and plain failover.

use super::{PacketInfo, PathView, Pick, Scheduler, only};
use crate::{ids::PathId, profile::Profile, time::Instant};

/// Uses one path; falls over to the usable path with the lowest rank and id, and returns.
///
/// Waits when that path is usable but not ready.
#[derive(Clone, Debug)]
pub struct Single {
    preferred: Option<PathId>,
}

impl Single {
    /// Prefers `preferred`, or the lowest rank and id if `None`.
    #[must_use]
    pub const fn new(preferred: Option<PathId>) -> Self {
        Self { preferred }
    }
}

impl Scheduler for Single {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let usable = paths.iter().enumerate().filter(|(_, path)| path.usable);
        let best =
            usable.min_by_key(|(_, path)| (Some(path.id) != self.preferred, path.cost, path.id));
        only(paths, best.map(|(index, _)| index))
    }

    fn profile(&self) -> Profile {
        Profile {
            ranks: false,
            ..Profile::default()
        }
    }
}
