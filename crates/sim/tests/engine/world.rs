//! Clients and a gateway, connected by paths that delay, lose and duplicate datagrams and fall silent.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use pleach_core::{
    class::Class,
    counters::{DropReason, Drops},
    endpoint::{Endpoint, EndpointConfig, Event, PeerConfig, Reach, Side},
    ids::PathId,
    packet::{PacketBuf, PacketView},
    path::link::Link,
    queue::QueueConfig,
    rng::Rng,
    sched::{ConsnSettings, Policy, SingleSettings},
    session::{aead::Suite, entropy::Seeded, handshake::StaticKeys},
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
    units::{Bitrate, Bytes},
};
use pleach_sim::link::loss::{Loss, LossState};

pub(crate) const GATEWAY: &str = "203.0.113.5:7700";

/// Behaviour of one path, the same in both directions unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathModel {
    pub(crate) delay: Duration,
    pub(crate) loss_pct: u64,
    pub(crate) copy_pct: u64,
    /// Upper bound of a random extra delay of each datagram, which reorders datagrams within the path.
    pub(crate) shake: Duration,
    /// Whether no datagram passes, to the gateway and to the client.
    pub(crate) is_silent: [bool; 2],
    /// Rate of a bottleneck with a queue of [`QUEUE`]. Datagrams that find the queue full are lost.
    pub(crate) rate: Option<Bitrate>,
    /// Length of the longest datagram that passes.
    pub(crate) width: usize,
    /// Time that the radio of the link needs to wake up, after it has carried nothing for [`RADIO_AWAKE_FOR`]. The
    /// datagrams of both directions wait for it.
    pub(crate) promotion: Duration,
}

impl PathModel {
    pub(crate) fn with_delay(millis: u64) -> Self {
        Self {
            delay: Duration::from_millis(millis),
            loss_pct: 0,
            copy_pct: 0,
            shake: Duration::ZERO,
            is_silent: [false; 2],
            rate: None,
            width: usize::MAX,
            promotion: Duration::ZERO,
        }
    }
}

/// One host and the packets that it has delivered.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) delivered: Vec<(Instant, Vec<u8>)>,
    /// Number of packets delivered until the end of each earlier process.
    pub(crate) lives: Vec<usize>,
    /// Packets that earlier processes dropped, and released late.
    former_drops: Drops,
    former_late: u64,
    /// Paths whose remote address is new or has changed: peer, path, link.
    pub(crate) found: Vec<(String, PathId, String)>,
    generation: u64,
    timer: Option<Instant>,
}

impl Host {
    /// Returns the drops of all processes of the host.
    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.former_drops.get(reason) + self.endpoint.drops().get(reason)
    }

    /// Returns the number of packets that the resequencers of all processes have released late.
    pub(crate) fn late(&self) -> u64 {
        self.former_late + late(&self.endpoint)
    }
}

fn late(endpoint: &Endpoint) -> u64 {
    endpoint
        .status()
        .map(|(_, status)| status.resequencer.released_late)
        .sum()
}

/// All hosts and paths. Host 0 is the gateway, the others are clients.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Host>,
    pub(crate) paths: Vec<PathModel>,
    /// Additional losses of each path, to the gateway and to the client.
    pub(crate) losses: Vec<[LossState; 2]>,
    /// Time until which the bottleneck of each path is busy, to the gateway and to the client.
    busy_until: Vec<[Instant; 2]>,
    /// When the radio of each path last carried a datagram, and since when it is awake.
    radios: Vec<[Instant; 2]>,
    pub(crate) rng: Rng,
    policy: Policy<String>,
    classes: Vec<Class>,
    wire: BTreeMap<(Instant, u64), Flight>,
    sequence: u64,
    timers: BTreeSet<(Instant, usize)>,
    /// Number of datagrams that arrived and timers that fired.
    pub(crate) steps: u64,
    tx: TxQueue,
    /// Datagrams that were sent to the gateway while `record` is set, for replays.
    pub(crate) seen: Vec<(Incoming, Vec<u8>)>,
    pub(crate) record: bool,
    /// Datagrams that were sent to a client while `record` is set, with the client.
    pub(crate) seen_by_clients: Vec<(usize, Incoming, Vec<u8>)>,
    /// Datagrams to the gateway, which are not delivered while this is `Some`.
    pub(crate) intercepted: Option<Vec<Vec<u8>>>,
    /// Number of data datagrams that the wire lost, that arrived for an ended process, or that such a process buffered.
    pub(crate) lost_data: u64,
    /// Bytes passed to each path, in both directions, with UDP and IP headers.
    pub(crate) carried: Vec<u64>,
    /// Number of handshake datagrams that the gateway has sent: responses and cookie replies.
    pub(crate) answers: u64,
    /// Number of handshake datagrams that clients have sent.
    pub(crate) initiations: u64,
    /// Port at which each link appears to the gateway. Datagrams to another port are lost.
    pub(crate) ports: Vec<u16>,
    /// A link whose client forges its source address, and the resulting traffic.
    pub(crate) forged: Option<Forged>,
}

/// Forged source address: datagrams of a link appear to come from a victim. Datagrams to the victim do not reach the
/// client, but the client's engine processes data as if it had arrived: the client guesses what to report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forged {
    pub(crate) link: usize,
    pub(crate) victim: SocketAddr,
    /// Bytes "from the victim" and to the victim: with IP and UDP headers, and of UDP payload.
    pub(crate) came: [u64; 2],
    pub(crate) went: [u64; 2],
}

struct Flight {
    host: usize,
    generation: u64,
    incoming: Incoming,
    datagram: Vec<u8>,
}

pub(crate) fn policy(name: &str) -> Policy<String> {
    match name {
        "consn+redundancy" => Policy::Consn(ConsnSettings {
            redundancy: true,
            ..ConsnSettings::default()
        }),
        "single:link1" => Policy::Single(SingleSettings {
            link: Some("link1".into()),
        }),
        name => Policy::named(name).expect("the name of a policy"),
    }
}

pub(crate) fn private_key(host: usize) -> [u8; 32] {
    let mut key = [0; 32];
    Rng::new(1000 + host as u64).fill(&mut key);
    key
}

pub(crate) fn public_key(host: usize) -> [u8; 32] {
    *StaticKeys::from_private(private_key(host)).public()
}

/// Returns the inner address of a host.
pub(crate) fn address(host: usize) -> [u8; 4] {
    [10, 77, (host / 256) as u8, (host % 256) as u8]
}

/// Returns the address at which a client's link appears to the gateway.
pub(crate) fn outer(client: usize, link: usize) -> SocketAddr {
    let [high, low] = (client as u16).to_be_bytes();
    SocketAddr::from(([198, high, link as u8, low], PORT))
}

/// Initial port of all links.
const PORT: u16 = 4000;

/// Whether every host can send to a peer.
pub(crate) fn connected(world: &World) -> bool {
    world.hosts.iter().all(|host| host.endpoint.is_up())
}

impl World {
    /// Creates a gateway and `clients` clients with one link for each of `paths`, all started at once.
    pub(crate) fn new(clients: usize, paths: &[PathModel], policy_name: &str, seed: u64) -> Self {
        let mut world = Self {
            now: Instant::from_millis(1000),
            hosts: Vec::new(),
            paths: paths.to_vec(),
            losses: vec![[LossState::new(Loss::None); 2]; paths.len()],
            busy_until: vec![[Instant::ZERO; 2]; paths.len()],
            radios: vec![[Instant::ZERO; 2]; paths.len()],
            rng: Rng::new(seed),
            policy: policy(policy_name),
            classes: Vec::new(),
            wire: BTreeMap::new(),
            sequence: 0,
            timers: BTreeSet::new(),
            steps: 0,
            tx: TxQueue::new(16),
            seen: Vec::new(),
            record: false,
            seen_by_clients: Vec::new(),
            intercepted: None,
            lost_data: 0,
            carried: vec![0; paths.len()],
            answers: 0,
            initiations: 0,
            ports: vec![PORT; paths.len()],
            forged: None,
        };
        for host in 0..=clients {
            let endpoint = world.start(host, clients, private_key(host), [7; 32]);
            world.hosts.push(Host {
                endpoint,
                delivered: Vec::new(),
                lives: Vec::new(),
                former_drops: Drops::default(),
                former_late: 0,
                found: Vec::new(),
                generation: 0,
                timer: None,
            });
        }
        world
    }

    /// Creates one client under `adaptive`, with traffic classes at both ends.
    pub(crate) fn with_classes(paths: &[PathModel], classes: Vec<Class>, seed: u64) -> Self {
        let mut world = Self::new(1, paths, "adaptive", seed);
        world.classes = classes;
        world.restart(0);
        world.restart(1);
        world
    }

    /// Creates one client with the usual two paths.
    pub(crate) fn pair(policy_name: &str, seed: u64) -> Self {
        Self::new(
            1,
            &[PathModel::with_delay(7), PathModel::with_delay(18)],
            policy_name,
            seed,
        )
    }

    /// Creates a new endpoint, as after the start of its process.
    pub(crate) fn start(
        &mut self,
        host: usize,
        clients: usize,
        private_key: [u8; 32],
        psk: [u8; 32],
    ) -> Endpoint {
        let peer = |name: String, index: usize, allowed_ips| PeerConfig {
            name,
            public_key: public_key(index),
            preshared_key: psk.into(),
            allowed_ips,
            scheduler: self.policy.clone().into(),
        };
        let net = |index: usize| {
            vec![
                format!("{}/32", IpAddr::from(address(index)))
                    .parse()
                    .expect("net"),
            ]
        };
        let side = if host == 0 {
            Side::Gateway {
                clients: (1..=clients)
                    .map(|index| peer(index.to_string(), index, net(index)))
                    .collect(),
            }
        } else {
            Side::Client {
                gateway: peer("gateway".into(), 0, vec!["0.0.0.0/0".parse().expect("net")]),
                endpoints: vec![GATEWAY.parse().expect("address")],
            }
        };
        let config = EndpointConfig {
            private_key: private_key.into(),
            suites: Suite::preferred(true).to_vec(),
            queue: QueueConfig::default(),
            compression: true,
            classes: self.classes.clone(),
            parity: None,
            mtu: 1400,
            side,
        };
        let mut entropy = [0; 32];
        self.rng.fill(&mut entropy);
        let mut endpoint = Endpoint::new(config, Seeded::new(entropy), self.now);
        if host > 0 {
            for link in 0..self.paths.len() {
                let id = endpoint
                    .add_link(self.now, Link::named(&format!("link{link}")))
                    .expect("room");
                endpoint.handle_link(
                    self.now,
                    id,
                    Reach {
                        v4: true,
                        v6: false,
                    },
                );
            }
        }
        endpoint
    }

    /// Kills a host's process without notification and starts it again.
    pub(crate) fn restart(&mut self, host: usize) {
        let clients = self.hosts.len() - 1;
        let endpoint = self.start(host, clients, private_key(host), [7; 32]);
        self.replace(host, endpoint);
    }

    /// Replaces a host's process by another.
    pub(crate) fn replace(&mut self, host: usize, endpoint: Endpoint) {
        let host = &mut self.hosts[host];
        let former = core::mem::replace(&mut host.endpoint, endpoint);
        host.former_drops.merge(former.drops());
        host.former_late += late(&former);
        let held = former.status().map(|(_, status)| status.held as u64);
        self.lost_data += held.sum::<u64>();
        host.lives.push(host.delivered.len());
        host.generation += 1;
    }

    /// Sets whether a client's link reaches the gateway.
    pub(crate) fn set_reach(&mut self, client: usize, link: usize, v4: bool) {
        let reach = Reach { v4, v6: false };
        let now = self.now;
        self.hosts[client]
            .endpoint
            .handle_link(now, path_id(link), reach);
        self.settle(client);
    }

    /// Lets a host do all its current work. Afterwards its next deadline must be in the future.
    pub(crate) fn settle(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].endpoint.handle_timeout(now);
        self.drain(host);
        let next = self.hosts[host].endpoint.poll_timeout();
        assert!(
            next.is_none_or(|at| at > now),
            "host {host} is due at {next:?} again, at {now:?}"
        );
    }

    /// Sends an inner packet of host `from` to host `to`, with `number` in its payload and one port per flow.
    pub(crate) fn send(&mut self, from: usize, to: usize, flow: u16, number: u32, len: usize) {
        let packet = udp(address(from), address(to), flow, number, len);
        let now = self.now;
        self.hosts[from]
            .endpoint
            .handle_packet(now, PacketBuf::from(packet));
        self.drain(from);
    }

    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: Instant) {
        let mut steps = 0;
        for host in 0..self.hosts.len() {
            self.drain(host);
        }
        loop {
            let flight = self.wire.keys().next().map(|(at, _)| *at);
            let timer = self.timers.first().copied();
            let next = [flight, timer.map(|(at, _)| at)]
                .into_iter()
                .flatten()
                .min()
                .filter(|at| *at <= end);
            let Some(next) = next else {
                self.now = end.max(self.now);
                return;
            };
            if next > self.now {
                steps = 0;
            }
            steps += 1;
            self.steps += 1;
            assert!(steps < 200_000, "time stands still at {:?}", self.now);
            self.now = next.max(self.now);
            if flight == Some(next)
                && let Some((_, flight)) = self.wire.pop_first()
            {
                self.arrive(flight);
            } else if let Some((_, host)) = timer {
                let now = self.now;
                self.hosts[host].endpoint.handle_timeout(now);
                self.drain(host);
            }
        }
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until `condition` holds, at most for `limit`. Returns the elapsed time.
    pub(crate) fn run_until_true(
        &mut self,
        limit: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Option<Duration> {
        let start = self.now;
        while !condition(self) {
            if self.now.since(start) > limit {
                return None;
            }
            self.run_for(Duration::from_millis(1));
        }
        Some(self.now.since(start))
    }

    /// Delivers a datagram to the gateway as if a stranger had sent it.
    pub(crate) fn inject(&mut self, from: SocketAddr, datagram: &[u8]) {
        let incoming = Incoming {
            route: Route {
                link: 0,
                remote: from,
                local: None,
            },
            is_congested: false,
        };
        self.inject_at(0, &incoming, datagram);
    }

    /// Delivers a datagram to any host.
    pub(crate) fn inject_at(&mut self, host: usize, incoming: &Incoming, datagram: &[u8]) {
        let now = self.now;
        self.hosts[host]
            .endpoint
            .handle_datagram(now, incoming, &mut datagram.to_vec());
        self.drain(host);
    }

    /// Returns the numbers delivered to a host for one flow, in order.
    pub(crate) fn numbers(&self, host: usize, flow: u16) -> Vec<u32> {
        let numbers = self.hosts[host]
            .delivered
            .iter()
            .map(|(_, packet)| number_of(packet));
        numbers
            .filter(|(f, _)| *f == flow)
            .map(|(_, number)| number)
            .collect()
    }

    pub(crate) fn set_silent(&mut self, path: usize, is_silent: bool) {
        self.paths[path].is_silent = [is_silent; 2];
    }

    fn arrive(&mut self, flight: Flight) {
        let Flight {
            host,
            generation,
            incoming,
            mut datagram,
        } = flight;
        if self.hosts[host].generation != generation {
            self.lost_data += u64::from(datagram[0] == DATA);
            return;
        }
        if self.record && host == 0 {
            self.seen.push((incoming, datagram.clone()));
        } else if self.record {
            self.seen_by_clients
                .push((host, incoming, datagram.clone()));
        }
        let now = self.now;
        self.hosts[host]
            .endpoint
            .handle_datagram(now, &incoming, &mut datagram);
        self.drain(host);
    }

    /// Collects all output of a host.
    pub(crate) fn drain(&mut self, host: usize) {
        self.hosts[host].endpoint.work_inline(self.now);
        loop {
            self.tx.clear();
            let now = self.now;
            self.hosts[host].endpoint.poll_transmit(now, &mut self.tx);
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
                self.transmit(host, &route, datagram);
            }
        }
        while let Some(packet) = self.hosts[host].endpoint.poll_deliver() {
            self.hosts[host]
                .delivered
                .push((self.now, packet.as_slice().to_vec()));
            self.hosts[host].endpoint.pool().recycle(packet);
        }
        let host_of = &mut self.hosts[host];
        while let Some(event) = host_of.endpoint.poll_event() {
            if let Event::Found {
                peer, path, link, ..
            } = event
            {
                host_of.found.push((peer, path, link));
            }
        }
        let next = host_of.endpoint.poll_timeout();
        if let Some(at) = core::mem::replace(&mut host_of.timer, next) {
            self.timers.remove(&(at, host));
        }
        self.timers.extend(next.map(|at| (at, host)));
    }

    fn transmit(&mut self, from: usize, route: &Route, datagram: Vec<u8>) {
        let gateway: SocketAddr = GATEWAY.parse().expect("address");
        let (to, link, remote) = if let Some(forged) = &mut self.forged
            && from == 0
            && route.remote == forged.victim
        {
            forged.went[0] += 28 + datagram.len() as u64;
            forged.went[1] += datagram.len() as u64;
            if datagram[0] != DATA {
                return;
            }
            (1, forged.link, gateway)
        } else if from == 0 {
            let IpAddr::V4(address) = route.remote.ip() else {
                return;
            };
            let [_, high, link, low] = address.octets();
            let client = u16::from_be_bytes([high, low]);
            if self.ports.get(usize::from(link)) != Some(&route.remote.port()) {
                self.lost_data += u64::from(datagram[0] == DATA);
                return;
            }
            (usize::from(client), usize::from(link), gateway)
        } else {
            let link = usize::from(route.link);
            let mut source = outer(from, link);
            source.set_port(self.ports[link]);
            if let Some(forged) = &mut self.forged
                && forged.link == link
            {
                source = forged.victim;
                forged.came[0] += 28 + datagram.len() as u64;
                forged.came[1] += datagram.len() as u64;
            }
            (0, link, source)
        };
        self.answers += u64::from(from == 0 && datagram[0] < DATA);
        self.initiations += u64::from(from > 0 && datagram[0] < DATA);
        let Some(path) = self.paths.get(link).copied() else {
            return;
        };
        if let Some(intercepted) = self.intercepted.as_mut().filter(|_| to == 0) {
            return intercepted.push(datagram);
        }
        self.carried[link] += 28 + datagram.len() as u64;
        if path.is_silent[usize::from(from == 0)]
            || self.rng.below(100) < path.loss_pct
            || self.losses[link][usize::from(from == 0)].is_lost(&mut self.rng)
            || to >= self.hosts.len()
            || datagram.len() > path.width
        {
            self.lost_data += u64::from(datagram[0] == DATA);
            return;
        }
        let [carried_at, awake_at] = &mut self.radios[link];
        if self.now.since(*carried_at) > RADIO_AWAKE_FOR {
            *awake_at = self.now + path.promotion;
        }
        *carried_at = self.now;
        let mut leaves_at = self.now.max(*awake_at);
        if let Some(rate) = path.rate {
            let busy_until = &mut self.busy_until[link][usize::from(from == 0)];
            if busy_until.since(self.now) > QUEUE {
                self.lost_data += u64::from(datagram[0] == DATA);
                return;
            }
            leaves_at = (*busy_until).max(leaves_at) + Bytes::of_len(datagram.len()) / rate;
            *busy_until = leaves_at;
        }
        let copies = 1 + u64::from(self.rng.below(100) < path.copy_pct);
        for _ in 0..copies {
            let shake = self.rng.below(path.shake.as_nanos() as u64 + 1);
            let at = leaves_at + path.delay + Duration::from_nanos(shake);
            self.sequence += 1;
            let link = if to == 0 { 0 } else { link as u8 };
            let flight = Flight {
                host: to,
                generation: self.hosts[to].generation,
                incoming: Incoming {
                    route: Route {
                        link,
                        remote,
                        local: None,
                    },
                    is_congested: false,
                },
                datagram: datagram.clone(),
            };
            self.wire.insert((at, self.sequence), flight);
        }
    }
}

/// Time without datagrams after which a radio sleeps.
const RADIO_AWAKE_FOR: Duration = Duration::from_secs(8);

/// Queueing delay of a full bottleneck.
const QUEUE: Duration = Duration::from_millis(30);

/// Kind byte of data. Smaller values are handshakes.
pub(crate) const DATA: u8 = 4;

/// Returns an IPv4 UDP packet. The flow is the source port, and the payload starts with `number`.
pub(crate) fn udp(
    source: [u8; 4],
    destination: [u8; 4],
    flow: u16,
    number: u32,
    len: usize,
) -> Vec<u8> {
    let mut bytes = vec![0_u8; len.max(32)];
    let total = bytes.len() as u16;
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&source);
    bytes[16..20].copy_from_slice(&destination);
    bytes[20..22].copy_from_slice(&flow.to_be_bytes());
    bytes[22..24].copy_from_slice(&9_u16.to_be_bytes());
    bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    bytes[28..32].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns flow and number of a packet made by [`udp`].
pub(crate) fn number_of(packet: &[u8]) -> (u16, u32) {
    assert!(PacketView::parse(packet).is_ok());
    let flow = u16::from_be_bytes([packet[20], packet[21]]);
    (
        flow,
        u32::from_be_bytes([packet[28], packet[29], packet[30], packet[31]]),
    )
}

/// Returns the path id of a world's link.
pub(crate) fn path_id(link: usize) -> PathId {
    PathId(link as u8)
}
