//! The memory used by the packets of one peer, and which packets are dropped when it exceeds the bound.
//!
//! The peer decides when it reports received packets, which gaps this end waits for, and how fast it takes queued
//! packets. Therefore packets kept for retransmission, packets waiting to be sent, and packets held for their order
//! are counted together, each as a full buffer plus [`OVERHEAD`]. Beyond the bound this end drops, in this order: the
//! oldest datagrams kept for retransmission (they cannot be repaired then), and packets waiting for retransmission;
//! then it delivers held packets early. Packets in the tunnel queue stay, but its owner adds no more.

use super::{
    Tunnel,
    lengths::{Lengths, USUAL_MTU},
};
use crate::{ids::PathId, path::Path, time::Instant, tunnel::Shared};

impl Tunnel {
    /// The memory used by packets, in bytes. O(paths).
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
            // Drop from the path that keeps most, but not everything while others keep nearly as much.
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

    /// The path that keeps the most packets, if any path keeps packets.
    fn fullest(&self) -> Option<PathId> {
        let kept = |path: &&Path| path.sender().kept_pkts();
        let fullest = self.paths.iter().max_by_key(kept);
        fullest.filter(|path| kept(path) > 0).map(Path::id)
    }
}

/// The largest amount of memory for one packet.
const fn packet_bytes(lengths: &Lengths) -> u64 {
    (lengths.longest_in() + BUFFER_SLACK + OVERHEAD) as u64
}

/// The size of a buffer for packets of up to `mtu` bytes from the host, in bytes.
pub(crate) const fn buffer_bytes(mtu: usize) -> usize {
    let longest = if mtu > USUAL_MTU { mtu } else { USUAL_MTU };
    longest + BUFFER_SLACK
}

/// The size of a buffer beyond the longest packet, in bytes.
const BUFFER_SLACK: usize = 64;
/// The size of the records about a packet, wherever it waits, in bytes.
pub(super) const OVERHEAD: usize = 256;
