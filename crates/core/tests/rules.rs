//! Classes that restrict packets to links, block them, or name a program: what the user's rules become.
#![cfg(feature = "session")]

use std::time::Duration;

use pleach_core::{
    class::{Class, Match, Service},
    counters::DropReason,
    sched::{ConsnSettings, Policy},
};

#[path = "rules/world.rs"]
mod world;

use world::{CLIENT, GATEWAY, Uplink, World};

/// Length of a long packet in bytes.
const LEN: usize = 1_400;
/// Ports of the client, which identify the flows.
const FIRST: u16 = 101;
const SECOND: u16 = 102;
const OTHER: u16 = 103;

/// Returns the class of the flow with the client's port `port`.
fn class(name: &str, port: u16, service: Service) -> Class {
    Class {
        name: name.to_owned(),
        matches: Match {
            ports: vec![port..=port],
            ..Match::default()
        },
        service,
    }
}

fn on_link(link: &str) -> Service {
    Service {
        links: vec![link.to_owned()],
        ..Service::default()
    }
}

fn strictly_on_link(link: &str) -> Service {
    Service {
        is_strict: true,
        ..on_link(link)
    }
}

/// Flows that send long packets at constant rates.
struct Load {
    /// End that sends, port, rate in kbit/s.
    flows: Vec<(usize, u16, u64)>,
    /// Number of packets that each flow has sent.
    sent: Vec<u32>,
    /// Time since the first packet.
    elapsed: Duration,
}

impl Load {
    fn new(flows: &[(usize, u16, u64)]) -> Self {
        Self {
            flows: flows.to_vec(),
            sent: vec![0; flows.len()],
            elapsed: Duration::ZERO,
        }
    }

    /// Runs `world` for the duration `time`, in steps of half a millisecond.
    fn run(&mut self, world: &mut World, time: Duration) {
        let step = Duration::from_micros(500);
        let end = self.elapsed + time;
        while self.elapsed < end {
            self.elapsed += step;
            for ((from, port, kbps), sent) in self.flows.iter().zip(&mut self.sent) {
                let bits = u128::from(*kbps) * self.elapsed.as_micros() / 1_000;
                let due = bits / (LEN as u128 * 8);
                while u128::from(*sent) < due {
                    world.send(*from, *port, *sent, LEN);
                    *sent += 1;
                }
            }
            world.run_for(step);
        }
    }
}

/// Returns the rates in kbit/s at which the flows arrive at the end `to` while `load` runs for `time`.
fn rates<const N: usize>(
    world: &mut World,
    load: &mut Load,
    to: usize,
    ports: [u16; N],
    time: Duration,
) -> [u64; N] {
    let before = ports.map(|port| world.numbers(to, port).len());
    load.run(world, time);
    let mut rates = [0; N];
    for ((rate, port), before) in rates.iter_mut().zip(ports).zip(before) {
        let bits = (world.numbers(to, port).len() - before) * LEN * 8;
        *rate = bits as u64 / u64::try_from(time.as_millis()).expect("a short time");
    }
    rates
}

const WARM_UP: Duration = Duration::from_secs(5);
const TIME: Duration = Duration::from_secs(5);

#[test]
fn flows_restricted_to_different_links_do_not_delay_each_other() {
    let links = vec![Uplink::new("fast", 20, 10), Uplink::new("slow", 2, 40)];
    let classes = vec![
        class("first", FIRST, on_link("fast")),
        class("second", SECOND, on_link("slow")),
    ];
    let mut world = World::new(links, classes);
    let mut load = Load::new(&[(CLIENT, FIRST, 25_000), (CLIENT, SECOND, 3_000)]);
    load.run(&mut world, WARM_UP);
    let [first, second] = rates(&mut world, &mut load, GATEWAY, [FIRST, SECOND], TIME);
    assert!(first > 16_000, "{first} kbit/s on a link of 20 Mbit/s");
    assert!(second > 1_600, "{second} kbit/s on a link of 2 Mbit/s");
}

#[test]
fn restricted_flows_and_other_flows_have_equal_shares_of_a_link() {
    let links = vec![Uplink::new("only", 20, 10)];
    let classes = vec![
        class("first", FIRST, on_link("only")),
        class("second", SECOND, on_link("only")),
    ];
    let mut world = World::new(links, classes);
    let ports = [FIRST, SECOND, OTHER];
    let mut load = Load::new(&ports.map(|port| (CLIENT, port, 15_000)));
    load.run(&mut world, WARM_UP);
    let rates = rates(&mut world, &mut load, GATEWAY, ports, TIME);
    let (least, most) = (rates.iter().min(), rates.iter().max());
    assert!(least > Some(&5_000), "{rates:?} kbit/s");
    assert!(
        least
            .zip(most)
            .is_some_and(|(least, most)| least * 5 > most * 4)
    );
}

/// Returns the number of packets of a flow that arrive although they were sent while the link of its class was down,
/// and the world and the load after the link has returned.
fn with_an_outage(service: Service) -> (usize, World, Load) {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, service)]);
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000), (CLIENT, OTHER, 1_000)]);
    load.run(&mut world, TIME);
    assert_eq!(world.counts("rule 1").dropped, 0);
    world.set_up(1, false);
    let first = load.sent[0];
    load.run(&mut world, TIME);
    let during = first..load.sent[0];
    world.set_up(1, true);
    load.run(&mut world, TIME);
    let numbers = world.numbers(GATEWAY, FIRST).iter();
    let arrived = numbers.filter(|number| during.contains(*number)).count();
    let other = world.numbers(GATEWAY, OTHER).len();
    let sent = usize::try_from(load.sent[1]).expect("few");
    assert!(other + 20 > sent, "{other} of {sent}");
    (arrived, world, load)
}

#[test]
fn strict_class_drops_its_packets_while_its_link_is_down() {
    let (arrived, world, load) = with_an_outage(strictly_on_link("b"));
    assert_eq!(arrived, 0);
    let dropped = world.counts("rule 1").dropped;
    assert_eq!(dropped, world.drops(CLIENT, DropReason::NoLink));
    let arrived = world.numbers(GATEWAY, FIRST).len() as u64;
    let sent = u64::from(load.sent[0]);
    // A few packets are in flight when the link goes down, and when the test ends.
    assert!(arrived + dropped + 20 > sent, "{arrived} + {dropped}");
    let last = *world.numbers(GATEWAY, FIRST).last().expect("some");
    assert!(last + 20 > load.sent[0], "they pass again: {last}");
}

#[test]
fn nothing_of_a_strict_class_uses_another_link_while_its_link_is_silent() {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, strictly_on_link("b"))]);
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000)]);
    load.run(&mut world, TIME);
    world.links[1].is_silent = true;
    load.run(&mut world, TIME);
    world.links[1].is_silent = false;
    load.run(&mut world, TIME);
    assert_eq!(world.links[0].data_bytes[CLIENT], 0);
    let dropped = world.counts("rule 1").dropped;
    assert!(dropped > u64::from(load.sent[0] / 4), "{dropped}");
    let last = *world.numbers(GATEWAY, FIRST).last().expect("some");
    assert!(last + 20 > load.sent[0], "they pass again: {last}");
}

#[test]
fn packets_of_a_strict_class_wait_while_its_link_is_silent_for_a_moment() {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, strictly_on_link("b"))]);
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000), (CLIENT, OTHER, 1_000)]);
    load.run(&mut world, TIME);
    let before = world.links[0].data_bytes[CLIENT];
    for _ in 0..5 {
        world.links[1].is_silent = true;
        load.run(&mut world, Duration::from_millis(300));
        world.links[1].is_silent = false;
        load.run(&mut world, Duration::from_millis(700));
    }
    assert_eq!(world.counts("rule 1").dropped, 0);
    let arrived = world.numbers(GATEWAY, FIRST).len();
    let sent = usize::try_from(load.sent[0]).expect("few");
    assert!(arrived + 20 > sent, "{arrived} of {sent}");
    // The other link carries no more than the other flow, 5 s at 1 Mbit/s.
    let bytes = world.links[0].data_bytes[CLIENT] - before;
    assert!(bytes < 700_000, "{bytes}");
}

#[test]
fn policy_that_works_in_blocks_ignores_the_links_of_a_strict_class() {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
    let classes = [class("rule 1", FIRST, strictly_on_link("b"))];
    let mut world = World::new(links, Vec::new());
    let policy = || Policy::Consn(ConsnSettings::default());
    world.ends[CLIENT].reconfigure(world.now, &classes, |_| policy().into());
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000)]);
    load.run(&mut world, TIME);
    world.set_up(1, false);
    load.run(&mut world, TIME);
    assert_eq!(world.counts("rule 1").dropped, 0);
    let arrived = world.numbers(GATEWAY, FIRST).len();
    let sent = usize::try_from(load.sent[0]).expect("few");
    assert!(arrived + 20 > sent, "{arrived} of {sent}");
}

#[test]
fn packets_too_long_for_the_link_of_a_strict_class_are_dropped() {
    for is_strict in [true, false] {
        let service = Service {
            is_strict,
            ..on_link("b")
        };
        let mut links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
        links[1].width = 1_300;
        let mut world = World::new(links, vec![class("rule 1", FIRST, service)]);
        // The MTU of the link is found.
        world.run_for(Duration::from_secs(20));
        let mut load = Load::new(&[(CLIENT, FIRST, 1_000)]);
        load.run(&mut world, TIME);
        let sent = u64::from(load.sent[0]);
        let dropped = world.counts("rule 1").dropped;
        let arrived = world.numbers(GATEWAY, FIRST).len() as u64;
        assert_eq!(dropped, if is_strict { sent } else { 0 });
        assert!(arrived + dropped + 20 > sent, "{arrived} + {dropped}");
        let other = world.links[0].data_bytes[CLIENT];
        assert_eq!(other == 0, is_strict, "{other} bytes");
    }
}

#[test]
fn class_that_is_not_strict_uses_another_link_while_its_link_is_down() {
    let (arrived, world, load) = with_an_outage(on_link("b"));
    let sent_in_outage = usize::try_from(load.sent[0] / 3).expect("few");
    assert!(arrived + 20 > sent_in_outage, "{arrived}");
    assert_eq!(world.counts("rule 1").dropped, 0);
    assert_eq!(world.drops(CLIENT, DropReason::NoLink), 0);
}

#[test]
fn blocked_class_drops_all_of_its_packets() {
    let blocked = Service {
        is_blocked: true,
        ..Service::default()
    };
    let links = vec![Uplink::new("a", 10, 10)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, blocked)]);
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000), (CLIENT, OTHER, 1_000)]);
    load.run(&mut world, TIME);
    assert_eq!(world.numbers(GATEWAY, FIRST), [0_u32; 0]);
    let sent = u64::from(load.sent[0]);
    assert_eq!(world.drops(CLIENT, DropReason::Blocked), sent);
    let counts = world.counts("rule 1");
    assert_eq!((counts.packets, counts.dropped), (sent, sent));
    assert!(world.numbers(GATEWAY, OTHER).len() > 400);
    // The flow passes when its rule is removed.
    world.set_classes(&[]);
    load.run(&mut world, TIME);
    assert!(world.numbers(GATEWAY, FIRST).len() > 400);
}

#[test]
fn class_with_a_program_applies_to_the_flows_of_the_program_only() {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 20)];
    let of_program = Class {
        name: "rule 1".to_owned(),
        matches: Match {
            app: Some("curl".to_owned()),
            ..Match::default()
        },
        service: on_link("b"),
    };
    let mut world = World::new(links, vec![of_program]);
    let mut load = Load::new(&[(CLIENT, FIRST, 1_000), (CLIENT, SECOND, 1_000)]);
    load.run(&mut world, Duration::from_secs(1));
    assert_eq!(world.counts("rule 1").packets, 0, "no program is known");
    let client = &mut world.ends[CLIENT];
    let mut asked = Vec::new();
    while let Some(question) = client.poll_flow_question() {
        let program = match question.source.port() {
            FIRST => Some("curl"),
            _ => Some("curl-config"),
        };
        client.answer_flow(&question, program);
        asked.push((
            question.protocol,
            question.source.to_string(),
            question.destination.to_string(),
        ));
    }
    let expected = ["10.77.0.1:101", "10.77.0.1:102"];
    let expected = expected.map(|source| (17, source.to_owned(), "192.0.2.99:9".to_owned()));
    assert_eq!(asked, expected);
    let sent = load.sent[0];
    let before = world.links[1].data_bytes[CLIENT];
    load.run(&mut world, TIME);
    assert_eq!(world.ends[CLIENT].poll_flow_question(), None, "asked once");
    let counts = world.counts("rule 1");
    assert_eq!(counts.packets, u64::from(load.sent[0] - sent));
    let carried = world.links[1].data_bytes[CLIENT] - before;
    let bytes = counts.bytes.get();
    assert!(carried > bytes * 9 / 10, "{carried} of {bytes}");
}

/// Lets the client answer a download on `ports`: it sends a short packet for each port every 10 ms. Returns the bytes
/// of data that the gateway sends on each link.
fn download(world: &mut World, load: &mut Load, ports: &[u16], time: Duration) -> Vec<u64> {
    let bytes = |world: &World| -> Vec<u64> {
        let links = world.links.iter();
        links.map(|link| link.data_bytes[GATEWAY]).collect()
    };
    let before = bytes(world);
    let step = Duration::from_millis(10);
    let end = load.elapsed + time;
    while load.elapsed < end {
        for port in ports {
            world.send(CLIENT, *port, 0, 60);
        }
        load.run(world, step);
    }
    let after = bytes(world).into_iter().zip(before);
    after.map(|(after, before)| after - before).collect()
}

#[test]
fn gateway_answers_on_the_link_of_the_rule_until_the_rule_is_removed() {
    let links = vec![Uplink::new("a", 20, 10), Uplink::new("b", 10, 20)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, on_link("b"))]);
    let mut load = Load::new(&[(GATEWAY, FIRST, 8_000)]);
    let bytes = download(&mut world, &mut load, &[FIRST], TIME);
    let sum: u64 = bytes.iter().sum();
    assert!(sum > 4_500_000, "{bytes:?}");
    assert!(bytes[1] * 100 >= sum * 95, "{bytes:?}");
    let arrived = world.numbers(CLIENT, FIRST).len();
    let sent = usize::try_from(load.sent[0]).expect("few");
    assert!(arrived + 50 > sent, "{arrived} of {sent}");
    world.set_classes(&[]);
    // More than either link carries.
    let mut load = Load::new(&[(GATEWAY, FIRST, 25_000)]);
    download(&mut world, &mut load, &[FIRST], WARM_UP);
    let bytes = download(&mut world, &mut load, &[FIRST], TIME);
    let sum: u64 = bytes.iter().sum();
    assert!(bytes.iter().all(|bytes| bytes * 5 > sum), "{bytes:?}");
}

#[test]
fn gateway_uses_another_link_while_the_link_of_the_rule_is_down() {
    let links = vec![Uplink::new("a", 20, 10), Uplink::new("b", 10, 20)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, on_link("b"))]);
    let mut load = Load::new(&[(GATEWAY, FIRST, 4_000)]);
    download(&mut world, &mut load, &[FIRST], TIME);
    world.set_up(1, false);
    let bytes = download(&mut world, &mut load, &[FIRST], TIME);
    assert!(bytes[0] > 2_000_000, "{bytes:?}");
    world.set_up(1, true);
    download(&mut world, &mut load, &[FIRST], TIME);
    let bytes = download(&mut world, &mut load, &[FIRST], TIME);
    let sum: u64 = bytes.iter().sum();
    assert!(bytes[1] * 100 >= sum * 95, "{bytes:?}");
}

#[test]
fn class_with_two_links_uses_both_and_its_answers_use_any() {
    let links = ["a", "b", "c"].map(|name| Uplink::new(name, 10, 10));
    let service = Service {
        links: vec!["a".to_owned(), "b".to_owned()],
        ..Service::default()
    };
    let mut world = World::new(links.into(), vec![class("rule 1", FIRST, service)]);
    let mut load = Load::new(&[(CLIENT, FIRST, 16_000)]);
    load.run(&mut world, WARM_UP);
    let [rate] = rates(&mut world, &mut load, GATEWAY, [FIRST], TIME);
    assert!(rate > 14_000, "{rate} kbit/s on two links of 10 Mbit/s");
    assert_eq!(world.links[2].data_bytes[CLIENT], 0);
    // More than two links carry.
    let mut load = Load::new(&[(GATEWAY, FIRST, 35_000)]);
    download(&mut world, &mut load, &[FIRST], WARM_UP);
    let bytes = download(&mut world, &mut load, &[FIRST], TIME);
    let sum: u64 = bytes.iter().sum();
    assert!(bytes.iter().all(|bytes| bytes * 5 > sum), "{bytes:?}");
}

#[test]
fn answers_that_look_like_voice_follow_the_rule() {
    let links = vec![Uplink::new("a", 10, 10), Uplink::new("b", 10, 40)];
    let mut world = World::new(links, vec![class("rule 1", FIRST, on_link("b"))]);
    for number in 0..250 {
        world.send(CLIENT, FIRST, number, 60);
        world.send(GATEWAY, FIRST, number, 160);
        world.run_for(Duration::from_millis(20));
    }
    let [a, b] = [0, 1].map(|link| world.links[link].data_bytes[GATEWAY]);
    assert!(b > 9 * a, "{a} and {b} bytes");
    assert!(world.numbers(CLIENT, FIRST).len() > 240);
}

#[test]
fn downloads_restricted_to_different_links_do_not_delay_each_other() {
    let links = vec![Uplink::new("fast", 20, 10), Uplink::new("slow", 2, 40)];
    let classes = vec![
        class("first", FIRST, on_link("fast")),
        class("second", SECOND, on_link("slow")),
    ];
    let mut world = World::new(links, classes);
    let mut load = Load::new(&[(GATEWAY, FIRST, 25_000), (GATEWAY, SECOND, 3_000)]);
    let ports = [FIRST, SECOND];
    download(&mut world, &mut load, &ports, WARM_UP);
    let before = ports.map(|port| world.numbers(CLIENT, port).len());
    download(&mut world, &mut load, &ports, TIME);
    let mut rates = [0; 2];
    for (rate, (port, before)) in rates.iter_mut().zip(ports.into_iter().zip(before)) {
        *rate = (world.numbers(CLIENT, port).len() - before) * LEN * 8 / 5_000;
    }
    assert!(rates[0] > 16_000 && rates[1] > 1_600, "{rates:?} kbit/s");
}
