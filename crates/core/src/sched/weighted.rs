//! `weighted`: bytes in proportion to the user's weights, evenly mixed.
//!
//! Smooth weighted round robin, as nginx does it for servers. Each packet gives every ready path credit in proportion
//! to its weight. The packet takes the path with the most credit, and that path pays the sum of the credit given.
//! Over a cycle (sum of the weights, divided by their common factor) the shares of packets of one size are exact, and
//! the packets of each path are spread over the cycle. Block round robin, which sends for example 64 and then 60
//! packets in a row, needs modem buffers of that depth.
//!
//! Unlike in nginx, credit is counted in bytes (in fixed point with 32 fractional bits) instead of units of weight. So
//! packets of any size share fairly, weights may change between any two packets, and paths may appear and disappear:
//! such a change shifts the shares by one or two packets, not by a burst in proportion to the old weights. Paths that
//! are not ready keep their credit but gain none.
//!
//! Packets of at most `SMALL` bytes, such as a TCP receiver's ACKs, take the quickest ready path and are not counted.
//! Their load is negligible. A download whose ACKs alternate between a slow path and a quick one would have the RTT
//! of the slow path, and would start correspondingly slowly.
//!
//! The rounding of fractions shifts a share by less than one byte in 10^8.

use super::{PacketInfo, PathView, Pick, Scheduler, slot};
use crate::{ids::PathId, time::Instant, units::Bytes};

/// Shares bytes among the ready paths by [`PathView::weight`]. Never waits.
#[derive(Clone, Debug, Default)]
pub struct Weighted {
    credit: Credit,
}

impl Weighted {
    /// Creates a scheduler without credit.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            credit: Credit::new(),
        }
    }
}

impl Scheduler for Weighted {
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        pick_by(&mut self.credit, paths, packet, |path| path.weight)
    }
}

/// Chooses by credit among the ready paths, with the weight that `weight` returns, or at least 1. A small packet takes
/// the quickest path and is not counted.
pub(super) fn pick_by(
    credit: &mut Credit,
    paths: &[PathView],
    packet: &PacketInfo,
    weight: impl Fn(&PathView) -> u32,
) -> Pick {
    let weight = |path: &PathView| {
        if path.ready { weight(path).max(1) } else { 0 }
    };
    let lines = paths.iter().map(|path| (slot(path), weight(path)));
    let chosen = if packet.len <= SMALL {
        let ready = paths.iter().enumerate().filter(|(_, path)| path.ready);
        let quickest = ready.min_by_key(|(_, path)| path.extra_delay);
        quickest.map(|(at, _)| at)
    } else {
        let cost = u32::try_from(packet.len.get()).unwrap_or(MAX_COST);
        credit.next(lines, cost)
    };
    chosen.map_or(Pick::Wait, Pick::One)
}

/// The credit of each path: the state of smooth weighted round robin.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit {
    /// Credit of each path, in bytes or in the unit of the costs, scaled by 2^32.
    owed: [i64; PathId::MAX],
}

impl Credit {
    pub(super) const fn new() -> Self {
        Self {
            owed: [0; PathId::MAX],
        }
    }

    /// Returns the index in `lines` of the line with the most credit, the first of several equal lines. The line is
    /// charged `cost`.
    ///
    /// `lines`: slot and weight of each line; lines without weight are skipped. `None` if no line has weight.
    pub(super) fn next(
        &mut self,
        lines: impl Iterator<Item = (usize, u32)> + Clone,
        cost: u32,
    ) -> Option<usize> {
        let cost = i64::from(cost.min(MAX_COST));
        let total: u64 = lines.clone().map(|(_, weight)| u64::from(weight)).sum();
        let mut given = 0;
        let mut best: Option<(i64, usize, usize)> = None;
        for (at, (slot, weight)) in lines.enumerate().filter(|(_, (_, weight))| *weight > 0) {
            let share = ((u64::from(weight) << 32) / total).cast_signed() * cost;
            let owed = &mut self.owed[slot];
            *owed += share;
            given += share;
            if best.is_none_or(|(most, ..)| *owed > most) {
                best = Some((*owed, at, slot));
            }
        }
        let (_, at, slot) = best?;
        self.owed[slot] -= given;
        Some(at)
    }
}

/// Maximum length on the wire of a packet that takes the quickest path: such a packet carries hardly any payload.
const SMALL: Bytes = Bytes::new(200);
/// Maximum length of a packet in bytes.
const MAX_COST: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;
    use crate::rng::Rng;

    fn weighted_paths(weights: &[u32]) -> Vec<PathView> {
        let mut paths = ready_paths(weights.len());
        for (path, weight) in paths.iter_mut().zip(weights) {
            path.weight = *weight;
        }
        paths
    }

    fn picks(policy: &mut Weighted, paths: &[PathView], count: usize) -> Vec<usize> {
        let mut next = || match policy.pick(Instant::ZERO, paths, &packet()) {
            Pick::One(index) => index,
            other
            @ (Pick::Wait | Pick::Copies(_) | Pick::Shadowed { .. } | Pick::Behind { .. }) => {
                panic!("{other:?}")
            }
        };
        (0..count).map(|_| next()).collect()
    }

    fn longest_run(picks: &[usize], index: usize) -> usize {
        let runs = picks.split(|pick| *pick != index);
        runs.map(<[usize]>::len).max().unwrap_or(0)
    }

    #[test]
    fn shares_are_exact_over_each_cycle_and_evenly_spread() {
        for (weights, longest) in [
            (&[64, 60][..], 2),
            (&[3, 1], 3),
            (&[100, 7], 15),
            (&[5, 3, 2, 1], 2),
            (&[1, 1, 1], 1),
        ] {
            let mut policy = Weighted::new();
            let paths = weighted_paths(weights);
            let cycle = usize::try_from(weights.iter().sum::<u32>()).expect("small");
            let picks = picks(&mut policy, &paths, 50 * cycle);
            for picks in picks.chunks(cycle) {
                for (index, weight) in weights.iter().enumerate() {
                    let count = picks.iter().filter(|pick| **pick == index).count();
                    assert_eq!(u32::try_from(count), Ok(*weight), "{weights:?}");
                }
            }
            assert_eq!(longest_run(&picks, 0), longest, "{weights:?}");
        }
    }

    #[test]
    fn the_mix_is_that_of_nginx() {
        let mut policy = Weighted::new();
        let picks = picks(&mut policy, &weighted_paths(&[5, 1, 1]), 7);
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn changing_weights_makes_no_burst() {
        let mut rng = Rng::new(6);
        for _ in 0..200 {
            let mut policy = Weighted::new();
            let count = usize::try_from(rng.below(2_000)).expect("small");
            picks(&mut policy, &weighted_paths(&[100_000, 90_000]), count);
            let equal = picks(&mut policy, &weighted_paths(&[1, 1]), 100);
            let longest = longest_run(&equal, 0).max(longest_run(&equal, 1));
            assert!(longest <= 3, "{longest}");
            // Shares stay right when weights change with every packet.
            let first = (0..10_000).filter(|i| {
                let paths = weighted_paths(&[3_000 + i % 7, 1_000 + i % 5]);
                picks(&mut policy, &paths, 1) == [0]
            });
            let first = first.count();
            assert!((7_450..7_550).contains(&first), "{first}");
        }
    }

    #[test]
    fn paths_that_were_not_ready_come_back_without_a_burst() {
        let mut policy = Weighted::new();
        let mut paths = weighted_paths(&[3, 1]);
        picks(&mut policy, &paths, 7);
        paths[1].ready = false;
        assert!(picks(&mut policy, &paths, 1_000).iter().all(|i| *i == 0));
        paths[1].ready = true;
        let after = picks(&mut policy, &paths, 400);
        assert!(longest_run(&after, 1) <= 1);
        let second = after.iter().filter(|pick| **pick == 1).count();
        assert!((99..=101).contains(&second), "{second}");
    }

    #[test]
    fn credit_stays_within_a_few_packets_whatever_is_ready() {
        let mut rng = Rng::new(7);
        let mut policy = Weighted::new();
        let mut paths = weighted_paths(&[1; PathId::MAX]);
        for _ in 0..100_000 {
            for path in &mut paths {
                path.ready = rng.chance(0.3);
                path.weight = 1 << rng.below(32);
            }
            policy.pick(Instant::ZERO, &paths, &packet());
            let most = policy.credit.owed.iter().map(|credit| credit.abs()).max();
            assert!(most < Some((4 * 1500) << 32), "{most:?}");
        }
    }

    #[test]
    fn bytes_are_shared_whatever_the_sizes() {
        let mut rng = Rng::new(8);
        let mut policy = Weighted::new();
        let paths = weighted_paths(&[3, 1]);
        let mut bytes = [0; 2];
        for _ in 0..20_000 {
            let mut packet = packet();
            packet.len = Bytes::new(201 + rng.below(1_300));
            if let Pick::One(index) = policy.pick(Instant::ZERO, &paths, &packet) {
                bytes[index] += packet.len.get();
            }
        }
        let excess =
            i64::try_from(bytes[0]).expect("small") - 3 * i64::try_from(bytes[1]).expect("small");
        assert!(excess.abs() < 10_000, "{bytes:?}");
    }

    #[test]
    fn small_packets_take_the_quickest_path_and_are_not_counted() {
        let mut policy = Weighted::new();
        let mut paths = weighted_paths(&[1, 1]);
        paths[0].extra_delay = core::time::Duration::from_millis(11);
        let mut small = packet();
        small.len = Bytes::new(130);
        for _ in 0..100_000 {
            assert_eq!(policy.pick(Instant::ZERO, &paths, &small), Pick::One(1));
        }
        let large = picks(&mut policy, &paths, 100);
        assert!(
            longest_run(&large, 0).max(longest_run(&large, 1)) <= 1,
            "no debts"
        );
        paths[1].ready = false;
        assert_eq!(policy.pick(Instant::ZERO, &paths, &small), Pick::One(0));
    }
}
