use super::*;
use crate::{
    link::{LinkState, loss::Loss, trace::Rate},
    pattern::Rates,
};
use pleach_core::units::Bitrate;

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

/// Returns the error of `PAIR` after `from` is replaced by `to`.
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
fn quic_takes_no_keys_of_tcp_or_datagrams() {
    let quic = |keys: &str| {
        let item = format!("[[traffic]]\nkind = \"quic\"\ndirection = \"up\"\n{keys}\n[expect]");
        parse(&PAIR.replace("[expect]", &item))
    };
    let scenario = quic("start = \"1s\"\nstop = \"5s\"").expect("valid");
    let traffic = &scenario.traffic[2];
    assert_eq!(
        (traffic.name.as_str(), &traffic.kind),
        ("quic", &TrafficKind::Quic)
    );
    assert_eq!(traffic.direction, Direction::Up);
    for (key, value) in [
        ("cc", "\"cubic\""),
        ("flows", "2"),
        ("opening", "\"tls\""),
        ("rate", "\"1Mbit\""),
        ("size", "\"1000B\""),
        ("interval", "\"1s\""),
        ("profile", "\"video\""),
    ] {
        let error = quic(&format!("{key} = {value}")).expect_err(key);
        assert_eq!(error.key, key, "{error}");
    }
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

/// Returns `PAIR` with `keys` in its UDP traffic instead of its rate.
fn with_udp(keys: &str) -> String {
    PAIR.replace("rate = \"2Mbit\"", keys)
}

fn udp_of(scenario: &Scenario) -> (&Rates, Profile) {
    let TrafficKind::Udp { rates, profile, .. } = &scenario.traffic[1].kind else {
        panic!("the second is UDP");
    };
    (rates, *profile)
}

#[test]
fn reads_rates_over_time_and_pauses() {
    let scenario = parse(&with_udp(
        "rates = [{ at = \"0s\", rate = \"63Mbit\" }, { at = \"5s\", rate = \"105Mbit\" }]\n\
         curve = \"exponential\"\nstep = \"200ms\"\nprofile = \"on-off\"\non = \"1s\"\noff = \"500ms\"",
    ))
    .expect("valid");
    let (rates, profile) = udp_of(&scenario);
    assert_eq!(rates.first(), Bitrate::from_mbps(63));
    let at = |ms| rates.at(Duration::from_millis(ms));
    assert_eq!(at(5_001), Bitrate::from_mbps(105));
    assert_eq!(at(200), at(399), "one step");
    assert!(at(400) > at(399));
    assert_eq!(
        profile,
        Profile::OnOff {
            on: Duration::from_secs(1),
            off: Duration::from_millis(500)
        }
    );
    let scenario = parse(PAIR).expect("valid");
    let constant = Rates::constant(Bitrate::from_mbps(2));
    assert_eq!(udp_of(&scenario), (&constant, Profile::Constant));
}

#[test]
fn reads_cross_traffic_and_recovery() {
    let scenario = parse(&with_udp(
        "rate = \"2Mbit\"\nlink = \"lte\"\ndistance = \"18.5ms\"",
    ));
    let traffic = scenario.expect("valid").traffic;
    assert_eq!((traffic[0].link, traffic[1].link), (None, Some(1)));
    assert_eq!(traffic[0].distance, Duration::ZERO);
    assert_eq!(traffic[1].distance, Duration::from_micros(18_500));
    let recovery = |text: &str| parse(text).expect("valid").recovery;
    assert_eq!(recovery(PAIR), Recovery::Rack);
    let tcp = "[tcp]\nrecovery = \"dupack\"\n[expect]";
    assert_eq!(recovery(&PAIR.replace("[expect]", tcp)), Recovery::Dupack);
}

#[test]
fn reads_how_tcp_bears_disorder() {
    let with = |tcp: &str| parse(&PAIR.replace("[expect]", &format!("[tcp]\n{tcp}\n[expect]")));
    assert_eq!(parse(PAIR).expect("valid").max_reordering, 300);
    let scenario = with("recovery = \"fack\"\nmax_reordering = 127").expect("valid");
    let read = (scenario.recovery, scenario.max_reordering);
    assert_eq!(read, (Recovery::Fack, 127));
    for wrong in ["2", "1001"] {
        let error = with(&format!("max_reordering = {wrong}")).expect_err(wrong);
        assert_eq!(error.key, "max_reordering");
    }
}

const EQUALIZED: &str = r#"
name = "spread"
duration = "20s"
[[link]]
name = "a"
rate = "10Mbit"
[[link]]
name = "b"
[[equalizer]]
end = "client"
links = ["b", "a"]
spread = "flowlet"
gap = "20ms"
[[equalizer]]
end = "gateway"
links = ["b"]
[[event]]
at = "3s"
equalizer = "client"
weights = { a = 3, b = 0 }
[[traffic]]
kind = "tcp"
"#;

#[test]
fn reads_equalizers_and_their_weights() {
    let scenario = parse(EQUALIZED).expect("valid");
    let client = scenario.equalizer(End::Client).expect("one");
    assert_eq!(client.links, [1, 0]);
    let gap = Duration::from_millis(20);
    assert_eq!(client.spread, Spread::Flowlet { gap });
    assert!(!client.auto_weights);
    let gateway = scenario.equalizer(End::Gateway).expect("one");
    assert_eq!(
        (&gateway.links[..], gateway.spread),
        (&[1][..], Spread::Packet)
    );
    let events: Vec<_> = scenario.weight_events().collect();
    // Weights are in the order of the equalizer's links.
    assert_eq!(events, [(Duration::from_secs(3), End::Client, &[0, 3][..])]);
}

#[test]
fn mistakes_in_equalizers_have_line_and_remedy() {
    for (from, to, key) in [
        ("[\"b\", \"a\"]", "[\"b\", \"x\"]", "links"),
        ("[\"b\", \"a\"]", "[\"b\", \"b\"]", "links"),
        ("[\"b\", \"a\"]", "[]", "links"),
        ("\"gateway\"", "\"client\"", "end"),
        ("\"flowlet\"", "\"packet\"", "gap"),
        ("\"flowlet\"", "\"twice\"", "spread"),
        ("\"20ms\"", "\"0ms\"", "gap"),
        ("gap = \"20ms\"", "interval = \"1s\"", "interval"),
        ("gap = \"20ms\"", "weights = \"auto\"", "weights"),
        ("gap = \"20ms\"", "wieghts = \"auto\"", "wieghts"),
        ("{ a = 3, b = 0 }", "{ a = 3 }", "weights"),
        ("{ a = 3, b = 0 }", "{ a = 0, b = 0 }", "weights"),
        ("{ a = 3, b = 0 }", "{ a = 3, b = 1, c = 1 }", "weights"),
        ("equalizer = \"client\"", "link = \"a\"", "weights"),
        (
            "equalizer = \"client\"",
            "link = \"a\"\nequalizer = \"client\"",
            "equalizer",
        ),
    ] {
        assert!(EQUALIZED.contains(from), "{from}");
        let error = parse(&EQUALIZED.replacen(from, to, 1)).expect_err(to);
        assert_eq!(error.key, key, "{to}: {error}");
        assert!(error.line > 1 && !error.remedy.is_empty(), "{error}");
    }
    let without = EQUALIZED.replace("[[equalizer]]\nend = \"client\"\nlinks = [\"b\", \"a\"]\nspread = \"flowlet\"\ngap = \"20ms\"\n", "");
    assert_eq!(parse(&without).expect_err("none").key, "equalizer");
    let both = format!("{EQUALIZED}[tunnel]\n");
    assert_eq!(parse(&both).expect_err("both").key, "equalizer");
}

#[test]
fn mistakes_in_rates_and_cross_traffic_have_line_and_remedy() {
    let rates = |points: &str| format!("rates = [{points}]");
    let two = "{ at = \"0s\", rate = \"1Mbit\" }, { at = \"2s\", rate = \"2Mbit\" }";
    let cases = [
        (rates(""), "rates", "not in order"),
        (
            rates("{ at = \"1s\", rate = \"1Mbit\" }"),
            "rates",
            "not in order",
        ),
        (
            rates(&format!("{two}, {{ at = \"2s\", rate = \"2Mbit\" }}")),
            "rates",
            "not in order",
        ),
        (
            rates(&format!("{two}, {{ at = \"6s\", rate = \"2Mbit\" }}")),
            "rates",
            "after the end",
        ),
        (
            rates("{ at = \"0s\", rate = \"11Gbit\" }"),
            "rates",
            "out of range",
        ),
        (
            rates("{ at = \"0s\", rate = \"0bit\" }"),
            "rates",
            "nothing is sent",
        ),
        (
            format!(
                "{}\ncurve = \"exponential\"",
                rates("{ at = \"0s\", rate = \"0bit\" }")
            ),
            "rates",
            "out of range",
        ),
        (
            format!("{}\nrate = \"1Mbit\"", rates(two)),
            "rates",
            "keep one",
        ),
        (
            format!("{}\ncurve = \"cubic\"", rates(two)),
            "curve",
            "cubic",
        ),
        (
            format!("{}\nstep = \"1s\"", rates(two)),
            "step",
            "this curve",
        ),
        (
            format!("{}\ncurve = \"linear\"\nstep = \"0s\"", rates(two)),
            "step",
            "too short",
        ),
        (
            "rate = \"1Mbit\"\ncurve = \"linear\"".to_owned(),
            "curve",
            "without `rates`",
        ),
        (
            "rate = \"1Mbit\"\nprofile = \"on-off\"\non = \"1s\"".to_owned(),
            "off",
            "missing",
        ),
        (
            "rate = \"1Mbit\"\njitter = \"2s\"".to_owned(),
            "jitter",
            "too long",
        ),
        (
            "rate = \"1Mbit\"\non = \"1s\"".to_owned(),
            "on",
            "this profile",
        ),
        (
            "rate = \"1Mbit\"\nlink = \"umts\"".to_owned(),
            "link",
            "no \"umts\"",
        ),
        (
            "rate = \"1Mbit\"\ndistance = \"11s\"".to_owned(),
            "distance",
            "longer",
        ),
    ];
    for (keys, key, problem) in cases {
        let text = with_udp(&keys);
        let error = parse(&text).expect_err(&keys);
        assert_eq!(error.key, key, "{error}");
        let message = error.to_string();
        assert!(message.contains(problem), "{message}");
        assert!(!error.remedy.is_empty(), "{message}");
        let udp = text.find("kind = \"udp\"").expect("there");
        let first = text[..udp].lines().count();
        assert!(error.line >= first, "{message}: not in the section");
    }
    let cross = error("cc = \"bbr\"", "curve = \"linear\"");
    assert_eq!((cross.key.as_str(), cross.line), ("curve", line_of("cc =")));
    let tcp = "[tcp]\nrecovery = \"frto\"\n[expect]";
    let unknown = error("[expect]", tcp);
    assert_eq!(unknown.key, "recovery", "{unknown}");
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
        ("delay = \"6.5ms\"", "delay = \"6.5\"", "delay", "not valid"),
        ("rate = \"10Mbit\"", "rate = \"10Mb\"", "rate", "not valid"),
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
            "no effect",
        ),
        ("stop = \"5s\"", "stop = \"50s\"", "stop", "no duration"),
        ("cost = \"standby\"", "cost = 999", "cost", "invalid value"),
        (
            "trace = \"traces:lte.down\"",
            "trace = \"lte.down\"",
            "trace",
            "cannot read",
        ),
        ("link = \"lte\"", "link = \"umts\"", "link", "no \"umts\""),
        ("loss = 0.5", "loss = 1.5", "loss", "out of range"),
        ("loss = 0.5", "mtu = \"500B\"", "mtu", "below 1280B"),
        ("at = \"9s\"", "at = \"90s\"", "at", "after the end"),
        (
            "state = \"blackhole\"",
            "state = \"down\"",
            "direction",
            "both directions",
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

#[test]
fn reads_calls_and_films() {
    let with = |keys: &str| {
        let item = format!("[[traffic]]\n{keys}\n[expect]");
        parse(&PAIR.replace("[expect]", &item))
    };
    let kind = |keys: &str| with(keys).expect("valid").traffic[2].kind.clone();
    let ms = Duration::from_millis;
    let voice = TrafficKind::Voice { buffer: ms(60) };
    assert_eq!(kind("kind = \"voice\""), voice);
    let voice = TrafficKind::Voice { buffer: ms(20) };
    assert_eq!(kind("kind = \"voice\"\nbuffer = \"20ms\""), voice);
    let film = VideoSpec {
        rate: Bitrate::from_mbps(8),
        transport: VideoTransport::Rtp,
        deadline: ms(200),
        source: VideoSource::Testsrc2,
    };
    assert_eq!(kind("kind = \"video\""), TrafficKind::Video(film));
    let keys = "kind = \"video\"\nrate = \"4Mbit\"\ntransport = \"srt\"\ndeadline = \"1s\"\n\
                source = \"mandelbrot\"";
    let film = VideoSpec {
        rate: Bitrate::from_mbps(4),
        transport: VideoTransport::Srt,
        deadline: ms(1_000),
        source: VideoSource::Mandelbrot,
    };
    assert_eq!(kind(keys), TrafficKind::Video(film));
    for (keys, key) in [
        ("kind = \"voice\"\nrate = \"1Mbit\"", "rate"),
        ("kind = \"voice\"\nbuffer = \"2s\"", "buffer"),
        ("kind = \"video\"\nbuffer = \"1s\"", "buffer"),
        ("kind = \"video\"\nrate = \"1kbit\"", "rate"),
        ("kind = \"video\"\ndeadline = \"1ms\"", "deadline"),
        (
            "kind = \"video\"\ntransport = \"srt\"\nlink = \"lte\"",
            "link",
        ),
        (
            "kind = \"tcp\"\nname = \"t\"\nsource = \"testsrc2\"",
            "source",
        ),
    ] {
        assert_eq!(with(keys).expect_err(keys).key, key, "{keys}");
    }
}
