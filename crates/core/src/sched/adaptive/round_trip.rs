//! The RTT to which ACK pacing extends the RTTs of a flow from its beginning
//! ([`crate::sched::Scheduler::round_trip`]).

use core::time::Duration;

use super::{
    groups::{Eager, MOST_PERCENT, alone, better_group, group},
    paths::{
        carried_where, full_queue, is_late, is_member, nearest, quickest, usual_queue, worthless,
    },
};
use crate::{sched::PathView, units::Bytes};

/// Returns the RTT of the slowest path that matters to a new flow, or zero while it is unknown.
pub(super) fn to_keep(paths: &[PathView]) -> Duration {
    let near = quickest(paths, Duration::ZERO);
    let Some((near, least)) = near.and_then(|near| Some((near, near.least_rtt?))) else {
        return Duration::ZERO;
    };
    let from = better_group(paths, Eager::ToLeave, alone(paths));
    let taken = group(paths, Eager::ToLeave, alone(paths));
    let total = carried_where(paths, |_| true);
    let usual = usual_queue(quickest(paths, from));
    // ACKs move to the next path when the queue of ACKs makes the quickest path as late as the next path.
    let others = paths
        .iter()
        .filter(|path| path.usable && path.id != near.id);
    let next = others.map(|path| path.extra_delay).min();
    let known = near.rate.filter(|_| !near.is_searching);
    let queue = known.map_or(Duration::ZERO, full_queue);
    let queue = queue.min(next.unwrap_or_default());
    // Data take this path and ACKs the quickest path, so half of the jitter of each path counts.
    let longer = |path: &PathView| {
        let is_thin = known.is_some_and(|near| path.rate > Some(near.scale(ACKED, 1)));
        let queue = if is_thin { queue } else { Duration::ZERO };
        path.extra_delay + (path.rtt_spread + near.rtt_spread) / 2 + queue
    };
    let nearest = nearest(paths);
    let near_rate = carried_where(paths, |path| path.extra_delay <= nearest);
    // A flow may fill the near paths and move to later ones, or spread to late ones that carry much more. If the RTT
    // of these paths is longer than the RTT so far, the sender mistakes the increase for a full queue and hardly
    // grows from then on.
    let is_left = better_group(paths, Eager::No, alone(paths)) > Duration::ZERO;
    let is_most = !is_left && near_rate * 100 > total * MOST_PERCENT;
    // A longer RTT costs a small flow little if the increase is small, or if the near paths are so slow that even this
    // flow fills them.
    let costs_little = |path: &PathView| {
        let later = longer(path);
        let bytes = near_rate * (least + later).as_millis() / 8_000;
        later * LITTLE <= least || bytes <= u128::from(TWO_WINDOWS.get())
    };
    let helps = |path: &PathView| {
        let is_one = is_member(path, from) || is_late(path, taken);
        path.usable && is_one && worthless(path, total, usual).is_none()
    };
    // The lowest delay of a path with jitter is observed late. Therefore half of its RTT spread is tolerated.
    let counts = |path: &PathView| {
        !is_most || path.extra_delay <= nearest + path.rtt_spread / 2 || costs_little(path)
    };
    let longest = |counts: &dyn Fn(&PathView) -> bool| {
        let serves = |path: &&PathView| path.id == near.id || helps(path) && counts(path);
        let last = paths.iter().filter(serves).map(longer).max();
        least + last.unwrap_or_default()
    };
    // BBR keeps twice its bandwidth-delay product in flight. So half of the RTT over all paths is enough for BBR to
    // find their capacity.
    let half = longest(&|_| true) / 2;
    longest(&counts).max(half.min(least + least / VERY_LITTLE))
}

/// Divisor of the RTT. Most flows end before they need more than the nearest paths. Other paths cost such flows
/// little if they lengthen the RTT by at most this fraction.
const LITTLE: u32 = 4;
/// Volume of a sender's first two windows (RFC 6928: 10 packets, then 20). Other paths also cost a flow little if the
/// near paths carry no more than this in the longer RTT.
const TWO_WINDOWS: Bytes = Bytes::new(45_000);
/// Divisor of the RTT: maximum fraction by which the RTT is lengthened for paths that cost more.
const VERY_LITTLE: u32 = 8;
/// Ratio of another path's rate to the quickest path's rate above which the ACKs of data on the other path fill the
/// quickest path, if its rate is the same in both directions. There is one ACK for two packets, and an ACK has a 16th
/// of a packet's length.
const ACKED: u64 = 32;
