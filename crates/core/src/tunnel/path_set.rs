//! The paths of an association, and which of them may carry data.
//!
//! A path may carry data ([`PathSet::may_carry`]) if it is up, has a route, is not asleep, and the user's rules allow it.
//! An active link is always allowed. A standby link is allowed while no active link is up. Any other link is never
//! allowed.
//!
//! A path is *asleep* if it wakes up ([`crate::path::radio`]) and has been silent for longer than an awake path may be,
//! although another path that is allowed has answered meanwhile. It is still up, because its radio may need more time,
//! but there is no reason to wait for it.

use core::{net::IpAddr, time::Duration};

use super::{rest::Rest, usage::Usage};
use crate::{
    ids::PathId,
    packet::Pool,
    path::{Former, Path, health::State, link::Link, memory::PathMemory},
    profile::Profile,
    role::Role,
    time::Instant,
    wire::control::LinkRole,
};

/// The paths of an association, indexed by id.
#[derive(Debug)]
pub struct PathSet {
    slots: [Option<Box<Path>>; PathId::MAX],
    /// State of a removed path, which is passed to the next path with the same id.
    former: [Option<Box<Former>>; PathId::MAX],
    /// Record of which paths have recently carried packets.
    pub(super) usage: Usage,
    rest: Rest,
}

impl Default for PathSet {
    fn default() -> Self {
        Self {
            slots: core::array::from_fn(|_| None),
            former: core::array::from_fn(|_| None),
            usage: Usage::default(),
            rest: Rest::default(),
        }
    }
}

impl PathSet {
    /// Returns the path with this id, if it exists.
    #[must_use]
    pub fn get(&self, id: PathId) -> Option<&Path> {
        self.slots.get(id.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.slots.get_mut(id.index())?.as_deref_mut()
    }

    /// Returns the paths in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Returns the ids of the paths, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        let known: [Option<PathId>; PathId::MAX] =
            core::array::from_fn(|index| self.slots[index].as_deref().map(Path::id));
        known.into_iter().flatten()
    }

    /// Returns a path whose remote address is new or has changed since the last call: its id, the name of its link, and
    /// the address. On a gateway the name is empty until the client has sent it.
    pub fn poll_found(&mut self, now: Instant) -> Option<(PathId, String, IpAddr)> {
        self.iter_mut().find_map(|path| {
            let to = path.take_found(now)?;
            Some((path.id(), path.link().name.clone(), to))
        })
    }

    /// Returns the estimates of each path that are worth storing.
    pub fn memories(&self, now: Instant) -> impl Iterator<Item = (PathId, PathMemory)> {
        self.iter()
            .filter_map(move |path| Some((path.id(), path.memory(now)?)))
    }

    /// Restores estimates that were stored for the network of a path.
    pub fn recall(&mut self, now: Instant, id: PathId, memory: &PathMemory) {
        if let Some(path) = self.get_mut(id) {
            path.recall(now, memory);
        }
    }

    /// Returns the paths that have a route, are down, and are probed by `until`. Another remote address may work for
    /// them.
    #[must_use]
    pub fn stuck(&self, until: Instant) -> Vec<PathId> {
        let is_stuck = |path: &&Path| {
            let health = path.health();
            path.route().is_some() && health.state() == State::Down && health.probe_due(until)
        };
        self.iter().filter(is_stuck).map(Path::id).collect()
    }

    /// Whether all paths are down.
    pub(super) fn are_down(&self) -> bool {
        self.iter().all(|path| path.health().state() == State::Down)
    }

    /// Informs a path that its link's socket is full (`true`) or accepts datagrams again.
    pub fn set_blocked(&mut self, id: PathId, is_blocked: bool) {
        if let Some(path) = self.get_mut(id) {
            path.set_blocked(is_blocked);
        }
    }

    /// Adds a path. Returns `false` if the id is out of range.
    pub(super) fn add(
        &mut self,
        now: Instant,
        (id, link): (PathId, Link),
        role: Role,
        profile: Profile,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id.index()) else {
            return false;
        };
        let mut path = Path::new(now, id, link, role, profile);
        path.set_resting(self.rest.is_on());
        if let Some(former) = self.former[id.index()].take() {
            path.resume(*former);
        }
        *slot = Some(Box::new(path));
        self.usage.forget(id);
        true
    }

    /// Returns the path `id`, which is created if it does not exist, because a gateway learns of a path from its first
    /// datagram. Returns `None` if the id is out of range.
    pub(super) fn get_or_add(
        &mut self,
        now: Instant,
        id: PathId,
        role: Role,
        profile: Profile,
    ) -> Option<&mut Path> {
        let is_resting = self.rest.is_on();
        let slot = self.slots.get_mut(id.index())?;
        Some(slot.get_or_insert_with(|| {
            let mut path = Path::new(now, id, Link::named(""), role, profile);
            path.set_resting(is_resting);
            Box::new(path)
        }))
    }

    /// Calls `change` with a path and all other paths. Returns `None` if the path does not exist.
    pub(super) fn with_others<T>(
        &mut self,
        id: PathId,
        change: impl FnOnce(&mut Path, &Self) -> T,
    ) -> Option<T> {
        let mut path = self.slots.get_mut(id.index())?.take()?;
        let result = change(&mut path, self);
        self.slots[id.index()] = Some(path);
        Some(result)
    }

    pub(super) fn remove(&mut self, id: PathId, pool: &mut Pool) {
        if let Some(path) = self.slots.get_mut(id.index()).and_then(Option::take) {
            self.former[id.index()] = Some(Box::new(path.retire(pool)));
        }
    }

    /// Resets the paths, as after a restart of the other end: a gateway removes its paths, a client resets their state.
    pub(super) fn restart(&mut self, now: Instant, role: Role, pool: &mut Pool) {
        self.former.fill_with(|| None);
        self.usage.forget_datagrams();
        for slot in &mut self.slots {
            let Some(path) = slot.as_deref_mut() else {
                continue;
            };
            path.sender_mut().forget(pool);
            match role {
                Role::Gateway => *slot = None,
                Role::Client => path.restart(now),
            }
        }
    }

    /// Records a packet, which ends a rest of the tunnel.
    pub(super) fn on_packet(&mut self, now: Instant) {
        if self.rest.on_packet(now) {
            self.set_resting(false);
        }
    }

    /// Records the start of an association, which ends a rest of the tunnel.
    pub(super) fn on_start(&mut self, now: Instant) {
        if self.rest.on_start(now) {
            self.set_resting(false);
        }
    }

    /// Begins a rest of the tunnel if it is due. Returns whether memory that only packets need is to be freed now.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        if self.rest.begin_due(now) {
            self.set_resting(true);
        }
        self.rest.take_release(now)
    }

    /// Frees the memory that idle paths do not need.
    pub(super) fn release_memory(&mut self) {
        self.iter_mut().for_each(Path::release_memory);
    }

    /// Returns whether the tunnel rests.
    pub(super) const fn resting(&self) -> &Rest {
        &self.rest
    }

    fn set_resting(&mut self, is_resting: bool) {
        for path in self.iter_mut() {
            path.set_resting(is_resting);
        }
    }

    /// Whether some active link is up.
    pub(super) fn has_active(&self) -> bool {
        self.iter()
            .any(|path| path.link().role == LinkRole::Active && path.health().state() == State::Up)
    }

    /// Whether the user's rules allow a path to carry data, given the health of the other paths.
    pub(super) fn is_allowed(&self, path: &Path) -> bool {
        match path.link().role {
            LinkRole::Active => true,
            LinkRole::Standby => !self.has_active(),
            LinkRole::Never => false,
        }
    }

    /// Whether a path works, is allowed to carry data, and is not asleep.
    pub(super) fn may_carry(&self, path: &Path) -> bool {
        path.is_working() && self.is_allowed(path) && !self.is_asleep(path)
    }

    /// Returns when a path counts as asleep, unless it answers before. `None` if it does not wake up, or while no
    /// other path has answered.
    pub(super) fn asleep_at(&self, path: &Path) -> Option<Instant> {
        let (since, asleep_at) = path.health().waking()?;
        let has_answered = |other: &Path| {
            other.id() != path.id()
                && other.health().last_evidence_at() > since
                && self.is_allowed(other)
        };
        self.working().any(has_answered).then_some(asleep_at)
    }

    fn is_asleep(&self, path: &Path) -> bool {
        let now = self.usage.now();
        self.asleep_at(path).is_some_and(|at| at <= now)
    }

    /// Returns the paths that may carry data.
    pub(super) fn carrying(&self) -> impl Iterator<Item = &Path> {
        self.iter().filter(|path| self.may_carry(path))
    }

    /// Whether some path has a route to the other end.
    pub(super) fn has_route(&self) -> bool {
        self.iter().any(|path| path.route().is_some())
    }

    /// Returns the working path with the lowest RTT that is not asleep. A path that the user's rules exclude or hold in
    /// reserve is returned only if no other path works, because its traffic may cost money. While no path is known to
    /// work, returns the path on which a datagram was received last.
    pub(super) fn best(&self) -> Option<PathId> {
        self.working()
            .min_by_key(|path| (!self.is_allowed(path), self.is_asleep(path), distance(path)))
            .map(Path::id)
            .or_else(|| self.newest())
    }

    /// Returns the second best path, for messages that must not be lost together with the messages on `best`. It is
    /// never a path held in reserve.
    pub(super) fn second(&self, best: PathId) -> Option<PathId> {
        self.working()
            .filter(|path| path.id() != best && self.is_allowed(path))
            .min_by_key(|path| (self.is_asleep(path), distance(path)))
            .map(Path::id)
    }

    /// Returns the path on which a datagram was received last.
    fn newest(&self) -> Option<PathId> {
        let routed = self.iter().filter(|path| path.route().is_some());
        routed
            .max_by_key(|path| path.receiver().heard_at())
            .map(Path::id)
    }

    pub(super) fn working(&self) -> impl Iterator<Item = &Path> {
        self.iter().filter(|path| path.is_working())
    }

    /// Samples the RTT of all paths every `interval` for the next [`SAMPLED_FOR`]. A path that carries data has no
    /// other probes. The samples show when a long queue has drained, and correct a min RTT that was measured under
    /// congestion.
    pub(super) fn sample_rtt(&mut self, now: Instant, interval: Duration) {
        for path in self.iter_mut() {
            path.sample_rtt(interval, now + SAMPLED_FOR);
        }
    }

    /// Records which paths are full while packets wait.
    pub(super) fn note_limited(&mut self, now: Instant) {
        for path in self.iter_mut() {
            if !path.pacer().can_send(now) {
                path.on_limited(now);
            }
        }
    }

    /// Returns the earliest time at which a path that its pacer blocks at `now` may send again.
    pub(super) fn next_release(&self, now: Instant) -> Option<Instant> {
        self.carrying()
            .filter(|path| !path.is_blocked())
            .filter_map(|path| path.pacer().next_release())
            .filter(|at| *at > now)
            .min()
    }
}

/// Returns the bit of a path in a set; ids are below [`PathId::MAX`].
pub(super) fn bit(id: PathId) -> u16 {
    1_u16.checked_shl(id.0.into()).unwrap_or(0)
}

fn distance(path: &Path) -> (Duration, PathId) {
    (path.rtt().smoothed().unwrap_or(Duration::MAX), path.id())
}

/// Duration after the last packet in which RTTs are still sampled.
const SAMPLED_FOR: Duration = Duration::from_secs(1);
