//! Hosts, links and measurements without a tunnel.

use pleach_sim::{
    results::FlowKind,
    run::{EngineOnly, Options, RunError, run},
    scenario::Scenario,
};

use crate::{assert_near, main_phase, results, scenario, udp};

const LINE: &str = r#"
name = "line"
duration = "2s"
[[link]]
name = "line"
rate = "10Mbit"
delay = "20ms"
queue = "61400B"
"#;

/// Length in bits of the IPv4 packet of a datagram of 1200 bytes.
const PACKET_BITS: f64 = 1228.0 * 8.0;

#[test]
fn a_datagram_takes_serialisation_and_delay() {
    let results = results(&scenario(&format!("{LINE}{}", udp("5Mbit"))));
    let flow = &results.flows[0];
    let expected_ms = PACKET_BITS / 10e3 + 20.0;
    assert_near(flow.delay_ms.p50.expect("delays"), expected_ms, 1e-6);
    assert_near(flow.delay_ms.p99.expect("delays"), expected_ms, 1e-6);
    // 5 Mbit/s for 2 s in datagrams of 9600 bits, the first of them at once.
    assert_eq!(flow.sent_pkts, Some(1_042));
    assert_eq!((flow.loss, flow.reorder_depth_max), (0.0, 0));
    assert_eq!(flow.in_order_pkts, flow.received_pkts);
    assert_near(
        results.links[0].down.utilisation.expect("a rate"),
        0.5117,
        0.01,
    );
}

#[test]
fn what_exceeds_a_line_is_lost() {
    let results = results(&scenario(&format!("{LINE}{}", udp("20Mbit"))));
    let flow = &results.flows[0];
    // Packets that the line serves in 2 s, plus 50 packets of queue and the packet in service.
    let served = 2.0 * 10e6 / PACKET_BITS + 51.0;
    let received = flow.received_pkts.expect("counted");
    assert_near(received as f64, served, 2.0);
    let sent = flow.sent_pkts.expect("counted");
    assert_eq!(sent, 4_167);
    assert_eq!(results.links[0].down.queue_drops, sent - received);
    // The last packets waited in a full queue.
    let longest_ms = 20.0 + 51.0 * PACKET_BITS / 10e3;
    assert_near(flow.delay_ms.p99.expect("delays"), longest_ms, 1.0);
}

#[test]
fn a_ping_takes_both_ways() {
    let text = format!("{LINE}[[traffic]]\nkind = \"ping\"\nname = \"ping\"\n");
    let pings = results(&scenario(&text)).pings.expect("pings");
    // Each direction has 36 bytes.
    let expected_ms = 2.0 * (20.0 + 36.0 * 8.0 / 10e3);
    for summary in [&pings.idle, &pings.loaded] {
        assert_eq!(summary.lost, 0);
        assert_near(summary.rtt_ms.p50.expect("replies"), expected_ms, 1e-6);
    }
    assert_eq!(pings.idle.sent, 50);
}

#[test]
fn bulk_tcp_fills_a_line_and_requests_finish() {
    let text = r#"
        [[traffic]]
        kind = "tcp"
        name = "bulk"
        flows = 2
        [[traffic]]
        kind = "requests"
        name = "requests"
        size = "20kB"
        interval = "100ms"
        direction = "down"
    "#;
    let results = results(&scenario(
        &format!("{LINE}{text}").replace("\"2s\"", "\"4s\""),
    ));
    let [bulk, requests] = &results.flows[..] else {
        panic!("two flows");
    };
    assert!(bulk.goodput_mbps > 7.5, "{}", bulk.goodput_mbps);
    assert!(bulk.retransmits.is_some());
    assert!(requests.received_pkts > Some(10), "{requests:?}");
    assert_eq!(requests.loss, 0.0);
    // A handshake and a request take this time, plus the queueing delay.
    assert!(requests.delay_ms.p50 > Some(80.0), "{requests:?}");
}

#[test]
fn cross_traffic_takes_its_link_and_its_distance() {
    let text =
        "[[traffic]]\nkind = \"ping\"\nname = \"far\"\nlink = \"line\"\ndistance = \"30ms\"\n";
    let results = results(&scenario(&format!("{LINE}{text}")));
    let expected_ms = 2.0 * (50.0 + 36.0 * 8.0 / 10e3);
    let delay = results.flows[0].delay_ms.p50.expect("replies");
    assert_near(delay, expected_ms, 1e-6);
}

#[test]
fn a_quic_stream_fills_the_line_either_way() {
    for direction in ["down", "up"] {
        let quic = format!("[[traffic]]\nkind = \"quic\"\ndirection = \"{direction}\"\n");
        let results = results(&scenario(&format!("{LINE}{quic}")));
        let flow = &results.flows[0];
        assert_eq!((flow.kind, flow.sent_pkts), (FlowKind::Quic, None));
        // Two RTTs for the handshake, a slow start that overshoots, and headers leave 85 % of the line in two seconds.
        assert!((8.0..9.6).contains(&flow.goodput_mbps), "{flow:?}");
        assert!(
            flow.retransmits.is_some() && flow.delay_ms.p50 > Some(40.0),
            "{flow:?}"
        );
    }
}

#[test]
fn what_is_not_simulated_is_said() {
    let with = |rest: &str| {
        let options = Options {
            program: &EngineOnly,
            skip_baselines: false,
            progress: &|_| {},
        };
        run(&scenario(&format!("{LINE}{rest}")), &options)
    };
    let tcp = |cc: &str| format!("[[traffic]]\nkind = \"tcp\"\nname = \"tcp\"\ncc = \"{cc}\"\n");
    let error = with(&tcp("vegas")).expect_err("no model");
    assert!(error.to_string().contains("vegas"), "{error}");
    let long = udp("1Mbit").replace("1200B", "1473B");
    let error = with(&long).expect_err("a fragment");
    assert!(matches!(
        error,
        RunError::TooLong {
            max_bytes: 1_472,
            ..
        }
    ));
    let mptcp =
        format!("{LINE}{}", tcp("cubic")).replace("duration", "baselines = [\"mptcp\"]\nduration");
    let results = results(&scenario(&mptcp));
    assert!(results.baselines.is_empty());
    assert!(results.notes[0].contains("MPTCP"), "{:?}", results.notes);
}

#[test]
fn a_baseline_has_its_goodput_over_time() {
    let tcp = "[[traffic]]\nkind = \"tcp\"\nname = \"tcp\"\ncc = \"cubic\"\n";
    let text = format!("{LINE}{tcp}").replace("duration", "baselines = [\"raw\"]\nduration");
    let results = results(&scenario(&text));
    let samples = &results.baselines[0].series_mbps;
    assert_eq!(samples.len(), 20, "2 s in samples of 100 ms");
    // The baseline over the line alone is the run itself.
    assert_eq!(samples, &results.series.flows[0].goodput_mbps);
    assert!(samples.iter().sum::<f64>() > 0.0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let lossy = LINE.replace("queue", "loss = 0.01\nqueue");
    let mut scenario = scenario(&format!("{lossy}{}", udp("5Mbit")));
    let hash = |scenario: &Scenario| main_phase(scenario).trace_hash;
    let first = hash(&scenario);
    assert_eq!(hash(&scenario), first);
    scenario.seed += 1;
    assert_ne!(hash(&scenario), first);
}
