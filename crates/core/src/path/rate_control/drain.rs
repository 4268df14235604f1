//! Sending less than the path carries until its queue is gone.

use core::time::Duration;

use super::LEAST;
use crate::{time::Instant, units::Bitrate};

/// A drain under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    pub(super) since: Instant,
    /// The queue when it began, and the longest since.
    pub(super) from: Duration,
    pub(super) peak: Duration,
    /// The largest rate delivered since a round trip later.
    pub(super) most: Bitrate,
    /// The pace meanwhile, and by how much it is below what the path is taken to carry.
    pub(super) pace: Bitrate,
    pub(super) cut_percent: u32,
}

impl Drain {
    /// A drain to `goal` that would take about four round trips, as far as the cut is within its bounds.
    pub(super) fn begin(
        now: Instant,
        queue: Duration,
        goal: Duration,
        rtt: Duration,
        carried: Bitrate,
    ) -> Self {
        let excess = queue.saturating_sub(goal).as_micros();
        let percent = excess * 100 / (rtt * 4).as_micros().max(1);
        let cut = u32::try_from(percent).unwrap_or(100).clamp(8, 40);
        Self {
            since: now,
            from: queue,
            peak: queue,
            most: Bitrate::ZERO,
            pace: carried
                .scale(u64::from(100 - cut), 100)
                .saturating_sub(UNPACED)
                .max(LEAST),
            cut_percent: cut,
        }
    }
}

/// Reports and probes, which no pacer holds: on a slow path they would undo a drain.
const UNPACED: Bitrate = Bitrate::from_bps(80_000);
