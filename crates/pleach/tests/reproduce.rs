//! A subset of the published figures, simulated, against reviewed verdicts: a change of the engine cannot silently lose one.
//!
//! A line a check: `ok`, `MISSED` or `–` (not measured), then the target and what is checked. If a change is meant, accept it
//! with `PLEACH_BLESS=1 cargo test -p pleach --test reproduce` and say why in the commit.
#![cfg(feature = "reproduce")]

use std::{env, fs, process::Command};

const REVIEWED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reproduce/reviewed.txt");

/// What a machine of two cores does in a minute or two, of three papers.
const SUBSET: &[&str] = &["l3-single-flow", "csn-strategies", "OS"];

#[test]
fn published_figures_come_out_as_reviewed() {
    let out = tempfile::tempdir().expect("a directory");
    let run = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .arg("reproduce")
        .args(SUBSET)
        .args(["--seeds", "1", "--out"])
        .arg(out.path())
        .output()
        .expect("the program runs");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let json = fs::read_to_string(out.path().join("results.json")).expect("results");
    let records: Vec<serde_json::Value> = serde_json::from_str(&json).expect("a list");
    assert!(records.len() >= 25, "{} targets", records.len());
    let mut text = String::new();
    for record in &records {
        let verdict = record["sim_verdict"].as_str().unwrap_or("–");
        text += &format!("{} {verdict}\n", record["id"].as_str().expect("an id"));
        let headline = [record];
        let parts = record["parts"].as_array().expect("a list");
        for check in headline.into_iter().chain(parts) {
            let [low, high] = [0, 1].map(|side| check["accepted"][side].as_f64());
            let word = match check["sim"].as_f64() {
                None => "–",
                Some(value)
                    if low.is_none_or(|low| value >= low)
                        && high.is_none_or(|high| value <= high) =>
                {
                    "ok"
                }
                Some(_) => "MISSED",
            };
            let what = check["what"].as_str().expect("a text");
            text += &format!("    {word:<6} {what}\n");
        }
    }
    if env::var_os("PLEACH_BLESS").is_some() {
        fs::write(REVIEWED, text).expect("writable");
        return;
    }
    let reviewed = fs::read_to_string(REVIEWED).unwrap_or_default();
    let diff: Vec<String> = similar::TextDiff::from_lines(&reviewed, &text)
        .unified_diff()
        .context_radius(1)
        .header("reviewed", "measured")
        .to_string()
        .lines()
        .map(str::to_owned)
        .collect();
    assert!(
        diff.is_empty(),
        "figures come out otherwise than reviewed:\n{}\nif that is meant: PLEACH_BLESS=1 cargo test -p pleach --test reproduce",
        diff.join("\n")
    );
}
