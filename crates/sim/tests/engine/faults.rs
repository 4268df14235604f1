//! Paths that fail and recover, and ends that restart.

use std::time::Duration;

use pleach_core::path::health::State;

use crate::world::{PathModel, World, connected};

/// Sends one packet downwards every 500 µs for `time`.
fn stream(world: &mut World, number: &mut u32, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.send(0, 1, 1, *number, 1000);
        *number += 1;
        world.run_for(Duration::from_micros(500));
    }
}

fn longest_gap(world: &World) -> Duration {
    let times = world.hosts[1].delivered.iter().map(|(at, _)| *at);
    times
        .clone()
        .zip(times.skip(1))
        .map(|(a, b)| b.since(a))
        .max()
        .unwrap_or_default()
}

fn bytes_on(world: &World, path: usize) -> u64 {
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    status.paths[path].tx_bytes
}

#[test]
fn the_first_listed_link_may_be_dead_at_the_start() {
    let mut world = World::pair("weighted", 1);
    world.set_silent(0, true);
    let took = world
        .run_until_true(Duration::from_secs(2), connected)
        .expect("connects");
    assert!(took < Duration::from_millis(300), "{took:?}");
}

/// State of a path at the gateway.
fn state(world: &World, path: usize) -> State {
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    status.paths[path].state
}

/// Sends for `millis` ms and asserts in each that the state of path 0 is as `expected`.
#[track_caller]
fn stays(world: &mut World, number: &mut u32, millis: u64, expected: impl Fn(State) -> bool) {
    for _ in 0..millis {
        stream(world, number, Duration::from_millis(1));
        let state = state(world, 0);
        assert!(expected(state), "{state:?}");
    }
}

/// Connects over paths with the given one-way delays in ms, and sends for a second. Returns the number of packets.
fn connected_over(delays: &[u64], policy: &str) -> (World, u32) {
    let paths: Vec<_> = delays.iter().map(|ms| PathModel::with_delay(*ms)).collect();
    let mut world = World::new(1, &paths, policy, 5);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(500));
    let mut number = 0;
    stream(&mut world, &mut number, Duration::from_secs(1));
    (world, number)
}

#[test]
fn the_other_end_learns_of_a_cut_interface_within_a_one_way_delay() {
    let (mut world, mut number) = connected_over(&[10, 25], "weighted");
    world.set_silent(0, true);
    world.set_reach(1, 0, false);
    stream(&mut world, &mut number, Duration::from_millis(26));
    assert_eq!(state(&world, 0), State::Suspect);
    // Reports of the datagrams that arrived before the cut do not make the path Up again.
    stays(&mut world, &mut number, 500, |state| state != State::Up);
    let gap = longest_gap(&world);
    assert!(gap < Duration::from_millis(60), "{gap:?}");
    world.set_silent(0, false);
    world.set_reach(1, 0, true);
    stream(&mut world, &mut number, Duration::from_millis(50));
    assert_eq!(state(&world, 0), State::Up);
    world.run_for(Duration::from_secs(1));
    let mut numbers = world.numbers(1, 1);
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.into_iter().eq(0..number), "a packet is missing");
}

#[test]
fn a_pong_on_its_way_does_not_revive_a_cut_path() {
    // The policy samples the RTT every 50 ms, so pongs are always on their way over the slow path. They still arrive.
    let (mut world, mut number) = connected_over(&[120, 10], "srtt-weighted");
    world.set_reach(1, 0, false);
    stream(&mut world, &mut number, Duration::from_millis(12));
    assert_eq!(state(&world, 0), State::Suspect);
    stays(&mut world, &mut number, 500, |state| state != State::Up);
}

#[test]
fn a_late_copy_of_the_message_does_not_cut_a_path_that_has_returned() {
    let (mut world, mut number) = connected_over(&[10, 25, 300], "weighted");
    world.set_reach(1, 0, false);
    stream(&mut world, &mut number, Duration::from_millis(100));
    assert_ne!(state(&world, 0), State::Up);
    world.set_reach(1, 0, true);
    stream(&mut world, &mut number, Duration::from_millis(50));
    stays(&mut world, &mut number, 400, |state| state == State::Up);
}

#[test]
fn a_silent_path_costs_no_packet_and_little_time_and_is_used_again() {
    for policy in [
        "adaptive",
        "weighted",
        "round-robin",
        "min-rtt",
        "earliest-arrival",
        "osia",
        "consn",
        "consn+redundancy",
        "srtt-weighted",
        "flow",
        "redundant",
    ] {
        let mut world = World::pair(policy, 2);
        world
            .run_until_true(Duration::from_secs(1), connected)
            .expect("connects");
        world.run_for(Duration::from_millis(500));
        let mut number = 0;
        stream(&mut world, &mut number, Duration::from_secs(2));
        for path in [0, 1] {
            world.set_silent(path, true);
            stream(&mut world, &mut number, Duration::from_secs(3));
            world.set_silent(path, false);
            let before = bytes_on(&world, path);
            stream(&mut world, &mut number, Duration::from_secs(1));
            let is_spread = ["weighted", "round-robin", "redundant"].contains(&policy);
            assert!(
                !is_spread || bytes_on(&world, path) > before,
                "{policy}: path {path} is not used again"
            );
        }
        world.run_for(Duration::from_secs(1));
        let mut numbers = world.numbers(1, 1);
        assert!(
            longest_gap(&world) < Duration::from_millis(250),
            "{policy}: {:?}",
            longest_gap(&world)
        );
        numbers.sort_unstable();
        let missing: Vec<u32> = (0..number)
            .filter(|n| numbers.binary_search(n).is_err())
            .collect();
        assert_eq!(missing, [0; 0], "{policy}");
        assert_eq!(numbers.len(), number as usize, "{policy}");
    }
}

#[test]
fn a_path_dead_in_one_direction_does_not_silence_reports_of_the_other() {
    for direction in [0, 1] {
        let mut world = World::pair("weighted", 3);
        world
            .run_until_true(Duration::from_secs(1), connected)
            .expect("connects");
        world.run_for(Duration::from_millis(500));
        let mut number = 0;
        stream(&mut world, &mut number, Duration::from_secs(1));
        world.paths[0].is_silent[direction] = true;
        stream(&mut world, &mut number, Duration::from_secs(3));
        world.run_for(Duration::from_secs(1));
        let mut numbers = world.numbers(1, 1);
        numbers.sort_unstable();
        assert_eq!(
            numbers,
            (0..number).collect::<Vec<_>>(),
            "direction {direction}"
        );
        assert!(
            longest_gap(&world) < Duration::from_millis(300),
            "{direction}: {:?}",
            longest_gap(&world)
        );
    }
}

#[test]
fn either_end_may_restart() {
    let mut world = World::pair("weighted", 4);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    for host in [0, 1, 0, 1] {
        world.run_for(Duration::from_secs(2));
        world.restart(host);
        let before = [
            world.hosts[0].delivered.len(),
            world.hosts[1].delivered.len(),
        ];
        let start = world.now;
        let mut number = 0;
        while world.hosts[0].delivered.len() == before[0]
            || world.hosts[1].delivered.len() == before[1]
        {
            world.send(0, 1, 1, number, 500);
            world.send(1, 0, 1, number, 500);
            number += 1;
            world.run_for(Duration::from_millis(20));
            assert!(
                world.now.since(start) < Duration::from_secs(3),
                "host {host} restarted"
            );
        }
    }
}

#[test]
fn a_client_may_change_its_address() {
    // The gateway answers to the address of the newest authentic datagram. Here both links swap their addresses.
    let mut world = World::new(
        1,
        &[PathModel::with_delay(5), PathModel::with_delay(9)],
        "weighted",
        5,
    );
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(500));
    let (_, before) = world.hosts[0].endpoint.status().next().expect("a client");
    world.record = true;
    world.send(1, 0, 1, 0, 300);
    world.run_for(Duration::from_millis(50));
    world.record = false;
    // A replay from another address must not move the route.
    let copies: Vec<_> = world.seen.drain(..).map(|(_, datagram)| datagram).collect();
    for datagram in copies {
        world.inject("192.0.2.66:666".parse().expect("address"), &datagram);
    }
    let (_, after) = world.hosts[0].endpoint.status().next().expect("a client");
    for (before, after) in before.paths.iter().zip(&after.paths) {
        assert_eq!(before.remote, after.remote);
    }
}

#[test]
fn a_standby_link_carries_data_only_while_no_other_works() {
    use pleach_core::wire::control::LinkRole;
    let mut world = World::pair("weighted", 6);
    let now = world.now;
    world.hosts[1]
        .endpoint
        .update_links(now, "link1", |link| link.role = LinkRole::Standby);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(500));
    let mut number = 0;
    stream(&mut world, &mut number, Duration::from_secs(1));
    assert_eq!(bytes_on(&world, 1), 0);
    world.set_silent(0, true);
    stream(&mut world, &mut number, Duration::from_secs(1));
    assert!(bytes_on(&world, 1) > 0);
    world.set_silent(0, false);
    stream(&mut world, &mut number, Duration::from_secs(1));
    let before = bytes_on(&world, 1);
    stream(&mut world, &mut number, Duration::from_secs(1));
    assert_eq!(bytes_on(&world, 1), before);
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    assert!(status.paths.iter().all(|path| path.state == State::Up));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.numbers(1, 1).len(), number as usize);
}

#[test]
fn a_standby_link_costs_20_mb_a_month_at_most() {
    use pleach_core::wire::control::LinkRole;
    // The link with the shorter delay is on standby.
    let paths = [30, 10].map(PathModel::with_delay);
    for policy in ["adaptive", "weighted"] {
        let mut world = World::new(1, &paths, policy, 7);
        let now = world.now;
        let client = &mut world.hosts[1].endpoint;
        client.update_links(now, "link1", |link| link.role = LinkRole::Standby);
        world
            .run_until_true(Duration::from_secs(1), connected)
            .expect("connects");
        world.run_for(Duration::from_secs(60));
        let before = world.carried[1];
        let mut number = 0;
        for _ in 0..10 {
            stream(&mut world, &mut number, Duration::from_secs(1));
            world.run_for(Duration::from_secs(59));
        }
        let a_month = (world.carried[1] - before) * 6 * 24 * 30;
        assert!(a_month > 0, "whether it works is not known");
        assert!(a_month <= 20_000_000, "{policy}: {a_month}");
    }
}

#[test]
fn an_idle_link_carries_2_kbit_a_second_at_most_either_way() {
    for (delay, shake) in [(5, 0), (5, 1), (20, 20), (300, 0)] {
        let path = PathModel {
            shake: Duration::from_millis(shake),
            ..PathModel::with_delay(delay)
        };
        let mut world = World::new(1, &[path], "adaptive", 9);
        world
            .run_until_true(Duration::from_secs(3), connected)
            .expect("connects");
        world.run_for(Duration::from_secs(10));
        let before = world.carried[0];
        world.run_for(Duration::from_secs(100));
        // Traffic of both directions, with IPv4 and UDP headers.
        let bits = (world.carried[0] - before) * 8;
        assert!(bits > 0);
        assert!(
            bits / 100 / 2 <= 2_000,
            "{delay} ms, {shake} ms: {bits} bit"
        );
    }
}

#[test]
fn a_dear_link_that_is_not_needed_costs_little_more_than_an_idle_one() {
    let paths = [10, 30].map(PathModel::with_delay);
    let mut world = World::new(1, &paths, "adaptive", 8);
    let now = world.now;
    let client = &mut world.hosts[1].endpoint;
    client.update_links(now, "link1", |link| link.cost = 1);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    let mut number = 0;
    // After its last packet, a tunnel does not rest for 10 s.
    stream(&mut world, &mut number, Duration::from_millis(1));
    world.run_for(Duration::from_secs(2));
    let mut carried = |is_busy: bool| {
        let before = world.carried[1];
        for _ in 0..7 {
            if is_busy {
                stream(&mut world, &mut number, Duration::from_secs(1));
            } else {
                world.run_for(Duration::from_secs(1));
            }
        }
        world.carried[1] - before
    };
    let (idle, busy) = (carried(false), carried(true));
    assert!(busy < idle * 3, "{busy} beside {idle} bytes");
}
