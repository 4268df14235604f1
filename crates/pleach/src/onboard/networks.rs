//! Inner networks that do not overlap any address or route of this host.
//!
//! IPv4: a /22 (1021 clients) drawn at random from 10.64.0.0/10, which does not contain the networks of home routers,
//! containers and carriers (192.168/16, 172.16/12, 10.0/16, 100.64/10). IPv6: a /64 of a random unique local prefix
//! (RFC 4193 section 3.2). The networks of clients are unknown here; `join` checks them.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pleach_core::rng::Rng;
use pleach_linux::{netlink::Netlink, watch::LinkSnapshot};

/// Returns the networks that addresses and routes of this host cover, except those of `own_device`.
///
/// # Errors
/// If the kernel does not report its routes.
pub(crate) fn taken(links: &[LinkSnapshot], own_device: &str) -> anyhow::Result<Vec<IpNet>> {
    let others = links.iter().filter(|link| link.name != own_device);
    let mut taken: Vec<IpNet> = others.flat_map(|link| link.addresses.clone()).collect();
    let own: Vec<IpNet> = links
        .iter()
        .filter(|link| link.name == own_device)
        .flat_map(|link| link.addresses.clone())
        .collect();
    let routes = Netlink::open().and_then(|netlink| netlink.destinations());
    let routes = routes.context("routes of this host")?;
    let is_others = |route: &IpNet| !own.iter().any(|net| net.trunc().contains(route));
    taken.extend(routes.into_iter().filter(is_others));
    taken.retain(|net| net.prefix_len() > 0);
    Ok(taken)
}

/// Returns the gateway's own addresses in an IPv4 and an IPv6 network that overlap none of `taken`. `seed`: seed of the
/// random choice.
///
/// # Errors
/// If all networks that were drawn overlap.
pub(crate) fn choose(taken: &[IpNet], seed: u64) -> anyhow::Result<[IpNet; 2]> {
    let mut rng = Rng::new(seed);
    let v4 = first_free(taken, || {
        let [a, b] = [0, 0].map(|_: u8| octet(&mut rng));
        let network = Ipv4Addr::new(10, 64 + a % 64, b & !3, 0).to_bits();
        Ipv4Net::new(Ipv4Addr::from_bits(network + 1), 22)
            .map(IpNet::from)
            .ok()
    });
    let v6 = first_free(taken, || {
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[1..6].fill_with(|| octet(&mut rng));
        octets[15] = 1;
        Ipv6Net::new(Ipv6Addr::from(octets), 64)
            .map(IpNet::from)
            .ok()
    });
    let [v4, v6] = [v4, v6].map(|net| {
        net.context(
            "pleach found no unused network for the tunnel on this host: give one with --network",
        )
    });
    Ok([v4?, v6?])
}

/// Returns the first of `taken` that overlaps `net`.
pub(crate) fn overlapping(net: IpNet, taken: &[IpNet]) -> Option<IpNet> {
    let net = net.trunc();
    let overlaps = |other: &IpNet| net.contains(&other.trunc()) || other.trunc().contains(&net);
    taken.iter().copied().find(overlaps)
}

fn first_free(taken: &[IpNet], mut draw: impl FnMut() -> Option<IpNet>) -> Option<IpNet> {
    (0..MAX_DRAWS)
        .filter_map(|_| draw())
        .find(|net| overlapping(*net, taken).is_none())
}

fn octet(rng: &mut Rng) -> u8 {
    u8::try_from(rng.below(256)).unwrap_or(0)
}

/// Maximum number of networks drawn: more than there are to choose from in IPv4.
const MAX_DRAWS: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts
            .iter()
            .map(|text| text.parse().expect("net"))
            .collect()
    }

    #[test]
    fn a_network_is_free_of_all_that_is_taken() {
        let taken = nets(&["10.64.0.0/11", "10.96.0.0/12", "10.120.0.0/13", "fd00::/9"]);
        for seed in 0..50 {
            let [v4, v6] = choose(&taken, seed).expect("10.112.0.0/13 is free");
            assert_eq!(overlapping(v4, &taken), None);
            assert_eq!(overlapping(v6, &taken), None);
            assert!(nets(&["10.112.0.0/13"])[0].contains(&v4), "{v4}");
            assert!(v4.addr() > v4.network() && v6.addr() > v6.network());
        }
        assert_ne!(choose(&[], 1).expect("free"), choose(&[], 2).expect("free"));
    }

    #[test]
    fn a_host_that_uses_all_of_it_is_told_to_name_one() {
        let error = choose(&nets(&["10.0.0.0/8"]), 1).expect_err("taken");
        assert!(error.to_string().contains("--network"));
    }
}
