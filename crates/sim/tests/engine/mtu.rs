//! Paths whose MTU is below the length of the tunnel's datagrams.

use std::time::Duration;

use pleach_core::{
    class::{Class, Match, Service},
    counters::DropReason,
    packet::PacketBuf,
};

use crate::world::{PathModel, World, address, connected, udp};

const DONT_FRAGMENT: u8 = 0x40;

/// Creates paths with a delay of 10 ms that carry inner packets of up to the given lengths, connected for two seconds.
fn paths(mtus: &[usize], policy: &str) -> World {
    let model = |mtu: &usize| PathModel {
        width: mtu + OVERHEAD,
        ..PathModel::with_delay(10)
    };
    let models: Vec<_> = mtus.iter().map(model).collect();
    let mut world = World::new(1, &models, policy, 1);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_secs(2));
    world
}

/// Length in bytes that a data datagram adds to its packet.
const OVERHEAD: usize = 38;

fn mtus(world: &World, host: usize) -> Vec<usize> {
    let (_, status) = world.hosts[host].endpoint.status().next().expect("a peer");
    status.paths.iter().map(|path| path.mtu).collect()
}

/// Sends a packet of `len` bytes from the client, with the given flags.
fn send(world: &mut World, number: u32, len: usize, flags: u8) {
    let mut packet = udp(address(1), address(0), 1, number, len);
    packet[6] = flags;
    let now = world.now;
    world.hosts[1]
        .endpoint
        .handle_packet(now, PacketBuf::from(packet));
    world.drain(1);
}

/// Returns the lengths of the packets of `protocol` that were delivered to a host.
fn got(world: &World, host: usize, protocol: u8) -> Vec<usize> {
    let delivered = world.hosts[host].delivered.iter();
    let packets = delivered.filter(|(_, packet)| packet[9] == protocol);
    packets.map(|(_, packet)| packet.len()).collect()
}

#[test]
fn each_end_finds_how_long_packets_may_be_on_each_path() {
    for (wide, narrow) in [(1_400, 1_300), (1_500, 1_366), (1_280, 1_200)] {
        let world = paths(&[wide, narrow], "adaptive");
        for host in [0, 1] {
            let found = mtus(&world, host);
            for (found, expected) in found.iter().zip([wide.min(1_400), narrow]) {
                let is_close = *found <= expected && found + 4 >= expected;
                assert!(is_close, "{host}: {found} of {expected}");
            }
        }
    }
}

#[test]
fn what_is_too_long_for_a_path_takes_others_and_its_sender_is_told() {
    for policy in ["adaptive", "round-robin", "min-rtt", "weighted"] {
        let mut world = paths(&[1_300, 1_400], policy);
        for number in 0..200 {
            send(&mut world, number, 1_400, DONT_FRAGMENT);
            world.run_for(Duration::from_millis(2));
        }
        world.run_for(Duration::from_secs(1));
        assert_eq!(got(&world, 0, 17).len(), 200, "{policy}");
        assert_eq!(world.hosts[1].drops(DropReason::TooLong), 0);
        let told = world.hosts[1].delivered.iter();
        let told: Vec<_> = told.filter(|(_, packet)| packet[9] == 1).collect();
        assert_eq!(told.len(), 200, "{policy}");
        let (_, message) = told[0];
        assert_eq!(message[12..16], address(0));
        assert_eq!(message[20..22], [3, 4]);
        let mtu = u16::from_be_bytes([message[26], message[27]]);
        assert!((1_296..=1_300).contains(&mtu), "{mtu}");
    }
}

#[test]
fn what_is_too_long_for_every_path_is_taken_apart_or_refused() {
    let mut world = paths(&[1_300], "adaptive");
    send(&mut world, 1, 1_400, 0);
    world.run_for(Duration::from_millis(100));
    let lens = got(&world, 0, 17);
    assert_eq!(lens.len(), 2);
    assert_eq!(lens.iter().sum::<usize>(), 1_400 + 20);
    send(&mut world, 2, 1_400, DONT_FRAGMENT);
    world.run_for(Duration::from_millis(100));
    assert_eq!(got(&world, 0, 17).len(), 2);
    assert_eq!(world.hosts[1].drops(DropReason::TooLong), 1);
    assert_eq!(got(&world, 1, 1), [576]);
    send(&mut world, 3, 1_290, DONT_FRAGMENT);
    world.run_for(Duration::from_millis(100));
    assert_eq!(got(&world, 0, 17).len(), 3);
}

#[test]
fn a_path_that_becomes_narrow_is_found_out_while_it_is_used() {
    let mut world = paths(&[1_400, 1_400], "round-robin");
    assert_eq!(mtus(&world, 1), [1_400, 1_400]);
    world.paths[1].width = 1_350 + OVERHEAD;
    let mut number = 0;
    let send_for = |world: &mut World, number: &mut u32, seconds: u32| {
        for _ in 0..seconds * 50 {
            send(world, *number, 1_400, DONT_FRAGMENT);
            *number += 1;
            world.run_for(Duration::from_millis(20));
        }
    };
    send_for(&mut world, &mut number, 12);
    let found = mtus(&world, 1);
    assert!(
        found[0] == 1_400 && (1_346..=1_350).contains(&found[1]),
        "{found:?}"
    );
    let before = got(&world, 0, 17).len();
    send_for(&mut world, &mut number, 4);
    world.run_for(Duration::from_secs(1));
    assert_eq!(
        got(&world, 0, 17).len() - before,
        200,
        "all go by the other"
    );
}

#[test]
fn what_opens_a_connection_promises_what_fits_either_way() {
    let mut world = paths(&[1_400, 1_300], "adaptive");
    for (from, to) in [(0, 1), (1, 0)] {
        let mut packet = udp(address(from), address(to), 1, 0, 44);
        packet[9] = 6;
        // The packet is a SYN of 24 bytes with an MSS of 1460.
        packet[32..34].copy_from_slice(&[0x60, 2]);
        packet[40..44].copy_from_slice(&[2, 4, 5, 180]);
        let now = world.now;
        world.hosts[from]
            .endpoint
            .handle_packet(now, PacketBuf::from(packet));
        world.drain(from);
        world.run_for(Duration::from_millis(500));
        let (_, packet) = world.hosts[to].delivered.last().expect("delivered");
        let mss = u16::from_be_bytes([packet[42], packet[43]]);
        assert!((1_256..=1_260).contains(&mss), "{mss}");
    }
}

#[test]
fn a_lossy_path_is_not_taken_for_narrow() {
    let mut model = PathModel::with_delay(10);
    model.loss_pct = 10;
    let mut world = World::new(1, &[model, PathModel::with_delay(20)], "round-robin", 5);
    world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    for number in 0..6_000 {
        send(&mut world, number, 1_400, DONT_FRAGMENT);
        world.run_for(Duration::from_millis(10));
    }
    assert_eq!(mtus(&world, 1), [1_400, 1_400]);
}

#[test]
fn what_only_a_dearer_link_takes_goes_there() {
    for policy in ["adaptive", "earliest-arrival", "min-rtt", "weighted"] {
        let mut world = paths(&[1_300, 1_400], policy);
        let now = world.now;
        world.hosts[1]
            .endpoint
            .update_links(now, "link1", |link| link.cost = 1);
        for number in 0..20 {
            send(&mut world, number, 1_400, DONT_FRAGMENT);
            send(&mut world, number, 200, DONT_FRAGMENT);
            world.run_for(Duration::from_millis(5));
        }
        world.run_for(Duration::from_millis(200));
        let lens = got(&world, 0, 17);
        let long = lens.iter().filter(|len| **len == 1_400).count();
        assert_eq!((long, lens.len()), (20, 40), "{policy}");
    }
}

#[test]
fn what_the_link_of_its_class_does_not_take_goes_by_another() {
    let model = |mtu: usize| PathModel {
        width: mtu + OVERHEAD,
        ..PathModel::with_delay(10)
    };
    let class = Class {
        name: "backup".to_owned(),
        matches: Match {
            ports: vec![9..=9],
            ..Match::default()
        },
        service: Service {
            links: vec!["link0".to_owned()],
            ..Service::default()
        },
    };
    let mut world = World::with_classes(&[model(1_300), model(1_400)], vec![class], 1);
    world.run_for(Duration::from_secs(3));
    for number in 0..20 {
        send(&mut world, number, 1_400, DONT_FRAGMENT);
        world.run_for(Duration::from_millis(5));
    }
    world.run_for(Duration::from_millis(200));
    assert_eq!(got(&world, 0, 17).len(), 20);
}
