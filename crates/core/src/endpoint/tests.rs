use core::time::Duration;
use std::sync::{Arc, Mutex};

use super::*;
use crate::session::entropy::Seeded;

mod accounts;
mod asking;
mod changing_gateway;
mod enrolment;
mod hostile;
mod reaching;
mod reconfiguring;
mod silence;
mod under_load;
mod workers;

pub(super) const GATEWAY: &str = "192.0.2.1:7700";
pub(super) const CLIENT: &str = "198.51.100.1:4000";

#[test]
fn a_packet_that_no_datagram_can_carry_is_dropped_whatever_the_mtu_says() {
    let mut endpoint = Endpoint::new(client(70_000), Seeded::new([2; 32]), Instant::ZERO);
    for len in [MAX_MTU, MAX_MTU + 1] {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        let total = u16::try_from(len).expect("an IPv4 length");
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        endpoint.handle_packet(Instant::ZERO, PacketBuf::from(packet));
    }
    assert_eq!(endpoint.drops().get(DropReason::TooLong), 1);
    assert_eq!(endpoint.drops().total(), 1);
}

/// A model of the kernel's random generator whose output can be changed at any time. It stands for an attacker that
/// knows all previous output.
#[derive(Clone, Debug)]
struct Changing(Arc<Mutex<Seeded>>);

impl Changing {
    fn new(seed: u8) -> Self {
        Self(Arc::new(Mutex::new(Seeded::new([seed; 32]))))
    }

    fn change(&self, seed: u8) {
        *self.0.lock().expect("one thread") = Seeded::new([seed; 32]);
    }
}

impl Entropy for Changing {
    fn fill(&mut self, out: &mut [u8]) {
        self.0.lock().expect("one thread").fill(out);
    }
}

#[test]
fn what_an_endpoint_keeps_does_not_tell_the_ephemeral_keys_of_its_handshakes() {
    // Compare two endpoints that have the same state, while their kernels return different random bytes from now on.
    let ephemerals = |seed| {
        let kernel = Changing::new(1);
        let mut endpoint = Endpoint::new(client(1400), kernel.clone(), Instant::ZERO);
        bring_up_link(&mut endpoint);
        kernel.change(seed);
        let mut now = Instant::ZERO;
        let mut ephemerals: Vec<[u8; 32]> = Vec::new();
        while ephemerals.len() < 3 {
            endpoint.handle_timeout(now);
            for (_, datagram) in transmit(&mut endpoint, now) {
                ephemerals.extend(datagram[8..].first_chunk());
            }
            now += Duration::from_millis(100);
        }
        ephemerals
    };
    let (first, second) = (ephemerals(2), ephemerals(3));
    assert_eq!(first, ephemerals(2));
    assert!(first.iter().all(|key| !second.contains(key)));
}

#[test]
fn debug_of_a_configuration_shows_no_secret() {
    let mut config = client(1400);
    config.private_key = Secret::from([0xab; 32]);
    if let Side::Client { gateway, .. } = &mut config.side {
        gateway.preshared_key = Secret::from([0xab; 32]);
    }
    let text = format!("{config:?}");
    assert!(text.contains("private_key") && text.contains("preshared_key"));
    assert!(!text.contains("171, 171") && !text.to_lowercase().contains("abab"));
    let endpoint = Endpoint::new(config, Seeded::new([0xab; 32]), Instant::ZERO);
    assert!(!format!("{endpoint:?}").contains("171, 171"));
}

#[test]
fn a_copy_of_a_machine_seals_nothing_under_the_keys_it_was_copied_with() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    pair.gateway.handle_clone(pair.now);
    pair.client.handle_clone(pair.now);
    assert_eq!(transmit(&mut pair.gateway, pair.now), []);
    pair.client.handle_timeout(pair.now);
    let sent = transmit(&mut pair.client, pair.now);
    let kinds: Vec<u8> = sent.iter().map(|(_, datagram)| datagram[0]).collect();
    assert_eq!(kinds, [KIND_INITIATION], "connects anew at once");
    pair.run(Duration::from_secs(1));
    assert!(pair.client.is_up() && pair.gateway.is_up());
}

#[test]
fn what_was_recorded_before_a_snapshot_was_restored_is_not_answered_after_it() {
    for (is_restored, answer) in [(false, KIND_RESPONSE), (true, KIND_COOKIE_REPLY)] {
        let mut pair = Pair::new();
        for endpoint in [&mut pair.client, &mut pair.gateway] {
            endpoint.set_time_of_day(Instant::ZERO, 1 << 60);
        }
        let sent_at = Instant::from_millis(1_000);
        pair.client.handle_timeout(sent_at);
        let (_, mut initiation) = transmit(&mut pair.client, sent_at).remove(0);
        let now = Instant::from_millis(2_000);
        if is_restored {
            pair.gateway.handle_clone(now);
        }
        pair.gateway
            .handle_datagram(now, &from(CLIENT), &mut initiation);
        pair.gateway.work_inline(now);
        let kinds: Vec<u8> = transmit(&mut pair.gateway, now)
            .into_iter()
            .map(|(_, datagram)| datagram[0])
            .collect();
        assert_eq!(kinds, [answer]);
    }
}

#[test]
fn keys_do_not_outlive_their_lifetime_however_long_the_machine_sleeps() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(1));
    pair.now += Duration::from_secs(180);
    for endpoint in [&mut pair.client, &mut pair.gateway] {
        endpoint.handle_timeout(pair.now);
        assert!(endpoint.peers[0].tunnel.sessions().current().is_none());
        let sent = transmit(endpoint, pair.now);
        assert!(
            sent.iter()
                .all(|(_, datagram)| datagram[0] == KIND_INITIATION)
        );
    }
}

#[test]
fn a_stray_datagram_does_not_cost_more_with_more_clients() {
    for clients in [1, 199] {
        let mut gateway = Endpoint::new(gateway(clients), Seeded::new([2; 32]), Instant::ZERO);
        for number in 0..1000_u16 {
            let mut stray = [4; 100];
            stray[3..5].copy_from_slice(&number.to_be_bytes());
            gateway.handle_datagram(Instant::ZERO, &from(CLIENT), &mut stray);
        }
        assert_eq!(gateway.drops().get(DropReason::UnknownSession), 1000);
        assert_eq!(gateway.expecting.asked, 0);
    }
}

/// A client and its gateway, joined by a link without delay.
pub(super) struct Pair {
    pub(super) client: Endpoint,
    pub(super) gateway: Endpoint,
    pub(super) now: Instant,
}

impl Pair {
    pub(super) fn new() -> Self {
        let mut client = Endpoint::new(client(1400), Seeded::new([1; 32]), Instant::ZERO);
        bring_up_link(&mut client);
        Self {
            client,
            gateway: Endpoint::new(gateway(1), Seeded::new([2; 32]), Instant::ZERO),
            now: Instant::ZERO,
        }
    }

    /// Delivers all datagrams for the duration `time`, in steps of a millisecond.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(1);
            self.step();
        }
    }

    pub(super) fn step(&mut self) {
        let now = self.now;
        self.client.handle_timeout(now);
        self.gateway.handle_timeout(now);
        for _ in 0..4 {
            for (_, mut datagram) in transmit(&mut self.client, now) {
                let incoming = from(CLIENT);
                self.gateway.handle_datagram(now, &incoming, &mut datagram);
                self.gateway.work_inline(now);
            }
            for (_, mut datagram) in transmit(&mut self.gateway, now) {
                let incoming = from(GATEWAY);
                self.client.handle_datagram(now, &incoming, &mut datagram);
            }
        }
        while self.client.poll_event().is_some() || self.gateway.poll_event().is_some() {}
    }
}

pub(super) fn from(address: &str) -> Incoming {
    Incoming {
        route: Route {
            link: 0,
            remote: address.parse().expect("address"),
            local: None,
        },
        is_congested: false,
    }
}

/// Returns a gateway with `clients` clients. The clients' keys are numbered from 1; the gateway's key is 200.
pub(super) fn gateway(clients: u8) -> EndpointConfig {
    let peers = (1..=clients).map(|key| peer(&key.to_string(), key, &format!("10.0.0.{key}/32")));
    EndpointConfig {
        private_key: Secret::from([200; 32]),
        side: Side::Gateway {
            clients: peers.collect(),
        },
        ..client(1400)
    }
}

pub(super) fn client(mtu: usize) -> EndpointConfig {
    EndpointConfig {
        private_key: Secret::from([1; 32]),
        suites: Suite::preferred(true).to_vec(),
        queue: QueueConfig::default(),
        compression: true,
        classes: Vec::new(),
        parity: None,
        mtu,
        side: Side::Client {
            gateway: peer("gateway", 200, "0.0.0.0/0"),
            endpoints: vec![GATEWAY.parse().expect("address")],
        },
    }
}

pub(super) fn peer(name: &str, key: u8, net: &str) -> PeerConfig {
    PeerConfig {
        name: name.into(),
        public_key: *StaticKeys::from_private([key; 32]).public(),
        preshared_key: Secret::from([0; 32]),
        allowed_ips: vec![net.parse().expect("net")],
        scheduler: crate::sched::Policy::Weighted {}.into(),
    }
}

pub(super) fn bring_up_link(endpoint: &mut Endpoint) {
    let link = Link::named("link");
    let id = endpoint.add_link(Instant::ZERO, link).expect("room");
    let reach = Reach {
        v4: true,
        v6: false,
    };
    endpoint.handle_link(Instant::ZERO, id, reach);
}

/// Returns all datagrams that an endpoint has to send.
pub(super) fn transmit(endpoint: &mut Endpoint, now: Instant) -> Vec<(Route, Vec<u8>)> {
    let mut tx = TxQueue::new(32);
    let mut datagrams = Vec::new();
    loop {
        tx.clear();
        endpoint.poll_transmit(now, &mut tx);
        if tx.is_empty() {
            return datagrams;
        }
        for batch in tx.batches() {
            for datagram in batch.bytes().chunks(batch.segment_len()) {
                datagrams.push((*batch.route(), datagram.to_vec()));
            }
        }
    }
}
