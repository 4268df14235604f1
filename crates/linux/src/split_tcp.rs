//! Redirects TCP connections that would leave through the tunnel to a local port, by an nftables table of its own.
//!
//! The table `inet pleach_NAME_split` has a chain for connections of local programs and one for forwarded connections.
//! Both exclude the tunnel's own networks, and destinations that were excluded for a time ([`Exclusions::add`]).
//! [`crate::redirect::original_destination`] returns the original destination.
//!
//! Starting or stopping the redirection changes only the rules of the chain `pick`. The other chains stay, because the
//! kernel translates the packets of existing connections only as long as a chain of type `nat` exists, and tracks
//! connections only as long as a rule needs it. After a crash the rules match nothing, because they name the tunnel's
//! device. [`Interception::begin`] and [`recover`] remove the table.

use std::{
    fmt::Write as _,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    ops::RangeInclusive,
    path::Path,
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    nft,
    state::{Lock, StateDir},
};

/// Protocols whose connections are redirected. By default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// Connections that are not redirected. A connection must meet both conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// Network of the destination; `None` for any.
    pub network: Option<IpNet>,
    /// Range of ports that contains the source or destination port; `None` for any.
    pub ports: Option<RangeInclusive<u16>>,
}

/// The table of one tunnel, removed when dropped.
#[derive(Debug)]
pub struct Interception {
    tun: String,
    table: String,
    is_undone: bool,
    _lock: Lock,
}

impl Interception {
    /// Creates the table of the tunnel over device `tun`. Nothing is redirected yet.
    ///
    /// `base` is the directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`].
    ///
    /// # Errors
    /// Fails if another process has the table, if the state directory cannot be written, or with the message of `nft`.
    pub fn begin(base: &Path, tun: &str) -> io::Result<Self> {
        let dir = StateDir::open(base)?;
        let Some(lock) = dir.try_lock(&lock_name(tun))? else {
            let text = format!("another process redirects connections of the tunnel {tun}");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        };
        let table = table_name(tun);
        nft::run(&frame(&table, tun))?;
        Ok(Self {
            tun: tun.to_owned(),
            table,
            is_undone: false,
            _lock: lock,
        })
    }

    /// Redirects new connections of `families` to `port`, except connections to one of `own`, the tunnel's networks,
    /// connections that arrive by one of the devices `uplinks` (neighbours on a link are not served), and connections
    /// in `exempt`.
    ///
    /// # Errors
    /// Returns the message of `nft`.
    pub fn redirect(
        &self,
        port: u16,
        families: Families,
        own: &[IpNet],
        uplinks: &[String],
        exempt: &[Exempt],
    ) -> io::Result<()> {
        let returns = returns(&self.table, own, uplinks, exempt);
        nft::run(&rules(&self.table, port, families, &returns))
    }

    /// Restores the table if another program has removed it, for example by `nft flush ruleset`. Returns whether the
    /// table was restored. A restored table excludes no destinations, and redirects no connections before the next
    /// [`Self::redirect`].
    ///
    /// # Errors
    /// Returns the error of the kernel if it cannot be asked whether the table exists, or the message of `nft`.
    pub fn restore(&self) -> io::Result<bool> {
        let is_lost = !nft::exists(&self.table)?;
        if is_lost {
            nft::run(&frame(&self.table, &self.tun))?;
        }
        Ok(is_lost)
    }

    /// Returns a handle by which another thread can exclude destinations.
    #[must_use]
    pub fn exclusions(&self) -> Exclusions {
        Exclusions {
            table: self.table.clone(),
        }
    }

    /// Removes the table.
    ///
    /// # Errors
    /// Returns the message of `nft`.
    pub fn undo(mut self) -> io::Result<()> {
        self.undo_once()
    }

    fn undo_once(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_undone, true) {
            return Ok(());
        }
        remove(&self.tun)
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if let Err(error) = self.undo_once() {
            tracing::error!(%error, "cannot remove the table that redirects connections");
        }
    }
}

/// Excludes destinations from redirection.
#[derive(Clone, Debug)]
pub struct Exclusions {
    table: String,
}

impl Exclusions {
    /// Excludes connections to each of `targets` for the given time. Either all targets are excluded or none.
    ///
    /// # Errors
    /// Returns the message of `nft`, for example if the table is full ([`MAX_EXCLUDED`]).
    pub fn add(&self, targets: &[(SocketAddr, Duration)]) -> io::Result<()> {
        let table = &self.table;
        let mut text = String::new();
        for (target, time) in targets {
            let ip = target.ip().to_canonical();
            let set = if ip.is_ipv4() { "direct4" } else { "direct6" };
            let (port, seconds) = (target.port(), time.as_secs().max(1));
            // An existing element keeps its time limit unless it is deleted first. Adding it first makes sure that the
            // deletion succeeds.
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "add element inet {table} {set} {{ {ip} . {port} timeout {seconds}s }}
delete element inet {table} {set} {{ {ip} . {port} }}
add element inet {table} {set} {{ {ip} . {port} timeout {seconds}s }}
"
            );
        }
        nft::run(&text)
    }
}

/// Removes the table of a crashed process. Does nothing if there is none.
///
/// # Errors
/// Returns [`io::ErrorKind::NotFound`] if the table exists and `nft` is missing. Otherwise returns the message of `nft`.
pub fn recover(tun: &str) -> io::Result<()> {
    nft::clear(&table_name(tun))
}

/// Whether a host may be reached on behalf of a client of a tunnel with the addresses `inner`. It must not be this
/// host, behind the tunnel, link-local, or the metadata service of a cloud.
///
/// An address belongs to this host if a socket can be bound to it. A destination is behind the tunnel if the kernel
/// chooses one of `inner` as the source address. Limit: with `net.ipv4.ip_nonlocal_bind = 1` every address counts as
/// this host's.
///
/// # Errors
/// Fails if there is no route to `target`.
pub fn may_reach(target: IpAddr, inner: &[IpNet]) -> io::Result<bool> {
    let target = target.to_canonical();
    if target.is_unspecified()
        || target.is_loopback()
        || target.is_multicast()
        || nft::is_denied(target)
    {
        return Ok(false);
    }
    if UdpSocket::bind((target, 0)).is_ok() {
        return Ok(false);
    }
    let unbound = if target.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(unbound)?;
    socket.connect((target, DISCARD))?;
    let source = socket.local_addr()?.ip().to_canonical();
    Ok(inner.iter().all(|net| net.addr() != source))
}

fn frame(table: &str, tun: &str) -> String {
    let device = nft::quoted(tun);
    format!(
        "table inet {table}
delete table inet {table}
table inet {table} {{
  set direct4 {{ type ipv4_addr . inet_service; flags timeout; size {MAX_EXCLUDED}; }}
  set direct6 {{ type ipv6_addr . inet_service; flags timeout; size {MAX_EXCLUDED}; }}
  chain tracked {{
    ct state new
  }}
  chain pick {{ }}
  chain own {{
    type nat hook output priority -100; policy accept;
    oifname {device} {FIRST} jump pick
  }}
  chain forwarded {{
    type nat hook prerouting priority -100; policy accept;
    iifname != {device} {FIRST} fib daddr . mark oifname {device} jump pick
  }}
}}
"
    )
}

/// Returns the rules that leave connections alone.
fn returns(table: &str, own: &[IpNet], uplinks: &[String], exempt: &[Exempt]) -> String {
    let daddr = |net: &IpNet| {
        let family = if net.addr().is_ipv4() { "ip" } else { "ip6" };
        format!("{family} daddr {}", net.trunc())
    };
    let uplinks = uplinks
        .iter()
        .map(|device| format!("iifname {}", nft::quoted(device)));
    let exempt = exempt.iter().flat_map(|exempt| {
        let network = exempt.network.as_ref().map(daddr).unwrap_or_default();
        match &exempt.ports {
            None => vec![network],
            Some(ports) => {
                let (first, last) = (ports.start(), ports.end());
                // Before version 1.0.3, nft refuses a range of one port.
                let range = match first == last {
                    true => first.to_string(),
                    false => format!("{first}-{last}"),
                };
                ["dport", "sport"]
                    .map(|side| format!("{network} tcp {side} {range}"))
                    .to_vec()
            }
        }
    });
    let conditions = uplinks.chain(own.iter().map(daddr)).chain(exempt);
    conditions
        .map(|condition| format!("add rule inet {table} pick {condition} return\n"))
        .collect()
}

fn rules(table: &str, port: u16, families: Families, returns: &str) -> String {
    let mut text = format!("flush chain inet {table} pick\n{returns}");
    for (is_redirected, family, protocol, set) in [
        (families.v4, "ip", "ipv4", "direct4"),
        (families.v6, "ip6", "ipv6", "direct6"),
    ] {
        if is_redirected {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "add rule inet {table} pick {family} daddr . tcp dport @{set} return
add rule inet {table} pick meta nfproto {protocol} meta l4proto tcp redirect to :{port}
"
            );
        }
    }
    text
}

fn remove(tun: &str) -> io::Result<()> {
    nft::run(&nft::removal(&table_name(tun)))
}

fn table_name(tun: &str) -> String {
    format!("{}_split", nft::table_name(tun))
}

/// Returns the name of the lock. The colon distinguishes it from the names of tunnels: no device has a colon in its
/// name.
fn lock_name(tun: &str) -> String {
    format!("split:{tun}")
}

/// Condition for the first packet of a connection. A packet in the middle of a connection unknown to the kernel does
/// not match.
const FIRST: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// Highest number of destinations that are excluded at a time, for each of IPv4 and IPv6.
pub const MAX_EXCLUDED: usize = 4096;

/// Port of RFC 863. No datagram is sent to it.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_networks_and_excluded_destinations_come_before_the_redirect() {
        let own = ["10.77.0.2/24", "fd77::2/64"].map(|text| text.parse().expect("literal"));
        let both = Families { v4: true, v6: true };
        let exempt = [
            Exempt {
                network: Some("192.0.2.0/24".parse().expect("literal")),
                ports: Some(80..=90),
            },
            Exempt {
                network: None,
                ports: Some(25..=25),
            },
            Exempt {
                network: None,
                ports: None,
            },
        ];
        let returns = returns("t", &own, &["wan".to_owned()], &exempt);
        let text = rules("t", 1234, both, &returns);
        let at = |part: &str| text.find(part).expect("a rule");
        for (rule, family) in [
            ("ip daddr 10.77.0.0/24 return", "ipv4"),
            ("ip6 daddr fd77::/64 return", "ipv6"),
            ("iifname \"wan\" return", "ipv4"),
            ("ip daddr 192.0.2.0/24 tcp dport 80-90 return", "ipv4"),
            ("ip daddr 192.0.2.0/24 tcp sport 80-90 return", "ipv4"),
            (" tcp dport 25 return", "ipv4"),
            ("pick  return", "ipv6"),
            ("@direct4 return", "ipv4"),
            ("@direct6 return", "ipv6"),
        ] {
            let redirect = at(&format!(
                "nfproto {family} meta l4proto tcp redirect to :1234"
            ));
            assert!(at(rule) < redirect, "{rule}");
        }
        assert!(!rules("t", 1234, Families::default(), &returns).contains("redirect"));
    }

    #[test]
    fn this_host_and_metadata_services_are_not_reached() {
        for denied in [
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "0.0.0.0",
            "::ffff:127.0.0.1",
        ] {
            let target = denied.parse().expect("an address");
            assert!(!may_reach(target, &[]).expect("no look-up"), "{denied}");
        }
    }
}
