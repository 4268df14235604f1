//! Lanes drawn at random, in proportion to their congestion windows: the CWND-aware baseline of the OSIA paper (section
//! 5.1). The kernel's window of a lane is not known here, so the bandwidth-delay product takes its place.

use pleach_core::{
    ids::PathId,
    rng::Rng,
    units::{Bitrate, Bytes},
};

use super::LaneView;

/// Draws one of the free lanes at random; the generator has a fixed seed.
#[derive(Clone, Debug)]
pub(super) struct CwndAware {
    rng: Rng,
}

impl Default for CwndAware {
    fn default() -> Self {
        Self { rng: Rng::new(0) }
    }
}

impl CwndAware {
    /// Returns a free lane for a chunk of `len` bytes; `None` if no lane is free.
    pub(super) fn assign(&mut self, len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
        let weight = |lane: &LaneView| {
            if lane.is_free {
                window(lane).max(len).get().max(1)
            } else {
                0
            }
        };
        let drawn = self.rng.weighted(lanes.iter().map(weight))?;
        Some(lanes[drawn].slot)
    }
}

/// Returns the bandwidth-delay product of a lane: its rate times twice its one-way delay.
fn window(lane: &LaneView) -> Bytes {
    let rate = lane.rate.max(Bitrate::from_bps(1));
    rate.bytes_in(lane.delay.saturating_mul(2))
}
