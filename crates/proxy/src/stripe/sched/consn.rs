//! `ConSN` over lanes: a block of chunks is split into sequences that run towards each other. It uses the tunnel's
//! policy with the settings of variant 1.
//!
//! The quickest lane gets the first sequence of a block and sends it in ascending order. Each other lane gets one of
//! the following sequences and sends it in descending order. The lengths of the sequences follow from the RTTs of the
//! lanes. A block consists of the chunks that wait at this end when a lane asks, up to [`BLOCK`] chunks. A lane that
//! already has a whole block waiting gets no chunk of the next block.
//!
//! So the receiver has one gap, which closes from both sides, and buffers up to a block. Copies (`redundancy`) are
//! not sent, because TCP repairs each lane.

use pleach_core::{
    ids::PathId,
    sched::{
        BLOCK, PacketInfo, PathView, Placement,
        consn::{Consn as Policy, ConsnSettings},
    },
    units::Bytes,
};

use super::{super::CHUNK, LaneView};

/// The tunnel's policy, which treats a chunk as a packet.
#[derive(Clone, Debug)]
pub(super) struct Consn {
    policy: Policy,
    placement: Placement,
}

impl Default for Consn {
    fn default() -> Self {
        Self {
            policy: Policy::new(ConsnSettings::default()),
            placement: Placement::default(),
        }
    }
}

impl Consn {
    /// Assigns the chunks of a block with these lengths, each once. Returns index and lane slot of each chunk, in
    /// sending order.
    pub(super) fn place(
        &mut self,
        lens: &[Bytes],
        lanes: &[LaneView],
    ) -> impl Iterator<Item = (usize, PathId)> {
        let views: Vec<PathView> = lanes.iter().map(view).collect();
        let block: Vec<PacketInfo> = lens.iter().take(BLOCK).map(packet).collect();
        self.policy.place(&views, &block, &mut self.placement);
        let placed = self.placement.packets.iter();
        placed.filter_map(move |(lane, chunk)| {
            let lane = views.get(usize::from(*lane))?;
            Some((usize::from(*chunk), lane.id))
        })
    }

    /// Returns the lane of a single chunk.
    pub(super) fn assign(&mut self, len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
        self.place(&[len], lanes).next().map(|(_, slot)| slot)
    }
}

/// Scales lengths so that a full chunk counts as a full packet.
fn packet(len: &Bytes) -> PacketInfo {
    PacketInfo::of_len(scaled(*len))
}

fn view(lane: &LaneView) -> PathView {
    PathView {
        ready: lane.is_free,
        usable: true,
        smoothed_rtt: Some(lane.delay * 2),
        rate: Some(lane.rate.scale(PACKET, CHUNK as u64)),
        staged: scaled(lane.waiting),
        ..PathView::unmeasured(lane.slot)
    }
}

fn scaled(bytes: Bytes) -> Bytes {
    Bytes::new(bytes.get().saturating_mul(PACKET).div_ceil(CHUNK as u64))
}

/// Size in bytes of a packet that the policy considers full.
const PACKET: u64 = 1_500;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use pleach_core::units::Bitrate;

    use super::*;

    fn lane(slot: u8, delay_ms: u64, waiting: u64) -> LaneView {
        LaneView {
            slot: PathId(slot),
            rate: Bitrate::from_mbps(10),
            delay: Duration::from_millis(delay_ms),
            waiting: Bytes::new(waiting),
            is_free: waiting == 0,
        }
    }

    fn runs(count: usize, lanes: &[LaneView]) -> [Vec<usize>; 2] {
        let mut runs = [Vec::new(), Vec::new()];
        let lens = vec![Bytes::new(CHUNK as u64); count];
        for (chunk, slot) in Consn::default().place(&lens, lanes) {
            runs[slot.index()].push(chunk);
        }
        runs
    }

    #[test]
    fn the_runs_of_a_block_go_towards_each_other() {
        let [quick, slow] = runs(8, &[lane(0, 10, 0), lane(1, 30, 0)]);
        assert_eq!(quick, [0, 1, 2, 3, 4, 5]);
        assert_eq!(slow, [7, 6]);
    }

    #[test]
    fn a_lane_for_which_a_block_waits_gets_nothing() {
        let block = (BLOCK * CHUNK) as u64;
        let [quick, slow] = runs(8, &[lane(0, 10, 0), lane(1, 10, block)]);
        assert_eq!((quick.len(), slow.len()), (8, 0));
        let [_, slow] = runs(8, &[lane(0, 10, 0), lane(1, 10, block / 2)]);
        assert!(!slow.is_empty());
    }
}
