//! The RTT to keep for a flow from its beginning ([`crate::sched::Scheduler::round_trip`]).

use core::time::Duration;

use super::{
    groups::{Eager, MOST_PERCENT, alone, better_group, group},
    paths::{
        carried_where, full_queue, is_late, is_member, nearest, quickest, usual_queue, worthless,
    },
};
use crate::{sched::PathView, units::Bytes};

/// The RTT of the slowest path that matters to a new flow, or zero while it is unknown.
pub(super) fn to_keep(paths: &[PathView]) -> Duration {
    let near = quickest(paths, Duration::ZERO);
    let Some((near, least)) = near.and_then(|near| Some((near, near.least_rtt?))) else {
        return Duration::ZERO;
    };
    let from = better_group(paths, Eager::ToLeave, alone(paths));
    let taken = group(paths, Eager::ToLeave, alone(paths));
    let total = carried_where(paths, |_| true);
    let usual = usual_queue(quickest(paths, from));
    // Acknowledgements take the next path when the queue that they make on the quickest is as late.
    let others = paths
        .iter()
        .filter(|path| path.usable && path.id != near.id);
    let next = others.map(|path| path.extra_delay).min();
    let known = near.rate.filter(|_| !near.is_searching);
    let queue = known.map_or(Duration::ZERO, full_queue);
    let queue = queue.min(next.unwrap_or_default());
    // There on one path, back on the quickest: of the jitter of both, half each.
    let longer = |path: &PathView| {
        let is_thin = known.is_some_and(|near| path.rate > Some(near.scale(ACKED, 1)));
        let queue = if is_thin { queue } else { Duration::ZERO };
        path.extra_delay + (path.rtt_spread + near.rtt_spread) / 2 + queue
    };
    let nearest = nearest(paths);
    let near_rate = carried_where(paths, |path| path.extra_delay <= nearest);
    // A flow that fills the near paths and moves to later ones, or spreads to late ones that carry much more, finds there how long
    // their round trip is: if that is more than it knows, its sender takes it for a full queue, and grows little as soon as it has got there.
    let is_left = better_group(paths, Eager::No, alone(paths)) > Duration::ZERO;
    let is_most = !is_left && near_rate * 100 > total * MOST_PERCENT;
    // What that costs a small flow is little if it is little longer, or if near paths are so slow that they are full.
    let costs_little = |path: &PathView| {
        let later = longer(path);
        let bytes = near_rate * (least + later).as_millis() / 8_000;
        later * LITTLE <= least || bytes <= u128::from(TWO_WINDOWS.get())
    };
    let helps = |path: &PathView| {
        let is_one = is_member(path, from) || is_late(path, taken);
        path.usable && is_one && worthless(path, total, usual).is_none()
    };
    // The least delay of one that jitters is seen late.
    let counts = |path: &PathView| {
        !is_most || path.extra_delay <= nearest + path.rtt_spread / 2 || costs_little(path)
    };
    let longest = |counts: &dyn Fn(&PathView) -> bool| {
        let serves = |path: &&PathView| path.id == near.id || helps(path) && counts(path);
        let last = paths.iter().filter(serves).map(longer).max();
        least + last.unwrap_or_default()
    };
    // BBR has two windows of its shortest round trip on its way, so with half of what all paths make it finds them.
    let half = longest(&|_| true) / 2;
    longest(&counts).max(half.min(least + least / VERY_LITTLE))
}

/// Most flows end before they need others than the nearest paths. But others that make the round trip longer by this part of it
/// at most cost them little, and so do any if the near ones carry no more in the longer one than a sender's first two windows
/// (RFC 6928: 10 packets, then 20).
const LITTLE: u32 = 4;
const TWO_WINDOWS: Bytes = Bytes::new(45_000);
/// What it is made longer by at most for the sake of others that cost more.
const VERY_LITTLE: u32 = 8;
/// Acknowledgements of so many times what a path carries fill it, if it carries as much the other way: one for two packets, of
/// a 16th of their length each.
const ACKED: u64 = 32;
