//! A tunnel's changes to the host are undone exactly, also after it was killed.

use std::{
    collections::BTreeSet,
    net::UdpSocket as StdSocket,
    path::Path,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pleach_core::packet::{Ecn, PacketView, Pool};
use pleach_linux::{
    clock,
    poll::{Poller, Token},
    routes::{Plan, Selector, Setup, recover},
    tun::Tun,
    udp::{Transmit, UdpOptions, UdpSocket},
};

use crate::namespace::{Namespace, until};

/// Returns the whole configuration that must be the same before and after.
fn configuration(namespace: &Namespace) -> Vec<String> {
    let mut all: Vec<String> = [
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "ip -6 route show table all",
        "ip -brief address",
        "nft list ruleset",
        "cat /proc/sys/net/ipv4/ip_forward",
        "cat /proc/sys/net/ipv6/conf/all/forwarding",
    ]
    .map(|command| namespace.command(command))
    .into();
    let conf = "/proc/sys/net/ipv4/conf/lan/rp_filter /proc/sys/net/ipv6/conf/lan/accept_ra";
    all.push(namespace.command(&format!("cat {conf}")));
    all
}

fn plan() -> Plan {
    let networks = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().expect("literal"))
            .collect()
    };
    Plan {
        addresses: networks(&["10.77.0.1/24", "fd77::1/64"]),
        routes: networks(&["0.0.0.0/0", "::/0", "10.9.0.0/16"]),
        mtu: 1400,
        forward: true,
        masquerade: networks(&["10.77.0.0/24"]),
        isolate: true,
        kill_switch: false,
        past: Vec::new(),
    }
}

/// Creates a namespace with a link `lan`, a default route, and a strict reverse path filter.
fn host() -> Option<(Namespace, Namespace)> {
    let (host, peer) = (Namespace::new()?, Namespace::new()?);
    host.connect("lan", &peer, "wan");
    host.ip("address add 192.0.2.1/24 dev lan");
    host.ip("-6 address add 2001:db8::1/64 dev lan nodad");
    host.ip("route add default via 192.0.2.2");
    host.ip("-6 route add default via 2001:db8::2");
    host.command("sysctl -qw net.ipv4.conf.lan.rp_filter=1");
    peer.ip("address add 192.0.2.2/24 dev wan");
    Some((host, peer))
}

fn apply(base: &Path, name: &str) -> (Setup, Tun) {
    apply_plan(base, name, &plan())
}

fn apply_plan(base: &Path, name: &str, plan: &Plan) -> (Setup, Tun) {
    let mut setup = Setup::begin(base, name).expect("begins");
    let tun = Tun::create(name, 1400).expect("root makes TUNs");
    setup.apply(plan).expect("applies");
    setup.loosen_reverse_path("lan").expect("sets");
    (setup, tun)
}

#[test]
fn packets_past_the_tunnel_use_the_main_table_and_nothing_of_it_is_left() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let net = |text: &str| Some(text.parse().expect("literal"));
    let past = vec![
        Selector {
            destination: net("198.51.100.0/24"),
            ..Selector::default()
        },
        Selector {
            destination: net("2001:db8:5::/48"),
            protocol: Some(6),
            ports: Some((25, 26)),
        },
        Selector {
            protocol: Some(17),
            ports: Some((123, 123)),
            ..Selector::default()
        },
    ];
    let with_past = Plan { past, ..plan() };
    let (mut setup, tun) = host.run(|| apply_plan(base.path(), "plLtun", &with_past));
    let device = |route: &str| {
        let found = host.ip(&format!("route get {route}"));
        let mut words = found.split_whitespace();
        words
            .find(|word| *word == "dev")
            .and_then(|_| words.next())
            .map(str::to_owned)
    };
    let uses = |route: &str, expected: &str| {
        assert_eq!(device(route).as_deref(), Some(expected), "{route}");
    };
    uses("198.51.100.1", "lan");
    uses("198.51.101.1", "plLtun");
    uses("2001:db8:5::1 ipproto tcp dport 25", "lan");
    uses("2001:db8:5::1 ipproto tcp dport 27", "plLtun");
    uses("2001:db8:5::1 ipproto udp dport 25", "plLtun");
    uses("203.0.113.1 ipproto udp dport 123", "lan");
    uses("2001:db8:6::1 ipproto udp dport 123", "lan");
    uses("203.0.113.1 ipproto udp dport 124", "plLtun");
    host.run(|| setup.change_routes(&with_past, &plan()).expect("changes"));
    uses("198.51.100.1", "plLtun");
    host.run(|| setup.change_routes(&plan(), &with_past).expect("changes"));
    uses("198.51.100.1", "lan");
    host.run(|| setup.undo().expect("undoes"));
    drop(tun);
    host.until_gone("plLtun");
    settle(&host);
    assert_eq!(configuration(&host), before);
}

#[test]
fn apply_then_undo_restores_everything() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let (setup, tun) = host.run(|| apply(base.path(), "plLtun"));
    let during = configuration(&host);
    for (before, during) in before.iter().zip(&during) {
        assert_ne!(before, during);
    }
    assert!(during[5].contains("masquerade"), "{}", during[5]);
    assert!(host.ip("route get 198.51.100.1").contains("dev plLtun"));
    assert!(host.ip("route get 10.9.1.1").contains("dev plLtun"));
    assert!(host.ip("route get 192.0.2.2").contains("dev lan"));
    let marked = format!("route get 198.51.100.1 mark {}", setup.fwmark());
    assert!(host.ip(&marked).contains("dev lan"));
    host.run(|| setup.undo().expect("undoes"));
    drop(tun);
    host.until_gone("plLtun");
    settle(&host);
    assert_eq!(configuration(&host), before);
}

#[test]
fn routes_to_single_clients_precede_those_of_routing_daemons_and_are_undone() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let (mut setup, tun) = host.run(|| apply(base.path(), "plLtun"));
    // A routing daemon says that the client is elsewhere.
    host.ip("route add 10.9.0.7/32 via 192.0.2.2 proto bird metric 32");
    let nets = ["10.9.0.7/32", "fd79::7/128"].map(|net| net.parse().expect("literal"));
    setup.add_host_routes(&nets).expect("added");
    setup.add_host_routes(&nets).expect("again");
    let v4 = host.ip("-4 route show proto 112");
    assert!(
        v4.starts_with("10.9.0.7 dev plLtun") && v4.contains("metric 16"),
        "{v4}"
    );
    let v6 = host.ip("-6 route show proto 112");
    assert!(v6.starts_with("fd79::7 dev plLtun metric 16"), "{v6}");
    assert!(host.ip("route get 10.9.0.7").contains("dev plLtun"));
    setup.delete_host_routes(&nets[..1]).expect("removed");
    setup.delete_host_routes(&nets[..1]).expect("again");
    assert!(host.ip("route get 10.9.0.7").contains("dev lan"));
    host.ip("route del 10.9.0.7/32 via 192.0.2.2 proto bird metric 32");
    host.run(|| setup.undo().expect("undoes"));
    assert_eq!(host.ip("-6 route show proto 112"), "");
    drop(tun);
    host.until_gone("plLtun");
    settle(&host);
    assert_eq!(configuration(&host), before);
}

#[test]
fn a_second_tunnel_keeps_what_it_needs() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let (first, first_tun) = host.run(|| apply(base.path(), "plLone"));
    let again = host
        .run(|| Setup::begin(base.path(), "plLone"))
        .expect_err("runs already");
    assert!(again.to_string().contains("runs already"), "{again}");
    assert!(!host.run(|| recover(base.path(), "plLone")).expect("looks"));
    let (second, second_tun) = host.run(|| apply(base.path(), "plLtwo"));
    assert_ne!(first.fwmark(), second.fwmark());
    host.run(|| first.undo().expect("undoes"));
    drop(first_tun);
    host.until_gone("plLone");
    assert!(host.ip("route get 198.51.100.1").contains("dev plLtwo"));
    assert_eq!(host.command("cat /proc/sys/net/ipv4/ip_forward"), "1\n");
    assert!(host.command("nft list ruleset").contains("pleach_plLtwo"));
    host.run(|| drop(second));
    drop(second_tun);
    host.until_gone("plLtwo");
    settle(&host);
    assert_eq!(configuration(&host), before);
}

#[test]
fn what_a_killed_process_left_is_found_and_cleared() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let (is_whole, _) = in_a_process(&host, "routes::apply_and_die", DIE_IN, base.path());
    assert!(!is_whole);
    host.until_gone("plLtun");
    settle(&host);
    assert_ne!(configuration(&host), before);
    recovered(&host, base.path());
    assert_eq!(configuration(&host), before);
}

#[test]
fn rules_are_cleared_even_if_the_state_file_is_lost() {
    let Some((host, _peer)) = host() else { return };
    let (base, other) = (
        tempfile::tempdir().expect("tempdir"),
        tempfile::tempdir().expect("tempdir"),
    );
    settle(&host);
    let rules = host.ip("rule");
    let (setup, tun) = host.run(|| apply(base.path(), "plLtun"));
    // The tunnel is running although the other directory does not know it, so its slot is not cleared.
    let stranger = host.run(|| Setup::begin(other.path(), "plLtun").expect("takes another slot"));
    assert_ne!(stranger.fwmark(), setup.fwmark());
    host.run(|| stranger.undo().expect("undoes"));
    assert_ne!(host.ip("rule"), rules);
    drop(tun);
    host.until_gone("plLtun");
    recovered(&host, other.path());
    assert_eq!(host.ip("rule"), rules);
    host.run(|| drop(setup));
}

#[test]
fn own_datagrams_leave_by_the_link_and_others_enter_the_tunnel() {
    let Some((host, peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    let (setup, mut tun) = host.run(|| apply(base.path(), "plLtun"));
    // The gateway has an address that only the default route reaches.
    peer.ip("address add 203.0.113.5/32 dev lo");
    let gateway = peer.run(|| StdSocket::bind("203.0.113.5:7700").expect("binds"));
    gateway
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("sets");
    let socket = host.run(|| {
        let mut options = UdpOptions::new("0.0.0.0:0".parse().expect("literal"));
        options.device = Some("lan".into());
        options.fwmark = Some(setup.fwmark());
        UdpSocket::bind(&options).expect("root may bind to devices")
    });
    let transmit = Transmit {
        destination: "203.0.113.5:7700".parse().expect("literal"),
        src_ip: None,
        ecn: Ecn::Capable,
        segment_size: None,
        contents: b"question",
    };
    socket.send(&transmit).expect("sends");
    let mut buffer = [0; 100];
    let (len, client) = gateway.recv_from(&mut buffer).expect("arrives by the link");
    assert_eq!(&buffer[..len], b"question");
    // The answer passes the reverse path filter.
    gateway.send_to(b"answer", client).expect("sends");
    let poller = Poller::new().expect("epoll");
    poller.add(&socket, Token(0)).expect("adds");
    let (deadline, mut events) = (clock::now() + Duration::from_secs(5), Vec::new());
    poller.wait(Some(deadline), &mut events).expect("waits");
    assert_eq!(events.len(), 1);

    host.run(|| {
        let stranger = StdSocket::bind("0.0.0.0:0").expect("binds");
        stranger.send_to(b"inner", "203.0.113.5:9").expect("routed");
    });
    let (mut pool, mut packets) = (Pool::new(8, 1500), Vec::new());
    let goes_to_the_gateway = |bytes: &[u8]| {
        let view = PacketView::parse(bytes).expect("the kernel sends packets");
        view.destination().to_string() == "203.0.113.5" && bytes.ends_with(b"inner")
    };
    // IPv6 multicast packets may arrive before it.
    while tun.read_batch(&mut pool, &mut packets).is_ok() {}
    assert!(
        packets
            .iter()
            .any(|packet| goes_to_the_gateway(packet.as_slice()))
    );
}

#[test]
fn a_kill_switch_keeps_the_lan_reachable_if_the_next_start_fails() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    settle(&host);
    let before = configuration(&host);
    let (is_whole, _) = in_a_process(&host, "routes::close_and_die", CLOSE_IN, base.path());
    assert!(!is_whole);
    host.until_gone("plLtun");
    let is_held = || {
        assert!(host.ip("route get 192.0.2.2").contains("dev lan"));
        assert!(host.ip("-6 route get 2001:db8::2").contains("dev lan"));
        assert!(
            !host.try_ip("route get 198.51.100.1"),
            "{}",
            host.ip("rule")
        );
        assert!(!host.try_ip("route get 10.9.1.1"));
    };
    is_held();
    // These starts fail before and after the device exists.
    let begun = host.run(|| Setup::begin(base.path(), "plLtun").expect("begins"));
    is_held();
    host.run(|| drop(begun));
    is_held();
    let mut begun = host.run(|| Setup::begin(base.path(), "plLtun").expect("begins"));
    let error = host.run(|| begun.apply(&closed_plan()));
    assert!(error.is_err(), "there is no device");
    is_held();
    host.run(|| drop(begun));
    is_held();
    // This start succeeds.
    let (setup, tun) = host.run(|| apply_plan(base.path(), "plLtun", &closed_plan()));
    assert!(host.ip("route get 198.51.100.1").contains("dev plLtun"));
    assert!(host.ip("route get 192.0.2.2").contains("dev lan"));
    host.run(|| setup.undo().expect("undoes"));
    drop(tun);
    host.until_gone("plLtun");
    settle(&host);
    assert_eq!(configuration(&host), before);
}

#[test]
fn routes_change_without_a_moment_on_a_link() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    let (mut setup, _tun) = host.run(|| apply(base.path(), "plLtun"));
    let one = plan();
    let mut other = plan();
    other.routes = ["0.0.0.0/0", "10.8.0.0/14", "fd00::/8", "::/0"]
        .map(|text| text.parse().expect("literal"))
        .into();
    let (is_over, sources) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            host.run(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let socket = StdSocket::bind("0.0.0.0:0").expect("binds");
                    let source = socket
                        .connect("198.51.100.1:9")
                        .and_then(|()| socket.local_addr())
                        .map_or_else(|error| error.to_string(), |own| own.ip().to_string());
                    sources.lock().expect("no panic").insert(source);
                }
            });
        });
        host.run(|| {
            for _ in 0..50 {
                setup.change_routes(&one, &other).expect("changes");
                setup.change_routes(&other, &one).expect("changes back");
            }
        });
        is_over.store(true, Ordering::Relaxed);
    });
    let sources = sources.into_inner().expect("no panic");
    assert_eq!(sources, BTreeSet::from(["10.77.0.1".to_owned()]));
    assert!(host.ip("route get 10.9.1.1").contains("dev plLtun"));
    host.run(|| setup.undo().expect("undoes"));
}

#[test]
fn a_change_of_routes_that_fails_changes_nothing() {
    let Some((host, _peer)) = host() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    let (is_whole, output) = in_a_process(&host, "routes::change_in_vain", CHANGE_IN, base.path());
    assert!(is_whole, "{output}");
}

/// Helper process, not a test by itself: changes routes with an `nft` that can be made to fail.
#[test]
fn change_in_vain() {
    let Some(base) = std::env::var_os(CHANGE_IN) else {
        return;
    };
    let base = Path::new(&base);
    let command = |line: &str| {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a program");
        let output = Command::new(program).args(words).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let picture = || {
        [
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "nft list ruleset",
        ]
        .map(command)
    };
    let (mut setup, _tun) = apply(base, "plLtun");
    let before = picture();
    let mut after = plan();
    after.routes = vec!["10.8.0.0/14".parse().expect("literal")];
    after.masquerade = Vec::new();
    std::fs::write(base.join("refuse"), "").expect("file");
    let error = setup
        .change_routes(&plan(), &after)
        .expect_err("nft refuses");
    let text = error.to_string();
    assert!(
        text.contains("refused") && text.contains("in force again"),
        "{text}"
    );
    std::fs::remove_file(base.join("refuse")).expect("file");
    // Rules may have different priorities.
    let words = |rules: &str| -> Vec<String> {
        let lines = rules.lines();
        lines
            .map(|line| {
                line.split_once(':')
                    .map_or(line, |(_, rest)| rest)
                    .to_owned()
            })
            .collect()
    };
    let now = picture();
    for (before, now) in before.iter().zip(&now) {
        assert_eq!(words(before), words(now));
    }
    setup.change_routes(&plan(), &after).expect("nft does it");
    assert!(!command("nft list ruleset").contains("masquerade"));
    setup.undo().expect("undoes");
}

/// Runs test `name` of this file as a process in `host`, with `variable` set and an `nft` that fails on purpose. It
/// always fails while `base` contains a file `refuse`. While `base` contains a file `refuse-chains`, it fails if its
/// input contains a chain. Returns whether the test passed, and its output.
fn in_a_process(host: &Namespace, name: &str, variable: &str, base: &Path) -> (bool, String) {
    let programs = base.join("programs");
    std::fs::create_dir_all(&programs).expect("directory");
    let path = std::env::var("PATH").expect("a search path");
    let script = format!(
        "#!/bin/sh
test -e {base}/refuse && {{ echo refused >&2; exit 1; }}
PATH={path}
test -e {base}/refuse-chains || exec nft \"$@\"
rules=$(cat)
case \"$rules\" in *chain*) echo refused >&2; exit 1;; esac
printf '%s\\n' \"$rules\" | nft \"$@\"
",
        base = base.display()
    );
    let nft = programs.join("nft");
    std::fs::write(&nft, script).expect("script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&nft, mode).expect("mode");
    let path = format!("{}:{path}", programs.display());
    in_a_process_with(host, name, (variable, base), &path)
}

/// Runs test `name` of this file as a process in `host`, with `variable` set to `base` and with `path` as search path
/// for programs. Returns whether the test passed, and its output.
fn in_a_process_with(
    host: &Namespace,
    name: &str,
    (variable, base): (&str, &Path),
    path: &str,
) -> (bool, String) {
    let output = Command::new("ip")
        .args(["netns", "exec", &host.name, "env"])
        .arg(format!("PATH={path}"))
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture"])
        .env(variable, base)
        .output()
        .expect("ip runs");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Returns a client's plan with a kill switch.
fn closed_plan() -> Plan {
    Plan {
        forward: false,
        isolate: false,
        masquerade: Vec::new(),
        kill_switch: true,
        ..plan()
    }
}

#[test]
fn a_host_without_nftables_stays_open_however_often_a_kill_switch_is_tried() {
    let Some((host, _peer)) = host() else { return };
    settle(&host);
    let before = configuration(&host);
    let base = tempfile::tempdir().expect("tempdir");
    let name = "routes::try_to_close";
    let check = |(passed, text): (bool, String), reason: &str| {
        assert!(passed && text.contains(reason), "{text}");
        until("the configuration comes back", || {
            configuration(&host) == before
        });
    };
    for refused in ["refuse-chains", "refuse"] {
        let file = base.path().join(refused);
        std::fs::write(&file, "").expect("writes");
        for _ in 0..2 {
            check(in_a_process(&host, name, TRY_IN, base.path()), "refused");
            let place = (TRY_IN, base.path());
            let tried = in_a_process_with(&host, name, place, "/nonexistent");
            check(tried, "install the package nftables");
        }
        std::fs::remove_file(&file).expect("removes");
    }
}

/// Helper process, not a test by itself: a client whose kill switch cannot be set.
#[test]
fn try_to_close() {
    if let Some(base) = std::env::var_os(TRY_IN) {
        let mut setup = Setup::begin(Path::new(&base), "plLtun").expect("begins");
        let _tun = Tun::create("plLtun", 1400).expect("root makes TUNs");
        println!(
            "{}",
            setup.apply(&closed_plan()).expect_err("there is no nft")
        );
    }
}

/// Helper process, not a test by itself: a client with a kill switch that is killed.
#[test]
fn close_and_die() {
    if let Some(base) = std::env::var_os(CLOSE_IN) {
        let (mut setup, _tun) = apply_plan(Path::new(&base), "plLtun", &closed_plan());
        setup.hold();
        std::process::abort();
    }
}

/// Helper process, not a test by itself: the process that another test kills.
#[test]
fn apply_and_die() {
    if let Some(base) = std::env::var_os(DIE_IN) {
        let _held = apply(Path::new(&base), "plLtun");
        std::process::abort();
    }
}

const CHANGE_IN: &str = "PLEACH_TEST_CHANGE_IN";
const CLOSE_IN: &str = "PLEACH_TEST_CLOSE_IN";
const TRY_IN: &str = "PLEACH_TEST_TRY_IN";
const DIE_IN: &str = "PLEACH_TEST_DIE_IN";

fn recovered(host: &Namespace, base: &Path) {
    until("recovery", || {
        host.run(|| recover(base, "plLtun")).expect("recovers")
    });
}

/// Waits until the kernel has completed the addresses that it creates automatically.
fn settle(namespace: &Namespace) {
    until("the end of duplicate address detection", || {
        !namespace.ip("-6 address show tentative").contains("inet6")
    });
}
