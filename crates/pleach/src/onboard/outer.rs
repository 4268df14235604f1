//! The addresses under which clients reach a gateway.
//!
//! These are the public addresses of the host's devices. If there are none, as behind a NAT or in a private network,
//! the private addresses are used with a warning, because the host cannot know the address of the NAT.

use std::net::{IpAddr, SocketAddr};

use pleach_linux::watch::LinkSnapshot;

/// The outer addresses of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Addresses with port: at most [`MAX_PER_FAMILY`] of each family, IPv4 first.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Whether the addresses are public.
    pub(crate) is_public: bool,
}

/// Returns the outer addresses of `links`, with `port`.
pub(crate) fn find(links: &[LinkSnapshot], port: u16) -> Outer {
    let is_usable = |link: &&LinkSnapshot| link.is_up && !link.is_tunnel;
    let of = |has_default: bool| -> Vec<IpAddr> {
        let links = links.iter().filter(is_usable);
        let links = links.filter(|link| !has_default || link.has_default_v4 || link.has_default_v6);
        let addresses = links.flat_map(|link| link.addresses.iter().map(ipnet::IpNet::addr));
        addresses.filter(|address| !address.is_loopback()).collect()
    };
    let all = of(false);
    let public: Vec<IpAddr> = all
        .iter()
        .copied()
        .filter(|address| is_public(*address))
        .collect();
    let is_public = !public.is_empty();
    // Without a public address, prefer addresses of devices with a default route to those of bridges and LANs.
    let chosen = [public, of(true), all]
        .into_iter()
        .find(|found| !found.is_empty());
    let chosen = chosen.unwrap_or_default();
    let of_family = |is_v4: bool| {
        let family = chosen
            .iter()
            .filter(move |address| address.is_ipv4() == is_v4);
        family.take(MAX_PER_FAMILY)
    };
    let addresses = of_family(true).chain(of_family(false));
    Outer {
        endpoints: addresses
            .map(|address| SocketAddr::new(*address, port))
            .collect(),
        is_public,
    }
}

/// Whether an address is public. Addresses reserved for documentation are considered public, because tests use them.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            // RFC 6598.
            let is_shared = a == 100 && (64..128).contains(&b);
            !(address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || is_shared)
        }
        IpAddr::V6(address) => {
            !(address.is_unique_local()
                || address.is_unicast_link_local()
                || address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast())
        }
    }
}

/// Maximum number of addresses of each family: a client tries all of them on each link.
const MAX_PER_FAMILY: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, addresses: &[&str], has_default_v4: bool) -> LinkSnapshot {
        LinkSnapshot {
            ifindex: 1,
            name: name.to_owned(),
            is_up: true,
            has_carrier: true,
            is_loopback: name == "lo",
            is_tunnel: false,
            mtu: 1500,
            addresses: addresses
                .iter()
                .map(|text| text.parse().expect("net"))
                .collect(),
            has_default_v4,
            has_default_v6: false,
            ways: Vec::new(),
        }
    }

    fn found(links: &[LinkSnapshot]) -> (Vec<String>, bool) {
        let outer = find(links, 7700);
        let endpoints = outer.endpoints.iter().map(ToString::to_string);
        (endpoints.collect(), outer.is_public)
    }

    #[test]
    fn public_addresses_go_before_private_ones() {
        let lo = link("lo", &["127.0.0.1/8", "::1/128", "203.0.113.5/32"], false);
        let docker = link("docker0", &["172.17.0.1/16"], false);
        let eth0 = link(
            "eth0",
            &["10.0.0.5/24", "2001:db8::5/64", "fd00::5/64"],
            true,
        );
        let links = [lo, docker.clone(), eth0];
        let expected = ["203.0.113.5:7700", "[2001:db8::5]:7700"].map(str::to_owned);
        assert_eq!(found(&links), (expected.to_vec(), true));
        let behind_nat = [docker.clone(), link("eth0", &["10.0.0.5/24"], true)];
        assert_eq!(
            found(&behind_nat),
            (vec!["10.0.0.5:7700".to_owned()], false)
        );
        assert_eq!(
            found(&[docker]),
            (vec!["172.17.0.1:7700".to_owned()], false)
        );
        assert_eq!(found(&[]), (vec![], false));
        let carrier = link("wwan0", &["100.70.1.2/30"], true);
        assert!(!find(&[carrier], 1).is_public);
    }
}
