//! Every scenario of the repository runs in the simulator as it does in the lab.

use std::{fs, path::Path, time::Duration};

use pleach_sim::{
    run::EngineOnly,
    scenario::{Files, Scenario},
    sweep::Sweep,
};

use crate::main_phase;

#[test]
fn scenario_files_run() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut count = 0;
    let entries = ["", "kernel", "parity"]
        .into_iter()
        .flat_map(|below| fs::read_dir(dir.join(below)).expect("the scenarios"));
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        // Films are for the lab only. Recordings may be missing.
        if text.contains("kind = \"video\"") {
            continue;
        }
        let mut files = Files {
            scenario: &path,
            traces: None,
            read: &mut |path: &Path| fs::read_to_string(path),
        };
        let mut scenario = Scenario::parse(&text, &mut files).expect("a valid scenario");
        scenario.duration = Duration::from_millis(700);
        for traffic in &mut scenario.traffic {
            traffic.start = traffic.start.min(Duration::from_millis(100));
            traffic.stop = scenario.duration;
        }
        let report = main_phase(&scenario).report;
        for (traffic, flow) in scenario.traffic.iter().zip(&report.flows) {
            let flow = flow.as_ref().expect("all run in the main phase");
            let is_alive = flow.total_bytes() > 0 || flow.received > 0;
            assert!(is_alive, "{} of {}", traffic.name, path.display());
        }
        count += 1;
    }
    assert!(count >= 23);
}

#[test]
fn sweep_files_are_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sweeps");
    let mut count = 0;
    for entry in fs::read_dir(dir).expect("the sweeps") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let mut files = Files {
            scenario: &path,
            traces: None,
            read: &mut |path: &Path| fs::read_to_string(path),
        };
        let sweep = Sweep::parse(&text, &mut files).expect("a valid sweep");
        for number in 0..sweep.cases() {
            let case = sweep.case(number).expect("a valid case");
            sweep
                .check_case(&case, &EngineOnly)
                .expect("a known policy");
        }
        count += 1;
    }
    assert!(count >= 2);
}
