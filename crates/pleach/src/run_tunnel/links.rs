//! A client's links: the devices the user named, or every one with a default route; what each can reach now.

use ipnet::IpNet;
use pleach_core::{endpoint::Reach, ids::PathId, path::link::Link, wire::control::LinkRole};
use pleach_linux::watch::LinkSnapshot;

use crate::config::{ClientConfig, Cost, LinkConfig};

/// One link of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientLink {
    pub(super) id: PathId,
    pub(super) device: String,
    /// Index of the device its sockets are bound to; `None` without sockets.
    pub(super) ifindex: Option<u32>,
    pub(super) reach: Reach,
    /// Found, not configured: goes when its default route goes.
    pub(super) is_found: bool,
}

/// The device's part in a snapshot of the host.
pub(super) fn device<'a>(snapshot: &'a [LinkSnapshot], name: &str) -> Option<&'a LinkSnapshot> {
    snapshot.iter().find(|link| link.name == name)
}

/// What the gateway's addresses can be reached by over `link`.
pub(super) fn reach(link: &LinkSnapshot, client: &ClientConfig) -> Reach {
    if !link.is_up || !link.has_carrier {
        return Reach::NONE;
    }
    let endpoints = &client.gateway.endpoints;
    let is_neighbour = |net: &IpNet| {
        endpoints
            .iter()
            .any(|endpoint| net.contains(&endpoint.ip()))
    };
    let can = |is_v4: bool, has_default: bool| {
        let mut addresses = link
            .addresses
            .iter()
            .filter(|net| net.addr().is_ipv4() == is_v4)
            .peekable();
        addresses.peek().is_some() && (has_default || addresses.any(is_neighbour))
    };
    Reach {
        v4: can(true, link.has_default_v4),
        v6: can(false, link.has_default_v6),
    }
}

/// Whether a device is to be used when the user named none.
pub(super) fn is_uplink(link: &LinkSnapshot, tunnel: &str) -> bool {
    let has_default = link.has_default_v4 || link.has_default_v6;
    has_default && !link.is_loopback && link.name != tunnel
}

/// The engine's settings for a configured link.
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
