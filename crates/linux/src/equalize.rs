//! Spreading packets over links in the kernel, and everything in the host's configuration that this takes.
//!
//! What chooses the link of a packet: a BPF program, attached in one of two ways ([`Backend::Bpf`], [`Backend::Clsact`],
//! `equalize/tc.rs`), or nftables ([`Backend::Nft`], `equalize/nft.rs`).
//!
//! # Routes
//!
//! Packets must leave by a device of some link for a program to see them, whatever the main table says. So a table of our own
//! has a route to each destination over each link that is up, the first link's preferred; rules as a tunnel's
//! ([`crate::routes`]) let longer prefixes of the main table win. If the device of the preferred link vanishes, the
//! kernel drops its route and the next one holds at once. Sockets take the source address of the preferred link.
//! The routes have the MTU of the smallest link.
//!
//! Answers come in by whichever link the other end likes; the strict reverse path filter of a link's device is
//! loosened as for tunnels.
//!
//! # Undoing
//!
//! One equalizer runs in a network namespace at a time, so tables, marks and priorities are fixed. What is changed
//! beside those (longest offloaded packets, filters, nftables) is written down before ([`crate::state`]).
//! [`Equalizer::undo`], or dropping the value, takes all back; [`Equalizer::begin`] and [`recover`] first do so for what a
//! crashed process left. The BPF program goes with its process, but under clsact.

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

/// Most links.
pub const MAX_LINKS: usize = 16;
/// Shares are fractions of 2^this.
pub const SHARE_BITS: u32 = 24;
/// The most that a link owes or is owed in the modes that keep flows together, scaled by 2^[`SHARE_BITS`].
pub const MAX_DEBT: i64 = (1 << 24) << SHARE_BITS;
/// Most destinations.
pub const MAX_DESTINATIONS: usize = 32;

/// Mark of packets that ask how long a link's way is: they leave by the device they were sent by.
pub const PROBE_MARK: u32 = 0x0070_6510;
/// After so long without a word from who holds packets, none is given to it.
pub const ALIVE_FOR: Duration = Duration::from_millis(200);

/// What chooses links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A BPF program at the egress of devices.
    Bpf,
    /// The same by a filter of traffic control: for kernels without TCX.
    Clsact,
    /// Rules of nftables with marks: for devices without link-layer addresses.
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

/// How packets are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Shares are of packets and not of bytes.
    pub by_packets: bool,
    /// A flow keeps its link until a pause longer than this; `None`: every packet may take another.
    pub gap: Option<Duration>,
    /// Devices of links are told to take no offloaded packets, so that every packet has its own turn.
    pub interleave: bool,
    /// Packets of some links wait for a time, in user space: [`Equalizer::hold`].
    pub hold: bool,
}

/// Whose packets wait, where [`Mode::hold`] is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Whether packets of each link go into the device of [`Equalizer::hold`] first, if that was called.
    pub links: [bool; MAX_LINKS],
    /// Whether flows keep their link, as long as it is not known how long packets have to wait.
    pub keeps_flows: bool,
}

/// A link that packets may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its device.
    pub device: String,
    /// Index of the device.
    pub ifindex: u32,
    /// Largest packet in bytes.
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

/// What was sent over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets as the wire sees them.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An equalizer's hold on the host, given back when dropped.
#[derive(Debug)]
pub struct Equalizer {
    dir: StateDir,
    state: State,
    netlink: Netlink,
    mode: Mode,
    destinations: Vec<IpNet>,
    splitter: Splitter,
    /// Ifindex and MTU of the routes that are set: family, destination, place of the link.
    routes: BTreeMap<(bool, IpNet, usize), (u32, u32)>,
    /// Devices whose settings are as they must be, by index.
    prepared: BTreeSet<u32>,
    is_undone: bool,
    _lock: Lock,
}

/// What tells the kernel that packets that wait are taken care of: to be called more often than every [`ALIVE_FOR`].
#[derive(Debug)]
pub struct Alive(Map);

impl Alive {
    /// Tells so now.
    ///
    /// # Errors
    /// The kernel's.
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

/// What an equalizer has changed beside its own tables and rules.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    has_nft: bool,
    /// Device to what `gso_max_segs` was.
    gso_max_segs: BTreeMap<String, u32>,
    /// Devices that may have filters of ours.
    #[serde(default)]
    filter_devices: Vec<String>,
    /// Device to its index, for those whose place for filters was made for ours.
    #[serde(default)]
    filter_places: BTreeMap<String, u32>,
}

impl Equalizer {
    /// Clears what a crashed process left, and prepares to spread packets to `destinations` over `links` links. Nothing
    /// is spread before [`Self::set`].
    ///
    /// `base`: directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`]. `backend`: `None` takes BPF if
    /// that works and every device of `devices` that exists has link-layer addresses, else nftables; the reason is the
    /// second result. Works in the network namespace of the calling thread.
    ///
    /// # Errors
    /// An equalizer runs in this namespace already, with [`io::ErrorKind::AddrInUse`]; the back end does not work here; the
    /// state cannot be written; the kernel's.
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
        // Dropping it takes back what was done so far.
        this.prepare(links)?;
        Ok((this, why))
    }

    /// Which back end is at work.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match &self.splitter {
            Splitter::Bpf(splitter) if splitter.hook() == Hook::Tcx => Backend::Bpf,
            Splitter::Bpf(_) => Backend::Clsact,
            Splitter::Nft(_) => Backend::Nft,
        }
    }

    /// From now on packets go over `hops`, `None` for links that are down.
    ///
    /// `shares`: of IPv4 and of IPv6, one for each link, 0 or adding up to 2^[`SHARE_BITS`]; those of a link that is down or has
    /// no next hop of the family must be 0. `slots`: for the back end that deals in turns, the link of each turn, alike.
    ///
    /// # Errors
    /// The kernel's. Everything is tried; the first error is returned.
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

    /// Makes the device in which packets wait, which is used from the next [`Self::set`] on that says so.
    ///
    /// # Errors
    /// The back end cannot do it; there is no such device here; the kernel's.
    pub fn hold(&mut self) -> io::Result<(HoldingDevice, Alive)> {
        let Splitter::Bpf(splitter) = &mut self.splitter else {
            return Err(nft::cannot_hold());
        };
        let device = HoldingDevice::create()?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            // It needs no address; gone with the device.
            sysctl::write(
                &format!("net/ipv6/conf/{}/disable_ipv6", holding::NAME),
                "1",
            )?;
        }
        self.netlink.set_up(device.ifindex(), holding::MTU.into())?;
        splitter.release_from(&self.netlink, device.ifindex())?;
        Ok((device, Alive(splitter.alive()?)))
    }

    /// Those of `hops` whose next hops answer, without those that do not; an unknown next hop is as in `before`. Whoever has
    /// not answered lately is asked. The second result: whether all are known.
    ///
    /// A packet that is redirected while the kernel still waits for the next hop's link-layer address is lost, so that a
    /// link must not be given packets earlier.
    ///
    /// # Errors
    /// The kernel's.
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

    /// Whether the device of each of `hops` is there, switched on and with carrier at this moment; `false` where there is no hop.
    ///
    /// # Errors
    /// The kernel's.
    pub fn running(&self, hops: &[Option<Hop>]) -> io::Result<Vec<bool>> {
        let is_running = |hop: &Option<Hop>| {
            hop.as_ref()
                .map_or(Ok(false), |hop| self.netlink.is_running(hop.ifindex))
        };
        hops.iter().map(is_running).collect()
    }

    /// What was sent over each link so far.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sent(&self) -> io::Result<Vec<Sent>> {
        match &self.splitter {
            Splitter::Bpf(splitter) => splitter.sent(),
            Splitter::Nft(splitter) => splitter.sent(),
        }
    }

    /// Bytes that others sent by the device of each of `hops`, counted where [`Self::sent`] counts; `None` where they are not.
    #[must_use]
    pub fn others(&self, hops: &[Option<Hop>]) -> Vec<Option<u64>> {
        let others = |hop: &Option<Hop>| match &self.splitter {
            Splitter::Bpf(splitter) => splitter.others(hop.as_ref()?.ifindex),
            Splitter::Nft(_) => None,
        };
        hops.iter().map(others).collect()
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// The first thing that could not be undone; the rest is still tried.
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
        for rule in routes::rules::rules(DESTINATIONS_SLOT, Bank::First, &self.destinations)? {
            self.netlink.add_rule(&rule)?;
        }
        if let Splitter::Nft(splitter) = &self.splitter {
            splitter.prepare(&self.netlink, links, &self.destinations)?;
        }
        Ok(())
    }

    /// Prepares devices that are new.
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

    /// Loosens the reverse path filter of `device` and, if asked, has it take no offloaded packets.
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

    /// Routes the destinations over `hops`, the first preferred.
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

    /// Looks whether all routes are still there, which the kernel drops when a device goes down for however short a time; if not,
    /// the next [`Self::set`] makes all of them again. `false`: call it.
    ///
    /// # Errors
    /// The kernel's.
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

/// Clears what a crashed equalizer left in this namespace; `Ok(false)` if one runs.
///
/// [`Equalizer::begin`] does it as well; this is for cleaning up without starting.
///
/// # Errors
/// What is left cannot be removed.
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

/// Whether `device` is like Ethernet; a device that is not there yet is taken to be.
fn has_link_addresses(device: &str) -> bool {
    crate::ethtool::hardware_type(device).is_none_or(|kind| kind == libc::ARPHRD_ETHER)
}

/// Undoes all that `state` stands for, then forgets it. Everything is tried; the first error is returned.
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
            // Gone, or changed by somebody else meanwhile.
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

/// The table with routes to the destinations.
fn table() -> u32 {
    routes::rules::table(DESTINATIONS_SLOT)
}

/// Behind the tunnels' slots; asked after those of the marks.
const DESTINATIONS_SLOT: u32 = routes::rules::SLOTS + 1;
/// Rules for marks of the nftables back end.
const MARKS_SLOT: u32 = routes::rules::SLOTS;
/// Metric of the routes over the first link.
const METRIC: u32 = 100;
/// No device, and so no tunnel, has a colon in its name.
const LOCK: &str = "equalizer:";
const OWNER: &str = "equalizer:";
const STATE_FILE: &str = "equalizer:json";
