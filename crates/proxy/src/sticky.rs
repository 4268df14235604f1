//! Some sites tie a login to the client's address, so all connections of a client to one site use the same link for
//! some time.
//!
//! A site is the registrable part of a name, guessed without a list of public suffixes. It is the last two labels, or
//! the last three if the last label is a country's and the second-last is short (`shop.example.co.uk` →
//! `example.co.uk`). The site of an address is the address. The link is stored per client and site. At most
//! [`MAX_SITES`] entries are stored; the least recently used entry is removed first.

use core::time::Duration;
use std::{collections::BTreeMap, net::IpAddr};

use pleach_core::time::Instant;

use crate::{
    sched::LinkId,
    target::{Host, Target},
};

/// Which connections of a client to one site use the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stickiness {
    /// All connections.
    Always,
    /// Connections to ports of TLS services. A login over an unencrypted connection is rare, and plain downloads
    /// benefit from several links.
    Tls,
    /// No connections.
    Off,
}

impl Stickiness {
    /// Whether connections to `port` use the stored link of their site.
    #[must_use]
    pub fn holds(self, port: u16) -> bool {
        match self {
            Self::Always => true,
            Self::Tls => TLS_PORTS.contains(&port),
            Self::Off => false,
        }
    }
}

/// The links that clients use for sites.
#[derive(Debug)]
pub struct Sites {
    memory: Duration,
    sites: BTreeMap<(IpAddr, String), Entry>,
}

#[derive(Debug)]
struct Entry {
    link: LinkId,
    used_at: Instant,
}

impl Sites {
    /// Creates an empty table. An entry expires when it was not used for `memory`.
    #[must_use]
    pub fn new(memory: Duration) -> Self {
        Self {
            memory,
            sites: BTreeMap::new(),
        }
    }

    /// Returns the link that `client` uses for the site of `target`.
    #[must_use]
    pub fn link(&self, now: Instant, client: IpAddr, target: &Target) -> Option<LinkId> {
        let entry = self.sites.get(&(client, site(&target.host)))?;
        (now.since(entry.used_at) <= self.memory).then_some(entry.link)
    }

    /// Stores that `client` uses `link` for the site of `target`. O(log n), and O(n) if the table is full.
    pub fn note(&mut self, now: Instant, client: IpAddr, target: &Target, link: LinkId) {
        let entry = Entry { link, used_at: now };
        self.sites.insert((client, site(&target.host)), entry);
        if self.sites.len() > MAX_SITES {
            let memory = self.memory;
            self.sites
                .retain(|_, entry| now.since(entry.used_at) <= memory);
            let by_age = self.sites.iter().min_by_key(|(_, entry)| entry.used_at);
            if self.sites.len() > MAX_SITES
                && let Some(oldest) = by_age.map(|(key, _)| key.clone())
            {
                self.sites.remove(&oldest);
            }
        }
    }
}

/// Returns the site to which `host` belongs.
fn site(host: &Host) -> String {
    let name = match host {
        Host::Ip(ip) => return ip.to_string(),
        Host::Name(name) => name,
    };
    let labels: Vec<&str> = name.rsplit('.').collect();
    let kept = match labels.as_slice() {
        [country, second, _, ..] if country.len() == 2 && second.len() <= 3 => 3,
        _ => 2,
    };
    let start = labels.len().saturating_sub(kept);
    name.split('.').skip(start).collect::<Vec<_>>().join(".")
}

/// Maximum number of entries.
pub const MAX_SITES: usize = 4096;

/// Ports of HTTPS, and of mail, directory, file transfer and DNS services over TLS.
const TLS_PORTS: [u16; 9] = [443, 465, 636, 853, 989, 990, 993, 995, 8443];

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str) -> Target {
        Target::new(Host::parse(host).expect("host"), 443).expect("port")
    }

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_site_keeps_its_link_until_it_was_not_used_for_long() {
        let mut sites = Sites::new(Duration::from_secs(600));
        let at = |seconds: u64| Instant::from_millis(seconds * 1000);
        sites.note(at(0), CLIENT, &target("login.example.com"), LinkId(1));
        let www = target("www.example.com");
        assert_eq!(sites.link(at(500), CLIENT, &www), Some(LinkId(1)));
        sites.note(at(500), CLIENT, &www, LinkId(1));
        assert_eq!(sites.link(at(1100), CLIENT, &www), Some(LinkId(1)));
        assert_eq!(sites.link(at(1101), CLIENT, &www), None);
        assert_eq!(sites.link(at(500), CLIENT, &target("example.org")), None);
        let other = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(sites.link(at(500), other, &www), None);
    }

    #[test]
    fn sites_are_guessed_from_names() {
        for (name, expected) in [
            ("a.b.example.com", "example.com"),
            ("shop.example.co.uk", "example.co.uk"),
            ("example.de", "example.de"),
            ("localhost", "localhost"),
            ("192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(site(&Host::parse(name).expect("host")), expected);
        }
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut sites = Sites::new(Duration::from_secs(600));
        for n in 0..MAX_SITES as u64 + 50 {
            let host = format!("site{n}.example");
            sites.note(Instant::from_millis(n), CLIENT, &target(&host), LinkId(0));
        }
        assert_eq!(sites.sites.len(), MAX_SITES);
        assert_eq!(
            sites.link(
                Instant::from_millis(9_999),
                CLIENT,
                &target("site3.example")
            ),
            None
        );
    }
}
