//! Packets that wait for their path while later packets are sent.

use std::time::Duration;

use pleach_core::counters::DropReason;

use crate::world::{PathModel, World};

/// Creates a connected pair over paths of 24 and 8 Mbit/s, as configured, whose delays differ by 50 ms.
fn apart(policy: &str) -> World {
    let paths = [PathModel::with_delay(7), PathModel::with_delay(57)];
    let mut world = World::new(1, &paths, policy, 1);
    let now = world.now;
    for (link, rate) in [("link0", "24Mbit"), ("link1", "8Mbit")] {
        world.hosts[1].endpoint.update_links(now, link, |link| {
            link.upload = Some(rate.parse().expect("rate"));
        });
    }
    world.run_for(Duration::from_millis(500));
    assert!(world.hosts.iter().all(|host| host.endpoint.is_up()));
    world
}

/// Sends packets of 1000 bytes of one flow, one every `interval`, for three seconds. Returns their number.
fn stream(world: &mut World, interval: Duration) -> u32 {
    let end = world.now + Duration::from_secs(3);
    let mut number = 0;
    while world.now < end {
        world.send(1, 0, 3, number, 1000);
        number += 1;
        world.run_for(interval);
    }
    number
}

fn in_order(numbers: &[u32]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

/// Returns the time for which the receiver buffers packets, and the bytes over the path with the longer delay, at a
/// load above the capacity of both paths.
fn busy(policy: &str) -> (Duration, u64) {
    let mut world = apart(policy);
    stream(&mut world, Duration::from_micros(230));
    let (_, gateway) = world.hosts[0].endpoint.status().next().expect("a peer");
    let (_, client) = world.hosts[1].endpoint.status().next().expect("a peer");
    assert!(in_order(&world.numbers(0, 3)), "{policy}");
    (gateway.hold_p95, client.paths[1].tx_bytes)
}

#[test]
fn the_receiver_hardly_has_to_hold_anything() {
    let (hold, slow) = busy("osia");
    let (held, alike) = busy("weighted");
    assert!(held > Duration::from_millis(40), "{held:?}");
    assert!(hold < Duration::from_millis(20), "{hold:?}");
    // 8 Mbit/s for 3 s, minus the start-up phase.
    assert!(slow > 2_700_000 && alike > 2_700_000, "{slow}, {alike}");
}

#[test]
fn light_traffic_takes_the_quick_path_only() {
    let mut world = apart("osia");
    let sent = stream(&mut world, Duration::from_millis(1));
    world.run_for(Duration::from_millis(200));
    assert_eq!(world.numbers(0, 3).len(), sent as usize);
    let (_, client) = world.hosts[1].endpoint.status().next().expect("a peer");
    let [quick, slow] = [0, 1].map(|path| client.paths[path].tx_bytes);
    assert!(slow * 50 < quick, "{quick}, {slow}");
}

#[test]
fn what_waits_for_a_path_that_falls_silent_goes_elsewhere() {
    let mut world = apart("osia");
    for number in 0..400 {
        world.send(1, 0, 3, number, 1000);
    }
    world.run_for(Duration::from_millis(20));
    world.set_silent(0, true);
    world.run_for(Duration::from_secs(3));
    let mut numbers = world.numbers(0, 3);
    numbers.sort_unstable();
    numbers.dedup();
    let aqm = world.hosts[1].drops(DropReason::Aqm);
    assert_eq!(numbers.len() as u64 + aqm, 400);
}
