//! Cost of a packet in the engine: nanoseconds of one core, without system calls.
//!
//! Each figure is per packet of 1400 bytes. `egress` is the time from `handle_packet` to `poll_transmit`, `ingress` the
//! time from `handle_datagram` to `poll_deliver`, both for a connected pair under `weighted`. A burst of [`BURST`]
//! packets is timed at once, as the daemon processes it, and the clock advances by a millisecond between bursts. The
//! other figures are parts of these two.

use std::{
    collections::VecDeque,
    hint::black_box,
    net::SocketAddr,
    time::{Duration, Instant as Wall},
};

use criterion::{Criterion, Throughput};
use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Reach, Side},
    flows::FlowId,
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    path::link::Link,
    queue::{Queue, QueueConfig},
    resequencer::{Arrival, Resequencer, Way},
    sched::{PacketInfo, PathView, Pick, Policy, Scheduler},
    session::{aead::Suite, entropy::Seeded, handshake::StaticKeys},
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
    units::{Bitrate, Bytes},
};

const LEN: usize = 1400;
const BURST: usize = 32;
const STEP: Duration = Duration::from_millis(1);

/// A client (index 1) and its gateway (index 0), joined by paths without delay.
struct Pair {
    now: Instant,
    hosts: [Endpoint; 2],
    tx: TxQueue,
}

impl Pair {
    fn connected(paths: u8, suite: Suite) -> Self {
        let now = Instant::from_millis(1000);
        let key = |host: u8| [host + 1; 32];
        let peer = |host: u8, net: &str| PeerConfig {
            name: "peer".into(),
            public_key: *StaticKeys::from_private(key(host)).public(),
            preshared_key: [0; 32].into(),
            allowed_ips: vec![net.parse().expect("literal")],
            scheduler: Policy::Weighted {}.into(),
        };
        let gateway = Side::Gateway {
            clients: vec![peer(1, "10.77.0.2/32")],
        };
        let client = Side::Client {
            gateway: peer(0, "0.0.0.0/0"),
            endpoints: vec![address(0)],
        };
        let endpoint = |host, side| {
            let config = EndpointConfig {
                parity: None,
                private_key: key(host).into(),
                suites: vec![suite],
                queue: QueueConfig::default(),
                compression: true,
                classes: Vec::new(),
                mtu: LEN,
                side,
            };
            Endpoint::new(config, Seeded::new([host; 32]), now)
        };
        let mut this = Self {
            now,
            hosts: [endpoint(0, gateway), endpoint(1, client)],
            tx: TxQueue::new(32),
        };
        let reach = Reach {
            v4: true,
            v6: false,
        };
        for path in 0..paths {
            let link = Link::named(&path.to_string());
            let id = this.hosts[1].add_link(now, link).expect("room");
            this.hosts[1].handle_link(now, id, reach);
        }
        for _ in 0..500 {
            this.rest();
        }
        // Send until the rate of every path is known.
        for _ in 0..2_000 {
            this.burst();
        }
        let (_, status) = this.hosts[1].status().next().expect("a gateway");
        let are_used = status.paths.iter().all(|path| path.tx_bytes > 0);
        assert!(are_used && status.paths.len() == usize::from(paths));
        this
    }

    /// Advances the clock by a millisecond, runs timers and exchanges the datagrams that are due.
    fn rest(&mut self) {
        self.now += STEP;
        for host in [0, 1] {
            self.hosts[host].handle_timeout(self.now);
        }
        for _ in 0..4 {
            for host in [0, 1] {
                let datagrams = self.transmit(host);
                self.receive(1 - host, datagrams);
            }
        }
        for endpoint in &mut self.hosts {
            while let Some(packet) = endpoint.poll_deliver() {
                endpoint.pool().recycle(packet);
            }
            while endpoint.poll_event().is_some() {}
        }
    }

    /// Returns the datagrams that a host has to send, with the metadata with which the other end receives them.
    fn transmit(&mut self, host: usize) -> Vec<(Incoming, Vec<u8>)> {
        let mut datagrams = Vec::new();
        loop {
            self.tx.clear();
            self.hosts[host].poll_transmit(self.now, &mut self.tx);
            if self.tx.is_empty() {
                return datagrams;
            }
            collect(host, &self.tx, &mut datagrams);
        }
    }

    fn receive(&mut self, host: usize, datagrams: Vec<(Incoming, Vec<u8>)>) {
        for (incoming, mut datagram) in datagrams {
            self.hosts[host].handle_datagram(self.now, &incoming, &mut datagram);
            self.hosts[host].work_inline(self.now);
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
    /// Moves a burst from the client to the gateway. Returns the time at the sender, the time at the receiver, and the
    /// number of packets delivered.
    fn burst(&mut self) -> (Duration, Duration, u64) {
        self.rest();
        let packet = inner_packet();
        let burst: Vec<PacketBuf> = (0..BURST)
            .map(|_| self.hosts[1].pool().copy_of(&packet))
            .collect();
        let (now, client) = (self.now, &mut self.hosts[1]);
        self.tx.clear();
        let start = Wall::now();
        for packet in burst {
            client.handle_packet(now, packet);
        }
        client.poll_transmit(now, &mut self.tx);
        let out = start.elapsed();
        let mut datagrams = Vec::with_capacity(BURST);
        collect(1, &self.tx, &mut datagrams);

        let (gateway, mut delivered) = (&mut self.hosts[0], Vec::with_capacity(BURST));
        let start = Wall::now();
        for (incoming, datagram) in &mut datagrams {
            gateway.handle_datagram(now, incoming, datagram);
        }
        while let Some(packet) = gateway.poll_deliver() {
            delivered.push(packet);
        }
        let count = delivered.len() as u64;
        delivered
            .drain(..)
            .for_each(|packet| gateway.pool().recycle(packet));
        (out, start.elapsed(), count)
    }
}

/// Returns the address of a host on a link.
fn address(link: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, link], 7700))
}

fn collect(from: usize, tx: &TxQueue, datagrams: &mut Vec<(Incoming, Vec<u8>)>) {
    for batch in tx.batches() {
        // The gateway distinguishes paths by the client's address, which ends with the link's number.
        let sent = batch.route();
        let incoming = if from == 1 {
            (0, address(sent.link + 1))
        } else {
            let SocketAddr::V4(remote) = sent.remote else {
                continue;
            };
            (remote.ip().octets()[3] - 1, address(0))
        };
        let incoming = Incoming {
            route: Route {
                link: incoming.0,
                remote: incoming.1,
                local: None,
            },
            is_congested: false,
        };
        for datagram in batch.bytes().chunks(batch.segment_len()) {
            datagrams.push((incoming, datagram.to_vec()));
        }
    }
}

/// Returns an IPv4 UDP packet from the client.
fn inner_packet() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&1400_u16.to_be_bytes());
    bytes[8..10].copy_from_slice(&[64, 17]);
    bytes[12..20].copy_from_slice(&[10, 77, 0, 2, 198, 51, 100, 1]);
    bytes
}

fn endpoints(criterion: &mut Criterion) {
    for (way, is_out) in [("egress", true), ("ingress", false)] {
        let mut group = criterion.benchmark_group(way);
        group.throughput(Throughput::Elements(1));
        for (name, suite) in [
            ("aes-256-gcm", Suite::Aes256Gcm),
            ("chacha20-poly1305", Suite::ChaCha20Poly1305),
        ] {
            for paths in [1, 2] {
                let mut pair = Pair::connected(paths, suite);
                group.bench_function(format!("{name}, {paths} paths"), |bencher| {
                    bencher.iter_custom(|wanted| {
                        let (mut time, mut packets) = (Duration::ZERO, 0);
                        while packets < wanted {
                            let (out, into, count) = pair.burst();
                            assert_eq!(count, BURST as u64, "all of a burst arrives");
                            time += if is_out { out } else { into };
                            packets += count;
                        }
                        time.mul_f64(wanted as f64 / packets as f64)
                    });
                });
            }
        }
        group.finish();
    }
}

fn resequencer(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("resequencer");
    group.throughput(Throughput::Elements(1));
    // With two paths the packets of a pair are swapped, so that every other packet waits for its predecessor.
    for (name, paths) in [("in order", 1), ("two paths interleaved", 2)] {
        let mut pool = Pool::new(64, LEN);
        let mut resequencer = Resequencer::new();
        let (mut out, mut dropped) = (VecDeque::new(), Vec::new());
        let mut turn = 0_u32;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let seq = if paths == 1 { turn } else { turn ^ 1 };
                let now = Instant::ZERO + Duration::from_micros(u64::from(turn));
                let arrival = Arrival {
                    seq: Seq(seq),
                    flow_step: u16::from(seq > 0),
                    way: Some(Way {
                        path: PathId(if seq % paths == 0 { 0 } else { 1 }),
                        path_seq: Seq(seq / paths),
                        path_previous: seq.checked_sub(paths).map(Seq),
                        is_out_of_turn: false,
                    }),
                    deadline: now + Duration::from_millis(10),
                    repair: None,
                    packet: pool.take(),
                };
                black_box(resequencer.on_packet(now, arrival, &mut out, &mut dropped));
                out.drain(..).for_each(|packet| pool.recycle(packet));
                turn += 1;
            });
        });
        assert_eq!(resequencer.stats().released_late, 0);
    }
    group.finish();
}

fn flow_of(number: u64) -> FlowId {
    FlowId::of_hash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(1));
    let mut pool = Pool::new(64, LEN);
    let mut queue = Queue::new(QueueConfig::default());
    let now = Instant::from_millis(1);
    let mut flow = 0_u64;
    for _ in 0..BURST {
        let packet = pool.copy_of(&inner_packet());
        queue.enqueue(now, packet, flow_of(flow), |_, _| {});
        flow += 1;
    }
    group.bench_function("enqueue and dequeue, 32 flows", |bencher| {
        bencher.iter(|| {
            let packet = queue.dequeue(now, |_, _| {}).map(|queued| queued.packet);
            let packet = packet.expect("as many as went in");
            queue.enqueue(now, packet, flow_of(flow % BURST as u64), |_, _| {});
            flow += 1;
        });
    });
    group.finish();
}

fn policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pick, 4 paths");
    group.throughput(Throughput::Elements(1));
    let paths: Vec<PathView> = (0..4_u8)
        .map(|id| PathView {
            ready: true,
            usable: true,
            weight: 1 + u32::from(id),
            smoothed_rtt: Some(Duration::from_millis(10 + u64::from(id))),
            extra_delay: Duration::from_millis(u64::from(id)),
            rate: Some(Bitrate::from_mbps(50)),
            in_flight: Bytes::new(10_000),
            ..PathView::unmeasured(PathId(id))
        })
        .collect();
    let all = Policy::<PathId>::NAMES.iter().copied();
    for policy in all.filter_map(Policy::<PathId>::named) {
        let mut scheduler = policy.build();
        let mut turn = 0_u64;
        group.bench_function(policy.name(), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let packet = PacketInfo {
                    flow: flow_of(turn),
                    ..PacketInfo::of_len(Bytes::new(LEN as u64))
                };
                let now = Instant::ZERO + Duration::from_micros(turn * 60);
                let pick: Pick = scheduler.pick(now, black_box(&paths), &packet);
                black_box(pick)
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    endpoints(&mut criterion);
    resequencer(&mut criterion);
    queue(&mut criterion);
    policies(&mut criterion);
    criterion.final_summary();
}
