//! Addresses of the crowd and of its gateway.
//!
//! Each client has an outer address of its own on each link, so that a gateway sees as many sources as there are
//! clients and paths. A client that roams continues at the next *place*: the same number under another prefix.
//!
//! ```text
//! outer: 10.x.y.z  = 0000 1010  0 link(3) place(4)  client(16)
//! inner: 100.64.0.0/10, of which .0.1 is the gateway and .0.2 the first client
//! ```

use core::net::Ipv4Addr;

/// Maximum number of clients of a crowd. Larger crowds were not tried; the addresses permit 65 534.
pub const MOST_CLIENTS: u32 = 40_000;
/// Maximum number of links of a client.
pub const MOST_LINKS: u8 = 8;

/// Outer address of the gateway.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// Address of the crowd's host on the network that it shares with the gateway.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 6);
/// Inner address of the gateway.
pub(crate) const INNER_GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);

/// The place of an outer address: who uses it, and since which move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outer {
    /// Number of the client.
    pub(crate) client: u32,
    /// The client's link.
    pub(crate) link: u8,
    /// Number of the client's moves so far, modulo [`PLACES`].
    pub(crate) place: u8,
}

impl Outer {
    /// Returns the address.
    pub(crate) fn address(self) -> Ipv4Addr {
        let link = u32::from(self.link % MOST_LINKS) << 20;
        let place = u32::from(self.place % PLACES) << 16;
        Ipv4Addr::from_bits(10 << 24 | link | place | self.client & 0xffff)
    }

    /// Returns the place of an address of the crowd.
    pub(crate) fn of(address: Ipv4Addr) -> Self {
        let [_, link_and_place, ..] = address.octets();
        Self {
            client: address.to_bits() & 0xffff,
            link: link_and_place >> 4 & (MOST_LINKS - 1),
            place: link_and_place & (PLACES - 1),
        }
    }
}

/// Returns the inner address of a client.
pub(crate) fn inner(client: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(INNER_GATEWAY.to_bits() + 1 + client)
}

/// Number of places, after which a client returns to its first address.
pub(crate) const PLACES: u8 = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_clients_links_or_places_share_an_address() {
        let mut seen = BTreeSet::new();
        for client in [0, 1, 255, 256, MOST_CLIENTS - 1] {
            for link in 0..MOST_LINKS {
                for place in 0..PLACES {
                    let outer = Outer {
                        client,
                        link,
                        place,
                    };
                    assert_eq!(Outer::of(outer.address()), outer);
                    assert!(seen.insert(outer.address()));
                    assert_eq!(outer.address().octets()[0], 10);
                }
            }
            assert!(seen.insert(inner(client)));
        }
        assert!(!seen.contains(&INNER_GATEWAY));
    }
}
