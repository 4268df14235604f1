//! By chance, in proportion to what lanes hold: the CWND-aware baseline of the OSIA paper (section 5.1). The window of a
//! lane is its rate times twice its delay, since the kernel's own is not told.

use pleach_core::{
    ids::PathId,
    rng::Rng,
    units::{Bitrate, Bytes},
};

use super::LaneView;

/// Draws lots from a fixed seed.
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
    /// One of the lanes that are free; `None` if none is.
    pub(super) fn assign(&mut self, len: Bytes, lanes: &[LaneView]) -> Option<PathId> {
        let free = || lanes.iter().filter(|lane| lane.is_free);
        let window = |lane: &LaneView| {
            let rate = lane.rate.max(Bitrate::from_bps(1));
            rate.bytes_in(lane.delay.saturating_mul(2))
                .max(len)
                .get()
                .max(1)
        };
        let total = free().fold(0_u64, |sum, lane| sum.saturating_add(window(lane)));
        if total == 0 {
            return None;
        }
        let mut left = self.rng.below(total);
        for lane in free() {
            match left.checked_sub(window(lane)) {
                Some(rest) => left = rest,
                None => return Some(lane.slot),
            }
        }
        free().next_back().map(|lane| lane.slot)
    }
}
