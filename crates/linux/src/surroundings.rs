//! What lies around a tunnel on its host: networks that devices are connected to, and bridges of containers.
//!
//! - **Local networks** are the prefixes of the addresses of other devices. Routes are not asked: a DHCP server can announce any
//!   (option 121, CVE-2024-3661). The same server chooses the prefix of the address, too, so a network that is wider than any
//!   LAN does not count (`is_lan`).
//! - **Bridges of containers** are bridges with ports, all of which are veth or TAP devices: containers and virtual machines of this
//!   host. A bridge with a physical port is a link, or part of a LAN.

use std::{io, net::IpAddr};

use ipnet::IpNet;

use crate::netlink::Netlink;

/// Local networks and bridges of containers, both sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Names of bridges of containers.
    pub containers: Vec<String>,
    /// Networks that devices are connected to.
    pub local: Vec<IpNet>,
}

/// A device, as far as this module is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The index of the bridge that it is a port of.
    pub(crate) bridge: Option<u32>,
    pub(crate) addresses: Vec<IpNet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bridge,
    /// Only programs of this host are at its other end: veth, TUN and TAP.
    Inside,
    Other,
}

impl Surroundings {
    /// Reads them for the tunnel over device `tun`, in the namespace of `netlink`.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read(netlink: &Netlink, tun: &str) -> io::Result<Self> {
        Ok(Self::of(&netlink.devices()?, tun))
    }

    fn of(devices: &[Device], tun: &str) -> Self {
        let is_of_containers = |bridge: &Device| {
            let mut ports = devices
                .iter()
                .filter(|port| port.bridge == Some(bridge.ifindex))
                .peekable();
            bridge.kind == Kind::Bridge
                && ports.peek().is_some()
                && ports.all(|port| port.kind == Kind::Inside)
        };
        let bridges = devices.iter().filter(|device| is_of_containers(device));
        let mut containers: Vec<String> = bridges.map(|bridge| bridge.name.clone()).collect();
        containers.sort_unstable();
        let others = devices.iter().filter(|device| device.name != tun);
        let addresses = others.flat_map(|device| &device.addresses);
        let mut local: Vec<IpNet> = addresses.map(IpNet::trunc).filter(is_lan).collect();
        local.sort_unstable();
        local.dedup();
        Self { containers, local }
    }
}

/// Whether a network is no wider than those that people run: 10.0.0.0/8 is the widest private one; a public one has at most a /16,
/// and at most a /48 of IPv6, what a site gets (RFC 6177).
fn is_lan(network: &IpNet) -> bool {
    let least = match network.addr() {
        IpAddr::V4(v4) if v4.is_private() => 8,
        IpAddr::V4(_) => 16,
        IpAddr::V6(_) => 48,
    };
    network.prefix_len() >= least && !network.addr().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ifindex: u32, kind: Kind, bridge: Option<u32>, addresses: &[&str]) -> Device {
        let addresses = addresses.iter().map(|text| text.parse().expect("literal"));
        Device {
            ifindex,
            name: format!("d{ifindex}"),
            kind,
            bridge,
            addresses: addresses.collect(),
        }
    }

    #[test]
    fn only_bridges_without_a_physical_port_are_of_containers() {
        let devices = [
            device(1, Kind::Bridge, None, &["172.17.0.1/16"]),
            device(2, Kind::Inside, Some(1), &[]),
            device(3, Kind::Bridge, None, &["192.168.1.7/24"]),
            device(4, Kind::Inside, Some(3), &[]),
            device(5, Kind::Other, Some(3), &[]),
            device(6, Kind::Bridge, None, &[]),
            device(7, Kind::Inside, None, &["10.77.0.2/24"]),
        ];
        let found = Surroundings::of(&devices, "d7");
        assert_eq!(found.containers, ["d1"]);
        let local: Vec<_> = found.local.iter().map(ToString::to_string).collect();
        assert_eq!(local, ["172.17.0.0/16", "192.168.1.0/24"]);
    }

    #[test]
    fn networks_wider_than_a_lan_do_not_count() {
        for (network, expected) in [
            ("10.1.2.3/8", true),
            ("192.168.1.1/24", true),
            ("100.64.3.2/10", false),
            ("8.8.8.9/1", false),
            ("10.0.0.1/7", false),
            ("203.0.113.7/24", true),
            ("2001:db8::1/64", true),
            ("2001:db8::1/32", false),
            ("127.0.0.1/8", false),
            ("::1/128", false),
        ] {
            let network: IpNet = network.parse().expect("literal");
            assert_eq!(is_lan(&network.trunc()), expected, "{network}");
        }
    }
}
