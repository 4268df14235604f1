//! Clients of one gateway, and hosts that are not its clients.

use std::{net::UdpSocket, thread};

use pleach_core::rng::Rng;

use crate::{
    process::{Client, Gateway, Keys, TUNNEL, TwoClients, drops},
    traffic::{Target, tcp},
    world::{PATIENCE, World, ping, run, until},
};

#[test]
fn clients_of_one_gateway_are_kept_apart() {
    let Some(world) = World::new() else { return };
    let hosts = TwoClients::start(&world, false);

    // The gateway reaches each client at its own address, and the clients reach each other through the gateway.
    for address in ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"] {
        assert!(ping(&world.gateway, &[address], PATIENCE), "{address}");
    }
    assert!(ping(&world.client, &["10.77.0.3"], PATIENCE));
    assert!(ping(&hosts.other, &["fd77::2"], PATIENCE));

    // Client A uses B's address as well.
    let add =
        format!("addr add 10.77.0.3/32 dev {TUNNEL}\naddr add fd77::3/128 dev {TUNNEL} nodad\n");
    world.client.ip(&add).expect("addresses");
    let refused = || drops(&hosts.gateway.until_up(), "source_not_allowed");
    for (own, gateway_address) in [("10.77.0.3", "10.77.0.1"), ("fd77::3", "fd77::1")] {
        let before = refused();
        let options = [
            "-c",
            "3",
            "-i",
            "0.1",
            "-W",
            "1",
            "-I",
            own,
            gateway_address,
        ];
        let mut command = world.client.command("ping");
        let output = command.args(options).output().expect("ping runs");
        assert!(!output.status.success(), "A sent as B");
        until("the gateway counts what it refused", || {
            refused() >= before + 3
        });
        // Packets for B still go to B, which has not moved.
        let received = rx_packets(&world.client);
        assert!(ping(&world.gateway, &[own], PATIENCE), "{own}");
        let more = rx_packets(&world.client) - received;
        assert_eq!(more, 0, "A received what was meant for B");
    }
    assert!(ping(
        &world.client,
        &["-I", "10.77.0.2", "10.77.0.1"],
        PATIENCE
    ));
}

fn rx_packets(host: &pleach_lab::netns::Netns) -> u64 {
    let text = run(host, "ip", &["-j", "-s", "link", "show", "dev", TUNNEL]);
    let links: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let packets = &links[0]["stats64"]["rx"]["packets"];
    packets.as_u64().expect("a number")
}

#[test]
fn wrong_keys_never_come_up_beside_a_right_one() {
    let Some(world) = World::new() else { return };
    let (shared, wrong) = (
        Keys::client(3).private.as_str(),
        Keys::client(4).private.as_str(),
    );
    let gateway = Gateway {
        clients: vec![
            (2, Keys::client(2), None),
            (3, Keys::client(3), Some(shared)),
        ],
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let strangers = [2, 3, 4].map(|number| world.another(number));
    let wrong_gateway = Client {
        gateway_key: &Keys::client(4).public,
        links: &["l2"],
        ..Client::default()
    };
    let unknown_client = Client {
        keys: Keys::client(4),
        links: &["l3"],
        ..Client::default()
    };
    let wrong_secret = Client {
        host: 3,
        keys: Keys::client(3),
        preshared_key: Some(wrong),
        links: &["l4"],
        ..Client::default()
    };
    let count = |daemon: &crate::process::Daemon| {
        daemon
            .status()
            .map_or(0, |status| drops(&status, "handshake_invalid"))
    };
    for (host, case) in strangers
        .iter()
        .zip([wrong_gateway, unknown_client, wrong_secret])
    {
        let (key, secret) = (case.gateway_key, case.preshared_key);
        let before = count(&gateway);
        let daemon = case.start(&world, host);
        // With the wrong pre-shared key, the client detects the mismatch in the gateway's answer.
        until(&format!("{key} {secret:?} is refused"), || {
            count(&gateway) + count(&daemon) > before + 1
        });
        let status = daemon.status().expect("it runs");
        assert_eq!(status["up"], false, "{status}");
    }

    let right = Client::default().start(&world, &world.client);
    right.until_links_up(&["l0", "l1"]);
    let also_right = Client {
        host: 3,
        keys: Keys::client(3),
        preshared_key: Some(shared),
        links: &["l4"],
        ..Client::default()
    }
    .start(&world, &strangers[2]);
    also_right.until_links_up(&["l4"]);
    assert!(ping(&world.client, &["10.77.0.1"], PATIENCE));
    assert!(ping(&strangers[2], &["10.77.0.1"], PATIENCE));
}

#[test]
fn a_flood_of_random_datagrams_harms_no_transfer() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let sum = |status: &serde_json::Value| -> u64 {
        let reasons = [
            "forged",
            "handshake_invalid",
            "handshake_limited",
            "malformed",
            "unknown_session",
        ];
        reasons.iter().map(|reason| drops(status, reason)).sum()
    };
    let before = sum(&gateway.until_up());
    let stranger = world.another(2);
    let flood = stranger
        .spawn("flood", || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let mut rng = Rng::new(9);
            let mut datagram = [0; 1400];
            for _ in 0..DATAGRAMS {
                let len = usize::try_from(rng.below(1400))? + 1;
                rng.fill(&mut datagram[..len]);
                // Half of the datagrams have a first byte like pleach's.
                datagram[0] %= if rng.chance(0.5) { 8 } else { 255 };
                socket.send_to(&datagram[..len], "203.0.113.5:7700")?;
            }
            Ok(())
        })
        .expect("a thread");

    let server = Target::new(&world.server, "10.99.0.2");
    let mut transfers = 0;
    while transfers == 0 || !flood.is_finished() {
        tcp(&world.client, &server, 1 << 20).expect("a transfer");
        transfers += 1;
        thread::yield_now();
    }
    flood.join().expect("no panic").expect("the flood");

    // The kernel drops datagrams when the socket buffer is full.
    gateway.until("the flood is counted", |status| {
        sum(status) >= before + DATAGRAMS / 10
    });
    tcp(&world.client, &server, 1 << 20).expect("a transfer afterwards");
}

const DATAGRAMS: u64 = 20_000;
