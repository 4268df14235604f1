//! Sites that tie a login to the address it came from: a site keeps its link for some time.
//!
//! A site is the registrable part of a name, guessed without a list of public suffixes: the last two labels, or three
//! where the last is a country's and the second-last is short (`shop.example.co.uk` → `example.co.uk`); for an
//! address, the address. It is remembered per client. At most [`MAX_SITES`] are kept; the one unused for longest goes
//! first.

use core::time::Duration;
use std::{collections::BTreeMap, net::IpAddr};

use pleach_core::time::Instant;

use crate::{
    sched::LinkId,
    target::{Host, Target},
};

/// Which connections stick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stickiness {
    /// All.
    Always,
    /// Those to ports of TLS services: no site worth the name takes a login in the clear, while plain downloads gain
    /// from being spread.
    Tls,
    /// None.
    Off,
}

impl Stickiness {
    /// Whether connections to `port` stick.
    #[must_use]
    pub fn holds(self, port: u16) -> bool {
        match self {
            Self::Always => true,
            Self::Tls => TLS_PORTS.contains(&port),
            Self::Off => false,
        }
    }
}

/// What is remembered.
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
    /// Remembers nothing yet; a site is forgotten when it was not used for `memory`.
    #[must_use]
    pub fn new(memory: Duration) -> Self {
        Self {
            memory,
            sites: BTreeMap::new(),
        }
    }

    /// The link of the site of `target` for `client`.
    #[must_use]
    pub fn link(&self, now: Instant, client: IpAddr, target: &Target) -> Option<LinkId> {
        let entry = self.sites.get(&(client, site(&target.host)))?;
        (now.since(entry.used_at) <= self.memory).then_some(entry.link)
    }

    /// Notes that `client` uses `link` for the site of `target`. O(log n), and O(n) when full.
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

/// The site `host` belongs to.
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

/// Most sites remembered.
pub const MAX_SITES: usize = 4096;

/// HTTPS, QUIC's fallback, and mail, chat and directory services over TLS.
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
