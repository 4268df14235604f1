//! Whom this end trusts: a list that changes while the proxy runs.
//!
//! The number of a peer is its place in the list, and is never used for another peer: associations and answers are kept by it.
//! A peer that is removed leaves an empty place.

use std::{cell::RefCell, fmt, rc::Rc, sync::Arc};

use pleach_core::wire::handshake::Claim;

use super::settings::KnownPeer;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Known(RefCell<Vec<Option<Rc<KnownPeer>>>>);

impl Known {
    /// A list of `peers`, numbered from 0.
    #[must_use]
    pub fn new(peers: Vec<KnownPeer>) -> Self {
        let places = peers.into_iter().map(|peer| Some(Rc::new(peer)));
        Self(RefCell::new(places.collect()))
    }

    /// The peer of this number, unless it was removed.
    pub(crate) fn get(&self, number: usize) -> Option<Rc<KnownPeer>> {
        self.0.borrow().get(number).cloned().flatten()
    }

    /// All peers with their numbers. O(n).
    pub(crate) fn all(&self) -> Vec<(usize, Rc<KnownPeer>)> {
        let places = self.0.borrow();
        let places = places.iter().enumerate();
        places
            .filter_map(|(number, peer)| Some((number, Rc::clone(peer.as_ref()?))))
            .collect()
    }

    /// The number of the peer with this key. O(n).
    pub(crate) fn find(&self, public_key: &[u8; 32]) -> Option<usize> {
        let is_it = |peer: &Option<Rc<KnownPeer>>| {
            peer.as_ref().is_some_and(|p| p.public_key == *public_key)
        };
        self.0.borrow().iter().position(is_it)
    }

    /// Adds a peer, or replaces what is known of the peer with this key; its number. O(n).
    pub(crate) fn put(&self, peer: KnownPeer) -> usize {
        let found = self.find(&peer.public_key);
        let mut places = self.0.borrow_mut();
        let number = found.unwrap_or(places.len());
        if number == places.len() {
            places.push(None);
        }
        places[number] = Some(Rc::new(peer));
        number
    }

    /// Makes the list the same as `peers`. Returns names that were added or changed, and numbers and names that were removed.
    pub(crate) fn replace(&self, peers: Vec<KnownPeer>) -> (Vec<String>, Vec<(usize, String)>) {
        let mut removed = Vec::new();
        for (number, old) in self.all() {
            if peers.iter().all(|peer| peer.public_key != old.public_key) {
                self.0.borrow_mut()[number] = None;
                removed.push((number, old.name.clone()));
            }
        }
        let mut put = Vec::new();
        for peer in peers {
            let old = self
                .find(&peer.public_key)
                .and_then(|number| self.get(number));
            if old.is_none_or(|old| *old != peer) {
                put.push(peer.name.clone());
                self.put(peer);
            }
        }
        (put, removed)
    }
}

/// What decides on claims of invitations: the peer, as it was written down, if the claim proves an open invitation for the
/// owner of the public key.
type Decide = dyn Fn(&Claim, &[u8; 32]) -> Option<KnownPeer> + Send + Sync;

/// How peers that present an invitation become known. It may block; it is called on a thread of its own.
#[derive(Clone)]
pub struct Enrolment(Arc<Decide>);

impl Enrolment {
    /// One that asks `decide`.
    #[must_use]
    pub fn new(
        decide: impl Fn(&Claim, &[u8; 32]) -> Option<KnownPeer> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(decide))
    }

    /// The peer with `public_key`, if `claim` is granted.
    pub(crate) async fn ask(&self, claim: Claim, public_key: [u8; 32]) -> Option<KnownPeer> {
        let decide = Arc::clone(&self.0);
        let decided = tokio::task::spawn_blocking(move || decide(&claim, &public_key));
        decided.await.ok().flatten()
    }
}

impl fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Enrolment")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, key: u8) -> KnownPeer {
        KnownPeer {
            name: name.to_owned(),
            public_key: [key; 32],
            serves: None,
        }
    }

    #[test]
    fn the_number_of_a_peer_is_never_that_of_another() {
        let known = Known::new(vec![peer("a", 1), peer("b", 2)]);
        let (put, removed) = known.replace(vec![peer("c", 3), peer("b", 2)]);
        assert_eq!(put, ["c"]);
        assert_eq!(removed, [(0, "a".to_owned())]);
        assert_eq!(known.get(0), None);
        assert_eq!(known.find(&[2; 32]), Some(1));
        assert_eq!(known.find(&[3; 32]), Some(2));
        // The same key is the same peer, whatever it is called now.
        assert_eq!(known.put(peer("d", 2)), 1);
        assert_eq!(known.all().len(), 2);
        assert_eq!(
            known.replace(vec![peer("c", 3), peer("d", 2)]),
            (vec![], vec![])
        );
    }
}
