//! Replays the committed corpus of the fuzz targets, `fuzz/corpus/`, with overflow checks.
//!
//! The targets are compiled here and not in their own workspace, so that they use the engine and the proxy that the other
//! tests have built. For the fuzzer `fuzz/Cargo.toml` compiles the same files.

use std::{fs, panic, path::PathBuf};

#[path = "../../../fuzz/src/lib.rs"]
#[expect(
    clippy::unwrap_in_result,
    unreachable_pub,
    reason = "for the fuzzer, the file is a library, in which a failed expectation is a finding"
)]
mod targets;

use targets::TARGETS;

fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz"].iter().collect()
}

/// Returns the committed inputs of a target, sorted by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = root().join("corpus").join(target);
    let files = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{} has no corpus: {error}", directory.display()));
    let mut inputs: Vec<_> = files
        .map(|file| {
            let file = file.expect("a readable directory");
            let bytes = fs::read(file.path()).expect("a readable file");
            (file.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_target_passes_its_corpus() {
    if !cfg!(debug_assertions) {
        panic!("overflow would pass unseen");
    }
    let mut bytes = 0;
    let mut failed = Vec::new();
    for (name, run) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() >= 5, "{name} has {} inputs", inputs.len());
        for (file, input) in inputs {
            bytes += input.len();
            if panic::catch_unwind(|| run(&input)).is_err() {
                failed.push(format!("fuzz/corpus/{name}/{file}"));
            }
        }
    }
    assert!(failed.is_empty(), "these inputs fail: {failed:?}");
    assert!(bytes < 2 << 20, "{bytes} bytes of corpus");
}

#[test]
fn every_target_is_built_for_the_fuzzer() {
    let built = root().join("fuzz_targets");
    for (name, _) in TARGETS {
        assert!(built.join(format!("{name}.rs")).exists(), "{name}");
    }
    let count = fs::read_dir(built).expect("targets").count();
    assert_eq!(count, TARGETS.len(), "a target without a body in the list");
}
