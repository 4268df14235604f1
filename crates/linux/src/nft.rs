//! The tunnel's own nftables table: what may pass, masquerading, and clamping of the TCP segment size.
//!
//! One table per tunnel, `inet pleach_NAME`, replaced in one transaction by `nft -f -`, so that no packet sees half of
//! it. Nothing is put into tables of others.
//!
//! - **Inner addresses of this host** are reached through the tunnel, from the host itself (by `lo` also with a foreign
//!   source, which answers of redirected connections have) and from its containers. What comes for them by another device is dropped before anything answers (the rule of wg-quick): else a neighbour on a link finds out the
//!   inner address, and whether a connection exists (CVE-2019-14899).
//! - **A kill switch** keeps what is routed into the tunnel off every other device, whatever routes there are: a DHCP server can
//!   announce routes that are more specific than the tunnel's (option 121, CVE-2024-3661). Only these leave: packets with the
//!   tunnel's mark, DHCP and neighbour discovery, what goes to the networks that devices are connected to, and what another
//!   tunnel carries.
//! - **A gateway forwards** what comes from the tunnel or goes into it. From a device that did not forward before, nothing
//!   else is forwarded, except from and to bridges and tunnels, for which others have rules. Clients do not reach link-local
//!   addresses nor those at which clouds answer with secrets of the machine, and by default not each other.
//! - **The segment size** is clamped twice: SYNs that leave through the tunnel to its MTU as the route knows it, SYNs that
//!   come out of it to the same, because the answer will go through. The kernel never raises the option.
//!
//! Two counters, [`BY_LINK`] and [`PAST_TUNNEL`], count what is dropped. They start anew when the table is replaced.
//!
//! Limits: a rule that accepts a packet ends this table's chain only; other tables may drop it still. A program that writes frames
//! itself (a packet socket), such as a DHCP client, is not seen by nftables.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
    process::{Command, Stdio},
};

use ipnet::IpNet;

use crate::surroundings::Surroundings;

/// What the table of a tunnel says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// MTU of the device in bytes.
    pub mtu: u16,
    /// This host's inner addresses.
    pub addresses: Vec<IpNet>,
    /// Networks of clients whose packets leave with the host's address.
    pub masquerade: Vec<IpNet>,
    /// What a gateway forwards; `None`: the host's own affair.
    pub forward: Option<Forward>,
    /// What goes no other way than through the tunnel; `None`: no kill switch.
    pub hold: Option<Hold>,
    /// What is exempt from the rules on other devices.
    pub surroundings: Surroundings,
}

/// What a gateway forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Clients do not reach each other.
    pub isolate: bool,
    /// Which IPv4 packets are forwarded that neither come from the tunnel nor go into it.
    pub others_v4: Others,
    /// The same of IPv6.
    pub others_v6: Others,
}

/// From which devices packets of others are forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// From all.
    #[default]
    All,
    /// From all but these.
    AllBut(Vec<String>),
    /// From these only.
    Only(Vec<String>),
}

/// A kill switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// The mark of the tunnel's own packets.
    pub mark: u32,
    /// What is routed into the tunnel.
    pub routes: Vec<IpNet>,
}

/// Makes or replaces the table of the tunnel over device `tun`.
///
/// # Errors
/// With the remedy in the text, and [`io::ErrorKind::NotFound`], if `nft` is missing; else what `nft` says.
pub fn apply(tun: &str, rules: &Rules) -> io::Result<()> {
    run(&ruleset(tun, rules))
}

/// Tells the table of the tunnel over device `tun` that its surroundings are others now.
///
/// # Errors
/// There is no such table; else as [`apply`].
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

/// What the rules of the tunnel over device `tun` have dropped, by counter, in packets.
///
/// # Errors
/// There is no such table; `nft` is missing.
pub fn counters(tun: &str) -> io::Result<BTreeMap<String, u64>> {
    let output = Command::new("nft")
        .args(["list", "counters", "table", "inet", &table_name(tun)])
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("nft: {}", text.trim())));
    }
    Ok(parse_counters(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads `counter NAME { packets N bytes N }`, as often as it comes.
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

/// The sets of a table, with their elements.
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

/// Removes the table of the tunnel over device `tun`; no error if there is none.
///
/// # Errors
/// With the remedy in the text if `nft` is missing; else what `nft` says.
pub fn remove(tun: &str) -> io::Result<()> {
    let table = table_name(tun);
    // Adding first makes deleting safe when there is none.
    run(&format!("table inet {table}\ndelete table inet {table}\n"))
}

/// The name of the table: every character that nft does not take in a name becomes `_xx`, its hexadecimal code.
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

/// The chain that keeps on the host what is for the tunnel.
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
    // One rule each, because prefixes of a set must not overlap.
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

/// The chain that says what is forwarded.
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

/// Counts packets to an inner address that came by a link.
pub const BY_LINK: &str = "inner_address_by_link";
/// Counts packets that were for the tunnel and about to leave by another device.
pub const PAST_TUNNEL: &str = "past_kill_switch";
/// Kinds of devices that carry packets inside others.
const TUNNELS: &str = r#""geneve", "gre", "ip6gre", "ip6tnl", "ipip", "sit", "tun", "vti", "vti6", "vxlan", "wireguard", "xfrm""#;
/// Link-local addresses, among them the metadata service of most clouds, and those of Alibaba and Azure.
const DENIED_V4: &str = "169.254.0.0/16, 100.100.100.200, 168.63.129.16";
/// Link-local addresses, and the metadata services of AWS and Google.
const DENIED_V6: &str = "fe80::/10, fd00:ec2::254, fd20:ce::254";

/// Whether clients of a gateway do not reach `ip`: it is link-local, or the address of a metadata service.
pub(crate) fn is_denied(ip: IpAddr) -> bool {
    let list = if ip.is_ipv4() { DENIED_V4 } else { DENIED_V6 };
    list.split(", ").any(|denied| {
        let net = denied.parse::<IpNet>();
        net.or_else(|_| denied.parse::<IpAddr>().map(IpNet::from))
            .is_ok_and(|net| net.contains(&ip))
    })
}

/// Device names cannot hold a quote here: it would end the string.
pub(crate) fn quoted(tun: &str) -> String {
    format!("\"{}\"", tun.replace(['"', '\n', '\\'], ""))
}

/// Runs `script` as one transaction.
pub(crate) fn run(script: &str) -> io::Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let text = format!("cannot run nft: {error}; install the package nftables");
            io::Error::new(error.kind(), text)
        })?;
    // A write that fails shows in the exit status.
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        let _ = input.write_all(script.as_bytes());
    }
    drop(input);
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("nft: {}", text.trim())))
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
    fn counters_are_read_by_name() {
        let text = "table inet pleach_t0 {\n\tcounter a {\n\t\tpackets 7 bytes 588\n\t}\n\n\tcounter b {\n\t\tpackets 0 bytes 0\n\t}\n}\n";
        let expected = BTreeMap::from([("a".to_owned(), 7), ("b".to_owned(), 0)]);
        assert_eq!(parse_counters(text), expected);
        assert!(parse_counters("counter packets x packets").is_empty());
    }
}
