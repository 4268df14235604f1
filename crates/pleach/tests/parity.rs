//! Simulator and lab run the same scenario and agree on goodput and loss of datagrams, as far as this can be tested on
//! a busy machine. `./dev bench parity` compares the rest, including delays and TCP.
#![cfg(all(feature = "lab", feature = "sim"))]

use std::sync::Mutex;

use pleach_lab::parity::{Check, Outcome, Parity, Quantity};
use pleach_linux::requirement;
use pleach_sim::scenario::Scenario;

/// Scenario of datagrams. The line is five times as fast as the traffic, and its queue holds two seconds of traffic, so
/// that a stall of the machine causes no loss.
const SCENARIO: &str = r#"
name = "parity"
duration = "4s"
[[link]]
name = "dsl"
rate = "20Mbit"
delay = "10ms"
queue = "1MB"
[link.down]
loss = 0.02
[tunnel]
policy = "weighted"
[[traffic]]
kind = "udp"
name = "stream"
rate = "4Mbit"
size = "1200B"
[[traffic]]
kind = "ping"
name = "ping"
"#;

/// Scenario of one QUIC stream that saturates the line.
const QUIC: &str = r#"
name = "quic"
duration = "3s"
[[link]]
name = "dsl"
rate = "5Mbit"
delay = "10ms"
queue = "50kB"
[tunnel]
policy = "weighted"
[[traffic]]
kind = "quic"
name = "stream"
"#;

/// Lock that prevents runs in the lab from disturbing each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(scenario: &str) -> Option<Vec<Check>> {
    let _guard = ONE_AT_A_TIME.lock();
    let out = tempfile::tempdir().expect("temporary directory");
    let parity = Parity {
        binary: env!("CARGO_BIN_EXE_pleach").into(),
        out: out.path().to_owned(),
        runs: 1,
    };
    let scenario = Scenario::parse_alone("parity.toml", scenario).expect("a valid scenario");
    match parity.run(&scenario).expect("it can be simulated") {
        Outcome::Compared { checks, .. } => Some(checks),
        Outcome::NoLab(why) => {
            requirement::skip(why);
            None
        }
        Outcome::TooBusy(why) => {
            eprintln!("NOT JUDGED: {why}");
            None
        }
    }
}

#[test]
fn both_worlds_carry_and_lose_the_same() {
    let Some(checks) = run(SCENARIO) else { return };
    let find = |name: &str| checks.iter().find(|check| check.name == name);
    let loss = find("stream loss").expect("compared");
    assert_eq!(loss.quantity, Quantity::Loss);
    // Both worlds must measure the line's 2 % loss; otherwise their agreement would mean nothing.
    assert!((0.5..4.0).contains(&loss.sim), "{loss}");
    assert!((0.5..4.0).contains(&loss.lab), "{loss}");
    assert!(loss.holds(), "{loss}");
    let goodput = find("stream goodput").expect("compared");
    assert!((3.7..4.0).contains(&goodput.sim), "{goodput}");
    assert!(goodput.holds(), "{goodput}");
    assert!(
        find("stream p50").is_some() && find("ping p95").is_some(),
        "{checks:?}"
    );
}

#[test]
fn a_quic_stream_gets_through_in_both_worlds() {
    let Some(checks) = run(QUIC) else { return };
    let [goodput] = checks.as_slice() else {
        panic!("{checks:?}");
    };
    assert_eq!(goodput.name, "stream goodput");
    assert!((4.0..5.0).contains(&goodput.sim), "{goodput}");
    // The goodput on a busy machine is not judged, except that it must not exceed the line's rate.
    assert!(goodput.lab > 0.0 && goodput.lab < 5.0, "{goodput}");
}
