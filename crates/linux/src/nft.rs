//! The tunnel's own nftables table: filtering, masquerading, and clamping of the TCP segment size.
//!
//! There is one table per tunnel, `inet pleach_NAME`. It is replaced in one transaction by `nft -f -`, so that no
//! packet sees an incomplete table. Tables of other programs are not changed.
//!
//! - **Inner addresses of this host** are reachable through the tunnel, from the host itself (by `lo` also with a
//!   foreign source, which answers of redirected connections have) and from its containers. Packets to them that arrive
//!   by another device are dropped before anything answers (the rule of wg-quick). Otherwise a neighbour on a link
//!   could find out the inner address, and whether a connection exists (CVE-2019-14899).
//! - **A kill switch** prevents packets that are routed into the tunnel from leaving by any other device, regardless of
//!   other routes: a DHCP server can announce routes that are more specific than the tunnel's (option 121,
//!   CVE-2024-3661). Only the following packets leave: packets with the tunnel's mark, DHCP and neighbour discovery,
//!   packets to the networks that devices are connected to, and packets that another tunnel carries.
//! - **A gateway forwards** packets that come from the tunnel or go into it. If a device did not forward before, no
//!   other packets from it are forwarded, except from and to bridges and tunnels, for which other programs have rules.
//!   Clients cannot reach link-local addresses, the addresses at which clouds provide secrets of the machine, and by
//!   default each other.
//! - **The segment size** is clamped twice: SYNs that leave through the tunnel are clamped to its MTU as known to the
//!   route, and SYNs that come out of it are clamped to the same value, because the answers will pass through the
//!   tunnel. The kernel never raises the option.
//!
//! Two counters, [`BY_LINK`] and [`PAST_TUNNEL`], count dropped packets. They restart when the table is replaced.
//!
//! Limits: a rule that accepts a packet ends only the chain of this table; other tables may still drop the packet.
//! nftables does not see frames that a program writes itself (a packet socket), such as those of a DHCP client.

use std::{collections::BTreeMap, fmt::Write as _, io, net::IpAddr};

use ipnet::IpNet;

pub(crate) use self::presence::exists;
use crate::surroundings::Surroundings;

pub(crate) mod presence;
mod program;

/// Content of a tunnel's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// MTU of the device in bytes.
    pub mtu: u16,
    /// Inner addresses of this host.
    pub addresses: Vec<IpNet>,
    /// Networks of clients whose packets leave with the host's address.
    pub masquerade: Vec<IpNet>,
    /// Forwarding rules of a gateway. `None`: the table has no rules on forwarding.
    pub forward: Option<Forward>,
    /// Kill switch. `None`: no kill switch.
    pub hold: Option<Hold>,
    /// Networks and devices that are exempt from the rules on other devices.
    pub surroundings: Surroundings,
}

/// Forwarding rules of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Whether clients cannot reach each other.
    pub isolate: bool,
    /// IPv4 packets that are forwarded although they neither come from the tunnel nor go into it.
    pub others_v4: Others,
    /// IPv6 packets that are forwarded although they neither come from the tunnel nor go into it.
    pub others_v6: Others,
}

/// Devices from which other packets are forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// All devices.
    #[default]
    All,
    /// All devices except these.
    AllBut(Vec<String>),
    /// Only these devices.
    Only(Vec<String>),
}

/// A kill switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Mark of the tunnel's own packets.
    pub mark: u32,
    /// Networks that are routed into the tunnel.
    pub routes: Vec<IpNet>,
}

/// Checks that this host supports nftables tables. Changes nothing.
///
/// # Errors
/// Returns [`io::ErrorKind::NotFound`], with the remedy in the text, if `nft` is missing. Returns the message of `nft`
/// if the kernel does not support tables.
pub fn probe() -> io::Result<()> {
    // No device name contains a colon, so no table is removed.
    remove(":")
}

/// Creates or replaces the table of the tunnel over device `tun`.
///
/// # Errors
/// Returns [`io::ErrorKind::NotFound`], with the remedy in the text, if `nft` is missing. Otherwise returns the message
/// of `nft`.
pub fn apply(tun: &str, rules: &Rules) -> io::Result<()> {
    run(&ruleset(tun, rules))
}

/// Updates the surroundings in the table of the tunnel over device `tun`.
///
/// # Errors
/// Fails if there is no such table. Otherwise returns the errors of [`apply`].
pub fn update(tun: &str, surroundings: &Surroundings) -> io::Result<()> {
    let table = table_name(tun);
    let mut script = String::new();
    for (set, elements) in sets(surroundings) {
        // Writing to a string cannot fail.
        let _ = writeln!(script, "flush set inet {table} {set}");
        if !elements.is_empty() {
            let _ = writeln!(
                script,
                "add element inet {table} {set} {{ {} }}",
                elements.join(", ")
            );
        }
    }
    run(&script)
}

/// Returns the number of packets that the rules of the tunnel over device `tun` have dropped, by counter.
///
/// # Errors
/// Fails if there is no such table, or `nft` is missing.
pub fn counters(tun: &str) -> io::Result<BTreeMap<String, u64>> {
    let arguments = ["list", "counters", "table", "inet", &table_name(tun)];
    let output = program::nft(&arguments, "")?;
    Ok(parse_counters(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses all occurrences of `counter NAME { packets N bytes N }`.
fn parse_counters(text: &str) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let mut name = None;
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        if word == "counter" {
            name = words.next();
        } else if word == "packets"
            && let Some(name) = name
            && let Some(count) = words.next().and_then(|count| count.parse().ok())
        {
            counters.insert(name.to_owned(), count);
        }
    }
    counters
}

/// Returns the sets of a table, with their elements.
fn sets(surroundings: &Surroundings) -> [(&'static str, Vec<String>); 3] {
    let local = |is_v6| {
        let networks = surroundings.local.iter();
        let of_family = networks.filter(move |network| network.addr().is_ipv6() == is_v6);
        of_family.map(ToString::to_string).collect()
    };
    let containers = surroundings.containers.iter();
    [
        ("containers", containers.map(|name| quoted(name)).collect()),
        ("local_v4", local(false)),
        ("local_v6", local(true)),
    ]
}

/// Removes the table of the tunnel over device `tun`. Does nothing if there is none.
///
/// # Errors
/// Returns an error with the remedy in the text if `nft` is missing. Otherwise returns the message of `nft`.
pub fn remove(tun: &str) -> io::Result<()> {
    run(&removal(&table_name(tun)))
}

/// Returns the script that removes a table. The script adds the table first, so that deleting it cannot fail if there
/// is none.
pub(crate) fn removal(table: &str) -> String {
    format!("table inet {table}\ndelete table inet {table}\n")
}

/// Removes the table `inet TABLE` of a process that has ended. Does nothing, and does not run `nft`, if the kernel has
/// no such table.
///
/// # Errors
/// Returns [`io::ErrorKind::NotFound`], with the remedy in the text, if the kernel has the table and `nft` is missing.
/// Otherwise returns the message of `nft`.
pub(crate) fn clear(table: &str) -> io::Result<()> {
    match exists(table) {
        Ok(false) => return Ok(()),
        Err(error) if presence::is_without_tables(&error) => return Ok(()),
        // If the kernel does not say, `nft` finds out.
        Ok(true) | Err(_) => {}
    }
    run(&removal(table)).map_err(|error| {
        let text = format!("the nftables table inet {table} stays in force: {error}");
        io::Error::new(error.kind(), text)
    })
}

/// Whether the transaction of a failed `nft` certainly changed nothing: `nft` was not found or refused the transaction.
/// A killed `nft` can have completed the transaction.
pub(crate) fn has_changed_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Other)
}

/// Returns the name of the table: every character that nft does not permit in a name becomes `_xx`, its hexadecimal
/// code.
#[must_use]
pub fn table_name(tun: &str) -> String {
    let mut name = String::from("pleach_");
    for byte in tun.bytes() {
        if byte.is_ascii_alphanumeric() {
            name.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(name, "_{byte:02x}");
        }
    }
    name
}

fn ruleset(tun: &str, rules: &Rules) -> String {
    let table = table_name(tun);
    let device = quoted(tun);
    let (v4, v6) = (rules.mtu.saturating_sub(40), rules.mtu.saturating_sub(60));
    let mut text = format!(
        "table inet {table}
delete table inet {table}
table inet {table} {{
  counter {BY_LINK} {{ }}
  counter {PAST_TUNNEL} {{ }}
"
    );
    // Writing to a string cannot fail.
    for ((set, elements), kind) in sets(&rules.surroundings).into_iter().zip([
        "type ifname;",
        "type ipv4_addr; flags interval; auto-merge;",
        "type ipv6_addr; flags interval; auto-merge;",
    ]) {
        let elements = if elements.is_empty() {
            String::new()
        } else {
            format!(" elements = {{ {} }}", elements.join(", "))
        };
        let _ = writeln!(text, "  set {set} {{ {kind}{elements} }}");
    }
    let _ = write!(
        text,
        "  chain forward {{
    type filter hook forward priority mangle; policy accept;
    oifname {device} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    iifname {device} meta nfproto ipv4 tcp flags & (syn | rst) == syn tcp option maxseg size set {v4}
    iifname {device} meta nfproto ipv6 tcp flags & (syn | rst) == syn tcp option maxseg size set {v6}
  }}
"
    );
    if !rules.addresses.is_empty() {
        text.push_str(
            "  chain preraw {\n    type filter hook prerouting priority raw; policy accept;\n",
        );
        for address in &rules.addresses {
            let (family, address) = (family(address), address.addr());
            let _ = writeln!(
                text,
                "    iifname != {{ \"lo\", {device} }} iifname != @containers {family} daddr {address} fib saddr type != local counter name {BY_LINK} drop"
            );
        }
        text.push_str("  }\n");
    }
    if let Some(hold) = &rules.hold {
        text.push_str(&kill_switch(&device, hold));
    }
    if let Some(forward) = &rules.forward {
        text.push_str(&may_forward(&device, forward));
    }
    if !rules.masquerade.is_empty() {
        text.push_str("  chain postrouting {\n    type nat hook postrouting priority srcnat; policy accept;\n");
        for network in &rules.masquerade {
            let (family, network) = (family(network), network.trunc());
            let _ = writeln!(
                text,
                "    oifname != {device} {family} saddr {network} masquerade"
            );
        }
        text.push_str("  }\n");
    }
    text.push_str("}\n");
    text
}

/// Returns the chain that drops packets for the tunnel if they would leave by another device.
fn kill_switch(device: &str, hold: &Hold) -> String {
    let mark = hold.mark;
    let mut text = format!(
        "  chain kill_switch {{
    type filter hook postrouting priority filter; policy accept;
    oifname {{ \"lo\", {device} }} accept
    meta mark {mark:#x} accept
    meta oifkind {{ {TUNNELS} }} accept
    ip daddr {{ 169.254.0.0/16, 224.0.0.0/24, 239.255.0.0/16, 255.255.255.255 }} accept
    ip6 daddr {{ fe80::/10, ff02::/16 }} accept
    ip daddr @local_v4 accept
    ip6 daddr @local_v6 accept
    udp sport 68 udp dport 67 accept
    udp sport 546 udp dport 547 accept
    icmpv6 type {{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }} accept
"
    );
    // Each network has a separate rule, because prefixes of a set must not overlap.
    for network in &hold.routes {
        let (family, network) = (family(network), network.trunc());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    {family} daddr {network} counter name {PAST_TUNNEL} drop"
        );
    }
    text.push_str("  }\n");
    text
}

/// Returns the chain that controls forwarding.
fn may_forward(device: &str, forward: &Forward) -> String {
    let mut text = format!(
        "  chain may_forward {{
    type filter hook forward priority filter; policy accept;
    iifname {device} ip daddr {{ {DENIED_V4} }} drop
    iifname {device} ip6 daddr {{ {DENIED_V6} }} drop
"
    );
    if forward.isolate {
        let _ = writeln!(text, "    iifname {device} oifname {device} drop");
    }
    let others = [("ipv4", &forward.others_v4), ("ipv6", &forward.others_v6)];
    if others.iter().any(|(_, others)| **others != Others::All) {
        let _ = write!(
            text,
            "    iifname {device} accept
    oifname {device} accept
    meta iifkind {{ \"bridge\", {TUNNELS} }} accept
    meta oifkind {{ \"bridge\", {TUNNELS} }} accept
"
        );
    }
    for (family, others) in others {
        let (devices, verdict) = match others {
            Others::All => continue,
            Others::AllBut(devices) => (devices, "drop"),
            Others::Only(devices) => (devices, "accept"),
        };
        if !devices.is_empty() {
            let names: Vec<String> = devices.iter().map(|name| quoted(name)).collect();
            let names = names.join(", ");
            let _ = writeln!(
                text,
                "    iifname {{ {names} }} meta nfproto {family} {verdict}"
            );
        }
        if matches!(others, Others::Only(_)) {
            let _ = writeln!(text, "    meta nfproto {family} drop");
        }
    }
    text.push_str("  }\n");
    text
}

fn family(network: &IpNet) -> &'static str {
    if network.addr().is_ipv4() {
        "ip"
    } else {
        "ip6"
    }
}

/// Name of the counter of packets to an inner address that arrived by a link.
pub const BY_LINK: &str = "inner_address_by_link";
/// Name of the counter of packets for the tunnel that were about to leave by another device.
pub const PAST_TUNNEL: &str = "past_kill_switch";
/// Kinds of devices that carry packets inside other packets.
const TUNNELS: &str = r#""geneve", "gre", "ip6gre", "ip6tnl", "ipip", "sit", "tun", "vti", "vti6", "vxlan", "wireguard", "xfrm""#;
/// Link-local addresses, which include the metadata service of most clouds, and the metadata addresses of Alibaba and
/// Azure.
const DENIED_V4: &str = "169.254.0.0/16, 100.100.100.200, 168.63.129.16";
/// Link-local addresses, and the metadata addresses of AWS and Google.
const DENIED_V6: &str = "fe80::/10, fd00:ec2::254, fd20:ce::254";

/// Returns the link-local networks and the addresses of the metadata services of clouds, which hand out credentials.
pub fn denied() -> impl Iterator<Item = IpNet> {
    [DENIED_V4, DENIED_V6]
        .into_iter()
        .flat_map(|list| list.split(", "))
        .filter_map(|text| {
            let net = text.parse::<IpNet>();
            net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .ok()
        })
}

/// Whether clients of a gateway cannot reach `ip`, because it is link-local or the address of a metadata service.
pub(crate) fn is_denied(ip: IpAddr) -> bool {
    denied().any(|net| net.contains(&ip))
}

/// Quotes a device name. Quotes in the name are removed, because they would end the string.
pub(crate) fn quoted(tun: &str) -> String {
    format!("\"{}\"", tun.replace(['"', '\n', '\\'], ""))
}

/// Runs `script` as one transaction.
pub(crate) fn run(script: &str) -> io::Result<()> {
    program::nft(&["-f", "-"], script).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_are_valid_and_differ() {
        assert_eq!(table_name("pleach0"), "pleach_pleach0");
        assert_eq!(table_name("a-b.c"), "pleach_a_2db_2ec");
        assert_ne!(table_name("a-b"), table_name("a.b"));
    }

    #[test]
    fn ruleset_masquerades_only_what_was_asked() {
        let mut rules = Rules {
            mtu: 1400,
            ..Rules::default()
        };
        let none = ruleset("t0", &rules);
        assert!(!none.contains("masquerade") && !none.contains("drop"));
        assert!(none.contains("size set 1360") && none.contains("size set 1340"));
        rules.masquerade = ["10.77.0.1/24", "fd77::1/64"]
            .map(|text| text.parse().expect("literal"))
            .into();
        let both = ruleset("t0", &rules);
        assert!(both.contains("oifname != \"t0\" ip saddr 10.77.0.0/24 masquerade"));
        assert!(both.contains("oifname != \"t0\" ip6 saddr fd77::/64 masquerade"));
    }

    #[test]
    fn ruleset_closes_what_was_asked() {
        let closed = |isolate, others_v4, others_v6| {
            ruleset(
                "t0",
                &Rules {
                    addresses: vec!["10.77.0.1/24".parse().expect("literal")],
                    forward: Some(Forward {
                        isolate,
                        others_v4,
                        others_v6,
                    }),
                    ..Rules::default()
                },
            )
        };
        let all = closed(true, Others::Only(vec!["br0".to_owned()]), Others::All);
        assert!(all.contains(
            "iifname != { \"lo\", \"t0\" } iifname != @containers ip daddr 10.77.0.1 fib saddr type != local counter"
        ));
        assert!(all.contains("iifname \"t0\" oifname \"t0\" drop"));
        assert!(all.contains("iifname { \"br0\" } meta nfproto ipv4 accept"));
        assert!(all.contains("    meta nfproto ipv4 drop"));
        assert!(!all.contains("nfproto ipv6 drop") && !all.contains("nfproto ipv6 accept"));
        let but = closed(false, Others::All, Others::AllBut(vec!["eth0".to_owned()]));
        assert!(but.contains("iifname { \"eth0\" } meta nfproto ipv6 drop"));
        assert!(!but.contains("nfproto ipv4 drop") && !but.contains("nfproto ipv4 accept"));
        let open = closed(false, Others::All, Others::All);
        assert!(open.contains("169.254.0.0/16"));
        assert!(!open.contains("oifname \"t0\" drop") && !open.contains("nfproto ipv4 drop"));
    }

    #[test]
    fn all_that_is_denied_is_a_network() {
        let texts = [DENIED_V4, DENIED_V6].map(|list| list.split(", ").count());
        assert_eq!(denied().count(), texts.iter().sum::<usize>());
        assert!(is_denied([100, 100, 100, 200].into()) && !is_denied([100, 100, 100, 201].into()));
    }

    #[test]
    fn counters_are_read_by_name() {
        let text = "table inet pleach_t0 {\n\tcounter a {\n\t\tpackets 7 bytes 588\n\t}\n\n\tcounter b {\n\t\tpackets 0 bytes 0\n\t}\n}\n";
        let expected = BTreeMap::from([("a".to_owned(), 7), ("b".to_owned(), 0)]);
        assert_eq!(parse_counters(text), expected);
        assert!(parse_counters("counter packets x packets").is_empty());
    }
}
