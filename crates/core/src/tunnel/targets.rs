//! How long packets may wait in the tunnel queue before it signals congestion, and how much of a flow may.
//!
//! *Target.* A flow that backs off by 30 %, as CUBIC does (RFC 9438 section 4.6), keeps the paths full only if 3/7 of a round trip
//! waits here; flow queueing keeps that from delaying others. Late paths take what waits for longer, so the target is at least that
//! long ([`Scheduler::longest_wait`](crate::sched::Scheduler::longest_wait)). Where nothing is paced, nothing stands here for the
//! paths' sake, and congestion is signalled by their losses.
//!
//! *Limit.* BBR keeps up to a round trip waiting, whatever is dropped, and what it overrates the rate by: a flow beyond that is one
//! whose sender does not listen.
//!
//! *Allowance.* What a flow has under way is what fills a path once it is fast again, and is regained in seconds only. So a flow that
//! backs off by 30 % is to keep what fills the paths at the best of the last half minute.

use core::{cmp::Reverse, time::Duration};

use super::{lanes::Lanes, path_set::PathSet, placement::Placement};
use crate::{
    path::{Path, rate::DeliveryRate, window::WindowedMin},
    profile::{Mechanism, Pacing},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Targets {
    /// What packets may wait before late paths take them, at most of late: which of them may serve changes from look to look.
    late: WindowedMin<Reverse<Duration>>,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            late: WindowedMin::new(LATE_KEPT),
        }
    }
}

impl Targets {
    /// Sets the targets of `lanes` by what is known of the paths. `kept`: how long the round trips of some flows are made.
    pub(super) fn adapt(
        &mut self,
        now: Instant,
        lanes: &mut Lanes,
        (paths, placement): (&PathSet, &Placement),
        kept: Duration,
    ) {
        let profile = placement.profile();
        let ack_room = if profile.has(Mechanism::AckThinning) {
            ack_room(paths)
        } else {
            Bytes::new(u64::MAX)
        };
        lanes.bulk.set_ack_room(ack_room);
        let is_limited = |path: &Path| path.pacer().rate().is_some();
        if profile.path_pacing() == Pacing::Limits && !paths.iter().any(is_limited) {
            return lanes.set_targets(Duration::MAX, Duration::MAX);
        }
        let usable = || paths.iter().filter(|path| path.health().is_usable());
        let is_used = |path: &&Path| paths.usage.is_carrying(path.id());
        let longest = usable().filter(is_used).filter_map(Path::loaded_rtt).max();
        // Senders whose round trips are kept long see those.
        let longest = longest.unwrap_or_default().max(kept);
        // Of packets that are few, one that leaves is much.
        let rate = sum(usable().filter_map(|path| path.rate().max()));
        let packets = if rate > Bitrate::ZERO {
            (TARGET_BYTES / rate).min(LEAST_TARGET * 4)
        } else {
            Duration::ZERO
        };
        let target = (longest * 3 / 7 + packets).clamp(LEAST_TARGET, LARGEST_TARGET);
        self.late.insert(now, Reverse(placement.longest_wait()));
        let late = self.late.min().map_or(Duration::ZERO, |Reverse(late)| late);
        let late = (late * 5 / 4).saturating_sub(lanes.ahead.waited());
        let bulk_target = target.max(late);
        lanes.set_targets(bulk_target, target);
        let allowance = if profile.has(Mechanism::Allowance) {
            allowance(paths, longest + packets)
        } else {
            Bytes::ZERO
        };
        lanes.bulk.set_allowance(allowance, LONGEST_ALLOWED);
        let beyond = (longest * 3 / 2).max(LEAST_LIMIT);
        // A sender that listens has drained the queue after four of them and a little.
        let patience = longest * 4 + PATIENCE;
        lanes.set_limits(bulk_target + beyond, target + beyond, patience);
    }
}

/// How much of a flow may wait with all its acknowledgements: what the quickest path sends in [`ACK_TIME`]; anything, while that
/// is not known.
fn ack_room(paths: &PathSet) -> Bytes {
    let carrying = paths.carrying();
    let known = carrying.filter_map(|path| Some((path.rtt().min()?, path.rate().max())));
    let quickest = known.min_by_key(|(rtt, _)| *rtt);
    let rate = quickest.and_then(|(_, rate)| rate);
    rate.map_or(Bytes::new(u64::MAX), |rate| rate.bytes_in(ACK_TIME))
}

/// What paths that vary may have waiting while they are slow, for flows whose round trip is `span`.
fn allowance(paths: &PathSet, span: Duration) -> Bytes {
    let rates = |rate: fn(&DeliveryRate) -> Option<Bitrate>| {
        let usable = paths.iter().filter(|path| path.health().is_usable());
        sum(usable.filter_map(|path| rate(path.rate())))
    };
    let before = rates(DeliveryRate::peak).scale(10, 7);
    let now = rates(DeliveryRate::smoothed);
    before.saturating_sub(now).bytes_in(span)
}

fn sum(rates: impl Iterator<Item = Bitrate>) -> Bitrate {
    Bitrate::from_bps(rates.fold(0_u64, |sum, rate| sum.saturating_add(rate.as_bps())))
}

/// CoDel's own (RFC 8289 section 4.4).
const LEAST_TARGET: Duration = Duration::from_millis(5);
const LARGEST_TARGET: Duration = Duration::from_millis(150);
/// However fast a path was, its slower days end sometime.
const LONGEST_ALLOWED: Duration = Duration::from_millis(600);
/// Two full packets.
const TARGET_BYTES: Bytes = Bytes::new(3_000);
/// More of a flow's acknowledgements need not wait: of so much no sender takes notice.
const ACK_TIME: Duration = Duration::from_micros(500);
/// What a modem's queue adds when it is well set.
const LEAST_LIMIT: Duration = Duration::from_millis(60);
/// What a sender may take beside round trips: its own timers.
const PATIENCE: Duration = Duration::from_millis(500);
/// For how long what late paths are waited for is kept.
const LATE_KEPT: Duration = Duration::from_secs(2);
