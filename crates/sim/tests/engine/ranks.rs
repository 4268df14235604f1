//! Ranks of links: `cost` as a number.

use std::time::Duration;

use crate::world::World;

const SPILLING: [&str; 6] = [
    "auto-weight",
    "earliest-arrival",
    "min-rtt",
    "redundant",
    "round-robin",
    "weighted",
];

/// Creates a connected pair whose link with the shorter delay has the lower rank and sends at most `upload`.
fn ranked(policy: &str, upload: &str) -> World {
    let mut world = World::pair(policy, 1);
    let now = world.now;
    let client = &mut world.hosts[1].endpoint;
    client.update_links(now, "link0", |link| {
        link.upload = Some(upload.parse().expect("rate"));
    });
    client.update_links(now, "link1", |link| link.cost = 1);
    world.run_for(Duration::from_millis(500));
    assert!(world.hosts.iter().all(|host| host.endpoint.is_up()));
    world
}

/// Returns the bytes of data that a host has sent on each path.
fn sent(world: &World, host: usize) -> [u64; 2] {
    let (_, status) = world.hosts[host].endpoint.status().next().expect("a peer");
    [status.paths[0].tx_bytes, status.paths[1].tx_bytes]
}

/// Sends a packet of 1000 bytes from the client every `interval` for two seconds, with ten flows in rotation. Returns
/// the bytes that each path carried.
fn stream(world: &mut World, interval: Duration) -> [u64; 2] {
    let before = sent(world, 1);
    let end = world.now + Duration::from_secs(2);
    let mut number = 0;
    while world.now < end {
        world.send(1, 0, number as u16 % 10, number, 1000);
        number += 1;
        world.run_for(interval);
    }
    let after = sent(world, 1);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_higher_rank_carries_nothing_while_the_lower_has_room() {
    for policy in SPILLING {
        let mut world = ranked(policy, "40Mbit");
        // The load is 4 Mbit/s on a link of 40.
        let [low, high] = stream(&mut world, Duration::from_millis(2));
        assert!(low > 900_000, "{policy}: {low}");
        assert_eq!(high, 0, "{policy}");
        // The gateway was informed of the ranks.
        let before = sent(&world, 0);
        for number in 0..100 {
            world.send(0, 1, 1, number, 1000);
            world.run_for(Duration::from_millis(2));
        }
        assert_eq!(sent(&world, 0)[1], before[1], "{policy}");
    }
}

#[test]
fn a_higher_rank_carries_what_the_lower_has_no_room_for() {
    for policy in SPILLING {
        let mut world = ranked(policy, "8Mbit");
        // The load is 16 Mbit/s: 4 MB in two seconds, of which the first rank carries 2 MB.
        let [low, high] = stream(&mut world, Duration::from_micros(500));
        assert!((1_900_000..2_150_000).contains(&low), "{policy}: {low}");
        assert!((1_700_000..2_300_000).contains(&high), "{policy}: {high}");
    }
}

#[test]
fn a_higher_rank_takes_over_when_the_lower_is_silent() {
    for policy in SPILLING.into_iter().chain(["flow", "single"]) {
        let mut world = ranked(policy, "40Mbit");
        world.set_silent(0, true);
        world.run_for(Duration::from_secs(2));
        let [low, high] = stream(&mut world, Duration::from_millis(2));
        assert_eq!(low, 0, "{policy}");
        assert!(high > 900_000, "{policy}: {high}");
    }
}

#[test]
fn policies_that_keep_to_a_path_do_not_spill() {
    for policy in ["flow", "single"] {
        let mut world = ranked(policy, "8Mbit");
        let [_, high] = stream(&mut world, Duration::from_micros(500));
        assert_eq!(high, 0, "{policy}");
    }
    // The user named the link, so the rank has no effect.
    let mut world = ranked("single:link1", "8Mbit");
    let [low, high] = stream(&mut world, Duration::from_millis(2));
    assert_eq!(low, 0);
    assert!(high > 900_000, "{high}");
}

#[test]
fn earliest_arrival_waits_for_the_lower_rank_if_that_is_quicker() {
    // 42 packets are a few more than the pacer's burst. At 80 Mbit/s all of them take 4.4 ms, and the delay of the
    // other path is 11 ms longer.
    let burst = |policy: &str| {
        let mut world = ranked(policy, "80Mbit");
        // Rates are measured from traffic.
        stream(&mut world, Duration::from_micros(100));
        world.run_for(Duration::from_millis(200));
        let before = sent(&world, 1);
        for number in 0..42 {
            world.send(1, 0, 30, number, 1000);
        }
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.numbers(0, 30).len(), 42, "{policy}");
        let after = sent(&world, 1);
        after[1] - before[1]
    };
    assert_eq!(burst("earliest-arrival"), 0);
    assert!(burst("weighted") > 0);
}
