//! Everything a tunnel changes in the host's network configuration, and its undoing.
//!
//! # Which packets go into the tunnel
//!
//! The tunnel's routes lie in a table of their own. Rules ask that table and the main table in turn, so that together
//! they behave as one table with longest-prefix match: for each prefix length L among the tunnel's routes, longest
//! first, one rule lets the main table answer with prefixes longer than L, the next lets the tunnel's table answer with
//! prefixes of at least L. For the usual default route these are the two rules of wg-quick: the LAN stays reachable,
//! the rest goes into the tunnel.
//!
//! The rules for the tunnel's table skip packets with the tunnel's mark, which its own sockets set. So no datagram of
//! the tunnel is ever sent into the tunnel, whatever the routes are.
//!
//! # Reverse path filter
//!
//! A datagram from the gateway comes in by a link, while the route back to its sender leads into the tunnel. The
//! strict filter (`rp_filter` 1) drops it, and with several links the mark would not save it (`src_valid_mark`): the
//! main table still names only the best link. So a link with a strict filter is set to the loose one (2).
//!
//! # Kill switch
//!
//! With [`Plan::kill_switch`] each route of the tunnel's table has an unreachable one behind it. When the process dies its device
//! and the routes over it go, but the rules and the unreachable routes stay: what would go into the tunnel goes nowhere, also what a
//! host behind this one sends. Local networks, for which the main table
//! has routes of its own, stay reachable, as while the tunnel runs. The nftables table, which stays as well, drops what would leave
//! by another device all the same, by a route that a DHCP server has announced or from a socket that is bound to it; see [`nft`]. So
//! a host with a kill switch needs `nft`. A clean stop ([`Setup::undo`]) opens the host again; dropping the
//! value after a failure does not. The next start leaves rules and unreachable routes in force
//! until its own stand (`routes/rules.rs`), so that a start that fails neither opens the host nor cuts off the LAN.
//!
//! Limits: what is not routed into the tunnel (IPv6, if `allowed_ips` has none) is not held back, and a host that boots is open until
//! the tunnel has first started. Networks that devices come to be connected to while the daemon is dead are not reached.
//!
//! # Undoing
//!
//! Table, mark and priorities follow from a slot number, chosen by the tunnel's name and written down before anything
//! is changed ([`crate::state`]). [`Setup::undo`], or dropping the value, removes exactly those; [`Setup::begin`] first
//! does the same for what a crashed process of that name left. If the file is lost, too, the slot of the name is
//! cleared unless its table has routes: routes end with the device, so routes mean that another tunnel lives there.
//!
//! Limit: at most 49 different prefix lengths per family.

mod forwarding;
pub(crate) mod rules;

use std::{collections::BTreeMap, io, path::Path};

use ipnet::IpNet;

pub use rules::TABLE_BASE;
use rules::{Bank, SLOTS, preferred_slot, priorities, table};

use crate::{
    netlink::Netlink,
    nft::{self, Forward, Hold, Others},
    state::{Lock, StateDir, TunnelState},
    surroundings::Surroundings,
    sysctl,
};

/// What a tunnel wants of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Addresses of the device, with prefix length.
    pub addresses: Vec<IpNet>,
    /// What is routed into the tunnel: `allowed_ips`.
    pub routes: Vec<IpNet>,
    /// MTU of the device in bytes.
    pub mtu: u16,
    /// Forward packets between the tunnel and other links: a gateway.
    pub forward: bool,
    /// Networks whose packets leave by other links with the host's address.
    pub masquerade: Vec<IpNet>,
    /// Clients of a gateway do not reach each other.
    pub isolate: bool,
    /// What is routed into the tunnel goes no other way if the process dies.
    pub kill_switch: bool,
}

impl Plan {
    /// The routes of families that this host has.
    fn usable_routes(&self) -> Vec<IpNet> {
        let has_v6 = has_v6();
        let is_usable = |network: &&IpNet| has_v6 || network.addr().is_ipv4();
        self.routes.iter().filter(is_usable).copied().collect()
    }
}

fn has_v6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// A tunnel's hold on the host's configuration, given back when dropped.
#[derive(Debug)]
pub struct Setup {
    name: String,
    dir: StateDir,
    state: TunnelState,
    addresses: Vec<IpNet>,
    netlink: Netlink,
    /// What a gateway's host forwarded before tunnels were: IPv4, IPv6.
    others: [Others; 2],
    /// What the nftables table knows of them; `None`: there is none.
    surroundings: Option<Surroundings>,
    /// Whether the kill switch outlives this process: the tunnel has run, in this process or an earlier one.
    holds: bool,
    is_undone: bool,
    _lock: Lock,
}

impl Setup {
    /// Locks the name, clears what a crashed process left under it, and reserves table, mark and priorities.
    ///
    /// `base`: directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`]. `name`: of the device. Works
    /// in the network namespace of the calling thread; call the other methods from a thread in the same.
    ///
    /// # Errors
    /// If a tunnel of that name runs already, with [`io::ErrorKind::AddrInUse`]; if the name is no device name; if
    /// the state cannot be written.
    pub fn begin(base: &Path, name: &str) -> io::Result<Self> {
        check_name(name)?;
        let dir = StateDir::open(base)?;
        let Some(lock) = dir.try_lock(name)? else {
            let text = format!("tunnel {name} runs already: stop it first, or choose another name");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        };
        let netlink = Netlink::open()?;
        let left = dir.read::<TunnelState>(&state_file(name));
        if left.is_some() {
            tracing::info!(name, "clearing what a crashed process left");
        }
        let state = match left {
            Some(state) if state.is_closed => {
                // What keeps the host closed stays until `apply` has replaced it.
                rules::empty(&netlink, state.slot, state.bank.other())?;
                sysctl::release(&dir, name)?;
                state
            }
            left => {
                if let Some(state) = left {
                    clear(&dir, name, &state, &netlink)?;
                }
                sysctl::release(&dir, name)?;
                let slots_lock = dir.lock(SLOTS_LOCK)?;
                let state = TunnelState {
                    slot: free_slot(&dir, name, &netlink)?,
                    has_nft: false,
                    is_closed: false,
                    bank: Bank::default(),
                };
                dir.write(&state_file(name), &state)?;
                drop(slots_lock);
                state
            }
        };
        let state_is_closed = state.is_closed;
        Ok(Self {
            name: name.to_owned(),
            dir,
            state,
            addresses: Vec::new(),
            netlink,
            others: [Others::All, Others::All],
            surroundings: None,
            holds: state_is_closed,
            is_undone: false,
            _lock: lock,
        })
    }

    /// Notes that the host must stay closed if this process dies, or need not any more.
    fn set_closed(&mut self, is_closed: bool) -> io::Result<()> {
        if self.state.is_closed != is_closed {
            self.state.is_closed = is_closed;
            self.dir.write(&state_file(&self.name), &self.state)?;
        }
        Ok(())
    }

    /// The tunnel runs: from now on only [`Setup::undo`] opens a kill switch. Before, a start that fails leaves the host as it was.
    pub fn hold(&mut self) {
        self.holds = true;
    }

    /// The mark that the tunnel's own sockets must carry.
    #[must_use]
    pub fn fwmark(&self) -> u32 {
        table(self.state.slot)
    }

    /// The number of the tunnel's routing table.
    #[must_use]
    pub fn table(&self) -> u32 {
        table(self.state.slot)
    }

    /// Configures the device, which must exist, its routes, forwarding and the nftables table. Call it once.
    ///
    /// # Errors
    /// With the step that failed in the text. What was done till then is undone by [`Setup::undo`] or dropping.
    pub fn apply(&mut self, plan: &Plan) -> io::Result<()> {
        let has_v6 = has_v6();
        let is_usable = |network: &&IpNet| has_v6 || network.addr().is_ipv4();
        let link = self.netlink.link_index(&self.name)?;
        let link = link.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("device {} does not exist", self.name),
            )
        })?;
        if has_v6 {
            // Some hosts switch IPv6 off for new devices. This one is ours.
            let key = format!("net/ipv6/conf/{}/disable_ipv6", self.name);
            if sysctl::read(&key).is_ok_and(|value| value == "1") {
                sysctl::write(&key, "0")?;
            }
        } else if plan
            .addresses
            .iter()
            .any(|address| address.addr().is_ipv6())
        {
            tracing::warn!(
                "this host has no IPv6: the tunnel's IPv6 addresses and routes are left out"
            );
        }
        let up = self.netlink.set_up(link, plan.mtu.into());
        up.map_err(|error| context(&error, &format!("switching on {}", self.name)))?;
        for &address in plan.addresses.iter().filter(is_usable) {
            self.addresses.push(address);
            let added = self.netlink.add_address(link, address);
            added.map_err(|error| context(&error, &format!("address {address}")))?;
        }
        let routes = plan.usable_routes();
        if plan.kill_switch {
            self.set_closed(true)?;
            for &route in &routes {
                let added = self.netlink.add_unreachable(route, self.table());
                added.map_err(|error| context(&error, &format!("kill switch for {route}")))?;
            }
        }
        self.add_routes(routes.iter())?;
        self.exchange_rules(&routes)?;
        // What an earlier process left of its kill switch is not needed any more.
        let kept = if plan.kill_switch { &*routes } else { &[] };
        self.netlink.delete_unreachable(self.table(), kept)?;
        self.set_closed(plan.kill_switch)?;
        if plan.forward {
            // The rules come first: nothing is forwarded without them.
            self.others = forwarding::others(&self.dir, &self.name)?;
            self.apply_nft(plan)?;
            return forwarding::enable(&self.dir, &self.name, has_v6);
        }
        let applied = self.apply_nft(plan);
        if !plan.masquerade.is_empty() || plan.kill_switch {
            return applied;
        }
        if let Err(error) = applied {
            tracing::warn!(%error, "neighbours on the links can find out the tunnel's addresses, and TCP segment sizes of forwarded connections are not clamped");
            if error.kind() == io::ErrorKind::NotFound {
                // Nothing can be there to be removed.
                self.state.has_nft = false;
                self.dir.write(&state_file(&self.name), &self.state)?;
            }
        }
        Ok(())
    }

    /// Changes routes and masquerading from those of `before`, which were [applied](Self::apply), to those of `after`. At no moment
    /// does a packet that both plans route miss its route.
    ///
    /// # Errors
    /// With the step that failed in the text, and whether the state of `before` is in force again.
    pub fn change_routes(&mut self, before: &Plan, after: &Plan) -> io::Result<()> {
        let Err(error) = self.step(before, after) else {
            return Ok(());
        };
        let state = match self.step_back(before, after) {
            Ok(()) => "the former routes are in force again".to_owned(),
            Err(second) => format!("nor can the former routes be restored: {second}"),
        };
        Err(io::Error::new(error.kind(), format!("{error}; {state}")))
    }

    fn step(&mut self, before: &Plan, after: &Plan) -> io::Result<()> {
        let (old, new) = (before.usable_routes(), after.usable_routes());
        self.add_routes(new.iter().filter(|route| !old.contains(route)))?;
        if !self.have_equal_rules(&old, &new)? {
            self.exchange_rules(&new)?;
        }
        if before.masquerade != after.masquerade {
            self.apply_nft(after)?;
        }
        self.delete_routes(old.iter().filter(|route| !new.contains(route)))
    }

    /// Undoes whatever part of [`Self::step`] was done.
    fn step_back(&mut self, before: &Plan, after: &Plan) -> io::Result<()> {
        let (old, new) = (before.usable_routes(), after.usable_routes());
        self.add_routes(old.iter())?;
        // Too many prefix lengths never came into force.
        let is_exchanged = self.have_equal_rules(&old, &new).is_ok_and(|equal| !equal);
        let rules = if is_exchanged {
            self.exchange_rules(&old)
        } else {
            Ok(())
        };
        let routes = self.delete_routes(new.iter().filter(|route| !old.contains(route)));
        // A transaction that failed has changed nothing.
        rules.and(routes)
    }

    fn have_equal_rules(&self, old: &[IpNet], new: &[IpNet]) -> io::Result<bool> {
        let of = |routes| rules::rules(self.state.slot, self.state.bank, routes);
        Ok(of(old)? == of(new)?)
    }

    fn add_routes<'a>(&self, routes: impl Iterator<Item = &'a IpNet>) -> io::Result<()> {
        let link = self.netlink.link_index(&self.name)?;
        let link = link.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("device {} does not exist", self.name),
            )
        })?;
        for &route in routes {
            let added = self.netlink.add_route(route, link, self.table());
            added.map_err(|error| context(&error, &format!("route {route}")))?;
        }
        Ok(())
    }

    fn delete_routes<'a>(&self, routes: impl Iterator<Item = &'a IpNet>) -> io::Result<()> {
        for &route in routes {
            let deleted = self.netlink.delete_route(route, self.table());
            deleted.map_err(|error| context(&error, &format!("route {route}")))?;
        }
        Ok(())
    }

    /// Puts the rules for `routes` in force instead of those that are, without a gap. If it fails, the former stay in force.
    fn exchange_rules(&mut self, routes: &[IpNet]) -> io::Result<()> {
        let (slot, old) = (self.state.slot, self.state.bank);
        rules::empty(&self.netlink, slot, old.other())?;
        rules::fill(&self.netlink, slot, old.other(), routes)?;
        self.state.bank = old.other();
        if let Err(error) = self.dir.write(&state_file(&self.name), &self.state) {
            self.state.bank = old;
            rules::empty(&self.netlink, slot, old.other())?;
            return Err(error);
        }
        rules::empty(&self.netlink, slot, old)
    }

    /// Makes or replaces the nftables table for `plan`, for example after its MTU changed.
    ///
    /// # Errors
    /// See [`nft::apply`].
    pub fn apply_nft(&mut self, plan: &Plan) -> io::Result<()> {
        if !self.state.has_nft {
            self.state.has_nft = true;
            self.dir.write(&state_file(&self.name), &self.state)?;
        }
        let [others_v4, others_v6] = self.others.clone();
        let forward = plan.forward.then_some(Forward {
            isolate: plan.isolate,
            others_v4,
            others_v6,
        });
        let hold = plan.kill_switch.then(|| Hold {
            mark: self.fwmark(),
            routes: plan.routes.clone(),
        });
        let surroundings = Surroundings::read(&self.netlink, &self.name)?;
        let rules = nft::Rules {
            mtu: plan.mtu,
            addresses: plan.addresses.clone(),
            masquerade: plan.masquerade.clone(),
            forward,
            hold,
            surroundings: surroundings.clone(),
        };
        nft::apply(&self.name, &rules)?;
        self.surroundings = Some(surroundings);
        Ok(())
    }

    /// Tells the nftables table what lies around the tunnel now, if that has changed. Does nothing without a table.
    ///
    /// # Errors
    /// See [`Surroundings::read`] and [`nft::update`].
    pub fn look_around(&mut self) -> io::Result<()> {
        let Some(known) = &self.surroundings else {
            return Ok(());
        };
        let now = Surroundings::read(&self.netlink, &self.name)?;
        if *known != now {
            nft::update(&self.name, &now)?;
            self.surroundings = Some(now);
        }
        Ok(())
    }

    /// What the nftables table has dropped, by reason, in packets; empty without a table.
    ///
    /// # Errors
    /// See [`nft::counters`].
    pub fn dropped(&self) -> io::Result<BTreeMap<String, u64>> {
        if self.surroundings.is_none() {
            return Ok(BTreeMap::new());
        }
        nft::counters(&self.name)
    }

    /// Sets the reverse path filter of `device`, a link of the tunnel, from strict to loose. Call it for each link
    /// that comes.
    ///
    /// # Errors
    /// If the setting cannot be changed. A device that is gone is no error.
    pub fn loosen_reverse_path(&self, device: &str) -> io::Result<()> {
        loosen_reverse_path(&self.dir, &self.name, device)
    }

    /// Gives everything back. The device itself goes when it is closed, before or after.
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
        let cleared = clear(&self.dir, &self.name, &self.state, &self.netlink);
        let deleted = self.delete_addresses();
        cleared.and(deleted)
    }

    fn delete_addresses(&self) -> io::Result<()> {
        let Some(link) = self.netlink.link_index(&self.name)? else {
            return Ok(());
        };
        for &address in &self.addresses {
            self.netlink.delete_address(link, address)?;
        }
        Ok(())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if self.state.is_closed && self.holds && !self.is_undone {
            tracing::warn!(
                name = self.name,
                "the kill switch stays: start the tunnel and stop it to undo it"
            );
            return;
        }
        if let Err(error) = self.undo_once() {
            tracing::error!(name = self.name, %error, "cannot undo the network configuration");
        }
    }
}

/// The mark of the own sockets of tunnel `name`, which lets packets past its kill switch; `None` if nothing of that tunnel is set up.
#[must_use]
pub fn fwmark_of(base: &Path, name: &str) -> Option<u32> {
    check_name(name).ok()?;
    let state: TunnelState = StateDir::open(base).ok()?.read(&state_file(name))?;
    Some(table(state.slot))
}

/// Clears what a crashed process left under `name`; `Ok(false)` if a tunnel of that name runs.
///
/// [`Setup::begin`] does it as well; this is for cleaning up without starting.
///
/// # Errors
/// As [`Setup::begin`].
pub fn recover(base: &Path, name: &str) -> io::Result<bool> {
    match Setup::begin(base, name) {
        Ok(setup) => setup.undo().map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the reverse path filter of `device` from strict to loose for `owner`.
pub(crate) fn loosen_reverse_path(dir: &StateDir, owner: &str, device: &str) -> io::Result<()> {
    check_name(device)?;
    let key = format!("net/ipv4/conf/{device}/rp_filter");
    let level = |key: &str| -> Option<u8> { sysctl::read(key).ok()?.parse().ok() };
    let Some(own) = level(&key) else {
        return Ok(());
    };
    // The kernel takes the larger of the two.
    let all = level("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    if own.max(all) == 1 {
        sysctl::set(dir, owner, &key, "2")?;
    }
    Ok(())
}

/// Undoes all that `state` stands for, then forgets it. Everything is tried; the first error is returned.
fn clear(dir: &StateDir, name: &str, state: &TunnelState, netlink: &Netlink) -> io::Result<()> {
    let rules = netlink.delete_rules(priorities(state.slot), table(state.slot));
    let routes = netlink.flush_table(table(state.slot));
    // Forwarding ends before its rules do.
    let sysctls = sysctl::release(dir, name);
    let nft = if state.has_nft {
        nft::remove(name)
    } else {
        Ok(())
    };
    rules.and(routes).and(nft).and(sysctls)?;
    dir.remove(&state_file(name))
}

/// The slot of `name`, or the next one that nobody uses.
fn free_slot(dir: &StateDir, name: &str, netlink: &Netlink) -> io::Result<u32> {
    let taken: Vec<u32> = dir.others(name)?.iter().map(|other| other.slot).collect();
    let preferred = preferred_slot(name);
    for slot in (0..SLOTS).map(|step| (preferred + step) % SLOTS) {
        if taken.contains(&slot) || netlink.route_count(table(slot))? > 0 {
            continue;
        }
        if slot == preferred {
            netlink.delete_rules(priorities(slot), table(slot))?;
            netlink.flush_table(table(slot))?;
        }
        if netlink.rule_count(priorities(slot))? == 0 {
            return Ok(slot);
        }
    }
    Err(io::Error::other(format!(
        "all routing tables from {TABLE_BASE} to {} are in use",
        TABLE_BASE + SLOTS - 1
    )))
}

fn state_file(name: &str) -> String {
    format!("{name}.state")
}

/// The kernel's own rule (`dev_valid_name`), which also keeps names out of other directories.
fn check_name(name: &str) -> io::Result<()> {
    let has_bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0';
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(has_bad) {
        let text =
            format!("{name:?} is no device name: 1 to 15 characters without /, : and spaces");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

fn context(error: &io::Error, what: &str) -> io::Error {
    let remedy = if error.kind() == io::ErrorKind::PermissionDenied {
        "; run as root or with CAP_NET_ADMIN"
    } else {
        ""
    };
    io::Error::new(error.kind(), format!("{what}: {error}{remedy}"))
}

/// Held while a slot is chosen. No device has a colon in its name.
const SLOTS_LOCK: &str = "slots:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in ["", ".", "..", "a/b", "a b", "a:b", "sixteen-letters-"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("pleach0").is_ok());
    }
}
