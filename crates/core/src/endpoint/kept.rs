//! The bounds of the memory for packets: one bound per peer, and one for all peers.
//!
//! A peer may use [`PEER_BYTES`], but no more than half of what the others leave free of [`TOTAL_BYTES`]: a dynamic
//! threshold (Choudhury and Hahne, "Dynamic queue length thresholds", 1998). If *n* peers all want more, each gets the
//! *n + 1*st part, some memory is left for a new peer, and none is reserved for peers that need none.
//!
//! Usage is measured at each turn of a peer. Between two turns it can exceed the bound by the packets of one socket
//! read.

/// The memory used by the packets of all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    bytes: u64,
    /// Whether there is but one peer, which has all.
    is_of_one: bool,
}

impl Kept {
    /// No memory is used yet. `is_of_one`: there is one peer only, which may use all.
    pub(super) const fn of(is_of_one: bool) -> Self {
        Self {
            bytes: 0,
            is_of_one,
        }
    }

    /// Most for one peer, in bytes.
    #[must_use]
    pub const fn peer_limit(&self) -> u64 {
        if self.is_of_one {
            TOTAL_BYTES
        } else {
            PEER_BYTES
        }
    }

    /// The memory used by the packets of all peers, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bound for a peer that uses `own` bytes now.
    pub(super) fn limit(&self, own: u64) -> u64 {
        if self.is_of_one {
            return TOTAL_BYTES;
        }
        let others = self.bytes.saturating_sub(own);
        let left = TOTAL_BYTES.saturating_sub(others) / 2;
        left.min(PEER_BYTES)
    }

    /// Records that a peer uses `now` bytes instead of `before`.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.bytes = self.bytes.saturating_sub(before) + now;
    }
}

/// The bound for the packets of one peer, in bytes. With tables of fixed size a peer takes at most 64 MiB in all.
pub const PEER_BYTES: u64 = 48 << 20;
/// The bound for the packets of all peers, in bytes.
pub const TOTAL_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

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
