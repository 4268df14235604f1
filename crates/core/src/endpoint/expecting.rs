//! Finds the peer to which a damaged datagram may belong.
//!
//! A datagram that matches no session may be a peer's datagram with bit errors, if parity is expected from its source
//! address. Strangers can send such datagrams at any rate. So the peers are looked up by address in O(log n), and the
//! state of at most [`MAX_AT_ONE_ADDRESS`] peers is checked.
//!
//! Bound: [`MAX_ADDRESSES`]. An address from which parity is no longer expected is removed at its next look-up, or when
//! the table is full.

use core::net::SocketAddr;
use std::collections::BTreeSet;

/// The addresses from which this end expects parity, each with the peer that has a path to the address.
#[derive(Debug, Default)]
pub(super) struct Expecting {
    known: BTreeSet<(SocketAddr, usize)>,
    /// Number of peers whose state was checked.
    #[cfg(test)]
    pub(super) asked: usize,
}

impl Expecting {
    /// Records that this end expects parity from `peer` for datagrams from `remote`.
    pub(super) fn insert(&mut self, remote: SocketAddr, peer: usize) {
        if self.known.contains(&(remote, peer)) {
            return;
        }
        if self.known.len() >= MAX_ADDRESSES {
            // Remove the entry that follows the new one in the order of the table, so that the removed entry varies.
            let behind = self.known.range((remote, peer)..).next();
            if let Some(found) = behind.or(self.known.first()).copied() {
                self.known.remove(&found);
            }
        }
        self.known.insert((remote, peer));
    }

    /// Returns a peer for which `expects` is true, among the peers registered for `remote`.
    pub(super) fn peer_of(
        &mut self,
        remote: SocketAddr,
        expects: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let range = (remote, 0)..=(remote, usize::MAX);
        for _ in 0..MAX_AT_ONE_ADDRESS {
            let (_, peer) = *self.known.range(range.clone()).next()?;
            #[cfg(test)]
            {
                self.asked += 1;
            }
            if expects(peer) {
                return Some(peer);
            }
            self.known.remove(&(remote, peer));
        }
        None
    }
}

/// Maximum number of addresses: four paths of a thousand peers that use parity.
const MAX_ADDRESSES: usize = 4096;
/// Maximum number of peers behind one address and port whose state is checked.
const MAX_AT_ONE_ADDRESS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn only_those_at_an_address_are_asked() {
        let mut expecting = Expecting::default();
        for peer in 0..3000 {
            expecting.insert(address(peer), usize::from(peer));
        }
        assert_eq!(expecting.peer_of(address(5000), |_| true), None);
        assert_eq!(expecting.asked, 0);
        assert_eq!(expecting.peer_of(address(7), |_| true), Some(7));
        assert_eq!(expecting.asked, 1);
    }

    #[test]
    fn who_expects_nothing_any_more_is_forgotten() {
        let mut expecting = Expecting::default();
        expecting.insert(address(1), 1);
        expecting.insert(address(1), 2);
        assert_eq!(expecting.peer_of(address(1), |peer| peer == 2), Some(2));
        assert_eq!(expecting.peer_of(address(1), |_| true), Some(2));
        assert_eq!(expecting.peer_of(address(1), |_| false), None);
        assert!(expecting.known.is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut expecting = Expecting::default();
        for number in 0..2 * MAX_ADDRESSES {
            expecting.insert(address(1), number);
        }
        assert_eq!(expecting.known.len(), MAX_ADDRESSES);
    }

    #[test]
    fn not_always_the_same_lose_their_place_in_a_full_table() {
        let mut expecting = Expecting::default();
        for port in (0..8192).step_by(2) {
            expecting.insert(address(port), 1);
        }
        for port in [4001, 301, 7001] {
            expecting.insert(address(port), 2);
            assert_eq!(expecting.peer_of(address(port), |_| true), Some(2));
            assert_eq!(expecting.peer_of(address(port + 1), |_| true), None);
        }
        assert_eq!(expecting.known.len(), MAX_ADDRESSES);
        assert_eq!(expecting.peer_of(address(0), |_| true), Some(1));
    }
}
