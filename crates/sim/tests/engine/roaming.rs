//! Clients whose addresses change: by roaming, behind a NAT that has lost their mapping, and by forgery.

use std::{net::SocketAddr, time::Duration};

use pleach_core::{ids::PathId, path::health::State};

use crate::world::{Forged, PathModel, World, connected};

const VICTIM: ([u8; 4], u16) = ([192, 0, 2, 66], 53);
/// One-way delay.
const DELAY: Duration = Duration::from_millis(20);

fn connect(paths: &[PathModel], policy: &str) -> World {
    let mut world = World::new(1, paths, policy, 5);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_secs(1));
    world
}

/// Runs a download for `time`, whose client acknowledges every second packet.
fn download(world: &mut World, number: &mut u32, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.send(0, 1, 1, *number, 1200);
        if number.is_multiple_of(2) {
            world.send(1, 0, 2, *number, 60);
        }
        *number += 1;
        world.run_for(Duration::from_millis(1));
    }
}

fn remote(world: &World, path: usize) -> SocketAddr {
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    status.paths[path].remote.expect("it has been heard of")
}

#[test]
fn a_client_that_forges_its_source_brings_a_victim_no_more_than_three_times_its_own_bytes() {
    for policy in ["weighted", "adaptive", "redundant", "osia", "consn"] {
        let paths = [PathModel::with_delay(20), PathModel::with_delay(25)];
        let mut world = connect(&paths, policy);
        let mut number = 0;
        download(&mut world, &mut number, Duration::from_secs(1));
        world.forged = Some(Forged {
            link: 0,
            victim: VICTIM.into(),
            came: [0; 2],
            went: [0; 2],
        });
        download(&mut world, &mut number, Duration::from_secs(60));
        let Forged { came, went, .. } = world.forged.expect("set");
        assert_eq!(remote(&world, 0), VICTIM.into(), "{policy}");
        assert!(came[1] > 1_000, "{policy}: {came:?}");
        for (came, went) in came.into_iter().zip(went) {
            assert!(went <= 3 * came, "{policy}: {went} for {came} bytes");
        }
        // The client's own download continues over the other link.
        let received = world.numbers(1, 1).len();
        assert!(received > 55_000, "{policy}: {received}");
    }
}

#[test]
fn a_nat_that_forgets_a_client_costs_a_round_trip_and_50_ms_at_most() {
    let mut world = connect(
        &[PathModel {
            delay: DELAY,
            ..PathModel::with_delay(0)
        }],
        "adaptive",
    );
    let mut number = 0;
    download(&mut world, &mut number, Duration::from_secs(2));
    for port in [4001, 4002, 4003] {
        world.ports[0] = port;
        let changed_at = world.now;
        download(&mut world, &mut number, Duration::from_secs(2));
        let sent_after = |packet: &[u8]| packet.len() == 1200;
        let first = world.hosts[1]
            .delivered
            .iter()
            .filter(|(at, packet)| *at > changed_at + DELAY && sent_after(packet));
        let first = first.map(|(at, _)| at.since(changed_at)).min();
        // The first datagram from the new port is in flight for one delay. Then follow an RTT, and the delay of the
        // data.
        let most = DELAY * 2 + DELAY * 2 + Duration::from_millis(50);
        assert!(first.is_some_and(|first| first <= most), "{first:?}");
        let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
        assert_eq!(status.paths[0].state, State::Up);
        assert_eq!(remote(&world, 0).port(), port);
    }
    // No packet is lost permanently.
    world.run_for(Duration::from_secs(2));
    let mut numbers = world.numbers(1, 1);
    numbers.sort_unstable();
    numbers.dedup();
    assert!(
        numbers.len() as u32 > number * 99 / 100,
        "{} of {number}",
        numbers.len()
    );
}

#[test]
fn a_path_that_moves_leaves_the_others_alone() {
    let paths = [PathModel::with_delay(20), PathModel::with_delay(25)];
    let mut world = connect(&paths, "weighted");
    let mut number = 0;
    download(&mut world, &mut number, Duration::from_secs(1));
    world.ports[1] = 4001;
    download(&mut world, &mut number, Duration::from_secs(1));
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    assert!(status.paths.iter().all(|path| path.state == State::Up));
    assert_eq!(status.paths[1].id, PathId(1));
    let before = status.paths[1].tx_bytes;
    download(&mut world, &mut number, Duration::from_secs(1));
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    assert!(status.paths[1].tx_bytes > before + 300_000, "is used");
}

#[test]
fn a_nat_that_forgets_an_idle_client_does_not_make_its_path_suspect() {
    let paths = [PathModel::with_delay(20)];
    let mut world = connect(&paths, "adaptive");
    world.run_for(Duration::from_secs(5));
    for port in [4001, 4002] {
        world.ports[0] = port;
        // The gateway learns the new port from the client's next probe.
        let end = world.now + Duration::from_secs(11);
        while world.now < end {
            world.run_for(Duration::from_millis(5));
            let (_, status) = world.hosts[1]
                .endpoint
                .status()
                .next()
                .expect("the gateway");
            assert_eq!(status.paths[0].state, State::Up, "at {:?}", world.now);
        }
        assert_eq!(remote(&world, 0).port(), port);
    }
}
