//! How long packets wait for a quicker path: as a whole burst, or only briefly in a standing queue.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// The current burst: what large flows send while packets wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    began_at: Instant,
    /// Whether no packet waits behind its newest packet.
    is_last: bool,
}

impl Burst {
    /// No burst has begun.
    pub(super) const fn new() -> Self {
        Self {
            began_at: Instant::ZERO,
            is_last: true,
        }
    }

    /// Records the next packet of the burst. Returns the time by which an awaited path must have sent the backlog, which
    /// is never earlier than `patience` from now.
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

/// How long a packet of a large flow may wait at any time for the quickest of its paths, whose RTT is `round_trip`.
pub(super) fn patience(round_trip: Option<Duration>) -> Duration {
    let part = round_trip.unwrap_or_default() / PATIENCE;
    part.clamp(MAX_WAIT, BURST)
}

/// The longest predicted time to send a large flow's backlog on the awaited path, if RTTs are short and the backlog is
/// no burst: the target of the tunnel queue's CoDel.
/// burst: the target of the tunnel queue's CoDel.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(5);
/// The same for a burst, from its beginning: half the interval of that CoDel. A burst is not yet a standing queue, and
/// its first packet would delay all of it on a slower path. Also the same for a small flow at any time, which is a
/// burst as a whole.
pub(super) const BURST: Duration = Duration::from_millis(50);
/// The divisor of the RTT that gives the wait, if that is longer, up to the wait of a burst. A flow that fills a path
/// with a long RTT sends in bursts, whose tail must not add the delay of a later path to all packets behind it.
const PATIENCE: u32 = 5;
