//! Replays what is committed under `corpus/`.

use std::{fs, path::Path};

use crate::TARGETS;

/// The committed inputs of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
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
fn every_target_is_built_for_the_fuzzer_and_has_a_corpus_that_passes() {
    assert!(cfg!(debug_assertions), "overflow would pass unseen");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut bytes = 0;
    for (name, run) in TARGETS {
        assert!(
            root.join(format!("fuzz_targets/{name}.rs")).exists(),
            "{name}"
        );
        let inputs = corpus(name);
        assert!(inputs.len() >= 5, "{name} has {} inputs", inputs.len());
        for (file, input) in inputs {
            bytes += input.len();
            let result = std::panic::catch_unwind(|| run(&input));
            assert!(result.is_ok(), "corpus/{name}/{file} fails");
        }
    }
    let built = fs::read_dir(root.join("fuzz_targets")).expect("targets");
    assert_eq!(
        built.count(),
        TARGETS.len(),
        "a target without a body in the list"
    );
    assert!(bytes < 2 << 20, "{bytes} bytes of corpus");
}
