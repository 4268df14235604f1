//! `pleach lab crowd`: a small crowd connects, works, moves, restarts, and survives a restart of its gateway.
#![cfg(feature = "lab")]

use std::{
    fs,
    process::{Command, Output},
};

use pleach_linux::requirement;
use serde_json::Value;

fn crowd(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["lab", "crowd"])
        .args(options)
        .env_remove("RUST_LOG")
        .output()
        .expect("the program runs")
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

#[test]
fn fifty_clients_connect_work_move_restart_and_come_back() {
    if let Err(error) = pleach_lab::netns::Netns::new("probe") {
        requirement::skip(format_args!("{error:#}"));
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let json = dir.path().join("crowd.json");
    let json = json.to_str().expect("a path in UTF-8");
    let output = crowd(&[
        "--clients",
        "50",
        "--links",
        "2",
        "--idle",
        "2s",
        "--load",
        "11s",
        "--busy",
        "4",
        "--rate",
        "500kbit",
        "--roaming",
        "10",
        "--restarting",
        "5",
        "--storm",
        "--json",
        json,
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("50 of 50"), "{table}");
    let report = fs::read_to_string(json).expect("figures");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    for pointer in ["/connect/up", "/storm/back/up"] {
        assert!(
            (number(&report, pointer) - 50.0).abs() < 0.5,
            "{pointer} in {report}"
        );
    }
    // The five clients that restart may be about to come back.
    assert!(number(&report, "/load/up") >= 45.0, "{report}");
    // Each of the clients has moved or restarted at least once.
    assert!(number(&report, "/load/moves") >= 10.0, "{report}");
    assert!(number(&report, "/load/restarts") >= 5.0, "{report}");
    // The machine may be busy, so rates and times have no verdict here.
    assert!(number(&report, "/load/jain") > 0.0, "{report}");
    assert!(number(&report, "/load/returned_mbps") > 0.0, "{report}");
    assert!(number(&report, "/storm/back/all_s") > 0.0, "{report}");
    let per_client = number(&report, "/memory/per_client_bytes");
    assert!((1.0..300_000.0).contains(&per_client), "{report}");
}

#[test]
fn options_that_contradict_each_other_are_named() {
    let output = crowd(&["--clients", "3", "--busy", "2", "--roaming", "2"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("more than --clients 3"), "{errors}");
    let output = crowd(&["--clients", "70000"]);
    assert_eq!(output.status.code(), Some(2));
}
