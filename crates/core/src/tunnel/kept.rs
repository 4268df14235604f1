//! The memory used by the packets of one peer, and which packets are dropped when it exceeds the bound.
//!
//! The peer determines when it reports received packets, which gaps this end waits for, and how fast it takes queued
//! packets. Therefore three kinds of packets are counted together, each as a full buffer plus [`OVERHEAD`]: packets
//! stored for retransmission, packets waiting to be sent, and packets that the resequencer buffers. Beyond the bound
//! this end first drops the oldest datagrams stored for retransmission, which can then not be repaired. Then it drops
//! packets waiting for retransmission. Then it delivers buffered packets early. Packets in the tunnel queue remain, but
//! the tunnel's owner adds no more.

use super::{
    inbound::Inbound,
    lengths::{Lengths, USUAL_MTU},
    outbound::Outbound,
    path_set::PathSet,
    repair::Repair,
    shared::Shared,
};
use crate::{ids::PathId, path::Path, time::Instant};

/// Returns the number of packets that are stored.
pub(super) fn pkts(
    paths: &PathSet,
    repair: &Repair,
    outbound: &Outbound,
    inbound: &Inbound,
) -> usize {
    let sent = paths.iter().map(|path| path.sender().kept_pkts());
    sent.sum::<usize>() + repair.len() + outbound.waiting_pkts() + inbound.resequencer.held_len()
}

/// Drops up to `excess` packets stored for retransmission, then packets that wait for retransmission. Returns how many
/// of `excess` remain.
pub(super) fn drop_sent(
    mut excess: usize,
    paths: &mut PathSet,
    repair: &mut Repair,
    shared: &mut Shared<'_>,
) -> usize {
    while excess > 0
        && let Some(id) = fullest(paths)
        && let Some(path) = paths.get_mut(id)
    {
        let kept = path.sender().kept_pkts();
        // Drop from the path that stores the most packets, but at most half of them, because other paths may store
        // nearly as many.
        let given_up = excess.min(kept.div_ceil(2));
        path.sender_mut().trim(kept - given_up, shared.pool);
        excess -= given_up;
    }
    if excess > 0 {
        let before = repair.len();
        repair.trim(before.saturating_sub(excess), shared);
        excess -= before - repair.len();
    }
    excess
}

/// Delivers up to `excess` packets of the resequencer early. Returns how many of `excess` remain.
pub(super) fn deliver_held(
    now: Instant,
    excess: usize,
    inbound: &mut Inbound,
    shared: &mut Shared<'_>,
) -> usize {
    if excess == 0 {
        return 0;
    }
    let resequencer = &mut inbound.resequencer;
    let held = resequencer.held_len();
    resequencer.trim(now, held.saturating_sub(excess), shared.delivered);
    excess.saturating_sub(held - resequencer.held_len())
}

/// Returns the path that stores the most packets, if any path stores packets.
fn fullest(paths: &PathSet) -> Option<PathId> {
    let kept = |path: &&Path| path.sender().kept_pkts();
    let fullest = paths.iter().max_by_key(kept);
    fullest.filter(|path| kept(path) > 0).map(Path::id)
}

/// Returns the maximum memory for one packet, in bytes.
pub(super) const fn packet_bytes(lengths: &Lengths) -> u64 {
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
