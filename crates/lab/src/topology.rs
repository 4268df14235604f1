//! The hosts of a scenario and their connections.
//!
//! | host | addresses | routes |
//! | --- | --- | --- |
//! | client | `10.(100+i).0.2/24`, `fd00:(100+i)::2/64` on link *i* | a default route per link: in table 100+i for its source address, and in the main table with metric 100+i |
//! | gateway | `10.(100+i).0.1/24`, `fd00:(100+i)::1/64`; public `203.0.113.5`, `2001:db8::5` on `lo`; `10.99.0.1/24`, `fd99::1/64` towards the server | forwards |
//! | server | `10.99.0.2/24`, `fd99::2/64` | to all networks through the gateway, or only to the tunnel's network |
//! | far server *j* | `10.98.j.2/24`, `fd98:j::2/64`; the gateway is `.1` | for cross traffic: to all networks; otherwise: as the server's |
//!
//! In a world with equalizers, links are Ethernet with fixed neighbours. The client's spread traffic uses the address
//! that the client would have in the tunnel, `10.77.0.2`, `fd77::2`, on `lo`. Without an equalizer at the gateway, this
//! address is reached over the first link.
//!
//! In a world with a tunnel, the server has no route to the links' own networks, so traffic that bypasses the tunnel
//! gets no answer. Traffic over one link outside the tunnel, and traffic with a server at a distance, have servers of
//! their own, one for each distance, over an emulated link without limits. TCP stores no metrics between connections,
//! so that runs do not influence each other.

use core::{fmt::Write as _, net::IpAddr, time::Duration};
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use pleach_sim::{
    addresses::{
        GATEWAY_V4, GATEWAY_V6, INNER_V4, INNER_V6, Place, SERVER_V4, SERVER_V6, far_address,
        link_address, of_family,
    },
    scenario::{Family, MAX_REORDERING, Recovery, Scenario, Traffic},
};

use crate::{
    emulator::{
        Emulator, Ends,
        tun::{self, Kind},
    },
    netns::Netns,
};

/// Networks that the server can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All networks: plain routing.
    Links,
    /// Only the tunnel's network.
    Tunnel,
}

/// A world of three or more hosts. Dropping this value removes all hosts, devices and links.
#[derive(Debug)]
pub struct Topology {
    /// The client, which has the links.
    pub client: Netns,
    /// The gateway, at the other end of the links.
    pub gateway: Netns,
    /// The server, which is reached through the gateway.
    pub server: Netns,
    /// Servers of cross traffic and of traffic with a distance.
    far: Vec<(Place, Netns)>,
    /// The links between client and gateway.
    pub emulator: Emulator,
}

impl Topology {
    /// Builds the hosts and links of `scenario`.
    ///
    /// # Errors
    /// Fails if namespaces, devices or routes cannot be created.
    pub fn build(scenario: &Scenario, reach: Reach, seed: u64) -> anyhow::Result<Self> {
        let client = Netns::new("client")?;
        let gateway = Netns::new("gateway")?;
        let server = Netns::new("server")?;
        let places = Place::all(scenario);
        let mut far = Vec::new();
        for (index, place) in places.iter().enumerate() {
            far.push((*place, Netns::new(&format!("far server {index}"))?));
        }
        let hosts = [&client, &gateway, &server];
        for host in hosts.into_iter().chain(far.iter().map(|(_, host)| host)) {
            host.sysctl(&[
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv6/conf/default/accept_ra", "0"),
            ])?;
            if scenario.recovery == Recovery::Dupack {
                host.sysctl(&[("ipv4/tcp_recovery", "0")])?;
            }
            if scenario.max_reordering != MAX_REORDERING {
                let most = scenario.max_reordering.to_string();
                host.sysctl(&[("ipv4/tcp_max_reordering", &most)])?;
            }
        }
        gateway.sysctl(&[
            ("ipv4/conf/all/forwarding", "1"),
            ("ipv6/conf/all/forwarding", "1"),
        ])?;
        let mut ends = Vec::new();
        let kind = if scenario.equalizers.is_empty() {
            Kind::Tun
        } else {
            Kind::Tap
        };
        for link in &scenario.links {
            let open = || open_device(&link.name, kind);
            ends.push(Ends {
                client: client.run(open)?,
                gateway: gateway.run(open)?,
                kind,
            });
        }
        for (index, (_, host)) in far.iter().enumerate() {
            let kind = Kind::Tun;
            ends.push(Ends {
                client: gateway.run(|| open_device(&far_device(index), kind))?,
                gateway: host.run(|| open_device("eth0", kind))?,
                kind,
            });
        }
        let distances: Vec<Duration> = places.iter().map(|place| place.distance).collect();
        let emulator = Emulator::start(scenario, &distances, ends, seed)?;
        client.ip(&client_setup(scenario))?;
        gateway.ip(&gateway_setup(scenario, &server, far.len()))?;
        if kind == Kind::Tap {
            client.ip(&ethernet_setup(scenario, 2, 1))?;
            gateway.ip(&ethernet_setup(scenario, 1, 2))?;
            client.ip(&format!(
                "addr add {INNER_V4}/32 dev lo\naddr add {INNER_V6}/128 dev lo nodad\n"
            ))?;
            gateway.ip(&unspread_routes(scenario))?;
        }
        server.ip(&server_setup(reach, "10.99.0", "fd99:"))?;
        for (index, (place, host)) in far.iter().enumerate() {
            let reach = if place.outside { Reach::Links } else { reach };
            let (v4, v6) = (format!("10.98.{index}"), format!("fd98:{index}:"));
            host.ip(&server_setup(reach, &v4, &v6))?;
        }
        Ok(Self {
            client,
            gateway,
            server,
            far,
            emulator,
        })
    }

    /// Returns the server of `traffic`, and its address.
    #[must_use]
    pub fn server_of(&self, traffic: &Traffic) -> (&Netns, IpAddr) {
        let place = Place::of(traffic);
        let mut far = self.far.iter().enumerate();
        match far.find(|(_, (at, _))| Some(*at) == place) {
            Some((index, (_, host))) => (host, far_address(index, traffic.family)),
            None => (
                &self.server,
                of_family(traffic.family, SERVER_V4, SERVER_V6),
            ),
        }
    }

    /// Enables Multipath TCP over all links in the kernels of client and gateway.
    ///
    /// # Errors
    /// Fails if the kernel does not support Multipath TCP.
    pub fn enable_mptcp(&self, scenario: &Scenario) -> anyhow::Result<()> {
        let limits = "mptcp limits set subflows 8 add_addr_accepted 8\n";
        let mut lines = limits.to_owned();
        for (index, link) in scenario.links.iter().enumerate() {
            let v4 = link_address(index, Family::V4);
            push(
                &mut lines,
                format_args!("mptcp endpoint add {v4} dev {} subflow", link.name),
            );
            if link.ipv6 {
                let v6 = link_address(index, Family::V6);
                push(
                    &mut lines,
                    format_args!("mptcp endpoint add {v6} dev {} subflow", link.name),
                );
            }
        }
        self.client.ip(&lines)?;
        self.gateway.ip(limits)
    }
}

/// Returns the name of the gateway's device towards far server `index`. Names of links contain no dot.
fn far_device(index: usize) -> String {
    format!("far.{index}")
}

fn open_device(name: &str, kind: Kind) -> anyhow::Result<OwnedFd> {
    tun::open(name, kind).context(
        "cannot make a TUN or TAP device; /dev/net/tun must exist, and be writable for the user who runs the lab",
    )
}

/// Adds one line to `lines`. Writing to a `String` cannot fail.
fn push(lines: &mut String, line: core::fmt::Arguments<'_>) {
    let _ = writeln!(lines, "{line}");
}

fn client_setup(scenario: &Scenario) -> String {
    let mut lines = String::new();
    for (index, link) in scenario.links.iter().enumerate() {
        let (dev, n) = (&link.name, 100 + index);
        push(&mut lines, format_args!("addr add 10.{n}.0.2/24 dev {dev}"));
        push(
            &mut lines,
            format_args!("link set dev {dev} mtu 1500 txqueuelen 1000 up"),
        );
        for place in [format!("table {n}"), format!("metric {n}")] {
            push(
                &mut lines,
                format_args!("route add default via 10.{n}.0.1 dev {dev} {place}"),
            );
        }
        push(
            &mut lines,
            format_args!("rule add from 10.{n}.0.2 lookup {n} priority {n}"),
        );
        if link.ipv6 {
            push(
                &mut lines,
                format_args!("addr add fd00:{n}::2/64 dev {dev} nodad"),
            );
            for place in [format!("table {n}"), format!("metric {n}")] {
                push(
                    &mut lines,
                    format_args!("-6 route add default via fd00:{n}::1 dev {dev} {place}"),
                );
            }
            push(
                &mut lines,
                format_args!("-6 rule add from fd00:{n}::2 lookup {n} priority {n}"),
            );
        }
    }
    lines
}

/// Returns the commands that set the link-layer addresses of the links' devices, at the host with number `own` and
/// for the other end with number `other`. The addresses are static, because the emulator would lose, delay and count
/// the packets of an address resolution like all other packets.
fn ethernet_setup(scenario: &Scenario, own: u8, other: u8) -> String {
    let mut lines = String::new();
    for (index, link) in scenario.links.iter().enumerate() {
        let (dev, n) = (&link.name, 100 + index);
        let mac = |host: u8| format!("02:00:00:00:{index:02x}:{host:02x}");
        // A device that is up keeps its neighbour entries.
        push(
            &mut lines,
            format_args!("link set dev {dev} address {}", mac(own)),
        );
        push(
            &mut lines,
            format_args!(
                "neigh replace 10.{n}.0.{other} lladdr {} dev {dev} nud permanent",
                mac(other)
            ),
        );
        if link.ipv6 {
            push(
                &mut lines,
                format_args!(
                    "-6 neigh replace fd00:{n}::{other} lladdr {} dev {dev} nud permanent",
                    mac(other)
                ),
            );
        }
    }
    lines
}

/// Returns the gateway's routes to the client's spread traffic, for packets that no equalizer routes.
fn unspread_routes(scenario: &Scenario) -> String {
    let mut lines = String::new();
    let Some(first) = scenario.links.first() else {
        return lines;
    };
    let dev = &first.name;
    push(
        &mut lines,
        format_args!("route add {INNER_V4}/32 via 10.100.0.2 dev {dev}"),
    );
    if first.ipv6 {
        push(
            &mut lines,
            format_args!("-6 route add {INNER_V6}/128 via fd00:100::2 dev {dev}"),
        );
    }
    lines
}

fn gateway_setup(scenario: &Scenario, server: &Netns, far: usize) -> String {
    let mut lines = String::new();
    for (index, link) in scenario.links.iter().enumerate() {
        let (dev, n) = (&link.name, 100 + index);
        push(&mut lines, format_args!("addr add 10.{n}.0.1/24 dev {dev}"));
        push(
            &mut lines,
            format_args!("link set dev {dev} mtu 1500 txqueuelen 1000 up"),
        );
        if link.ipv6 {
            push(
                &mut lines,
                format_args!("addr add fd00:{n}::1/64 dev {dev} nodad"),
            );
        }
    }
    push(&mut lines, format_args!("addr add {GATEWAY_V4}/32 dev lo"));
    push(
        &mut lines,
        format_args!("addr add {GATEWAY_V6}/128 dev lo nodad"),
    );
    push(
        &mut lines,
        format_args!(
            "link add to-server type veth peer name eth0 netns {}",
            server.path().display()
        ),
    );
    lines.push_str(
        "addr add 10.99.0.1/24 dev to-server\n\
         addr add fd99::1/64 dev to-server nodad\n\
         link set dev to-server up\n",
    );
    for index in 0..far {
        let dev = far_device(index);
        push(
            &mut lines,
            format_args!("addr add 10.98.{index}.1/24 dev {dev}"),
        );
        push(
            &mut lines,
            format_args!("addr add fd98:{index}::1/64 dev {dev} nodad"),
        );
        push(
            &mut lines,
            format_args!("link set dev {dev} mtu 1500 txqueuelen 1000 up"),
        );
    }
    lines
}

/// Returns the setup of a server. `v4` and `v6` are the prefix of its network, for example `10.99.0` and `fd99:`.
fn server_setup(reach: Reach, v4: &str, v6: &str) -> String {
    let (to_v4, to_v6) = match reach {
        Reach::Links => ("default", "default"),
        Reach::Tunnel => ("10.77.0.0/24", "fd77::/64"),
    };
    format!(
        "addr add {v4}.2/24 dev eth0\n\
         addr add {v6}:2/64 dev eth0 nodad\n\
         link set dev eth0 up\n\
         route add {to_v4} via {v4}.1\n\
         -6 route add {to_v6} via {v6}:1\n"
    )
}
