//! The nftables back end: turns by `numgen`, marks, and a routing table for each link.
//!
//! The table `inet pleach_equalizer` marks packets to the destinations, local ones in a chain of type route and forwarded
//! ones before routing; rules lead each mark to a table with one default route. New turns replace the chain `spread` in
//! one transaction, so that no packet sees half of them; it costs some milliseconds of `nft`.
//!
//! Limits: turns are of packets at the hook, which segmentation offload makes up to 64 KiB long, so bytes are shared only on
//! average; flows cannot be kept together; what somebody else has marked is left alone; a daemon that is killed leaves all
//! of this at work, with the last weights, until the next start.

use std::{
    fmt::Write as _,
    io,
    process::{Command, Stdio},
};

use ipnet::IpNet;
use serde_json::Value;

use super::{Hop, MARKS_SLOT, MAX_LINKS, Mode, Sent};
use crate::{
    netlink::{Netlink, hops::HopRoute},
    nft, routes,
};

/// The state of the chains.
#[derive(Debug)]
pub(super) struct Splitter {
    links: usize,
    /// Script of the turns in force.
    turns: String,
}

impl Splitter {
    pub(super) fn new() -> Self {
        Self {
            links: 0,
            turns: String::new(),
        }
    }

    /// Makes table, chains and rules; nothing is marked yet.
    pub(super) fn prepare(
        &self,
        netlink: &Netlink,
        links: usize,
        destinations: &[IpNet],
    ) -> io::Result<()> {
        nft::run(&ruleset(links, destinations))?;
        let has_v6 = std::path::Path::new("/proc/sys/net/ipv6").exists();
        for (link, priority) in (0..links).zip(routes::rules::priorities(MARKS_SLOT)) {
            netlink.add_mark_rule(false, priority, mark(link), mark(link))?;
            if has_v6 {
                netlink.add_mark_rule(true, priority, mark(link), mark(link))?;
            }
        }
        Ok(())
    }

    /// See [`super::Equalizer::set`].
    pub(super) fn set(
        &mut self,
        netlink: &Netlink,
        hops: &[Option<Hop>],
        slots: [&[u8]; 2],
    ) -> io::Result<()> {
        self.links = hops.len();
        for (link, hop) in hops.iter().enumerate() {
            // Routes first, so that no packet is marked for a link without.
            if let Some(hop) = hop {
                add_routes(netlink, link, hop)?;
            }
        }
        let turns = turns(slots);
        if turns != self.turns {
            nft::run(&turns)?;
            self.turns = turns;
        }
        for (link, hop) in hops.iter().enumerate() {
            if hop.is_none() {
                netlink.flush_table(mark(link))?;
            }
        }
        Ok(())
    }

    /// What was sent over each link so far.
    pub(super) fn sent(&self) -> io::Result<Vec<Sent>> {
        let output = Command::new("nft")
            .args(["-j", "list", "counters", "table", "inet", TABLE])
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("nft: {}", text.trim())));
        }
        counters(&output.stdout, self.links)
    }
}

/// The counters of so many links in what nft lists. One that is missing is an error: zeros would say that all began anew.
fn counters(listed: &[u8], links: usize) -> io::Result<Vec<Sent>> {
    let listed: Value = serde_json::from_slice(listed)?;
    let counter = |link: usize| {
        let name = format!("link{link}");
        let found = listed["nftables"].as_array()?.iter();
        let mut found = found.filter_map(|entry| entry.get("counter"));
        let counter = found.find(|counter| counter["name"] == name.as_str())?;
        Some(Sent {
            packets: counter["packets"].as_u64()?,
            bytes: counter["bytes"].as_u64()?,
        })
    };
    let sent = |link: usize| {
        counter(link)
            .ok_or_else(|| io::Error::other(format!("nft lists no counter of link {link}")))
    };
    (0..links).map(sent).collect()
}

/// The error that this back end cannot do what `mode` asks for, if it cannot.
pub(super) fn refuse(mode: &Mode) -> io::Result<()> {
    if mode.gap.is_some() {
        let text = "nftables cannot keep flows together: use spread = \"packet\", or a kernel with BPF at the egress of devices (5.10)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    if mode.hold {
        return Err(cannot_hold());
    }
    Ok(())
}

pub(super) fn cannot_hold() -> io::Error {
    let text = "nftables cannot have packets wait: use spread = \"packet\", or a kernel with BPF at the egress of devices (5.10)";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Removes everything.
pub(super) fn clear(netlink: &Netlink) -> io::Result<()> {
    // Adding first makes deleting safe when there is none.
    let mut first_error = nft::run(&format!("table inet {TABLE}\ndelete table inet {TABLE}\n"));
    for link in 0..MAX_LINKS {
        let rules = netlink.delete_rules(routes::rules::priorities(MARKS_SLOT), mark(link));
        let flushed = netlink.flush_table(mark(link));
        first_error = first_error.and(rules).and(flushed);
    }
    first_error
}

fn add_routes(netlink: &Netlink, link: usize, hop: &Hop) -> io::Result<()> {
    for (is_v6, any) in [(false, "0.0.0.0/0"), (true, "::/0")] {
        let Some(gateway) = hop.gateway(is_v6) else {
            continue;
        };
        netlink.add_hop_route(&HopRoute {
            destination: any.parse().map_err(io::Error::other)?,
            gateway,
            ifindex: hop.ifindex,
            table: mark(link),
            metric: super::METRIC,
            mtu: None,
        })?;
    }
    Ok(())
}

fn ruleset(links: usize, destinations: &[IpNet]) -> String {
    let mut text =
        format!("table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n");
    for link in 0..links {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  counter link{link} {{ }}");
    }
    text.push_str("  chain spread { }\n  chain choose {\n    meta mark != 0 return\n");
    text.push_str("    fib daddr type { local, broadcast, multicast, anycast } return\n");
    // Neighbour discovery is about one device (RFC 4861).
    text.push_str("    meta l4proto ipv6-icmp ip6 hoplimit 255 return\n");
    text.push_str("    ip daddr { 169.254.0.0/16, 224.0.0.0/4, 255.255.255.255 } return\n");
    text.push_str("    ip6 daddr { fe80::/10, ff00::/8 } return\n");
    for destination in destinations {
        let family = if destination.addr().is_ipv4() {
            "ip"
        } else {
            "ip6"
        };
        let _ = writeln!(text, "    {family} daddr {destination} goto spread");
    }
    text.push_str("  }\n");
    text.push_str("  chain output {\n    type route hook output priority mangle; policy accept;\n    jump choose\n  }\n");
    text.push_str(
        "  chain prerouting {\n    type filter hook prerouting priority mangle; policy accept;\n    jump choose\n  }\n",
    );
    text.push_str(
        "  chain postrouting {\n    type filter hook postrouting priority mangle; policy accept;\n",
    );
    for link in 0..links {
        let _ = writeln!(
            text,
            "    meta mark {:#x} counter name link{link}",
            mark(link)
        );
    }
    text.push_str("  }\n}\n");
    text
}

/// The transaction that deals turns by `slots`, of IPv4 and of IPv6.
fn turns(slots: [&[u8]; 2]) -> String {
    let mut text = format!("flush chain inet {TABLE} spread\n");
    for (family, slots) in ["ipv4", "ipv6"].into_iter().zip(slots) {
        if slots.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "add rule inet {TABLE} spread meta nfproto {family} meta mark set numgen inc mod {} map {{ ",
            slots.len()
        );
        for (turn, link) in slots.iter().enumerate() {
            let _ = write!(text, "{turn} : {:#x}, ", mark(usize::from(*link)));
        }
        text.push_str("}\n");
    }
    text
}

/// Mark of packets for `link`, and number of its table.
fn mark(link: usize) -> u32 {
    FIRST_MARK + u32::try_from(link).unwrap_or(0)
}

const TABLE: &str = "pleach_equalizer";
/// The letters "pe", apart from the marks of tunnels and proxies.
const FIRST_MARK: u32 = 0x0070_6500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nft_does_not_tell_is_no_zero() {
        let listed = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "inet", "name": "link1", "packets": 3, "bytes": 400}},
            {"counter": {"family": "inet", "name": "link0", "packets": 1, "bytes": 60}}]}"#;
        let found = counters(listed, 2).expect("both");
        assert_eq!(
            found
                .iter()
                .map(|sent| (sent.packets, sent.bytes))
                .collect::<Vec<_>>(),
            [(1, 60), (3, 400)]
        );
        for (listed, links) in [
            (&listed[..], 3),
            (&listed[..70], 2),
            (&b""[..], 1),
            (&b"{}"[..], 1),
        ] {
            assert!(counters(listed, links).is_err());
        }
    }

    #[test]
    fn turns_are_replaced_in_one_transaction() {
        let text = turns([&[0, 0, 1, 0], &[]]);
        assert_eq!(
            text,
            "flush chain inet pleach_equalizer spread\n\
             add rule inet pleach_equalizer spread meta nfproto ipv4 meta mark set numgen inc mod 4 map \
             { 0 : 0x706500, 1 : 0x706500, 2 : 0x706501, 3 : 0x706500, }\n"
        );
    }

    #[test]
    fn only_destinations_are_spread() {
        let destinations = ["10.20.0.0/16", "fd20::/16"].map(|text| text.parse().expect("literal"));
        let text = ruleset(2, &destinations);
        assert_eq!(text.matches("goto spread").count(), 2);
        assert!(text.contains(
            "    ip daddr 10.20.0.0/16 goto spread\n    ip6 daddr fd20::/16 goto spread\n"
        ));
    }
}
