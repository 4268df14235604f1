//! Tests of runs, directions and copies.

use super::super::tests::{packet, ready_paths};
use super::*;
use crate::rng::Rng;

fn paths(rtts: &[u64]) -> Vec<PathView> {
    let mut paths = ready_paths(rtts.len());
    for (path, rtt) in paths.iter_mut().zip(rtts) {
        path.smoothed_rtt = Some(Duration::from_millis(*rtt));
    }
    paths
}

fn place(settings: ConsnSettings, paths: &[PathView], count: usize) -> Placement {
    let mut placement = Placement::default();
    Consn::new(settings).place(paths, &vec![packet(); count], &mut placement);
    placement
}

fn of(list: &[(u8, u8)], path: u8) -> Vec<u8> {
    let own = list.iter().filter(|(of, _)| *of == path);
    own.map(|(_, packet)| *packet).collect()
}

/// Figure 3: ten packets, of which the first path gets four.
#[test]
fn sequences_run_towards_each_other() {
    let placement = place(ConsnSettings::default(), &paths(&[60, 40]), 10);
    assert_eq!(of(&placement.packets, 1), [0, 1, 2, 3, 4, 5]);
    assert_eq!(of(&placement.packets, 0), [9, 8, 7, 6]);
    assert!(placement.copies.is_empty());
}

#[test]
fn variants_differ_from_three_paths_on() {
    let paths = paths(&[20, 20, 20]);
    let with = |variant| {
        let settings = ConsnSettings {
            variant,
            ..ConsnSettings::default()
        };
        let placement = place(settings, &paths, 9);
        [0, 1, 2].map(|path| of(&placement.packets, path))
    };
    let first = [vec![0, 1, 2], vec![5, 4, 3], vec![8, 7, 6]];
    assert_eq!(with(Variant::FirstAscends), first);
    let last = [vec![0, 1, 2], vec![3, 4, 5], vec![8, 7, 6]];
    assert_eq!(with(Variant::LastDescends), last);
}

#[test]
fn copies_go_on_where_a_path_is_through() {
    let settings = ConsnSettings {
        redundancy: true,
        ..ConsnSettings::default()
    };
    let placement = place(settings, &paths(&[40, 60]), 10);
    assert_eq!(of(&placement.copies, 0), [6, 7, 8, 9]);
    assert_eq!(of(&placement.copies, 1), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn short_blocks_give_every_path_its_share() {
    let mut policy = Consn::new(ConsnSettings::default());
    let paths = paths(&[62, 320]);
    let mut counts = [0_u32; 2];
    for _ in 0..10_000 {
        if let Pick::One(index) = policy.pick(Instant::ZERO, &paths, &packet()) {
            counts[index] += 1;
        }
    }
    assert!(counts[0].abs_diff(8_377) <= 1, "{counts:?}");
}

#[test]
fn compensation_takes_two_packets_of_a_block_off_a_path_on_which_all_are_late() {
    let settings = ConsnSettings {
        pdc: true,
        ..ConsnSettings::default()
    };
    // The slow path's share is a tenth of 20 packets, then a third of 21.
    let placement = place(settings, &paths(&[62, 560]), 20);
    assert_eq!(of(&placement.packets, 0).len(), 20);
    let placement = place(settings, &paths(&[210, 420]), 21);
    assert_eq!(of(&placement.packets, 1), [20, 19, 18, 17, 16]);
}

/// Returns the number of gaps in a block if one path delivers nothing, and how many packets the other end must
/// buffer.
fn gaps(lost: &[bool]) -> (usize, usize) {
    let starts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    let gaps = starts + usize::from(lost.first() == Some(&true));
    let held = lost.iter().skip_while(|lost| !**lost);
    (gaps, held.filter(|lost| !**lost).count())
}

/// Section III-A: missing segments form consecutive blocks. Weights by RTTs alone would scatter them.
#[test]
fn a_path_that_fails_leaves_one_gap_where_the_same_shares_alone_leave_many() {
    for (rtts, failing) in [([40, 60], 1), ([40, 60], 0), ([62, 320], 1)] {
        let paths = paths(&rtts);
        let placement = place(ConsnSettings::default(), &paths, 20);
        let mut lost = [false; 20];
        for packet in of(&placement.packets, failing) {
            lost[usize::from(packet)] = true;
        }
        let mut control = super::super::SrttWeighted::new(Default::default());
        let scattered: Vec<bool> = (0..20)
            .map(|_| control.pick(Instant::ZERO, &paths, &packet()))
            .map(|pick| pick == Pick::One(usize::from(failing)))
            .collect();
        let count = |lost: &[bool]| lost.iter().filter(|lost| **lost).count();
        assert!(
            count(&lost).abs_diff(count(&scattered)) <= 1,
            "the same shares"
        );
        assert_eq!(gaps(&lost).0, 1, "{rtts:?}: one gap");
        assert!(gaps(&scattered).0 >= 3, "{rtts:?}: {scattered:?}");
        if failing == 1 {
            assert_eq!(gaps(&lost).1, 0, "nothing waits for the missing");
            assert!(gaps(&scattered).1 >= 10, "{rtts:?}: {scattered:?}");
        }
    }
}

#[test]
fn every_packet_is_placed_once_on_a_ready_path_whatever_comes() {
    let mut rng = Rng::new(5);
    for seed in 0..3_000 {
        let mut views = ready_paths(PathId::MAX);
        for path in &mut views {
            path.ready = rng.chance(0.4);
            path.usable = path.ready || rng.chance(0.5);
            path.smoothed_rtt = rng
                .chance(0.8)
                .then(|| Duration::from_micros(rng.below(1 << 40)));
            path.staged = Bytes::new(rng.next_u64() >> rng.below(64));
        }
        let settings = ConsnSettings {
            pdc: seed % 2 == 0,
            redundancy: seed % 3 == 0,
            variant: if seed % 5 < 2 {
                Variant::LastDescends
            } else {
                Variant::FirstAscends
            },
            ..ConsnSettings::default()
        };
        let count = usize::try_from(rng.below(BLOCK as u64 + 1)).expect("small");
        let block: Vec<PacketInfo> = (0..count)
            .map(|_| PacketInfo {
                len: Bytes::new(rng.below(1_500)),
                is_expendable: rng.chance(0.2),
                ..packet()
            })
            .collect();
        let mut placement = Placement::default();
        Consn::new(settings).place(&views, &block, &mut placement);
        let mut packets: Vec<u8> = placement
            .packets
            .iter()
            .map(|(_, packet)| *packet)
            .collect();
        packets.sort_unstable();
        let has_room = |path: &PathView| path.ready || path.usable && path.staged < ROOM;
        let expected = if views.iter().any(has_room) { count } else { 0 };
        assert!(packets.into_iter().map(usize::from).eq(0..expected));
        for (path, packet) in placement.packets.iter().chain(&placement.copies) {
            assert!(has_room(&views[usize::from(*path)]));
            assert!(usize::from(*packet) < count);
        }
        for copy in &placement.copies {
            assert!(
                !placement.packets.contains(copy),
                "no copy where it went itself"
            );
        }
    }
}
