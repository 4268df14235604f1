//! Links that TCP carries: connects the data path with the thread of `pleach-carrier`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use pleach_carrier::{
    choice::{Action, Choice, Mode},
    client::{self, Carried, Client, LinkSettings, Lookup},
    http_proxy::HttpProxy,
    meter::Meter,
    server::{self, Server},
    tls::{Certificate, Trust},
};
use pleach_core::{
    endpoint::{Endpoint, Reach},
    time::Instant,
    transmit::{Route, TxBatch},
    tunnel::Incoming,
};
use pleach_linux::{clock, poll::Waker};
use zeroize::Zeroizing;

use super::{names, workers::Post};
use crate::{
    config::{ClientConfig, GatewayCarrier, HostName, LinkConfig, TrustConfig, TunnelConfig},
    control::LinkStatus,
    keys,
};

/// Value of `Route::link`, at a gateway, for datagrams that TCP carries.
pub(super) const CARRIED: u8 = 1;

/// The links of a client that TCP may carry, by path number.
pub(super) struct Links {
    client: Client,
    mode: Mode,
    endpoints: Vec<SocketAddr>,
    /// Firewall mark of the tunnel's own packets.
    fwmark: u32,
    /// The tunnel's device.
    tunnel: String,
    links: BTreeMap<u8, CarriedLink>,
    /// Number of datagrams discarded because the queue was full.
    pub(super) refused: u64,
}

struct CarriedLink {
    choice: Choice,
    connections: Option<Carried>,
    uses_tcp: bool,
    /// Address to which the engine sends.
    remote: Option<SocketAddr>,
    meter: Meter,
    /// Most bytes that the link carried over UDP in one measurement window, before TCP was tried.
    carried_before: u64,
    place: Place,
    error: Option<CarrierTrouble>,
}

/// Why a link has no TCP connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CarrierTrouble {
    /// Code of the problem, for programs.
    pub(super) word: &'static str,
    /// Description of the problem in a sentence.
    pub(super) why: String,
}

/// Device, source addresses and HTTP proxy from which a link's connections start.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) device: String,
    pub(super) reach: Reach,
    pub(super) sources: [Option<IpAddr>; 2],
    pub(super) proxy: Option<HttpProxy>,
}

/// A task of the data path for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Send a request over UDP, to test whether the gateway answers.
    Ask,
    /// Restart the path in the engine, because its carrier has changed.
    Restart,
}

impl Links {
    /// Starts the carrier's thread, for the gateway with the index `gateway`.
    ///
    /// # Errors
    /// If the file of authorities cannot be read, or if the thread cannot be created.
    pub(super) fn start(
        config: &ClientConfig,
        gateway: usize,
        fwmark: u32,
        tunnel: &str,
    ) -> anyhow::Result<Self> {
        let gateway = config.gateways.get(gateway).context("no such gateway")?;
        let carrier = &config.carrier;
        let trust = match &carrier.trust {
            TrustConfig::Authorities(file) => {
                Trust::authorities(file).context("[carrier] ca_file")?
            }
            TrustConfig::GatewayKey => Trust::GatewayKey,
            TrustConfig::Pinned(pin) => Trust::Pinned(pin.clone()),
        };
        let settings = client::Settings {
            gateway_key: gateway.public_key,
            trust,
            server_name: carrier.server_name.clone(),
            path: carrier.path.clone(),
            connections: carrier.connections,
            fwmark: Some(fwmark),
        };
        Ok(Self {
            client: Client::start(settings).context("thread of [carrier]")?,
            mode: carrier.mode,
            endpoints: carrier.endpoints.clone(),
            fwmark,
            tunnel: tunnel.to_owned(),
            links: BTreeMap::new(),
            refused: 0,
        })
    }

    pub(super) fn waker(&self) -> &Waker {
        self.client.waker()
    }

    /// Notes from where a link reaches the gateway, or that it no longer does.
    pub(super) fn on_reach(
        &mut self,
        now: Instant,
        link: u8,
        place: Place,
        config: Option<&LinkConfig>,
    ) {
        let mode = config
            .and_then(|config| config.carrier)
            .unwrap_or(self.mode);
        let reaches = place.reach != Reach::NONE;
        let known = self.links.entry(link).or_insert_with(|| CarriedLink {
            choice: Choice::new(now, mode),
            connections: None,
            uses_tcp: false,
            remote: None,
            meter: Meter::new(now),
            carried_before: 0,
            place: place.clone(),
            error: None,
        });
        known.place = place;
        known.choice.set_mode(mode);
        known.choice.on_reach(now, reaches);
    }

    /// Notes that the gateway has the addresses `gateway` now. Connections to addresses that remain are kept.
    pub(super) fn on_endpoints(&mut self, now: Instant, gateway: &[SocketAddr]) {
        for link in self.links.values_mut() {
            let endpoints = endpoints(&self.endpoints, gateway, &link.place);
            let connections = link.connections.as_ref();
            let are_kept =
                connections.is_some_and(|connections| connections.set_endpoints(endpoints));
            link.choice.on_endpoints(now, are_kept);
        }
    }

    pub(super) fn remove(&mut self, link: u8) {
        self.links.remove(&link);
    }

    /// Notes that the engine has found a path up or down.
    pub(super) fn on_path(&mut self, now: Instant, link: u8, is_up: bool) {
        if let Some(known) = self.links.get_mut(&link) {
            known.choice.on_path(now, is_up);
        }
    }

    /// Notes that the gateway has answered over UDP.
    pub(super) fn on_udp_answer(&mut self, now: Instant, link: u8) {
        if let Some(known) = self.links.get_mut(&link) {
            known.choice.on_udp_answer(now);
        }
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        let links = self.links.values();
        let ends = links.clone().filter(|link| link.place.reach != Reach::NONE);
        let ends = ends.map(|link| link.meter.ends_at());
        links
            .filter_map(|link| link.choice.next_at())
            .chain(ends)
            .min()
    }

    /// Counts a datagram that arrived on a link's UDP socket.
    pub(super) fn on_datagram(&mut self, link: u8, datagram: &[u8]) {
        if let Some(known) = self.links.get_mut(&link) {
            known.meter.on_datagram(datagram);
        }
    }

    /// Ends measurement windows that are due, and detects links on which UDP is throttled.
    pub(super) fn measure(&mut self, now: Instant, endpoint: &Endpoint) {
        let is_due =
            |link: &CarriedLink| link.place.reach != Reach::NONE && link.meter.ends_at() <= now;
        if !self.links.values().any(is_due) {
            return;
        }
        for path in endpoint.status().flat_map(|(_, status)| status.paths) {
            let Some(link) = self.links.get_mut(&path.id.0).filter(|link| is_due(link)) else {
                continue;
            };
            let loss = path.loss_ppm.unwrap_or(0);
            if link.meter.end_window(now, path.tx_bytes, loss) && !link.uses_tcp {
                link.carried_before = link.meter.best(2);
                link.choice.on_throttled(now);
            }
        }
    }

    /// Returns the next task. `gateway`: addresses of the gateway.
    pub(super) fn poll(&mut self, now: Instant, gateway: &[SocketAddr]) -> Option<(u8, Task)> {
        for (&id, link) in &mut self.links {
            while let Some(action) = link.choice.poll(now) {
                match action {
                    Action::AskUdp => return Some((id, Task::Ask)),
                    Action::Compare => {
                        let (before, now_carried) = (link.carried_before, link.meter.best(4));
                        let is_better = now_carried >= before.saturating_mul(2);
                        let device = &link.place.device;
                        tracing::info!(device, before, now_carried, "UDP is throttled: TCP tried");
                        link.choice.on_compared(now, is_better);
                    }
                    Action::Close => {
                        link.connections = None;
                        link.error = None;
                    }
                    Action::Open => {
                        let settings = LinkSettings {
                            device: link.place.device.clone(),
                            sources: link.place.sources,
                            endpoints: endpoints(&self.endpoints, gateway, &link.place),
                            proxy: link.place.proxy.clone(),
                            proxy_lookup: lookup(&link.place, self.fwmark, &self.tunnel),
                        };
                        link.error = None;
                        link.connections = None;
                        link.connections = Some(self.client.open(id, settings));
                    }
                    Action::UseTcp | Action::UseUdp => {
                        let tcp = action == Action::UseTcp;
                        if link.uses_tcp != tcp {
                            link.uses_tcp = tcp;
                            let device = &link.place.device;
                            tracing::info!(device, tcp, "the link's carrier");
                            return Some((id, Task::Restart));
                        }
                    }
                }
            }
        }
        None
    }

    /// Whether TCP carries any link.
    pub(super) fn uses_tcp_anywhere(&self) -> bool {
        self.links.values().any(|link| link.uses_tcp)
    }

    /// Whether TCP carries a link.
    pub(super) fn uses_tcp(&self, link: u8) -> bool {
        self.links.get(&link).is_some_and(|link| link.uses_tcp)
    }

    /// Adds to a link's status whether TCP or UDP carries it, and why TCP cannot.
    pub(super) fn mark(&self, link: u8, status: &mut LinkStatus) {
        let Some(link) = self.links.get(&link) else {
            return;
        };
        let carrier = if link.uses_tcp { "tcp" } else { "udp" };
        status.carrier = Some(carrier.to_owned());
        if let Some(CarrierTrouble { word, why }) = &link.error {
            status.carrier_error = Some(format!("{word}: {why}"));
        }
    }

    pub(super) fn send(&mut self, batch: &TxBatch) {
        let Some(link) = self.links.get_mut(&batch.route().link) else {
            return;
        };
        link.remote = Some(batch.route().remote);
        self.refused += match &link.connections {
            Some(connections) => connections.send(batch.bytes(), batch.segment_len()),
            None => batch.segments() as u64,
        };
    }

    /// Passes received datagrams to the engine.
    pub(super) fn receive(&mut self, endpoint: &mut Endpoint, now: Instant) {
        self.client.clear();
        for _ in 0..EVENTS_PER_ROUND {
            let Some(event) = self.client.poll() else {
                return;
            };
            match event {
                client::Event::Received { link, mut received } => {
                    let known = self.links.get(&link).filter(|known| known.uses_tcp);
                    if let Some(remote) = known.and_then(|known| known.remote) {
                        if let Some(known) = self.links.get_mut(&link) {
                            received.for_each(|datagram| known.meter.on_datagram(datagram));
                        }
                        let route = Route {
                            link,
                            remote,
                            local: None,
                        };
                        hand_over(endpoint, route, &mut received);
                    }
                }
                client::Event::Up { link, generation } => {
                    if let Some(known) = self.of_generation(link, generation) {
                        known.error = None;
                        known.choice.on_connection(now, true);
                    }
                }
                client::Event::Down {
                    link,
                    generation,
                    word,
                    why,
                } => {
                    if let Some(known) = self.of_generation(link, generation) {
                        let trouble = CarrierTrouble { word, why };
                        if known.error.as_ref() != Some(&trouble) {
                            let (device, why) = (&known.place.device, &trouble.why);
                            tracing::info!(device, why, "not carried over TCP");
                        }
                        known.error = Some(trouble);
                        known.choice.on_connection(now, false);
                    }
                }
            }
        }
        self.client.waker().wake();
    }

    fn of_generation(&mut self, link: u8, generation: u32) -> Option<&mut CarriedLink> {
        self.links.get_mut(&link).filter(|known| {
            let connections = known.connections.as_ref();
            connections.is_some_and(|connections| connections.generation == generation)
        })
    }

    /// Sends queued data before the daemon ends, for at most [`DRAIN_FOR`].
    pub(super) fn drain(&self) {
        let deadline = clock::now() + DRAIN_FOR;
        let is_busy = |link: &CarriedLink| {
            let connections = link.connections.as_ref().filter(|_| link.uses_tcp);
            connections.is_some_and(Carried::is_busy)
        };
        while clock::now() < deadline && self.links.values().any(is_busy) {
            thread::park_timeout(Duration::from_millis(2));
        }
        // The last block may not have reached the kernel yet.
        if self.links.values().any(|link| link.uses_tcp) {
            thread::park_timeout(Duration::from_millis(10));
        }
    }
}

/// Returns the function that resolves the name of a link's HTTP proxy. It sends the queries over the link, as for the
/// gateway's name.
fn lookup(place: &Place, fwmark: u32, tunnel: &str) -> Option<Lookup> {
    let proxy = place.proxy.as_ref()?;
    let names = [HostName {
        name: proxy.host.clone(),
        port: proxy.port,
    }];
    let (device, tunnel) = (place.device.clone(), tunnel.to_owned());
    let look_up = move || names::look_up_over(|name| name == device, &names, Some(fwmark), &tunnel);
    Some(Lookup::new(look_up))
}

/// Returns the addresses to which a link connects: the configured ones, else port 443 of the gateway.
fn endpoints(own: &[SocketAddr], gateway: &[SocketAddr], place: &Place) -> Vec<SocketAddr> {
    let mut endpoints = Vec::new();
    let usual = gateway
        .iter()
        .map(|address| SocketAddr::new(address.ip(), HTTPS));
    let all: Vec<SocketAddr> = if own.is_empty() {
        usual.collect()
    } else {
        own.to_vec()
    };
    for endpoint in all {
        // An HTTP proxy may reach addresses to which the link itself has no route.
        let reaches = if endpoint.is_ipv4() {
            place.reach.v4
        } else {
            place.reach.v6
        };
        if (reaches || place.proxy.is_some()) && !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    endpoints
}

/// Starts a gateway's listener.
///
/// # Errors
/// If a file cannot be read, or if the port is in use.
pub(super) fn listen(
    config: &TunnelConfig,
    carrier: &GatewayCarrier,
    fwmark: u32,
) -> anyhow::Result<Server> {
    let certificate = match &carrier.certificate {
        None => Certificate::SelfSigned,
        Some((chain, key)) => {
            Certificate::read(chain, key).context("[carrier] certificate_file, key_file")?
        }
    };
    let settings = server::Settings {
        listen: carrier.listen,
        private_key: Zeroizing::new(*config.private_key.expose()),
        public_key: keys::public_of(&config.private_key),
        certificate,
        proxies: carrier.proxies.clone(),
        fwmark: Some(fwmark),
    };
    Server::start(settings).with_context(|| {
        format!(
            "[carrier] listen = \"{}\": choose another port, or stop the program that has it (`ss -ltnp` names it)",
            carrier.listen
        )
    })
}

/// Passes datagrams that a gateway has received over TCP to the engine, or to the worker of their session.
pub(super) fn receive(server: &mut Server, endpoint: &mut Endpoint, mut post: Option<&mut Post>) {
    server.clear();
    for _ in 0..EVENTS_PER_ROUND {
        let Some((remote, mut received)) = server.poll() else {
            return;
        };
        let route = Route {
            link: CARRIED,
            remote,
            local: None,
        };
        match &mut post {
            None => hand_over(endpoint, route, &mut received),
            Some(post) => sort(post, endpoint, route, &mut received),
        }
    }
    server.waker().wake();
}

fn hand_over(endpoint: &mut Endpoint, route: Route, received: &mut pleach_carrier::Received) {
    let incoming = Incoming {
        route,
        is_congested: false,
    };
    let now = clock::now();
    received.for_each(|datagram| endpoint.handle_datagram(now, &incoming, datagram));
}

fn sort(
    post: &mut Post,
    endpoint: &mut Endpoint,
    route: Route,
    received: &mut pleach_carrier::Received,
) {
    let incoming = Incoming {
        route,
        is_congested: false,
    };
    let now = clock::now();
    received.for_each(|datagram| {
        if !post.pass(&incoming, datagram) {
            endpoint.handle_datagram(now, &incoming, datagram);
        }
    });
}

/// Default port of the carrier.
const HTTPS: u16 = 443;
/// Maximum number of events processed before the other sockets are served.
const EVENTS_PER_ROUND: usize = 64;
const DRAIN_FOR: Duration = Duration::from_millis(100);
