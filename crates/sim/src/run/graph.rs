//! The hosts and links of a phase.
//!
//! ```text
//!            port i ┌─── up ───► ┐ port i            port n
//!  client ──────────┤            ├────────── gateway ──────── server
//!                   └ ◄── down ──┘              │
//!                                               └ up, down ── far servers
//! ```
//!
//! Port *i* of client and gateway is link *i*. The gateway's next ports lead to the far servers, over links without
//! limits. The gateway's last port leads to the server.

use core::{net::IpAddr, time::Duration};
use std::sync::Arc;

use ipnet::IpNet;
use pleach_core::{
    class::Class, path::link::Link, rng::Rng, sched::SchedulerSettings,
    session::handshake::StaticKeys, time::Instant, trace::Observers, wire::control::LinkRole,
};

use pleach_equalizer::weights::LinkSettings;

use crate::{
    addresses::{
        GATEWAY_V4, GATEWAY_V6, INNER_V4, INNER_V6, Place, SERVER_V4, SERVER_V6, far_address,
        link_address, of_family,
    },
    link::{recorded::Recorded, trace::Rate},
    phases::Setup,
    scenario::{Cost, Direction, End, EqualizerSpec, Family, Scenario, Traffic, TunnelSpec},
    world::{
        Daemon, DaemonConfig, Equalizer, EqualizerConfig, EqualizerPort, Host, Line, Node, NodeId,
        Route, Uplink, Via, World, stream,
    },
};

/// The nodes of a phase.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub(super) client: NodeId,
    pub(super) gateway: NodeId,
    pub(super) server: NodeId,
    /// Servers of cross traffic, and of traffic with a distance.
    pub(super) far: Vec<(Place, NodeId)>,
    pub(super) down: NodeId,
    pub(super) up: NodeId,
}

/// Port of a server that leads to the gateway.
const TO_GATEWAY: usize = 0;

/// Settings of the daemons in addition to the scenario's links.
pub(super) struct Rules<'a> {
    pub(super) scheduler: &'a SchedulerSettings<String>,
    pub(super) classes: &'a [Class],
    pub(super) observers: Option<Arc<dyn Observers>>,
}

impl Graph {
    /// Adds the nodes of `scenario` that `setup` requires.
    pub(super) fn build(
        world: &mut World,
        scenario: &Scenario,
        setup: &Setup,
        rules: Option<Rules<'_>>,
        seed: u64,
    ) -> Self {
        let now = world.now();
        let count = scenario.links.len();
        let places = Place::all(scenario);
        let distances: Vec<Duration> = places.iter().map(|place| place.distance).collect();
        let (mut client, mut gateway) = (
            client(scenario, setup),
            gateway(scenario, setup, places.len()),
        );
        let common = server(&[SERVER_V4.into(), SERVER_V6.into()]);
        if let (Some(tunnel), Some(rules)) = (&scenario.tunnel, rules) {
            let (near, far) = daemons(scenario, setup, tunnel, &rules, seed, now);
            client.set_daemon(near);
            gateway.set_daemon(far);
        }
        if setup.equalizes(scenario) {
            for spec in &scenario.equalizers {
                let equalizer = Equalizer::new(equalizer_config(scenario, spec), now);
                match spec.end {
                    End::Client => client.set_equalizer(equalizer),
                    End::Gateway => gateway.set_equalizer(equalizer),
                }
            }
        }
        let line = |direction| {
            let links = Recorded::new(scenario, direction, &distances, seed, now);
            Node::Line(Box::new(Line::new(links)))
        };
        let mut graph = Self {
            client: world.add("client", Node::Host(Box::new(client))),
            gateway: world.add("gateway", Node::Host(Box::new(gateway))),
            server: world.add("server", Node::Host(Box::new(common))),
            down: world.add("links down", line(Direction::Down)),
            up: world.add("links up", line(Direction::Up)),
            far: Vec::new(),
        };
        for link in 0..count {
            world.wire((graph.client, link), (graph.up, link));
            world.wire((graph.up, link), (graph.gateway, link));
            world.wire((graph.gateway, link), (graph.down, link));
            world.wire((graph.down, link), (graph.client, link));
        }
        for (index, place) in places.into_iter().enumerate() {
            let addresses = [Family::V4, Family::V6].map(|family| far_address(index, family));
            let host = world.add(
                format!("far server {index}"),
                Node::Host(Box::new(server(&addresses))),
            );
            let link = count + index;
            world.wire((graph.gateway, link), (graph.up, link));
            world.wire((graph.up, link), (host, TO_GATEWAY));
            world.wire((host, TO_GATEWAY), (graph.down, link));
            world.wire((graph.down, link), (graph.gateway, link));
            graph.far.push((place, host));
        }
        let port = count + graph.far.len();
        world.wire((graph.gateway, port), (graph.server, TO_GATEWAY));
        world.wire((graph.server, TO_GATEWAY), (graph.gateway, port));
        graph
    }

    /// Returns the host at an end of the links.
    pub(super) fn host(&self, end: End) -> NodeId {
        match end {
            End::Client => self.client,
            End::Gateway => self.gateway,
        }
    }

    /// Returns the server of `traffic`, and its address.
    pub(super) fn server_of(&self, traffic: &Traffic) -> (NodeId, IpAddr) {
        let place = Place::of(traffic);
        let mut far = self.far.iter().enumerate();
        match far.find(|(_, (at, _))| Some(*at) == place) {
            Some((index, (_, host))) => (*host, far_address(index, traffic.family)),
            None => (self.server, of_family(traffic.family, SERVER_V4, SERVER_V6)),
        }
    }
}

/// Returns the client's source address for `traffic`.
pub(super) fn client_address(scenario: &Scenario, setup: &Setup, traffic: &Traffic) -> IpAddr {
    match traffic.link {
        Some(link) => link_address(link, traffic.family),
        None if setup.with_tunnel || setup.equalizes(scenario) => {
            of_family(traffic.family, INNER_V4, INNER_V6)
        }
        // The kernel chooses the first link, which has the lowest metric.
        None => link_address(setup.links.first().copied().unwrap_or(0), traffic.family),
    }
}

fn client(scenario: &Scenario, setup: &Setup) -> Host {
    let mut addresses = vec![INNER_V4.into(), INNER_V6.into()];
    let mut routes = Vec::new();
    for (index, link) in scenario.links.iter().enumerate() {
        for family in [Family::V4, Family::V6] {
            if family == Family::V6 && !link.ipv6 {
                continue;
            }
            let address = link_address(index, family);
            addresses.push(address);
            routes.push(Route {
                from: Some(address),
                to: everything(family),
                via: Via::Port(index),
            });
        }
    }
    if setup.with_tunnel {
        let all = [Family::V4, Family::V6].map(everything);
        routes.extend(all.map(|net| route(net, Via::Tunnel)));
    } else if setup.equalizes(scenario) {
        let all = [Family::V4, Family::V6].map(everything);
        routes.extend(all.map(|net| route(net, equalized(scenario, End::Client))));
    }
    Host::new(addresses, routes)
}

/// Returns the route to the other end: over the equalizer at `end`, or over the first link if there is no equalizer.
fn equalized(scenario: &Scenario, end: End) -> Via {
    match scenario.equalizer(end) {
        Some(_) => Via::Equalizer,
        None => Via::Port(0),
    }
}

fn gateway(scenario: &Scenario, setup: &Setup, far: usize) -> Host {
    let links = scenario.links.len();
    let to_client = if setup.equalizes(scenario) {
        equalized(scenario, End::Gateway)
    } else {
        Via::Tunnel
    };
    let mut routes = vec![
        route(host(INNER_V4.into()), to_client),
        route(host(INNER_V6.into()), to_client),
        route(host(SERVER_V4.into()), Via::Port(links + far)),
        route(host(SERVER_V6.into()), Via::Port(links + far)),
    ];
    for index in 0..far {
        for family in [Family::V4, Family::V6] {
            let address = host(far_address(index, family));
            routes.push(route(address, Via::Port(links + index)));
        }
    }
    for link in 0..links {
        for family in [Family::V4, Family::V6] {
            routes.push(route(host(link_address(link, family)), Via::Port(link)));
        }
    }
    Host::new(vec![GATEWAY_V4.into(), GATEWAY_V6.into()], routes)
}

fn server(addresses: &[IpAddr]) -> Host {
    let everything = [Family::V4, Family::V6].map(everything);
    let routes = everything.map(|net| route(net, Via::Port(TO_GATEWAY)));
    Host::new(addresses.to_vec(), routes.to_vec())
}

fn daemons(
    scenario: &Scenario,
    setup: &Setup,
    tunnel: &TunnelSpec,
    rules: &Rules<'_>,
    seed: u64,
    now: Instant,
) -> (Daemon, Daemon) {
    let key = |name| {
        let mut key = [0; 32];
        stream(seed, name).fill(&mut key);
        key
    };
    let (client_key, gateway_key) = (key("client's key"), key("gateway's key"));
    let public = |private| *StaticKeys::from_private(private).public();
    let config = DaemonConfig {
        end: End::Client,
        private_key: client_key,
        peer_public_key: public(gateway_key),
        scheduler: rules.scheduler.clone(),
        observers: rules.observers.clone(),
        allowed_ips: vec![everything(Family::V4), everything(Family::V6)],
        mtu: tunnel.mtu,
        compression: tunnel.compression,
        classes: rules.classes.to_vec(),
        parity: tunnel.parity,
        gateway: of_family(tunnel.outer, GATEWAY_V4, GATEWAY_V6),
        uplinks: setup
            .links
            .iter()
            .filter_map(|&index| uplink(scenario, index))
            .collect(),
    };
    let far = DaemonConfig {
        end: End::Gateway,
        private_key: gateway_key,
        peer_public_key: public(client_key),
        allowed_ips: vec![host(INNER_V4.into()), host(INNER_V6.into())],
        uplinks: Vec::new(),
        ..config.clone()
    };
    let entropy = |name| -> Rng { stream(seed, name) };
    (
        Daemon::new(config, entropy("client's entropy"), now),
        Daemon::new(far, entropy("gateway's entropy"), now),
    )
}

fn equalizer_config(scenario: &Scenario, spec: &EqualizerSpec) -> EqualizerConfig {
    let links = spec.links.iter().filter_map(|&port| {
        let link = scenario.links.get(port)?;
        let side = match spec.end {
            End::Client => &link.up,
            End::Gateway => &link.down,
        };
        let rate = match side.rate {
            Rate::Constant(rate) => Some(rate),
            Rate::Opportunities(_) | Rate::Steps(_) | Rate::Unlimited => None,
        };
        Some(EqualizerPort {
            port,
            link: LinkSettings {
                weight: link.weight,
                rate,
            },
        })
    });
    let (local, remote) = match spec.end {
        End::Client => (INNER_V4, GATEWAY_V4),
        End::Gateway => (GATEWAY_V4, INNER_V4),
    };
    EqualizerConfig {
        ports: links.collect(),
        spread: spec.spread,
        auto_weights: spec.auto_weights,
        interval: spec.interval,
        local,
        remote,
    }
}

fn uplink(scenario: &Scenario, index: usize) -> Option<Uplink> {
    let spec = scenario.links.get(index)?;
    let (cost, role) = match spec.cost {
        Cost::Never => (0, LinkRole::Never),
        Cost::Rank(rank) => (rank, LinkRole::Active),
        Cost::Standby => (0, LinkRole::Standby),
    };
    Some(Uplink {
        port: index,
        link: Link {
            cost,
            role,
            weight: spec.weight,
            ..Link::named(&spec.name)
        },
        v4: link_address(index, Family::V4),
        v6: spec.ipv6.then(|| link_address(index, Family::V6)),
    })
}

fn everything(family: Family) -> IpNet {
    match family {
        Family::V4 => ipnet::Ipv4Net::default().into(),
        Family::V6 => ipnet::Ipv6Net::default().into(),
    }
}

fn host(address: IpAddr) -> IpNet {
    address.into()
}

/// Creates a route that applies to every source.
fn route(to: IpNet, via: Via) -> Route {
    Route {
        from: None,
        to,
        via,
    }
}
