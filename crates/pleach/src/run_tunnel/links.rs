//! A client's links: the devices that the user named, or all devices with a route to the gateway, and the addresses
//! that each can reach now.

use std::net::IpAddr;

use anyhow::Context as _;
use ipnet::IpNet;
use pleach_core::{
    endpoint::Reach,
    ids::PathId,
    path::link::Link,
    wire::{control::LinkRole, header::DATA_OVERHEAD},
};
use pleach_linux::{netlink::Netlink, watch::LinkSnapshot};

use super::DEFAULT_MTU;
use crate::config::{ClientConfig, Cost, LinkConfig};

/// One link of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientLink {
    pub(super) id: PathId,
    pub(super) name: String,
    pub(super) device: String,
    /// Index of the device to which the link's sockets are bound; `None` without sockets.
    pub(super) ifindex: Option<u32>,
    pub(super) reach: Reach,
    /// Source addresses to which the sockets are bound, for IPv4 and IPv6; see [`source`].
    pub(super) sources: [Option<IpAddr>; 2],
    /// Network under which the link's rate is remembered; see [`network`].
    pub(super) network: String,
}

/// Returns the network to which a link leads: the prefix of its first address, IPv4 before IPv6. Point-to-point links,
/// as modems often make them, have no such prefix; all of them count as one network.
pub(super) fn network(link: &LinkSnapshot) -> String {
    let is_shared = |net: &&IpNet| net.prefix_len() + 2 < net.max_prefix_len();
    let net = link.addresses.iter().find(is_shared);
    net.map_or_else(|| "one host".to_owned(), |net| net.trunc().to_string())
}

/// Returns the device's entry in a snapshot of the host.
pub(super) fn device<'a>(snapshot: &'a [LinkSnapshot], name: &str) -> Option<&'a LinkSnapshot> {
    snapshot.iter().find(|link| link.name == name)
}

/// Returns the gateway's address families that can be reached over `link`.
pub(super) fn reach(link: &LinkSnapshot) -> Reach {
    let can = |is_v6| link.ways.iter().any(|way| way.target.is_ipv6() == is_v6);
    Reach {
        v4: can(false),
        v6: can(true),
    }
}

/// Returns the address to which a socket on `link` must be bound so that the kernel finds the route; `None` if binding
/// to the device is enough.
pub(super) fn source(link: &LinkSnapshot, is_v6: bool) -> Option<IpAddr> {
    let mut ways = link
        .ways
        .iter()
        .filter(|way| way.target.is_ipv6() == is_v6)
        .map(|way| way.source);
    let first = ways.next()?;
    ways.fold(first, |found, other| found.and(other).and(found))
}

/// Whether a device is used if the user has named none. Other tunnels are excluded: their packets use the same links,
/// and two tunnels that use each other as a link would loop.
pub(crate) fn is_uplink(link: &LinkSnapshot, tunnel: &str) -> bool {
    !link.ways.is_empty() && !link.is_loopback && !link.is_tunnel && link.name != tunnel
}

/// Returns the engine's settings for a configured link.
pub(super) fn settings(config: &LinkConfig, mtu: u16) -> Link {
    let (cost, role) = match config.cost {
        Cost::Never => (0, LinkRole::Never),
        Cost::Rank(rank) => (rank, LinkRole::Active),
        Cost::Standby => (0, LinkRole::Standby),
    };
    Link {
        cost,
        role,
        weight: u32::from(config.weight),
        upload: config.upload,
        download: config.download,
        mtu,
        ..Link::named(&config.name)
    }
}

/// Returns the largest inner MTU that fits the present MTUs of all configured links. Devices that are absent, and links
/// that are found later, are ignored.
///
/// # Errors
/// If the MTU of a device cannot be read.
pub(super) fn default_mtu(client: &ClientConfig) -> anyhow::Result<u16> {
    let netlink = Netlink::open().context("netlink")?;
    let mut mtus = Vec::new();
    for link in &client.links {
        let mtu = netlink.link_mtu(&link.device);
        mtus.extend(mtu.with_context(|| format!("MTU of {}", link.device))?);
    }
    let gateways = client.gateways.iter();
    let mut endpoints = gateways.flat_map(|gateway| &gateway.endpoints);
    Ok(fitting_mtu(
        mtus.into_iter().min(),
        client.has_names() || endpoints.any(std::net::SocketAddr::is_ipv6),
    ))
}

/// Returns the inner MTU for `outer` bytes, between 1280, which IPv6 requires, and [`DEFAULT_MTU`].
fn fitting_mtu(outer: Option<u32>, is_v6: bool) -> u16 {
    let ip_header = if is_v6 { 40 } else { 20 };
    let Some(outer) = outer.and_then(|outer| u16::try_from(outer).ok()) else {
        return DEFAULT_MTU;
    };
    let overhead = ip_header + UDP_HEADER + u16::try_from(DATA_OVERHEAD).unwrap_or(u16::MAX);
    let inner = outer.saturating_sub(overhead);
    if inner < LEAST_MTU {
        tracing::warn!(
            "a link takes packets of {outer} bytes only: full packets of the tunnel do not fit; raise the link's MTU to {}",
            LEAST_MTU + overhead
        );
    }
    inner.clamp(LEAST_MTU, DEFAULT_MTU)
}

const UDP_HEADER: u16 = 8;
/// Minimum MTU of IPv6: RFC 8200 section 5.
const LEAST_MTU: u16 = 1280;

#[cfg(test)]
mod tests {
    use pleach_linux::watch::Way;

    use super::*;

    #[test]
    fn a_network_is_known_by_its_prefix() {
        for (addresses, expected) in [
            (
                vec!["192.168.1.23/24", "2001:db8:7::5/64"],
                "192.168.1.0/24",
            ),
            (vec!["2001:db8:7::5/64"], "2001:db8:7::/64"),
            (vec!["10.44.3.2/30", "2001:db8:7::5/128"], "one host"),
            (vec![], "one host"),
        ] {
            let addresses = addresses.iter().map(|net| net.parse().expect("net"));
            let link = LinkSnapshot {
                ifindex: 3,
                name: "wlan0".to_owned(),
                is_up: true,
                has_carrier: true,
                is_loopback: false,
                is_tunnel: false,
                mtu: 1500,
                addresses: addresses.collect(),
                has_default_v4: true,
                has_default_v6: false,
                ways: Vec::new(),
            };
            assert_eq!(network(&link), expected);
        }
    }

    #[test]
    fn a_source_is_needed_only_if_no_way_does_without() {
        let way = |target: &str, source: Option<&str>| Way {
            target: target.parse().expect("literal"),
            source: source.map(|source| source.parse().expect("literal")),
        };
        let mut link = LinkSnapshot {
            ifindex: 3,
            name: "eth1".to_owned(),
            is_up: true,
            has_carrier: true,
            is_loopback: false,
            is_tunnel: false,
            mtu: 1500,
            addresses: Vec::new(),
            has_default_v4: false,
            has_default_v6: false,
            ways: Vec::new(),
        };
        assert_eq!((reach(&link), source(&link, false)), (Reach::NONE, None));
        assert!(!is_uplink(&link, "pleach0"));
        link.ways = vec![way("203.0.113.5", Some("192.0.2.7"))];
        let v4 = Reach {
            v4: true,
            v6: false,
        };
        assert_eq!(reach(&link), v4);
        assert_eq!(source(&link, false), link.ways[0].source);
        assert_eq!(source(&link, true), None);
        assert!(is_uplink(&link, "pleach0") && !is_uplink(&link, "eth1"));
        link.ways.push(way("203.0.113.6", None));
        assert_eq!(source(&link, false), None);
    }

    #[test]
    fn the_tunnel_takes_what_the_narrowest_link_leaves() {
        for (outer, is_v6, inner) in [
            (None, true, 1414),
            (Some(1500), true, 1414),
            (Some(1492), true, 1406),
            (Some(1492), false, 1414),
            (Some(1428), false, 1362),
            (Some(9000), false, 1414),
            (Some(65_536), false, 1414),
            (Some(1280), true, 1280),
            (Some(0), true, 1280),
        ] {
            assert_eq!(fitting_mtu(outer, is_v6), inner, "{outer:?}");
        }
    }
}
