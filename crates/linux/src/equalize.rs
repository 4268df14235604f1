//! Spreads packets over links in the kernel, and makes the necessary changes to the host's configuration.
//!
//! The link of a packet is chosen by a BPF program, attached in one of two ways ([`Backend::Bpf`], [`Backend::Clsact`],
//! `equalize/tc.rs`), or by nftables ([`Backend::Nft`], `equalize/nft.rs`).
//!
//! # Routes
//!
//! A program sees only packets that are sent by the device of a link, so packets must take such a device regardless of
//! the main table. Therefore a separate table has a route to each destination over each link that is up, with the first
//! link preferred. Rules like those of a tunnel ([`crate::routes`]) give precedence to longer prefixes of the main
//! table. If the device of the preferred link disappears, the kernel removes its route, and the next route applies at
//! once. Sockets take the source address of the preferred link. The routes have the smallest MTU of the links.
//!
//! The other end may send its packets over any link. So a strict reverse path filter of a link's device is set to
//! loose, as for tunnels.
//!
//! # Undoing
//!
//! Only one equalizer runs in a network namespace at a time, so tables, marks and priorities are fixed. All other
//! changes (longest offloaded packets, filters, nftables) are recorded in a file before they are made
//! ([`crate::state`]). [`Equalizer::undo`], or dropping the value, undoes all changes. [`Equalizer::begin`] and
//! [`recover`] first do so for a crashed process. The BPF program is removed with its process, except under clsact.

mod holding;
mod nft;
mod program;
mod tc;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::Duration,
};

pub use holding::{HeldPacket, HoldingDevice};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use tc::Hook;

use crate::{
    bpf::Map,
    clock,
    netlink::{
        Netlink,
        clsact::LOOPBACK,
        hops::{Answer, HopRoute},
    },
    routes::{self, rules::Bank},
    state::{Lock, StateDir},
    sysctl,
};

/// Highest number of links.
pub const MAX_LINKS: usize = 16;
/// Number of bits of shares: they are fractions of 2^24.
pub const SHARE_BITS: u32 = 24;
/// Largest credit or debt of a link in the modes that keep flows on their link, scaled by 2^[`SHARE_BITS`].
pub const MAX_DEBT: i64 = (1 << 24) << SHARE_BITS;
/// Highest number of destinations.
pub const MAX_DESTINATIONS: usize = 32;

/// Mark of probes that measure the delays of links. The equalizer does not redirect these packets: they leave by the
/// device through which they were sent.
pub const PROBE_MARK: u32 = 0x0070_6510;
/// Time after the last sign of life from the process that delays packets, after which no packets are passed to it.
pub const ALIVE_FOR: Duration = Duration::from_millis(200);

/// The part of the kernel that chooses links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A BPF program at the egress of devices.
    Bpf,
    /// The BPF program as a filter of traffic control, for kernels without TCX.
    Clsact,
    /// Rules of nftables with marks, for devices without link-layer addresses.
    Nft,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "bpf",
            Self::Clsact => "clsact",
            Self::Nft => "nft",
        })
    }
}

/// Mode of spreading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Whether shares apply to packets instead of bytes.
    pub by_packets: bool,
    /// Pause after which a flow may change its link. `None`: every packet may take another link.
    pub gap: Option<Duration>,
    /// Whether the devices of links accept no offloaded packets, so that a link is chosen for every packet.
    pub interleave: bool,
    /// Whether packets of some links are delayed in user space: [`Equalizer::hold`].
    pub hold: bool,
}

/// The links whose packets are delayed, if [`Mode::hold`] is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Whether packets of each link are passed to the device of [`Equalizer::hold`] first. This device must exist.
    pub links: [bool; MAX_LINKS],
    /// Whether flows stay on their link because the hold times are not known yet.
    pub keeps_flows: bool,
}

/// A link that packets may use, with its next hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Name of the link's device.
    pub device: String,
    /// Index of the device.
    pub ifindex: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// Next hop for IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Next hop for IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Hop {
    fn gateway(&self, is_v6: bool) -> Option<IpAddr> {
        if is_v6 {
            self.v6.map(IpAddr::V6)
        } else {
            self.v4.map(IpAddr::V4)
        }
    }
}

/// Packets and bytes sent over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of packets on the wire.
    pub packets: u64,
    /// Number of their bytes.
    pub bytes: u64,
}

/// An equalizer's changes to the host, undone when dropped.
#[derive(Debug)]
pub struct Equalizer {
    dir: StateDir,
    state: State,
    netlink: Netlink,
    mode: Mode,
    destinations: Vec<IpNet>,
    splitter: Splitter,
    /// The routes that are set. Key: family, destination, index of the link. Value: ifindex and MTU.
    routes: BTreeMap<(bool, IpNet, usize), (u32, u32)>,
    /// Indices of devices whose settings are complete.
    prepared: BTreeSet<u32>,
    is_undone: bool,
    _lock: Lock,
}

/// Tells the kernel that the process which delays packets is alive. [`Self::tell`] must be called more often than
/// every [`ALIVE_FOR`].
#[derive(Debug)]
pub struct Alive(Map);

impl Alive {
    /// Records the current time as the last sign of life.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn tell(&self) -> io::Result<()> {
        self.0.set(&[0; 4], &clock::now().as_nanos().to_ne_bytes())
    }
}

enum Splitter {
    Bpf(Box<tc::Splitter>),
    Nft(nft::Splitter),
}

impl fmt::Debug for Splitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf(_) => "Bpf",
            Self::Nft(_) => "Nft",
        })
    }
}

/// Changes of an equalizer other than its tables and rules.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    has_nft: bool,
    /// Original value of `gso_max_segs` of each device.
    gso_max_segs: BTreeMap<String, u32>,
    /// Devices that may have filters of the equalizer.
    #[serde(default)]
    filter_devices: Vec<String>,
    /// Index of each device on which the equalizer created the queueing discipline for filters.
    #[serde(default)]
    filter_places: BTreeMap<String, u32>,
}

impl Equalizer {
    /// Removes the remains of a crashed process, and prepares to spread packets to `destinations` over `links` links.
    /// Nothing is spread before [`Self::set`].
    ///
    /// `base` is the directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`]. If `backend` is `None`,
    /// BPF is used if it works and every existing device in `devices` has link-layer addresses; otherwise nftables.
    /// The second result is the reason for the choice of the back end. Works in the network namespace of the calling
    /// thread.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::AddrInUse`] if an equalizer already runs in this namespace. Fails if the back end does
    /// not work on this host, if the state cannot be written, or with an error of the kernel.
    pub fn begin(
        base: &Path,
        backend: Option<Backend>,
        mode: Mode,
        destinations: &[IpNet],
        devices: &[String],
    ) -> io::Result<(Self, String)> {
        let links = devices.len().min(MAX_LINKS);
        let dir = StateDir::open(base)?;
        let Some(lock) = dir.try_lock(LOCK)? else {
            let text = "an equalizer runs in this network namespace already: stop it first, or give it all links";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        };
        let netlink = Netlink::open()?;
        if let Some(state) = dir.read::<State>(STATE_FILE) {
            tracing::info!("clearing what a crashed process left");
            clear(&dir, &state, &netlink)?;
        }
        let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
        let usable = |net: &&IpNet| has_v6 || net.addr().is_ipv4();
        let destinations: Vec<IpNet> = destinations
            .iter()
            .filter(usable)
            .map(IpNet::trunc)
            .collect();
        let tried = |has_place: bool| {
            let lo = "lo".to_owned();
            let place = has_place.then(|| (lo.clone(), LOOPBACK));
            let state = State {
                filter_devices: vec![lo],
                filter_places: place.into_iter().collect(),
                ..State::default()
            };
            dir.write(STATE_FILE, &state)
        };
        let (splitter, why) = splitter(&netlink, backend, &mode, &destinations, devices, tried)?;
        let state = State {
            has_nft: matches!(splitter, Splitter::Nft(_)),
            filter_devices: match &splitter {
                Splitter::Bpf(splitter) if splitter.hook() == Hook::Clsact => devices.to_vec(),
                Splitter::Bpf(_) | Splitter::Nft(_) => Vec::new(),
            },
            ..State::default()
        };
        dir.write(STATE_FILE, &state)?;
        let mut this = Self {
            dir,
            state,
            netlink,
            mode,
            destinations,
            splitter,
            routes: BTreeMap::new(),
            prepared: BTreeSet::new(),
            is_undone: false,
            _lock: lock,
        };
        // If this fails, dropping `this` undoes the changes made so far.
        this.prepare(links)?;
        Ok((this, why))
    }

    /// Returns the back end in use.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match &self.splitter {
            Splitter::Bpf(splitter) if splitter.hook() == Hook::Tcx => Backend::Bpf,
            Splitter::Bpf(_) => Backend::Clsact,
            Splitter::Nft(_) => Backend::Nft,
        }
    }

    /// Sets the links that packets use from now on. `None` in `hops` is a link that is down.
    ///
    /// `shares` are the shares for IPv4 and for IPv6, one for each link. They are all 0, or their sum is
    /// 2^[`SHARE_BITS`]. The share of a link that is down or has no next hop of the family must be 0. `slots`, for
    /// the back end that uses slots, are the links of the slots for IPv4 and for IPv6.
    ///
    /// # Errors
    /// Returns the first error of the kernel. All changes are attempted.
    pub fn set(
        &mut self,
        hops: &[Option<Hop>],
        shares: &[[u32; MAX_LINKS]; 2],
        slots: [&[u8]; 2],
        waiting: Waiting,
    ) -> io::Result<()> {
        let split = match &mut self.splitter {
            Splitter::Bpf(splitter) => splitter.set(hops, shares, waiting).and_then(|()| {
                let (state, dir) = (&mut self.state, &self.dir);
                splitter.attach(&self.netlink, hops, |hop| {
                    state.filter_places.insert(hop.device.clone(), hop.ifindex);
                    dir.write(STATE_FILE, state)
                })
            }),
            Splitter::Nft(splitter) => splitter.set(&self.netlink, hops, slots),
        };
        let routed = self.route(hops);
        let prepared = self.prepare_devices(hops);
        split.and(routed).and(prepared)
    }

    /// Creates the device in which packets are delayed. It is used from the next [`Self::set`] on that requests it.
    ///
    /// # Errors
    /// Fails if the back end does not support this, if the kernel has no such device, or with an error of the kernel.
    pub fn hold(&mut self) -> io::Result<(HoldingDevice, Alive)> {
        let Splitter::Bpf(splitter) = &mut self.splitter else {
            return Err(nft::cannot_hold());
        };
        let device = HoldingDevice::create()?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            // The device needs no address. The setting disappears with the device.
            sysctl::write(
                &format!("net/ipv6/conf/{}/disable_ipv6", holding::NAME),
                "1",
            )?;
        }
        self.netlink.set_up(device.ifindex(), holding::MTU.into())?;
        splitter.release_from(&self.netlink, device.ifindex())?;
        Ok((device, Alive(splitter.alive()?)))
    }

    /// Returns the entries of `hops` whose next hops answer. A next hop of unknown state is treated as in `before`.
    /// The kernel probes next hops that have not answered recently. The second result says whether the state of all
    /// next hops is known.
    ///
    /// If a packet is redirected while the kernel still waits for the next hop's link-layer address, the packet is
    /// lost. So a link must not get packets before its next hop has answered.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn answering(
        &self,
        hops: &[Option<Hop>],
        before: &[Option<Hop>],
    ) -> io::Result<(Vec<Option<Hop>>, bool)> {
        let gateways = |hop: &Hop| [hop.gateway(false), hop.gateway(true)];
        let asked: Vec<(u32, IpAddr)> = hops
            .iter()
            .flatten()
            .flat_map(|hop| {
                let ifindex = hop.ifindex;
                gateways(hop)
                    .into_iter()
                    .flatten()
                    .map(move |gateway| (ifindex, gateway))
            })
            .collect();
        let mut answers = self.netlink.ask_next_hops(&asked)?.into_iter();
        let mut all_known = true;
        let mut usable = Vec::new();
        for (hop, before) in hops.iter().zip(before) {
            let Some(hop) = hop else {
                usable.push(None);
                continue;
            };
            let before = before
                .as_ref()
                .filter(|before| before.ifindex == hop.ifindex);
            let mut holds = |is_v6: bool| {
                let gateway = hop.gateway(is_v6);
                gateway.is_some()
                    && match answers.next() {
                        Some(Answer::Yes) => true,
                        Some(Answer::No) | None => false,
                        Some(Answer::Unknown) => {
                            let held = before.and_then(|before| before.gateway(is_v6)) == gateway;
                            all_known &= held;
                            held
                        }
                    }
            };
            let (v4, v6) = (holds(false), holds(true));
            usable.push((v4 || v6).then(|| Hop {
                v4: hop.v4.filter(|_| v4),
                v6: hop.v6.filter(|_| v6),
                ..hop.clone()
            }));
        }
        Ok((usable, all_known))
    }

    /// Returns whether the device of each of `hops` currently exists, is up and has a carrier. `false` if there is no
    /// hop.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn running(&self, hops: &[Option<Hop>]) -> io::Result<Vec<bool>> {
        let is_running = |hop: &Option<Hop>| {
            hop.as_ref()
                .map_or(Ok(false), |hop| self.netlink.is_running(hop.ifindex))
        };
        hops.iter().map(is_running).collect()
    }

    /// Returns the packets and bytes sent over each link so far.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn sent(&self) -> io::Result<Vec<Sent>> {
        match &self.splitter {
            Splitter::Bpf(splitter) => splitter.sent(),
            Splitter::Nft(splitter) => splitter.sent(),
        }
    }

    /// Returns the bytes that other traffic sent by the device of each of `hops`, counted at the same place as
    /// [`Self::sent`]. `None` if they are not counted.
    #[must_use]
    pub fn others(&self, hops: &[Option<Hop>]) -> Vec<Option<u64>> {
        let others = |hop: &Option<Hop>| match &self.splitter {
            Splitter::Bpf(splitter) => splitter.others(hop.as_ref()?.ifindex),
            Splitter::Nft(_) => None,
        };
        hops.iter().map(others).collect()
    }

    /// Undoes all changes.
    ///
    /// # Errors
    /// Returns the first error. All other changes are still undone.
    pub fn undo(mut self) -> io::Result<()> {
        self.undo_once()
    }

    fn undo_once(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_undone, true) {
            return Ok(());
        }
        clear(&self.dir, &self.state, &self.netlink)
    }

    fn prepare(&mut self, links: usize) -> io::Result<()> {
        for rule in routes::rules::rules(DESTINATIONS_SLOT, Bank::First, &self.destinations, &[])? {
            self.netlink.add_rule(&rule)?;
        }
        if let Splitter::Nft(splitter) = &self.splitter {
            splitter.prepare(&self.netlink, links, &self.destinations)?;
        }
        Ok(())
    }

    /// Prepares new devices.
    fn prepare_devices(&mut self, hops: &[Option<Hop>]) -> io::Result<()> {
        let there: BTreeSet<u32> = hops.iter().flatten().map(|hop| hop.ifindex).collect();
        self.prepared.retain(|ifindex| there.contains(ifindex));
        for hop in hops.iter().flatten() {
            if !self.prepared.contains(&hop.ifindex) {
                self.prepare_device(&hop.device)?;
                self.prepared.insert(hop.ifindex);
            }
        }
        Ok(())
    }

    /// Sets the reverse path filter of `device` to loose and, if requested, limits the device to packets without
    /// offload.
    fn prepare_device(&mut self, device: &str) -> io::Result<()> {
        routes::loosen_reverse_path(&self.dir, OWNER, device)?;
        if self.mode.interleave
            && let Some(segments) = self.netlink.gso_max_segs(device)?
            && segments != 1
        {
            self.state.gso_max_segs.insert(device.to_owned(), segments);
            self.dir.write(STATE_FILE, &self.state)?;
            self.netlink.set_gso_max_segs(device, 1)?;
        }
        Ok(())
    }

    /// Sets routes to the destinations over `hops`, with the first preferred.
    fn route(&mut self, hops: &[Option<Hop>]) -> io::Result<()> {
        let mtu = hops
            .iter()
            .flatten()
            .map(|hop| hop.mtu)
            .min()
            .unwrap_or(u32::MAX);
        let mut first_error = Ok(());
        for destination in &self.destinations {
            let is_v6 = destination.addr().is_ipv6();
            for (place, hop) in hops.iter().enumerate() {
                let key = (is_v6, *destination, place);
                let metric = METRIC + u32::try_from(place).unwrap_or(0);
                let gateway = hop
                    .as_ref()
                    .and_then(|hop| Some((hop, hop.gateway(is_v6)?)));
                let Some((hop, gateway)) = gateway else {
                    if self.routes.remove(&key).is_some() {
                        let deleted = self.netlink.delete_hop_route(*destination, metric, table());
                        first_error = first_error.and(deleted);
                    }
                    continue;
                };
                if self.routes.get(&key) == Some(&(hop.ifindex, mtu)) {
                    continue;
                }
                let route = HopRoute {
                    destination: *destination,
                    gateway,
                    ifindex: hop.ifindex,
                    table: table(),
                    metric,
                    mtu: (mtu < hop.mtu).then_some(mtu),
                };
                match self.netlink.add_hop_route(&route) {
                    Ok(()) => drop(self.routes.insert(key, (hop.ifindex, mtu))),
                    Err(error) => {
                        first_error = first_error.and(Err(told(&error, destination, &hop.device)))
                    }
                }
            }
        }
        first_error
    }

    /// Checks whether all routes still exist. The kernel removes them when a device goes down, even for a moment.
    /// Returns `false` if routes are missing: then call [`Self::set`], which sets all of them again.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn check_routes(&mut self) -> io::Result<bool> {
        let complete = self.netlink.route_count(table())? >= self.routes.len();
        if !complete {
            self.routes.clear();
        }
        Ok(complete)
    }
}

impl Drop for Equalizer {
    fn drop(&mut self) {
        if let Err(error) = self.undo_once() {
            tracing::error!(%error, "cannot undo the network configuration");
        }
    }
}

/// Removes the remains of a crashed equalizer in this namespace. Returns `Ok(false)` if an equalizer runs.
///
/// [`Equalizer::begin`] does this too. This function cleans up without starting.
///
/// # Errors
/// Fails if the remains cannot be removed.
pub fn recover(base: &Path) -> io::Result<bool> {
    let dir = StateDir::open(base)?;
    let Some(_lock) = dir.try_lock(LOCK)? else {
        return Ok(false);
    };
    if let Some(state) = dir.read::<State>(STATE_FILE) {
        clear(&dir, &state, &Netlink::open()?)?;
    }
    Ok(true)
}

fn splitter(
    netlink: &Netlink,
    backend: Option<Backend>,
    mode: &Mode,
    destinations: &[IpNet],
    devices: &[String],
    tried: impl FnMut(bool) -> io::Result<()>,
) -> io::Result<(Splitter, String)> {
    let links = devices.len().min(MAX_LINKS);
    let bpf = |hook| {
        tc::Splitter::load(hook, mode, destinations, links)
            .map(|splitter| Splitter::Bpf(Box::new(splitter)))
    };
    let nft = |why: String| -> io::Result<(Splitter, String)> {
        nft::refuse(mode)?;
        Ok((Splitter::Nft(nft::Splitter::new()), why))
    };
    let hook = match backend {
        Some(Backend::Nft) => return nft("as configured".to_owned()),
        Some(Backend::Bpf) => Some(Hook::Tcx),
        Some(Backend::Clsact) => Some(Hook::Clsact),
        None => None,
    };
    if let Some(device) = devices.iter().find(|device| !has_link_addresses(device)) {
        let why = format!("device {device} has no link-layer addresses");
        if hook.is_none() {
            return nft(why);
        }
        let text = format!("{why}, which redirecting by BPF needs: use backend = \"nft\"");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let usable = bpf(hook).and_then(|splitter| {
        if hook.is_none()
            && let Splitter::Bpf(program) = &splitter
        {
            program.check(netlink, tried)?;
        }
        Ok(splitter)
    });
    match usable {
        Ok(splitter) => {
            let why = match &splitter {
                _ if hook.is_some() => "as configured",
                Splitter::Bpf(splitter) if splitter.hook() == Hook::Clsact => {
                    "it works here and counts bytes; TCX came with Linux 6.6"
                }
                Splitter::Bpf(_) | Splitter::Nft(_) => "it works here, and counts bytes",
            };
            Ok((splitter, why.to_owned()))
        }
        Err(error) if hook.is_none() => nft(format!("BPF does not work here: {error}")),
        Err(error) => Err(error),
    }
}

/// Whether `device` has link-layer addresses like Ethernet. True for a device that does not exist yet.
fn has_link_addresses(device: &str) -> bool {
    crate::ethtool::hardware_type(device).is_none_or(|kind| kind == libc::ARPHRD_ETHER)
}

/// Undoes all changes in `state`, then deletes it. All changes are attempted; the first error is returned.
fn clear(dir: &StateDir, state: &State, netlink: &Netlink) -> io::Result<()> {
    let rules = netlink.delete_rules(routes::rules::priorities(DESTINATIONS_SLOT), table());
    let flushed = netlink.flush_table(table());
    let nft = if state.has_nft {
        nft::clear(netlink)
    } else {
        Ok(())
    };
    let mut segments = Ok(());
    for (device, original) in &state.gso_max_segs {
        let restored = match netlink.gso_max_segs(device) {
            Ok(Some(1)) => netlink.set_gso_max_segs(device, *original),
            // The device is gone, or another program changed the value meanwhile.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        segments = segments.and(restored);
    }
    let mut filters = Ok(());
    for device in &state.filter_devices {
        let removed = netlink.link_index(device).and_then(|found| {
            let Some(ifindex) = found else { return Ok(()) };
            let has_place = state.filter_places.get(device) == Some(&ifindex);
            netlink.remove_egress_program(ifindex, has_place)
        });
        filters = filters.and(removed);
    }
    let sysctls = sysctl::release(dir, OWNER);
    rules
        .and(flushed)
        .and(nft)
        .and(segments)
        .and(filters)
        .and(sysctls)?;
    dir.remove(STATE_FILE)
}

fn told(error: &io::Error, destination: &IpNet, device: &str) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("route to {destination} over {device}: {error}"),
    )
}

/// Returns the table with routes to the destinations.
fn table() -> u32 {
    routes::rules::table(DESTINATIONS_SLOT)
}

/// Slot of the destinations: after the slots of the tunnels and of the marks.
const DESTINATIONS_SLOT: u32 = routes::rules::SLOTS + 1;
/// Slot of the rules for marks of the nftables back end.
const MARKS_SLOT: u32 = routes::rules::SLOTS;
/// Metric of the routes over the first link.
const METRIC: u32 = 100;
/// Name of the lock. No device, and so no tunnel, has a colon in its name.
const LOCK: &str = "equalizer:";
const OWNER: &str = "equalizer:";
const STATE_FILE: &str = "equalizer:json";
