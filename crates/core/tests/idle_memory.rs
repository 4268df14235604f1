//! Heap memory of a gateway for each idle client.
//!
//! The test connects clients to a gateway over emulated paths of 10 ms, without losses, on a virtual clock. It counts
//! the bytes that the gateway's calls allocate and free.
#![cfg(feature = "session")]
#![expect(
    clippy::print_stdout,
    reason = "the figures of docs/scale.md, with --nocapture"
)]

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use peak_alloc::PeakAlloc;
use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Reach, Side},
    packet::PacketBuf,
    path::link::Link,
    queue::QueueConfig,
    sched::SchedulerSettings,
    session::{
        aead::Suite,
        entropy::Seeded,
        handshake::{NO_PSK, StaticKeys},
    },
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Number of clients over which fixed tables of the gateway are spread.
const CLIENTS: u8 = 32;
const DELAY: Duration = Duration::from_millis(10);

/// A gateway, its clients, and the datagrams under way.
struct World {
    now: Instant,
    gateway: Endpoint,
    clients: Vec<Endpoint>,
    tx: TxQueue,
    /// Datagrams under way, by arrival and number.
    flying: BTreeMap<(Instant, u64), Flying>,
    sent: u64,
    /// Bytes that the gateway has allocated and not freed.
    gateway_bytes: isize,
    /// Number of packets that the gateway has delivered.
    delivered: usize,
}

/// A datagram under way between a client and the gateway.
struct Flying {
    client: usize,
    link: u8,
    is_to_gateway: bool,
    datagram: Vec<u8>,
}

/// Runs `work` and adds the bytes that it allocates and does not free.
fn counted<T>(bytes: &mut isize, work: impl FnOnce() -> T) -> T {
    let in_use = || HEAP.current_usage().cast_signed();
    let before = in_use();
    let result = work();
    *bytes += in_use() - before;
    result
}

fn key(number: u8) -> [u8; 32] {
    [number + 1; 32]
}

fn public(number: u8) -> [u8; 32] {
    *StaticKeys::from_private(key(number)).public()
}

const GATEWAY: u8 = 200;

fn config(number: u8, side: Side) -> EndpointConfig {
    EndpointConfig {
        private_key: key(number).into(),
        suites: Suite::preferred(true).to_vec(),
        queue: QueueConfig::default(),
        compression: true,
        classes: Vec::new(),
        parity: None,
        mtu: 1_414,
        side,
    }
}

fn peer(number: u8, allowed: &str) -> PeerConfig {
    PeerConfig {
        name: format!("c{number}"),
        public_key: public(number),
        preshared_key: NO_PSK.into(),
        allowed_ips: vec![allowed.parse().expect("a network")],
        scheduler: SchedulerSettings::default(),
    }
}

fn outer(client: usize, link: u8) -> SocketAddr {
    let client = u8::try_from(client).expect("few clients");
    (Ipv4Addr::new(10, client, link, 1), 40_000).into()
}

fn gateway_address() -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, 1), 7_700).into()
}

impl World {
    fn new(links: u8) -> Self {
        let now = Instant::from_millis(1_000);
        let clients = (0..CLIENTS).map(|client| peer(client, &format!("10.77.0.{client}/32")));
        let clients = clients.collect();
        // Tables that all clients share are not counted.
        let mut fixed_bytes = 0;
        let side = Side::Gateway {
            clients: Vec::new(),
        };
        let empty = counted(&mut fixed_bytes, || {
            Endpoint::new(config(GATEWAY, side), Seeded::new([GATEWAY; 32]), now)
        });
        drop(empty);
        let mut gateway_bytes = -fixed_bytes;
        let gateway = counted(&mut gateway_bytes, || {
            let side = Side::Gateway { clients };
            Endpoint::new(config(GATEWAY, side), Seeded::new([GATEWAY; 32]), now)
        });
        let clients = (0..CLIENTS).map(|client| {
            let side = Side::Client {
                gateway: peer(GATEWAY, "0.0.0.0/0"),
                endpoints: vec![gateway_address()],
            };
            let mut endpoint = Endpoint::new(config(client, side), Seeded::new([client; 32]), now);
            for link in 0..links {
                let id = endpoint.add_link(now, Link::named(&format!("l{link}")));
                let reach = Reach {
                    v4: true,
                    v6: false,
                };
                endpoint.handle_link(now, id.expect("few links"), reach);
            }
            endpoint
        });
        // The batches belong to the host, so their memory is allocated before anything is counted.
        let mut tx = TxQueue::new(64);
        for link in 0..64 {
            tx.reserve(&route(link), 1).expect("room");
        }
        Self {
            now,
            gateway,
            clients: clients.collect(),
            tx,
            flying: BTreeMap::new(),
            sent: 0,
            gateway_bytes,
            delivered: 0,
        }
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            self.send();
            let clients = self.clients.iter().filter_map(Endpoint::poll_timeout);
            let timer = clients.chain(self.gateway.poll_timeout()).min();
            let arrival = self.flying.keys().next().map(|(at, _)| *at);
            let next = [timer, arrival].into_iter().flatten().min();
            let next = next.unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            self.receive();
            let now = self.now;
            counted(&mut self.gateway_bytes, || self.gateway.handle_timeout(now));
            for client in &mut self.clients {
                client.handle_timeout(now);
            }
        }
    }

    fn receive(&mut self) {
        while let Some(entry) = self.flying.first_entry()
            && entry.key().0 <= self.now
        {
            let Flying {
                client,
                link,
                is_to_gateway,
                mut datagram,
            } = entry.remove();
            let remote = if is_to_gateway {
                outer(client, link)
            } else {
                gateway_address()
            };
            let incoming = Incoming {
                route: Route {
                    link: if is_to_gateway { 0 } else { link },
                    remote,
                    local: None,
                },
                is_congested: false,
            };
            let now = self.now;
            if is_to_gateway {
                counted(&mut self.gateway_bytes, || {
                    self.gateway.handle_datagram(now, &incoming, &mut datagram);
                    self.gateway.work_inline(now);
                });
            } else if let Some(client) = self.clients.get_mut(client) {
                client.handle_datagram(now, &incoming, &mut datagram);
            }
        }
    }

    fn send(&mut self) {
        let (now, at) = (self.now, self.now + DELAY);
        let (tx, sent) = (&mut self.tx, &mut self.sent);
        loop {
            tx.clear();
            counted(&mut self.gateway_bytes, || {
                self.gateway.poll_transmit(now, tx);
                while let Some(packet) = self.gateway.poll_deliver() {
                    self.delivered += 1;
                    self.gateway.pool().recycle(packet);
                }
                while self.gateway.poll_event().is_some() {}
            });
            if tx.is_empty() {
                break;
            }
            for batch in tx.batches() {
                let IpAddr::V4(to) = batch.route().remote.ip() else {
                    continue;
                };
                let [_, client, link, _] = to.octets();
                for datagram in batch.bytes().chunks(batch.segment_len()) {
                    *sent += 1;
                    let flying = Flying {
                        client: usize::from(client),
                        link,
                        is_to_gateway: false,
                        datagram: datagram.to_vec(),
                    };
                    self.flying.insert((at, *sent), flying);
                }
            }
        }
        for (number, client) in self.clients.iter_mut().enumerate() {
            loop {
                tx.clear();
                client.poll_transmit(now, tx);
                while let Some(packet) = client.poll_deliver() {
                    client.pool().recycle(packet);
                }
                while client.poll_event().is_some() {}
                if tx.is_empty() {
                    break;
                }
                for batch in tx.batches() {
                    for datagram in batch.bytes().chunks(batch.segment_len()) {
                        *sent += 1;
                        let flying = Flying {
                            client: number,
                            link: batch.route().link,
                            is_to_gateway: true,
                            datagram: datagram.to_vec(),
                        };
                        self.flying.insert((at, *sent), flying);
                    }
                }
            }
        }
    }

    /// Ends all clients without a message.
    fn vanish(&mut self) {
        self.clients.clear();
        self.flying.clear();
    }

    /// Sends `count` packets from every client to the gateway and as many back, over two seconds.
    fn exchange(&mut self, count: u32) {
        for number in 0..count {
            let now = self.now;
            for client in 0..CLIENTS {
                let up = packet(client, 254, number);
                self.clients[usize::from(client)].handle_packet(now, up);
                counted(&mut self.gateway_bytes, || {
                    self.gateway.handle_packet(now, packet(254, client, number));
                });
            }
            self.run_for(Duration::from_secs(2) / count);
        }
    }

    /// Passes a packet for every client to the gateway.
    fn send_to_all(&mut self, number: u32) {
        let now = self.now;
        for client in 0..CLIENTS {
            counted(&mut self.gateway_bytes, || {
                self.gateway.handle_packet(now, packet(254, client, number));
            });
        }
    }

    /// Returns the gateway's memory for each client, without the pool of packet buffers that all clients share.
    fn per_client(&mut self) -> isize {
        let pool = self.gateway.pool();
        let pooled = pool.free_len() * pool.capacity_bytes();
        (self.gateway_bytes - pooled.cast_signed())
            / isize::from(i8::try_from(CLIENTS).expect("few"))
    }
}

fn route(link: u8) -> Route {
    Route {
        link,
        remote: gateway_address(),
        local: None,
    }
}

/// Returns a packet of UDP over IPv4 between two inner addresses.
fn packet(from: u8, to: u8, number: u32) -> PacketBuf {
    let mut bytes = vec![0; 1_000];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&1_000_u16.to_be_bytes());
    bytes[4..6].copy_from_slice(&number.to_be_bytes()[2..]);
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&[10, 77, 0, from]);
    bytes[16..20].copy_from_slice(&[10, 77, 0, to]);
    bytes[20..24].copy_from_slice(&[0, 9, 0, 9]);
    bytes[24..26].copy_from_slice(&980_u16.to_be_bytes());
    PacketBuf::from(bytes)
}

/// One test, because the counted heap is that of the process.
#[test]
fn memory_for_packets_is_freed() {
    a_client_that_never_connects_costs_little();
    an_idle_client_costs_little_before_and_after_it_was_busy();
    a_client_that_vanishes_while_it_is_busy_costs_little();
    a_client_whose_session_has_expired_costs_little();
}

/// The host sends packets to clients that have never connected.
fn a_client_that_never_connects_costs_little() {
    let mut world = World::new(0);
    let before = world.per_client();
    for number in 0..100 {
        world.send_to_all(number);
    }
    println!("never connected, sent to: {} bytes", world.per_client());
    world.run_for(Duration::from_secs(61));
    let after = world.per_client();
    println!("never connected, a minute later: {after} bytes");
    assert!(after < before + 2_048, "{before} {after} bytes");
}

/// All clients vanish without a message while packets are sent in both directions; the host sends on for a while.
fn a_client_that_vanishes_while_it_is_busy_costs_little() {
    let mut world = World::new(2);
    world.run_for(Duration::from_secs(10));
    world.exchange(500);
    world.vanish();
    for number in 0..200 {
        world.send_to_all(number);
        world.run_for(Duration::from_millis(10));
    }
    println!("vanished while busy: {} bytes", world.per_client());
    world.run_for(Duration::from_secs(61));
    let resting = world.per_client();
    println!("vanished, a minute later: {resting} bytes");
    world.run_for(Duration::from_secs(180));
    let expired = world.per_client();
    println!("vanished, session expired: {expired} bytes");
    assert!(resting <= 30 << 10, "{resting} bytes");
    assert!(expired <= resting, "{expired} {resting} bytes");
}

/// All clients vanish without a message, and the host sends packets to them until their sessions expire.
fn a_client_whose_session_has_expired_costs_little() {
    let mut world = World::new(1);
    world.run_for(Duration::from_secs(10));
    world.exchange(100);
    world.vanish();
    for number in 0..16 {
        world.send_to_all(number);
        world.run_for(Duration::from_secs(10));
    }
    // 172 s have passed since the only handshake, and 10 s since the last packet.
    println!("vanished, sent to: {} bytes", world.per_client());
    let before = world.per_client();
    world.run_for(Duration::from_secs(12));
    let expired = world.per_client();
    println!("vanished, session expired, sent to before: {expired} bytes");
    assert!(expired < before, "{expired} {before} bytes");
    world.run_for(Duration::from_secs(40));
    let last = world.per_client();
    println!("vanished, session expired, a minute later: {last} bytes");
    assert!(last <= 20 << 10, "{last} bytes");
}

fn an_idle_client_costs_little_before_and_after_it_was_busy() {
    for (links, most) in [(1, 20 << 10), (2, 30 << 10)] {
        let mut world = World::new(links);
        println!("{links} links: configured {} bytes", world.per_client());
        world.run_for(Duration::from_secs(10));
        assert!(world.clients.iter().all(Endpoint::is_up));
        println!("{links} links: connected {} bytes", world.per_client());
        world.run_for(Duration::from_secs(200));
        assert!(world.clients.iter().all(Endpoint::is_up));
        let idle = world.per_client();
        println!("{links} links: idle for 200 s {idle} bytes");
        world.exchange(1_000);
        println!("{links} links: busy {} bytes", world.per_client());
        assert!(world.delivered > 900 * usize::from(CLIENTS));
        world.run_for(Duration::from_secs(200));
        let again = world.per_client();
        println!("{links} links: idle again {again} bytes");
        assert!(idle <= most, "{links} links: {idle} bytes");
        assert!(again <= most * 5 / 4, "{links} links: {again} bytes");
    }
}
