//! OSIA over lanes: progressive water-filling in steps of chunks, with [`Planner`] from the tunnel's policy.

use pleach_core::{
    ids::PathId,
    sched::osia::{Line, OsiaSettings, Planner},
    time::Instant,
    units::Bytes,
};

use super::LaneView;

/// Presents the lanes to the planner as the planner's lines, that is, paths.
#[derive(Clone, Debug)]
pub(super) struct Osia(Planner);

impl Default for Osia {
    fn default() -> Self {
        Self(Planner::new(OsiaSettings::default()))
    }
}

impl Osia {
    pub(super) fn assign(
        &mut self,
        now: Instant,
        len: Bytes,
        lanes: &[LaneView],
    ) -> Option<PathId> {
        let line = |lane: &LaneView| Line {
            id: lane.slot,
            rate: lane.rate,
            delay: lane.delay,
            waiting: lane.waiting,
            is_free: lane.is_free,
        };
        if lanes.is_empty() {
            return None;
        }
        self.0.update(now, lanes.iter().map(line));
        self.0.assign(now, len)
    }
}
