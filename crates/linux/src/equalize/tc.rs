//! The BPF back ends: a program at the egress of each link's device, by TCX (Linux 6.6) or by clsact (before).
//!
//! New shares need a write of one map element and the change of one word: this takes some microseconds and affects
//! the next packet. Under TCX the kernel detaches the program however the process ends. Then packets are routed as
//! without an equalizer. Under clsact the program stays until the next start, with the last shares.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use ipnet::IpNet;

use super::{
    Hop, MAX_LINKS, Mode, Sent, Waiting,
    program::{self, KEEP_FLOWS, LINK_LEN, Maps, Shape},
};
use crate::{
    bpf::{self, Attach, Map, MapKind, prefix_key},
    clock,
    netlink::{Netlink, clsact::Side},
};

/// Hook to which the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Clsact,
    Tcx,
}

/// The program, attached to the devices of the links until dropped.
pub(super) struct Splitter {
    maps: Maps,
    shape: Shape,
    program: OwnedFd,
    hook: Hook,
    links: usize,
    active: u32,
    /// Devices by ifindex, each with the descriptor that keeps the program attached under TCX.
    attached: BTreeMap<u32, Option<OwnedFd>>,
    /// The second program, which sends delayed packets to their links.
    release: Option<Release>,
}

/// The second program, at the device for delayed packets.
struct Release {
    ifindex: u32,
    _program: OwnedFd,
    _attached: Option<OwnedFd>,
}

impl Splitter {
    /// Loads the program without attaching it. If `hook` is `None`, TCX is used where it exists.
    pub(super) fn load(
        hook: Option<Hook>,
        mode: &Mode,
        destinations: &[IpNet],
        links: usize,
    ) -> io::Result<Self> {
        let state_len = u32::try_from(3 * MAX_LINKS * 8).unwrap_or(u32::MAX);
        let links_len = u32::try_from(MAX_LINKS * LINK_LEN).unwrap_or(u32::MAX);
        let places = places(destinations);
        let entries = u32::try_from(places.len().max(1)).unwrap_or(u32::MAX);
        let gap = mode.gap.or(mode.hold.then_some(Duration::MAX));
        let flows = if gap.is_some() { MAX_FLOWS } else { 1 };
        let map = |kind, key_len, value_len, entries| {
            Map::new(kind, key_len, value_len, entries).map_err(|error| told("BPF maps", &error))
        };
        let maps = Maps {
            places: map(MapKind::Trie, 20, 4, entries)?,
            active: map(MapKind::Array, 4, 4, 1)?,
            links: map(MapKind::Array, 4, links_len, 4)?,
            states: map(MapKind::ArrayPerCpu, 4, state_len, 2)?,
            others: map(MapKind::LruHash, 4, 8, MAX_DEVICES)?,
            flows: map(MapKind::LruHash, 4, 16, flows)?,
            alive: map(MapKind::Array, 4, 8, 1)?,
        };
        for (net, verdict) in places {
            maps.places.set(&prefix_key(net), &verdict.to_ne_bytes())?;
        }
        let entropy = clock::entropy()?;
        let shape = Shape {
            links,
            by_packets: mode.by_packets,
            gap,
            hold: mode.hold,
            tag: u16::from_ne_bytes([entropy[0], entropy[1]]).max(1),
        };
        let program = bpf::load(&program::program(&maps, shape), Attach::TcxEgress)
            .map_err(|error| told("BPF program", &error))?;
        let hook = match (hook, bpf::has_tcx(&program)) {
            (Some(Hook::Tcx), false) => {
                let text =
                    "this kernel has no TCX, which came with Linux 6.6: use backend = \"clsact\"";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            (Some(Hook::Clsact), _) | (None, false) => Hook::Clsact,
            (Some(Hook::Tcx) | None, true) => Hook::Tcx,
        };
        Ok(Self {
            maps,
            shape,
            program,
            hook,
            links,
            active: 0,
            attached: BTreeMap::new(),
            release: None,
        })
    }

    /// Checks whether the program can be attached on this kernel. `record`: see [`Netlink::try_program`].
    pub(super) fn check(
        &self,
        netlink: &Netlink,
        record: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.hook {
            // This was checked when the hook was chosen.
            Hook::Tcx => Ok(()),
            Hook::Clsact => netlink.try_program(self.program.as_fd(), record),
        }
    }

    /// Attaches the second program to `ifindex`, the device for delayed packets. The program sends packets that
    /// return from this device to their links. From then on, packets that must wait according to [`Self::set`] go to
    /// this device.
    pub(super) fn release_from(&mut self, netlink: &Netlink, ifindex: u32) -> io::Result<()> {
        let attach = Attach::TcxIngress;
        let program = bpf::load(&program::release(&self.maps, self.shape), attach)
            .map_err(|error| told("BPF program", &error))?;
        let attached = match self.hook {
            Hook::Tcx => bpf::link_device(program.as_fd(), ifindex, attach).map(Some),
            Hook::Clsact => netlink
                .set_program(ifindex, Side::Ingress, program.as_fd())
                .map(|_| None),
        };
        self.release = Some(Release {
            ifindex,
            _attached: attached.map_err(|error| told("attaching to a device", &error))?,
            _program: program,
        });
        Ok(())
    }

    /// Returns the map in which the process that delays packets records that it is alive.
    pub(super) fn alive(&self) -> io::Result<Map> {
        self.maps.alive.try_clone()
    }

    /// Returns the hook to which the program is attached.
    pub(super) fn hook(&self) -> Hook {
        self.hook
    }

    /// Sets the links, see [`super::Equalizer::set`].
    pub(super) fn set(
        &mut self,
        hops: &[Option<Hop>],
        shares: &[[u32; MAX_LINKS]; 2],
        waiting: Waiting,
    ) -> io::Result<()> {
        let device = self.release.as_ref().map_or(0, |release| release.ifindex);
        let idle = 1 - self.active;
        for (family, shares) in (0_u32..).zip(shares) {
            let mut value = [0; MAX_LINKS * LINK_LEN];
            let records = value.chunks_exact_mut(LINK_LEN).zip(hops);
            for (((record, hop), share), waits) in records.zip(shares).zip(waiting.links) {
                if let Some(hop) = hop {
                    let device = if waits { device } else { 0 };
                    fill(record, hop, family == 1, *share, device);
                }
            }
            let half = (idle * 2 + family).to_ne_bytes();
            self.maps.links.set(&half, &value)?;
        }
        let keep = if waiting.keeps_flows { KEEP_FLOWS } else { 0 };
        self.maps
            .active
            .set(&[0; 4], &(idle | keep).to_ne_bytes())?;
        self.active = idle;
        Ok(())
    }

    /// Returns the bytes that other traffic sent by the device `ifindex` since the program was attached to it.
    pub(super) fn others(&self, ifindex: u32) -> Option<u64> {
        self.maps.others.get_u64(&ifindex.to_ne_bytes())
    }

    /// Returns the packets and bytes sent over each link so far.
    pub(super) fn sent(&self) -> io::Result<Vec<Sent>> {
        let mut sent = vec![Sent::default(); self.links];
        for family in [0_u32, 1] {
            let values = self.maps.states.get_per_cpu(&family.to_ne_bytes())?;
            for value in values.chunks_exact(3 * MAX_LINKS * 8) {
                let (words, _) = value.as_chunks::<8>();
                for (link, sent) in sent.iter_mut().enumerate() {
                    sent.packets += u64::from_ne_bytes(words[MAX_LINKS + link]);
                    sent.bytes += u64::from_ne_bytes(words[2 * MAX_LINKS + link]);
                }
            }
        }
        Ok(sent)
    }

    /// Attaches to new devices, and detaches from devices that are gone. `on_place` is called with a device on which
    /// the queueing discipline for filters had to be created.
    pub(super) fn attach(
        &mut self,
        netlink: &Netlink,
        hops: &[Option<Hop>],
        mut on_place: impl FnMut(&Hop) -> io::Result<()>,
    ) -> io::Result<()> {
        let wanted = || hops.iter().flatten();
        self.attached
            .retain(|ifindex, _| wanted().any(|wanted| wanted.ifindex == *ifindex));
        for hop in wanted() {
            let Entry::Vacant(entry) = self.attached.entry(hop.ifindex) else {
                continue;
            };
            let key = hop.ifindex.to_ne_bytes();
            if self.maps.others.get_u64(&key).is_none() {
                self.maps.others.set(&key, &[0; 8])?;
            }
            let attached = match self.hook {
                Hook::Tcx => {
                    bpf::link_device(self.program.as_fd(), hop.ifindex, Attach::TcxEgress).map(Some)
                }
                Hook::Clsact => {
                    let set = netlink.set_program(hop.ifindex, Side::Egress, self.program.as_fd());
                    if matches!(set, Ok(true)) {
                        on_place(hop)?;
                    }
                    set.map(|_| None)
                }
            };
            match attached {
                Ok(link) => {
                    entry.insert(link);
                }
                // The device has just disappeared. The watch will report it.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(told("attaching to a device", &error)),
            }
        }
        Ok(())
    }
}

/// Writes the record of a link. Its packets are delayed in the device `waits`, unless that is 0. Writes nothing if the
/// link has no next hop of this family.
fn fill(record: &mut [u8], hop: &Hop, is_v6: bool, share: u32, waits: u32) {
    let next_hop: Option<IpAddr> = if is_v6 {
        hop.v6.map(IpAddr::V6)
    } else {
        hop.v4.map(IpAddr::V4)
    };
    let Some(next_hop) = next_hop else { return };
    record[..4].copy_from_slice(&share.to_ne_bytes());
    record[4..8].copy_from_slice(&hop.ifindex.to_ne_bytes());
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    record[8..12].copy_from_slice(&family.to_ne_bytes());
    record[28..32].copy_from_slice(&waits.to_ne_bytes());
    match next_hop {
        IpAddr::V4(ip) => record[12..16].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => record[12..28].copy_from_slice(&ip.octets()),
    }
}

fn told(what: &str, error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, is needed".to_owned()
        }
        // The verifier also returns this error for operations that need CAP_PERFMON.
        Some(libc::EINVAL | libc::EACCES) => {
            format!("{error}; Linux 5.10 or newer and CAP_PERFMON, or root, are needed")
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{what}: {why}"))
}

/// Returns the content of the trie: destinations, and networks within them that are not spread. Every node costs some
/// nanoseconds per packet.
fn places(destinations: &[IpNet]) -> Vec<(IpNet, u32)> {
    let never = NEVER.iter().filter_map(|text| text.parse().ok());
    let within = |net: &IpNet| {
        destinations
            .iter()
            .any(|destination| destination.contains(net))
    };
    let spread = destinations.iter().map(|net| (*net, 1));
    never
        .filter(within)
        .map(|net| (net, 0))
        .chain(spread)
        .collect()
}

/// Networks that belong to a single device regardless of the destinations: link-local, multicast, broadcast.
const NEVER: [&str; 5] = [
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "fe80::/10",
    "ff00::/8",
];

/// Highest number of devices whose other traffic is counted: many times the number of links, so that unplugged devices
/// do not matter.
const MAX_DEVICES: u32 = 256;
/// Highest number of flows in the table of the modes that keep flows on their link.
const MAX_FLOWS: u32 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_device_is_left_alone_though_all_is_spread() {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts
                .iter()
                .map(|text| text.parse().expect("literal"))
                .collect()
        };
        assert_eq!(places(&nets(&["10.0.0.0/8"])).len(), 1);
        let all = places(&nets(&["0.0.0.0/0", "::/0"]));
        assert_eq!(
            all.iter().filter(|(_, verdict)| *verdict == 0).count(),
            NEVER.len()
        );
    }
}
