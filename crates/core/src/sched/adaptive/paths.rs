//! Which paths are near, late, and open, what they carry, and what they cost.

use core::time::Duration;

use crate::{
    path::model,
    sched::{PathView, line::Line},
    time::Instant,
    trace::IdleReason,
    units::{Bitrate, Bytes},
};

/// Whether a path is of the group that begins at `from` beyond the quickest path's delay.
pub(super) fn is_member(path: &PathView, from: Duration) -> bool {
    path.extra_delay >= from && path.extra_delay <= from + GATE
}

/// Whether a path is too late to be mixed with the quickest, but not to take what would come even later there; no flow that
/// has left that takes such.
pub(super) fn is_late(path: &PathView, from: Duration) -> bool {
    from == Duration::ZERO && path.extra_delay > GATE && path.extra_delay <= LATEST
}

/// The path of the least delay, of those that are usable and not before `from`.
pub(super) fn quickest(paths: &[PathView], from: Duration) -> Option<&PathView> {
    let usable = paths.iter().filter(|path| path.usable);
    let usable = usable.filter(|path| path.extra_delay >= from);
    usable.min_by_key(|path| path.extra_delay)
}

/// The delay up to which paths are about as quick as the quickest.
pub(super) fn nearest(paths: &[PathView]) -> Duration {
    quickest(paths, Duration::ZERO).map_or(NEAREST, |path| path.extra_delay + NEAREST)
}

/// What the queue of the quickest path is while that is full.
pub(super) fn usual_queue(quickest: Option<&PathView>) -> Duration {
    let rate = quickest.and_then(|path| path.rate);
    rate.map_or(model::HIGH.delay, full_queue)
}

/// What the queue of a path of `rate` is while that is full: before it is drained.
pub(super) fn full_queue(rate: Bitrate) -> Duration {
    model::HIGH.delay.max(model::HIGH.bytes / rate)
}

/// Bits per second of the usable paths that `is_counted`, together.
pub(super) fn carried_where(paths: &[PathView], is_counted: impl Fn(&PathView) -> bool) -> u128 {
    let counted = paths.iter().filter(|path| path.usable && is_counted(path));
    let rates = counted.filter_map(|path| path.rate);
    rates.map(|rate| u128::from(rate.as_bps())).sum()
}

/// The same of those near the quickest.
pub(super) fn carried_near(paths: &[PathView]) -> u128 {
    carried_where(paths, |path| is_member(path, Duration::ZERO))
}

/// What a path is taken to carry: twice what one that is being searched has carried.
pub(super) fn likely_rate(path: &PathView) -> Bitrate {
    match path.rate {
        Some(rate) if path.is_searching => rate.scale(2, 1),
        Some(rate) => rate,
        None => UNKNOWN_RATE,
    }
}

/// The share of what all paths carry, in percent, that a path must have to bring a large flow more than it costs: it grows with
/// how much later than on the quickest path packets arrive, and with how much longer the path's queue is than `usual`, the
/// quickest's, while both are full.
fn needed_percent(path: &PathView, usual: Duration) -> u64 {
    let queue = path.rate.map_or(Duration::ZERO, full_queue);
    let later = path.extra_delay.saturating_add(queue.saturating_sub(usual));
    let later_ms = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
    LEAST_SHARE_PERCENT + later_ms / 10
}

/// Why a path brings a large flow less than it costs; `None` if it is worth it. `total`: bits per second of all paths. A path that has
/// delivered nothing yet is tried: nothing else would show what it carries.
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

/// When `len` bytes would arrive that are sent now, beyond the quickest path's delay. `wait`: for what stands before them in the
/// path itself.
pub(super) fn arrival(
    line: &Line,
    now: Instant,
    path: &PathView,
    wait: Duration,
    len: Bytes,
) -> Instant {
    line.sent_until(now, len).max(now + wait) + path.extra_delay
}

/// What a path carries before anything is known.
const UNKNOWN_RATE: Bitrate = Bitrate::from_mbps(20);
/// How much the delays of the paths of one flow may differ.
pub(super) const GATE: Duration = Duration::from_millis(110);
/// A later one takes what waits longer than that for the quickest, up to here.
pub(super) const LATEST: Duration = Duration::from_millis(330);
/// A path about as quick as the quickest is at most so much later.
const NEAREST: Duration = Duration::from_millis(10);
/// A path carries large flows only if its share of all is more than this, and than a percent for each 10 ms.
const LEAST_SHARE_PERCENT: u64 = 3;
