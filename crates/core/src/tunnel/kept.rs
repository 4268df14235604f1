//! The memory that packets of one peer take, and what is given up when that is too much.
//!
//! A peer decides when it reports what came, what it lets this end wait for, and how fast it takes what is queued for it. So
//! packets that are kept to be sent again, wait to be sent, or are held for their order are counted together, each as a full
//! buffer and [`OVERHEAD`]. Beyond the bound go, in this order: the oldest datagrams that are kept (then they cannot be
//! repaired), packets that wait to be sent again, and packets held for their order (which leave early). What waits in the
//! tunnel queue stays; the owner takes no more into it.

use super::{
    Tunnel,
    lengths::{Lengths, USUAL_MTU},
};
use crate::{ids::PathId, path::Path, time::Instant, tunnel::Shared};

impl Tunnel {
    /// What packets on their way take, in bytes. O(paths).
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

    /// Gives up packets until no more than `limit` bytes are taken; whether that was enough.
    pub fn trim(&mut self, now: Instant, limit: u64, shared: &mut Shared<'_>) -> bool {
        let most = usize::try_from(limit / packet_bytes(&self.lengths)).unwrap_or(usize::MAX);
        let mut excess = self.kept_pkts().saturating_sub(most);
        while excess > 0
            && let Some(id) = self.fullest()
            && let Some(path) = self.paths.get_mut(id)
        {
            let kept = path.sender().kept_pkts();
            // The fullest first, but not all of it while others have nearly as much.
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

    /// The path of which most is kept, if anything is.
    fn fullest(&self) -> Option<PathId> {
        let kept = |path: &&Path| path.sender().kept_pkts();
        let fullest = self.paths.iter().max_by_key(kept);
        fullest.filter(|path| kept(path) > 0).map(Path::id)
    }
}

/// What a packet takes at most.
const fn packet_bytes(lengths: &Lengths) -> u64 {
    (lengths.longest_in() + BUFFER_SLACK + OVERHEAD) as u64
}

/// Room of a buffer for packets of up to `mtu` bytes of the host, in bytes.
pub(crate) const fn buffer_bytes(mtu: usize) -> usize {
    let longest = if mtu > USUAL_MTU { mtu } else { USUAL_MTU };
    longest + BUFFER_SLACK
}

/// Room of a buffer beyond the longest packet.
const BUFFER_SLACK: usize = 64;
/// What is noted with a packet wherever it waits, in bytes.
pub(super) const OVERHEAD: usize = 256;
