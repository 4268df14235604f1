//! The hosts of a scenario and how they are joined.
//!
//! | host | addresses | routes |
//! | --- | --- | --- |
//! | client | `10.(100+i).0.2/24`, `fd00:(100+i)::2/64` on link *i* | a default route per link: in table 100+i for its source address, and in the main table with metric 100+i |
//! | gateway | `10.(100+i).0.1/24`, `fd00:(100+i)::1/64`; public `203.0.113.5`, `2001:db8::5` on `lo`; `10.99.0.1/24`, `fd99::1/64` towards the server | forwards |
//! | server | `10.99.0.2/24`, `fd99::2/64` | to everything by the gateway, or only to the tunnel's network |
//!
//! In a world with a tunnel the server knows no way to the links' own networks, so what bypasses the tunnel gets no
//! answer. TCP keeps no metrics between connections, so that runs do not learn from each other.

use core::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Context as _;
use pleach_sim::scenario::{Family, Scenario};

use crate::{
    emulator::{Emulator, Ends, tun},
    netns::Netns,
};

/// The gateway's public IPv4 address.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// The gateway's public IPv6 address.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5);
/// The server's IPv4 address.
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The server's IPv6 address.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// The client's IPv4 address in the tunnel.
pub const INNER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The client's IPv6 address in the tunnel.
pub const INNER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// What the server can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everything: plain routing.
    Links,
    /// The tunnel's network only.
    Tunnel,
}

/// A world of three hosts. Dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    /// The host with the links.
    pub client: Netns,
    /// The host they end at.
    pub gateway: Netns,
    /// A host behind it.
    pub server: Netns,
    /// The links between client and gateway.
    pub emulator: Emulator,
}

impl Topology {
    /// Builds the hosts and links of `scenario`.
    ///
    /// # Errors
    /// If namespaces, devices or routes cannot be made.
    pub fn build(scenario: &Scenario, reach: Reach, seed: u64) -> anyhow::Result<Self> {
        let client = Netns::new("client")?;
        let gateway = Netns::new("gateway")?;
        let server = Netns::new("server")?;
        for host in [&client, &gateway, &server] {
            host.sysctl(&[
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv6/conf/default/accept_ra", "0"),
            ])?;
        }
        gateway.sysctl(&[
            ("ipv4/conf/all/forwarding", "1"),
            ("ipv6/conf/all/forwarding", "1"),
        ])?;
        let mut ends = Vec::new();
        for link in &scenario.links {
            let open = || {
                tun::open(&link.name).context("cannot make a TUN device; /dev/net/tun must be there, and writable for who runs the lab")
            };
            ends.push(Ends {
                client: client.run(open)?,
                gateway: gateway.run(open)?,
            });
        }
        let emulator = Emulator::start(scenario, ends, seed)?;
        client.ip(&client_setup(scenario))?;
        gateway.ip(&gateway_setup(scenario, &server))?;
        server.ip(&server_setup(reach))?;
        Ok(Self {
            client,
            gateway,
            server,
            emulator,
        })
    }

    /// Lets the kernels of client and gateway use Multipath TCP over all links.
    ///
    /// # Errors
    /// If the kernel has none.
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

/// The client's address on link `index`.
#[must_use]
pub fn link_address(index: usize, family: Family) -> IpAddr {
    let number = u8::try_from(100 + index).unwrap_or(u8::MAX);
    match family {
        Family::V4 => Ipv4Addr::new(10, number, 0, 2).into(),
        Family::V6 => {
            // The decimal digits of the number stand in the address, as in `fd00:101::2`.
            let digits = u16::from(number / 100) << 8
                | u16::from(number / 10 % 10) << 4
                | u16::from(number % 10);
            Ipv6Addr::new(0xfd00, digits, 0, 0, 0, 0, 0, 2).into()
        }
    }
}

/// Adds one line. Writing to a `String` cannot fail.
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

fn gateway_setup(scenario: &Scenario, server: &Netns) -> String {
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
    lines
}

fn server_setup(reach: Reach) -> String {
    let mut lines = String::from(
        "addr add 10.99.0.2/24 dev eth0\n\
         addr add fd99::2/64 dev eth0 nodad\n\
         link set dev eth0 up\n",
    );
    let (v4, v6) = match reach {
        Reach::Links => ("default", "default"),
        Reach::Tunnel => ("10.77.0.0/24", "fd77::/64"),
    };
    push(&mut lines, format_args!("route add {v4} via 10.99.0.1"));
    push(&mut lines, format_args!("-6 route add {v6} via fd99::1"));
    lines
}
