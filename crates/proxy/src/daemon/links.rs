//! Derives the networks that each link reaches from the devices of the host.

use std::net::IpAddr;

use ipnet::IpNet;
use pleach_linux::{clock, watch::LinkSnapshot};

use super::{hub::Hub, live::Stop, uplinks::Device};
use crate::{
    placer::{LinkSettings, Reach},
    sched::LinkId,
};

/// Applies a new snapshot of the host's devices.
pub(super) fn apply(hub: &Hub, snapshot: &[LinkSnapshot]) {
    let now = clock::now();
    let mut placer = hub.placer.borrow_mut();
    let mut devices = hub.uplinks.devices.borrow_mut();
    if hub.settings.links.is_empty() {
        for found in snapshot.iter().filter(|link| is_uplink(link)) {
            let is_known = devices.iter().any(|device| device.name == found.name);
            if !is_known && devices.len() < MAX_FOUND_LINKS {
                let link = placer.add_link(LinkSettings {
                    name: found.name.clone(),
                    ..LinkSettings::default()
                });
                hub.restore_link(&mut placer, link);
                devices.push(Device {
                    name: found.name.clone(),
                    source: Vec::new(),
                    addresses: Vec::new(),
                    silent_since: None,
                });
            }
        }
    }
    for (index, device) in devices.iter_mut().enumerate() {
        let found = snapshot.iter().find(|link| link.name == device.name);
        let reach = found.map(reach).unwrap_or_default();
        let was_up = !placer.links()[index].reach.is_nothing();
        let is_up = !reach.is_nothing();
        if was_up != is_up {
            let state = if is_up { "up" } else { "down" };
            tracing::info!(
                link = placer.links()[index].settings.name,
                device = device.name,
                "link is {state}"
            );
        }
        let addresses = found.map(|found| found.addresses.clone());
        let addresses = addresses.unwrap_or_default();
        if device.addresses != addresses || !is_up {
            device.addresses = addresses;
            hub.forget_kept(LinkId(index));
        }
        placer.set_reach(LinkId(index), reach);
        // A connection cannot survive the loss of its address. It may survive a loss of carrier.
        let is_gone = found.is_none_or(|found| !found.is_up || found.addresses.is_empty());
        device.silent_since = (!is_up).then(|| device.silent_since.unwrap_or(now));
        if !is_up {
            for live in hub.table.live.borrow().values() {
                if live.link.get() == Some(LinkId(index)) && (is_gone || live.is_opening.get()) {
                    live.stop(Stop::LinkLost);
                }
            }
        }
    }
    let others = snapshot
        .iter()
        .filter(|link| !devices.iter().any(|device| device.name == link.name));
    *hub.uplinks.locals.borrow_mut() = others.flat_map(neighbours).collect();
    *hub.uplinks.own.borrow_mut() = snapshot.iter().flat_map(own_addresses).collect();
    hub.uplinks.changed.notify_waiters();
}

/// Returns the addresses of `link` at which this host answers. The first address of an IPv6 subnet is the anycast
/// address of all its routers (RFC 4291, 2.6.1), so it counts as well.
fn own_addresses(link: &LinkSnapshot) -> impl Iterator<Item = IpAddr> {
    let addresses = link.addresses.iter();
    addresses
        .flat_map(|net| {
            [
                Some(net.addr()),
                net.addr().is_ipv6().then(|| net.network()),
            ]
        })
        .flatten()
}

/// Returns all subnets of the devices of this host.
pub(super) fn beside(snapshot: &[LinkSnapshot]) -> Vec<IpNet> {
    snapshot.iter().flat_map(neighbours).collect()
}

/// Whether a device is used as a link if the user named none. Devices of other tunnels are not used, because these
/// tunnels run over the same access links.
fn is_uplink(link: &LinkSnapshot) -> bool {
    (link.has_default_v4 || link.has_default_v6) && !link.is_loopback && !link.is_tunnel
}

fn reach(link: &LinkSnapshot) -> Reach {
    if !link.is_up || !(link.has_carrier || link.is_loopback) {
        return Reach::default();
    }
    let has = |is_v4: bool| {
        link.addresses
            .iter()
            .any(|net| net.addr().is_ipv4() == is_v4)
    };
    Reach {
        v4: link.has_default_v4 && has(true),
        v6: link.has_default_v6 && has(false),
        neighbours: neighbours(link),
    }
}

/// Returns the subnets of the addresses of `link`.
fn neighbours(link: &LinkSnapshot) -> Vec<IpNet> {
    let own = link.addresses.iter();
    let mut networks: Vec<IpNet> = own
        .filter(|net| net.prefix_len() < net.max_prefix_len() || link.is_loopback)
        .map(IpNet::trunc)
        .collect();
    networks.sort_unstable();
    networks.dedup();
    networks
}

/// Maximum number of devices found automatically. Devices may return under new names (ppp0, ppp1, …), and old names
/// stay in the list.
const MAX_FOUND_LINKS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> LinkSnapshot {
        LinkSnapshot {
            ifindex: 2,
            name: name.to_owned(),
            is_up: true,
            has_carrier: true,
            is_loopback: false,
            is_tunnel: false,
            mtu: 1500,
            addresses: vec!["192.0.2.7/24".parse().expect("network")],
            has_default_v4: true,
            has_default_v6: true,
            ways: Vec::new(),
        }
    }

    #[test]
    fn all_addresses_of_all_devices_are_own() {
        let bridge = LinkSnapshot {
            addresses: vec!["2001:db8::7/64".parse().expect("network")],
            ..device("br0")
        };
        let own: Vec<String> = [device("eth0"), bridge]
            .iter()
            .flat_map(own_addresses)
            .map(|ip| ip.to_string())
            .collect();
        assert_eq!(own, ["192.0.2.7", "2001:db8::7", "2001:db8::"]);
    }

    #[test]
    fn a_link_leads_where_it_has_address_and_route() {
        let good = reach(&device("eth0"));
        assert!(good.v4 && !good.v6, "no IPv6 address");
        assert!(good.is_neighbour([192, 0, 2, 99].into()));
        let dead = LinkSnapshot {
            has_carrier: false,
            ..device("eth0")
        };
        assert!(reach(&dead).is_nothing());
        let inner = LinkSnapshot {
            has_default_v4: false,
            has_default_v6: false,
            ..device("eth0")
        };
        assert!(!is_uplink(&inner) && is_uplink(&device("eth0")));
        assert!(!reach(&inner).v4 && !reach(&inner).is_nothing());
    }
}
