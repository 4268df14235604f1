//! A client and its gateway, connected by links with a delay and a bottleneck in each direction.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use pleach_core::{
    class::{Class, ClassCounts},
    counters::DropReason,
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Reach, Side},
    ids::PathId,
    packet::{PacketBuf, PacketView},
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
    units::{Bitrate, Bytes},
};

/// Index of the gateway in [`World::ends`].
pub(crate) const GATEWAY: usize = 0;
/// Index of the client in [`World::ends`].
pub(crate) const CLIENT: usize = 1;

/// Kind byte of data.
const DATA: u8 = 4;
/// Port of the host behind the gateway.
const REMOTE_PORT: u16 = 9;
/// Queueing delay of a full bottleneck. Datagrams that find the queue full are lost.
const QUEUE: Duration = Duration::from_millis(30);
/// Length of an IPv4 header and a UDP header, before the number of a packet.
const HEADERS: usize = 28;

/// A link of the client, the same in both directions.
pub(crate) struct Uplink {
    pub(crate) name: &'static str,
    pub(crate) rate: Bitrate,
    pub(crate) delay: Duration,
    /// Whether no datagram passes, although the link has an address.
    pub(crate) is_silent: bool,
    /// Length of the longest datagram that passes.
    pub(crate) width: usize,
    /// Bytes of the data datagrams that each end has sent.
    pub(crate) data_bytes: [u64; 2],
    busy_until: [Instant; 2],
}

impl Uplink {
    pub(crate) fn new(name: &'static str, mbps: u64, delay_ms: u64) -> Self {
        Self {
            name,
            rate: Bitrate::from_mbps(mbps),
            delay: Duration::from_millis(delay_ms),
            is_silent: false,
            width: usize::MAX,
            data_bytes: [0; 2],
            busy_until: [Instant::ZERO; 2],
        }
    }
}

/// Both ends, and the datagrams under way.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) links: Vec<Uplink>,
    /// Numbers of the packets delivered to the host of each end, by the client's port.
    delivered: BTreeMap<(usize, u16), Vec<u32>>,
    /// Datagrams under way, by arrival and number: the receiving end, how it receives the datagram, and the datagram.
    flying: BTreeMap<(Instant, u64), (usize, Incoming, Vec<u8>)>,
    sent: u64,
    tx: TxQueue,
}

impl World {
    /// Returns a client with `links` and `classes` that is connected to its gateway.
    pub(crate) fn new(links: Vec<Uplink>, classes: Vec<Class>) -> Self {
        let now = Instant::from_millis(1_000);
        let side = Side::Gateway {
            clients: vec![peer("client", CLIENT, "10.77.0.1/32")],
        };
        let gateway = config(GATEWAY, Vec::new(), side);
        let side = Side::Client {
            gateway: peer("gateway", GATEWAY, "0.0.0.0/0"),
            endpoints: vec![gateway_address()],
        };
        let client = config(CLIENT, classes, side);
        let mut world = Self {
            now,
            ends: [
                Endpoint::new(gateway, Seeded::new([9; 32]), now),
                Endpoint::new(client, Seeded::new([8; 32]), now),
            ],
            links,
            delivered: BTreeMap::new(),
            flying: BTreeMap::new(),
            sent: 0,
            tx: TxQueue::new(16),
        };
        for index in 0..world.links.len() {
            let link = Link::named(world.links[index].name);
            let id = world.ends[CLIENT].add_link(now, link);
            assert_eq!(id.map(PathId::index), Some(index));
            world.set_up(index, true);
        }
        world.run_for(Duration::from_secs(3));
        assert!(world.ends.iter().all(Endpoint::is_up));
        world
    }

    /// Sets whether a link of the client has an address.
    pub(crate) fn set_up(&mut self, link: usize, is_up: bool) {
        let reach = Reach {
            v4: is_up,
            v6: false,
        };
        let id = PathId(u8::try_from(link).expect("few links"));
        self.ends[CLIENT].handle_link(self.now, id, reach);
        self.drain(CLIENT);
    }

    /// Replaces the classes of the client.
    pub(crate) fn set_classes(&mut self, classes: &[Class]) {
        let scheduler = |peer: &PeerConfig| peer.scheduler.clone();
        self.ends[CLIENT].reconfigure(self.now, classes, scheduler);
        self.drain(CLIENT);
    }

    /// Passes a packet of `len` bytes from the host of the end `from` to the host of the other end. `port` is the port
    /// of the client's host, which identifies the flow.
    pub(crate) fn send(&mut self, from: usize, port: u16, number: u32, len: usize) {
        let packet = PacketBuf::from(packet(from, port, number, len));
        self.ends[from].handle_packet(self.now, packet);
        self.drain(from);
    }

    /// Returns the numbers of the packets delivered to the host of an end, in order.
    pub(crate) fn numbers(&self, end: usize, port: u16) -> &[u32] {
        self.delivered.get(&(end, port)).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of packets that an end has dropped for a reason.
    pub(crate) fn drops(&self, end: usize, reason: DropReason) -> u64 {
        self.ends[end].drops().get(reason)
    }

    /// Returns the counters of a class of the client.
    pub(crate) fn counts(&self, class: &str) -> ClassCounts {
        let mut peers = self.ends[CLIENT].status();
        let (_, status) = peers.next().expect("the gateway");
        let mut classes = status.classes.into_iter();
        let found = classes.find(|(name, _)| name == class);
        found.expect("a class").1
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        loop {
            let flight = self.flying.keys().next().map(|(at, _)| *at);
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let next = timers.chain(flight).min().filter(|at| *at <= end);
            let Some(next) = next else {
                self.now = end;
                return;
            };
            steps = if next > self.now { 0 } else { steps + 1 };
            assert!(steps < 100_000, "time stands still at {:?}", self.now);
            self.now = self.now.max(next);
            if flight.is_some_and(|at| at <= self.now) {
                self.receive();
                continue;
            }
            for end in [GATEWAY, CLIENT] {
                self.ends[end].handle_timeout(self.now);
                self.drain(end);
            }
        }
    }

    /// Delivers the next datagram under way.
    fn receive(&mut self) {
        if let Some((_, (end, incoming, mut datagram))) = self.flying.pop_first() {
            self.ends[end].handle_datagram(self.now, &incoming, &mut datagram);
            self.drain(end);
        }
    }

    /// Collects all output of an end.
    fn drain(&mut self, end: usize) {
        let now = self.now;
        self.ends[end].work_inline(now);
        loop {
            self.tx.clear();
            self.ends[end].poll_transmit(now, &mut self.tx);
            if self.tx.is_empty() {
                break;
            }
            let mut datagrams = Vec::new();
            for batch in self.tx.batches() {
                for datagram in batch.bytes().chunks(batch.segment_len()) {
                    datagrams.push((*batch.route(), datagram.to_vec()));
                }
            }
            for (route, datagram) in datagrams {
                self.transmit(end, &route, datagram);
            }
        }
        while let Some(packet) = self.ends[end].poll_deliver() {
            let (port, number) = port_and_number(packet.as_slice());
            self.delivered.entry((end, port)).or_default().push(number);
            self.ends[end].pool().recycle(packet);
        }
        while self.ends[end].poll_event().is_some() {}
    }

    fn transmit(&mut self, from: usize, route: &Route, datagram: Vec<u8>) {
        let index = if from == GATEWAY {
            let IpAddr::V4(remote) = route.remote.ip() else {
                return;
            };
            usize::from(remote.octets()[3])
        } else {
            usize::from(route.link)
        };
        let Some(link) = self.links.get_mut(index) else {
            return;
        };
        if datagram[0] == DATA {
            link.data_bytes[from] += datagram.len() as u64;
        }
        let busy_until = &mut link.busy_until[from];
        let is_full = busy_until.since(self.now) > QUEUE;
        if is_full || link.is_silent || datagram.len() > link.width {
            return;
        }
        let on_wire = Bytes::of_len(datagram.len() + HEADERS);
        *busy_until = (*busy_until).max(self.now) + on_wire / link.rate;
        let at = *busy_until + link.delay;
        let link = u8::try_from(index).expect("few links");
        let (to, route_link, remote) = if from == GATEWAY {
            (CLIENT, link, gateway_address())
        } else {
            (GATEWAY, 0, client_address(link))
        };
        let incoming = Incoming {
            route: Route {
                link: route_link,
                remote,
                local: None,
            },
            is_congested: false,
        };
        self.sent += 1;
        self.flying
            .insert((at, self.sent), (to, incoming, datagram));
    }
}

fn gateway_address() -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, 1), 7_700).into()
}

/// Returns the address at which a link of the client appears to the gateway.
fn client_address(link: u8) -> SocketAddr {
    (Ipv4Addr::new(198, 51, 100, link), 4_000).into()
}

fn private_key(end: usize) -> [u8; 32] {
    [u8::try_from(end).expect("two ends") + 1; 32]
}

fn peer(name: &str, end: usize, net: &str) -> PeerConfig {
    PeerConfig {
        name: name.to_owned(),
        public_key: *StaticKeys::from_private(private_key(end)).public(),
        preshared_key: NO_PSK.into(),
        allowed_ips: vec![net.parse().expect("a network")],
        scheduler: SchedulerSettings::default(),
    }
}

fn config(end: usize, classes: Vec<Class>, side: Side) -> EndpointConfig {
    EndpointConfig {
        private_key: private_key(end).into(),
        suites: Suite::preferred(true).to_vec(),
        queue: QueueConfig::default(),
        compression: true,
        classes,
        parity: None,
        mtu: 1_414,
        side,
    }
}

/// Returns a packet of UDP over IPv4 from the host of an end to the host of the other end.
fn packet(from: usize, port: u16, number: u32, len: usize) -> Vec<u8> {
    let mut addresses = [[192, 0, 2, 99], [10, 77, 0, 1]];
    let mut ports = [REMOTE_PORT, port];
    if from == CLIENT {
        addresses.reverse();
        ports.reverse();
    }
    let mut bytes = vec![0; len];
    let total = u16::try_from(len).expect("a short packet");
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&addresses[0]);
    bytes[16..20].copy_from_slice(&addresses[1]);
    bytes[20..22].copy_from_slice(&ports[0].to_be_bytes());
    bytes[22..24].copy_from_slice(&ports[1].to_be_bytes());
    bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    bytes[HEADERS..HEADERS + 4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns the client's port and the number of a packet.
fn port_and_number(packet: &[u8]) -> (u16, u32) {
    let view = PacketView::parse(packet).expect("a packet");
    let ports = view.ports().expect("UDP");
    let port = ports.into_iter().find(|port| *port != REMOTE_PORT);
    let number = packet[HEADERS..].first_chunk().expect("a number");
    (port.expect("a port"), u32::from_be_bytes(*number))
}
