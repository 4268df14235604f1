//! What a link is to the placer: what the user says of it, and where it leads.

use std::net::IpAddr;

use ipnet::IpNet;
use pleach_core::units::Bitrate;

use super::cost::Cost;
use crate::budget::Budget;

/// A link as the user describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Its name.
    pub name: String,
    /// When it is used.
    pub cost: Cost,
    /// Share under weighted round robin; `None`: its rate.
    pub weight: Option<u16>,
    /// Rate to servers, if the user knows it.
    pub upload: Option<Bitrate>,
    /// Rate from servers, if the user knows it.
    pub download: Option<Bitrate>,
    /// What it may carry in a month; `None`: as much as it can.
    pub budget: Option<Budget>,
    /// What a byte over it takes of the battery, in the user's units; compared with other links' only.
    pub energy: u16,
}

/// What using a link is worth now; those of the least are used, then the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price {
    /// The user's cost, or a higher one if its budget says so.
    pub cost: Cost,
    /// Energy, while that is saved; else 0.
    pub energy: u16,
}

/// Where a link leads now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// To any IPv4 address.
    pub v4: bool,
    /// To any IPv6 address.
    pub v6: bool,
    /// Networks directly on it.
    pub neighbours: Vec<IpNet>,
}

impl Reach {
    /// Whether it leads to `ip`.
    #[must_use]
    pub fn covers(&self, ip: IpAddr) -> bool {
        (if ip.is_ipv4() { self.v4 } else { self.v6 }) || self.is_neighbour(ip)
    }

    /// Whether `ip` is directly on it.
    #[must_use]
    pub fn is_neighbour(&self, ip: IpAddr) -> bool {
        self.neighbours.iter().any(|net| net.contains(&ip))
    }

    /// Whether it leads nowhere.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.v4 && !self.v6 && self.neighbours.is_empty()
    }
}
