//! Hosts that spread their packets over links, without a tunnel.

use pleach_sim::{results::Results, scenario::Scenario};

use crate::{assert_near, results, scenario};

const LINKS: &str = r#"
name = "spread"
duration = "4s"
[[link]]
name = "a"
rate = "10Mbit"
delay = "10ms"
weight = 3
queue = "75kB"
[[link]]
name = "b"
rate = "10Mbit"
delay = "50ms"
queue = "75kB"
[[link]]
name = "back"
rate = "10Mbit"
delay = "5ms"
[[equalizer]]
end = "gateway"
links = ["back"]
"#;

/// Returns [`LINKS`] with an equalizer at the client over `a` and `b` that has `keys`, followed by `rest`.
fn spread(keys: &str, rest: &str) -> Scenario {
    let client = format!("[[equalizer]]\nend = \"client\"\nlinks = [\"a\", \"b\"]\n{keys}\n");
    scenario(&format!("{LINKS}{client}{rest}"))
}

/// Returns UDP traffic towards the server.
fn udp(rate: &str) -> String {
    crate::udp(rate) + "direction = \"up\"\n"
}

/// Returns the rates of `a`, `b` and `back` towards the server, in Mbit/s, from `from` to `to` seconds.
fn loads(results: &Results, from: usize, to: usize) -> [f64; 3] {
    let links = &results.series.links;
    [0, 1, 2].map(|link| {
        let values = &links[link].up_mbps[from * 10..to * 10];
        values.iter().sum::<f64>() / values.len() as f64
    })
}

#[test]
fn packets_follow_weights_and_answers_take_their_own_way() {
    let sent = results(&spread("", &udp("4Mbit")));
    let [a, b, back] = loads(&sent, 1, 4);
    assert_near(a / b, 3.0, 0.05);
    assert_eq!(back, 0.0);
    assert!(sent.flows[0].reorder_depth_max > 10, "b is slower");
    let pings = results(&spread(
        "",
        "[[traffic]]\nkind = \"ping\"\nname = \"ping\"\n",
    ));
    let down = |link: usize| pings.series.links[link].down_mbps.iter().sum::<f64>();
    assert!(down(0) + down(1) == 0.0 && down(2) > 0.0);
    // Three of four requests use `a`, the others use `b`. All answers use `back`.
    let round_trips = pings.pings.expect("pings").loaded.rtt_ms;
    assert_near(round_trips.p50.expect("answers"), 15.0, 0.1);
    assert_near(round_trips.p95.expect("answers"), 55.0, 0.1);
}

#[test]
fn weights_change_at_once_and_no_carrier_means_no_packets() {
    let events = "[[event]]\nat = \"1s\"\nequalizer = \"client\"\nweights = { a = 1, b = 4 }\n\
                  [[event]]\nat = \"2s\"\nlink = \"b\"\nstate = \"down\"\n\
                  [[event]]\nat = \"3s\"\nlink = \"b\"\nstate = \"up\"\n";
    let results = results(&spread("", &(udp("4Mbit") + events)));
    let share = |from, to| {
        let [a, b, _] = loads(&results, from, to);
        a / (a + b)
    };
    assert_near(share(0, 1), 0.75, 0.02);
    assert_near(share(1, 2), 0.2, 0.02);
    assert_eq!(share(2, 3), 1.0);
    assert_near(share(3, 4), 0.2, 0.02);
    assert_near(results.series.links[1].weight[15], 80.0, 0.1);
    assert!(
        results.events[0].text.contains("b 4"),
        "{:?}",
        results.events[0]
    );
    // Only the packets in flight when `b` went down are lost.
    assert!(results.flows[0].loss < 0.02, "{}", results.flows[0].loss);
}

#[test]
fn a_flow_stays_on_its_link() {
    let results = results(&spread("spread = \"flow\"", &udp("4Mbit")));
    let [a, b, _] = loads(&results, 1, 4);
    assert!(a > 3.9 && b == 0.0, "{a} {b}");
    assert_eq!(results.flows[0].reorder_depth_max, 0);
}

#[test]
fn held_packets_arrive_in_order_and_not_before_the_slow_ones() {
    let results = results(&spread("spread = \"delay\"", &udp("4Mbit")));
    let [a, b, _] = loads(&results, 1, 4);
    assert_near(a / b, 3.0, 0.1);
    let flow = &results.flows[0];
    let delay = |quantile: Option<f64>| quantile.expect("datagrams");
    // The delay is 50 ms and a packet's serialisation time, once the first probes have returned.
    assert_near(delay(flow.delay_ms.p50), 51.0, 0.2);
    assert_near(delay(flow.delay_ms.p99), 51.0, 0.5);
    assert!(flow.loss == 0.0 && flow.in_order_pkts > flow.received_pkts.map(|all| all - 60));
}

#[test]
fn automatic_weights_leave_room_for_others() {
    let cross = udp("5Mbit").replace("\"udp\"\nrate", "\"cross\"\nlink = \"b\"\nrate");
    let keys = "weights = \"auto\"\ninterval = \"100ms\"";
    let results = results(&spread(keys, &(udp("9Mbit") + &cross)));
    // 10 and 5 Mbit/s are left, minus headers.
    let weight = results.series.links[0].weight[30];
    assert_near(weight, 66.7, 2.0);
    assert_eq!(results.flows[0].name, "udp");
    assert!(results.flows.iter().all(|flow| flow.loss < 0.01));
}

#[test]
fn a_raw_baseline_knows_no_equalizer() {
    let tcp = "[[traffic]]\nkind = \"tcp\"\nname = \"tcp\"\ndirection = \"up\"\n";
    let mut scenario = spread("", tcp);
    scenario.baselines = vec![pleach_sim::scenario::Baseline::Raw];
    let results = results(&scenario);
    assert_eq!(results.baselines.len(), 3);
    assert!(
        results
            .baselines
            .iter()
            .all(|one| one.series_mbps.iter().sum::<f64>() > 10.0)
    );
}
