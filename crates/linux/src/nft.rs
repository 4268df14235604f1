//! The tunnel's own nftables table: masquerading and clamping of the TCP segment size.
//!
//! One table per tunnel, `inet pleach_NAME`, replaced in one transaction by `nft -f -`, so that no packet sees half of
//! it. Nothing is put into tables of others.
//!
//! The segment size is clamped twice: SYNs that leave through the tunnel to its MTU as the route knows it, SYNs that
//! come out of it to the same, because the answer will go through. The kernel never raises the option.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::{Command, Stdio},
};

use ipnet::IpNet;

/// Makes or replaces the table of the tunnel over device `tun`.
///
/// `mtu`: of the device, in bytes. `masquerade`: networks of clients whose packets leave with the host's address.
///
/// # Errors
/// With the remedy in the text if `nft` is missing; else what `nft` says.
pub fn apply(tun: &str, mtu: u16, masquerade: &[IpNet]) -> io::Result<()> {
    run(&ruleset(tun, mtu, masquerade))
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

fn ruleset(tun: &str, mtu: u16, masquerade: &[IpNet]) -> String {
    let table = table_name(tun);
    let device = quoted(tun);
    let (v4, v6) = (mtu.saturating_sub(40), mtu.saturating_sub(60));
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
    if !masquerade.is_empty() {
        text.push_str("  chain postrouting {\n    type nat hook postrouting priority srcnat; policy accept;\n");
        for network in masquerade {
            let network = network.trunc();
            let family = if network.addr().is_ipv4() {
                "ip"
            } else {
                "ip6"
            };
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
        let none = ruleset("t0", 1400, &[]);
        assert!(!none.contains("masquerade"));
        assert!(none.contains("size set 1360") && none.contains("size set 1340"));
        let networks = ["10.77.0.1/24", "fd77::1/64"].map(|text| text.parse().expect("literal"));
        let both = ruleset("t0", 1400, &networks);
        assert!(both.contains("oifname != \"t0\" ip saddr 10.77.0.0/24 masquerade"));
        assert!(both.contains("oifname != \"t0\" ip6 saddr fd77::/64 masquerade"));
    }
}
