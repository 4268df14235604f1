//! Earliest predicted arrival (EDPF): a chunk takes the lane (TCP connection over one link) on which it, after all
//! data waiting there, will have arrived first.

use pleach_core::{ids::PathId, units::Bytes};

use super::LaneView;

pub(super) fn assign(len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
    let arrival = |lane: &&LaneView| {
        let passed = (lane.waiting + len) / lane.rate;
        (passed.saturating_add(lane.delay), lane.slot)
    };
    lanes.iter().min_by_key(arrival).map(|lane| lane.slot)
}
