//! A tunnel without packets rests: it sends little, and notices failures when it is needed again.

use std::time::Duration;

use pleach_core::{path::health::State, tunnel::PathStatus};

use crate::world::{PathModel, World, connected};

const MS: Duration = Duration::from_millis(1);

/// Creates a connected pair over two paths, without packets for a minute.
fn rested(seed: u64) -> World {
    rested_over(&[5, 20].map(PathModel::with_delay), seed)
}

/// Creates a connected pair that has carried packets, and then none for a minute.
fn rested_over(paths: &[PathModel], seed: u64) -> World {
    let mut world = used(paths, seed);
    world.run_for(Duration::from_secs(60));
    world
}

/// Creates a connected pair that has carried packets.
fn used(paths: &[PathModel], seed: u64) -> World {
    let mut world = World::new(1, paths, "adaptive", seed);
    world
        .run_until_true(Duration::from_secs(5), connected)
        .expect("connects");
    exchange(&mut world, 50);
    world
}

/// Sends `count` packets from each end, over `count` times 10 ms.
fn exchange(world: &mut World, count: u32) {
    for number in 0..count {
        world.send(0, 1, 9, number, 500);
        world.send(1, 0, 9, number, 500);
        world.run_for(10 * MS);
    }
}

/// A link with a radio that needs 900 ms to wake up.
fn cellular() -> PathModel {
    PathModel {
        promotion: 900 * MS,
        ..PathModel::with_delay(25)
    }
}

/// Returns the status of the first path at a host.
fn path(world: &World, host: usize) -> PathStatus {
    let (_, status) = world.hosts[host].endpoint.status().next().expect("a peer");
    status.paths[0].clone()
}

#[test]
fn a_resting_tunnel_costs_a_fraction_of_an_idle_one_and_stays_up() {
    let mut world = World::new(1, &[PathModel::with_delay(5)], "adaptive", 1);
    world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    world.send(0, 1, 1, 1, 500);
    world.run_for(Duration::from_secs(2));
    let before = world.carried[0];
    world.run_for(Duration::from_secs(5));
    let idle = world.carried[0] - before;
    world.run_for(Duration::from_secs(20));
    let before = world.carried[0];
    world.run_for(Duration::from_secs(50));
    let resting = world.carried[0] - before;
    // Fifty seconds of rest cost no more than the five seconds before.
    assert!(resting < idle, "{resting} {idle}");
    assert!(resting > 0 && connected(&world));
}

#[test]
fn a_radio_that_wakes_up_slowly_does_not_make_its_path_suspect() {
    let mut world = rested_over(&[cellular()], 5);
    let is_up = |world: &World| [0, 1].map(|host| path(world, host).state) == [State::Up; 2];
    let failed = world.run_until_true(Duration::from_secs(60), |world| !is_up(world));
    assert_eq!(failed, None, "while it rests");
    // The first packet of either end finds the radio asleep.
    for end in [0, 1] {
        world.send(end, 1 - end, 1, 0, 500);
        let failed = world.run_until_true(Duration::from_secs(2), |world| !is_up(world));
        assert_eq!(failed, None, "packet from {end}");
        assert_eq!(world.numbers(1 - end, 1), [0], "packet from {end}");
        world.run_for(Duration::from_secs(40));
    }
}

#[test]
fn a_radio_that_wakes_up_slowly_spoils_no_estimate() {
    let mut world = used(&[cellular()], 6);
    let known = [0, 1].map(|host| path(&world, host));
    let check = |world: &World, when: &str| {
        for (host, known) in known.iter().enumerate() {
            let now = path(world, host);
            let rtt = [known, &now].map(|path| path.smoothed_rtt.expect("probes"));
            assert!(rtt[1] < rtt[0] + 20 * MS, "{when}, {host}: {rtt:?}");
            assert!(now.queue_delay < 20 * MS, "{when}, {host}");
            assert!(now.rate >= known.rate, "{when}, {host}");
        }
    };
    world.run_for(Duration::from_secs(120));
    check(&world, "resting");
    for count in [1, 150] {
        exchange(&mut world, count);
        for _ in 0..150 {
            world.run_for(10 * MS);
            check(&world, "awake");
        }
        world.run_for(Duration::from_secs(40));
    }
}

#[test]
fn a_busy_path_is_suspect_early_again_once_it_has_answered_after_a_rest() {
    let mut world = rested(7);
    exchange(&mut world, 20);
    world.set_silent(0, true);
    let failed = world.run_until_true(Duration::from_secs(1), |world| {
        path(world, 0).state != State::Up && path(world, 1).state != State::Up
    });
    assert!(failed.is_some_and(|after| after < 700 * MS), "{failed:?}");
}

#[test]
fn the_first_packets_after_a_rest_survive_a_path_that_failed_meanwhile() {
    for end in [0, 1] {
        let mut world = rested(2);
        world.set_silent(0, true);
        world.run_for(Duration::from_secs(1));
        for number in 0..20 {
            world.send(end, 1 - end, 1, number, 500);
            world.run_for(Duration::from_millis(2));
        }
        // A radio may need a second to wake up, so the path is not suspect earlier.
        world.run_for(Duration::from_millis(1_100));
        let arrived = world.numbers(1 - end, 1);
        assert_eq!(arrived, (0..20).collect::<Vec<_>>(), "from {end}");
    }
}

#[test]
fn a_resting_client_notices_a_dead_gateway_within_eleven_seconds() {
    for at in 0..10 {
        let mut world = rested(8);
        world.run_for(Duration::from_secs(at));
        world.set_silent(0, true);
        world.set_silent(1, true);
        let before = world.initiations;
        let noticed = world.run_until_true(Duration::from_secs(13), |world| {
            !world.hosts[1].endpoint.is_up() && world.initiations > before
        });
        // A probe every 10 s, a second of silence, and half a second between attempts to connect.
        let noticed = noticed.expect("it starts handshakes");
        assert!(noticed <= Duration::from_millis(11_600), "{noticed:?}");
        // It connects as soon as the gateway answers again, although it rests.
        world.run_for(Duration::from_secs(30));
        world.set_silent(0, false);
        world.set_silent(1, false);
        let connected = world.run_until_true(Duration::from_secs(2), connected);
        assert!(connected.is_some());
    }
}

#[test]
fn a_gateway_probes_a_vanished_client_rarely() {
    let mut world = rested(9);
    let client = world.start(1, 1, [9; 32], [7; 32]);
    world.replace(1, client);
    for link in 0..2 {
        world.set_reach(1, link, false);
    }
    world.run_for(Duration::from_secs(20));
    let before = world.carried[0];
    world.run_for(Duration::from_secs(60));
    // A probe every 10 s has less than 100 bytes.
    let carried = world.carried[0] - before;
    assert!(carried > 0 && carried < 700, "{carried} bytes");
}

#[test]
fn a_resting_client_notices_a_restart_of_its_gateway() {
    let mut world = rested(3);
    world.restart(0);
    let noticed = world.run_until_true(Duration::from_secs(12), connected);
    assert!(noticed.is_some());
}

#[test]
fn a_client_that_wakes_up_notices_a_restart_of_its_gateway_within_two_seconds() {
    let mut world = rested(4);
    world.restart(0);
    world.send(1, 0, 1, 1, 500);
    // The gateway that could decrypt this packet is gone, but the packet shows the client that it is.
    let noticed = world.run_until_true(Duration::from_secs(2), connected);
    assert!(noticed.is_some());
    world.send(1, 0, 1, 2, 500);
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.numbers(0, 1), [2]);
}
