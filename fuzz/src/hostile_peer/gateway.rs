//! The gateway, and what is asserted of it.

use core::time::Duration;
use std::collections::BTreeMap;

use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Side, kept::PEER_BYTES},
    packet::{PacketBuf, PacketView},
    queue::QueueConfig,
    sched::Policy,
    session::{aead::Suite, entropy::Seeded, handshake::StaticKeys},
    time::{Instant, saturating_nanos},
    transmit::{Route, TxQueue},
    tunnel::Incoming,
};

use super::{super::heap, client::Client, frames::packet};

/// Private keys, as bytes that all are the same.
pub(super) const GATEWAY_KEY: u8 = 200;
pub(super) const HOSTILE_KEY: u8 = 1;
const BYSTANDER_KEY: u8 = 2;
/// The inner addresses of the hostile client and of somebody behind the gateway.
pub(super) const INNER: [u8; 4] = [10, 0, 0, 1];
pub(super) const BEYOND: [u8; 4] = [192, 0, 2, 9];
const MTU: usize = 1400;
/// What a longer packet than the MTU may have (docs/wire.md, section 9).
const LEAST_MTU: usize = 1500;

/// Most times that the gateway is drained at one instant.
const MOST_ROUNDS: u32 = 8;

/// What one peer may cost in all, with tables of fixed size.
const MOST_HEAP: i64 = 64 << 20;
/// What the measurement itself and the gateway's own tables take: datagrams in transit, a seen table of handshakes.
const OWN_HEAP: i64 = 4 << 20;
/// See `docs/wire.md`, section 10; the largest single operation goes beyond.
const BURST_STEPS: u64 = 5_000_000;
const NANOS_A_STEP: u64 = 50;
const FREE_STEPS: u64 = 256;
const LARGEST_OPERATION: u64 = 1_000_000;

/// The gateway, and its books.
pub(super) struct Gateway {
    endpoint: Endpoint,
    pub(super) now: Instant,
    began_at: Instant,
    began_with: i64,
    tx: TxQueue,
    /// Data datagrams that were given to it.
    data: u64,
    /// Bytes from each address, and to it.
    bytes: BTreeMap<u8, [u64; 2]>,
}

impl Gateway {
    pub(super) fn new() -> Self {
        let began_with = heap::live_bytes();
        let began_at = Instant::from_millis(1000);
        let peer = |name: &str, key: u8, net: &str| PeerConfig {
            name: name.into(),
            public_key: *StaticKeys::from_private([key; 32]).public(),
            preshared_key: [0; 32].into(),
            allowed_ips: vec![net.parse().expect("literal")],
            scheduler: Policy::Weighted {}.into(),
        };
        let clients = vec![
            peer("hostile", HOSTILE_KEY, "10.0.0.1/32"),
            peer("bystander", BYSTANDER_KEY, "10.0.0.2/32"),
        ];
        let config = EndpointConfig {
            private_key: [GATEWAY_KEY; 32].into(),
            suites: vec![Suite::ChaCha20Poly1305],
            queue: QueueConfig::default(),
            compression: true,
            classes: Vec::new(),
            parity: None,
            mtu: MTU,
            side: Side::Gateway { clients },
        };
        Self {
            endpoint: Endpoint::new(config, Seeded::new([7; 32]), began_at),
            now: began_at,
            began_at,
            began_with,
            tx: TxQueue::new(32),
            data: 0,
            bytes: BTreeMap::new(),
        }
    }

    /// Gives it a datagram from address number `source`.
    pub(super) fn handle(&mut self, source: u8, mut datagram: Vec<u8>) {
        self.bytes.entry(source).or_default()[0] += datagram.len() as u64;
        if datagram.first() == Some(&4) {
            self.data += 1;
        }
        let incoming = Incoming {
            route: route(source),
            is_congested: false,
        };
        self.endpoint
            .handle_datagram(self.now, &incoming, &mut datagram);
        self.endpoint.work_inline(self.now);
    }

    /// Lets the host behind it send `count` packets of `len` bytes to the client.
    pub(super) fn host_sends(&mut self, count: u32, len: u16) {
        for number in 0..count {
            let port = 1000 + (number % 7).to_le_bytes()[0] as u16;
            let packet = packet(len, BEYOND, INNER, port);
            let buffer = self.endpoint.pool().copy_of(&packet);
            self.endpoint.handle_packet(self.now, buffer);
        }
    }

    /// Takes what it has for its host.
    pub(super) fn deliver(&mut self) {
        while let Some(packet) = self.endpoint.poll_deliver() {
            check_packet(&packet);
            self.endpoint.pool().recycle(packet);
        }
    }

    /// Lets time go by, with all deadlines on the way.
    pub(super) fn pass(&mut self, client: &mut Client, time: Duration) {
        let end = self.now + time;
        for _ in 0..200 {
            self.drain(client);
            let Some(next) = self.endpoint.poll_timeout().filter(|at| *at < end) else {
                break;
            };
            self.now = self.now.max(next);
        }
        self.now = end;
        self.drain(client);
    }

    /// Takes all it has to send and to deliver, and gives it to the client.
    pub(super) fn drain(&mut self, client: &mut Client) {
        let mut next = None;
        // What came at this instant may be due at it.
        for _ in 0..MOST_ROUNDS {
            let is_answered = self.drain_once(client);
            next = self.endpoint.poll_timeout();
            if !is_answered && next.is_none_or(|at| at > self.now) {
                return;
            }
        }
        assert!(
            next.is_none_or(|at| at > self.now),
            "drained at {:?}, and the next deadline is {next:?}",
            self.now
        );
    }

    /// Takes what it has now. Whether the client has answered to that.
    fn drain_once(&mut self, client: &mut Client) -> bool {
        let now = self.now;
        self.endpoint.handle_timeout(now);
        let mut answers = Vec::new();
        loop {
            self.tx.clear();
            self.endpoint.poll_transmit(now, &mut self.tx);
            if self.tx.is_empty() {
                break;
            }
            for batch in self.tx.batches() {
                let to = number(batch.route());
                for datagram in batch.bytes().chunks(batch.segment_len()) {
                    self.bytes.entry(to).or_default()[1] += datagram.len() as u64;
                    // Only one address is the client's own.
                    if to == 0 {
                        client.peer.read(now, datagram, &mut answers);
                    }
                }
            }
        }
        self.deliver();
        while self.endpoint.poll_event().is_some() {}
        let is_answered = !answers.is_empty();
        for answer in answers {
            self.handle(0, answer);
        }
        is_answered
    }

    /// What must hold after each step.
    pub(super) fn check(&mut self) {
        self.deliver();
        let kept = self.endpoint.kept().bytes();
        assert!(kept <= PEER_BYTES, "{kept} bytes are kept");
        let (_, status) = self.endpoint.status().next().expect("a client");
        assert!(status.paths.len() <= 16 && status.held <= 16_384);
        let elapsed = self.now.since(self.began_at);
        let in_time = saturating_nanos(elapsed) / NANOS_A_STEP;
        let most = BURST_STEPS + in_time + FREE_STEPS * self.data + LARGEST_OPERATION;
        assert!(
            status.steps <= most,
            "{} steps, {most} are allowed",
            status.steps
        );
        drop(status);

        let pool = self.endpoint.pool();
        let free = pool.free_len() * (pool.capacity_bytes() + 64);
        let free = i64::try_from(free).unwrap_or(i64::MAX);
        let live = heap::live_bytes() - self.began_with - free;
        assert!(
            live <= MOST_HEAP + OWN_HEAP,
            "{live} bytes of heap beside free buffers"
        );

        for (source, [from, to]) in &self.bytes {
            let is_bounded = *source == 0 || *to <= 3 * from;
            assert!(is_bounded, "{to} bytes to an address that sent {from}");
        }
    }
}

fn check_packet(packet: &PacketBuf) {
    assert!(
        packet.len() <= MTU.max(LEAST_MTU),
        "{} bytes delivered",
        packet.len()
    );
    let view = PacketView::parse(packet.as_slice()).expect("only packets are delivered");
    assert_eq!(
        view.source(),
        core::net::IpAddr::from(INNER),
        "another's source"
    );
}

/// Address number `source`; 0 is the client's own.
pub(super) fn route(source: u8) -> Route {
    let address = [198, 51, 100, source + 1];
    Route {
        link: 0,
        remote: (address, 4000).into(),
        local: None,
    }
}

fn number(route: &Route) -> u8 {
    match route.remote.ip() {
        core::net::IpAddr::V4(ip) => ip.octets()[3] - 1,
        core::net::IpAddr::V6(_) => 0,
    }
}
