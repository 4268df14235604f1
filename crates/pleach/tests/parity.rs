//! The simulator and the lab run one scenario and agree, as far as a busy machine can be asked: goodput and losses of
//! datagrams. `./dev bench parity` does the rest, delays and TCP included.
#![cfg(all(feature = "lab", feature = "sim"))]

use std::sync::Mutex;

use pleach_lab::parity::{Check, Outcome, Parity, Quantity};
use pleach_linux::requirement;
use pleach_sim::scenario::Scenario;

/// The line is five times as fast as the traffic and its queue holds two seconds of it, so that a stall of the machine
/// loses nothing.
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

/// A line that one QUIC stream fills.
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

/// Runs in the lab do not disturb each other.
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
    // Both saw the line's 2 %, so that agreeing means something.
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
    // How fast it is on a busy machine is not judged, only that it is no faster than the line.
    assert!(goodput.lab > 0.0 && goodput.lab < 5.0, "{goodput}");
}
