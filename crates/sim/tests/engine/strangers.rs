//! Ends with wrong keys, and strangers who replay, damage, forge and flood datagrams.
//!
//! Each of their datagrams is counted under one reason and changes nothing: no session, no route, and no packet of the
//! transfer that runs at the same time.

use std::{net::SocketAddr, time::Duration};

use pleach_core::{
    counters::DropReason,
    endpoint::Event,
    ids::PathId,
    path::health::State,
    rng::Rng,
    session::{
        aead::Suite,
        cookie::CookieCache,
        handshake::{Initiator, StaticKeys},
    },
    transmit::Route,
    tunnel::Incoming,
    wire::handshake::Hello,
};

use crate::world::{DATA, World, connected, outer, private_key, public_key};

const CONTROL: u8 = 5;

fn connect(policy: &str, seed: u64) -> World {
    let mut world = World::pair(policy, seed);
    world.record = true;
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    world.run_for(Duration::from_millis(500));
    world
}

fn stranger(number: u64) -> SocketAddr {
    let [.., b, c, d] = number.to_be_bytes();
    SocketAddr::from(([192, b, c, d], 1024 + (number % 60_000) as u16))
}

/// Returns a snapshot of the state that a stranger must not change.
fn picture(world: &World) -> Vec<(bool, PathId, Option<SocketAddr>, State, u32)> {
    let statuses = world.hosts.iter().flat_map(|host| host.endpoint.status());
    statuses
        .flat_map(|(_, status)| {
            let is_up = status.is_up;
            status
                .paths
                .into_iter()
                .map(move |path| (is_up, path.id, path.remote, path.state, path.weight))
        })
        .collect()
}

/// Returns the drops at a host by reason, as the difference to `before`.
fn new_drops(world: &World, host: usize, before: &[u64]) -> Vec<(DropReason, u64)> {
    let drops = world.hosts[host].endpoint.drops();
    drops
        .iter()
        .zip(before)
        .map(|((reason, count), before)| (reason, count - before))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn drops(world: &World, host: usize) -> Vec<u64> {
    let drops = world.hosts[host].endpoint.drops();
    drops.iter().map(|(_, count)| count).collect()
}

/// Asserts that `count` datagrams were dropped at a host since `before`, all of them under one of `reasons`.
fn assert_dropped(
    world: &World,
    host: usize,
    before: &[u64],
    count: usize,
    reasons: &[DropReason],
) {
    let drops = new_drops(world, host, before);
    let total: u64 = drops.iter().map(|(_, count)| count).sum();
    assert_eq!(total, count as u64, "{drops:?}");
    let known = drops.iter().all(|(reason, _)| reasons.contains(reason));
    assert!(known, "{drops:?}");
}

#[test]
fn wrong_keys_bring_nothing_up() {
    let psk = [7; 32];
    let wrong = private_key(77);
    for (name, host, key, psk, reason_at) in [
        ("client key", 1, wrong, psk, 0),
        ("gateway key", 0, wrong, psk, 0),
        ("psk of the client", 1, private_key(1), [8; 32], 1),
        ("psk of the gateway", 0, private_key(0), [8; 32], 1),
    ] {
        let mut world = World::pair("weighted", 1);
        let endpoint = world.start(host, 1, key, psk);
        world.replace(host, endpoint);
        world.send(1, 0, 1, 1, 100);
        world.run_for(Duration::from_secs(20));
        assert!(!world.hosts[0].endpoint.is_up(), "{name}");
        assert!(world.hosts[0].delivered.is_empty(), "{name}");
        let invalid = world.hosts[reason_at]
            .endpoint
            .drops()
            .get(DropReason::HandshakeInvalid);
        assert!(invalid > 10, "{name}: {invalid}");
        // The client sends two initiations a second, and repeats one with a cookie where a cookie is required.
        assert!(world.initiations < 100, "{name}: {}", world.initiations);
        assert!(world.answers <= world.initiations, "{name}");
    }
}

#[test]
fn replays_are_dropped_wherever_they_come_from_and_however_late() {
    let mut world = connect("weighted", 2);
    let mut number = 0;
    let mut stream = |world: &mut World, count: u32, pause: Duration| {
        for _ in 0..count {
            world.send(1, 0, 1, number, 300);
            world.send(0, 1, 1, number, 300);
            number += 1;
            world.run_for(pause);
        }
    };
    stream(&mut world, 20, Duration::from_millis(5));
    world.run_for(Duration::from_millis(100));
    world.record = false;
    let to_gateway = core::mem::take(&mut world.seen);
    let to_client = core::mem::take(&mut world.seen_by_clients);
    for kind in [1, DATA, CONTROL] {
        assert!(to_gateway.iter().any(|(_, datagram)| datagram[0] == kind));
    }
    assert!(to_client.iter().any(|(.., datagram)| datagram[0] == 2));
    let reasons = [
        DropReason::HandshakeReplayed,
        DropReason::Replayed,
        DropReason::UnknownSession,
    ];
    // Replays are sent at once, after a while, after a change of keys, and after the old keys have expired.
    for wait in [0, 5, 118, 10, 200] {
        stream(&mut world, 2 * wait, Duration::from_millis(500));
        world.run_for(Duration::from_millis(100));
        let before = picture(&world);
        let answers = world.answers;
        let dropped = drops(&world, 0);
        for (incoming, datagram) in &to_gateway {
            world.inject(incoming.route.remote, datagram);
            world.inject(stranger(5), datagram);
        }
        assert_dropped(&world, 0, &dropped, 2 * to_gateway.len(), &reasons);
        let dropped = drops(&world, 1);
        for (host, incoming, datagram) in &to_client {
            let mut elsewhere = *incoming;
            elsewhere.route.link = 1 - incoming.route.link;
            elsewhere.route.remote = stranger(5);
            world.inject_at(*host, incoming, datagram);
            world.inject_at(*host, &elsewhere, datagram);
        }
        assert_dropped(&world, 1, &dropped, 2 * to_client.len(), &reasons);
        assert_eq!(picture(&world), before);
        assert_eq!(world.answers, answers);
    }
    stream(&mut world, 20, Duration::from_millis(5));
    world.run_for(Duration::from_millis(100));
    for host in [0, 1] {
        assert_eq!(world.numbers(host, 1), (0..number).collect::<Vec<_>>());
    }
}

#[test]
fn no_bit_can_be_flipped_and_no_byte_cut_off_or_added() {
    let mut world = connect("weighted", 3);
    world.intercepted = Some(Vec::new());
    world.send(1, 0, 1, 0, 200);
    // The wait causes a probe of an idle path.
    world.run_for(Duration::from_millis(600));
    let caught = world.intercepted.take().expect("set above");
    let of_kind = |kind| caught.iter().find(|datagram| datagram[0] == kind);
    let from = outer(1, 0);
    for kind in [DATA, CONTROL] {
        let datagram = of_kind(kind).expect("caught");
        let before = picture(&world);
        let dropped = drops(&world, 0);
        let mut count = 0;
        for bit in 0..datagram.len() * 8 {
            let mut flipped = datagram.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            world.inject(from, &flipped);
            count += 1;
        }
        for len in 0..datagram.len() {
            world.inject(from, &datagram[..len]);
            count += 1;
        }
        for tail in [1, 16, 1000] {
            world.inject(from, &[&datagram[..], &vec![0; tail]].concat());
            count += 1;
        }
        let reasons = [
            DropReason::Forged,
            DropReason::Malformed,
            DropReason::Replayed,
            DropReason::UnknownSession,
        ];
        assert_dropped(&world, 0, &dropped, count, &reasons);
        assert_eq!(picture(&world), before);
        assert_eq!(world.numbers(0, 1), [0; 0]);
    }
    // The unmodified datagrams can still be decrypted.
    let dropped = drops(&world, 0);
    for datagram in &caught {
        world.inject(from, datagram);
    }
    let dropped = new_drops(&world, 0, &dropped);
    assert!(
        dropped
            .iter()
            .all(|(reason, _)| *reason == DropReason::Duplicate),
        "only what was sent again: {dropped:?}"
    );
    assert_eq!(world.numbers(0, 1), [0]);
}

#[test]
fn a_hundred_thousand_inventions_do_not_touch_a_transfer() {
    let mut world = connect("weighted", 4);
    let mut rng = Rng::new(4);
    let (_, model) = world
        .seen
        .iter()
        .find(|(_, datagram)| datagram[0] == CONTROL)
        .expect("sent")
        .clone();
    let (_, initiation) = world.seen[0].clone();
    world.record = false;
    let before = picture(&world);
    let dropped = drops(&world, 0);
    let answers = world.answers;
    for number in 0..1000 {
        world.send(1, 0, 1, number, 700);
        world.send(0, 1, 1, number, 700);
        for _ in 0..100 {
            let mut datagram = vec![0; rng.below(1500) as usize];
            rng.fill(&mut datagram);
            let is_shaped = rng.chance(0.7) && datagram.len() > 32;
            if is_shaped && rng.chance(0.3) {
                datagram.resize(initiation.len(), 0);
                datagram[..8].copy_from_slice(&initiation[..8]);
                datagram[0] = 1 + rng.below(3) as u8;
            } else if is_shaped {
                datagram[0] = DATA + rng.below(2) as u8;
                datagram[1] = rng.below(4) as u8;
                datagram[2] = rng.below(3) as u8;
                // The datagram has the session of the client, and a number close to the current numbers.
                datagram[3..9].copy_from_slice(&model[3..9]);
            }
            let from = match rng.below(3) {
                0 => outer(1, rng.below(2) as usize),
                _ => stranger(rng.next_u64()),
            };
            world.inject(from, &datagram);
        }
        world.run_for(Duration::from_millis(1));
    }
    world.run_for(Duration::from_millis(300));
    let reasons = [
        DropReason::Forged,
        DropReason::HandshakeInvalid,
        DropReason::Malformed,
        DropReason::Replayed,
        DropReason::UnknownSession,
    ];
    assert_dropped(&world, 0, &dropped, 100_000, &reasons);
    assert_eq!(picture(&world), before);
    assert_eq!(world.answers, answers);
    for host in [0, 1] {
        assert_eq!(world.numbers(host, 1), (0..1000).collect::<Vec<_>>());
    }
    // The buffers are those of packets in flight, not of received datagrams.
    assert!(world.hosts[0].endpoint.pool().free_len() < 2000);
}

#[test]
fn a_client_of_another_protocol_version_is_refused_and_named() {
    let mut world = World::pair("weighted", 8);
    world
        .run_until_true(Duration::from_secs(1), connected)
        .expect("connects");
    let invalid = world.hosts[0].drops(DropReason::HandshakeInvalid);
    let answers = world.answers;
    let keys = StaticKeys::from_private(private_key(1));
    let hello = Hello {
        protocol_version: 2,
        capabilities: 0,
        suites: Suite::offer(Suite::preferred(true)),
        association: 1,
        time: None,
    };
    let (_, initiation) = Initiator::new(&keys, &public_key(0), &[7; 32], 1, hello, [1; 32])
        .expect("a valid initiation");
    while world.hosts[0].endpoint.poll_event().is_some() {}
    // The datagram is not passed through the world, which consumes the events.
    let incoming = Incoming {
        route: Route {
            link: 0,
            remote: stranger(1),
            local: None,
        },
        is_congested: false,
    };
    let now = world.now + Duration::from_secs(5);
    let gateway = &mut world.hosts[0].endpoint;
    gateway.handle_datagram(now, &incoming, &mut initiation.clone());
    gateway.work_inline(now);
    let refused = Event::Incompatible {
        name: "1".into(),
        version: 2,
    };
    assert_eq!(gateway.poll_event(), Some(refused));
    let drops = world.hosts[0].drops(DropReason::HandshakeInvalid);
    assert_eq!(drops, invalid + 1);
    assert_eq!(world.answers, answers);
    assert!(world.hosts[0].endpoint.is_up());
}

/// Initiations to the gateway from an unknown sender, each with a valid mac1.
struct Flood {
    model: Vec<u8>,
    count: u64,
}

impl Flood {
    fn new() -> Self {
        let keys = StaticKeys::from_private(private_key(99));
        let hello = Hello {
            protocol_version: 1,
            capabilities: 0,
            suites: Suite::offer(Suite::preferred(true)),
            association: 1,
            time: None,
        };
        let (_, model) = Initiator::new(&keys, &public_key(0), &[0; 32], 1, hello, [1; 32])
            .expect("a valid initiation");
        Self { model, count: 0 }
    }

    fn send(&mut self, world: &mut World) {
        self.count += 1;
        let mut datagram = self.model.clone();
        datagram[6..8].copy_from_slice(&(1 + self.count as u16 % 60_000).to_be_bytes());
        CookieCache::new(&public_key(0))
            .stamp(world.now, &mut datagram)
            .expect("an initiation");
        world.inject(stranger(self.count), &datagram);
    }
}

#[test]
fn a_client_connects_through_a_flood_of_initiations() {
    let mut world = World::pair("weighted", 5);
    world.intercepted = Some(Vec::new());
    let mut flood = Flood::new();
    // The gateway is already under load when the client connects.
    for _ in 0..300 {
        flood.send(&mut world);
        world.run_for(Duration::from_micros(500));
    }
    world.intercepted = None;
    let start = world.now;
    while !connected(&world) {
        flood.send(&mut world);
        world.run_for(Duration::from_micros(500));
        let took = world.now.since(start);
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    // The client stays connected through changes of keys. Each datagram causes at most one answer.
    for number in 0..2600 {
        flood.send(&mut world);
        world.send(1, 0, 1, number, 100);
        world.run_for(Duration::from_millis(50));
    }
    assert!(world.answers <= flood.count + world.initiations);
    assert_eq!(world.numbers(0, 1), (0..2600).collect::<Vec<_>>());
}

#[test]
fn a_replayed_initiation_does_not_push_out_a_true_handshake() {
    let mut world = connect("weighted", 6);
    for _ in 0..12 {
        world.restart(1);
        world.run_for(Duration::from_secs(1));
    }
    world.record = false;
    let old: Vec<_> = core::mem::take(&mut world.seen)
        .into_iter()
        .filter(|(_, datagram)| datagram[0] == 1)
        .map(|(_, datagram)| datagram)
        .collect();
    assert!(old.len() > 12, "more than the gateway keeps waiting");
    // The restarted gateway does not remember the initiations. Replays arrive before the client's own initiation,
    // during its handshake, and afterwards.
    for wait in [0, 4, 8, 11, 16, 25, 2000] {
        world.restart(0);
        world.restart(1);
        let start = world.now;
        world.run_for(Duration::from_millis(wait));
        for datagram in &old {
            world.inject(stranger(1), datagram);
            world.inject(outer(1, 0), datagram);
        }
        world
            .run_until_true(Duration::from_millis(200), connected)
            .expect("connects");
        assert!(world.now.since(start) <= Duration::from_millis(wait + 200));
        let before = [0, 1].map(|host| world.hosts[host].delivered.len());
        for number in 0..1300 {
            world.send(1, 0, 1, number, 100);
            world.send(0, 1, 1, number, 100);
            world.run_for(Duration::from_millis(100));
        }
        world.run_for(Duration::from_millis(100));
        for host in [0, 1] {
            assert_eq!(world.hosts[host].delivered.len() - before[host], 1300);
        }
    }
}
