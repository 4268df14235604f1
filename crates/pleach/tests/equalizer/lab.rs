//! Scenarios with equalizers in the lab.

use std::{fs, process::Command};

use serde_json::Value;

use crate::world::World;

const SCENARIO: &str = "
name = \"shares\"
duration = \"3s\"
[[link]]
name = \"l0\"
rate = \"10Mbit\"
delay = \"5ms\"
weight = 3
[[link]]
name = \"l1\"
rate = \"10Mbit\"
delay = \"5ms\"
[[link]]
name = \"l2\"
rate = \"10Mbit\"
delay = \"5ms\"
[[equalizer]]
end = \"client\"
links = [\"l0\", \"l1\"]
[[equalizer]]
end = \"gateway\"
links = [\"l2\"]
[[event]]
at = \"1500ms\"
equalizer = \"client\"
weights = { l0 = 1, l1 = 3 }
[[traffic]]
kind = \"udp\"
name = \"udp\"
direction = \"up\"
rate = \"4Mbit\"
[[traffic]]
kind = \"ping\"
";

#[test]
fn the_lab_spreads_by_weights_and_changes_them_when_told() {
    if World::new().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("shares.toml");
    fs::write(&file, SCENARIO).expect("written");
    let out = dir.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    let output = command
        .args(["lab", "run"])
        .arg(&file)
        .arg("--out")
        .arg(&out);
    let output = output.output().expect("starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let text = fs::read_to_string(out.join("results.json"));
    let text = text.unwrap_or_else(|error| panic!("{error}: {said}"));
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let sent = |link: usize| results["links"][link]["tx_bytes"].as_f64().expect("bytes");
    let share = sent(0) / (sent(0) + sent(1));
    assert!(
        (0.4..=0.6).contains(&share),
        "half 3 to 1, half 1 to 3: {share}"
    );
    let flow = &results["flows"][0];
    assert_eq!(flow["name"], "udp");
    assert!(flow["loss"].as_f64().expect("known") < 0.05, "{flow}");
    assert!(sent(2) > 0.0, "{results}");
}
