//! Whether a route leads from a device to an address: the kernel's own look-up.
//!
//! A list of default routes does not answer it: the route may be a host route, a connected prefix, or a default route in
//! a table that rules choose (systemd-networkd, NetworkManager, mwan3), or that of a VRF. So the kernel is asked with
//! `RTM_GETROUTE` for the destination, with the device (`RTA_OIF`) and the mark (`RTA_MARK`) of the socket that will
//! send. If there is no route, it is asked again from each address of the device, because rules such as `from ADDRESS
//! lookup TABLE` heed only packets with a source; the socket then has to be bound to it.
//!
//! IPv4 is asked for the entry of the table (`RTM_F_FIB_MATCH`): without this flag the kernel takes every destination for
//! a neighbour of a device that was named and has no route (`ip_route_output_key_hash_rcu`). IPv6 must be asked without
//! the flag: with it the kernel does not go on to shorter prefixes when the longest is on another device
//! (`ip6_pol_route_lookup`).
//!
//! Limits: only addresses that can be a source count, see [`super::watch::LinkSnapshot::addresses`]; a device without one
//! of the family has no way. At most [`MAX_SOURCES`] sources are tried.

use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType},
};
use rtnetlink::Handle;

/// The addresses that ways are looked for to, and what their packets carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// Mark of the packets; `None`: none.
    pub fwmark: Option<u32>,
}

/// A way from a device to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The address.
    pub target: IpAddr,
    /// What a socket must be bound to for its packets to take the way; `None`: the device is enough.
    pub source: Option<IpAddr>,
}

/// The ways from the device `ifindex`, which has `addresses`, to each of `targets` that has one.
///
/// # Errors
/// If the connection to the kernel fails. A route that does not exist is none.
pub(super) async fn ways(
    handle: &Handle,
    ifindex: u32,
    addresses: &[IpNet],
    targets: &Targets,
) -> Result<Vec<Way>, rtnetlink::Error> {
    let mut ways = Vec::new();
    for &target in &targets.addresses {
        let same_family = |address: &IpAddr| address.is_ipv4() == target.is_ipv4();
        let sources: Vec<IpAddr> = addresses
            .iter()
            .map(IpNet::addr)
            .filter(same_family)
            .take(MAX_SOURCES)
            .collect();
        if sources.is_empty() {
            continue;
        }
        let any_first = std::iter::once(None).chain(sources.into_iter().map(Some));
        for source in any_first {
            if has_route(handle, ifindex, target, source, targets.fwmark).await? {
                ways.push(Way { target, source });
                break;
            }
        }
    }
    Ok(ways)
}

async fn has_route(
    handle: &Handle,
    ifindex: u32,
    target: IpAddr,
    source: Option<IpAddr>,
    fwmark: Option<u32>,
) -> Result<bool, rtnetlink::Error> {
    let mut question = RouteMessage::default();
    question.header.address_family = if target.is_ipv6() {
        AddressFamily::Inet6
    } else {
        question.header.flags = RouteFlags::FibMatch;
        AddressFamily::Inet
    };
    let bits = if target.is_ipv6() { 128 } else { 32 };
    question.header.destination_prefix_length = bits;
    let attributes = &mut question.attributes;
    attributes.push(RouteAttribute::Destination(wire(target)));
    attributes.push(RouteAttribute::Oif(ifindex));
    attributes.extend(fwmark.map(RouteAttribute::Mark));
    if let Some(source) = source {
        question.header.source_prefix_length = bits;
        attributes.push(RouteAttribute::Source(wire(source)));
    }
    let answers: Result<Vec<RouteMessage>, _> =
        handle.route().get(question).execute().try_collect().await;
    match answers {
        Ok(routes) => Ok(routes.iter().any(|route| leaves_by(route, ifindex))),
        // No route, one that forbids, or the device or the family is gone.
        Err(rtnetlink::Error::NetlinkError(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether packets that take `route` leave the host by the device. A route by a next-hop object may not name it.
fn leaves_by(route: &RouteMessage, ifindex: u32) -> bool {
    let mut devices = Vec::new();
    for attribute in &route.attributes {
        if let RouteAttribute::Oif(device) = attribute {
            devices.push(*device);
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            devices.extend(hops.iter().map(|hop| hop.interface_index));
        }
    }
    route.header.kind == RouteType::Unicast && (devices.is_empty() || devices.contains(&ifindex))
}

fn wire(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

/// More addresses than an uplink has; IPv6 privacy extensions make up to seven.
const MAX_SOURCES: usize = 16;
