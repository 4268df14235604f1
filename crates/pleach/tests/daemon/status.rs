//! `pleach status` and `pleach weights` while traffic flows.

use pleach_lab::netns::Netns;
use serde_json::Value;

use crate::{
    process::{Daemon, TUNNEL, link, weighted_pair},
    traffic::{SteadyStream, Target, tcp_counter},
    world::{PATIENCE, World, run, within},
};

#[test]
fn status_tells_and_weights_rule_live_traffic() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = weighted_pair(&world);
    let server = Target::new(&world.server, "10.99.0.2");
    let _stream = SteadyStream::start(&world.client, &server);
    clog(&world.client, &client);

    let at_client = |status: &Value| links(&status["links"]);
    let at_gateway = |status: &Value| links(&status["clients"][0]["links"]);
    assert_share(&client, at_client, 0.5);
    assert_share(&gateway, at_gateway, 0.5);
    assert_contract(&client.until_up(), "client");
    assert_contract(&gateway.until_up(), "gateway");

    let retransmitted = || {
        let hosts = [&world.client, &world.server];
        hosts
            .map(|host| tcp_counter(host, "RetransSegs"))
            .iter()
            .sum::<u64>()
    };
    let set_weights = |weights: [u64; 2]| {
        let [first, second] = weights.map(|weight| weight.to_string());
        let arguments = [format!("l0={first}"), format!("l1={second}")];
        let changed = client.command("weights", &arguments.each_ref().map(String::as_str));
        assert!(changed.status.success(), "{changed:?}");
        let of = |links: &Value| [0, 1].map(|at| weight(&links[at]));
        assert_eq!(of(&client.until_up()["links"]), weights);
        gateway.until("the gateway hears of the weights", |status| {
            of(&status["clients"][0]["links"]) == weights
        });
        let share = weights[0] as f64 / (weights[0] + weights[1]) as f64;
        assert_share(&client, at_client, share);
        assert_share(&gateway, at_gateway, share);
    };
    // A machine that stalls loses segments as well, but not at each change of weights.
    let is_smooth = (0..3).any(|_| {
        set_weights([1, 1]);
        let before = retransmitted();
        set_weights([3, 1]);
        // A burst would lose about a window of segments.
        retransmitted() - before < 20
    });
    assert!(
        is_smooth,
        "each change of weights made TCP send a burst again"
    );

    let unknown = client.command("weights", &["l0=2", "l9=1"]);
    let line = String::from_utf8(unknown.stderr).expect("text");
    assert_eq!(unknown.status.code(), Some(1), "{line}");
    assert!(line.contains("l9") && line.lines().count() == 1, "{line}");
    let status = client.until_up();
    assert_eq!(weight(&status["links"][0]), 3, "all or nothing");
}

/// Makes the first link slow for a moment. The engine must not remember this rate: if it did, the link would never
/// carry its share again while traffic arrives in bursts.
fn clog(host: &Netns, daemon: &Daemon) {
    let tc = |line: &str| run(host, "tc", &line.split(' ').collect::<Vec<_>>());
    let until_sent = |bytes: u64| {
        let sent = |status: &Value| links(&status["links"])[0];
        let begin = sent(&daemon.until_up());
        daemon.until("bytes on the link", |status| sent(status) > begin + bytes);
    };
    until_sent(500_000);
    tc("qdisc add dev l0 root tbf rate 5mbit burst 3000 latency 200ms");
    until_sent(200_000);
    tc("qdisc del dev l0 root");
}

fn weight(link: &Value) -> u64 {
    link["weight"].as_u64().expect("a number")
}

/// Returns the bytes sent on the two links.
fn links(links: &Value) -> [u64; 2] {
    [0, 1].map(|at| links[at]["tx_bytes"].as_u64().expect("a number"))
}

/// Waits until the first link carries `share` of about a megabyte, with a tolerance of a twentieth.
#[track_caller]
fn assert_share(daemon: &Daemon, sent: impl Fn(&Value) -> [u64; 2], share: f64) {
    let mut begin = sent(&daemon.until_up());
    let mut found = Vec::new();
    let settled = within(PATIENCE, || {
        let now = sent(&daemon.status()?);
        let more = [0, 1].map(|at| now[at] - begin[at]);
        let total = more[0] + more[1];
        if total < 1 << 20 {
            return None;
        }
        begin = now;
        let first = more[0] as f64 / total as f64;
        found.push(first);
        ((first / share - 1.0).abs() < 0.05).then_some(())
    });
    let status = daemon.status();
    assert!(
        settled.is_some(),
        "never {share}: {found:?}, and then {status:?}"
    );
}

/// Asserts that the documented fields exist and have plausible values.
#[track_caller]
fn assert_contract(status: &Value, mode: &str) {
    assert_eq!(status["mode"], mode);
    assert_eq!(status["name"], TUNNEL);
    assert_eq!(status["up"], true);
    assert_eq!(status["scheduler"]["policy"], "weighted");
    for key in ["held", "released_late"] {
        assert!(status["resequencer"][key].is_u64(), "{key}: {status}");
    }
    let hold = status["resequencer"]["hold_p95_ms"].as_f64();
    assert!(
        hold.is_some_and(|ms| (0.0..1000.0).contains(&ms)),
        "{status}"
    );
    let drops = status["drops"].as_object().expect("a table");
    assert!(drops.len() > 10 && drops.values().all(Value::is_u64));
    let links = if mode == "client" {
        &status["links"]
    } else {
        assert_eq!(status["clients"][0]["name"], "c2");
        &status["clients"][0]["links"]
    };
    assert_eq!(links.as_array().map(Vec::len), Some(2), "{status}");
    for name in ["l0", "l1"] {
        let holder = serde_json::json!({ "links": links });
        let link = link(&holder, name).expect("the link");
        if mode == "client" {
            assert_eq!(link["device"], name);
        }
        assert_eq!(link["state"], "up", "{status}");
        assert_eq!(link["weight"], 1);
        let number = |key: &str| link[key].as_f64().unwrap_or(-1.0);
        for (key, range) in [
            ("rtt_ms", 0.001..1000.0),
            ("capacity_mbps", 0.1..100_000.0),
            ("loss", 0.0..0.2),
            ("tx_bytes", 500_000.0..1e9),
            ("rx_bytes", 100_000.0..1e9),
        ] {
            assert!(range.contains(&number(key)), "{name} {key}: {status}");
        }
    }
}
