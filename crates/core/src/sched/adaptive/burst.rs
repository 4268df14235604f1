//! How long packets wait for a quicker path: as a whole burst, or only briefly in a standing queue.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// The current burst: the packets that large flows send while more packets wait in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    began_at: Instant,
    /// Whether no packet waits behind the newest packet of the burst.
    is_last: bool,
}

impl Burst {
    /// Creates the state before the first burst.
    pub(super) const fn new() -> Self {
        Self {
            began_at: Instant::ZERO,
            is_last: true,
        }
    }

    /// Records the next packet of the burst. Returns the time by which an *awaited* path (a path that is not ready, but
    /// worth waiting for) must have sent the backlog. This time is at least `patience` from now.
    pub(super) fn count(
        &mut self,
        now: Instant,
        packet: &PacketInfo,
        patience: Duration,
    ) -> Instant {
        if self.is_last {
            self.began_at = now;
        }
        self.is_last = packet.backlog == Bytes::ZERO;
        (self.began_at + BURST).max(now + patience)
    }
}

/// How long a packet of a large flow may always wait for the quickest path of its group. `round_trip`: min RTT of
/// that path.
pub(super) fn patience(round_trip: Option<Duration>) -> Duration {
    let part = round_trip.unwrap_or_default() / PATIENCE;
    part.clamp(MAX_WAIT, BURST)
}

/// Maximum predicted time to send a large flow's backlog on the awaited path, if RTTs are short and the backlog is
/// not a burst: the target of the tunnel queue's CoDel.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(5);
/// Maximum predicted time from the beginning of a burst until the awaited path has sent the burst: half of the interval
/// of the tunnel queue's CoDel. A burst is not yet a standing queue. If its first packet took a slower path, the whole
/// burst would be delivered later. For a small flow, which is a burst as a whole, this maximum applies at any time.
pub(super) const BURST: Duration = Duration::from_millis(50);
/// Divisor of the RTT: a packet of a large flow may wait for this part of the RTT, if it is longer than [`MAX_WAIT`],
/// up to [`BURST`]. A flow that fills a path with a long RTT sends in bursts. If the end of such a burst took a later
/// path, it would add that path's delay to all packets behind it.
const PATIENCE: u32 = 5;
