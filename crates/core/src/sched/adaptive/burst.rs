//! How long packets wait for a quicker path: a burst as a whole, a standing queue little.

use core::time::Duration;

use crate::{sched::PacketInfo, time::Instant, units::Bytes};

/// What large flows send while something waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    began_at: Instant,
    /// Whether nothing waits behind its newest packet.
    is_last: bool,
}

impl Burst {
    /// None has begun.
    pub(super) const fn new() -> Self {
        Self {
            began_at: Instant::ZERO,
            is_last: true,
        }
    }

    /// Takes note of its next packet. By when an awaited path must have sent all that waits, which may take `patience`
    /// whenever it came.
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

/// For how long a large flow may wait for the quickest of its paths, of `round_trip`, at any time.
pub(super) fn patience(round_trip: Option<Duration>) -> Duration {
    let part = round_trip.unwrap_or_default() / PATIENCE;
    part.clamp(MAX_WAIT, BURST)
}

/// Longest predicted time to get a large flow's backlog through the awaited path, where round trips are short and it comes in no
/// burst: the target of the tunnel queue's CoDel.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(5);
/// The same of a burst, from its beginning on: half of the interval of that CoDel. It is no standing queue yet, and the head
/// of it on a later path would hold all of it up. The same of a small flow, at any time: the whole of it is a burst.
pub(super) const BURST: Duration = Duration::from_millis(50);
/// It is this part of the round trip if that is more, and at most as for a burst: what fills a path of a long one comes and
/// goes in bursts, which are not to lend all that follows the delay of a later path.
const PATIENCE: u32 = 5;
