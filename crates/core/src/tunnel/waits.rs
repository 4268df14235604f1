//! How long the receiver waits for packets that were sent earlier on a slower path, and for retransmissions.

use core::time::Duration;

use super::path_set::PathSet;
use crate::{
    path::{Path, delay::RelativeDelay},
    resequencer::LONGEST_HOLD,
    time::Instant,
};

/// Returns how long after the arrival of a packet all packets sent before it should have arrived. This is the excess of
/// the highest delay on the paths in use over this packet's delay, plus a margin (`docs/algorithms.md` section 3.6).
pub(super) fn longest_wait(now: Instant, paths: &PathSet, own: RelativeDelay) -> Duration {
    let beyond = in_use(now, paths)
        .filter_map(|path| path.receiver().delay().high())
        .map(|high| high.beyond(own))
        .max();
    (beyond.unwrap_or(Duration::ZERO) + MARGIN).min(LONGEST_HOLD)
}

/// Returns the maximum duration of the retransmission of a packet that is reported missing now.
pub(super) fn repair_time(now: Instant, paths: &PathSet) -> Duration {
    let (mut time, mut least) = (Duration::ZERO, Duration::ZERO);
    for path in in_use(now, paths) {
        least = least.max(path.rtt().min().unwrap_or_default());
        let rtt = path.rtt().smoothed().unwrap_or_default();
        let delay = path.receiver().delay();
        let spread = match (delay.high(), delay.min()) {
            (Some(high), Some(min)) => high.beyond(min),
            _ => Duration::ZERO,
        };
        time = time.max(rtt + spread);
    }
    let longest = (least + LONGEST_DELAY).clamp(LONGEST_REPAIR, LONGEST_FAR_REPAIR);
    (time + REPAIR_MARGIN).min(longest)
}

/// Returns the paths on which a datagram was received recently.
fn in_use(now: Instant, paths: &PathSet) -> impl Iterator<Item = &Path> {
    paths.iter().filter(move |path| {
        let heard_at = path.receiver().heard_at();
        heard_at.is_some_and(|at| now.since(at) < IN_USE)
    })
}

/// Duration after the last received datagram in which the receiver waits for packets on a path: two probe intervals of
/// an idle path.
const IN_USE: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(5);
/// Bounds of the wait for a retransmission: the longest min RTT plus `LONGEST_DELAY`, but at least `LONGEST_REPAIR` and
/// at most `LONGEST_FAR_REPAIR`. A TCP sender's timeout is longer (200 ms more than its RTT, from its last ACK).
const LONGEST_REPAIR: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_millis(110);
const LONGEST_FAR_REPAIR: Duration = Duration::from_millis(700);
/// Sum of the reporting interval and the time until the path may send.
const REPAIR_MARGIN: Duration = Duration::from_millis(20);
