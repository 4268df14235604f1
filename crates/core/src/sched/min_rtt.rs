//! `min-rtt`: the ready path with the lowest RTT.
//!
//! This is the default scheduler of MPTCP in Linux: it fills the quickest path until that path has no room, then the
//! next one. Its known weakness is that the RTT includes the return path and the queue that this policy builds.

use core::time::Duration;

use super::{PacketInfo, PathView, Pick, Scheduler};
use crate::time::Instant;

/// Uses the ready path with the lowest smoothed round-trip time; paths without a sample are used last. Never waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let ready = paths.iter().enumerate().filter(|(_, path)| path.ready);
        let rtt = |path: &PathView| path.smoothed_rtt.unwrap_or(Duration::MAX);
        ready
            .min_by_key(|(_, path)| rtt(path))
            .map_or(Pick::Wait, |(index, _)| Pick::One(index))
    }
}
