//! Tests of the rules of `awi`, one by one.

use super::{super::tests::ready_paths, *};
use crate::units::Bytes;
use core::time::Duration;

fn awi(change: impl FnOnce(&mut AwiSettings<PathId>)) -> Awi {
    let mut settings = AwiSettings::default();
    change(&mut settings);
    let mut awi = Awi::new(settings);
    pick(&mut awi, &ready_paths(2), 1250);
    awi
}

fn pick(awi: &mut Awi, paths: &[PathView], len: u64) -> usize {
    let packet = PacketInfo::of_len(Bytes::new(len));
    match awi.pick(Instant::ZERO, paths, &packet) {
        Pick::One(index) => index,
        other @ (Pick::Copies(_) | Pick::Shadowed { .. } | Pick::Behind { .. } | Pick::Wait) => {
            panic!("{other:?}")
        }
    }
}

/// The paths of the next `count` packets.
fn picks(awi: &mut Awi, paths: &[PathView], count: usize) -> Vec<usize> {
    (0..count).map(|_| pick(awi, paths, 1250)).collect()
}

fn counts(lost: u64, sent: u64) -> LossCounts {
    LossCounts {
        intervals: 1,
        lost_pkts: lost,
        lost_bytes: lost * 1250,
        sent_pkts: sent,
        sent_bytes: sent * 1250,
    }
}

fn report(awi: &mut Awi, id: u8, lost: u64, sent: u64) {
    awi.on_loss_report(Instant::ZERO, PathId(id), &counts(lost, sent));
}

/// Reports losses on path 0. Returns the weight of path 1 after the report.
fn after(awi: &mut Awi, lost: u64, sent: u64) -> u32 {
    report(awi, 0, lost, sent);
    weight(awi, 1)
}

fn weight(awi: &Awi, id: u8) -> u32 {
    awi.weight(PathId(id)).expect("seen")
}

#[test]
fn without_loss_the_fixed_line_carries_all() {
    let mut awi = awi(|_| ());
    assert_eq!((weight(&awi, 0), weight(&awi, 1)), (50, 0));
    assert!(
        picks(&mut awi, &ready_paths(2), 500)
            .iter()
            .all(|at| *at == 0)
    );
}

#[test]
fn iwi_adds_the_packets_lost_and_only_from_zero() {
    let mut awi = awi(|_| ());
    assert_eq!(after(&mut awi, 7, 300), 7);
    // Here AWI applies: 0.5 · 7/300 · 50 = 0.58.
    assert_eq!(after(&mut awi, 7, 300), 8);
}

#[test]
fn awi_rounds_half_up_and_stops_in_its_dead_band() {
    for (k, lost, sent, step) in [
        (0.5, 20, 1000, 1), // exactly one half
        (0.5, 19, 1000, 0), // R-L3-16: 2 % at k = 0.5
        (1.0, 10, 1000, 1),
        (1.0, 9, 1000, 0), // 1 % at k = 1
        (0.1, 100, 1000, 1),
        (0.1, 99, 1000, 0), // 10 % at k = 0.1
        (0.5, 60, 1000, 2), // 1.5
        (0.5, 59, 1000, 1), // 1.475
        (1.0, 1, 3, 17),    // 16.67
        (1.0, 5, 2, 44),    // a share is at most 1, and the weight at most 45
        (0.5, 3, 0, 25),    // nothing sent
    ] {
        let mut awi = awi(|settings| settings.k = Gain::new(k).expect("valid"));
        assert_eq!(after(&mut awi, 1, 100), 1);
        assert_eq!(after(&mut awi, lost, sent), 1 + step, "{k} {lost} {sent}");
    }
}

#[test]
fn the_weight_stays_between_zero_and_its_maximum() {
    let mut some = awi(|settings| settings.w_mobile_max = 30);
    assert_eq!(after(&mut some, 1_000_000, 300), 30);
    assert_eq!(after(&mut some, 300, 300), 30);
    for _ in 0..200 {
        after(&mut some, 0, 300);
    }
    assert_eq!(weight(&some, 1), 0);
    let mut none = awi(|settings| settings.w_mobile_max = 0);
    assert_eq!(after(&mut none, 9, 10), 0);
}

#[test]
fn dwd_takes_one_per_t_dwd_and_loss_begins_anew() {
    let mut awi = awi(|_| ());
    after(&mut awi, 10, 300);
    let mut steps = |lost: &[u64]| -> Vec<u32> {
        lost.iter()
            .map(|lost| after(&mut awi, *lost, 30_000))
            .collect()
    };
    assert_eq!(steps(&[0; 11]), [10, 10, 10, 10, 9, 9, 9, 9, 9, 8, 8]);
    // A loss within the dead band adds nothing, but restarts `T_dwd`.
    assert_eq!(steps(&[1, 0, 0, 0, 0, 0]), [8, 8, 8, 8, 8, 7]);
}

#[test]
fn literal_dwd_takes_one_per_report_once_t_dwd_has_passed() {
    let mut awi = awi(|settings| settings.dwd = Dwd::Literal);
    after(&mut awi, 10, 300);
    let mut steps = |lost: &[u64]| -> Vec<u32> {
        lost.iter()
            .map(|lost| after(&mut awi, *lost, 30_000))
            .collect()
    };
    assert_eq!(steps(&[0; 8]), [10, 10, 10, 10, 9, 8, 7, 6]);
    assert_eq!(steps(&[1, 0, 0, 0, 0, 0]), [6, 6, 6, 6, 6, 5]);
}

#[test]
fn t_dwd_is_rounded_up_to_whole_reports() {
    let mut awi = awi(|settings| settings.t_dwd = Duration::from_millis(51));
    after(&mut awi, 2, 300);
    assert_eq!([0; 4].map(|lost| after(&mut awi, lost, 300)), [2, 1, 1, 0]);
}

#[test]
fn a_report_that_covers_several_intervals_counts_for_each() {
    for (dwd, expected) in [(Dwd::Rearm, 10 - 4), (Dwd::Literal, 10 - 8)] {
        let mut awi = awi(|settings| {
            settings.dwd = dwd;
            settings.t_dwd = Duration::from_millis(if dwd == Dwd::Rearm { 150 } else { 250 });
        });
        after(&mut awi, 10, 300);
        let missed = LossCounts {
            intervals: 12,
            ..counts(0, 300)
        };
        awi.on_loss_report(Instant::ZERO, PathId(0), &missed);
        assert_eq!(weight(&awi, 1), expected, "{dwd:?}");
    }
}

#[test]
fn blocks_are_of_the_weights_length_and_follow_them() {
    let mut awi = awi(|_| ());
    let paths = ready_paths(2);
    picks(&mut awi, &paths, 49); // One packet was sent before.
    after(&mut awi, 20, 300);
    let round = picks(&mut awi, &paths, 140);
    let blocks: Vec<_> = round
        .chunk_by(|a, b| a == b)
        .map(|block| (block[0], block.len()))
        .collect();
    assert_eq!(blocks, [(1, 20), (0, 50), (1, 20), (0, 50)]);
}

#[test]
fn smooth_shares_are_exact_and_spread() {
    let mut awi = awi(|settings| settings.wrr = Wrr::Smooth);
    after(&mut awi, 25, 300);
    let round = picks(&mut awi, &ready_paths(2), 750);
    assert_eq!(round.iter().filter(|at| **at == 1).count(), 250);
    assert!(round.chunk_by(|a, b| a == b).all(|block| block.len() <= 2));
}

#[test]
fn bytes_are_shared_whatever_the_packets() {
    for wrr in [Wrr::Block, Wrr::Smooth] {
        let mut awi = awi(|settings| (settings.wrr, settings.count) = (wrr, Count::Bytes));
        after(&mut awi, 25, 300);
        let paths = ready_paths(2);
        let mut bytes = [0; 2];
        for number in 0..100_000_u64 {
            // The large packets arrive at a period at which the same line would get all of them.
            let len = if number % 3 == 0 { 1400 } else { 60 };
            bytes[pick(&mut awi, &paths, len)] += len;
        }
        let share = bytes[1] * 1000 / (bytes[0] + bytes[1]);
        assert!((328..=338).contains(&share), "{wrr:?}: {share} per mille");
    }
}

#[test]
fn ratios_may_count_bytes() {
    let mut awi = awi(|settings| settings.count = Count::Bytes);
    after(&mut awi, 1, 100);
    let small = LossCounts {
        lost_bytes: 1000,
        sent_bytes: 1_000_000,
        ..counts(50, 100)
    };
    awi.on_loss_report(Instant::ZERO, PathId(0), &small);
    assert_eq!(
        weight(&awi, 1),
        1,
        "half of the packets, a thousandth of the bytes"
    );
}

#[test]
fn the_fixed_line_is_named_or_the_cheapest() {
    let mut paths = ready_paths(3);
    paths[0].cost = 2;
    let mut cheapest = awi(|_| ());
    pick(&mut cheapest, &paths, 1250);
    assert_eq!([0, 1, 2].map(|id| weight(&cheapest, id)), [0, 50, 0]);
    let mut named = awi(|settings| settings.fixed = Some(PathId(0)));
    pick(&mut named, &paths, 1250);
    assert_eq!([0, 1, 2].map(|id| weight(&named, id)), [50, 0, 0]);
}

#[test]
fn several_lines_fill_in_the_order_of_cost() {
    let mut paths = ready_paths(4);
    paths[1].cost = 2;
    paths[2].cost = 1;
    paths[3].cost = 3;
    let mut awi = awi(|_| ());
    pick(&mut awi, &paths, 1250);
    report(&mut awi, 0, 30, 300);
    assert_eq!([0, 1, 2, 3].map(|id| weight(&awi, id)), [50, 0, 30, 0]);
    report(&mut awi, 0, 300, 300);
    assert_eq!([0, 1, 2, 3].map(|id| weight(&awi, id)), [50, 10, 45, 0]);
    let round = picks(&mut awi, &paths, 105);
    for (at, share) in [(0, 50), (1, 10), (2, 45), (3, 0)] {
        assert_eq!(round.iter().filter(|pick| **pick == at).count(), share);
    }
    // The line with the highest cost gives weight back first.
    for _ in 0..5 * 10 {
        report(&mut awi, 0, 0, 300);
    }
    assert_eq!([1, 2].map(|id| weight(&awi, id)), [0, 45]);
    // The load of a line that fails moves to the next line.
    paths[2].usable = false;
    paths[2].ready = false;
    pick(&mut awi, &paths, 1250);
    assert_eq!([1, 2, 3].map(|id| weight(&awi, id)), [45, 0, 0]);
}

#[test]
fn losses_of_other_lines_count_only_if_asked_for() {
    let mut fixed = awi(|_| ());
    after(&mut fixed, 40, 300);
    report(&mut fixed, 1, 150, 300);
    assert_eq!(weight(&fixed, 1), 40);
    let mut both = awi(|settings| settings.loss = LossSource::Both);
    after(&mut both, 40, 300);
    report(&mut both, 1, 150, 300); // 0.5 · 0.5 · 40
    assert_eq!(weight(&both, 1), 30);
    // The fixed line's losses do not push more onto a line that is full,
    assert_eq!(after(&mut both, 300, 300), 30);
    // until it has been without loss for a while.
    for _ in 0..5 * 3 {
        report(&mut both, 1, 0, 300);
    }
    assert_eq!(after(&mut both, 300, 300), 33);
}

#[test]
fn with_losses_of_all_a_full_line_passes_the_rest_on() {
    let paths = ready_paths(3);
    let mut awi = awi(|settings| settings.loss = LossSource::Both);
    pick(&mut awi, &paths, 1250);
    report(&mut awi, 0, 40, 300);
    report(&mut awi, 1, 300, 300);
    assert_eq!([1, 2].map(|id| weight(&awi, id)), [20, 20]);
}

#[test]
fn while_the_fixed_line_is_down_the_others_carry_all_and_its_share_returns() {
    let mut paths = ready_paths(2);
    let mut awi = awi(|_| ());
    after(&mut awi, 10, 300);
    (paths[0].usable, paths[0].ready) = (false, false);
    assert!(picks(&mut awi, &paths, 200).iter().all(|at| *at == 1));
    // Reports of the other line have no effect while there is no line to shift load to.
    report(&mut awi, 1, 100, 300);
    for _ in 0..50 {
        report(&mut awi, 1, 0, 300);
    }
    (paths[0].usable, paths[0].ready) = (true, true);
    let round = picks(&mut awi, &paths, 120);
    assert_eq!(round.iter().filter(|at| **at == 0).count(), 100);
    assert_eq!((weight(&awi, 0), weight(&awi, 1)), (50, 10));
}

#[test]
fn of_the_others_one_takes_the_part_of_the_fixed() {
    let mut paths = ready_paths(3);
    (paths[0].usable, paths[0].ready) = (false, false);
    let mut awi = awi(|_| ());
    pick(&mut awi, &paths, 1250);
    report(&mut awi, 1, 9, 300);
    assert_eq!([0, 1, 2].map(|id| weight(&awi, id)), [0, 50, 9]);
}

#[test]
fn a_line_without_room_is_not_waited_for() {
    let mut paths = ready_paths(2);
    let mut awi = awi(|_| ());
    paths[0].ready = false;
    assert_eq!(picks(&mut awi, &paths, 3), [1, 1, 1]);
    paths[0].ready = true;
    assert_eq!(picks(&mut awi, &paths, 3), [0, 0, 0]);
}

#[test]
fn settings_are_read_under_the_papers_names() {
    use serde::{
        Deserialize as _,
        de::value::{Error, MapDeserializer},
    };
    let read = |keys: &[(&str, &str)]| {
        AwiSettings::<String>::deserialize(MapDeserializer::<_, Error>::new(keys.iter().copied()))
    };
    assert_eq!(read(&[]), Ok(AwiSettings::default()));
    let settings = read(&[
        ("t_dwd", "500ms"),
        ("t_lto", "1s"),
        ("dwd", "literal"),
        ("loss", "both"),
        ("count", "bytes"),
        ("wrr", "smooth"),
    ])
    .expect("valid");
    assert_eq!(settings.t_dwd, Duration::from_millis(500));
    assert_eq!(settings.t_lto, Duration::from_secs(1));
    assert_eq!(
        (settings.dwd, settings.loss),
        (Dwd::Literal, LossSource::Both)
    );
    assert_eq!((settings.count, settings.wrr), (Count::Bytes, Wrr::Smooth));
    assert!(read(&[("t_dwdwait", "1s")]).is_err());
    for (k, gain) in [(0.1, 100_000), (1.0, 1_000_000), (1000.0, 1_000_000_000)] {
        assert_eq!(Gain::new(k).map(Gain::as_ppm), Some(gain));
    }
    for k in [0.0, -1.0, 1000.1, f64::NAN, f64::INFINITY] {
        assert_eq!(Gain::new(k), None);
    }
}
