//! DBAS's packet-oriented weighted round robin: chunks take the free lanes in proportion to their rates.
//!
//! The rotation is smooth: for each chunk every free lane earns its rate, and the lane with most credit is chosen and
//! pays the sum of all rates.

use pleach_core::ids::PathId;

use super::{super::MAX_LANES, LaneView};

/// Each lane's credit in kbit/s, by slot.
#[derive(Clone, Debug, Default)]
pub(in crate::stripe) struct Weighted {
    credits: [i64; MAX_LANES],
}

impl Weighted {
    pub(in crate::stripe) fn assign(&mut self, lanes: &[LaneView]) -> Option<PathId> {
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
            // The limit keeps credit earned at old rates from counting for long.
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

/// Maximum weight: 1 Tbit/s in kbit/s, so that sums do not overflow.
const MOST: i64 = 1_000_000_000;
