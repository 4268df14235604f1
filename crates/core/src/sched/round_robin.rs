//! `round-robin`: packets are sent on the paths in turn.
//!
//! Paths that are always ready get equal numbers of packets; paths that are not ready lose their turn. This is the
//! classic baseline: it suits equal paths and reorders heavily on unequal ones.

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::{ids::PathId, time::Instant};

/// Uses the ready paths in the order of their ids, one packet each. Never waits.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    last: Option<PathId>,
}

impl RoundRobin {
    /// Creates a scheduler that begins with the lowest id.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: None }
    }
}

impl Scheduler for RoundRobin {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let after_last = |path: &PathView| path.ready && Some(path.id) > self.last;
        let next = paths.iter().position(after_last);
        let Some(index) = next.or_else(|| paths.iter().position(|path| path.ready)) else {
            return Pick::Wait;
        };
        self.last = Some(paths[index].id);
        Pick::One(index)
    }
}
