//! The groups of paths that a large flow uses together, and the choice of the group. The near paths are the group of
//! the quickest path; [the module above](super) explains late paths.

use core::time::Duration;

use super::{
    crowd::Crowd,
    flow::{LARGE, SMALL},
    paths::{GATE, LATEST, carried_near, carried_where, is_member},
};
use crate::{sched::PathView, units::Bytes};

/// Whether a flow would gain from another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eager {
    /// The flow has left the near paths, and sends more than they carry.
    Gaining,
    /// The flow's present group suffices.
    No,
    /// The near paths limit the flow.
    ToLeave,
    /// The flow has left the near paths, and sends no more than they carry.
    ToStay,
}

/// The extra delay at which the group of a large flow begins: zero for the near paths, or the beginning of a group
/// that brings much more. Late paths help the near paths. So a flow leaves the near paths only if they add little to
/// the slower group, or if the slower group carries much more than near and late paths together.
pub(super) fn group(paths: &[PathView], eager: Eager, crowd: Crowd) -> Duration {
    let from = better_group(paths, eager, crowd);
    let is_away = matches!(eager, Eager::Gaining | Eager::ToStay);
    // Hysteresis, so that delays near the limit do not move a flow back and forth.
    let latest = if is_away { LATEST * 9 / 10 } else { LATEST };
    let late = |path: &PathView| path.extra_delay > GATE && path.extra_delay <= latest;
    let late = carried_where(paths, late);
    // If several flows share the paths, some leave and some stay.
    if from == Duration::ZERO || late == 0 || !crowd.is_alone {
        return from;
    }
    let carried = carried_where(paths, |path| is_member(path, from));
    let left = carried_where(paths, |path| path.extra_delay < from);
    let most = if is_away {
        MOST_PERCENT * 2
    } else {
        MOST_PERCENT
    };
    let adds_little = from <= latest && left * 100 <= (left + carried) * most;
    let worth = if is_away { 100 } else { WORTH_PERCENT };
    let is_more = carried * 100 > (carried_near(paths) + late) * worth;
    if adds_little || is_more {
        from
    } else {
        Duration::ZERO
    }
}

/// The extra delay at which the group of a large flow begins, without regard to the help of late paths. Most packets
/// of a large flow arrive over that group even if the flow does not leave the near paths.
pub(super) fn better_group(paths: &[PathView], eager: Eager, crowd: Crowd) -> Duration {
    let carried = |from: Duration| carried_where(paths, |path| is_member(path, from));
    // Leave the near paths only if their capacity is known to be too low.
    let is_near = |path: &PathView| path.usable && is_member(path, Duration::ZERO);
    let is_open = paths.iter().any(|path| is_near(path) && path.is_searching);
    if is_open || paths.iter().all(is_near) {
        return Duration::ZERO;
    }
    let near = crowd.near * crowd.later;
    let is_worth = |start: &Duration| {
        let percent = WORTH_PERCENT + start.as_millis();
        let by_gain = gain(carried(*start), *start) * 100;
        carried(*start) * 100 > near * percent
            || match eager {
                Eager::No => false,
                Eager::ToLeave => by_gain > gain(near, Duration::ZERO) * WORTH_PERCENT,
                Eager::Gaining | Eager::ToStay => by_gain > gain(near, Duration::ZERO) * 100,
            }
    };
    let starts = paths.iter().filter(|path| path.usable);
    let starts = starts.map(|path| path.extra_delay).filter(is_worth);
    let best = starts.max_by_key(|start| (carried(*start), core::cmp::Reverse(*start)));
    best.unwrap_or(Duration::ZERO)
}

/// The volume from which a flow is large. A backlog of this volume would arrive later on the near paths than on paths
/// that bring the flow much more.
pub(super) fn large(paths: &[PathView], crowd: Crowd) -> Bytes {
    let from = better_group(paths, Eager::ToLeave, crowd);
    if from == Duration::ZERO {
        return LARGE;
    }
    let bytes = crowd.near * from.as_millis() / 8_000;
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX)).clamp(SMALL, LARGEST)
}

/// The shares of capacity that a single flow can expect.
pub(super) fn alone(paths: &[PathView]) -> Crowd {
    Crowd::alone(carried_near(paths))
}

/// The number of bits, times 1000, that a flow sends until its end if it moves now to slower paths. `rate`: the total
/// rate of these paths. `later`: their extra delay. The flow must first fill the paths, doubling its window every RTT.
fn gain(rate: u128, later: Duration) -> u128 {
    let longer = 2 * later.as_millis();
    let in_flight = rate * longer / 8000;
    let doublings = (in_flight / u128::from(LARGE.get())).max(1).ilog2();
    let filling = longer * u128::from(1 + doublings);
    rate * LASTS.as_millis().saturating_sub(filling)
}

/// Minimum capacity, in percent of the near paths, of later paths that take over a large flow; one percent is added
/// per millisecond of their extra delay. Also the minimum amount of data, in percent, that later paths must bring to
/// take over a flow that the near paths limit.
const WORTH_PERCENT: u128 = 130;
/// Assumed duration of a large flow.
const LASTS: Duration = Duration::from_secs(10);
/// Maximum threshold for a large flow: near paths carry this amount in less time than the extra delay of other paths.
const LARGEST: Bytes = Bytes::new(160_000);
/// Share of the capacity of both groups, in percent, up to which near paths add little to late paths, so that flows
/// leave them. Flows that have left stay away up to twice this share. Near paths with a larger share matter to a new
/// flow.
pub(super) const MOST_PERCENT: u128 = 15;
