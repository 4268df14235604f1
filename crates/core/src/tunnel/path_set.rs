//! The paths of an association, and which of them may carry data.
//!
//! A path may carry data ([`PathSet::may_carry`]) while it is up or suspect, leads somewhere, and the user's rules allow it: an
//! active link always, a standby link while no active one is up, any other never.

use core::{net::IpAddr, time::Duration};

use super::usage::Usage;
use crate::{
    ids::PathId,
    packet::Pool,
    path::{Former, Path, health::State, link::Link, memory::PathMemory},
    profile::Profile,
    role::Role,
    time::Instant,
    wire::control::LinkRole,
};

/// The paths, by id.
#[derive(Debug)]
pub struct PathSet {
    slots: [Option<Box<Path>>; PathId::MAX],
    /// What a removed path leaves to the next path of the same id.
    former: [Option<Box<Former>>; PathId::MAX],
    /// Which paths carry something.
    pub(super) usage: Usage,
}

impl Default for PathSet {
    fn default() -> Self {
        Self {
            slots: core::array::from_fn(|_| None),
            former: core::array::from_fn(|_| None),
            usage: Usage::default(),
        }
    }
}

impl PathSet {
    /// A path, if known.
    #[must_use]
    pub fn get(&self, id: PathId) -> Option<&Path> {
        self.slots.get(id.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.slots.get_mut(id.index())?.as_deref_mut()
    }

    /// The paths, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The ids of the paths, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        let known: [Option<PathId>; PathId::MAX] =
            core::array::from_fn(|index| self.slots[index].as_deref().map(Path::id));
        known.into_iter().flatten()
    }

    /// A path that has a way to somewhere, or to somewhere else, since the last call: its id, its link's name, and the
    /// address it leads to. A link's name is known to a gateway only once its client has told it.
    pub fn poll_found(&mut self, now: Instant) -> Option<(PathId, String, IpAddr)> {
        self.iter_mut().find_map(|path| {
            let to = path.take_found(now)?;
            Some((path.id(), path.link().name.clone(), to))
        })
    }

    /// What is worth remembering of each path.
    pub fn memories(&self, now: Instant) -> impl Iterator<Item = (PathId, PathMemory)> {
        self.iter()
            .filter_map(move |path| Some((path.id(), path.memory(now)?)))
    }

    /// Takes what was remembered of the network that a path leads over.
    pub fn recall(&mut self, now: Instant, id: PathId, memory: &PathMemory) {
        if let Some(path) = self.get_mut(id) {
            path.recall(now, memory);
        }
    }

    /// Paths that have a route and do not work, though nothing says why: another address may.
    #[must_use]
    pub fn stuck(&self) -> Vec<PathId> {
        let is_stuck =
            |path: &&Path| path.route().is_some() && path.health().state() == State::Down;
        self.iter().filter(is_stuck).map(Path::id).collect()
    }

    /// The socket of a path's link is full (`true`) or has room again.
    pub fn set_blocked(&mut self, id: PathId, is_blocked: bool) {
        if let Some(path) = self.get_mut(id) {
            path.set_blocked(is_blocked);
        }
    }

    /// Adds a path; `false` if there can be none of this id.
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
        if let Some(former) = self.former[id.index()].take() {
            path.resume(*former);
        }
        *slot = Some(Box::new(path));
        self.usage.forget(id);
        true
    }

    /// The path `id`, made if there is none: a gateway learns of a path by its first datagram. `None` if there can be none of this
    /// id.
    pub(super) fn get_or_add(
        &mut self,
        now: Instant,
        id: PathId,
        role: Role,
        profile: Profile,
    ) -> Option<&mut Path> {
        let slot = self.slots.get_mut(id.index())?;
        Some(
            slot.get_or_insert_with(|| {
                Box::new(Path::new(now, id, Link::named(""), role, profile))
            }),
        )
    }

    pub(super) fn remove(&mut self, id: PathId, pool: &mut Pool) {
        if let Some(path) = self.slots.get_mut(id.index()).and_then(Option::take) {
            self.former[id.index()] = Some(Box::new(path.retire(pool)));
        }
    }

    /// Starts over, as after a restart of the other end: a gateway forgets its paths, a client their state.
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

    /// Whether some active link is up.
    pub(super) fn has_active(&self) -> bool {
        self.iter()
            .any(|path| path.link().role == LinkRole::Active && path.health().state() == State::Up)
    }

    /// Whether a path may carry data by the user's rules, given the health of the others.
    pub(super) fn is_allowed(&self, path: &Path) -> bool {
        match path.link().role {
            LinkRole::Active => true,
            LinkRole::Standby => !self.has_active(),
            LinkRole::Never => false,
        }
    }

    /// Whether a path works, leads somewhere, and may carry data.
    pub(super) fn may_carry(&self, path: &Path) -> bool {
        path.is_working() && self.is_allowed(path)
    }

    /// The paths that may carry data.
    pub(super) fn carrying(&self) -> impl Iterator<Item = &Path> {
        self.iter().filter(|path| self.may_carry(path))
    }

    /// Whether there is a way to the other end.
    pub(super) fn has_route(&self) -> bool {
        self.iter().any(|path| path.route().is_some())
    }

    /// The path with the lowest round-trip time among the working ones. A path that is not for data, in reserve, is taken only if
    /// there is no other: its bytes may cost money. While no path is known to work, the path heard from last.
    pub(super) fn best(&self) -> Option<PathId> {
        self.working()
            .min_by_key(|path| (!self.is_allowed(path), distance(path)))
            .map(Path::id)
            .or_else(|| self.newest())
    }

    /// The next best for what must not be lost with `best`; none in reserve.
    pub(super) fn second(&self, best: PathId) -> Option<PathId> {
        self.working()
            .filter(|path| path.id() != best && self.is_allowed(path))
            .min_by_key(|path| distance(path))
            .map(Path::id)
    }

    /// The path heard from last.
    fn newest(&self) -> Option<PathId> {
        let routed = self.iter().filter(|path| path.route().is_some());
        routed
            .max_by_key(|path| path.receiver().heard_at())
            .map(Path::id)
    }

    pub(super) fn working(&self) -> impl Iterator<Item = &Path> {
        self.iter().filter(|path| path.is_working())
    }

    /// Lets the round trips of all paths be sampled every `interval` for the next [`SAMPLED_FOR`]: a path that carries data needs no
    /// other probes. A path that was too late is seen to be quick again, and one measured in a jam is not taken for far away.
    pub(super) fn sample_rtt(&mut self, now: Instant, interval: Duration) {
        for path in self.iter_mut() {
            path.sample_rtt(interval, now + SAMPLED_FOR);
        }
    }

    /// Takes note of the paths that some packet waits for and that are full.
    pub(super) fn note_limited(&mut self, now: Instant) {
        for path in self.iter_mut() {
            if !path.pacer().can_send(now) {
                path.on_limited(now);
            }
        }
    }

    /// When a path that cannot send at `now` for its pacer may.
    pub(super) fn next_release(&self, now: Instant) -> Option<Instant> {
        self.carrying()
            .filter(|path| !path.is_blocked())
            .filter_map(|path| path.pacer().next_release())
            .filter(|at| *at > now)
            .min()
    }
}

/// A path in a set; ids are below [`PathId::MAX`].
pub(super) fn bit(id: PathId) -> u16 {
    1_u16.checked_shl(id.0.into()).unwrap_or(0)
}

fn distance(path: &Path) -> (Duration, PathId) {
    (path.rtt().smoothed().unwrap_or(Duration::MAX), path.id())
}

/// How long after the last packet round trips are still sampled.
const SAMPLED_FOR: Duration = Duration::from_secs(1);
