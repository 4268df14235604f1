//! Emulated links between real namespaces: delay, rate, loss, outages. Plain routing without a tunnel.

use crate::run;

#[test]
fn a_link_delays_and_shapes_and_loses_as_told() {
    let Some((results, _)) = run(r#"
        name = "shape"
        seed = 7
        duration = "4s"
        [[link]]
        name = "near"
        rate = "20Mbit"
        delay = "20ms"
        queue = "60kB"
        [[traffic]]
        kind = "ping"
        stop = "1s"
        [[traffic]]
        kind = "udp"
        name = "flood"
        start = "2s"
        rate = "40Mbit"
        size = "1400B"
        [[traffic]]
        kind = "udp"
        name = "back"
        direction = "up"
        start = "2s"
        rate = "1Mbit"
        [[event]]
        at = "1.5s"
        link = "near"
        direction = "up"
        loss = 0.1
    "#) else {
        return;
    };
    let flow = |name: &str| {
        let named = results.flows.iter().find(|flow| flow.name == name);
        named.expect("in the scenario")
    };
    let ping = flow("ping");
    let median = ping.delay_ms.p50.expect("replies");
    assert!((40.0..42.0).contains(&median), "round trip {median} ms");

    // Bytes that the link carries, minus the headers of 28 bytes per datagram, over the 2 s of the flow. The queue at
    // the end (60 kB, 24 ms) still arrives.
    let flood = flow("flood");
    let carried = 20.0 * 1400.0 / 1428.0 * (2.0 + 0.024) / 2.0;
    assert!(
        (flood.goodput_mbps / carried - 1.0).abs() < 0.03,
        "{} of {carried} Mbit/s",
        flood.goodput_mbps
    );
    let waited = flood.delay_ms.p95.expect("arrivals") - 20.0;
    assert!((23.0..27.0).contains(&waited), "queue of {waited} ms");
    assert!(results.links[0].down.queue_drops > 2_000);

    // Four standard errors of a tenth of 208 datagrams.
    let back = flow("back");
    assert!((back.loss - 0.1).abs() < 0.084, "loss {}", back.loss);
    assert_eq!(results.links[0].loss_drops, results.links[0].up.loss_drops);
    assert!(results.lateness_us.expect("measured").p50 < 2_000.0);
}

#[test]
fn a_black_hole_stops_tcp_and_lets_it_go_on() {
    let Some((results, _)) = run(r#"
        name = "hole"
        duration = "5s"
        [[link]]
        name = "near"
        rate = "20Mbit"
        delay = "5ms"
        queue = "60kB"
        [[traffic]]
        kind = "tcp"
        name = "download"
        [[traffic]]
        kind = "requests"
        size = "10kB"
        stop = "1s"
        [[event]]
        at = "2s"
        link = "near"
        state = "blackhole"
        direction = "down"
        [[event]]
        at = "2.5s"
        link = "near"
        state = "up"
        direction = "down"
    "#) else {
        return;
    };
    let gap = results.events[0].gap_ms.expect("bulk traffic ran");
    // The outage itself, plus at most the time until the sender's next doubled timeout.
    assert!((450.0..2_000.0).contains(&gap), "gap {gap} ms");
    let series = &results.series.flows[0].goodput_mbps;
    assert!(series[10..20].iter().sum::<f64>() > 100.0, "{series:?}");
    assert_eq!(series[22], 0.0, "{series:?}");
    assert!(series[45..].iter().sum::<f64>() > 25.0, "{series:?}");
    assert!(results.links[0].down.loss_drops > 0);
    let requests = &results.flows[1];
    assert_eq!(requests.loss, 0.0);
    assert!(requests.delay_ms.p50.expect("served") >= 20.0);
}

#[test]
fn kernel_mptcp_uses_both_links() {
    let Some((results, _)) = run(r#"
        name = "mptcp"
        duration = "2s"
        baselines = ["mptcp", "raw"]
        [[link]]
        name = "one"
        rate = "20Mbit"
        delay = "5ms"
        [[link]]
        name = "two"
        rate = "20Mbit"
        delay = "8ms"
        [[traffic]]
        kind = "tcp"
        name = "download"
    "#) else {
        return;
    };
    let goodput: Vec<f64> = results.baselines.iter().map(|b| b.goodput_mbps).collect();
    let [mptcp, one, two] = goodput[..] else {
        panic!("three baselines, got {goodput:?}");
    };
    assert!((14.0..20.0).contains(&one), "{goodput:?}");
    assert!((14.0..20.0).contains(&two), "{goodput:?}");
    assert!(mptcp > 22.0, "more than any one link carries: {goodput:?}");
}

#[test]
fn datagrams_follow_their_rates_and_take_their_link_to_their_server() {
    let Some((results, _)) = run(r#"
        name = "cross"
        duration = "3s"
        [tcp]
        recovery = "dupack"
        [[link]]
        name = "one"
        delay = "5ms"
        [[link]]
        name = "two"
        delay = "30ms"
        [[traffic]]
        kind = "udp"
        name = "ramp"
        link = "two"
        distance = "10ms"
        size = "1000B"
        rates = [{ at = "0s", rate = "4Mbit" }, { at = "2s", rate = "8Mbit" }]
        curve = "linear"
        step = "500ms"
        [[traffic]]
        kind = "ping"
        name = "far"
        link = "one"
        distance = "20ms"
        [[traffic]]
        kind = "tcp"
        name = "v6"
        family = "v6"
        link = "two"
        distance = "10ms"
        start = "2s"
    "#) else {
        return;
    };
    let (ramp, far, v6) = (&results.flows[0], &results.flows[1], &results.flows[2]);
    // 2 s of 4, 5, 6, 7 Mbit/s for 500 ms each, then 8.
    assert_eq!((ramp.sent_pkts, ramp.loss), (Some(2_375), 0.0));
    assert_eq!(ramp.in_order_pkts, ramp.received_pkts);
    let delay = ramp.delay_ms.p50.expect("arrivals");
    assert!((40.0..42.0).contains(&delay), "one way {delay} ms");
    let round_trip = far.delay_ms.p50.expect("replies");
    assert!((50.0..53.0).contains(&round_trip), "{round_trip} ms");
    assert_eq!(far.transport.to_string(), "single:one");
    assert!(v6.goodput_mbps > 1.0, "{}", v6.goodput_mbps);
    let series = &results.series.flows[0];
    // A busy machine sends some datagrams late, and sends more of them afterwards.
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, last) = (mean(&series.sent_mbps[..5]), mean(&series.sent_mbps[20..]));
    assert!(first < 4.4 && last > 7.6, "{first} {last}");
    assert_eq!(series.in_order_mbps, series.goodput_mbps);
    assert!(results.links[0].down.tx_bytes < 100_000, "only pings");
    assert_eq!(results.links.len(), 2);
    assert_eq!(results.series.links[1].lost_down_pkts.len(), 30);
}
