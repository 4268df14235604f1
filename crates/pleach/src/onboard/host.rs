//! Conditions that a host must meet before anything is changed on it: root rights, a TUN device, a free port, a
//! writable directory.
//!
//! Each check is one question to the kernel, and each failure is one sentence with the remedy.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
};

use anyhow::{anyhow, bail};

use crate::config::plain;

/// Checks that the process may configure the network.
///
/// # Errors
/// If the process does not run as root.
pub(crate) fn require_root(command: &str) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "`pleach {command}` changes the network of this host: run it as root, for example with sudo"
    )
}

/// Checks that tunnels can be created.
///
/// # Errors
/// If the TUN device cannot be opened.
pub(crate) fn require_tun() -> anyhow::Result<()> {
    let opened = File::options().read(true).write(true).open(TUN);
    opened.map(drop).map_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            anyhow!(
                "this host does not let pleach open {TUN}: allow the device in the container's or service's settings"
            )
        } else {
            anyhow!(
                "this host has no TUN device ({TUN}: {}): load it with `modprobe tun`, or, in a container, allow it on the container's host",
                plain(&error)
            )
        }
    })
}

/// Returns the address to listen on at `port`: all addresses of both families, or of IPv4 on a host without IPv6.
///
/// # Errors
/// If another program uses the port.
pub(crate) fn free_listen_address(port: u16) -> anyhow::Result<SocketAddr> {
    let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
    let address = if has_v6 {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
    } else {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    };
    match UdpSocket::bind(address) {
        Ok(_) => Ok(address),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => bail!(
            "UDP port {port} is taken by another program (`ss -lunp` shows it): stop that program, or choose another port with --port"
        ),
        Err(error) => bail!(
            "cannot listen on UDP port {port}: {}; choose another port with --port",
            plain(&error)
        ),
    }
}

/// Makes the error that a file or directory cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    let remedies = [
        (
            io::ErrorKind::ReadOnlyFilesystem,
            "make it writable, or choose another place with --dir",
        ),
        (io::ErrorKind::StorageFull, "free some space"),
        (io::ErrorKind::QuotaExceeded, "free some space"),
        (io::ErrorKind::PermissionDenied, "run it as root"),
        (io::ErrorKind::AlreadyExists, "remove it if nothing uses it"),
    ];
    let known = remedies.iter().find(|(kind, _)| *kind == error.kind());
    let remedy = known.map_or("choose another place with --dir", |(_, remedy)| remedy);
    anyhow!(
        "{} cannot be written: {}; {remedy}",
        path.display(),
        plain(error)
    )
}

const TUN: &str = "/dev/net/tun";
