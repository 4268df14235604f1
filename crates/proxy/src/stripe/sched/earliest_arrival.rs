//! Earliest predicted arrival (EDPF): a chunk takes the lane (TCP connection over one link) for which the predicted
//! arrival time of the chunk is the earliest. The prediction includes the data that already wait for the lane.

use pleach_core::{ids::PathId, units::Bytes};

use super::LaneView;

pub(super) fn assign(len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
    let arrival = |lane: &&LaneView| {
        let passed = (lane.waiting + len) / lane.rate;
        (passed.saturating_add(lane.delay), lane.slot)
    };
    lanes.iter().min_by_key(arrival).map(|lane| lane.slot)
}
