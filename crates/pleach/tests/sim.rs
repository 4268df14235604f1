//! Tests `pleach sim run`: it reads a scenario file, and writes results and a report.
#![cfg(feature = "sim")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use pleach_sim::results::{Results, World};

const SCENARIO: &str = r#"
name = "short"
duration = "1s"
seed = 3
[[link]]
name = "dsl"
rate = "20Mbit"
delay = "7ms"
[[link]]
name = "lte"
rate = "10Mbit"
delay = "18ms"
[tunnel]
policy = "earliest-arrival"
[[traffic]]
kind = "tcp"
name = "download"
[[traffic]]
kind = "ping"
name = "ping"
"#;

fn simulate(scenario: &str, dir: &Path, more: &[&str]) -> Output {
    let path = dir.join("scenario.toml");
    fs::write(&path, scenario).expect("write");
    Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["sim", "run"])
        .arg(path)
        .arg("--out")
        .arg(dir.join("out"))
        .args(more)
        .env_remove("RUST_LOG")
        .output()
        .expect("the program runs")
}

#[test]
fn a_scenario_becomes_results_and_a_report() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut texts = Vec::new();
    for more in [&[][..], &[], &["--seed", "4"]] {
        let output = simulate(SCENARIO, dir.path(), more);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("simulated"));
        let text = fs::read_to_string(dir.path().join("out/results.json")).expect("results");
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1], "the same seed");
    let results = Results::from_json(&texts[0]).expect("readable");
    assert_eq!((results.world, results.seed), (World::Sim, 3));
    assert!(results.flows[0].goodput_mbps > 5.0);
    assert_eq!(results.lateness_us, None);
    // Ten samples of each end, with the fields of `status --json`.
    assert_eq!(results.status.len(), 20);
    let status = &results.status[19].status;
    assert_eq!(status["mode"], "gateway");
    assert_eq!(status["scheduler"]["policy"], "earliest-arrival");
    assert_eq!(status["clients"][0]["links"][1]["name"], "lte");
    assert_eq!(Results::from_json(&texts[2]).expect("readable").seed, 4);
    let report = fs::read_to_string(dir.path().join("out/report.html")).expect("a report");
    assert!(report.contains("sim run"));
}

#[test]
fn what_cannot_be_simulated_is_one_line() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let unknown = SCENARIO.replace("earliest-arrival", "fastest");
    let foreign = SCENARIO.replace("-arrival\"", "-arrival\"\nlink = \"dsl\"");
    for (scenario, word) in [(&unknown, "policy"), (&foreign, "[scheduler] link")] {
        let output = simulate(scenario, dir.path(), &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(word), "{errors}");
    }
}
