//! Finds the peer to which an inner address belongs (cryptokey routing, as in section 2 of the WireGuard paper,
//! Donenfeld 2017).

use core::net::IpAddr;
use std::collections::BTreeMap;

use ipnet::IpNet;

/// A longest-prefix-match table from inner addresses to peers.
///
/// The table has one ordered map per prefix length in use, and a look-up tries the longest prefix first. Usual tables
/// contain two or three lengths.
#[derive(Clone, Debug, Default)]
pub struct AllowedIps {
    v4: Vec<(u8, BTreeMap<u32, usize>)>,
    v6: Vec<(u8, BTreeMap<u128, usize>)>,
}

impl AllowedIps {
    /// Assigns `net` to `peer`. If a prefix is assigned twice, it belongs to the later peer.
    pub fn insert(&mut self, net: IpNet, peer: usize) {
        match net.trunc() {
            IpNet::V4(net) => {
                level(&mut self.v4, net.prefix_len()).insert(net.addr().to_bits(), peer);
            }
            IpNet::V6(net) => {
                level(&mut self.v6, net.prefix_len()).insert(net.addr().to_bits(), peer);
            }
        }
    }

    /// Removes `net` if it is assigned to `peer`.
    pub fn remove(&mut self, net: IpNet, peer: usize) {
        match net.trunc() {
            IpNet::V4(net) => {
                let nets = level(&mut self.v4, net.prefix_len());
                let key = net.addr().to_bits();
                if nets.get(&key) == Some(&peer) {
                    nets.remove(&key);
                }
            }
            IpNet::V6(net) => {
                let nets = level(&mut self.v6, net.prefix_len());
                let key = net.addr().to_bits();
                if nets.get(&key) == Some(&peer) {
                    nets.remove(&key);
                }
            }
        }
    }

    /// Returns a peer to which an address of `net` belongs: the peer of a network that contains `net`, or of a network
    /// in `net`.
    #[must_use]
    pub fn overlapping(&self, net: IpNet) -> Option<usize> {
        match net.trunc() {
            IpNet::V4(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                self.v4.iter().find_map(|(len, nets)| {
                    let mask = u32::MAX.checked_shl(32 - u32::from(*len)).unwrap_or(0);
                    let found = nets.range(first & mask..=last).next();
                    found.map(|(_, peer)| *peer)
                })
            }
            IpNet::V6(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                self.v6.iter().find_map(|(len, nets)| {
                    let mask = u128::MAX.checked_shl(128 - u32::from(*len)).unwrap_or(0);
                    let found = nets.range(first & mask..=last).next();
                    found.map(|(_, peer)| *peer)
                })
            }
        }
    }

    /// Returns the peer to which `address` belongs.
    #[must_use]
    pub fn peer_of(&self, address: IpAddr) -> Option<usize> {
        match address {
            IpAddr::V4(address) => self.v4.iter().find_map(|(len, nets)| {
                let mask = u32::MAX.checked_shl(32 - u32::from(*len)).unwrap_or(0);
                nets.get(&(address.to_bits() & mask)).copied()
            }),
            IpAddr::V6(address) => self.v6.iter().find_map(|(len, nets)| {
                let mask = u128::MAX.checked_shl(128 - u32::from(*len)).unwrap_or(0);
                nets.get(&(address.to_bits() & mask)).copied()
            }),
        }
    }
}

/// Returns the map for prefixes of length `len`, which is created if necessary. The maps are ordered from the longest
/// prefix to the shortest.
fn level<K>(levels: &mut Vec<(u8, BTreeMap<K, usize>)>, len: u8) -> &mut BTreeMap<K, usize> {
    let index = match levels.binary_search_by(|(other, _)| len.cmp(other)) {
        Ok(index) => index,
        Err(index) => {
            levels.insert(index, (len, BTreeMap::new()));
            index
        }
    };
    &mut levels[index].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let mut table = AllowedIps::default();
        for (peer, net) in [
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.2.3/32",
            "10.1.0.0/16",
            "fd00::/8",
            "fd00::7/128",
        ]
        .into_iter()
        .enumerate()
        {
            table.insert(net.parse().expect("literal"), peer);
        }
        let peer_of = |address: &str| table.peer_of(address.parse().expect("literal"));
        assert_eq!(peer_of("10.1.2.3"), Some(2));
        assert_eq!(peer_of("10.1.9.9"), Some(3));
        assert_eq!(peer_of("10.9.9.9"), Some(1));
        assert_eq!(peer_of("192.0.2.1"), Some(0));
        assert_eq!(peer_of("fd00::7"), Some(5));
        assert_eq!(peer_of("fd11::1"), Some(4));
        assert_eq!(peer_of("2001:db8::1"), None);
        let host = "10.1.2.3/32".parse().expect("literal");
        table.remove(host, 9);
        let peer_of = |table: &AllowedIps| table.peer_of("10.1.2.3".parse().expect("literal"));
        assert_eq!(peer_of(&table), Some(2), "it belongs to another");
        table.remove(host, 2);
        assert_eq!(peer_of(&table), Some(3));
    }

    #[test]
    fn networks_overlap_if_one_contains_the_other() {
        let mut table = AllowedIps::default();
        let net = |text: &str| -> IpNet { text.parse().expect("literal") };
        for (peer, text) in ["10.1.0.0/16", "10.2.3.4/32", "fd00:1::/64"]
            .into_iter()
            .enumerate()
        {
            table.insert(net(text), peer);
        }
        for (text, expected) in [
            ("10.1.2.3/32", Some(0)),
            ("10.1.255.0/24", Some(0)),
            ("10.1.0.0/16", Some(0)),
            ("10.2.3.0/24", Some(1)),
            ("10.2.3.4/32", Some(1)),
            ("10.2.3.5/32", None),
            ("10.2.2.0/24", None),
            ("10.0.0.0/16", None),
            ("10.3.0.0/16", None),
            ("fd00:1::7/128", Some(2)),
            ("fd00::/16", Some(2)),
            ("fd00:2::/64", None),
        ] {
            assert_eq!(table.overlapping(net(text)), expected, "{text}");
        }
        assert!(table.overlapping(net("0.0.0.0/0")).is_some());
    }
}
