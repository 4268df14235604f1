//! `pleach lab hostile` and `pleach lab soak`: short runs. A busy machine says nothing about rates, delays and memory
//! over time, so only limits that hold on any machine have a verdict here.
#![cfg(feature = "lab")]

use std::{fs, process::Command};

use pleach_linux::requirement;
use serde_json::Value;

/// Runs `pleach lab` with `options`, and returns its figures. `None` if the machine has no namespaces.
fn run(options: &[&str]) -> Option<Value> {
    if let Err(error) = pleach_lab::netns::Netns::new("probe") {
        requirement::skip(format_args!("{error:#}"));
        return None;
    }
    Some(figures(options))
}

fn figures(options: &[&str]) -> Value {
    let dir = tempfile::tempdir().expect("temporary directory");
    let json = dir.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .arg("lab")
        .args(options)
        .arg("--json")
        .arg(&json)
        .env_remove("RUST_LOG")
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report = fs::read_to_string(json).expect("figures");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let scenario = &report["scenarios"][0];
    let name = scenario["name"].as_str().expect("a name");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains(name), "{table}");
    scenario.clone()
}

fn figure(scenario: &Value, kind: &str, what: &str) -> f64 {
    let figures = scenario[kind].as_array().expect("a list");
    let figure = figures.iter().find(|figure| figure["what"] == what);
    let value = figure.and_then(|figure| figure["value"].as_f64());
    value.unwrap_or_else(|| panic!("no {what} in {scenario:#}"))
}

fn holds(scenario: &Value, what: &str) {
    let limits = scenario["limits"].as_array().expect("a list");
    let limit = limits.iter().find(|limit| limit["what"] == what);
    let limit = limit.unwrap_or_else(|| panic!("no {what} in {scenario:#}"));
    assert_eq!(limit["holds"], true, "{scenario:#}");
}

#[test]
fn the_memory_that_a_hostile_client_takes_is_bounded() {
    let options = ["--only", "client", "--time", "1s", "--attack", "10Mbit"];
    let options = [&["hostile"], &options[..], &["--rate", "1Mbit"]].concat();
    let Some(scenario) = run(&options) else {
        return;
    };
    for mix in ["random frames", "all reported missing", "jumping numbers"] {
        let sent = figure(&scenario, "facts", &format!("{mix}: datagrams"));
        assert!(sent > 10.0, "{mix}: {scenario:#}");
    }
    let alone = figure(&scenario, "facts", "honest client alone: throughput");
    assert!(alone > 0.1, "{scenario:#}");
    holds(&scenario, "memory of one peer's packets");
    holds(&scenario, "growth of the gateway's memory");
}

#[test]
fn clients_change_keys_during_a_flood_of_initiations() {
    let options = ["--only", "initiations", "--time", "1s", "--clients", "4"];
    let flood = ["--rekey", "6s", "--changes", "1", "--flood", "2000"];
    let options = [&["hostile"], &options[..], &flood[..], &["--rate", "1Mbit"]].concat();
    let Some(scenario) = run(&options) else {
        return;
    };
    assert!(figure(&scenario, "facts", "initiations sent") > 100.0);
    holds(&scenario, "changes of keys that some client lacks of 1");
    assert!(figure(&scenario, "facts", "recorded initiations") >= 8.0);
    assert!(figure(&scenario, "facts", "recorded initiations sent") > 1.0);
    holds(&scenario, "associations lost by recorded initiations");
}

#[test]
fn a_victim_of_forged_sources_gets_at_most_three_times_the_bytes() {
    let Some(scenario) = run(&["hostile", "--only", "spoofed", "--spoof", "3s"]) else {
        return;
    };
    // Something was answered, or nothing was shown.
    assert!(figure(&scenario, "facts", "bytes in the name of victims") > 10.0);
    assert!(figure(&scenario, "facts", "bytes to victims") > 0.1);
    holds(
        &scenario,
        "most bytes to a victim for each byte in its name",
    );
}

#[test]
fn strays_are_counted_and_their_cost_is_measured() {
    let options = ["--only", "strays", "--time", "1s", "--crowd", "20"];
    let options = [&["hostile"], &options[..], &["--strays", "5000"]].concat();
    let Some(scenario) = run(&options) else {
        return;
    };
    assert!(figure(&scenario, "facts", "strays sent") > 100.0);
    assert!(figure(&scenario, "facts", "CPU for a stray, 20 clients") > 0.0);
}

#[test]
#[ignore = "its limits of time do not hold on a busy machine: ./dev bench soak, or cargo test -- --ignored"]
fn a_gateway_under_trouble_leaves_nothing_behind() {
    let Some(scenario) = run(&["soak", "--minutes", "0.2", "--clients", "10"]) else {
        return;
    };
    for what in [
        "links of clients that went down",
        "links of the client's daemon that went down",
        "times that it was killed",
        "times that it was ended",
        "samples of the gateway",
    ] {
        assert!(
            figure(&scenario, "facts", what) >= 1.0,
            "{what}: {scenario:#}"
        );
    }
    holds(
        &scenario,
        "lines left in rules, routes, nftables and sysctls",
    );
    holds(&scenario, "clients that are not connected at the end");
}
