use core::{net::SocketAddr, time::Duration};

use super::*;
use crate::traffic::App;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("literal")
}

/// Creates two hosts that echo, with an unsolicited datagram between them.
fn mirrors(event_limit: u64) -> World {
    let mut world = World::new(Instant::from_millis(7), event_limit);
    let ends = [address("10.0.0.1:7"), address("10.0.0.2:7")];
    let everything = "0.0.0.0/0".parse().expect("net");
    let nodes = ends.map(|end| {
        let route = Route {
            from: None,
            to: everything,
            via: Via::Port(0),
        };
        let mut host = Host::new(vec![end.ip()], vec![route]);
        host.add_app(App::echo(end));
        world.add(format!("mirror {end}"), Node::Host(Box::new(host)))
    });
    world.wire((nodes[0], 0), (nodes[1], 0));
    world.wire((nodes[1], 0), (nodes[0], 0));
    let mut buffers = Buffers::default();
    let packet = buffers.datagram(ends[0], ends[1], |bytes| bytes.push(1));
    world.arrivals.push_back(Arrival {
        node: nodes[1],
        port: 0,
        packet: packet.expect("short"),
    });
    world
}

#[test]
fn a_livelock_ends_with_an_error_that_names_node_and_time() {
    let error = mirrors(u64::MAX).run_until(Instant::from_millis(8));
    let error = error.expect_err("forever").to_string();
    assert!(error.contains("at 7 ms"), "{error}");
    assert!(error.contains("mirror 10.0.0."), "{error}");
}

#[test]
fn a_run_makes_no_more_events_than_it_may() {
    let limit = 1_000;
    let error = mirrors(limit).run_until(Instant::from_millis(8));
    let error = error.expect_err("forever");
    assert!(
        matches!(&error, WorldError::TooManyEvents { at_ms: 7, limit: 1_000, node } if node.starts_with("mirror")),
        "{error}"
    );
}

#[test]
fn an_empty_world_only_lets_time_pass() {
    let mut world = World::new(Instant::ZERO, 1);
    let end = Instant::ZERO + Duration::from_secs(3_600);
    assert_eq!(world.run_until(end), Ok(()));
    assert_eq!((world.now(), world.packet_events()), (end, 0));
}

#[test]
fn streams_differ_by_name_and_seed() {
    let mut firsts: Vec<u64> = [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
        .map(|(seed, name)| stream(seed, name).next_u64())
        .to_vec();
    firsts.push(stream(1, "a").next_u64());
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), 4);
}
