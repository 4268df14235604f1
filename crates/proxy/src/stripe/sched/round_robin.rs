//! DBAS's packet-oriented round robin: chunks go over the free lanes in rotation, whatever they carry.

use pleach_core::ids::PathId;

use super::LaneView;

/// Remembers whose turn it was.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundRobin {
    last: Option<PathId>,
}

impl RoundRobin {
    pub(super) fn assign(&mut self, lanes: &[LaneView]) -> Option<PathId> {
        let free = || lanes.iter().filter(|lane| lane.is_free);
        let next = free().find(|lane| Some(lane.slot) > self.last);
        self.last = Some(next.or(free().next())?.slot);
        self.last
    }
}
