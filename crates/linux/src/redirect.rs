//! Redirects TCP connections and UDP datagrams of this host, and those that it forwards, to local ports, by an nftables
//! table of its own.
//!
//! The table `inet pleach_proxy_PORT` has two chains for TCP: `output` for connections of local programs, and
//! `prerouting` for forwarded connections. Both exclude packets with the proxy's own mark (to prevent loops), and
//! packets to this host, to directly connected networks (which other links do not reach), and to multicast addresses.
//! [`original_destination`] returns the original destination.
//!
//! Datagrams keep their destination ([`divert`]). The chains `divert_output` and `divert_prerouting` exclude the same
//! packets, and answers to datagrams that came from outside. Datagrams of local programs are also excluded if they have
//! any mark, because programs that set marks, such as VPNs, choose their routes themselves.
//!
//! Changes are recorded in a file before they are made ([`crate::state`]). [`Redirect::undo`], or dropping the value,
//! removes the table, rules and routes. [`Redirect::begin`] first removes those of a crashed process.

pub mod divert;

use std::{fmt::Write as _, io, net::SocketAddr, os::fd::AsFd, path::Path};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use socket2::SockRef;

use crate::{
    nft,
    state::{Lock, StateDir},
};

/// A proxy's redirect, undone when dropped.
#[derive(Debug)]
pub struct Redirect {
    name: String,
    table: String,
    /// Port of the proxy, which distinguishes the changes of several proxies.
    proxy: u16,
    dir: StateDir,
    is_undone: bool,
    _lock: Lock,
}

/// Ports to which packets are redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Port for connections.
    pub tcp: u16,
    /// Port for datagrams. `None`: datagrams are not diverted.
    pub udp: Option<u16>,
}

/// Changes of a proxy to the host.
#[derive(Debug, Serialize, Deserialize)]
struct RedirectState {
    table: String,
}

impl Redirect {
    /// Reserves the redirect to `port`, and removes the remains of a crashed process.
    ///
    /// `base` is the directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`].
    ///
    /// # Errors
    /// Fails if a proxy already has the redirect to that port, if the state cannot be written, or if `nft` is missing.
    pub fn begin(base: &Path, port: u16) -> io::Result<Self> {
        let dir = StateDir::open(base)?;
        let name = lock_name(port);
        let Some(lock) = dir.try_lock(&name)? else {
            let text = format!("another proxy redirects to port {port}: stop it first");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        };
        let table = table_name(port);
        if dir.read::<RedirectState>(&state_file(&name)).is_some() {
            tracing::info!(table, "clearing what a crashed process left");
        }
        // The table is removed even if the file is lost, because its name is reserved for this proxy.
        remove(&table)?;
        divert::remove_routes(port)?;
        let state = RedirectState {
            table: table.clone(),
        };
        dir.write(&state_file(&name), &state)?;
        Ok(Self {
            name,
            table,
            proxy: port,
            dir,
            is_undone: false,
            _lock: lock,
        })
    }

    /// Adds the rules and routes that datagrams need, before [`Self::apply`] diverts them.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn prepare_divert(&self) -> io::Result<()> {
        divert::add_routes(self.proxy)
    }

    /// Redirects all connections to a port, and diverts datagrams to another, except packets with `mark`, packets to
    /// one of `direct`, and packets that arrive by one of the devices `uplinks`. Connections that arrive by an uplink
    /// come from outside and do not concern the proxy. Replaces the previous rules in one step.
    ///
    /// # Errors
    /// Returns the message of `nft`.
    pub fn apply(
        &self,
        ports: Ports,
        mark: u32,
        direct: &[IpNet],
        uplinks: &[String],
    ) -> io::Result<()> {
        let divert = ports
            .udp
            .map(|port| divert_chains(port, divert::mark(self.proxy), mark, direct, uplinks));
        let divert = divert.unwrap_or_default();
        nft::run(&ruleset(
            &self.table,
            ports.tcp,
            mark,
            direct,
            uplinks,
            &divert,
        ))
    }

    /// Removes the redirect.
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
        remove(&self.table)?;
        divert::remove_routes(self.proxy)?;
        self.dir.remove(&state_file(&self.name))
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        if let Err(error) = self.undo_once() {
            tracing::error!(%error, "cannot undo the redirect");
        }
    }
}

/// Removes the remains of a crashed proxy on `port`, if any. Otherwise connections would be redirected to a port
/// without a listener and fail.
///
/// # Errors
/// Fails if the remains cannot be removed.
pub fn recover(base: &Path, port: u16) -> io::Result<()> {
    // A process that may not write to this directory has left nothing there either.
    let Ok(dir) = StateDir::open(base) else {
        return Ok(());
    };
    let file = state_file(&lock_name(port));
    if dir.read::<RedirectState>(&file).is_none() {
        return Ok(());
    }
    match Redirect::begin(base, port) {
        Ok(redirect) => redirect.undo(),
        // The proxy is running.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the original destination of a redirected connection. `None` if the connection was not redirected.
pub fn original_destination(stream: impl AsFd) -> Option<SocketAddr> {
    let socket = SockRef::from(&stream);
    let local = socket.local_addr().ok()?.as_socket()?;
    let v4 = || socket.original_dst_v4().ok()?.as_socket();
    let v6 = || socket.original_dst_v6().ok()?.as_socket();
    let is_v4 = local.ip().to_canonical().is_ipv4();
    let original = if is_v4 { v4() } else { v6() }?;
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    (canonical(original) != canonical(local)).then_some(original)
}

fn ruleset(
    table: &str,
    port: u16,
    mark: u32,
    direct: &[IpNet],
    uplinks: &[String],
    divert: &str,
) -> String {
    let leave = format!(
        "    meta mark {mark:#x} return\n{}",
        exempt_destinations(direct)
    );
    let inbound = exempt_devices(uplinks);
    format!(
        "table inet {table}
delete table inet {table}
table inet {table} {{
  chain output {{
    type nat hook output priority -100; policy accept;
{leave}    meta l4proto tcp redirect to :{port}
  }}
  chain prerouting {{
    type nat hook prerouting priority -100; policy accept;
{inbound}{leave}    meta l4proto tcp redirect to :{port}
  }}
{divert}}}
"
    )
}

/// Returns the chains that divert datagrams to `port`. `divert` is the mark that leads them there, and `own` the mark
/// of the proxy's own datagrams.
fn divert_chains(port: u16, divert: u32, own: u32, direct: &[IpNet], uplinks: &[String]) -> String {
    // A datagram that answers an outside client must leave by the link of that client. Without connection tracking, answers
    // are not known. DHCP belongs to one device.
    let leave = format!(
        "    meta l4proto != udp return\n    ct direction reply return\n    ct state untracked return\n    \
         udp sport {{ 68, 546 }} return\n    udp dport {{ 67, 547 }} return\n{}",
        exempt_destinations(direct)
    );
    let inbound = exempt_devices(uplinks);
    format!(
        "  chain divert_output {{
    type route hook output priority mangle; policy accept;
    meta mark != 0 return
{leave}    meta mark set {divert:#x}
  }}
  chain divert_prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    meta mark {own:#x} return
{inbound}{leave}    meta l4proto udp tproxy to :{port} meta mark set {divert:#x} accept
  }}
"
    )
}

/// Returns rules for destinations that are not redirected.
fn exempt_destinations(direct: &[IpNet]) -> String {
    let mut text =
        "    fib daddr type { local, broadcast, multicast, anycast } return\n".to_owned();
    for net in direct {
        let family = if net.addr().is_ipv4() { "ip" } else { "ip6" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {family} daddr {} return", net.trunc());
    }
    text
}

/// Returns rules for devices whose packets come from outside.
fn exempt_devices(uplinks: &[String]) -> String {
    let mut text = String::new();
    for device in uplinks {
        let device = nft::quoted(device);
        let _ = writeln!(text, "    iifname {device} return");
    }
    text
}

fn remove(table: &str) -> io::Result<()> {
    // The table is added first, so that deleting it cannot fail because it does not exist.
    nft::run(&format!("table inet {table}\ndelete table inet {table}\n"))
}

fn table_name(port: u16) -> String {
    format!("pleach_proxy_{port}")
}

/// Returns the name of the lock. The colon distinguishes it from the names of tunnels: no device has a colon in its
/// name.
fn lock_name(port: u16) -> String {
    format!("proxy:{port}")
}

fn state_file(name: &str) -> String {
    // The name does not end in `.state`, because tunnels look for this extension.
    format!("{name}.redirect")
}

/// Mark of a transparent proxy's own sockets: the letters "px", different from the tunnels' marks.
pub const MARK: u32 = 0x0070_7800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_near_connections_are_left_alone() {
        let direct = ["192.168.1.7/24", "fd00::/64"].map(|text| text.parse().expect("literal"));
        let uplinks = ["lte".to_owned()];
        let divert = divert_chains(1082, 0x7078_0438, MARK, &direct, &uplinks);
        for chain in divert.split("chain ").skip(1) {
            let at = |rule: &str| chain.find(rule).expect(rule);
            let action = at("meta mark set 0x70780438");
            for rule in [
                "meta l4proto != udp return",
                "ct direction reply return",
                "fib daddr type { local",
                "ip daddr 192.168.1.0/24 return",
                "ip6 daddr fd00::/64 return",
            ] {
                assert!(at(rule) < action, "{rule}");
            }
        }
        assert_eq!(divert.matches("iifname \"lte\" return").count(), 1);
        assert!(divert.contains("tproxy to :1082"));
        let text = ruleset("t", 1081, MARK, &direct, &uplinks, "");
        assert_eq!(text.matches("iifname \"lte\" return").count(), 1);
        for chain in text.split("chain ").skip(1) {
            let rules: Vec<&str> = chain.lines().map(str::trim).collect();
            let at = |rule: &str| {
                rules
                    .iter()
                    .position(|line| line.starts_with(rule))
                    .expect(rule)
            };
            let redirect = at("meta l4proto tcp redirect to :1081");
            for rule in [
                "meta mark 0x707800 return",
                "fib daddr type { local",
                "ip daddr 192.168.1.0/24 return",
                "ip6 daddr fd00::/64 return",
            ] {
                assert!(at(rule) < redirect, "{rule}");
            }
        }
    }

    #[test]
    fn a_plain_connection_has_no_other_destination() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let _client = std::net::TcpStream::connect(address).expect("connects");
        let (server, _) = listener.accept().expect("accepts");
        assert_eq!(original_destination(&server), None);
    }
}
