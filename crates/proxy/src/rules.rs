//! The user's rules: application, port or destination → link. The first rule that matches applies (DBAS's user
//! policies).

use core::ops::RangeInclusive;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    sched::LinkId,
    target::{Host, Target},
};

/// One rule. It matches if all its conditions hold. An absent condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Name of the process that opened the connection.
    pub app: Option<String>,
    /// Port range of the destination.
    pub ports: Option<RangeInclusive<u16>>,
    /// Hosts or networks of the destination.
    pub destination: Option<Destination>,
    /// The link that the connection takes.
    pub link: LinkId,
    /// Whether the connection is refused while the link is down, instead of taking another link.
    pub strict: bool,
}

/// A set of destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A domain name, in lower case, and all names below it.
    Domain(String),
    /// A network of addresses.
    Network(IpNet),
}

impl Destination {
    /// Reads a network, an address or a domain (`example.com`, also written `*.example.com`). `None` if `text` is
    /// none of these.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Some(Self::Network(network.trunc()));
        }
        let bare = text.strip_prefix("*.").unwrap_or(text);
        match Host::parse(bare)? {
            Host::Ip(ip) => Some(Self::Network(IpNet::from(ip))),
            Host::Name(name) if !name.contains(['*', '/']) => Some(Self::Domain(name)),
            Host::Name(_) => None,
        }
    }

    fn holds(&self, target: &Target, addresses: &[IpAddr]) -> bool {
        match (self, &target.host) {
            (Self::Domain(domain), Host::Name(name)) => name
                .strip_suffix(domain.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
            (Self::Domain(_), Host::Ip(_)) => false,
            (Self::Network(network), _) => addresses.iter().any(|ip| network.contains(ip)),
        }
    }
}

impl Rule {
    /// Whether the rule matches a connection of `app` to `target`, which has `addresses`.
    #[must_use]
    pub fn holds(&self, app: Option<&str>, target: &Target, addresses: &[IpAddr]) -> bool {
        let app_holds = self.app.as_deref().is_none_or(|named| app == Some(named));
        let port_holds = self
            .ports
            .as_ref()
            .is_none_or(|ports| ports.contains(&target.port));
        let there = |destination: &Destination| destination.holds(target, addresses);
        app_holds && port_holds && self.destination.as_ref().is_none_or(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16) -> Target {
        Target::new(Host::parse(host).expect("host"), port).expect("port")
    }

    #[test]
    fn all_conditions_must_hold() {
        let rule = Rule {
            app: Some("skype".to_owned()),
            ports: Some(5000..=6000),
            destination: Destination::parse("*.example.com"),
            ..Rule::default()
        };
        let there = target("call.example.com", 5060);
        assert!(rule.holds(Some("skype"), &there, &[]));
        assert!(rule.holds(Some("skype"), &target("example.com", 5000), &[]));
        assert!(!rule.holds(Some("curl"), &there, &[]));
        assert!(!rule.holds(None, &there, &[]));
        assert!(!rule.holds(Some("skype"), &target("call.example.com", 80), &[]));
        assert!(!rule.holds(Some("skype"), &target("badexample.com", 5060), &[]));
        assert!(Rule::default().holds(None, &there, &[]));
    }

    #[test]
    fn networks_look_at_the_addresses_behind_a_name() {
        let destination = Destination::parse("10.0.0.0/8").expect("network");
        let ip = "10.1.2.3".parse().expect("address");
        assert!(destination.holds(&target("intranet", 80), &[ip]));
        assert!(!destination.holds(&target("intranet", 80), &[]));
        assert_eq!(
            Destination::parse("192.0.2.7"),
            Some(Destination::Network(
                "192.0.2.7/32".parse().expect("network")
            ))
        );
        for bad in ["", "*.", "a b", "10.0.0.0/99", "a.*.b"] {
            assert_eq!(Destination::parse(bad), None, "{bad}");
        }
    }
}
