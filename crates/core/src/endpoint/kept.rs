//! Bounds of the memory for packets: one bound per peer, and one bound for all peers.
//!
//! A peer may use [`PEER_BYTES`], but no more than half of the part of [`TOTAL_BYTES`] that other peers do not use.
//! This is a dynamic threshold (Choudhury and Hahne, "Dynamic queue length thresholds", 1998). If *n* peers need as
//! much as possible, each of them gets 1/(*n* + 1) of the total. Some memory is left for a new peer, and no memory is
//! reserved for peers that need none. Of several workers, each has an equal part of the total.
//!
//! Usage is measured each time a peer sends. Between two measurements it can exceed the bound by the packets of one
//! socket read.

/// The memory used by the packets of all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    bytes: u64,
    /// Whether there is only one peer, which may use all memory.
    is_of_one: bool,
    /// Number of workers besides this one, each with an equal part of the memory.
    other_workers: u64,
}

impl Kept {
    /// Returns the state without any memory in use. `is_of_one` says that there is only one peer, which may use all
    /// memory.
    pub(super) const fn of(is_of_one: bool) -> Self {
        Self {
            bytes: 0,
            is_of_one,
            other_workers: 0,
        }
    }

    /// Sets the number of [workers](super::workers), each with an equal part of the memory.
    pub(super) fn set_workers(&mut self, count: usize) {
        self.other_workers = u64::try_from(count).unwrap_or(1).saturating_sub(1);
    }

    /// Returns the maximum for all peers together, in bytes: of several workers for each its part of [`TOTAL_BYTES`].
    #[must_use]
    pub const fn total(&self) -> u64 {
        TOTAL_BYTES / (self.other_workers + 1)
    }

    /// Returns the maximum for one peer, in bytes: [`PEER_BYTES`], but no more than half of [`Self::total`].
    #[must_use]
    pub fn peer_limit(&self) -> u64 {
        if self.is_of_one {
            TOTAL_BYTES
        } else {
            PEER_BYTES.min(self.total() / 2)
        }
    }

    /// Returns the memory used by the packets of all peers, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bound for a peer that uses `own` bytes now.
    pub(super) fn limit(&self, own: u64) -> u64 {
        if self.is_of_one {
            return TOTAL_BYTES;
        }
        let others = self.bytes.saturating_sub(own);
        let left = self.total().saturating_sub(others) / 2;
        left.min(PEER_BYTES)
    }

    /// Records that a peer uses `now` bytes instead of `before`.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.bytes = self.bytes.saturating_sub(before) + now;
    }
}

/// Maximum memory for the packets of one peer, in bytes. Including tables of fixed size, a peer uses at most 64 MiB.
pub const PEER_BYTES: u64 = 48 << 20;
/// Maximum memory for the packets of all peers, in bytes.
pub const TOTAL_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_workers_are_no_more_than_the_total() {
        for (workers, peer) in [
            (1, PEER_BYTES),
            (2, PEER_BYTES),
            (8, 16 << 20),
            (64, 2 << 20),
        ] {
            let mut kept = Kept::of(false);
            kept.set_workers(workers);
            assert!(kept.total() * workers as u64 <= TOTAL_BYTES);
            assert_eq!((kept.limit(0), kept.peer_limit()), (peer, peer));
        }
    }

    #[test]
    fn peers_that_want_all_have_equal_parts_and_leave_one_for_the_next() {
        for peers in [1, 5, 20, 100] {
            let mut kept = Kept::default();
            let mut own = vec![0; peers];
            for _ in 0..1_000 {
                for own in &mut own {
                    let limit = kept.limit(*own);
                    kept.change(*own, limit);
                    *own = limit;
                    assert!(kept.bytes() <= TOTAL_BYTES);
                }
            }
            let part = TOTAL_BYTES / (peers as u64 + 1);
            let expected = part.min(PEER_BYTES);
            for own in own {
                assert!(
                    own.abs_diff(expected) <= expected / 8 + 2,
                    "{own} {expected}"
                );
            }
            assert!(kept.limit(0) > 0);
        }
    }
}
