//! `srtt-weighted`: distributes packets in proportion to weights derived from the smoothed RTTs of the paths.
//!
//! Becke et al. 2013 (see `pdc`), section IV: the weight of path P is w'_P = 1 - sRTT_P / sum(sRTT_i). The weights sum
//! up to n - 1, so the shares are w_P = w'_P / (n - 1). Bytes are mixed as [`Weighted`](super::Weighted) does it. With
//! `weights = "equal"` all weights are the same: the round robin that the paper calls default.
//!
//! As published, only the user's limits pace a path: a path that gets more than its capacity builds a queue, its RTT
//! grows, and its weight drops. Therefore the RTTs of all paths are sampled all the time, including paths not in use
//! (every 50 ms). With `pdc = true`, the later packets of a block take the slower paths, and some packets that
//! would be late there are moved to another path (`pdc`).
//!
//! Pure ACKs take the ready path with the lowest RTT.

use core::time::Duration;

use serde::Deserialize;

use super::{
    PacketInfo, PathView, Pick, Scheduler,
    pdc::{MOVED_MAX, Pdc, Window},
    runs::Runs,
    slot,
    srtt::{Alpha, DEADLINE, PROBE_EVERY, Shares, Weights, round_trip, shares, weight},
    weighted::Credit,
};
use crate::{
    ids::PathId,
    profile::{Profile, RttSampling},
    time::Instant,
};

/// Settings of [`SrttWeighted`], with the keys of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SrttWeightedSettings {
    /// The weight of a new sample in the smoothed RTT.
    pub alpha: Alpha,
    /// The source of the weights.
    pub weights: Weights,
    /// Whether the later packets of a block take the slower paths, and some packets that would be late there take other
    /// paths.
    pub pdc: bool,
    /// The longest delay after which a packet is still useful, for `pdc`.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Whether the other end restores the order of packets before it delivers them.
    pub in_order: bool,
}

impl Default for SrttWeightedSettings {
    /// Returns the settings of sections IV and V-A of the paper.
    fn default() -> Self {
        Self {
            alpha: Alpha::DEFAULT,
            weights: Weights::Srtt,
            pdc: false,
            deadline: DEADLINE,
            in_order: true,
        }
    }
}

impl SrttWeightedSettings {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &["weights", "pdc", "alpha", "deadline", "in_order"];

    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn scheduler(&self) -> SrttWeighted {
        SrttWeighted::new(*self)
    }
}

/// Shares bytes among the ready paths. Never waits.
#[derive(Clone, Debug)]
pub struct SrttWeighted {
    settings: SrttWeightedSettings,
    credit: Credit,
    pdc: Pdc,
    /// The current block of packets, used with `pdc` only.
    window: Window,
    runs: Runs,
    /// Number of packets of the block that were moved from each path to other paths.
    moved: [usize; PathId::MAX],
}

impl SrttWeighted {
    /// Creates a scheduler without credit.
    #[must_use]
    pub const fn new(settings: SrttWeightedSettings) -> Self {
        Self {
            credit: Credit::new(),
            pdc: Pdc::new(settings.pdc, settings.deadline),
            window: Window::new(),
            runs: Runs::new(),
            moved: [0; PathId::MAX],
            settings,
        }
    }
}

impl SrttWeighted {
    /// Returns the index of the path for the next packet of a block whose later packets take the slower paths. At
    /// least one path is ready.
    fn pick_compensated(
        &mut self,
        paths: &[PathView],
        packet: &PacketInfo,
        shares: Shares,
    ) -> usize {
        let mut order = [0; PathId::MAX];
        let mut lanes = 0;
        let ready = paths.iter().enumerate().filter(|(_, path)| path.ready);
        for ((index, _), lane) in ready.zip(&mut order) {
            *lane = index;
            lanes += 1;
        }
        let order = &mut order[..lanes];
        order.sort_by_key(|index| (round_trip(&paths[*index]), paths[*index].id));
        let path = |index: &usize| &paths[*index];
        if let Some(total) = self.window.next(packet) {
            let weights = order.iter().map(path);
            let weights = weights.map(|path| (path, weight(shares, path)));
            self.runs.begin(total, weights);
            self.moved.fill(0);
        }
        let lane = self.runs.next(order.iter().map(path), 0, packet.len);
        let least = round_trip(path(&order[0]));
        let in_time = |index: &&usize| self.pdc.in_time(path(index), least, packet);
        let moved = &mut self.moved[slot(path(&order[lane]))];
        if *moved >= MOVED_MAX || in_time(&&order[lane]) {
            return order[lane];
        }
        *moved += 1;
        let quicker = order[..lane].iter().rev().find(in_time);
        *quicker.unwrap_or(&order[lane])
    }
}

impl Scheduler for SrttWeighted {
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let ready = paths.iter().enumerate().filter(|(_, path)| path.ready);
        let quickest = ready.min_by_key(|(_, path)| (round_trip(path), path.id));
        let Some((quickest, _)) = quickest else {
            return Pick::Wait;
        };
        if packet.is_expendable {
            return Pick::One(quickest);
        }
        let shares = shares(self.settings.weights, paths, |path| path.ready);
        if self.pdc.is_on() {
            return Pick::One(self.pick_compensated(paths, packet, shares));
        }
        let lines = paths.iter().map(|path| {
            let weight = if path.ready { weight(shares, path) } else { 0 };
            (slot(path), weight)
        });
        let cost = u32::try_from(packet.len.get()).unwrap_or(u32::MAX);
        let chosen = self.credit.next(lines, cost).unwrap_or(quickest);
        Pick::One(chosen)
    }

    /// As published, no path is paced.
    fn profile(&self) -> Profile {
        Profile {
            pacing: false,
            in_order: self.settings.in_order,
            rtt_sampling: Some(RttSampling {
                interval: PROBE_EVERY,
                gain_thousandths: Some(self.settings.alpha.thousandths()),
            }),
            ..Profile::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;
    use crate::units::Bytes;

    fn paths(rtts: &[u64]) -> Vec<PathView> {
        let mut paths = ready_paths(rtts.len());
        for (path, rtt) in paths.iter_mut().zip(rtts) {
            path.smoothed_rtt = Some(Duration::from_millis(*rtt));
        }
        paths
    }

    fn counts(settings: SrttWeightedSettings, paths: &[PathView]) -> Vec<u32> {
        let mut policy = SrttWeighted::new(settings);
        let mut counts = vec![0; paths.len()];
        for _ in 0..10_000 {
            match policy.pick(Instant::ZERO, paths, &packet()) {
                Pick::One(index) => counts[index] += 1,
                other @ (Pick::Wait
                | Pick::Copies(_)
                | Pick::Shadowed { .. }
                | Pick::Behind { .. }) => {
                    panic!("{other:?}")
                }
            }
        }
        counts
    }

    #[test]
    fn shares_are_those_of_the_paper_and_add_up() {
        let settings = SrttWeightedSettings::default();
        // Weights: 1 - 62/382 and 1 - 320/382.
        assert_eq!(counts(settings, &paths(&[62, 320])), [8_377, 1_623]);
        // Shares: (1 - 1/6) / 2, (1 - 2/6) / 2, (1 - 3/6) / 2.
        let three = counts(settings, &paths(&[10, 20, 30]));
        for (count, expected) in three.iter().zip([4_167_u32, 3_333, 2_500]) {
            assert!(count.abs_diff(expected) <= 1, "{three:?}");
        }
        assert_eq!(counts(settings, &paths(&[50])), [10_000]);
    }

    #[test]
    fn equal_weights_are_round_robin() {
        let settings = SrttWeightedSettings {
            weights: Weights::Equal,
            ..SrttWeightedSettings::default()
        };
        assert_eq!(counts(settings, &paths(&[62, 320])), [5_000, 5_000]);
    }

    /// Returns the paths of twenty packets of one block.
    fn block(policy: &mut SrttWeighted, paths: &[PathView]) -> Vec<usize> {
        let behind = |left: u64| PacketInfo {
            backlog: Bytes::new(packet().len.get() * left),
            ..packet()
        };
        let picks = (0..20)
            .rev()
            .map(|left| policy.pick(Instant::ZERO, paths, &behind(left)));
        let index = |pick| {
            let Pick::One(index) = pick else {
                panic!("{pick:?}");
            };
            index
        };
        picks.map(index).collect()
    }

    #[test]
    fn compensation_keeps_the_shares_and_sends_later_packets_on_the_slower_path() {
        let settings = SrttWeightedSettings {
            pdc: true,
            weights: Weights::Equal,
            ..SrttWeightedSettings::default()
        };
        let mut policy = SrttWeighted::new(settings);
        let runs = |quick: usize| [vec![0; quick], vec![1; 20 - quick]].concat();
        assert_eq!(block(&mut policy, &paths(&[62, 320])), runs(10));
        // Two packets of each block leave a path on which all packets are late. Later blocks do not compensate for
        // this.
        for _ in 0..100 {
            assert_eq!(block(&mut policy, &paths(&[62, 560])), runs(12));
        }
        assert_eq!(block(&mut policy, &paths(&[62, 320])), runs(10));
    }

    #[test]
    fn acknowledgements_take_the_quickest() {
        let mut policy = SrttWeighted::new(SrttWeightedSettings::default());
        let mut ack = packet();
        ack.is_expendable = true;
        for _ in 0..100 {
            let pick = policy.pick(Instant::ZERO, &paths(&[62, 20]), &ack);
            assert_eq!(pick, Pick::One(1));
        }
    }
}
