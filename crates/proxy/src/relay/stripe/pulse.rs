//! When something last got on over a link to a peer, by whatever lane of whatever connection.
//!
//! A lane that is silent for a moment is on a dead link, or waits its turn among many others on a slow one. Only the first is
//! to be left for another link: a second copy of what waits would make the queue longer.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::{Rc, Weak},
};

use pleach_core::time::Instant;

/// The pulses of all links to all peers, by peer and link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulses(Rc<RefCell<ByLink>>);

type ByLink = BTreeMap<(String, String), Weak<Cell<Instant>>>;

/// When something last got on; of the lanes of one link to one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Rc<Cell<Instant>>);

impl Pulses {
    /// The one of `link` to `peer`. As many are kept as there are links with lanes.
    pub(super) fn of(&self, peer: &str, link: &str) -> Pulse {
        let mut all = self.0.borrow_mut();
        let key = (peer.to_owned(), link.to_owned());
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return Pulse(known);
        }
        all.retain(|_, pulse| pulse.strong_count() > 0);
        let new = Pulse::default();
        all.insert(key, Rc::downgrade(&new.0));
        new
    }
}

impl Pulse {
    /// Takes note that something got on.
    pub(super) fn beat(&self, now: Instant) {
        self.0.set(now);
    }

    /// When it last did.
    pub(super) fn last(&self) -> Instant {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_link_to_a_peer_share_one_and_it_goes_with_them() {
        let pulses = Pulses::default();
        let (first, second) = (pulses.of("peer", "dsl"), pulses.of("peer", "dsl"));
        first.beat(Instant::from_millis(5));
        assert_eq!(second.last(), Instant::from_millis(5));
        for (peer, link) in [("peer", "lte"), ("other", "dsl")] {
            assert_eq!(pulses.of(peer, link).last(), Instant::ZERO);
        }
        drop((first, second));
        assert_eq!(pulses.of("peer", "dsl").last(), Instant::ZERO);
        assert_eq!(pulses.0.borrow().len(), 1);
    }
}
