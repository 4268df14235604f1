//! Addresses of a scenario's hosts, in the lab and in the simulator.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use crate::scenario::{Family, Scenario, Traffic};

/// The gateway's public IPv4 address.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// The gateway's public IPv6 address.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5);
/// The server's IPv4 address.
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The server's IPv6 address.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// The client's IPv4 address in the tunnel.
pub const INNER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The client's IPv6 address in the tunnel.
pub const INNER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// Returns the client's address on link `index`.
#[must_use]
pub fn link_address(index: usize, family: Family) -> IpAddr {
    let number = u8::try_from(100 + index).unwrap_or(u8::MAX);
    match family {
        Family::V4 => Ipv4Addr::new(10, number, 0, 2).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, digits(number.into()), 0, 0, 0, 0, 0, 2).into(),
    }
}

/// Returns the address of `family`.
#[must_use]
pub fn of_family(family: Family, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
    match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    }
}

/// Location of a server other than the common server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether the server serves traffic over one link outside the tunnel.
    pub outside: bool,
    /// One-way delay to the gateway.
    pub distance: Duration,
}

impl Place {
    /// Returns the location of the server of `traffic`. `None` if `traffic` uses the common server.
    #[must_use]
    pub fn of(traffic: &Traffic) -> Option<Self> {
        let place = Self {
            outside: traffic.link.is_some(),
            distance: traffic.distance,
        };
        (place.outside || !place.distance.is_zero()).then_some(place)
    }

    /// Returns the locations of a scenario without duplicates. The number of a server is its index.
    #[must_use]
    pub fn all(scenario: &Scenario) -> Vec<Self> {
        let mut places = Vec::new();
        for place in scenario.traffic.iter().filter_map(Self::of) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

/// Returns the address of far server `index`, which is below 256.
#[must_use]
pub fn far_address(index: usize, family: Family) -> IpAddr {
    let number = u8::try_from(index).unwrap_or(u8::MAX);
    match family {
        Family::V4 => Ipv4Addr::new(10, 98, number, 2).into(),
        Family::V6 => Ipv6Addr::new(0xfd98, digits(number.into()), 0, 0, 0, 0, 0, 2).into(),
    }
}

/// Returns the number whose hexadecimal digits are the decimal digits of `number` (below 1000), as in `fd00:101::2`.
fn digits(number: u16) -> u16 {
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}
