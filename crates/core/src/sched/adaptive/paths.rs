//! The classification of paths (near, late, open), their capacity, and their cost.

use core::time::Duration;

use crate::{
    path::model,
    sched::{PathView, line::Line},
    time::Instant,
    trace::IdleReason,
    units::{Bitrate, Bytes},
};

/// Whether a path belongs to the group that begins at the extra delay `from`, relative to the quickest path.
pub(super) fn is_member(path: &PathView, from: Duration) -> bool {
    path.extra_delay >= from && path.extra_delay <= from + GATE
}

/// Whether a path is late: too late to be mixed with the quickest group, but able to take packets that would arrive
/// even later there. A flow that has left the near paths uses no late paths.
pub(super) fn is_late(path: &PathView, from: Duration) -> bool {
    from == Duration::ZERO && path.extra_delay > GATE && path.extra_delay <= LATEST
}

/// The quickest usable path with an extra delay of at least `from`.
pub(super) fn quickest(paths: &[PathView], from: Duration) -> Option<&PathView> {
    let usable = paths.iter().filter(|path| path.usable);
    let usable = usable.filter(|path| path.extra_delay >= from);
    usable.min_by_key(|path| path.extra_delay)
}

/// Extra delay up to which a path counts as equally quick as the quickest path.
pub(super) fn nearest(paths: &[PathView]) -> Duration {
    quickest(paths, Duration::ZERO).map_or(NEAREST, |path| path.extra_delay + NEAREST)
}

/// The queue delay of the quickest path when it is saturated.
pub(super) fn usual_queue(quickest: Option<&PathView>) -> Duration {
    let rate = quickest.and_then(|path| path.rate);
    rate.map_or(model::HIGH.delay, full_queue)
}

/// The queue delay of a saturated path with `rate`, before the queue is drained.
pub(super) fn full_queue(rate: Bitrate) -> Duration {
    model::HIGH.delay.max(model::HIGH.bytes / rate)
}

/// The total rate, in bits per second, of the usable paths for which `is_counted` is true.
pub(super) fn carried_where(paths: &[PathView], is_counted: impl Fn(&PathView) -> bool) -> u128 {
    let counted = paths.iter().filter(|path| path.usable && is_counted(path));
    let rates = counted.filter_map(|path| path.rate);
    rates.map(|rate| u128::from(rate.as_bps())).sum()
}

/// The total rate of the near paths, which are the paths in the group of the quickest path.
pub(super) fn carried_near(paths: &[PathView]) -> u128 {
    carried_where(paths, |path| is_member(path, Duration::ZERO))
}

/// The assumed capacity of a path: twice the rate reached so far while the search for the capacity is in progress.
pub(super) fn likely_rate(path: &PathView) -> Bitrate {
    match path.rate {
        Some(rate) if path.is_searching => rate.scale(2, 1),
        Some(rate) => rate,
        None => UNKNOWN_RATE,
    }
}

/// The share of the total capacity, in percent, that a path needs to bring a large flow more than it costs. It grows
/// with the path's extra delay, and with the amount by which the path's queue exceeds `usual` when both paths are
/// saturated. `usual`: the queue delay of the quickest path when it is saturated.
fn needed_percent(path: &PathView, usual: Duration) -> u64 {
    let queue = path.rate.map_or(Duration::ZERO, full_queue);
    let later = path.extra_delay.saturating_add(queue.saturating_sub(usual));
    let later_ms = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
    LEAST_SHARE_PERCENT + later_ms / 10
}

/// Why a path costs a large flow more than it brings; `None` if it is worth using. `total`: the capacity of all paths
/// in bits per second. A path that has delivered nothing yet is tried: nothing else would show its capacity.
pub(super) fn worthless(path: &PathView, total: u128, usual: Duration) -> Option<IdleReason> {
    let rate = u128::from(path.rate?.as_bps());
    let needed = needed_percent(path, usual);
    if rate * 100 >= total * u128::from(needed) {
        return None;
    }
    let percent = |percent: u128| u8::try_from(percent.min(100)).unwrap_or(100);
    Some(IdleReason::WorthTooLittle {
        share_percent: percent(rate * 100 / total.max(1)),
        needed_percent: percent(u128::from(needed)),
    })
}

/// When `len` bytes sent now would arrive, minus the one-way delay of the quickest path. `wait`: the time they wait in
/// the path's queue.
pub(super) fn arrival(
    line: &Line,
    now: Instant,
    path: &PathView,
    wait: Duration,
    len: Bytes,
) -> Instant {
    line.sent_until(now, len).max(now + wait) + path.extra_delay
}

/// The assumed capacity of an unmeasured path.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(20);
/// Maximum difference between the delays of the paths of one flow.
pub(super) const GATE: Duration = Duration::from_millis(110);
/// Maximum extra delay of a late path. A late path takes packets whose wait for the quickest path would be longer than
/// the late path's extra delay.
pub(super) const LATEST: Duration = Duration::from_millis(330);
/// Difference to the shortest delay up to which a path counts as equally quick.
const NEAREST: Duration = Duration::from_millis(10);
/// Share of the total capacity, in percent, that a path needs to carry large flows. One percent is added per 10 ms of
/// extra delay.
const LEAST_SHARE_PERCENT: u64 = 3;
