//! A tunnel without packets rests: it sends little, and notices failures when it is needed again.

use std::{net::SocketAddr, time::Duration};

use pleach_core::{
    path::health::State,
    profile::Part,
    sched::SchedulerSettings,
    tunnel::{PathStatus, TunnelStatus},
};
use pleach_sim::link::loss::{Loss, LossState};

use crate::world::{GATEWAY, PathModel, World, connected, policy};

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
    exchange(&mut world, 9, 50);
    world
}

/// Sends `count` packets of one flow from each end, over `count` times 10 ms.
fn exchange(world: &mut World, flow: u16, count: u32) {
    for number in 0..count {
        world.send(0, 1, flow, number, 500);
        world.send(1, 0, flow, number, 500);
        world.run_for(10 * MS);
    }
}

/// Runs until a probe is sent on a path.
fn await_probe(world: &mut World, path: usize) {
    let before = world.carried[path];
    world
        .run_until_true(Duration::from_secs(13), |world| {
            world.carried[path] > before
        })
        .expect("a probe");
}

/// Runs until no datagram has been sent on a path for 9 s.
fn pause(world: &mut World, path: usize) {
    await_probe(world, path);
    world.run_for(Duration::from_secs(9));
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
    tunnel(world, host).paths[0].clone()
}

fn tunnel(world: &World, host: usize) -> TunnelStatus {
    let (_, status) = world.hosts[host].endpoint.status().next().expect("a peer");
    status
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
    assert!(known.iter().all(|path| path.rate.is_some()));
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
        exchange(&mut world, 9, count);
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
    exchange(&mut world, 9, 20);
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
        // The other path answers after 40 ms. The path is not suspect within this time.
        world.run_for(Duration::from_millis(250));
        let arrived = world.numbers(1 - end, 1);
        assert_eq!(arrived, (0..20).collect::<Vec<_>>(), "from {end}");
    }
}

#[test]
fn a_resting_client_notices_a_dead_gateway_within_12_5_seconds() {
    for at in 0..10 {
        let mut world = rested(8);
        world.run_for(Duration::from_secs(at));
        world.set_silent(0, true);
        world.set_silent(1, true);
        let before = world.initiations;
        let noticed = world.run_until_true(Duration::from_secs(14), |world| {
            !world.hosts[1].endpoint.is_up() && world.initiations > before
        });
        // A probe every 10 s, two seconds of silence, and half a second between attempts to connect.
        let noticed = noticed.expect("it starts handshakes");
        assert!(noticed <= Duration::from_millis(12_600), "{noticed:?}");
        // It connects as soon as the gateway answers again, although it rests.
        world.run_for(Duration::from_secs(30));
        world.set_silent(0, false);
        world.set_silent(1, false);
        let connected = world.run_until_true(Duration::from_secs(2), connected);
        assert!(connected.is_some());
    }
}

#[test]
fn a_resting_client_with_a_far_gateway_starts_one_handshake_when_the_gateway_returns() {
    let mut world = rested_over(&[250, 250].map(PathModel::with_delay), 8);
    for path in [0, 1] {
        world.set_silent(path, true);
    }
    world.run_for(Duration::from_secs(40));
    for path in [0, 1] {
        world.set_silent(path, false);
    }
    let completed = |world: &World| world.hosts[1].endpoint.handshakes().completed;
    let before = completed(&world);
    world.run_for(Duration::from_secs(4));
    assert!(connected(&world));
    // Attempts on both links may be under way when the first one succeeds.
    let made = completed(&world) - before;
    assert!((1..=2).contains(&made), "{made} handshakes");
}

#[test]
fn a_burst_after_a_rest_arrives_in_order_over_paths_of_different_delay() {
    let mut world = World::new(1, &[10, 90].map(PathModel::with_delay), "weighted", 23);
    world
        .run_until_true(Duration::from_secs(5), connected)
        .expect("connects");
    exchange(&mut world, 1, 200);
    pause(&mut world, 1);
    for number in 0..50 {
        world.send(0, 1, 2, number, 500);
        world.send(1, 0, 2, number, 500);
    }
    world.run_for(Duration::from_secs(1));
    for host in [0, 1] {
        assert_eq!(
            world.numbers(host, 2),
            (0..50).collect::<Vec<_>>(),
            "{host}"
        );
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
    let noticed = world.run_until_true(Duration::from_secs(13), connected);
    assert!(noticed.is_some());
}

#[test]
fn an_association_without_packets_rests_after_four_seconds() {
    let mut world = World::new(1, &[PathModel::with_delay(5)], "adaptive", 10);
    world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    world.run_for(Duration::from_secs(5));
    let before = world.carried[0];
    world.run_for(Duration::from_secs(30));
    // An end that does not rest sends a probe every 550 ms: more than 10 kB.
    let carried = world.carried[0] - before;
    assert!(carried > 0 && carried < 2_000, "{carried} bytes");
}

#[test]
fn a_lost_probe_of_a_resting_client_starts_no_handshake() {
    let mut world = rested_over(&[PathModel::with_delay(5)], 11);
    let before = world.initiations;
    world.set_silent(0, true);
    await_probe(&mut world, 0);
    world.run_for(100 * MS);
    world.set_silent(0, false);
    let failed = world.run_until_true(Duration::from_secs(20), |world| {
        path(world, 1).state != State::Up || world.initiations > before
    });
    assert_eq!(failed, None);
}

#[test]
fn a_gateway_that_stalls_for_a_moment_gets_no_handshakes() {
    let mut world = rested_over(&[PathModel::with_delay(5)], 12);
    let before = world.initiations;
    world.set_silent(0, true);
    await_probe(&mut world, 0);
    world.run_for(Duration::from_millis(1_500));
    assert_eq!(path(&world, 1).state, State::Suspect);
    world.set_silent(0, false);
    world.run_for(Duration::from_secs(1));
    assert_eq!(path(&world, 1).state, State::Up);
    world.run_for(Duration::from_secs(15));
    assert_eq!(world.initiations, before);
}

#[test]
fn a_client_that_rests_measures_its_paths() {
    let mut world = rested(13);
    world.paths[0].delay = 15 * MS;
    world.run_for(Duration::from_secs(55));
    for host in [0, 1] {
        // It was 10 ms before. A sample weighs an eighth.
        let rtt = path(&world, host).smoothed_rtt.expect("probes");
        assert!(rtt > 17 * MS, "{host}: {rtt:?}");
    }
}

#[test]
fn a_path_that_failed_during_a_rest_carries_nothing_once_another_has_answered() {
    for end in [0, 1] {
        let mut world = rested(14);
        pause(&mut world, 0);
        world.set_silent(0, true);
        world.send(end, 1 - end, 1, 0, 500);
        world.run_for(100 * MS);
        let before = world.lost_data;
        for number in 1..300 {
            world.send(end, 1 - end, 1, number, 500);
            world.run_for(MS);
        }
        assert_eq!(world.lost_data, before, "from {end}");
        world.run_for(100 * MS);
        assert_eq!(path(&world, end).state, State::Up, "from {end}");
        let arrived = world.numbers(1 - end, 1);
        assert_eq!(arrived, (0..300).collect::<Vec<_>>(), "from {end}");
    }
}

#[test]
fn packets_do_not_wait_for_a_radio_that_wakes_up_if_another_link_is_awake() {
    for end in [0, 1] {
        let mut world = rested_over(&[cellular(), PathModel::with_delay(20)], 15);
        pause(&mut world, 0);
        for number in 0..100 {
            world.send(end, 1 - end, 1, number, 500);
            world.run_for(MS);
        }
        world.run_for(200 * MS);
        let arrived = world.numbers(1 - end, 1);
        assert_eq!(arrived, (0..100).collect::<Vec<_>>(), "from {end}");
        let failed = world.run_until_true(Duration::from_secs(2), |world| {
            path(world, end).state != State::Up
        });
        assert_eq!(failed, None, "from {end}");
    }
}

#[test]
fn a_dead_link_with_two_gateway_addresses_is_probed_rarely() {
    let mut world = rested(16);
    let now = world.now;
    let address = |text: &str| text.parse::<SocketAddr>().expect("address");
    let endpoints = vec![address(GATEWAY), address("203.0.113.6:7700")];
    world.hosts[1].endpoint.set_endpoints(now, endpoints);
    world.set_silent(1, true);
    world.run_for(Duration::from_secs(13));
    let before = world.carried[1];
    world.run_for(Duration::from_secs(40));
    // Five probes of the client for each change of the address, every 10 s, and one of the gateway.
    let carried = world.carried[1] - before;
    assert!(carried > 0 && carried < 2_500, "{carried} bytes");
}

#[test]
fn packets_that_wait_when_a_session_expires_are_sent_in_the_next_one() {
    let mut world = used(&[PathModel::with_delay(5)], 17);
    world.set_silent(0, true);
    world.run_for(Duration::from_secs(170));
    let mut queued = 0;
    // The session expires 180 s after the handshake.
    for number in 0..2_000 {
        world.send(1, 0, 1, number, 500);
        world.run_for(10 * MS);
        let before = core::mem::replace(&mut queued, tunnel(&world, 1).queued);
        assert!(queued >= before, "{number}: {queued} of {before}");
    }
    assert!(queued > 0);
    world.set_silent(0, false);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.numbers(0, 1).last(), Some(&1_999));
}

#[test]
fn packets_continue_in_order_after_memory_was_freed() {
    for name in ["adaptive", "awi"] {
        // Where RTTs are short, losses are left to retransmission.
        let mut world = World::new(1, &[60, 80].map(PathModel::with_delay), name, 18);
        let mut settings = SchedulerSettings::from(policy(name));
        settings.change.set(Part::Fec, true);
        let now = world.now;
        for host in &mut world.hosts {
            host.endpoint.reconfigure(now, &[], |_| settings.clone());
        }
        world
            .run_until_true(Duration::from_secs(5), connected)
            .expect("connects");
        let lose = |world: &mut World, loss| world.losses.fill([LossState::new(loss); 2]);
        lose(&mut world, Loss::Bernoulli(0.05));
        exchange(&mut world, 1, 1_000);
        for host in [0, 1] {
            let [sent, received] = tunnel(&world, host).symbols;
            assert!(sent > 0 && received > 0, "{name}, {host}");
        }
        lose(&mut world, Loss::None);
        world.run_for(Duration::from_secs(70));
        exchange(&mut world, 1, 500);
        world.run_for(Duration::from_secs(1));
        for host in [0, 1] {
            let numbers = world.numbers(host, 1);
            let again = numbers.iter().rposition(|number| *number == 0);
            let after = &numbers[again.expect("the first after the rest")..];
            assert_eq!(after, (0..500).collect::<Vec<_>>(), "{name}, {host}");
        }
    }
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
