//! All changes of a tunnel to the host's network configuration, and their undoing.
//!
//! # Which packets go into the tunnel
//!
//! The tunnel's routes are in a table of their own. Rules look up that table and the main table alternately, so that
//! together they behave like one table with longest-prefix match. For each prefix length L among the tunnel's routes,
//! longest first, there are two rules: the first looks up the main table for prefixes longer than L, the second looks
//! up the tunnel's table for prefixes of at least L. For the usual default route these are the two rules of wg-quick:
//! the LAN stays reachable, and all other packets go into the tunnel.
//!
//! The rules for the tunnel's table skip packets with the tunnel's mark, which its own sockets set. So no datagram of
//! the tunnel is ever sent into the tunnel, regardless of the routes.
//!
//! Packets that lead past the tunnel ([`Plan::past`]) find a rule for the main table before these rules. The kernel
//! chooses the route, and with it the source address, when a program connects.
//!
//! # Reverse path filter
//!
//! A datagram from the gateway arrives by a link, while the route back to its sender leads into the tunnel. The strict
//! filter (`rp_filter` 1) drops it. With several links the mark would not prevent this (`src_valid_mark`), because the
//! main table still names only the best link. So a link with a strict filter is set to the loose filter (2).
//!
//! # Kill switch
//!
//! With [`Plan::kill_switch`] each route of the tunnel's table has an unreachable route behind it. When the process
//! dies, its device and the routes over it disappear, but the rules and the unreachable routes stay. Then packets for
//! the tunnel are not sent at all, including packets from hosts behind this one. Local networks, for which the main
//! table has its own routes, stay reachable, as while the tunnel runs. The nftables table stays too. It drops packets
//! that would still leave by another device, because of a route that a DHCP server has announced or from a socket that
//! is bound to the device; see [`nft`]. So a host with a kill switch needs `nft`. A clean stop ([`Setup::undo`]) opens
//! the host again; dropping the value after a failure does not. The next start keeps the old rules and unreachable
//! routes in force until its own are complete (`routes/rules.rs`), so that a failed start neither opens the host nor
//! cuts off the LAN.
//!
//! Limits: packets that are not routed into the tunnel (IPv6, if `allowed_ips` contains none) are not blocked. After
//! boot, the host is open until the tunnel has first started. Networks to which devices are connected while the daemon
//! is dead are not reachable.
//!
//! # Undoing
//!
//! Table, mark and priorities follow from a slot number. It is chosen by the tunnel's name and recorded in a file
//! before anything is changed ([`crate::state`]). [`Setup::undo`], or dropping the value, undoes exactly these changes.
//! [`Setup::begin`] first does the same for the changes of a crashed process of that name. If the file is lost too, the
//! slot of the name is cleared unless its table has routes: routes disappear with the device, so routes mean that
//! another tunnel uses the slot.
//!
//! Limit: at most 49 different prefix lengths per family.

mod forwarding;
mod hosts;
pub(crate) mod rules;
mod tables;

use std::{collections::BTreeSet, io, path::Path};

use ipnet::IpNet;

pub use rules::TABLE_BASE;
use rules::{Bank, SLOTS, preferred_slot, priorities, table};

pub use crate::netlink::Selector;
use crate::{
    netlink::Netlink,
    nft::{self, Others},
    state::{Lock, StateDir, TunnelState},
    sysctl,
};

/// Configuration that a tunnel needs on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Addresses of the device, with prefix length.
    pub addresses: Vec<IpNet>,
    /// Networks that are routed into the tunnel: `allowed_ips`.
    pub routes: Vec<IpNet>,
    /// MTU of the device in bytes.
    pub mtu: u16,
    /// Whether to forward packets between the tunnel and other links, as a gateway does.
    pub forward: bool,
    /// Networks whose packets leave by other links with the host's address.
    pub masquerade: Vec<IpNet>,
    /// Whether clients of a gateway cannot reach each other.
    pub isolate: bool,
    /// Whether packets for the tunnel must not leave by another device if the process dies.
    pub kill_switch: bool,
    /// Packets that use the main table, although they have a route into the tunnel.
    pub past: Vec<Selector>,
}

impl Plan {
    /// Whether the tunnel must not run without its nftables table.
    fn needs_nft(&self) -> bool {
        self.forward || self.kill_switch || !self.masquerade.is_empty()
    }

    /// Returns the routes of the families that this host has.
    fn usable_routes(&self) -> Vec<IpNet> {
        let has_v6 = has_v6();
        let is_usable = |network: &&IpNet| has_v6 || network.addr().is_ipv4();
        self.routes.iter().filter(is_usable).copied().collect()
    }
}

fn has_v6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// A tunnel's changes to the host's configuration, undone when dropped.
#[derive(Debug)]
pub struct Setup {
    name: String,
    dir: StateDir,
    state: TunnelState,
    addresses: Vec<IpNet>,
    /// Destinations of the routes of [`Self::add_host_routes`].
    hosts: BTreeSet<IpNet>,
    /// Destinations whose routes are still to be added, if they are in `hosts`, or removed.
    unsettled_hosts: BTreeSet<IpNet>,
    netlink: Netlink,
    /// Devices from which the host forwarded packets before tunnels ran: IPv4, IPv6.
    others: [Others; 2],
    /// Content of the nftables table. `None`: there is no table.
    rules: Option<nft::Rules>,
    /// Whether `nft` was killed while it applied `rules`: the kernel has either these rules or the previous state.
    is_doubtful: bool,
    /// Whether the kill switch outlives this process: the tunnel has run, in this process or an earlier one.
    holds: bool,
    is_undone: bool,
    _lock: Lock,
}

impl Setup {
    /// Locks the name, removes the remains of a crashed process of that name, and reserves table, mark and priorities.
    ///
    /// `base` is the directory for state files, normally [`crate::state::DEFAULT_STATE_DIR`]. `name` is the name of the
    /// device. Works in the network namespace of the calling thread. Call the other methods from a thread in the same
    /// namespace.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::AddrInUse`] if a tunnel of that name already runs. Fails if `name` is not a valid
    /// device name, or if the state cannot be written.
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
                // The rules and routes that keep the host closed stay until `apply` has replaced them.
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
            hosts: BTreeSet::new(),
            unsettled_hosts: BTreeSet::new(),
            netlink,
            others: [Others::All, Others::All],
            rules: None,
            is_doubtful: false,
            holds: state_is_closed,
            is_undone: false,
            _lock: lock,
        })
    }

    /// Records whether the host must stay closed if this process dies.
    fn set_closed(&mut self, is_closed: bool) -> io::Result<()> {
        if self.state.is_closed != is_closed {
            self.state.is_closed = is_closed;
            self.dir.write(&state_file(&self.name), &self.state)?;
        }
        Ok(())
    }

    /// Records that the tunnel runs: from now on only [`Setup::undo`] opens a kill switch. Before this call, a start
    /// that fails leaves the host unchanged.
    pub fn hold(&mut self) {
        self.holds = true;
    }

    /// Returns the mark that the tunnel's own sockets must carry.
    #[must_use]
    pub fn fwmark(&self) -> u32 {
        table(self.state.slot)
    }

    /// Returns the number of the tunnel's routing table.
    #[must_use]
    pub fn table(&self) -> u32 {
        table(self.state.slot)
    }

    /// Configures the device, which must exist, its routes, forwarding and the nftables table. Must be called only
    /// once.
    ///
    /// # Errors
    /// Returns an error whose text names the failed step. The changes made before are undone by [`Setup::undo`] or
    /// dropping.
    pub fn apply(&mut self, plan: &Plan) -> io::Result<()> {
        if plan.needs_nft() {
            // This is checked first, so that a host without nftables is not changed.
            nft::probe()?;
        }
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
            // Some hosts disable IPv6 for new devices. This device belongs to the tunnel.
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
        self.exchange_rules(&routes, &plan.past)?;
        // The kill switch of an earlier process is not needed any more.
        let kept = if plan.kill_switch { &*routes } else { &[] };
        self.netlink.delete_unreachable(self.table(), kept)?;
        self.set_closed(plan.kill_switch)?;
        if plan.forward {
            // The rules are set first, because nothing may be forwarded without them.
            self.others = forwarding::others(&self.dir, &self.name)?;
            self.apply_nft(plan)?;
            return forwarding::enable(&self.dir, &self.name, has_v6);
        }
        let applied = self.apply_nft(plan);
        if plan.needs_nft() {
            return applied;
        }
        if let Err(error) = applied {
            tracing::warn!(%error, "neighbours on the links can find out the tunnel's addresses, and TCP segment sizes of forwarded connections are not clamped");
        }
        Ok(())
    }

    /// Changes routes and masquerading from those of `before`, which were [applied](Self::apply), to those of `after`.
    /// A packet that both plans route finds its route at every moment.
    ///
    /// # Errors
    /// Returns an error whose text names the failed step, and says whether the state of `before` is in force again.
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
        if !self.have_equal_rules((&old, &before.past), (&new, &after.past))? {
            self.exchange_rules(&new, &after.past)?;
        }
        if before.masquerade != after.masquerade {
            self.apply_nft(after)?;
        }
        self.delete_routes(old.iter().filter(|route| !new.contains(route)))
    }

    /// Undoes the completed part of [`Self::step`].
    fn step_back(&mut self, before: &Plan, after: &Plan) -> io::Result<()> {
        let (old, new) = (before.usable_routes(), after.usable_routes());
        self.add_routes(old.iter())?;
        // If there are too many prefix lengths, the new rules were never in force.
        let is_exchanged = self
            .have_equal_rules((&old, &before.past), (&new, &after.past))
            .is_ok_and(|equal| !equal);
        let rules = if is_exchanged {
            self.exchange_rules(&old, &before.past)
        } else {
            Ok(())
        };
        let routes = self.delete_routes(new.iter().filter(|route| !old.contains(route)));
        if self.is_doubtful {
            // The transaction may have been completed: the next `look_around` applies the former rules.
            self.rules = Some(self.nft_rules(before)?);
        }
        rules.and(routes)
    }

    fn have_equal_rules(
        &self,
        old: (&[IpNet], &[Selector]),
        new: (&[IpNet], &[Selector]),
    ) -> io::Result<bool> {
        let of = |(routes, past)| rules::rules(self.state.slot, self.state.bank, routes, past);
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

    /// Replaces the current rules by rules for `routes` and `past`, without a gap. If this fails, the current rules stay in
    /// force.
    fn exchange_rules(&mut self, routes: &[IpNet], past: &[Selector]) -> io::Result<()> {
        let (slot, old) = (self.state.slot, self.state.bank);
        rules::empty(&self.netlink, slot, old.other())?;
        rules::fill(&self.netlink, slot, old.other(), (routes, past))?;
        self.state.bank = old.other();
        if let Err(error) = self.dir.write(&state_file(&self.name), &self.state) {
            self.state.bank = old;
            rules::empty(&self.netlink, slot, old.other())?;
            return Err(error);
        }
        rules::empty(&self.netlink, slot, old)
    }

    /// Sets the reverse path filter of `device`, a link of the tunnel, from strict to loose. Call it for each new link.
    ///
    /// # Errors
    /// Fails if the setting cannot be changed. A device that is gone is not an error.
    pub fn loosen_reverse_path(&self, device: &str) -> io::Result<()> {
        loosen_reverse_path(&self.dir, &self.name, device)
    }

    /// Undoes all changes. The device itself disappears when it is closed, before or after.
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
        // The kill switch is marked as open first. If removing the table fails, the next start then does not mistake
        // the remaining table for a kill switch.
        let opened = self.set_closed(false);
        let left = self.delete_all_host_routes();
        let cleared = clear(&self.dir, &self.name, &self.state, &self.netlink);
        let deleted = self.delete_addresses();
        opened.and(left).and(cleared).and(deleted)
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

/// Returns the mark of the own sockets of tunnel `name`, which lets packets pass its kill switch. `None` if nothing of
/// that tunnel is set up.
#[must_use]
pub fn fwmark_of(base: &Path, name: &str) -> Option<u32> {
    check_name(name).ok()?;
    let state: TunnelState = StateDir::open(base).ok()?.read(&state_file(name))?;
    Some(table(state.slot))
}

/// Removes the remains of a crashed process of the name `name`. Returns `Ok(false)` if a tunnel of that name runs.
///
/// [`Setup::begin`] does this too. This function cleans up without starting.
///
/// # Errors
/// Returns the errors of [`Setup::begin`].
pub fn recover(base: &Path, name: &str) -> io::Result<bool> {
    recover_with(base, name, || ()).map(|recovered| recovered.is_some())
}

/// Does what [`recover`] does, and calls `rest` while no tunnel of that name can start. Returns the result of `rest`, or
/// `None` if a tunnel of that name runs.
///
/// # Errors
/// Returns the errors of [`Setup::begin`] and [`Setup::undo`].
pub fn recover_with<T>(base: &Path, name: &str, rest: impl FnOnce() -> T) -> io::Result<Option<T>> {
    let mut setup = match Setup::begin(base, name) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
        begun => begun?,
    };
    let undone = setup.undo_once();
    let result = rest();
    // The lock is released here.
    drop(setup);
    undone.map(|()| Some(result))
}

/// Sets the reverse path filter of `device` from strict to loose for `owner`.
pub(crate) fn loosen_reverse_path(dir: &StateDir, owner: &str, device: &str) -> io::Result<()> {
    check_name(device)?;
    let key = format!("net/ipv4/conf/{device}/rp_filter");
    let level = |key: &str| -> Option<u8> { sysctl::read(key).ok()?.parse().ok() };
    let Some(own) = level(&key) else {
        return Ok(());
    };
    // The kernel uses the larger of the two values.
    let all = level("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    if own.max(all) == 1 {
        sysctl::set(dir, owner, &key, "2")?;
    }
    Ok(())
}

/// Undoes all changes in `state`, then deletes it. All changes are attempted; the first error is returned.
fn clear(dir: &StateDir, name: &str, state: &TunnelState, netlink: &Netlink) -> io::Result<()> {
    let rules = netlink.delete_rules(priorities(state.slot), table(state.slot));
    let routes = netlink.flush_table(table(state.slot));
    // Forwarding is switched off before its rules are removed.
    let sysctls = sysctl::release(dir, name);
    let nft = if state.has_nft {
        nft::clear(&nft::table_name(name))
    } else {
        Ok(())
    };
    rules.and(routes).and(nft).and(sysctls)?;
    dir.remove(&state_file(name))
}

/// Returns the slot of `name`, or the next unused slot.
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

/// Checks a device name by the kernel's own rule (`dev_valid_name`), which also prevents paths to other directories.
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

/// Name of the lock that is held while a slot is chosen. No device has a colon in its name.
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
