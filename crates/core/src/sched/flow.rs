//! `flow`: a flow stays on one path.
//!
//! Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by Schindelhauer and Schomaker 2005). Every
//! usable path of the lowest rank draws a number u in (0, 1] for the flow from hash(flow, path), and the path with
//! the smallest −ln(u) / weight is chosen. Each path gets flows in proportion to its weight. When a path is lost only
//! its flows move, and when it returns they return. There is no table, so there is no state per flow and nothing to
//! bound.
//!
//! This is the usual behaviour of a router with several uplinks. It never reorders, and a flow never gets more than the
//! capacity of one path. While a flow waits for its path, all packets behind the flow's packet in the tunnel queue wait
//! too.

use super::{PacketInfo, PathView, Pick, Scheduler, only};
use crate::{ids::PathId, profile::Profile, time::Instant};

/// Keeps each flow on one usable path of the lowest rank, chosen by hash and [`PathView::weight`].
///
/// Waits if the chosen path is usable but not ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow;

impl Scheduler for Flow {
    fn pick(&mut self, _now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
        let mut best: Option<(f64, usize)> = None;
        let usable = || paths.iter().enumerate().filter(|(_, path)| path.usable);
        let rank = usable().map(|(_, path)| path.cost).min();
        for (index, path) in usable().filter(|(_, path)| Some(path.cost) == rank) {
            let draw = negative_ln(hash(packet.flow.hash(), path.id));
            let score = draw / f64::from(path.weight.max(1));
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, index));
            }
        }
        only(paths, best.map(|(_, index)| index))
    }

    fn profile(&self) -> Profile {
        Profile {
            ranks: false,
            ..Profile::default()
        }
    }
}

/// The finaliser of splitmix64 over flow and path.
fn hash(flow_hash: u64, id: PathId) -> u64 {
    let mut z = flow_hash ^ (u64::from(id.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// −ln(u) for the u in (0, 1] that `hash` represents.
///
/// Built from additions, multiplications and divisions only, because these give the same bits on every platform and
/// library logarithms do not. With m in [1, 2) and s = (m − 1) / (m + 1), ln m = 2 (s + s³/3 + s⁵/5 + …); the omitted
/// terms are below 10^-8.
fn negative_ln(hash: u64) -> f64 {
    let whole = (hash >> 12) + 1;
    let exponent = whole.ilog2();
    let m = f64::from_bits((whole << (52 - exponent)) & MANTISSA | 1.0_f64.to_bits());
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0]
        .iter()
        .fold(1.0 / 15.0, |sum, odd| sum * square + 1.0 / odd);
    f64::from(52 - exponent) * core::f64::consts::LN_2 - 2.0 * s * series
}

const MANTISSA: u64 = (1 << 52) - 1;

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, ready_paths};
    use super::*;
    use crate::{flows::FlowId, rng::Rng};

    fn place(paths: &[PathView], flow_hash: u64) -> PathId {
        let packet = PacketInfo {
            flow: FlowId::of_hash(flow_hash),
            ..packet()
        };
        match Flow.pick(Instant::ZERO, paths, &packet) {
            Pick::One(index) => paths[index].id,
            other
            @ (Pick::Wait | Pick::Copies(_) | Pick::Shadowed { .. } | Pick::Behind { .. }) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn logarithm_is_right() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let hash = rng.next_u64() >> rng.below(60);
            let u = ((hash >> 12) + 1) as f64 / (1_u64 << 52) as f64;
            assert!((negative_ln(hash) + u.ln()).abs() < 1e-7, "{u}");
        }
        assert_eq!(negative_ln(u64::MAX), 0.0);
    }

    #[test]
    fn flows_spread_by_weight() {
        let mut paths = ready_paths(3);
        for (path, weight) in paths.iter_mut().zip([60, 30, 10]) {
            path.weight = weight;
        }
        let mut rng = Rng::new(2);
        let mut counts = [0; 3];
        for _ in 0..100_000 {
            counts[place(&paths, rng.next_u64()).index()] += 1;
        }
        for (count, expected) in counts.iter().zip([60_000_i32, 30_000, 10_000]) {
            assert!((count - expected).abs() < 700, "{counts:?}");
        }
    }

    #[test]
    fn only_flows_of_the_lost_path_move_and_they_return() {
        let paths = ready_paths(4);
        let mut without = paths.clone();
        without[2].usable = false;
        without[2].ready = false;
        let mut gone = paths.clone();
        gone.remove(2);
        let mut rng = Rng::new(3);
        let mut moved_to = [0; 4];
        for _ in 0..10_000 {
            let flow = rng.next_u64();
            let home = place(&paths, flow);
            let refuge = place(&without, flow);
            assert_eq!(refuge, place(&gone, flow));
            if home == PathId(2) {
                moved_to[refuge.index()] += 1;
            } else {
                assert_eq!(refuge, home);
            }
        }
        assert!(moved_to[2] == 0 && moved_to[0] > 500 && moved_to[1] > 500 && moved_to[3] > 500);
    }

    #[test]
    fn a_higher_rank_gets_flows_only_while_no_lower_one_works() {
        let mut paths = ready_paths(3);
        paths[0].cost = 1;
        let mut rng = Rng::new(4);
        for _ in 0..1_000 {
            let flow = rng.next_u64();
            assert_ne!(place(&paths, flow), PathId(0));
            let mut alone = paths.clone();
            alone[1].usable = false;
            alone[2].usable = false;
            assert_eq!(place(&alone, flow), PathId(0));
        }
    }

    #[test]
    fn a_flow_waits_for_its_path() {
        let mut paths = ready_paths(2);
        let home = place(&paths, 99).index();
        paths[home].ready = false;
        let packet = PacketInfo {
            flow: FlowId::of_hash(99),
            ..packet()
        };
        assert_eq!(Flow.pick(Instant::ZERO, &paths, &packet), Pick::Wait);
    }
}
