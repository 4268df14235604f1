//! The paths as the policy sees them.
//!
//! While a path of a lower rank is ready, paths of higher ranks appear as not usable. So the paths of higher ranks
//! carry only the packets for which the cheaper paths have no capacity ([`Profile::ranks`]).

use core::{ops::Index, time::Duration};

use super::path_set::PathSet;
use crate::{
    path::{Path, delay::RelativeDelay},
    profile::Profile,
    sched::PathView,
    time::Instant,
    units::Bytes,
};

/// One view of each known path in the order of their ids, as of the last [`refresh`](Self::refresh).
#[derive(Debug, Default)]
pub(super) struct Views {
    paths: Vec<PathView>,
    /// Minimum one-way delay of the working paths, estimated as half of the min RTT; zero if it is unknown.
    least_delay: Duration,
}

impl Index<usize> for Views {
    type Output = PathView;

    fn index(&self, index: usize) -> &PathView {
        &self.paths[index]
    }
}

impl Views {
    pub(super) fn as_slice(&self) -> &[PathView] {
        &self.paths
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [PathView] {
        &mut self.paths
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PathView> {
        self.paths.iter()
    }

    /// Whether some path may send now.
    pub(super) fn any_ready(&self) -> bool {
        self.paths.iter().any(|view| view.ready)
    }

    /// Returns the minimum one-way delay of the working paths; zero if it is unknown.
    pub(super) const fn least_delay(&self) -> Duration {
        self.least_delay
    }

    /// Updates the views of all paths. Returns whether paths were held back because of their rank. `staged` returns the
    /// number of bytes that wait for a path at this end.
    pub(super) fn refresh(
        &mut self,
        now: Instant,
        paths: &mut PathSet,
        profile: &Profile,
        staged: impl Fn(&Path) -> Bytes,
    ) -> bool {
        let quickest = Quickest::of(paths);
        self.least_delay = quickest.rtt.unwrap_or_default() / 2;
        self.paths.clear();
        self.paths.extend(paths.iter().map(|path| {
            let usable = paths.may_carry(path);
            PathView {
                id: path.id(),
                ready: usable && path.can_send(now),
                usable,
                cost: path.link().cost,
                weight: path.link().weight,
                smoothed_rtt: path.rtt().smoothed(),
                extra_delay: quickest.extra_delay(path),
                rate: if profile.search {
                    path.rate().max().or_else(|| path.remembered_rate())
                } else {
                    path.likely_rate()
                },
                queue_delay: path.queue_delay(now),
                lateness: path.lateness(),
                least_rtt: path.rtt().min(),
                rtt_spread: path.rtt().spread(),
                jitter: path.jitter(),
                is_searching: path.is_searching(),
                loss_ppm: path.loss_floor_ppm(),
                is_silent: path.health().is_silent(now),
                in_flight: path.sender().in_flight(),
                staged: staged(path),
            }
        }));
        profile.ranks && hold_back(&mut self.paths)
    }

    /// Records a datagram sent on the path of view `index`.
    pub(super) fn on_sent(&mut self, now: Instant, index: usize, path: &Path) {
        let view = &mut self.paths[index];
        view.in_flight = path.sender().in_flight();
        view.ready = path.pacer().can_send(now);
    }

    /// Sets the number of bytes that wait at this end for the path of view `index`.
    pub(super) fn set_staged(&mut self, index: usize, staged: Bytes) {
        self.paths[index].staged = staged;
    }
}

/// The minimum delays of the working paths.
struct Quickest {
    /// Whether the one-way delays of all working paths are known. A path's delay is known once it has carried data or
    /// answered a ping. Until all delays are known, half of the RTT is used instead.
    is_measured: bool,
    delay: Option<RelativeDelay>,
    rtt: Option<Duration>,
}

impl Quickest {
    fn of(paths: &PathSet) -> Self {
        let delays = || paths.working().map(|path| path.delay().min());
        Self {
            is_measured: delays().all(|delay| delay.is_some()),
            delay: delays().flatten().reduce(|best, delay| {
                if delay.micros_from(best) < 0 {
                    delay
                } else {
                    best
                }
            }),
            rtt: paths.working().filter_map(|path| path.rtt().min()).min(),
        }
    }

    /// Returns the excess of a path's one-way delay over the minimum.
    fn extra_delay(&self, path: &Path) -> Duration {
        match (path.delay().min(), self.delay) {
            (Some(delay), Some(quickest)) if self.is_measured => delay.beyond(quickest),
            _ => match (path.rtt().min(), self.rtt) {
                (Some(rtt), Some(least)) => rtt.saturating_sub(least) / 2,
                _ => Duration::ZERO,
            },
        }
    }
}

/// Marks the paths above the lowest rank that has a ready path as not usable. Returns whether any of them was ready.
fn hold_back(views: &mut [PathView]) -> bool {
    let ready = views.iter().filter(|view| view.ready);
    let Some(rank) = ready.map(|view| view.cost).min() else {
        return false;
    };
    let mut is_held_back = false;
    for view in views.iter_mut().filter(|view| view.cost > rank) {
        is_held_back |= view.ready;
        (view.ready, view.usable) = (false, false);
    }
    is_held_back
}
