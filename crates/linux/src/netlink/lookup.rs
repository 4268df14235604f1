//! Determines whether a route leads from a device to an address, by the kernel's own look-up.
//!
//! A list of default routes is not sufficient: the route may be a host route, a connected prefix, a default route in a
//! table that rules select (systemd-networkd, NetworkManager, mwan3), or a route of a VRF. So `RTM_GETROUTE` is sent to
//! the kernel for the destination, with the device (`RTA_OIF`) and the mark (`RTA_MARK`) of the socket that will send.
//! If there is no route, the look-up is repeated with each address of the device as source, because rules such as `from
//! ADDRESS lookup TABLE` apply only to packets with a source address. In that case the socket must be bound to this
//! address.
//!
//! For IPv4 the look-up asks for the entry of the table (`RTM_F_FIB_MATCH`): if the given device has no route, the
//! kernel would without this flag treat every destination as a neighbour on the device
//! (`ip_route_output_key_hash_rcu`). For IPv6 the look-up must not use this flag: with the flag, the kernel does not
//! continue with shorter prefixes if the longest prefix is on another device (`ip6_pol_route_lookup`).
//!
//! Limits: only addresses that can be a source are considered, see [`super::watch::LinkSnapshot::addresses`]. A
//! device without such an address of the family has no usable route. At most [`MAX_SOURCES`] sources are tried.

use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType},
};
use rtnetlink::Handle;

/// Destinations of look-ups, and the mark of the packets to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Addresses of the destinations.
    pub addresses: Vec<IpAddr>,
    /// Mark of the packets. `None`: no mark.
    pub fwmark: Option<u32>,
}

/// A usable route from a device to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The destination address.
    pub target: IpAddr,
    /// Source address to which a socket must be bound for its packets to use the route. `None`: binding to the device
    /// is sufficient.
    pub source: Option<IpAddr>,
}

/// Returns the usable routes ([`Way`]) from the device `ifindex`, which has `addresses`, to the addresses in
/// `targets`, at most one for each address.
///
/// # Errors
/// Fails if the connection to the kernel fails. A missing route is not an error.
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
        // There is no route, a route that prohibits traffic, or the device or the family is gone.
        Err(rtnetlink::Error::NetlinkError(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether packets on `route`, the result of a look-up for the device `ifindex`, leave the host through this device.
/// The kernel reports no device for a route over a next-hop object; then the route is assumed to use the device of
/// the look-up.
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

/// Highest number of sources, above the number of addresses of an uplink; IPv6 privacy extensions create up to seven.
const MAX_SOURCES: usize = 16;
