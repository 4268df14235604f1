//! DBAS's packet-oriented round robin: chunks take the free lanes in rotation, whatever their rates.

use pleach_core::ids::PathId;

use super::LaneView;

/// Stores the lane that was chosen last.
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
