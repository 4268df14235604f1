//! The peers that this end trusts: a list that changes while the proxy runs.
//!
//! The number of a peer is its index in the list. A number is never reused for another peer, because associations and
//! answers are stored under it. A peer that is removed leaves an empty entry.

use std::{cell::RefCell, fmt, net::SocketAddr, rc::Rc, sync::Arc};

use ipnet::IpNet;
use pleach_core::wire::handshake::Claim;

/// Another host that runs pleach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Name of the peer.
    pub name: String,
    /// Public key of the peer.
    pub public_key: [u8; 32],
    /// Address at which the peer answers for other hosts, and the networks of these hosts.
    pub serves: Option<(SocketAddr, Vec<IpNet>)>,
}

/// The list of trusted peers: see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Known(RefCell<Vec<Option<Rc<KnownPeer>>>>);

impl Known {
    /// Returns a list of `peers`, numbered from 0.
    #[must_use]
    pub fn new(peers: Vec<KnownPeer>) -> Self {
        let places = peers.into_iter().map(|peer| Some(Rc::new(peer)));
        Self(RefCell::new(places.collect()))
    }

    /// Returns the peer with this number, unless it was removed.
    pub(crate) fn get(&self, number: usize) -> Option<Rc<KnownPeer>> {
        self.0.borrow().get(number).cloned().flatten()
    }

    /// Returns all peers with their numbers. O(n).
    pub(crate) fn all(&self) -> Vec<(usize, Rc<KnownPeer>)> {
        let places = self.0.borrow();
        let places = places.iter().enumerate();
        places
            .filter_map(|(number, peer)| Some((number, Rc::clone(peer.as_ref()?))))
            .collect()
    }

    /// Returns the number of the peer with this key. O(n).
    pub(crate) fn find(&self, public_key: &[u8; 32]) -> Option<usize> {
        let is_it = |peer: &Option<Rc<KnownPeer>>| {
            peer.as_ref().is_some_and(|p| p.public_key == *public_key)
        };
        self.0.borrow().iter().position(is_it)
    }

    /// Adds a peer, or replaces the entry of the peer with the same key. Returns the peer's number. O(n).
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

    /// Makes the list equal to `peers`. Returns the names of peers that were added or changed, and the numbers and
    /// names of peers that were removed.
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

/// Decides on claims of invitations. Returns the peer as it was stored if the claim proves an open invitation for the
/// owner of the public key.
type Decide = dyn Fn(&Claim, &[u8; 32]) -> Option<KnownPeer> + Send + Sync;

/// Decides whether a peer that presents an invitation becomes a known peer. The decision may block: it runs on a
/// separate thread.
#[derive(Clone)]
pub struct Enrolment(Arc<Decide>);

impl Enrolment {
    /// Wraps the function `decide`, which returns the stored peer if it grants the claim.
    #[must_use]
    pub fn new(
        decide: impl Fn(&Claim, &[u8; 32]) -> Option<KnownPeer> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(decide))
    }

    /// Returns the peer with `public_key`, if `claim` is granted.
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
        // A peer is identified by its key, even if its name changes.
        assert_eq!(known.put(peer("d", 2)), 1);
        assert_eq!(known.all().len(), 2);
        assert_eq!(
            known.replace(vec![peer("c", 3), peer("d", 2)]),
            (vec![], vec![])
        );
    }
}
