//! Path properties that an end remembers and uses again later.

use std::time::Duration;

use pleach_core::{
    path::memory::PathMemory, sched::Policy, units::Bitrate, wire::control::LinkRole,
};

use crate::world::{PathModel, World, connected, path_id};

/// Creates a connected pair under `adaptive` with two links of 20 Mbit/s, of which the second is on standby.
fn with_standby() -> World {
    let path = PathModel {
        rate: Some(Bitrate::from_mbps(20)),
        ..PathModel::with_delay(50)
    };
    let mut world = World::new(1, &[path; 2], "adaptive", 1);
    let now = world.now;
    let client = &mut world.hosts[1].endpoint;
    client.update_links(now, "link1", |link| link.role = LinkRole::Standby);
    let connects = world.run_until_true(Duration::from_secs(2), connected);
    assert!(connects.is_some());
    world
}

/// Sends 25 Mbit/s from the client for `millis`. Returns the number of packets that the gateway delivers, including
/// earlier ones.
fn stream(world: &mut World, millis: u64) -> usize {
    let before = world.hosts[0].delivered.len();
    let end = world.now + Duration::from_millis(millis);
    let mut number = 0;
    while world.now < end {
        world.send(1, 0, 1, number, 1000);
        number += 1;
        world.run_for(Duration::from_micros(320));
    }
    world.hosts[0].delivered.len() - before
}

/// Returns the client's memory of its second path after some seconds at full load.
fn remembered() -> PathMemory {
    let mut world = with_standby();
    let now = world.now;
    assert_eq!(world.hosts[1].endpoint.memories(now).count(), 0);
    world.set_silent(0, true);
    stream(&mut world, 6_000);
    let now = world.now;
    let mut memories = world.hosts[1].endpoint.memories(now);
    let of_second = memories.find(|(peer, path, _)| *peer == "gateway" && *path == path_id(1));
    of_second.expect("it was full").2
}

#[test]
fn what_was_full_is_remembered() {
    let memory = remembered();
    assert!(memory.rate > Bitrate::from_mbps(17), "{memory:?}");
    assert!(memory.rate < Bitrate::from_mbps(21), "{memory:?}");
    assert!(memory.min_rtt >= Duration::from_millis(100), "{memory:?}");
    assert!(memory.min_rtt < Duration::from_millis(130), "{memory:?}");
}

#[test]
fn a_link_that_stands_by_takes_over_at_once_what_it_is_known_to_carry() {
    let memory = remembered();
    // The time until the failure of the other link is detected depends on the time of its last probe.
    let takes_over = |memory: Option<PathMemory>, idle_ms, millis| {
        let mut world = with_standby();
        let now = world.now;
        if let Some(memory) = &memory {
            let client = &mut world.hosts[1].endpoint;
            client.recall(now, "gateway", path_id(1), memory);
        }
        world.run_for(Duration::from_millis(idle_ms));
        world.set_silent(0, true);
        stream(&mut world, millis)
    };
    let times = |number, of| PathMemory {
        rate: memory.rate.scale(number, of),
        ..memory
    };
    // The capacity of the network has changed by a factor of ten.
    let (low, high) = (times(1, 10), times(10, 1));
    for idle_ms in [500, 600, 700, 850, 950] {
        let cold = takes_over(None, idle_ms, 1_000);
        let warm = takes_over(Some(memory), idle_ms, 1_000);
        assert!(warm > cold + cold / 10, "{idle_ms}: {warm} {cold}");
        let high = takes_over(Some(high), idle_ms, 1_000);
        assert!(high > cold * 7 / 10, "{idle_ms}: {high} {cold}");
        // If the remembered rate is too low, it costs two RTTs.
        let low = takes_over(Some(low), idle_ms, 1_220);
        assert!(low > cold * 7 / 10, "{idle_ms}: {low} {cold}");
    }
}

#[test]
fn each_start_asks_what_is_remembered_of_each_path() {
    let mut world = with_standby();
    world.run_for(Duration::from_secs(1));
    let both = |peer: &str| {
        let of = |link: usize| (peer.to_owned(), path_id(link), format!("link{link}"));
        vec![of(0), of(1)]
    };
    // A client starts measuring again once it knows which run of the gateway's process it is connected to.
    assert!(world.hosts[1].found.ends_with(&both("gateway")));
    assert!(
        world.hosts[0].found.ends_with(&both("1")),
        "with the names it was told"
    );
    world.hosts[1].found.clear();
    world.restart(1);
    world.run_for(Duration::from_secs(1));
    assert!(world.hosts[1].found.ends_with(&both("gateway")));
    // A link that was away may lead elsewhere when it returns.
    world.hosts[1].found.clear();
    world.set_reach(1, 1, false);
    world.run_for(Duration::from_millis(50));
    world.set_reach(1, 1, true);
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.hosts[1].found, both("gateway")[1..]);
}

#[test]
fn policies_that_do_not_search_take_no_notice() {
    for name in Policy::<String>::NAMES {
        let path = PathModel {
            rate: Some(Bitrate::from_mbps(20)),
            ..PathModel::with_delay(20)
        };
        if *name == "adaptive" {
            continue;
        }
        let run = |memory: Option<u64>| {
            let mut world = World::new(1, &[path], name, 1);
            world.run_until_true(Duration::from_secs(2), connected);
            let now = world.now;
            if let Some(mbps) = memory {
                let memory = PathMemory {
                    rate: Bitrate::from_mbps(mbps),
                    min_rtt: Duration::from_millis(40),
                    loss_ppm: 0,
                };
                let client = &mut world.hosts[1].endpoint;
                client.recall(now, "gateway", path_id(0), &memory);
            }
            stream(&mut world, 200)
        };
        assert_eq!(run(Some(1)), run(None), "{name}");
    }
}
