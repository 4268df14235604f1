//! TCP connections that the client ends and carries to the gateway.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown},
    time::Duration,
};

use pleach_lab::netns::Netns;

use crate::{
    process::{Client, Daemon, Gateway, TUNNEL},
    traffic::{Target, connect, listen, tcp},
    world::{INTERRUPTION, PATIENCE, World, run, until},
};

/// A gateway that translates both families and a client that splits.
struct Pair {
    _gateway: Daemon,
    client: Daemon,
}

impl Pair {
    fn start(world: &World) -> Self {
        let gateway = Gateway {
            nat: "\"nat66\"",
            split_tcp: true,
            ..Gateway::default()
        }
        .start(world);
        gateway.until_up();
        let client = Client {
            split_tcp: Some("on"),
            ..Client::default()
        }
        .start(world, &world.client);
        client.until_links_up(&["l0", "l1"]);
        until("connections are split", || state(&client) == "on");
        Self {
            _gateway: gateway,
            client,
        }
    }
}

fn field(client: &Daemon, name: &str) -> Option<serde_json::Value> {
    Some(client.status()?.get("split_tcp")?.get(name)?.clone())
}

fn state(client: &Daemon) -> String {
    let state = field(client, "state");
    state.map_or_else(String::new, |state| state.as_str().unwrap_or("").to_owned())
}

fn count(client: &Daemon, name: &str) -> u64 {
    field(client, name)
        .and_then(|count| count.as_u64())
        .unwrap_or(0)
}

fn tables(host: &Netns) -> String {
    run(host, "nft", &["list tables"])
}

#[test]
fn connections_are_carried_whole_and_come_from_the_gateways_address() {
    let Some(world) = World::new() else { return };
    let mut pair = Pair::start(&world);
    for (address, seen_from) in [("10.99.0.2", "10.99.0.1"), ("fd99::2", "fd99::1")] {
        let seen_from: IpAddr = seen_from.parse().expect("literal");
        let to = Target::new(&world.server, address);
        // The target answers after the end of what it is sent: one direction ends before the other.
        for len in [0, 1, 3 << 20] {
            assert_eq!(
                tcp(&world.client, &to, len).ok(),
                Some(seen_from),
                "{address}"
            );
        }
    }
    assert_eq!(count(&pair.client, "carried"), 6);
    until("none is left", || count(&pair.client, "connections") == 0);
    // The tunnel's own network is reached packet by packet.
    let gateway = Target::new(&world.gateway, "10.77.0.1");
    assert_eq!(
        tcp(&world.client, &gateway, 1000).ok(),
        Some("10.77.0.2".parse().expect("literal"))
    );
    assert_eq!(count(&pair.client, "carried"), 6);
    assert!(tables(&world.client).contains("_split"));
    pair.client.stop();
    assert!(
        !tables(&world.client).contains(TUNNEL),
        "{}",
        tables(&world.client)
    );
}

#[test]
fn the_gateways_own_addresses_are_not_reached() {
    let Some(world) = World::new() else { return };
    let pair = Pair::start(&world);
    // The second of a network is secondary: the kernel's answers name the first as the source.
    let addresses = "addr add 10.98.0.1/24 dev lo\naddr add 10.98.0.7/24 dev lo\n";
    world.gateway.ip(addresses).expect("addresses");
    for address in ["10.98.0.1", "10.98.0.7"] {
        let listener = listen(&Target::new(&world.gateway, address));
        let to = listener.local_addr().expect("bound");
        let mut stream = connect(&world.client, to, PATIENCE).expect("accepted");
        let error = stream.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{address}");
    }
    until("both are counted", || count(&pair.client, "failed") == 2);
}

#[test]
fn a_server_that_refuses_is_met_by_the_next_attempt() {
    let Some(world) = World::new() else { return };
    let pair = Pair::start(&world);
    let closed = {
        let listener = listen(&Target::new(&world.server, "10.99.0.2"));
        listener.local_addr().expect("bound")
    };
    // Accepted at the near end, then reset.
    let mut first = connect(&world.client, closed, PATIENCE).expect("accepted");
    let error = first.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    until("it is counted", || count(&pair.client, "failed") == 1);
    until("the server's own answer", || {
        let error = connect(&world.client, closed, PATIENCE).expect_err("refused");
        format!("{error:#}").contains("refused")
    });
}

#[test]
fn what_breaks_one_end_of_a_connection_breaks_the_other() {
    let Some(world) = World::new() else { return };
    let _pair = Pair::start(&world);
    let to = Target::new(&world.server, "10.99.0.2");
    let listener = listen(&to);
    let address = listener.local_addr().expect("bound");
    let open = || {
        let mut near = connect(&world.client, address, INTERRUPTION).expect("a connection");
        near.write_all(b"hello").expect("room");
        let (mut far, _) = listener.accept().expect("carried");
        far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        far.read_exact(&mut [0; 5]).expect("what was sent");
        (near, far)
    };
    let reset = |stream: &std::net::TcpStream| {
        let socket = socket2::SockRef::from(stream);
        socket.set_linger(Some(Duration::ZERO)).expect("an option");
    };
    let is_reset = |mut stream: std::net::TcpStream| {
        let error = stream.read(&mut [0]).expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    };
    let (near, far) = open();
    reset(&near);
    drop(near);
    is_reset(far);
    let (near, far) = open();
    reset(&far);
    drop(far);
    is_reset(near);
    // A half that ends is not taken for the whole.
    let (mut near, mut far) = open();
    near.shutdown(Shutdown::Write).expect("the end");
    assert_eq!(far.read(&mut [0]).expect("the end"), 0);
    far.write_all(b"late").expect("room");
    drop(far);
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).expect("the rest");
    assert_eq!(rest, b"late");
    // While no new connection is split, the others go on.
    let (mut near, mut far) = open();
    let pick = format!("flush chain inet pleach_{TUNNEL}_split pick");
    run(&world.client, "nft", &[&pick]);
    far.write_all(b"more").expect("room");
    near.read_exact(&mut [0; 4])
        .expect("the connection goes on");
}

#[test]
fn a_gateway_that_does_not_serve_leaves_connections_to_the_tunnel() {
    let Some(world) = World::new() else { return };
    // It translates no address, so a server would see another one.
    let gateway = Gateway {
        nat: "false",
        split_tcp: true,
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    world
        .server
        .ip("route add 10.77.0.0/24 via 10.99.0.1\n")
        .expect("route");
    let client = Client {
        split_tcp: Some("on"),
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    until("the reason is known", || {
        field(&client, "trouble").is_some()
    });
    assert_eq!(state(&client), "waiting");
    let to = Target::new(&world.server, "10.99.0.2");
    let seen_from: IpAddr = "10.77.0.2".parse().expect("literal");
    assert_eq!(tcp(&world.client, &to, 1000).ok(), Some(seen_from));
    assert_eq!(count(&client, "carried"), 0);
}
