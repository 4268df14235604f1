use super::*;
use crate::link::{LinkState, loss::Loss, trace::Rate};

const PAIR: &str = r#"
name = "pair"
duration = "20s"
baselines = ["mptcp", "single"]

[[shared]]
name = "cell"
rate = "50Mbit"

[[link]]
name = "dsl"
rate = "64Mbit"
delay = "6.5ms"
queue = "130kB"
weight = 64
[link.up]
rate = "10Mbit"

[[link]]
name = "lte"
trace = "traces:lte.down"
shared = "cell"
gilbert = { p = 0.01, r = 0.3 }
cost = "standby"

[[event]]
at = "9s"
link = "dsl"
rate = "1Mbit"
loss = 0.5
[[event]]
at = "8s"
link = "lte"
state = "blackhole"
direction = "up"
[[event]]
at = "10s"
daemon = "gateway"
action = "restart"

[tunnel]
policy = "awi"
k = 3
fixed = "dsl"
outer = "v6"

[[traffic]]
kind = "tcp"
name = "download"
cc = "bbr"
[[traffic]]
kind = "udp"
rate = "2Mbit"
direction = "up"
stop = "5s"

[expect]
"download.goodput_mbps" = { min = 100 }
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let mut read = |path: &Path| match path.to_str() {
        Some("/traces/lte.down") => Ok("1\n2\n".to_owned()),
        Some("dir/rates.csv") => Ok("t_s,a\n0,10\n1,20\n".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    Scenario::parse(
        text,
        &mut Files {
            scenario: Path::new("dir/pair.toml"),
            traces: Some("/traces".into()),
            read: &mut read,
        },
    )
}

/// The error of `PAIR` with `from` replaced by `to`.
fn error(from: &str, to: &str) -> ScenarioError {
    assert!(PAIR.contains(from), "{from}");
    parse(&PAIR.replace(from, to)).expect_err(to)
}

fn line_of(needle: &str) -> usize {
    PAIR.lines()
        .position(|line| line.contains(needle))
        .expect("in the text")
        + 1
}

#[test]
fn reads_what_is_written() {
    let scenario = parse(PAIR).expect("valid");
    let dsl = scenario.link("dsl").expect("there");
    assert_eq!(dsl.down.delay, Duration::from_micros(6_500));
    assert_eq!(dsl.down.queue, Bytes::new(130_000));
    assert!(matches!(dsl.down.rate, Rate::Constant(r) if r == Bitrate::from_mbps(64)));
    assert!(matches!(dsl.up.rate, Rate::Constant(r) if r == Bitrate::from_mbps(10)));
    let lte = scenario.link("lte").expect("there");
    assert!(matches!(lte.down.rate, Rate::Opportunities(_)));
    assert!(matches!(lte.up.loss, Loss::Gilbert(g) if g.loss_bad == 1.0 && g.p == 0.01));
    assert_eq!((lte.cost, lte.shared), (Cost::Standby, Some(0)));
    let first = &scenario.events[0];
    assert_eq!(first.at, Duration::from_secs(8), "sorted by time");
    assert!(matches!(
        &first.action,
        Action::Link { link: 1, directions: Directions::Up, change }
            if change.state == Some(LinkState::Blackhole)
    ));
    let tunnel = scenario.tunnel.expect("there");
    assert_eq!((tunnel.policy.as_str(), tunnel.outer), ("awi", Family::V6));
    assert_eq!(tunnel.policy_keys["k"].as_integer(), Some(3));
    assert_eq!(scenario.traffic[1].stop, Duration::from_secs(5));
    assert!(scenario.expect["download.goodput_mbps"].accept(100.0));
    assert!(!scenario.expect["download.goodput_mbps"].accept(99.0));
}

#[test]
fn reads_rate_tables_beside_the_file() {
    let text = PAIR.replace("rate = \"64Mbit\"", "csv = \"rates.csv\"\ncolumn = \"a\"");
    let scenario = parse(&text).expect("valid");
    assert!(matches!(scenario.links[0].down.rate, Rate::Steps(_)));
}

#[test]
fn mistakes_are_reported_with_line_key_and_remedy() {
    let cases = [
        (
            "delay = \"6.5ms\"",
            "dealy = \"6.5ms\"",
            "dealy",
            "unknown field",
        ),
        (
            "delay = \"6.5ms\"",
            "delay = \"6.5\"",
            "delay",
            "not understood",
        ),
        (
            "rate = \"10Mbit\"",
            "rate = \"10Mb\"",
            "rate",
            "not understood",
        ),
        (
            "shared = \"cell\"",
            "shared = \"cel\"",
            "shared",
            "no [[shared]]",
        ),
        ("k = 3", "kk = 3", "kk", "unknown key"),
        (
            "fixed = \"dsl\"",
            "fixed = \"dls\"",
            "fixed",
            "no such link",
        ),
        (
            "cc = \"bbr\"",
            "profile = \"video\"",
            "profile",
            "means nothing",
        ),
        ("stop = \"5s\"", "stop = \"50s\"", "stop", "no time"),
        ("cost = \"standby\"", "cost = 999", "cost", "invalid value"),
        (
            "trace = \"traces:lte.down\"",
            "trace = \"lte.down\"",
            "trace",
            "cannot read",
        ),
        ("link = \"lte\"", "link = \"umts\"", "link", "no \"umts\""),
        ("loss = 0.5", "loss = 1.5", "loss", "out of range"),
        ("at = \"9s\"", "at = \"90s\"", "at", "after the end"),
        (
            "state = \"blackhole\"",
            "state = \"down\"",
            "direction",
            "both ways",
        ),
    ];
    for (from, to, key, problem) in cases {
        let error = error(from, to);
        assert_eq!(error.key, key, "{error}");
        assert!(error.problem.contains(problem), "{error}");
        assert!(!error.remedy.is_empty());
        assert_eq!(error.file, "dir/pair.toml");
        let line = if key == "direction" {
            line_of("direction = \"up\"")
        } else {
            line_of(from)
        };
        assert_eq!(error.line, line, "{error}");
    }
}

#[test]
fn names_must_differ() {
    let error = error("name = \"lte\"", "name = \"dsl\"");
    assert_eq!(
        (error.key.as_str(), error.line),
        ("name", line_of("\"lte\""))
    );
}

#[test]
fn a_scenario_needs_a_link() {
    let error = parse("name = \"x\"\nduration = \"5s\"\n").expect_err("no link");
    assert_eq!(error.key, "link");
}

#[test]
fn no_text_panics() {
    let mut rng = pleach_core::rng::Rng::new(3);
    for _ in 0..300 {
        let mut bytes = PAIR.as_bytes().to_vec();
        for _ in 0..3 {
            let at = usize::try_from(rng.below(bytes.len() as u64)).expect("small");
            bytes[at] = b"\"[]=.0-\n{}x"[usize::try_from(rng.below(11)).expect("small")];
        }
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }
}
