//! Properties of a link that the placer uses: the user's settings, and the destinations that it reaches.

use std::net::IpAddr;

use ipnet::IpNet;
use pleach_core::units::Bitrate;

use super::cost::Cost;
use crate::budget::Budget;

/// The user's settings of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Name of the link.
    pub name: String,
    /// When the link is used.
    pub cost: Cost,
    /// Weight under weighted round robin. `None`: the link's rate is its weight.
    pub weight: Option<u16>,
    /// Rate to servers, if the user knows it.
    pub upload: Option<Bitrate>,
    /// Rate from servers, if the user knows it.
    pub download: Option<Bitrate>,
    /// Monthly budget. `None`: unlimited.
    pub budget: Option<Budget>,
    /// Energy per byte over this link, in units of the user's choice. It is only compared with other links' energy.
    pub energy: u16,
}

/// Present price of using a link. The links of the lowest price are used first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price {
    /// The user's cost, or a higher cost because of the budget.
    pub cost: Cost,
    /// Energy per byte while energy is saved, otherwise 0.
    pub energy: u16,
}

/// Destinations that a link reaches at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whether the link reaches the IPv4 Internet.
    pub v4: bool,
    /// Whether the link reaches the IPv6 Internet.
    pub v6: bool,
    /// Subnets of the link.
    pub neighbours: Vec<IpNet>,
}

impl Reach {
    /// Whether the link reaches `ip`.
    #[must_use]
    pub fn covers(&self, ip: IpAddr) -> bool {
        (if ip.is_ipv4() { self.v4 } else { self.v6 }) || self.is_neighbour(ip)
    }

    /// Whether `ip` is in a subnet of the link.
    #[must_use]
    pub fn is_neighbour(&self, ip: IpAddr) -> bool {
        self.neighbours.iter().any(|net| net.contains(&ip))
    }

    /// Whether the link reaches no destination.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.v4 && !self.v6 && self.neighbours.is_empty()
    }
}
