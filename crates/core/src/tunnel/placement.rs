//! Path selection: the policy with its profile, and the path views on which the policy bases its decisions.
//!
//! The class of a packet, the wish of the other end, the packet's length, and the path from which it was requeued limit
//! the choice ([`Limits`]). The policy chooses among the remaining paths.

use core::time::Duration;

use super::{
    path_set::{PathSet, bit},
    staged::Staged,
    views::Views,
};
use crate::{
    ids::PathId,
    path::{Path, health::State},
    profile::Profile,
    sched::{AnyScheduler, PacketInfo, PathView, Pick, Scheduler as _, SchedulerSettings},
    time::Instant,
    trace::{Choice, Event, IdleReason, PickEvent, Tracer},
    units::Bitrate,
    wire::control::LinkRole,
};

/// The policy of one end.
#[derive(Debug)]
pub(super) struct Placement {
    /// The settings with the link names of the user; some of these links may not be known yet.
    settings: SchedulerSettings<String>,
    /// The settings with path ids for the links that are known.
    resolved: SchedulerSettings,
    pub(super) scheduler: AnyScheduler,
    /// Mechanisms that this end uses besides path selection.
    profile: Profile,
    pub(super) views: Views,
}

/// Restrictions on the paths of one packet. In sets, bit *i* stands for path *i*.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// The working paths to which the packet is restricted, regardless of their rank; `None` if it may use any path.
    pub(super) wanted: Option<u16>,
    /// A path that is used only if no other path works, of those to which the packet is restricted.
    pub(super) avoided: Option<PathId>,
    /// The paths that can carry a packet of this length (`wide`), and the paths that cannot (`narrow`). Both sets are
    /// empty if the length does not limit the choice.
    pub(super) wide: u16,
    pub(super) narrow: u16,
}

impl Placement {
    pub(super) fn new(settings: SchedulerSettings<String>) -> Self {
        let resolved = settings.clone().map_links(|_| None);
        let (scheduler, profile) = resolved.build();
        Self {
            settings,
            resolved,
            scheduler,
            profile,
            views: Views::default(),
        }
    }

    /// Stores the settings of another policy and profile. They take effect when they are [resolved](Self::resolve).
    pub(super) fn set_settings(&mut self, settings: SchedulerSettings<String>) {
        self.settings = settings;
    }

    pub(super) const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Resolves the names of the links that are known. `is_observed` says whether an observer sees the decisions.
    pub(super) fn resolve(&mut self, paths: &mut PathSet, is_observed: bool) {
        let id_of = |name: String| {
            let mut known = paths.iter();
            known.find(|path| path.link().name == name).map(Path::id)
        };
        let resolved = self.settings.clone().map_links(id_of);
        // The policy keeps its state as long as its links stay the same.
        if resolved != self.resolved {
            (self.scheduler, self.profile) = resolved.build();
            if is_observed {
                self.scheduler.observe();
            }
            self.resolved = resolved;
        }
        self.aim(paths);
    }

    /// Passes the profile, the queue control that the policy wants, and the estimators to every path.
    pub(super) fn aim(&self, paths: &mut PathSet) {
        for path in paths.iter_mut() {
            path.set_profile(self.profile, self.resolved.policy.aim(path.id()));
            path.set_estimators(&self.settings.estimators);
        }
    }

    /// Updates the views of all paths. Returns whether paths were held back because of their rank.
    pub(super) fn refresh(&mut self, now: Instant, paths: &mut PathSet, staged: &Staged) -> bool {
        let staged = |path: &Path| staged.bytes(path.id());
        self.views.refresh(now, paths, &self.profile, staged)
    }

    /// Lets the policy choose the path of a packet.
    pub(super) fn pick(
        &mut self,
        now: Instant,
        info: &PacketInfo,
        limits: Limits,
        paths: &PathSet,
        tracer: &mut Tracer,
    ) -> Pick {
        let is_small = info.urgency.is_some_and(|urgency| urgency.is_small);
        let is_allowed = |view: &PathView| match limits.wanted {
            Some(wanted) => wanted & bit(view.id) != 0,
            None => view.usable,
        };
        let serves = |view: &PathView| is_allowed(view) && Some(view.id) != limits.avoided;
        let avoided = limits.avoided.filter(|_| self.views.iter().any(serves));
        let is_open = limits.wanted.is_none() && avoided.is_none() && limits.narrow == 0;
        let pick = if is_open && !is_small {
            self.scheduler.pick(now, self.views.as_slice(), info)
        } else {
            self.pick_within(now, info, Limits { avoided, ..limits }, paths)
        };
        self.tell(now, info, pick, tracer);
        pick
    }

    /// Lets the policy choose among the paths within `limits`.
    fn pick_within(
        &mut self,
        now: Instant,
        info: &PacketInfo,
        limits: Limits,
        paths: &PathSet,
    ) -> Pick {
        let is_small = info.urgency.is_some_and(|urgency| urgency.is_small);
        let has_room = |id| paths.get(id).is_some_and(|path| path.can_send(now));
        let may_overdraw = |id| paths.get(id).is_some_and(|path| may_overdraw(now, path));
        let views = self.views.as_mut_slice();
        let (mut ready, mut usable) = (0, 0);
        for view in &mut *views {
            let bit = bit(view.id);
            ready |= if view.ready { bit } else { 0 };
            usable |= if view.usable { bit } else { 0 };
            if let Some(wanted) = limits.wanted {
                view.usable = wanted & bit != 0;
                view.ready = view.usable && has_room(view.id);
            }
            view.ready |= view.usable && is_small && may_overdraw(view.id);
            if limits.avoided == Some(view.id) || limits.narrow & bit != 0 {
                (view.ready, view.usable) = (false, false);
            }
        }
        if limits.narrow != 0 && !views.iter().any(|view| view.usable) {
            // If no permitted link can carry the packet, use a link of another rank or class.
            for view in views
                .iter_mut()
                .filter(|view| limits.wide & bit(view.id) != 0)
            {
                view.usable = true;
                view.ready = has_room(view.id);
            }
        }
        let pick = if views.iter().any(|view| view.ready) {
            self.scheduler.pick(now, views, info)
        } else {
            Pick::Wait
        };
        for view in views {
            view.ready = ready & bit(view.id) != 0;
            view.usable = usable & bit(view.id) != 0;
        }
        pick
    }

    /// Reports a decision to the observer.
    fn tell(&self, now: Instant, info: &PacketInfo, pick: Pick, tracer: &mut Tracer) {
        tracer.tell(now, || {
            let id = |index: usize| self.views[index].id;
            Event::Pick(PickEvent {
                flow: info.flow.hash(),
                len: info.len,
                backlog: info.backlog,
                candidates: self.scheduler.candidates(),
                choice: match pick {
                    Pick::Wait => Choice::Wait,
                    Pick::One(index) | Pick::Shadowed { index, .. } => Choice::One(id(index)),
                    Pick::Copies(set) => {
                        let views = self.views.iter().enumerate();
                        let sent = views.filter(|(i, _)| set & 1 << i != 0);
                        Choice::Copies(sent.fold(0, |set, (_, view)| set | bit(view.id)))
                    }
                    Pick::Behind { index, .. } => Choice::Behind(id(index)),
                },
            })
        });
    }

    /// Returns the target RTT of a new flow ([`super::round_trips`], [`crate::sched::Scheduler::round_trip`]), based on
    /// the views of the last refresh.
    pub(super) fn round_trip(&self) -> Duration {
        self.scheduler.round_trip(self.views.as_slice())
    }

    /// Returns how long packets may wait before the policy sends them on paths with longer delays, based on the views
    /// of the last refresh.
    pub(super) fn longest_wait(&self) -> Duration {
        self.scheduler.longest_wait(self.views.as_slice())
    }

    /// Returns the total rate of the usable paths in the views of the last refresh, if all these rates are known.
    pub(super) fn known_rate(&self) -> Option<Bitrate> {
        let usable = self.views.iter().filter(|view| view.usable);
        let rates = usable.map(|view| view.rate.filter(|_| !view.is_searching));
        let all: Option<u64> = rates.map(|rate| rate.map(Bitrate::as_bps)).sum();
        all.map(Bitrate::from_bps)
            .filter(|all| *all > Bitrate::ZERO)
    }

    /// Returns the weight of a path: the policy's weight if the policy has one, else the user's.
    pub(super) fn weight(&self, path: &Path) -> u32 {
        let own = self.scheduler.weight(path.id());
        own.unwrap_or(path.link().weight)
    }

    /// Returns why a path has carried no packet of its own in the last second; `None` if it has carried such a packet.
    pub(super) fn idle_reason(&self, path: &Path, paths: &PathSet) -> Option<IdleReason> {
        if paths.usage.is_used(path.id()) {
            return None;
        }
        let is_up = path.route().is_some() && path.health().state() == State::Up;
        Some(match path.link().role {
            LinkRole::Never => IdleReason::Never,
            LinkRole::Active | LinkRole::Standby if !is_up => match path.health().state() {
                State::Suspect if path.route().is_some() => IdleReason::Suspect,
                State::Down | State::Probing | State::Suspect | State::Up => IdleReason::Down,
            },
            LinkRole::Standby if !paths.is_allowed(path) => IdleReason::Standby,
            LinkRole::Active | LinkRole::Standby if paths.usage.is_quiet() => IdleReason::NoTraffic,
            LinkRole::Active | LinkRole::Standby => self.exclusion(path),
        })
    }

    /// Returns why a working path that may carry data is not used.
    fn exclusion(&self, path: &Path) -> IdleReason {
        let views = self.views.as_slice();
        let Some(view) = views.iter().find(|view| view.id == path.id()) else {
            return IdleReason::NotNeeded;
        };
        let least = views.iter().filter(|view| view.usable);
        let least = least.map(|view| view.cost).min();
        if self.profile.ranks && least.is_some_and(|least| least < view.cost) {
            return IdleReason::Rank;
        }
        let reason = self.scheduler.exclusion(views, view);
        let waits = || (!view.ready).then_some(IdleReason::Paced);
        reason.or_else(waits).unwrap_or(IdleReason::NotNeeded)
    }
}

/// Whether a short packet may exceed the pace of a path. Such packets are rare, so they hardly load the path.
fn may_overdraw(now: Instant, path: &Path) -> bool {
    !path.is_blocked() && path.pacer().debt(now) < MOST_DEBT
}

/// Maximum debt of a path's pacer, as a duration.
const MOST_DEBT: Duration = Duration::from_millis(5);
