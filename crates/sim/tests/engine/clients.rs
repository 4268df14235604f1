//! One gateway and many clients.
//!
//! Packets from one client to another are delivered to the gateway's host, which may route them back into the tunnel:
//! the engine does not decide who may communicate with whom.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use pleach_core::{
    counters::DropReason, packet::PacketBuf, path::Path, transmit::TxQueue, tunnel::Tunnel,
};

use crate::world::{PathModel, World, address, number_of, outer, udp};

fn connected(world: &World) -> bool {
    let mut clients = world.hosts[1..].iter();
    let gateway = &world.hosts[0].endpoint;
    clients.all(|host| host.endpoint.is_up()) && gateway.status().all(|(_, status)| status.is_up)
}

/// Creates a world in which every client has connected. A client joins every 6 ms, the rate that the handshake limit
/// permits.
fn connect(clients: usize, paths: &[PathModel], seed: u64) -> World {
    let mut world = World::new(clients, paths, "weighted", seed);
    for client in 1..=clients {
        for link in 0..paths.len() {
            world.set_reach(client, link, false);
        }
    }
    for client in 1..=clients {
        for link in 0..paths.len() {
            world.set_reach(client, link, true);
        }
        world.run_for(Duration::from_millis(6));
    }
    world
        .run_until_true(Duration::from_secs(5), connected)
        .expect("all connect");
    world
}

#[test]
fn sixty_four_clients_talk_at_once_over_paths_that_lose() {
    let mut paths = [5, 20].map(PathModel::with_delay);
    paths[0].loss_pct = 2;
    paths[1].loss_pct = 2;
    let mut world = World::new(64, &paths, "weighted", 1);
    world
        .run_until_true(Duration::from_secs(5), connected)
        .expect("all connect");
    for number in 0..100 {
        for client in 1..=64 {
            world.send(client, 0, 1, number, 300);
            world.send(0, client, 1, number, 300);
        }
        world.run_for(Duration::from_millis(5));
    }
    world.run_for(Duration::from_secs(1));
    let mut from = BTreeMap::new();
    for (_, packet) in &world.hosts[0].delivered {
        *from.entry(packet[12..16].to_vec()).or_insert(0) += 1;
    }
    for client in 1..=64 {
        let delivered = &world.hosts[client].delivered;
        assert!(
            delivered
                .iter()
                .all(|(_, packet)| packet[16..20] == address(client)),
            "client {client} got what is another's"
        );
        // Of 100 packets 2 are lost on average; one standard deviation is 1.4.
        assert!((90..=100).contains(&delivered.len()), "client {client}");
        let up = from[&address(client)[..]];
        assert!((90..=100).contains(&up), "client {client}: {up}");
    }
    let drops = world.hosts[0].endpoint.drops();
    assert_eq!(drops.get(DropReason::SourceNotAllowed), 0);
    assert_eq!(drops.get(DropReason::UnknownSession), 0);
}

#[test]
fn a_client_cannot_speak_for_another() {
    let mut world = connect(2, &[PathModel::with_delay(5)], 2);
    let forged = udp(address(2), address(0), 1, 1, 100);
    let now = world.now;
    world.hosts[1]
        .endpoint
        .handle_packet(now, PacketBuf::from(forged));
    world.settle(1);
    world.run_for(Duration::from_millis(50));
    let gateway = &world.hosts[0];
    assert_eq!(gateway.drops(DropReason::SourceNotAllowed), 1);
    assert!(gateway.delivered.is_empty());
    // The client's own packets pass, also after the forged packet.
    world.send(1, 0, 1, 2, 100);
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.numbers(0, 1), [2]);
    // The gateway's host receives packets for other clients. Addresses that belong to no client are unreachable.
    world.send(1, 2, 2, 3, 100);
    world.send(0, 77, 2, 4, 100);
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.numbers(0, 2), [3]);
    assert!(world.hosts[2].delivered.is_empty());
    assert_eq!(world.hosts[0].drops(DropReason::NoRoute), 1);
}

#[test]
fn a_client_with_a_full_queue_does_not_keep_the_others_waiting() {
    let mut world = connect(3, &[PathModel::with_delay(5)], 3);
    let now = world.now;
    let gateway = &mut world.hosts[0].endpoint;
    for number in 0..5000 {
        let packet = udp(address(0), address(1), 1, number, 1400);
        gateway.handle_packet(now, PacketBuf::from(packet));
    }
    for client in [2, 3] {
        for number in 0..10 {
            let packet = udp(address(0), address(client), 1, number, 1000);
            gateway.handle_packet(now, PacketBuf::from(packet));
        }
    }
    // For each client, the round in which it got its last packet, if two batches fill the queue.
    let mut out = TxQueue::new(2);
    let mut last_turn: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for turn in 0.. {
        out.clear();
        gateway.poll_transmit(now, &mut out);
        if out.is_empty() {
            break;
        }
        let routes = out.batches().iter().map(|batch| batch.route().remote);
        last_turn.extend(routes.map(|remote| (remote, turn)));
    }
    let turn_of = |client| last_turn[&outer(client, 0)];
    assert!(turn_of(1) > 100, "{last_turn:?}");
    assert!(turn_of(2) < 6 && turn_of(3) < 6, "{last_turn:?}");
}

/// Cost of an idle client at the gateway, about 22 KiB: a `Tunnel` (5 KiB), a `Path` per link (1.5 KiB), 12 KiB for the
/// resequencer's first table, and per session two keys and the replay windows of the lanes in use (520 bytes each). The
/// client's flow queue (56 KiB) and flow table (8 KiB) are allocated with the first packet for it.
#[test]
fn two_thousand_clients_cost_what_two_cost_each() {
    assert!(size_of::<Tunnel>() < 8 << 10, "{}", size_of::<Tunnel>());
    assert!(size_of::<Path>() < 4 << 10, "{}", size_of::<Path>());
    let mut per_client = Vec::new();
    for clients in [2, 2000] {
        let mut world = connect(clients, &[PathModel::with_delay(5)], 4);
        world.run_for(Duration::from_secs(1));
        // Number of datagrams and timers per client, on all hosts, in some seconds of idleness.
        let before = world.steps;
        world.run_for(Duration::from_secs(4));
        let idle = (world.steps - before) / clients as u64;
        // One packet to the last client causes only datagrams for this client: the packet, and the probe of a tunnel
        // that wakes up.
        let now = world.now;
        let gateway = &mut world.hosts[0].endpoint;
        let mut out = TxQueue::new(16);
        gateway.handle_timeout(now);
        gateway.poll_transmit(now, &mut out);
        out.clear();
        let packet = udp(address(0), address(clients), 1, 1, 100);
        gateway.handle_packet(now, PacketBuf::from(packet));
        gateway.poll_transmit(now, &mut out);
        assert_eq!(out.batches().len(), 2);
        for batch in out.batches() {
            assert_eq!(
                (batch.segments(), batch.route().remote),
                (1, outer(clients, 0))
            );
        }
        let kept: usize = gateway
            .status()
            .map(|(_, status)| status.held + status.queued)
            .sum();
        assert_eq!(kept, 0);
        assert!(gateway.pool().free_len() < 100);
        per_client.push(idle);
        // All clients can be reached.
        for client in (1..=clients).step_by(7) {
            world.send(0, client, 2, client as u32, 100);
        }
        world.run_for(Duration::from_millis(100));
        for client in (1..=clients).step_by(7) {
            let delivered = world.hosts[client].delivered.iter();
            let numbers = delivered.map(|(_, packet)| number_of(packet));
            assert!(numbers.into_iter().any(|got| got == (2, client as u32)));
        }
    }
    assert!(
        per_client[1] <= per_client[0] + 2,
        "datagrams and timers per client: {per_client:?}"
    );
}

#[test]
fn a_client_with_much_to_get_does_not_keep_another_from_its_turn() {
    let mut world = connect(2, &[PathModel::with_delay(5)], 9);
    world.run_for(Duration::from_secs(1));
    let now = world.now;
    let gateway = &mut world.hosts[0].endpoint;
    let mut give = |client: usize, number: u32| {
        let packet = udp(address(0), address(client), 1, number, 1200);
        gateway.handle_packet(now, PacketBuf::from(packet));
    };
    (0..4_000).for_each(|number| give(1, number));
    give(2, 0);
    // Packets that one pass of the data thread sends at once.
    let mut tx = TxQueue::new(8);
    gateway.poll_transmit(now, &mut tx);
    let to = |client| {
        let batches = tx.batches().iter();
        batches
            .filter(|batch| batch.route().remote == outer(client, 0))
            .count()
    };
    assert!(to(1) >= 4, "{}", to(1));
    assert_eq!(to(2), 1);
}

#[test]
fn when_many_clients_connect_at_once_only_some_of_them_use_packet_trains() {
    // The paths have no limit of rate, so the trains of a client take 1.1 MB in each direction.
    let carried = |clients| {
        let mut world = World::new(clients, &[PathModel::with_delay(5)], "adaptive", 1);
        world
            .run_until_true(Duration::from_secs(5), connected)
            .expect("all connect");
        world.run_for(Duration::from_secs(3));
        world.carried[0] / 1_000_000
    };
    let (one, many) = (carried(1), carried(200));
    assert!(one >= 2, "{one} MB");
    // All 200 would take 400 MB. The gateway permits the trains of 40 at once and of 20 more each second.
    assert!((20 * one..110 * one).contains(&many), "{one} {many} MB");
}

#[test]
fn a_storm_of_clients_is_served_at_nearly_the_rate_of_handshakes() {
    let clients = 2_000;
    let mut world = World::new(clients, &[PathModel::with_delay(5)], "weighted", 1);
    // The gateway admits 200/s, so 99 % need at least 9.9 s.
    world.run_for(Duration::from_millis(12_500));
    let hosts = world.hosts[1..].iter();
    let up = hosts.filter(|host| host.endpoint.is_up()).count();
    assert!(up * 100 >= clients * 99, "{up} of {clients}");
}
