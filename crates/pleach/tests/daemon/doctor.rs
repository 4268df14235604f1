//! `pleach doctor`: reports each injected fault with its remedy, and reports nothing on a healthy host.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use pleach_core::{
    endpoint::PROTOCOL_VERSION,
    session::{
        aead::Suite,
        handshake::{Initiator, NO_PSK, StaticKeys},
    },
    wire::handshake::{CAPABILITIES, Hello},
};
use pleach_lab::netns::Netns;
use pleach_linux::{clock, netns::run_in};
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, Keys, TUNNEL},
    traffic::{Target, tcp},
    world::{PATIENCE, World, run, within},
};

/// Runs `pleach doctor`. Returns pairs of code and link.
fn found(mut command: Command, file: &Path) -> Vec<(String, String)> {
    let output = command.args(["doctor", "--json"]).arg(file).output();
    let output = output.expect("starts");
    let report = parse(&output);
    let problems = report["problems"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let problems: Vec<(String, String)> = problems
        .map(|problem| {
            let remedy = problem["remedy"].as_str().expect("a remedy");
            assert!(remedy.len() > 20, "{problem}");
            (text(&problem["code"]), text(&problem["link"]))
        })
        .collect();
    let expected = i32::from(!problems.is_empty());
    assert_eq!(output.status.code(), Some(expected), "{report}");
    problems
}

fn parse(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn pleach(host: &Netns) -> Command {
    host.command(env!("CARGO_BIN_EXE_pleach"))
}

/// Asserts that exactly the problems `expected` are found on `host`: pairs of code and link, the latter empty for a
/// problem of the host.
#[track_caller]
fn assert_found(host: &Netns, file: &Path, expected: &[(&str, &str)]) {
    let found = found(pleach(host), file);
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    assert_eq!(found, expected);
}

fn nft(host: &Netns, rules: &str) {
    run(host, "nft", &[rules]);
}

fn ip(host: &Netns, arguments: &str) {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    run(host, "ip", &arguments);
}

fn bonded(world: &World) -> (Daemon, Daemon) {
    let gateway = Gateway::default().start(world);
    gateway.until_up();
    let client = Client::default().start(world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    (gateway, client)
}

#[test]
fn a_healthy_host_is_told_so_in_a_line() {
    let Some(world) = World::new() else { return };
    let (gateway, mut client) = bonded(&world);
    for (host, daemon) in [(&world.client, &client), (&world.gateway, &gateway)] {
        let output = pleach(host).arg("doctor").arg(daemon.file()).output();
        let output = output.expect("starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "No problem found.\n");
        assert!(output.stderr.is_empty() && output.status.success());
    }
    // The host is also healthy without the daemon. The doctor then performs the handshake itself.
    client.stop();
    assert_found(&world.client, client.file(), &[]);
    // It says so, and that a device is missing.
    ip(&world.client, "link set l1 down");
    ip(&world.client, "link set l1 name gone");
    let mut doctor = pleach(&world.client);
    let output = doctor.arg("doctor").arg(client.file()).output();
    let output = output.expect("starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let file = client.file().display();
    let stopped = format!("The daemon of {file} does not run. To start it: `pleach up {file}`.\n");
    assert!(said.ends_with(&stopped), "{said}");
    assert!(said.contains("no device \"l1\" on this host"), "{said}");
}

#[test]
fn faults_of_the_network_are_named() {
    let Some(world) = World::new() else { return };
    let (_gateway, client) = bonded(&world);
    let (host, file) = (&world.client, client.file());
    let down = |what: &str| {
        client.until(what, |status| crate::process::state(status, "l1") == "down");
    };
    let plant = |rule: &str| {
        nft(&world.gateway, "add table inet fault");
        nft(
            &world.gateway,
            "add chain inet fault in { type filter hook input priority 0; }",
        );
        nft(
            &world.gateway,
            &format!("add rule inet fault in iifname g1 {rule}"),
        );
    };
    let heal = || {
        nft(&world.gateway, "delete table inet fault");
        client.until_links_up(&["l0", "l1"]);
    };

    plant("udp dport 7700 drop");
    down("the port is blocked");
    assert_found(host, file, &[("udp-port-blocked", "l1")]);
    heal();

    plant("meta l4proto udp drop");
    down("UDP is blocked");
    assert_found(host, file, &[("udp-blocked", "l1")]);
    heal();

    plant("ip protocol != 255 drop");
    down("all is blocked");
    assert_found(host, file, &[("no-answer", "l1")]);
    heal();

    ip(&world.gateway, "link set dev g1 mtu 1200");
    assert_found(host, file, &[("mtu-black-hole", "l1")]);
    ip(&world.gateway, "link set dev g1 mtu 1500");
    client.until_links_up(&["l0", "l1"]);

    host.sysctl(&[("ipv4/conf/l1/rp_filter", "1")])
        .expect("set");
    down("the kernel takes answers for forged");
    assert_found(host, file, &[("reverse-path-filter", "l1")]);
    host.sysctl(&[("ipv4/conf/l1/rp_filter", "2")])
        .expect("set");
    client.until_links_up(&["l0", "l1"]);

    ip(host, "tuntap add dev other0 mode tun");
    ip(host, "link set dev other0 up");
    ip(host, "addr add 10.200.0.2/24 dev other0");
    ip(host, "route add default dev other0 table 77");
    assert_found(host, file, &[("other-vpn", "")]);
    ip(host, "link delete dev other0");

    let key = "netfilter/nf_conntrack_udp_timeout_stream";
    let before = fs_in(host, key);
    host.sysctl(&[(key, "30")]).expect("set");
    assert_found(host, file, &[("nat-timeout", "")]);
    host.sysctl(&[(key, before.as_str())]).expect("set");

    // Make both links lead to the same router.
    let shown = run(&world.gateway, "ip", &["-o", "link", "show", "g0"]);
    let mut words = shown.split_whitespace();
    words
        .find(|word| *word == "link/ether")
        .expect("an Ethernet device");
    let hardware = words.next().expect("its address");
    ip(
        &world.gateway,
        &format!("link set dev g1 address {}", hardware),
    );
    ip(host, "neigh flush all");
    assert_found(host, file, &[("same-upstream", "")]);
}

fn fs_in(host: &Netns, key: &str) -> String {
    run(host, "cat", &[&format!("/proc/sys/net/{key}")])
        .trim()
        .to_owned()
}

#[test]
fn faults_of_the_host_are_named() {
    let Some(world) = World::new() else { return };
    let host = &world.client;
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = Client::default().write(&world);
    let file = file.as_path();
    let shell = |script: &str| {
        let mut command = host.command("unshare");
        let script = format!("{script}; exec \"$@\"");
        command.args([
            "-m",
            "sh",
            "-ec",
            &script,
            "sh",
            env!("CARGO_BIN_EXE_pleach"),
        ]);
        command
    };
    assert_eq!(
        found(shell("mount -t tmpfs none /dev/net"), file),
        [("tun".to_owned(), String::new())]
    );
    let mut incapable = host.command("setpriv");
    incapable.args(["--bounding-set=-net_admin", env!("CARGO_BIN_EXE_pleach")]);
    let codes = found(incapable, file);
    assert!(
        codes.contains(&("capability".to_owned(), String::new())),
        "{codes:?}"
    );

    let now = UNIX_EPOCH + Duration::from_nanos(clock::unix_nanos());
    let ahead = now + Duration::from_secs(86_400);
    let opened = File::options().write(true).open(file).expect("there");
    opened.set_modified(ahead).expect("set");
    assert_found(host, file, &[("clock", "")]);
    opened.set_modified(now).expect("set");

    let text = fs::read_to_string(file).expect("readable");
    let private = text
        .lines()
        .find(|line| line.starts_with("private_key"))
        .expect("there");
    let key = world.dir.path().join("doctor.key");
    let (_, value) = private.split_once(" = ").expect("a value");
    fs::write(&key, value.trim_matches('"')).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("set");
    fs::write(
        file,
        text.replace(private, "private_key_file = \"doctor.key\""),
    )
    .expect("written");
    assert_found(host, file, &[("key-file-open", "")]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");
    assert_found(host, file, &[]);

    fs::write(file, text.replace("[gateway]", "[gatewya]")).expect("written");
    assert_found(host, file, &[("configuration", "")]);
    fs::write(file, &text).expect("written");

    ip(host, "rule add to 203.0.113.5 priority 100 prohibit");
    assert_found(
        host,
        file,
        &[("policy-route", "l0"), ("policy-route", "l1")],
    );
    ip(host, "rule delete to 203.0.113.5 priority 100 prohibit");

    ip(host, "link set dev l0 down");
    ip(host, "link set dev l1 down");
    assert_found(host, file, &[("no-uplink", "")]);
}

#[test]
fn faults_of_the_gateway_are_named() {
    let Some(world) = World::new() else { return };
    let (gateway, mut client) = bonded(&world);
    let (host, file) = (&world.gateway, gateway.file());

    nft(host, "add table inet fault");
    nft(
        host,
        "add chain inet fault forward { type filter hook forward priority 0; policy drop; }",
    );
    assert_found(host, file, &[("firewall-forward", "")]);
    nft(
        host,
        &format!("add rule inet fault forward iifname {TUNNEL} accept"),
    );
    assert_found(host, file, &[]);
    nft(
        host,
        "add chain inet fault in { type filter hook input priority 0; policy drop; }",
    );
    assert_found(host, file, &[("firewall-input", "")]);
    nft(host, "delete table inet fault");

    host.sysctl(&[("ipv4/ip_forward", "0")]).expect("set");
    assert_found(host, file, &[("forwarding-off", "")]);
    host.sysctl(&[("ipv4/ip_forward", "1")]).expect("set");

    let text = fs::read_to_string(file).expect("readable");
    let twin = world.dir.path().join("twin.toml");
    let control = gateway.control.display().to_string();
    let other = text
        .replace(&control, &format!("{control}.2"))
        .replace(TUNNEL, "plD9");
    fs::write(&twin, other).expect("written");
    fs::set_permissions(&twin, fs::Permissions::from_mode(0o600)).expect("set");
    assert_found(host, &twin, &[("port-taken", "")]);

    // A client with an unknown key tries again and again.
    client.stop();
    let unknown = Client {
        keys: Keys::client(4),
        ..Client::default()
    };
    let mut unknown = unknown.start(&world, &world.client);
    gateway.until("its handshakes come", |status| {
        status["drops"]["handshake_invalid"].as_u64() > Some(0)
    });
    assert_found(host, file, &[("wrong-key", "")]);
    assert_found(&world.client, unknown.file(), &[("wrong-key", "")]);
    unknown.stop();
}

#[test]
fn another_version_of_the_protocol_is_named() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let datagram = initiation_of_version(PROTOCOL_VERSION + 1);
    let sent = run_in(&world.client.path(), move || {
        let socket = std::net::UdpSocket::bind("10.1.0.2:0")?;
        socket.send_to(&datagram, crate::process::OUTER_V4)
    });
    sent.expect("the namespace").expect("sent");
    gateway.until("the version is seen", |status| {
        status["incompatible"]["c2"] == 2
    });
    assert_found(&world.gateway, gateway.file(), &[("version", "")]);
}

fn initiation_of_version(protocol_version: u16) -> Vec<u8> {
    let key = |text: &str| -> [u8; 32] {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .expect("base64");
        bytes.try_into().expect("a key")
    };
    let keys = StaticKeys::from_private(key(&Keys::client(2).private));
    let hello = Hello {
        protocol_version,
        capabilities: CAPABILITIES,
        suites: Suite::offer(Suite::preferred(false)),
        association: 1,
        time: Some(clock::unix_nanos()),
    };
    let gateway = key(&Keys::gateway().public);
    let (_, datagram) = Initiator::new(&keys, &gateway, &NO_PSK, 1, hello, [7; 32]).expect("made");
    datagram
}

#[test]
fn faults_between_the_ends_are_named() {
    let Some(world) = World::new() else { return };
    let psk = &Keys::client(3).private;
    let gateway = Gateway {
        clients: vec![(2, Keys::client(2), Some(psk))],
        ..Gateway::default()
    };
    gateway.start(&world).until_up();
    let gateway = gateway.start(&world);
    gateway.until_up();
    let file = Client::default().write(&world);
    assert_found(&world.client, &file, &[("wrong-psk", "")]);
    let elsewhere = Client {
        endpoint: "203.0.113.5:7799",
        preshared_key: Some(psk),
        ..Client::default()
    };
    assert_found(
        &world.client,
        &elsewhere.write(&world),
        &[("nobody-listens", "")],
    );
    let right = Client {
        preshared_key: Some(psk),
        ..Client::default()
    };
    assert_found(&world.client, &right.write(&world), &[]);
}

#[test]
fn a_policer_is_named_under_load() {
    let Some(world) = World::new() else { return };
    let (_gateway, client) = bonded(&world);
    let server = Target::new(&world.server, "10.99.0.2");
    let is_over = AtomicBool::new(false);
    let finds = |code: &str| {
        within(PATIENCE, || {
            let found = found(pleach(&world.client), client.file());
            found.iter().any(|(found, _)| found == code).then_some(())
        })
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Losses under the policer do not matter to this test.
                let _ = tcp(&world.client, &server, 30_000_000);
            }
        });
        nft(&world.gateway, "add table inet fault");
        nft(
            &world.gateway,
            "add chain inet fault in { type filter hook input priority 0; }",
        );
        let limit = "limit rate over 200 kbytes/second burst 20 kbytes drop";
        for device in ["g0", "g1"] {
            nft(
                &world.gateway,
                &format!("add rule inet fault in iifname {device} udp dport 7700 {limit}"),
            );
        }
        let throttled = finds("udp-throttled");
        is_over.store(true, Ordering::Relaxed);
        nft(&world.gateway, "delete table inet fault");
        assert!(throttled.is_some(), "the policer is found");
    });
}

#[test]
fn a_bundle_says_what_is_needed_and_no_key() {
    let Some(world) = World::new() else { return };
    let (_gateway, client) = bonded(&world);
    let bundle = world.dir.path().join("report.tar");
    let mut command = pleach(&world.client);
    command
        .arg("doctor")
        .arg(client.file())
        .arg("--bundle")
        .arg(&bundle);
    assert!(command.output().expect("starts").status.success());
    let mode = fs::metadata(&bundle).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = String::from_utf8_lossy(&fs::read(&bundle).expect("readable")).into_owned();
    for part in [
        "doctor.json",
        "status.json",
        "configuration.toml",
        "203.0.113.5:7700",
        "l1",
    ] {
        assert!(text.contains(part), "{part}");
    }
    let keys = Keys::client(2);
    for secret in [&keys.private, &keys.public, &Keys::gateway().public] {
        assert!(!text.contains(secret.as_str()) && !text.contains(&secret[..43]));
    }
}
