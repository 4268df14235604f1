//! Rules of a client: over which link packets go, and which are dropped.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use pleach_linux::confine::CapabilitySet;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, TUNNEL, link, state},
    rights::assert_confined,
    traffic::{Target, connect, listen},
    world::{PATIENCE, World, run, until},
};

/// Starts a gateway and its client with `more` tables, and waits until both links are up and have been measured. The
/// first link is quicker than the second.
fn start(world: &World, more: &str, split_tcp: Option<&str>) -> [Daemon; 2] {
    world.slow();
    let gateway = Gateway {
        nat: "\"nat66\"",
        policy: "adaptive",
        split_tcp: split_tcp.is_some(),
        ..Gateway::default()
    }
    .start(world);
    gateway.until_up();
    let client = Client {
        more,
        policy: "adaptive",
        split_tcp,
        ..Client::default()
    }
    .start(world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    // The first traffic causes packet trains on both links, whatever link it takes itself.
    download(world, serve(world, "10.99.0.2"), PATIENCE).expect("a download");
    [gateway, client]
}

/// Runs `pleach set`.
///
/// # Errors
/// The error message of the command.
fn set(daemon: &Daemon, pairs: &[&str]) -> Result<(), String> {
    let output = daemon.command("set", pairs);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(told)
}

/// Listens on the server, and sends [`LEN`] bytes to each client.
fn serve(world: &World, address: &str) -> SocketAddr {
    let listener = listen(&Target::new(&world.server, address));
    let address = listener.local_addr().expect("bound");
    let content = vec![7; LEN];
    let send = move |listener: &TcpListener| {
        let (mut stream, _) = listener.accept()?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&content)
    };
    // The thread ends with the process.
    thread::spawn(move || {
        loop {
            let _ = send(&listener);
        }
    });
    address
}

/// Downloads from `address`. `patience`: time for the connection.
///
/// # Errors
/// If no connection is made within `patience`, or if the download stalls.
fn download(world: &World, address: SocketAddr, patience: Duration) -> io::Result<()> {
    let mut stream = connect(&world.client, address, patience)?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    assert_eq!(received.len(), LEN);
    Ok(())
}

/// Returns the bytes that the two links have sent and received.
fn carried(client: &Daemon) -> [[u64; 2]; 2] {
    let status = client.until_up();
    ["tx_bytes", "rx_bytes"].map(|key| {
        ["l0", "l1"].map(|name| {
            let link = link(&status, name).expect("a link");
            link[key].as_u64().expect("a count")
        })
    })
}

/// Returns the share of the second link in the bytes sent and received while `transfer` runs.
fn shares(client: &Daemon, transfer: impl FnOnce()) -> [f64; 2] {
    let before = carried(client);
    transfer();
    let after = carried(client);
    [0, 1].map(|way| {
        let of = |link: usize| (after[way][link] - before[way][link]) as f64;
        of(1) / (of(0) + of(1))
    })
}

fn rules(status: &Value) -> Vec<Value> {
    status["rules"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_live_rule_restricts_both_directions_of_a_download_to_its_link() {
    let Some(world) = World::new() else { return };
    let [gateway, client] = start(&world, "", None);
    for address in ["10.99.0.2", "fd99::2"] {
        let server = serve(&world, address);
        let port = format!("port={}", server.port());
        let fetch = || download(&world, server, PATIENCE).expect("a download");
        set(&client, &[&port, "link=l1"]).expect("a link");
        let shares_with = shares(&client, fetch);
        assert!(
            shares_with.iter().all(|share| *share >= 0.9),
            "{address}: {shares_with:?}"
        );
        let status = client.until_up();
        let [rule] = &rules(&status)[..] else {
            panic!("one rule: {status}")
        };
        assert_eq!(rule["rule"], port);
        assert_eq!((&rule["link"], &rule["live"]), (&"l1".into(), &true.into()));
        assert!(rule["packets"].as_u64() > Some(100), "{rule}");
        assert!(status["classes"].is_null(), "{status}");

        set(&client, &[&port, "link=auto"]).expect("it was set");
        let [_, received] = shares(&client, fetch);
        assert!(received < 0.7, "{address}: {received}");
        assert!(rules(&client.until_up()).is_empty());
    }
    for (daemon, pairs, told) in [
        (&client, &["port=80", "link=l7"][..], "l0, l1"),
        (&client, &["port=80", "link=auto"], "no rule"),
        (&client, &["app=curl", "link=l1"], "restart"),
        (&client, &["destination=example.com", "link=l1"], "no names"),
        (&gateway, &["port=80", "link=l1"], "at its clients"),
    ] {
        let error = set(daemon, pairs).expect_err("refused");
        assert!(error.contains(told), "{pairs:?}: {error}");
    }
}

#[test]
fn a_blocked_port_is_not_reached_and_a_reload_replaces_live_rules() {
    let Some(world) = World::new() else { return };
    let [_gateway, client] = start(&world, "", None);
    let [blocked, other] = [(); 2].map(|()| serve(&world, "10.99.0.2"));
    let port = format!("port={}", blocked.port());
    set(&client, &["protocol=tcp", &port, "action=block"]).expect("a rule");
    download(&world, blocked, SHORT).expect_err("blocked");
    download(&world, other, PATIENCE).expect("not blocked");
    let status = client.until_up();
    let rule = &rules(&status)[0];
    assert_eq!(rule["rule"], format!("protocol=tcp {port}"));
    assert!(rule["link"].is_null() && rule["dropped"].as_u64() > Some(0));

    let text = fs::read_to_string(client.file()).expect("readable");
    let in_file = format!(
        "[[rule]]\nport = {}\naction = \"block\"\n[[rule]]\nlink = \"l1\"\n",
        other.port()
    );
    fs::write(client.file(), text + &in_file).expect("written");
    let reload = client.command("reload", &[]);
    let told = String::from_utf8_lossy(&reload.stdout).into_owned();
    assert!(told.contains("Applied: 2 rules."), "{told}: {reload:?}");
    download(&world, other, SHORT).expect_err("blocked");
    let shares = shares(&client, || {
        download(&world, blocked, PATIENCE).expect("not blocked any more");
    });
    assert!(shares.iter().all(|share| *share >= 0.9), "{shares:?}");
    let rules = rules(&client.until_up());
    assert!(
        rules.len() == 2 && rules.iter().all(|rule| rule["live"] == false),
        "{rules:?}"
    );
}

#[test]
fn the_traffic_of_a_program_takes_the_link_of_its_rule() {
    let Some(world) = World::new() else { return };
    let rule = "[[rule]]\napp = \"bash\"\nlink = \"l1\"\n";
    let [_gateway, client] = start(&world, rule, None);
    let server = serve(&world, "10.99.0.2");
    // The shell does not end with its child, which has the connection as well.
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; cat <&3 >/dev/null; exit 0",
        server.ip(),
        server.port()
    );
    let of_program = shares(&client, || {
        run(&world.client, "bash", &["-c", &script]);
    });
    let of_others = shares(&client, || {
        download(&world, server, PATIENCE).expect("a download");
    });
    // The first packets do not wait until the program is known.
    assert!(of_program[1] >= 0.9, "{of_program:?}");
    assert!(of_others[1] < 0.7, "{of_others:?}");
    let status = client.until_up();
    assert_eq!(rules(&status)[0]["rule"], "app=bash");
    set(&client, &["app=curl", "port=1", "link=l1"]).expect("programs are found");
    // Another process has the right to see programs.
    assert_confined(
        client.pid(),
        CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW,
    );
}

#[test]
fn a_strict_rule_waits_for_its_link() {
    let Some(world) = World::new() else { return };
    let [_gateway, client] = start(&world, "", None);
    let [strict, other] = [(); 2].map(|()| serve(&world, "10.99.0.2"));
    for (server, strict) in [(strict, "true"), (other, "false")] {
        let port = format!("port={}", server.port());
        let strict = format!("strict={strict}");
        set(&client, &[&port, "link=l1", &strict]).expect("a rule");
    }
    download(&world, strict, PATIENCE).expect("the link is up");
    run(&world.gateway, "ip", &["link", "set", "g1", "down"]);
    client.until("the link is down", |status| state(status, "l1") == "down");
    download(&world, strict, SHORT).expect_err("no other link");
    download(&world, other, PATIENCE).expect("another link");
    let status = client.until_up();
    let dropped = |rule: &Value| rule["dropped"].as_u64();
    let [of_other, of_strict] = &rules(&status)[..] else {
        panic!("two rules: {status}")
    };
    assert!(of_strict["strict"] == true && dropped(of_strict) > Some(0));
    assert_eq!(dropped(of_other), Some(0));
    run(&world.gateway, "ip", &["link", "set", "g1", "up"]);
    client.until_links_up(&["l0", "l1"]);
    download(&world, strict, PATIENCE).expect("the link is up again");
}

#[test]
fn connections_that_a_rule_could_match_are_not_split() {
    let Some(world) = World::new() else { return };
    let [_gateway, client] = start(&world, "", Some("on"));
    let count = |status: &Value| status["split_tcp"]["carried"].as_u64();
    client.until("connections are split", |status| {
        status["split_tcp"]["state"] == "on"
    });
    let [blocked, other] = [(); 2].map(|()| serve(&world, "10.99.0.2"));
    let before = count(&client.until_up());
    download(&world, blocked, PATIENCE).expect("split");
    assert!(count(&client.until_up()) > before);
    let port = format!("port={}", blocked.port());
    set(&client, &[&port, "action=block"]).expect("a rule");
    until("no connection is accepted by the client", || {
        download(&world, blocked, SHORT).is_err()
    });
    let before = count(&client.until_up());
    download(&world, other, PATIENCE).expect("split");
    assert!(count(&client.until_up()) > before);
}

/// Length of a download: two seconds over the slower link.
const LEN: usize = 3 << 20;
/// Time without an answer after which a connection counts as refused: the second SYN follows after one second.
const SHORT: Duration = Duration::from_millis(2500);

#[test]
fn packets_past_the_tunnel_follow_the_file_and_the_host_is_left_as_it_was() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let rules_of_host = || ["-4", "-6"].map(|family| run(&world.client, "ip", &[family, "rule"]));
    let before = rules_of_host();
    let direct = "[[rule]]\ndestination = \"10.99.0.0/24\"\nport = 8000\nprotocol = \"tcp\"\naction = \"direct\"\n";
    let mut client = Client {
        more: direct,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let uses_tunnel = |port: &str| {
        let route = ["route", "get", "10.99.0.2", "ipproto", "tcp", "dport", port];
        run(&world.client, "ip", &route).contains(TUNNEL)
    };
    assert!(!uses_tunnel("8000") && uses_tunnel("8001"));
    let error = set(&client, &["port=9", "action=direct"]).expect_err("only in the file");
    assert!(error.contains("pleach reload"), "{error}");
    let text = fs::read_to_string(client.file()).expect("readable");
    fs::write(client.file(), text.replace("port = 8000", "port = 8001")).expect("written");
    let output = client.command("reload", &[]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(uses_tunnel("8000") && !uses_tunnel("8001"));
    client.stop();
    assert_eq!(rules_of_host(), before);
}
