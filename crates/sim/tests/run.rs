//! Whole scenarios on virtual clocks, with measurements that are compared with values computed by hand where possible.

#[path = "run/aims.rs"]
mod aims;
#[path = "run/equalizer.rs"]
mod equalizer;
#[path = "run/files.rs"]
mod files;
#[path = "run/own.rs"]
mod own;
#[path = "run/plain.rs"]
mod plain;
#[path = "run/tunnel.rs"]
mod tunnel;

use pleach_sim::{
    phases::setups,
    results::Results,
    run::{EngineOnly, Options, PhaseOutcome, run, run_phase},
    scenario::Scenario,
};

/// Two lines of different delay.
const PAIR: &str = r#"
name = "test"
duration = "1s"
[[link]]
name = "dsl"
rate = "20Mbit"
delay = "7ms"
queue = "60kB"
weight = 20
[[link]]
name = "lte"
rate = "10Mbit"
delay = "18ms"
queue = "60kB"
weight = 10
"#;

fn scenario(text: &str) -> Scenario {
    Scenario::parse_alone("test.toml", text).expect("a valid scenario")
}

/// Returns [`PAIR`] with the policy, followed by `rest`.
fn pair(policy: &str, rest: &str) -> Scenario {
    pair_for("1s", policy, rest)
}

fn pair_for(duration: &str, policy: &str, rest: &str) -> Scenario {
    let head = PAIR.replace("1s", duration);
    scenario(&format!("{head}[tunnel]\npolicy = \"{policy}\"\n{rest}"))
}

fn results(scenario: &Scenario) -> Results {
    let options = Options {
        program: &EngineOnly,
        skip_baselines: false,
        progress: &|_| {},
    };
    run(scenario, &options).expect("a scenario that can be simulated")
}

/// Runs the first phase.
fn main_phase(scenario: &Scenario) -> PhaseOutcome {
    let setups = setups(scenario, true);
    run_phase(scenario, &setups[0], &EngineOnly).expect("a scenario that can be simulated")
}

/// Returns UDP traffic towards the client.
fn udp(rate: &str) -> String {
    format!("[[traffic]]\nkind = \"udp\"\nname = \"udp\"\nrate = \"{rate}\"\nsize = \"1200B\"\n")
}

#[track_caller]
fn assert_near(value: f64, expected: f64, tolerance: f64) {
    assert!(
        (value - expected).abs() <= tolerance,
        "{value} is not {expected} ± {tolerance}"
    );
}
