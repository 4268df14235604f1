//! Counts how many flows share the near paths, which are the paths in the group of the quickest path, and how many
//! share later paths.
//!
//! The capacity of a path is shared by its flows. A flow moves to the later paths if its share of their capacity
//! would be worth more than its share of the near paths, so flows spread until both shares are about equal. A flow
//! that has moved is counted on the later paths at once, so that not all flows move together. Flows that send almost
//! nothing do not count.

use core::time::Duration;

use super::flow::{Flow, HELD_BACK_PERCENT};
use crate::time::Instant;

/// The flows that send much, as last counted, and the total rate of the flows on near paths in bits per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    counted_at: Instant,
    near: u32,
    away: u32,
    near_rate: u64,
}

/// The shares that a flow can expect: its part of the capacity of the near paths, in bits per second, and the number of
/// flows that share the later paths if the flow moves to the later paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) near: u128,
    pub(super) later: u128,
    pub(super) is_alone: bool,
}

impl Crowd {
    /// The shares of a flow that is alone, where the near paths carry `near`.
    pub(super) const fn alone(near: u128) -> Self {
        Self {
            near,
            later: 1,
            is_alone: true,
        }
    }
}

impl Count {
    pub(super) const fn new() -> Self {
        Self {
            counted_at: Instant::ZERO,
            near: 0,
            away: 0,
            near_rate: 0,
        }
    }

    /// Counts again if the last count is old.
    pub(super) fn update(&mut self, now: Instant, flows: &[Flow]) {
        if now.since(self.counted_at) < COUNTED_AGAIN {
            return;
        }
        self.counted_at = now;
        let sends = |is_away: bool| {
            let is_one = move |flow: &&Flow| {
                let stale = if is_away { AWAY_STALE } else { STALE };
                flow.is_away == is_away && now.since(flow.seen_at) < stale && flow.is_busy()
            };
            flows.iter().filter(is_one).map(|flow| flow.rate(now))
        };
        for (is_away, count) in [(false, &mut self.near), (true, &mut self.away)] {
            let (total, all) =
                sends(is_away).fold((0, 0), |(total, all), rate| (total + rate, all + 1));
            let has_part = |rate: u128| rate * all * PART >= total;
            *count = sends(is_away).map(|rate| u32::from(has_part(rate))).sum();
            if !is_away {
                self.near_rate = u64::try_from(total).unwrap_or(u64::MAX);
            }
        }
    }

    /// The shares that `flow` can expect, if the near paths carry `near`.
    pub(super) fn with(&self, flow: &Flow, near: u128) -> Crowd {
        let (flows, later) = if flow.is_away {
            (self.near + 1, self.away.max(1))
        } else {
            (self.near.max(1), self.away + 1)
        };
        let (flows, later) = (u128::from(flows), u128::from(later));
        // Flows that send little take no share from each other.
        let is_loaded = flow.is_away || self.uses(near, LOADED_PERCENT);
        if flows == 1 && later == 1 || !is_loaded {
            return Crowd::alone(near);
        }
        Crowd {
            near: near / flows,
            later,
            is_alone: false,
        }
    }

    /// Whether the flows use about all of `near`, the capacity of the near paths. Always true for a single flow,
    /// which detects by itself whether it is limited.
    pub(super) fn fills(&self, near: u128, crowd: Crowd) -> bool {
        crowd.is_alone || self.uses(near, HELD_BACK_PERCENT)
    }

    /// Whether the flows use at least this percentage of `near`.
    fn uses(&self, near: u128, percent: u128) -> bool {
        u128::from(self.near_rate) * 100 >= near * percent
    }

    /// Counts `flow` on the later paths if `is_away`, else on the near paths.
    pub(super) fn place(&mut self, flow: &mut Flow, is_away: bool) {
        if flow.is_away == is_away {
            return;
        }
        flow.is_away = is_away;
        let (to, from) = if is_away {
            (&mut self.away, &mut self.near)
        } else {
            (&mut self.near, &mut self.away)
        };
        *to += 1;
        *from = from.saturating_sub(1);
    }
}

/// Usage of the near paths in percent below which each flow can expect their whole capacity.
const LOADED_PERCENT: u128 = 30;
const COUNTED_AGAIN: Duration = Duration::from_millis(100);
/// Time without packets after which a flow on near paths counts as idle.
const STALE: Duration = Duration::from_millis(300);
/// Time without packets after which a flow on later paths counts as idle; it is longer, because the flow may wait for
/// one RTT.
const AWAY_STALE: Duration = Duration::from_secs(1);
/// Divisor of the average rate: a flow that sends less than this part of the average takes nothing from the others.
const PART: u128 = 4;

#[cfg(test)]
mod tests {
    use super::super::{Adaptive, tests::paths_of};
    use super::*;
    use crate::{
        flows::FlowId, sched::PacketInfo, sched::Pick, sched::Scheduler as _, sched::tests::packet,
        units::Bytes,
    };

    /// Number of `flows` that use the later of `lines` in the end, if each flow sends `kbps` for 4 s.
    fn away(lines: [(u64, u64); 2], flows: u64, kbps: u64) -> usize {
        let paths = paths_of(&lines);
        let mut policy = Adaptive::new();
        let mut last = vec![0; usize::try_from(flows).unwrap_or(0)];
        let gap = Duration::from_micros(8_000 * 1_000 / kbps) / u32::try_from(flows).unwrap_or(1);
        let packets = 4_000_000 / u64::try_from(gap.as_micros()).unwrap_or(1);
        for i in 0..packets {
            let now = Instant::from_millis(50) + gap * u32::try_from(i).unwrap_or(0);
            let flow = i % flows;
            let packet = PacketInfo {
                flow: FlowId::at(100 + flow),
                len: Bytes::new(1_000),
                ..packet()
            };
            if let Pick::One(index) | Pick::Shadowed { index, .. } =
                policy.pick(now, &paths, &packet)
            {
                last[usize::try_from(flow).unwrap_or(0)] = index;
            }
        }
        last.iter().filter(|index| **index == 1).count()
    }

    #[test]
    fn several_flows_spread_over_near_and_later_paths() {
        // A single flow that sends so little stays on the near path.
        assert_eq!(away([(6, 0), (90, 222)], 1, 750), 0);
        // Eight flows together fill the near path until some have left it. More leave it if the flows grow.
        for (later, steady, growing) in [((90, 222), 5..=7, 7), ((14, 140), 4..=5, 5)] {
            let away = |kbps| away([(6, 0), later], 8, kbps);
            assert!(steady.contains(&away(750)), "{later:?}: {}", away(750));
            assert_eq!(away(6_000), growing, "{later:?}");
        }
        // Flows do not leave a near path that has room for all of them, nor move to a later path that would carry
        // less.
        assert_eq!(away([(24, 0), (90, 222)], 8, 750), 0);
        assert_eq!(away([(6, 0), (1, 222)], 8, 750), 0);
    }

    #[test]
    fn a_flow_that_sends_little_takes_no_part_from_a_large_one() {
        let flow = |mbps: u64| Flow {
            second: Instant::from_millis(1_000),
            seen_at: Instant::from_millis(1_990),
            bytes: Bytes::new(mbps * 125_000),
            ..Flow::default()
        };
        let parts = |flows: &[Flow]| {
            let mut count = Count::new();
            count.update(Instant::from_millis(2_000), flows);
            let crowd = count.with(&flows[0], 60_000_000);
            (crowd.near, crowd.later)
        };
        assert_eq!(parts(&[flow(50)]), (60_000_000, 1));
        assert_eq!(parts(&[flow(50), flow(2), flow(2)]), (60_000_000, 1));
        assert_eq!(parts(&[flow(30), flow(20), flow(2)]), (30_000_000, 1));
        let away = |mbps| Flow {
            is_away: true,
            ..flow(mbps)
        };
        assert_eq!(parts(&[flow(50), away(80)]), (60_000_000, 2));
        assert_eq!(parts(&[away(80), flow(20), flow(30)]), (20_000_000, 1));
        // Together the flows send so little that each can expect the whole capacity.
        assert_eq!(parts(&[flow(8), flow(8)]), (60_000_000, 1));
        // A flow that has stopped sending does not count; on later paths it counts for some RTTs longer.
        let stopped = |flow: Flow| Flow {
            seen_at: Instant::from_millis(1_500),
            ..flow
        };
        assert_eq!(parts(&[flow(50), stopped(flow(50))]), (60_000_000, 1));
        assert_eq!(parts(&[flow(50), stopped(away(50))]), (60_000_000, 2));
    }
}
