use pleach_core::units::Bytes;

use super::*;
use crate::{
    link::LinkStats,
    measure::{DirectionReport, Sample},
};

/// Two links, of which the second has the higher cost, and two UDP flows, of which the second runs from 1 s to 2 s.
const TEXT: &str = r#"
name = "test"
duration = "4s"
[[link]]
name = "dsl"
rate = "8Mbit"
[[link]]
name = "lte"
rate = "8Mbit"
cost = 1
[tunnel]
policy = "adaptive"
[[traffic]]
kind = "udp"
name = "first"
size = "1000B"
rate = "4Mbit"
[[traffic]]
kind = "udp"
name = "second"
size = "500B"
rate = "8Mbit"
start = "1s"
stop = "2s"
[expect]
"second.start_lost_pkts" = { max = 10.0 }
"second.return_ms" = { max = 300.0 }
"dsl.fill" = { min = 0.99 }
"lte.excess" = { max = 0.03 }
"#;

fn scenario(text: &str) -> Scenario {
    Scenario::parse_alone("test.toml", text).expect("a valid scenario")
}

/// Creates a link that carries `bytes` and loses `lost` packets in each sample, as functions of the sample's number.
fn line(bytes: fn(usize) -> u64, lost: fn(usize) -> u64) -> LinkReport {
    let sample = |at| Sample {
        tx_bytes: bytes(at),
        lost_pkts: lost(at),
        longest_wait: Duration::ZERO,
        capacity: Some(Bytes::new(100_000)),
    };
    LinkReport {
        stats: LinkStats::default(),
        queue_delay: Histogram::default(),
        samples: (0..40).map(sample).collect(),
    }
}

/// Creates a flow that sends `sent` bytes in each bin of `bins`. Bytes sent in the bins of `lost` do not arrive.
fn flow(sent: u64, bins: core::ops::Range<usize>, lost: core::ops::Range<usize>) -> FlowReport {
    let mut flow = FlowReport::default();
    for bin in 0..400 {
        let bytes = if bins.contains(&bin) { sent } else { 0 };
        flow.sent_bins.push(bytes);
        let arrived = if lost.contains(&bin) { 0 } else { bytes };
        flow.in_time_bins.push(arrived);
        flow.bins.push(arrived);
    }
    flow
}

/// Returns a run in which both links are full while the second flow runs. Afterwards LTE carries traffic for 250 ms
/// that DSL could carry.
fn report() -> PhaseReport {
    let dsl = |at: usize| match at {
        10..20 => 90_000,
        _ => 50_000,
    };
    let lte = |at: usize| match at {
        10..20 => 60_000,
        20..23 => 20_000,
        _ => 1_000,
    };
    let lost = |at: usize| u64::from(at == 10) * 9;
    PhaseReport {
        flows: vec![
            Some(flow(5_000, 0..400, 100..102)),
            Some(flow(10_000, 100..200, 101..102)),
        ],
        down: DirectionReport {
            links: vec![line(dsl, lost), line(lte, |_| 0)],
            lateness_ns: None,
        },
        up: DirectionReport {
            links: vec![line(|_| 0, |_| 0), line(|_| 0, |_| 0)],
            lateness_ns: None,
        },
        status: Vec::new(),
        weights: Vec::new(),
    }
}

fn results(text: &str) -> Results {
    join(&scenario(text), World::Sim, vec![report()], &[])
}

#[test]
fn losses_at_a_begin_are_counted_by_when_they_left() {
    let results = results(TEXT);
    let [first, second] = &results.flows[..] else {
        panic!("two flows");
    };
    // Lost datagrams of the first second after the flow began: 5 datagrams in each of 2 bins, and 20 in another bin.
    assert_eq!(second.start_lost_pkts, Some(10 + 20));
    assert_eq!(second.start_line_losses_pkts, Some(9));
    // Datagrams sent after 1 s do not count for the start of the first flow.
    assert_eq!(first.start_lost_pkts, Some(0));
    assert_eq!(first.start_line_losses_pkts, Some(0));
}

#[test]
fn the_way_back_is_timed_from_the_end_of_a_flow() {
    let results = results(TEXT);
    assert_eq!(results.flows[1].return_ms, Some(300.0));
    assert_eq!(results.flows[0].return_ms, None, "the run ends with it");
    let soon = TEXT.replace("stop = \"2s\"", "stop = \"1.5s\"");
    assert_eq!(self::results(&soon).flows[1].return_ms, Some(800.0));
    let equal = TEXT.replace("cost = 1", "cost = 0");
    assert_eq!(self::results(&equal).flows[1].return_ms, None);
    let next = "[[traffic]]\nkind = \"tcp\"\nname = \"third\"\nstart = \"2.5s\"\n[expect]";
    let next = self::results(&TEXT.replace("[expect]", next));
    assert_eq!(
        next.flows[1].return_ms, None,
        "300 ms and half a second of rest are more"
    );
}

#[test]
fn dear_lines_carry_what_cheap_ones_have_no_room_for() {
    let results = results(TEXT);
    let [dsl, lte] = &results.links[..] else {
        panic!("two links");
    };
    assert_eq!((dsl.down.fill, dsl.down.excess), (Some(0.9), None));
    assert_eq!(lte.down.fill, None);
    let all = 10 * 150_000 + 3 * 70_000 + 27 * 51_000;
    let needless = 10 * 10_000 + 3 * 20_000 + 27 * 1_000;
    let share = f64::from(needless) / f64::from(all);
    assert!((lte.down.excess.expect("one is cheaper") - share).abs() < 1e-9);
    assert_eq!(
        (lte.up.fill, lte.up.excess),
        (None, None),
        "nothing went up"
    );
}

#[test]
fn repeated_runs_list_what_is_expected() {
    let runs = vec![report(), report(), report()];
    let results = join(&scenario(TEXT), World::Sim, runs, &[]);
    let of = |metric: &str| {
        results
            .repeats
            .iter()
            .find(|repeat| repeat.metric == metric)
    };
    let back = of("second.return_ms").expect("it is expected");
    assert_eq!((back.median, back.values.len()), (Some(300.0), 3));
    assert!(of("goodput_mbps").is_some());
    let unmet = unmet_expectations(&scenario(TEXT), &results);
    assert_eq!(unmet.len(), 3, "{unmet:?}");
}
