//! One client and one gateway without faults.

use std::time::Duration;

use pleach_core::{counters::DropReason, path::health::State, sched::Policy};

use crate::world::{PathModel, World, connected, path_id};

#[test]
fn connects_within_two_round_trips() {
    let mut world = World::pair("weighted", 1);
    let took = world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    assert!(took <= Duration::from_millis(40), "{took:?}");
    world.run_for(Duration::from_millis(200));
    let (_, status) = world.hosts[0].endpoint.status().next().expect("a client");
    assert!(
        status.paths.iter().all(|path| path.state == State::Up),
        "{status:?}"
    );
    assert_eq!(status.paths[1].name, "link1");
    let rtt = status.paths[1].smoothed_rtt.expect("measured");
    assert!(
        (Duration::from_millis(36)..Duration::from_millis(38)).contains(&rtt),
        "{rtt:?}"
    );
}

#[test]
fn every_policy_delivers_every_packet_in_order_both_ways() {
    for &policy in Policy::<String>::NAMES {
        let mut world = World::pair(policy, 2);
        world
            .run_until_true(Duration::from_secs(1), connected)
            .expect("connects");
        world.run_for(Duration::from_millis(300));
        for number in 0..2000 {
            world.send(0, 1, number as u16 % 5, number, 1000);
            world.send(1, 0, number as u16 % 3, number, 200);
            world.run_for(Duration::from_micros(100));
        }
        world.run_for(Duration::from_millis(500));
        for (host, flows) in [(1, 5), (0, 3)] {
            let mut total = 0;
            for flow in 0..flows {
                let numbers = world.numbers(host, flow);
                assert!(numbers.is_sorted(), "{policy}: flow {flow} out of order");
                total += numbers.len();
            }
            assert_eq!(total, 2000, "{policy}, to host {host}");
        }
        let duplicates = world.hosts[1].endpoint.drops().get(DropReason::Duplicate);
        assert_eq!(duplicates > 0, policy == "redundant", "{policy}");
    }
}

#[test]
fn weights_are_the_clients_and_hold_both_ways_and_change_live() {
    let mut world = World::pair("weighted", 3);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(300));
    let now = world.now;
    let endpoint = &mut world.hosts[1].endpoint;
    assert_eq!(
        endpoint.update_links(now, "link0", |link| link.weight = 3),
        1
    );
    world.run_for(Duration::from_millis(300));
    let sent = |world: &World, host: usize| -> Vec<u64> {
        let (_, status) = world.hosts[host].endpoint.status().next().expect("a peer");
        status.paths.iter().map(|path| path.tx_bytes).collect()
    };
    for host in [0, 1] {
        let before = sent(&world, host);
        for number in 0..400 {
            world.send(host, 1 - host, 1, number, 1000);
            world.run_for(Duration::from_micros(200));
        }
        let after = sent(&world, host);
        let [first, second] = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(first, 3 * second, "host {host}");
    }
}

#[test]
fn a_link_limit_paces_and_the_queue_waits_in_the_tunnel() {
    let mut world = World::new(1, &[PathModel::with_delay(5)], "single", 4);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    let now = world.now;
    world.hosts[1].endpoint.update_links(now, "link0", |link| {
        link.upload = Some("8Mbit".parse().expect("rate"));
    });
    let start = world.now;
    for number in 0..100 {
        world.send(1, 0, 1, number, 962);
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.numbers(0, 1).len(), 100);
    // 100 datagrams of 1000 bytes at 8 Mbit/s take 100 ms. The token bucket permits a burst of a few packets.
    let last = world.hosts[0].delivered.last().expect("delivered").0;
    let took = last.since(start).as_millis();
    assert!((98..=110).contains(&took), "{took} ms");
}

#[test]
fn keys_change_without_losing_a_packet() {
    let mut world = World::pair("weighted", 5);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(300));
    for number in 0..2600 {
        world.send(0, 1, 1, number, 300);
        world.send(1, 0, 1, number, 300);
        world.run_for(Duration::from_millis(100));
    }
    world.run_for(Duration::from_secs(1));
    for host in [0, 1] {
        assert_eq!(
            world.numbers(host, 1),
            (0..2600).collect::<Vec<_>>(),
            "host {host}"
        );
        assert_eq!(world.hosts[host].endpoint.drops().total(), 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::pair("round-robin", seed);
        world.paths[0].loss_pct = 5;
        world.record = true;
        world.run_for(Duration::from_millis(100));
        for number in 0..300 {
            world.send(1, 0, 1, number, 500);
            world.run_for(Duration::from_micros(300));
        }
        world.run_for(Duration::from_secs(1));
        world
            .seen
            .into_iter()
            .map(|(_, datagram)| datagram)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

#[test]
fn a_closed_tunnel_is_down_at_the_other_end_and_comes_back() {
    let mut world = World::pair("weighted", 6);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.hosts[1].endpoint.close();
    world.run_for(Duration::from_millis(100));
    assert!(!world.hosts[0].endpoint.is_up());
    world.restart(1);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects again");
    assert!(path_id(0).index() == 0);
}
