//! Count and limit of the packets that leave the lanes for the peer.

use super::Tunnel;
use crate::{time::Instant, units::Bitrate};

impl Tunnel {
    /// Limits the rate of new packets to the peer; `None` removes the limit. Packets above the limit wait in the tunnel
    /// queue. Retransmissions, copies and repair symbols are not limited.
    pub fn set_cap(&mut self, now: Instant, cap: Option<Bitrate>) {
        self.outbound.lanes.meter.set_cap(now, cap);
    }

    /// Returns the limit of the rate of new packets to the peer.
    #[must_use]
    pub fn cap(&self) -> Option<Bitrate> {
        self.outbound.lanes.meter.cap()
    }

    /// Returns the bytes of inner packets that have left the lanes for the peer, each packet counted once. The count
    /// goes on when a new association begins.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.outbound.lanes.sent_bytes()
    }
}
