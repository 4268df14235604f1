//! The addresses of a scenario's hosts, in the lab and in the simulator.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::scenario::Family;

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

/// The client's address on link `index`.
#[must_use]
pub fn link_address(index: usize, family: Family) -> IpAddr {
    let number = u8::try_from(100 + index).unwrap_or(u8::MAX);
    match family {
        Family::V4 => Ipv4Addr::new(10, number, 0, 2).into(),
        Family::V6 => {
            // The decimal digits of the number stand in the address, as in `fd00:101::2`.
            let digits = u16::from(number / 100) << 8
                | u16::from(number / 10 % 10) << 4
                | u16::from(number % 10);
            Ipv6Addr::new(0xfd00, digits, 0, 0, 0, 0, 0, 2).into()
        }
    }
}

/// The address of `family`.
#[must_use]
pub fn of_family(family: Family, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
    match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    }
}
