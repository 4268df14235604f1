//! The tunnel's own nftables table: what may pass, masquerading, and clamping of the TCP segment size.
//!
//! One table per tunnel, `inet pleach_NAME`, replaced in one transaction by `nft -f -`, so that no packet sees half of
//! it. Nothing is put into tables of others.
//!
//! - **Inner addresses of this host** are reached through the tunnel and from the host itself; by `lo` also with a foreign source,
//!   which answers of redirected connections have. What comes for them by another
//!   device is dropped before anything answers (the rule of wg-quick): else a neighbour on a link finds out the inner address, and
//!   whether a connection exists (CVE-2019-14899).
//! - **A gateway forwards** what comes from the tunnel or goes into it. Where it was the tunnel that switched forwarding on, nothing
//!   else is forwarded, except from and to tunnels and bridges, for which others have rules. Clients do not reach link-local
//!   addresses nor those at which clouds answer with secrets of the machine, and by default not each other.
//! - **The segment size** is clamped twice: SYNs that leave through the tunnel to its MTU as the route knows it, SYNs that
//!   come out of it to the same, because the answer will go through. The kernel never raises the option.
//!
//! Limit: a rule that accepts a packet ends this table's chain only; other tables may drop it still.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
    process::{Command, Stdio},
};

use ipnet::IpNet;

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
}

/// What a gateway forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Clients do not reach each other.
    pub isolate: bool,
    /// Nothing is forwarded that neither comes from the tunnel nor goes into it: IPv4, IPv6.
    pub nothing_else: [bool; 2],
}

/// Makes or replaces the table of the tunnel over device `tun`.
///
/// # Errors
/// With the remedy in the text, and [`io::ErrorKind::NotFound`], if `nft` is missing; else what `nft` says.
pub fn apply(tun: &str, rules: &Rules) -> io::Result<()> {
    run(&ruleset(tun, rules))
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
  chain forward {{
    type filter hook forward priority mangle; policy accept;
    oifname {device} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    iifname {device} meta nfproto ipv4 tcp flags & (syn | rst) == syn tcp option maxseg size set {v4}
    iifname {device} meta nfproto ipv6 tcp flags & (syn | rst) == syn tcp option maxseg size set {v6}
  }}
"
    );
    // Writing to a string cannot fail.
    if !rules.addresses.is_empty() {
        text.push_str(
            "  chain preraw {\n    type filter hook prerouting priority raw; policy accept;\n",
        );
        for address in &rules.addresses {
            let (family, address) = (family(address), address.addr());
            let _ = writeln!(
                text,
                "    iifname != {{ \"lo\", {device} }} {family} daddr {address} fib saddr type != local drop"
            );
        }
        text.push_str("  }\n");
    }
    if let Some(forward) = rules.forward {
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

/// The chain that says what is forwarded.
fn may_forward(device: &str, forward: Forward) -> String {
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
    if forward.nothing_else != [false; 2] {
        let _ = write!(
            text,
            "    iifname {device} accept
    oifname {device} accept
    meta iifkind {{ \"tun\", \"bridge\" }} accept
    meta oifkind {{ \"tun\", \"bridge\" }} accept
"
        );
        for (family, is_closed) in ["ipv4", "ipv6"].into_iter().zip(forward.nothing_else) {
            if is_closed {
                let _ = writeln!(text, "    meta nfproto {family} drop");
            }
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
        let closed = |isolate, nothing_else| {
            ruleset(
                "t0",
                &Rules {
                    addresses: vec!["10.77.0.1/24".parse().expect("literal")],
                    forward: Some(Forward {
                        isolate,
                        nothing_else,
                    }),
                    ..Rules::default()
                },
            )
        };
        let all = closed(true, [true, false]);
        assert!(all.contains(
            "iifname != { \"lo\", \"t0\" } ip daddr 10.77.0.1 fib saddr type != local drop"
        ));
        assert!(all.contains("iifname \"t0\" oifname \"t0\" drop"));
        assert!(all.contains("meta nfproto ipv4 drop") && !all.contains("nfproto ipv6 drop"));
        let open = closed(false, [false; 2]);
        assert!(open.contains("169.254.0.0/16"));
        assert!(!open.contains("oifname \"t0\" drop") && !open.contains("nfproto ipv4 drop"));
    }
}
