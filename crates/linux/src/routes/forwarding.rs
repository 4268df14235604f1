//! Forwarding of a gateway's host: switched on for all devices, and restored for each.
//!
//! IPv4 has a switch for each device, which counts for packets that come in by it. `net.ipv4.ip_forward` sets all of them, and the
//! one that new devices get; `net.ipv6.conf.all.forwarding` does the same for IPv6, where it is also what forwarding depends on.
//! So switching on one of these, and back, loses settings that differ between devices. Each device's value is therefore recorded
//! as well ([`crate::sysctl`]), and what a device did not forward before is not forwarded for others now ([`crate::nft::Forward`]).

use std::{fs, io};

use crate::{
    nft::Others,
    state::StateDir,
    sysctl::{self, Originals},
};

/// From which devices the host forwarded before tunnels did: IPv4, IPv6. Ask before [`enable`]. `tun`: the device of the tunnel.
pub(super) fn others(dir: &StateDir, tun: &str) -> io::Result<[Others; 2]> {
    let originals = Originals::read(dir)?;
    let is_on = |key: &str| originals.of(key).is_some_and(|value| value == "1");
    let v6 = if is_on("net/ipv6/conf/all/forwarding") {
        Others::All
    } else {
        Others::Only(Vec::new())
    };
    let default = switch("ipv4", "default");
    let is_default = is_on(&default);
    let mut devices = devices("ipv4")?;
    devices.retain(|device| !["all", "default", "lo", tun].contains(&device.as_str()));
    let forwards = |device: &String| {
        let key = switch("ipv4", device);
        // A device that came after tunnels had switched forwarding on would have what others get.
        let is_later = originals.is_recorded(&default) && !originals.is_recorded(&key);
        if is_later { is_default } else { is_on(&key) }
    };
    let (open, closed): (Vec<_>, Vec<_>) = devices.into_iter().partition(forwards);
    let v4 = match (is_default, closed.is_empty()) {
        (true, true) => Others::All,
        (true, false) => Others::AllBut(closed),
        (false, _) => Others::Only(open),
    };
    Ok([v4, v6])
}

/// Switches forwarding on for all devices until `owner` releases it.
pub(super) fn enable(dir: &StateDir, owner: &str, has_v6: bool) -> io::Result<()> {
    enable_family(dir, owner, "ipv4", "net/ipv4/ip_forward")?;
    if !has_v6 {
        return Ok(());
    }
    // A forwarding host ignores router advertisements, and with them its own default route, unless told 2.
    let mut keys: Vec<String> = devices("ipv6")?
        .iter()
        .map(|device| format!("net/ipv6/conf/{device}/accept_ra"))
        .collect();
    keys.retain(|key| sysctl::read(key).is_ok_and(|value| value == "1"));
    sysctl::set_all(dir, owner, &keys, "2")?;
    enable_family(dir, owner, "ipv6", "net/ipv6/conf/all/forwarding")
}

fn enable_family(dir: &StateDir, owner: &str, family: &str, all: &str) -> io::Result<()> {
    let originals = Originals::read(dir)?;
    let are_later = originals.is_recorded(&switch(family, "default"));
    let mut keys: Vec<String> = devices(family)?
        .iter()
        .filter(|device| *device != "all")
        .map(|device| switch(family, device))
        .collect();
    // What a later device has, it has from another tunnel, and loses it with that.
    keys.retain(|key| {
        let is_on = || sysctl::read(key).is_ok_and(|value| value == "1");
        !are_later || originals.is_recorded(key) || !is_on()
    });
    sysctl::set_all(dir, owner, &keys, "1")?;
    sysctl::set(dir, owner, all, "1")
}

/// The switch of `device`.
fn switch(family: &str, device: &str) -> String {
    format!("net/{family}/conf/{device}/forwarding")
}

/// The devices that have settings, and `all` and `default`, sorted.
fn devices(family: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(format!("/proc/sys/net/{family}/conf"))? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
