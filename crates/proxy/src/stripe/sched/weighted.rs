//! DBAS's packet-oriented weighted round robin: chunks go over the free lanes in proportion to their rates.
//!
//! Smooth: each turn every free lane earns its rate, the richest is chosen and pays the sum.

use pleach_core::ids::PathId;

use super::{super::MAX_LANES, LaneView};

/// Remembers each lane's credit in kbit/s, by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Weighted {
    credits: [i64; MAX_LANES],
}

impl Weighted {
    pub(super) fn assign(&mut self, lanes: &[LaneView]) -> Option<PathId> {
        let weight = |lane: &LaneView| {
            i64::try_from(lane.rate.as_bps() / 1000)
                .unwrap_or(MOST)
                .clamp(1, MOST)
        };
        let free = || lanes.iter().filter(|lane| lane.is_free);
        let sum: i64 = free().map(weight).sum();
        let mut chosen: Option<(i64, PathId)> = None;
        for lane in free() {
            let credit = self.credits.get_mut(lane.slot.index())?;
            // What was earned at other rates must not count for long.
            *credit = (*credit + weight(lane)).clamp(-sum, sum);
            if chosen.is_none_or(|(most, _)| *credit > most) {
                chosen = Some((*credit, lane.slot));
            }
        }
        let (_, slot) = chosen?;
        self.credits[slot.index()] -= sum;
        Some(slot)
    }
}

/// A terabit per second in kbit/s, so that sums stay numbers.
const MOST: i64 = 1_000_000_000;
