//! One end of a tunnel: the production engine, driven in the same way as by the daemon's data path.
//!
//! In each round, the daemon receives arrived packets, runs timers, delivers packets, and sends until nothing is left
//! to send. Processes can be killed and started again. A new process remembers only its configuration.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::{collections::VecDeque, sync::Arc};

use ipnet::IpNet;
use pleach_core::{
    class::Class,
    endpoint::{Endpoint, EndpointConfig, PeerConfig, Reach, Side},
    ids::PathId,
    path::link::Link,
    queue::QueueConfig,
    rng::Rng,
    sched::SchedulerSettings,
    sec::Code,
    session::{aead::Suite, entropy::Seeded},
    time::Instant,
    trace::Observers,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
    wire::header::DATA_OVERHEAD,
};

use super::packet::{Buffers, Packet};
use crate::scenario::End;

/// MTU of the links' devices.
pub(crate) const UPLINK_MTU: u16 = 1_500;
/// Length in bytes that a datagram adds to an inner packet: IPv6 and UDP headers, the tunnel's header and tag.
#[expect(clippy::cast_possible_truncation, reason = "some 40 bytes")]
const OUTER_BYTES: u16 = 40 + 8 + DATA_OVERHEAD as u16;
/// Port on which the gateway listens.
const GATEWAY_PORT: u16 = 7_700;
/// Port to which the client's sockets are bound. In reality the kernel would choose it.
const CLIENT_PORT: u16 = 40_000;
/// Number of batches in one pass, as in the daemon.
const TX_BATCHES: usize = 32;
/// Time from the start of a process to its first packet.
const START_TIME: Duration = Duration::from_millis(20);

/// One link of the client.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    /// Port of the host to which the link is connected.
    pub(crate) port: usize,
    /// The user's settings.
    pub(crate) link: Link,
    pub(crate) v4: IpAddr,
    /// IPv6 address of the link. `None` without IPv6.
    pub(crate) v6: Option<IpAddr>,
}

/// Configuration of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonConfig {
    pub(crate) end: End,
    pub(crate) private_key: [u8; 32],
    pub(crate) peer_public_key: [u8; 32],
    pub(crate) scheduler: SchedulerSettings<String>,
    /// Observers of the engine's decisions.
    pub(crate) observers: Option<Arc<dyn Observers>>,
    /// Inner addresses that belong to the peer.
    pub(crate) allowed_ips: Vec<IpNet>,
    /// MTU of inner packets. `None`: derived from the links' MTU.
    pub(crate) mtu: Option<u16>,
    /// Whether inner headers are compressed.
    pub(crate) compression: bool,
    /// Classes of traffic.
    pub(crate) classes: Vec<Class>,
    /// Error-correcting code of the parity, if any. Then the sockets accept damaged datagrams.
    pub(crate) parity: Option<Code>,
    /// The gateway's address.
    pub(crate) gateway: IpAddr,
    /// The links of a client.
    pub(crate) uplinks: Vec<Uplink>,
}

impl DaemonConfig {
    /// Returns the length of the longest inner packet.
    pub(crate) fn inner_mtu(&self) -> u16 {
        self.mtu.unwrap_or(UPLINK_MTU - OUTER_BYTES)
    }
}

/// The daemon of a host.
#[derive(Debug)]
pub(crate) struct Daemon {
    config: DaemonConfig,
    /// Random numbers in place of the kernel's.
    entropy: Rng,
    process: Option<Process>,
    starts_at: Option<Instant>,
    /// Whether each uplink has a carrier.
    has_carrier: Vec<bool>,
}

#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    tx: TxQueue,
    /// Path of each uplink.
    paths: Vec<Option<PathId>>,
}

impl Daemon {
    /// Creates a daemon that is started at `now`.
    pub(crate) fn new(config: DaemonConfig, entropy: Rng, now: Instant) -> Self {
        Self {
            has_carrier: vec![true; config.uplinks.len()],
            config,
            entropy,
            process: None,
            starts_at: Some(now),
        }
    }

    pub(crate) fn config(&self) -> &DaemonConfig {
        &self.config
    }

    /// Returns the engine. `None` while no process runs.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.process.as_ref().map(|process| &process.endpoint)
    }

    /// Returns the UDP port of the daemon's sockets.
    pub(crate) fn port(&self) -> u16 {
        match self.config.end {
            End::Client => CLIENT_PORT,
            End::Gateway => GATEWAY_PORT,
        }
    }

    /// Kills the process without notification. If `restarts` is set, another process is started at `now`.
    pub(crate) fn kill(&mut self, now: Instant, restarts: bool) {
        self.process = None;
        self.starts_at = restarts.then(|| now + START_TIME);
    }

    pub(super) fn handle_carrier(&mut self, now: Instant, port: usize, has_carrier: bool) {
        for (index, uplink) in self.config.uplinks.iter().enumerate() {
            let changes = uplink.port == port && self.has_carrier[index] != has_carrier;
            if !changes {
                continue;
            }
            self.has_carrier[index] = has_carrier;
            if let Some(process) = &mut self.process
                && let Some(path) = process.paths[index]
            {
                let endpoint = &mut process.endpoint;
                endpoint.handle_link(now, path, Reach::NONE);
                endpoint.handle_link(now, path, reach(uplink, has_carrier));
            }
        }
    }

    /// Processes a datagram from a socket. The content of `payload` is unspecified afterwards.
    pub(super) fn handle_datagram(
        &mut self,
        now: Instant,
        source: SocketAddr,
        destination: SocketAddr,
        payload: &mut [u8],
    ) {
        let Some(process) = &mut self.process else {
            return;
        };
        let (link, local) = match self.config.end {
            End::Gateway => (Some(PathId(0)), Some(destination.ip())),
            End::Client => {
                let to = destination.ip();
                let is_to = |uplink: &Uplink| uplink.v4 == to || uplink.v6 == Some(to);
                let index = self.config.uplinks.iter().position(is_to);
                (index.and_then(|index| process.paths[index]), None)
            }
        };
        if let Some(PathId(link)) = link {
            let incoming = Incoming {
                route: Route {
                    link,
                    remote: source,
                    local,
                },
                is_congested: false,
            };
            process.endpoint.handle_datagram(now, &incoming, payload);
        }
    }

    /// Processes a packet from the TUN device.
    pub(super) fn handle_packet(&mut self, now: Instant, packet: &[u8]) {
        if let Some(Process { endpoint, .. }) = &mut self.process {
            let packet = endpoint.pool().copy_of(packet);
            endpoint.handle_packet(now, packet);
        }
    }

    /// Does all current work. Inner packets are added to `delivered`, outer packets to `sent`.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        delivered: &mut VecDeque<Packet>,
        sent: &mut VecDeque<Packet>,
        buffers: &mut Buffers,
    ) {
        if self.starts_at.is_some_and(|at| at <= now) {
            self.starts_at = None;
            self.process = Some(self.start(now));
        }
        let Some(process) = &mut self.process else {
            return;
        };
        process.endpoint.work_inline(now);
        process.endpoint.handle_timeout(now);
        while let Some(packet) = process.endpoint.poll_deliver() {
            delivered.push_back(buffers.copy_of(packet.as_slice()));
            process.endpoint.pool().recycle(packet);
        }
        loop {
            process.tx.clear();
            process.endpoint.poll_transmit(now, &mut process.tx);
            if process.tx.is_empty() {
                break;
            }
            for batch in process.tx.batches() {
                let Some(source) = source(&self.config, &process.paths, batch.route()) else {
                    continue;
                };
                let port = match self.config.end {
                    End::Client => CLIENT_PORT,
                    End::Gateway => GATEWAY_PORT,
                };
                let source = SocketAddr::new(source, port);
                for datagram in batch.bytes().chunks(batch.segment_len()) {
                    sent.extend(buffers.datagram(source, batch.route().remote, |bytes| {
                        bytes.extend_from_slice(datagram);
                    }));
                }
            }
        }
        while process.endpoint.poll_event().is_some() {}
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let engine = self.endpoint().and_then(Endpoint::poll_timeout);
        engine.into_iter().chain(self.starts_at).min()
    }

    fn start(&mut self, now: Instant) -> Process {
        let config = &self.config;
        let peer = |name: &str| PeerConfig {
            name: name.to_owned(),
            public_key: config.peer_public_key,
            preshared_key: [0; 32].into(),
            allowed_ips: config.allowed_ips.clone(),
            scheduler: config.scheduler.clone(),
        };
        let side = match config.end {
            End::Client => Side::Client {
                gateway: peer("gateway"),
                endpoints: vec![SocketAddr::new(config.gateway, GATEWAY_PORT)],
            },
            End::Gateway => Side::Gateway {
                clients: vec![peer("client")],
            },
        };
        let mtu = config.inner_mtu();
        let endpoint_config = EndpointConfig {
            private_key: config.private_key.into(),
            // The suites of a processor with AES, regardless of this processor, so that all machines produce the same
            // bytes.
            suites: Suite::preferred(true).to_vec(),
            queue: QueueConfig::default(),
            compression: config.compression,
            classes: config.classes.clone(),
            parity: config.parity,
            mtu: usize::from(mtu),
            side,
        };
        let mut entropy = [0; 32];
        self.entropy.fill(&mut entropy);
        let mut endpoint = Endpoint::new(endpoint_config, Seeded::new(entropy), now);
        if let Some(observers) = &config.observers {
            endpoint.observe(&**observers);
        }
        let mut paths = Vec::new();
        for (uplink, &has_carrier) in config.uplinks.iter().zip(&self.has_carrier) {
            let link = Link {
                mtu,
                ..uplink.link.clone()
            };
            let path = endpoint.add_link(now, link);
            if let Some(path) = path {
                endpoint.handle_link(now, path, reach(uplink, has_carrier));
            }
            paths.push(path);
        }
        Process {
            endpoint,
            tx: TxQueue::new(TX_BATCHES),
            paths,
        }
    }
}

fn reach(uplink: &Uplink, has_carrier: bool) -> Reach {
    Reach {
        v4: has_carrier,
        v6: has_carrier && uplink.v6.is_some(),
    }
}

/// Returns the source address of datagrams sent on `route`. `None` if the link has no address of the family.
fn source(config: &DaemonConfig, paths: &[Option<PathId>], route: &Route) -> Option<IpAddr> {
    let is_v6 = route.remote.is_ipv6();
    match config.end {
        End::Client => {
            let index = paths
                .iter()
                .position(|&path| path == Some(PathId(route.link)))?;
            let uplink = &config.uplinks[index];
            if is_v6 { uplink.v6 } else { Some(uplink.v4) }
        }
        End::Gateway => Some(route.local.unwrap_or(config.gateway)),
    }
}
