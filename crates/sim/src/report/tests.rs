//! Tests of the whole report, and a realistic run to render.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up positive numbers of moderate size"
)]

use pleach_core::rng::Rng;

use super::{render, table, verdict};
use crate::results::{
    Baseline, Event, EventKind, FlowKind, FlowResult, FlowSeries, Lateness, LatenessBin,
    LinkResult, LinkSeries, LinkSide, PingPoint, PingSummary, Pings, Quantiles, Repeat, Results,
    Transport, quantile,
};

/// Returns one download over two links of 64 and 60 Mbit/s. `lte` drops all packets from 8 to 14 s of 30 s.
fn two_lines() -> Results {
    let mut rng = Rng::new(7);
    let mut noise = |spread: f64| (rng.uniform() - 0.5) * spread;
    let away = |i: usize| (80..140).contains(&i);
    let dsl: Vec<f64> = (0..300).map(|i| ramp(i) * 61.5 + noise(2.5)).collect();
    let lte: Vec<f64> = (0..300)
        .map(|i| {
            if away(i) {
                0.0
            } else {
                ramp(i.min(i.wrapping_sub(139))) * 56.5 + noise(5.0)
            }
        })
        .collect();
    let goodput: Vec<f64> = (0..300)
        .map(|i| {
            if matches!(i, 80 | 81) {
                0.0
            } else {
                (dsl[i] + lte[i]) * 0.937 + noise(1.5)
            }
        })
        .collect();
    let mut waits = |base: f64| -> Vec<f64> {
        (0..300)
            .map(|i| (base * ramp(i) + noise(base)).max(0.2))
            .collect()
    };
    let (queue_dsl, mut queue_lte) = (waits(6.0), waits(9.0));
    queue_lte[80..140].fill(f64::NAN);
    let pings: Vec<PingPoint> = (0..300_u32)
        .map(|i| PingPoint {
            time_s: f64::from(i) * 0.1,
            rtt_ms: (!matches!(i, 80 | 81)).then(|| 31.0 + 7.0 * ramp(i as usize) + noise(6.0)),
        })
        .collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / 300.0;
    let side = |values: &[f64], rate: f64, offered: f64, waits: &[f64], lost: u64| LinkSide {
        tx_bytes: (mean(values) * 30.0 / 8.0 * 1e6) as u64,
        queue_drops: 12,
        loss_drops: lost,
        rate_mbps: Some(rate),
        capacity_mbps: Some(offered),
        utilisation: Some(mean(values) / offered),
        queue_delay_ms: Quantiles::of(
            &mut waits
                .iter()
                .copied()
                .filter(|w| w.is_finite())
                .collect::<Vec<_>>(),
        ),
        ..LinkSide::default()
    };
    let link = |name: &str, down: LinkSide| LinkResult {
        name: name.to_owned(),
        tx_bytes: down.tx_bytes + 4_100_000,
        queue_drops: 12,
        loss_drops: down.loss_drops,
        up: LinkSide {
            tx_bytes: 4_100_000,
            rate_mbps: Some(12.0),
            capacity_mbps: Some(12.0),
            utilisation: Some(0.09),
            ..LinkSide::default()
        },
        down,
    };
    let total = mean(&goodput);
    let over = |transport: Transport, mbps: f64| Baseline {
        label: String::new(),
        transport,
        goodput_mbps: mbps,
        ratio: Some(total / mbps),
        ..Baseline::default()
    };
    let event = |time_s: f64, kind, text: &str, gap_ms| Event {
        time_s,
        link: Some("lte".to_owned()),
        kind,
        text: text.to_owned(),
        gap_ms,
    };
    let summary = |sent, lost, p50, p95, p99, max| PingSummary {
        sent,
        lost,
        rtt_ms: Quantiles {
            p50: Some(p50),
            p95: Some(p95),
            p99: Some(p99),
        },
        max_ms: Some(max),
    };
    let series = |name: &str, down: &[f64], queue: Vec<f64>, capacity: Vec<f64>| LinkSeries {
        name: name.to_owned(),
        down_mbps: down.to_vec(),
        queue_down_ms: queue,
        capacity_down_mbps: capacity,
        ..LinkSeries::default()
    };
    let mut results = Results {
        scenario: "two-lines-one-silent".to_owned(),
        description: Some("A download while the mobile line goes silent".to_owned()),
        seed: 7,
        policy: "adaptive".to_owned(),
        version: "0.1.0".to_owned(),
        duration_s: 30.0,
        flows: vec![FlowResult {
            name: "download".to_owned(),
            cc: Some("cubic".to_owned()),
            goodput_mbps: total,
            delay_ms: Quantiles {
                p50: Some(37.8),
                p95: Some(44.1),
                p99: Some(51.0),
            },
            reorder_depth_max: 3,
            longest_gap_ms: Some(180.0),
            retransmits: Some(41),
            ..FlowResult::default()
        }],
        links: vec![
            link("dsl", side(&dsl, 64.0, 64.0, &queue_dsl, 0)),
            link("lte", side(&lte, 60.0, 48.0, &queue_lte, 812)),
        ],
        pings: Some(Pings {
            idle: summary(30, 0, 31.2, 32.0, 32.4, 32.6),
            loaded: summary(300, 2, 37.9, 40.6, 41.0, 41.2),
        }),
        events: vec![
            event(8.0, EventKind::Silent, "lte silent", Some(180.0)),
            event(14.0, EventKind::Up, "lte back", None),
        ],
        baselines: vec![
            over(Transport::Mptcp, 71.4),
            over(Transport::Single("dsl".to_owned()), 60.6),
            over(Transport::Single("lte".to_owned()), 42.9),
            over(Transport::Raw, 60.5),
        ],
        repeats: vec![Repeat::new(
            "goodput_mbps",
            vec![total, total - 1.1, total + 0.7],
        )],
        lateness_us: Some(Lateness {
            p50: 24.0,
            p99: 830.0,
            max: Some(4_200.0),
            limit_p99: None,
        }),
        ..Results::default()
    };
    results.series.interval_ms = 100.0;
    results.series.links = vec![
        series("dsl", &dsl, queue_dsl, vec![64.0; 300]),
        series(
            "lte",
            &lte,
            queue_lte,
            (0..300).map(|i| if away(i) { 0.0 } else { 60.0 }).collect(),
        ),
    ];
    results.series.flows = vec![FlowSeries {
        name: "download".to_owned(),
        goodput_mbps: goodput,
        ..FlowSeries::default()
    }];
    results.series.ping = pings;
    results.series.lateness = (0..26_i32)
        .map(|i| LatenessBin {
            up_to_us: 2.0 * 1.35_f64.powi(i),
            count: (1e5 * (-0.5 * (f64::from(i - 8) / 3.0).powi(2)).exp()) as u64 + 40,
        })
        .collect();
    results
}

/// Returns the share of the rate that slow start has reached in `sample`: all of it after a few tenths of a second.
fn ramp(sample: usize) -> f64 {
    (sample as f64 / 4.0).min(1.0)
}

/// Returns results with names that try to inject markup, values that are not finite, and arrays of different lengths.
fn hostile() -> Results {
    let evil = "</title><script>alert(\"1\")</script>'&\u{1b}[31m\u{0}".to_owned();
    let mut results = two_lines();
    results.scenario.clone_from(&evil);
    results.description = Some(evil.clone());
    results.command.clone_from(&evil);
    results.policy.clone_from(&evil);
    results.refused = Some(evil.clone());
    results.duration_s = f64::NAN;
    results.links[0].name.clone_from(&evil);
    results.links[1].down.capacity_mbps = Some(f64::INFINITY);
    results.flows[0].name.clone_from(&evil);
    results.flows[0].goodput_mbps = f64::MAX;
    results.flows.push(FlowResult {
        name: evil.clone(),
        goodput_mbps: f64::NAN,
        ..FlowResult::default()
    });
    results.baselines[0].label.clone_from(&evil);
    results.baselines[1].transport = Transport::Single(evil.clone());
    results.baselines[2].goodput_mbps = -1.0;
    results.events = (0..500_u32)
        .map(|i| Event {
            time_s: f64::from(i) * 0.01 - 1.0,
            link: Some(evil.clone()),
            kind: EventKind::Down,
            text: evil.clone(),
            gap_ms: Some(f64::NAN),
        })
        .collect();
    results.series.links[0].name.clone_from(&evil);
    results.series.links[0].down_mbps = vec![f64::NAN, f64::INFINITY, -5.0, 1e300];
    results.series.links[1].queue_down_ms = vec![f64::NAN; 3];
    results.series.flows.push(FlowSeries {
        name: evil,
        goodput_mbps: vec![1.0],
        ..FlowSeries::default()
    });
    results.series.ping.push(PingPoint {
        time_s: f64::INFINITY,
        rtt_ms: Some(f64::NAN),
    });
    results.series.lateness.push(LatenessBin {
        up_to_us: f64::NAN,
        count: u64::MAX,
    });
    results.lateness_us = Some(Lateness {
        p50: f64::NAN,
        p99: f64::INFINITY,
        max: None,
        limit_p99: Some(-1.0),
    });
    results
}

/// Asserts that every element of `page` is closed in order, and returns the number of elements.
fn assert_well_formed(page: &str) -> usize {
    let mut open = Vec::new();
    let mut count = 0;
    let body = page
        .strip_prefix("<!DOCTYPE html>")
        .expect("a page begins with its type");
    let (head, rest) = body.split_once("<style>").expect("a page has a style");
    let (_, tail) = rest.split_once("</style>").expect("the style ends");
    let markup = [head, tail].concat();
    for part in markup.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("every tag ends");
        assert!(!text.contains('>'), "stray > after <{tag}>");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in <{tag}>");
        count += 1;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes another element");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or_default());
        }
        for entity in part.split('&').skip(1) {
            let name = entity.split(';').next().unwrap_or_default();
            assert!(
                matches!(name, "amp" | "lt" | "gt" | "quot" | "#39"),
                "entity &{name}"
            );
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    count
}

/// Asserts that every coordinate in `page` is a finite number.
fn assert_finite(page: &str) {
    for name in [
        "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height",
    ] {
        for value in page.split(&format!(" {name}=\"")).skip(1) {
            let value = value.split('"').next().unwrap_or_default();
            assert!(
                value.parse::<f64>().is_ok_and(f64::is_finite),
                "{name}={value}"
            );
        }
    }
    for data in page.split(" d=\"").skip(1) {
        let data = data.split('"').next().unwrap_or_default();
        let numbers = data
            .split(|c: char| "MLZhH ".contains(c))
            .filter(|n| !n.is_empty());
        for number in numbers {
            assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "d={data}");
        }
    }
}

#[test]
fn full_page_has_every_part() {
    let page = render(&two_lines());
    assert!(assert_well_formed(&page) > 300);
    assert_finite(&page);
    assert!(!page.contains("no data"));
    for part in [
        "lte silent",
        "Multipath TCP",
        "sum of the lines",
        "accepted",
        "pleach lab run two-lines-one-silent.toml --out",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn page_needs_nothing_from_elsewhere() {
    let page = render(&two_lines());
    for forbidden in [
        "http:", "https:", "<script", "<link", "@import", "url(", "src=",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn empty_results_say_so() {
    let page = render(&Results::default());
    assert_well_formed(&page);
    assert_finite(&page);
    assert!(page.contains("no data"));
    assert!(
        !page.contains("Compared with"),
        "there is nothing to compare"
    );
    assert_eq!(
        verdict(&Results::default()),
        "The run has no traffic to judge."
    );
    assert!(table(&Results::default()).contains("no traffic"));
}

#[test]
fn every_part_may_be_missing() {
    let strip: [fn(&mut Results); 8] = [
        |r| r.flows.clear(),
        |r| r.links.clear(),
        |r| r.series.links.clear(),
        |r| r.series.flows.clear(),
        |r| r.series.interval_ms = 0.0,
        |r| r.series.lateness.truncate(1),
        |r| r.pings = None,
        |r| r.baselines.truncate(2),
    ];
    for (i, strip) in strip.iter().enumerate() {
        let mut results = two_lines();
        strip(&mut results);
        let page = render(&results);
        assert_well_formed(&page);
        assert_finite(&page);
        assert!(!page.contains("NaN") && !page.contains(">inf"), "case {i}");
    }
}

#[test]
fn hostile_results_stay_in_their_place() {
    let page = render(&hostile());
    assert_well_formed(&page);
    assert_finite(&page);
    assert!(!page.contains("<script"));
    assert!(page.contains("&lt;script&gt;"));
    let text = table(&hostile());
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
}

#[test]
fn verdict_is_computed() {
    let mut results = two_lines();
    assert_eq!(
        verdict(&results),
        "One download used both lines: 98.4 Mbit/s, 0.95 of the sum; when lte went silent at 8 s, data stopped for \
         180 ms; a ping during the traffic took 38 ms instead of 31 ms."
    );
    results.flows[0].goodput_mbps = 50.0;
    results.links[1].down.tx_bytes = 1000;
    results.refused = Some("the emulator was late".to_owned());
    let text = verdict(&results);
    assert!(
        text.starts_with(
            "Not valid: the emulator was late. One download used only dsl: 50.0 Mbit/s"
        ),
        "{text}"
    );
    assert!(text.contains("less than dsl alone, 60.6 Mbit/s"), "{text}");
}

#[test]
fn verdict_without_bulk_traffic_speaks_of_what_there_is() {
    let mut results = two_lines();
    results.flows[0].goodput_mbps = f64::NAN;
    assert!(verdict(&results).starts_with("The run has no traffic to judge"));
    results.flows[0].kind = FlowKind::Requests;
    assert!(verdict(&results).starts_with("Requests took 38 ms in the median"));
}

#[test]
fn lines_not_measured_alone_are_judged_by_what_they_offered() {
    let mut results = two_lines();
    results.baselines.clear();
    assert!(
        verdict(&results).contains("0.88 of the lines' rates together"),
        "{}",
        verdict(&results)
    );
}

#[test]
fn table_is_aligned() {
    let text = table(&two_lines());
    let head = text
        .lines()
        .find(|l| l.starts_with("link "))
        .expect("a table of links");
    let end = head.find("carried").expect("a column") + "carried".len();
    let row = text.lines().find(|l| l.starts_with("dsl ")).expect("a row");
    assert!(
        row[..end].ends_with('B') && row[end..].starts_with(' '),
        "{text}"
    );
}

#[test]
fn rendering_is_deterministic() {
    assert_eq!(render(&two_lines()), render(&two_lines()));
    assert_eq!(table(&two_lines()), table(&two_lines()));
}

#[test]
fn json_keeps_the_contract() {
    let results = two_lines();
    let json = results.to_json().expect("serialises");
    let value: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
    for pointer in [
        "/scenario",
        "/seed",
        "/series",
        "/flows/0/name",
        "/flows/0/goodput_mbps",
        "/flows/0/loss",
        "/flows/0/delay_ms/p50",
        "/flows/0/delay_ms/p95",
        "/flows/0/delay_ms/p99",
        "/flows/0/reorder_depth_max",
        "/links/0/name",
        "/links/0/tx_bytes",
        "/links/0/queue_drops",
        "/links/0/loss_drops",
        "/lateness_us/p50",
        "/lateness_us/p99",
    ] {
        assert!(
            value.pointer(pointer).is_some_and(|v| !v.is_null()),
            "{pointer}"
        );
    }
    assert_eq!(
        value.pointer("/baselines/1/transport"),
        Some(&"single:dsl".into())
    );
    assert_eq!(
        value.pointer("/series/ping/80/1"),
        Some(&serde_json::Value::Null)
    );
}

#[test]
fn json_round_trip_keeps_the_page() {
    let back = |results: &Results| {
        Results::from_json(&results.to_json().expect("serialises")).expect("reads its own output")
    };
    for results in [two_lines(), Results::default()] {
        assert_eq!(render(&back(&results)), render(&results));
    }
    assert_well_formed(&render(&back(&hostile())));
    assert!(Results::from_json("{\"scenario\": \"old\", \"later\": 1}").is_ok());
}

#[test]
fn late_emulator_is_refused() {
    let mut results = two_lines();
    results.judge_lateness();
    assert_eq!(results.refused, None);
    results.lateness_us = Some(Lateness {
        p99: 2_400.0,
        ..Lateness::default()
    });
    results.judge_lateness();
    assert_eq!(
        results.refused.as_deref(),
        Some("the emulator was late: p99 2400 µs, limit 2000 µs")
    );
}

#[test]
fn quantiles_are_nearest_rank() {
    let sorted = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(quantile(&sorted, 0.5), Some(2.0));
    assert_eq!(quantile(&sorted, 0.99), Some(4.0));
    assert_eq!(quantile(&sorted, 0.0), Some(1.0));
    assert_eq!(quantile(&[], 0.5), None);
    assert_eq!(crate::results::median(&[f64::NAN, 3.0, 1.0]), Some(2.0));
}

#[test]
fn a_missed_goal_says_why() {
    let mut results = two_lines();
    // Half of the capacity was not used, and data paused for longer than the pings.
    for (link, used) in results.links.iter_mut().zip([0.4, 0.6]) {
        link.down.utilisation = Some(used);
    }
    for flow in &mut results.flows {
        flow.goodput_mbps = 45.0;
    }
    for event in &mut results.events {
        event.gap_ms = Some(900.0);
    }
    let page = render(&results);
    assert!(page.contains("the lines were"), "{page}");
    assert!(page.contains("pings stopped for "), "{page}");
    // Data that stopped for as long as the pings have no other cause.
    for event in &mut results.events {
        event.gap_ms = Some(200.0);
    }
    assert!(!render(&results).contains("pings stopped"));
}
