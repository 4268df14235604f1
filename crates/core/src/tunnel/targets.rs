//! How long packets may wait in the tunnel queue before it signals congestion, and how many bytes of a flow may wait.
//!
//! *Target.* A flow that backs off by 30 %, as CUBIC does (RFC 9438 section 4.6), keeps the paths full only if packets
//! for 3/7 of an RTT wait here. The sender's RTT contains the time for which packets wait at the receiver for
//! retransmissions of lost ones. Flow queueing keeps the waiting packets from delaying other flows. Some policies use a
//! path with a longer delay only for packets that would wait here for long. The target is at least as long as that wait
//! ([`Scheduler::longest_wait`](crate::sched::Scheduler::longest_wait)). If no path is paced, no standing queue is
//! needed here, and losses on the paths signal congestion.
//!
//! *Limit.* Even when packets are dropped, BBR maintains a queue of up to one RTT of packets, plus the excess of its
//! rate estimate. If more packets of a flow wait, its sender does not respond to congestion signals.
//!
//! *Allowance.* When a path becomes fast again, a flow needs its former window again, which takes seconds to grow. A
//! flow that backs off by 30 % is therefore allowed to have enough bytes waiting to fill the paths at their highest
//! rate of the last half minute.

use core::{cmp::Reverse, time::Duration};

use super::{lanes::Lanes, path_set::PathSet, placement::Placement};
use crate::{
    path::{Path, rate::DeliveryRate, window::WindowedMin},
    profile::{Mechanism, Pacing},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The targets and limits of the tunnel queue: see the module documentation.
#[derive(Debug)]
pub(super) struct Targets {
    /// Longest recent wait before packets are sent on paths with longer delays. The maximum is stored, because the set
    /// of usable paths with longer delays changes often.
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
    /// Sets the targets of `lanes` from the estimates of the paths. `kept` is the longest target RTT of a flow
    /// ([`super::round_trips`]).
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
        lanes.set_ack_room(ack_room);
        let is_limited = |path: &Path| path.pacer().rate().is_some();
        if profile.path_pacing() == Pacing::Limits && !paths.iter().any(is_limited) {
            return lanes.set_targets(Duration::MAX, Duration::MAX);
        }
        let usable = || paths.iter().filter(|path| path.health().is_usable());
        let is_used = |path: &&Path| paths.usage.is_carrying(path.id());
        let longest = usable().filter(is_used).filter_map(Path::loaded_rtt).max();
        // Senders whose ACKs are delayed measure the longer RTT.
        let longest = longest.unwrap_or_default().max(kept);
        let longest = longest
            + usable()
                .filter(is_used)
                .map(repair)
                .max()
                .unwrap_or_default();
        // Add the time of two full packets, because at low rates each packet is a large part of the queue.
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
        lanes.set_allowance(allowance, LONGEST_ALLOWED);
        let beyond = (longest * 3 / 2).max(LEAST_LIMIT);
        // A sender that responds has drained the queue after four RTTs and [`PATIENCE`].
        let patience = longest * 4 + PATIENCE;
        lanes.set_limits(bulk_target + beyond, target + beyond, patience);
    }
}

/// Returns how much longer a sender's RTT is because packets wait at the receiver for retransmissions of what `path` has
/// lost.
fn repair(path: &Path) -> Duration {
    let known = path.loaded_rtt().zip(path.rate().max());
    known.map_or(Duration::ZERO, |(rtt, rate)| {
        repair_time(rtt, rate, path.loss_floor_ppm())
    })
}

/// Returns how long packets wait for retransmissions over a path of this RTT, rate and loss ratio: an RTT if the path
/// loses a packet in each RTT, and the same share of an RTT if it loses one more rarely.
fn repair_time(rtt: Duration, rate: Bitrate, loss_ppm: u32) -> Duration {
    let packets = rate.bytes_in(rtt).get() / FULL_PACKET;
    let lost_ppm = packets.saturating_mul(loss_ppm.into()).min(1_000_000);
    rtt * u32::try_from(lost_ppm).unwrap_or(1_000_000) / 1_000_000
}

/// Returns how many bytes of a flow may wait if all its packets are ACKs: the amount that the path with the shortest
/// RTT sends in [`ACK_TIME`], or any amount while the rate of that path is unknown.
fn ack_room(paths: &PathSet) -> Bytes {
    let carrying = paths.carrying();
    let known = carrying.filter_map(|path| Some((path.rtt().min()?, path.rate().max())));
    let quickest = known.min_by_key(|(rtt, _)| *rtt);
    let rate = quickest.and_then(|(_, rate)| rate);
    rate.map_or(Bytes::new(u64::MAX), |rate| rate.bytes_in(ACK_TIME))
}

/// Returns how many bytes of a flow with an RTT of `span` may wait while paths with a varying rate are slow.
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

/// Minimum target: the target of CoDel (RFC 8289 section 4.4).
const LEAST_TARGET: Duration = Duration::from_millis(5);
const LARGEST_TARGET: Duration = Duration::from_millis(150);
/// Maximum duration for which a flow's queue may use the allowance, because the former rate of a path may never return.
const LONGEST_ALLOWED: Duration = Duration::from_millis(600);
/// Size of a full packet in bytes.
const FULL_PACKET: u64 = 1_500;
/// Size of two full packets.
const TARGET_BYTES: Bytes = Bytes::new(3_000);
/// Maximum transmission time of the waiting ACKs of a flow, a delay that no sender notices.
const ACK_TIME: Duration = Duration::from_micros(500);
/// Minimum excess of the limit over the target: the delay that a well-configured modem queue adds.
const LEAST_LIMIT: Duration = Duration::from_millis(60);
/// Duration that a sender may need in addition to the RTTs, for its own timers.
const PATIENCE: Duration = Duration::from_millis(500);
/// Duration for which the longest wait for paths with longer delays is remembered.
const LATE_KEPT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_for_retransmissions_for_an_rtt_at_most() {
        let rtt = Duration::from_millis(100);
        // 12 Mbit/s: 100 packets in an RTT.
        let wait = |loss_ppm| repair_time(rtt, Bitrate::from_mbps(12), loss_ppm);
        assert_eq!(wait(0), Duration::ZERO);
        assert_eq!(wait(2_500), rtt / 4);
        assert_eq!(wait(10_000), rtt);
        assert_eq!(wait(200_000), rtt);
    }
}
