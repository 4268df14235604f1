//! When something last got on over a link to a peer, either way, by whatever lane of whatever connection.
//!
//! A lane that is silent for a moment is on a dead link, or waits its turn among many others on a slow one. Only the first is
//! to be left for another link: a second copy of what waits would make the queue longer.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::{Rc, Weak},
};

use pleach_core::time::Instant;

/// The pulses of all links to all peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulses(Rc<All>);

#[derive(Debug, Default)]
struct All {
    /// By peer and link, as long as there are lanes.
    links: RefCell<BTreeMap<(String, String), Weak<Beats>>>,
    /// When something last came from each peer, over any link.
    peers: RefCell<BTreeMap<String, Rc<Cell<Option<Instant>>>>>,
}

/// Of the lanes of one link to one peer.
#[derive(Debug, Default)]
struct Beats {
    sent_at: Cell<Instant>,
    came_at: Cell<Instant>,
    /// From the peer.
    peer_came_at: Rc<Cell<Option<Instant>>>,
}

/// When something last got on over a link to a peer, either way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Rc<Beats>);

impl Pulses {
    /// The one of `link` to `peer`. As many are kept as there are links with lanes.
    pub(super) fn of(&self, peer: &str, link: &str) -> Pulse {
        let mut links = self.0.links.borrow_mut();
        let key = (peer.to_owned(), link.to_owned());
        if let Some(known) = links.get(&key).and_then(Weak::upgrade) {
            return Pulse(known);
        }
        links.retain(|_, pulse| pulse.strong_count() > 0);
        let mut peers = self.0.peers.borrow_mut();
        let new = Rc::new(Beats {
            peer_came_at: Rc::clone(peers.entry(peer.to_owned()).or_default()),
            ..Beats::default()
        });
        links.insert(key, Rc::downgrade(&new));
        Pulse(new)
    }

    /// When something last came from `peer` on a lane, be it gone meanwhile; `None`: never.
    pub(crate) fn peer_came_at(&self, peer: &str) -> Option<Instant> {
        self.0.peers.borrow().get(peer)?.get()
    }
}

impl Pulse {
    /// Takes note that something that was sent arrived.
    pub(super) fn on_sent(&self, now: Instant) {
        self.0.sent_at.set(now);
    }

    /// Takes note that something came.
    pub(super) fn on_came(&self, now: Instant) {
        self.0.came_at.set(now);
        self.0.peer_came_at.set(Some(now));
    }

    /// When something that was sent last arrived.
    pub(super) fn sent_at(&self) -> Instant {
        self.0.sent_at.get()
    }

    /// When something last came.
    pub(super) fn came_at(&self) -> Instant {
        self.0.came_at.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_link_to_a_peer_share_one_and_it_goes_with_them() {
        let pulses = Pulses::default();
        let (first, second) = (pulses.of("peer", "dsl"), pulses.of("peer", "dsl"));
        first.on_sent(Instant::from_millis(5));
        first.on_came(Instant::from_millis(6));
        let both = |pulse: &Pulse| (pulse.sent_at(), pulse.came_at());
        let known = (Instant::from_millis(5), Instant::from_millis(6));
        assert_eq!(both(&second), known);
        let nothing = (Instant::ZERO, Instant::ZERO);
        for (peer, link) in [("peer", "lte"), ("other", "dsl")] {
            assert_eq!(both(&pulses.of(peer, link)), nothing);
        }
        drop((first, second));
        assert_eq!(both(&pulses.of("peer", "dsl")), nothing);
        assert_eq!(pulses.0.links.borrow().len(), 1);
        assert_eq!(
            pulses.peer_came_at("peer"),
            Some(known.1),
            "who is gone was there"
        );
        assert_eq!(pulses.peer_came_at("other"), None);
    }
}
