//! Schedulers that another crate provides, in addition to the policies of this crate.
//!
//! An [`OwnPolicy`] is a name and a function that creates the scheduler. It takes the place of a policy from the
//! configuration ([`SchedulerSettings::own`](super::SchedulerSettings::own)), so endpoint, tunnel, simulator and
//! reports need no change. Each tunnel creates its own scheduler, and creates it again when the names of its links
//! change.

use core::fmt;
use std::sync::Arc;

use super::{PacketInfo, PathView, Pick, Scheduler};

/// A policy that another crate provides; it creates the schedulers.
#[derive(Clone)]
pub struct OwnPolicy {
    name: &'static str,
    make: Arc<Make>,
}

type Make = dyn Fn() -> Box<dyn Scheduler> + Send + Sync;

impl OwnPolicy {
    /// Creates a policy that is called `name` in reports. `make` creates schedulers that have not placed any packet
    /// yet.
    pub fn new<S: Scheduler + 'static>(
        name: &'static str,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            make: Arc::new(move || Box::new(make())),
        }
    }

    /// The name of the policy.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Creates a scheduler that has not placed any packet yet.
    #[must_use]
    pub fn build(&self) -> Box<dyn Scheduler> {
        (self.make)()
    }
}

/// Returns `pick` if it obeys the contract of [`Scheduler::pick`], else [`Pick::Wait`]. So a mistake in another crate
/// stops the tunnel's packets, not the process. In a debug build a violation panics with an explanation.
pub(super) fn checked(pick: Pick, paths: &[PathView], packet: &PacketInfo) -> Pick {
    let is_ready = |index: usize| paths.get(index).is_some_and(|path| path.ready);
    let are_ready = |copies: u16| {
        let mut named = (0..16).filter(|index| copies & 1 << index != 0);
        named.all(is_ready)
    };
    let is_kept = match pick {
        Pick::Wait => true,
        Pick::One(index) => paths.get(index).is_some_and(|path| path.usable),
        Pick::Copies(copies) => copies != 0 && are_ready(copies),
        Pick::Shadowed { index, copies, .. } => is_ready(index) && are_ready(copies),
        Pick::Behind { index, .. } => packet.has_behind && is_ready(index),
    };
    debug_assert!(
        is_kept,
        "the scheduler answered {pick:?}, which names a path that is not ready, or what the packet does not allow"
    );
    if is_kept { pick } else { Pick::Wait }
}

impl fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnPolicy").field(&self.name).finish()
    }
}

/// Two policies are equal if one is a clone of the other: whether two functions are equivalent cannot be determined.
impl PartialEq for OwnPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.make, &other.make)
    }
}

impl Eq for OwnPolicy {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::PathId, sched::AnyScheduler, time::Instant, units::Bytes};

    /// A scheduler that always returns the same answer.
    #[derive(Debug)]
    struct Always(Pick);

    impl Scheduler for Always {
        fn pick(&mut self, _: Instant, _: &[PathView], _: &PacketInfo) -> Pick {
            self.0
        }
    }

    /// The decision that the engine uses if a scheduler returns `pick`, with one path that is ready and one that is
    /// not usable.
    fn taken(pick: Pick) -> Pick {
        let ready = PathView {
            ready: true,
            usable: true,
            ..PathView::unmeasured(PathId(0))
        };
        let paths = [ready, PathView::unmeasured(PathId(1))];
        let packet = PacketInfo::of_len(Bytes::new(1_250));
        let mut scheduler =
            AnyScheduler::Own(OwnPolicy::new("always", move || Always(pick)).build());
        scheduler.pick(Instant::ZERO, &paths, &packet)
    }

    #[test]
    fn answers_that_keep_the_contract_are_taken() {
        for pick in [Pick::Wait, Pick::One(0), Pick::Copies(1)] {
            assert_eq!(taken(pick), pick);
        }
    }

    #[test]
    fn answers_that_break_the_contract_do_not_reach_the_tunnel() {
        let (index, ahead) = (0, Bytes::ZERO);
        for pick in [
            Pick::One(1),
            Pick::One(7),
            Pick::Copies(0),
            Pick::Copies(3),
            Pick::Shadowed { index, copies: 4 },
            Pick::Behind { index, ahead },
        ] {
            let answer = std::panic::catch_unwind(|| taken(pick));
            if cfg!(debug_assertions) {
                assert!(answer.is_err(), "{pick:?} goes unnoticed");
            } else {
                assert_eq!(answer.ok(), Some(Pick::Wait), "{pick:?}");
            }
        }
    }
}
