//! The memory used by the packets of one peer, and which packets are dropped when it exceeds the bound.
//!
//! The peer determines when it reports received packets, which gaps this end waits for, and how fast it takes queued
//! packets. Therefore three kinds of packets are counted together, each as a full buffer plus [`OVERHEAD`]: packets
//! stored for retransmission, packets waiting to be sent, and packets that the resequencer buffers. Beyond the bound
//! this end first drops the oldest datagrams stored for retransmission, which can then not be repaired. Then it drops
//! packets waiting for retransmission. Then it delivers buffered packets early. Packets in the tunnel queue remain, but
//! the tunnel's owner adds no more.

use super::{
    Tunnel,
    lengths::{Lengths, USUAL_MTU},
};
use crate::{ids::PathId, path::Path, time::Instant, tunnel::Shared};

impl Tunnel {
    /// Returns the memory used by packets, in bytes. O(paths).
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.kept_pkts() as u64 * packet_bytes(&self.lengths)
    }

    fn kept_pkts(&self) -> usize {
        let sent = self.paths.iter().map(|path| path.sender().kept_pkts());
        sent.sum::<usize>()
            + self.repair.len()
            + self.outbound.waiting_pkts()
            + self.inbound.resequencer.held_len()
    }

    /// Drops packets until at most `limit` bytes are used. Returns whether that was possible.
    pub fn trim(&mut self, now: Instant, limit: u64, shared: &mut Shared<'_>) -> bool {
        let most = usize::try_from(limit / packet_bytes(&self.lengths)).unwrap_or(usize::MAX);
        let mut excess = self.kept_pkts().saturating_sub(most);
        while excess > 0
            && let Some(id) = self.fullest()
            && let Some(path) = self.paths.get_mut(id)
        {
            let kept = path.sender().kept_pkts();
            // Drop from the path that stores the most packets, but at most half of them, because other paths may store
            // nearly as many.
            let given_up = excess.min(kept.div_ceil(2));
            path.sender_mut().trim(kept - given_up, shared.pool);
            excess -= given_up;
        }
        if excess > 0 {
            let before = self.repair.len();
            self.repair.trim(before.saturating_sub(excess), shared);
            excess -= before - self.repair.len();
        }
        if excess > 0 {
            let delivered = shared.delivered.len();
            let held = self.inbound.resequencer.held_len();
            let resequencer = &mut self.inbound.resequencer;
            resequencer.trim(now, held.saturating_sub(excess), shared.delivered);
            excess = excess.saturating_sub(held - resequencer.held_len());
            self.on_delivered(now, delivered, shared);
        }
        excess == 0
    }

    /// Returns the path that stores the most packets, if any path stores packets.
    fn fullest(&self) -> Option<PathId> {
        let kept = |path: &&Path| path.sender().kept_pkts();
        let fullest = self.paths.iter().max_by_key(kept);
        fullest.filter(|path| kept(path) > 0).map(Path::id)
    }
}

/// Returns the maximum memory for one packet, in bytes.
const fn packet_bytes(lengths: &Lengths) -> u64 {
    (lengths.longest_in() + BUFFER_SLACK + OVERHEAD) as u64
}

/// Returns the size in bytes of a buffer for packets of up to `mtu` bytes from the host.
pub(crate) const fn buffer_bytes(mtu: usize) -> usize {
    let longest = if mtu > USUAL_MTU { mtu } else { USUAL_MTU };
    longest + BUFFER_SLACK
}

/// Size of a buffer beyond the longest packet, in bytes.
const BUFFER_SLACK: usize = 64;
/// Size of the records about a waiting packet, in bytes.
pub(super) const OVERHEAD: usize = 256;
