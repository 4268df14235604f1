//! DBAS's packet-oriented weighted round robin: chunks go over the free lanes in proportion to their rates.
//!
//! Smooth: each turn every free lane earns its rate, the richest is chosen and pays the sum.

use pleach_core::ids::PathId;

use super::LaneView;

/// Remembers each lane's credit in kbit/s, by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Weighted {
    credits: [i128; PathId::MAX],
}

impl Weighted {
    pub(super) fn assign(&mut self, lanes: &[LaneView]) -> Option<PathId> {
        let weight = |lane: &LaneView| i128::from(lane.rate.as_bps() / 1000).max(1);
        let free = || lanes.iter().filter(|lane| lane.is_free);
        let sum: i128 = free().map(weight).sum();
        let mut chosen: Option<(i128, PathId)> = None;
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
