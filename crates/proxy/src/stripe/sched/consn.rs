//! `ConSN` over lanes: a block of chunks is split so that sequences run towards each other, with [`Consn`] of the tunnel's
//! policy, variant 1.
//!
//! The quickest lane gets the first run of a block and sends it ascending, each other a run behind that and sends it
//! descending, in shares of round trips. A block is what waits at this end when a lane asks, up to [`BLOCK`] chunks; a lane for
//! which as much waits as that gets nothing of the next. So what is missing at the receiver is one gap, which closes from both
//! sides, and up to a block is held there. Copies (`redundancy`) are not sent: TCP repairs each lane.

use pleach_core::{
    ids::PathId,
    sched::{
        PacketInfo, PathView, Placement,
        consn::{BLOCK, Consn as Policy, ConsnSettings},
    },
    units::Bytes,
};

use super::{super::CHUNK, LaneView};

/// The tunnel's policy, to which a chunk is a packet.
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
    /// Chunks of a block of these lengths, each once, in the order they are to leave: index of the chunk, slot of its lane.
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

    /// The lane of a chunk by itself.
    pub(super) fn assign(&mut self, len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
        self.place(&[len], lanes).next().map(|(_, slot)| slot)
    }
}

/// A whole chunk counts as a whole packet.
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

/// What the policy takes for a full packet.
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
