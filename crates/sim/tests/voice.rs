//! A call in the simulator.

use pleach_sim::{
    results::{Freeze, Results},
    run::{EngineOnly, Options, RunError, run},
    scenario::Scenario,
};

fn scenario(text: &str) -> Scenario {
    Scenario::parse_alone("test.toml", text).expect("valid scenario")
}

fn simulate(text: &str) -> Result<Results, RunError> {
    let options = Options {
        program: &EngineOnly,
        skip_baselines: false,
        progress: &|_| {},
    };
    run(&scenario(text), &options)
}

const LINE: &str = r#"
    name = "call"
    duration = "10s"
    [[link]]
    name = "near"
    rate = "10Mbit"
    delay = "40ms"
"#;

#[test]
fn an_outage_is_heard_and_rated() {
    let results = simulate(&format!(
        "{LINE}
        [[event]]
        at = \"4.99s\"
        link = \"near\"
        state = \"blackhole\"
        [[event]]
        at = \"5.49s\"
        link = \"near\"
        state = \"up\"
        [[traffic]]
        kind = \"voice\"
        name = \"call\"
        buffer = \"40ms\""
    ));
    let results = results.expect("runs");
    let [call] = &results.voice[..] else {
        panic!("one call: {:?}", results.voice);
    };
    assert_eq!((call.sent_pkts, call.late_pkts), (500, 0));
    // Packets in flight when the line fell silent are lost too: 40 ms, two packets.
    assert!((25..=27).contains(&call.lost_pkts), "{call:?}");
    let [Freeze { start_s, length_s }] = call.dropouts[..] else {
        panic!("one dropout: {:?}", call.dropouts);
    };
    assert!((4.94..=5.0).contains(&start_s) && (0.49..0.56).contains(&length_s));
    let ear = call.mouth_to_ear_ms.expect("something came");
    assert!((100.0..101.0).contains(&ear), "20 + 40 + 40 ms: {ear}");
    assert!(call.mos < 4.0 && call.worst_mos < Some(call.mos));
}

#[test]
fn films_are_for_the_lab() {
    let error = simulate(&format!("{LINE}\n[[traffic]]\nkind = \"video\"")).expect_err("no film");
    assert!(error.to_string().contains("pleach lab run"), "{error}");
}
