//! A tunnel without packets rests: it sends little, and notices failures when it is needed again.

use std::time::Duration;

use crate::world::{PathModel, World, connected};

/// Creates a connected pair over two paths, without packets for a minute.
fn rested(seed: u64) -> World {
    let mut world = World::new(1, &[5, 20].map(PathModel::with_delay), "adaptive", seed);
    world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    world.run_for(Duration::from_secs(60));
    world
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
fn the_first_packets_after_a_rest_survive_a_path_that_failed_meanwhile() {
    for end in [0, 1] {
        let mut world = rested(2);
        world.set_silent(0, true);
        world.run_for(Duration::from_secs(1));
        for number in 0..20 {
            world.send(end, 1 - end, 1, number, 500);
            world.run_for(Duration::from_millis(2));
        }
        world.run_for(Duration::from_millis(400));
        let arrived = world.numbers(1 - end, 1);
        assert_eq!(arrived, (0..20).collect::<Vec<_>>(), "from {end}");
    }
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
