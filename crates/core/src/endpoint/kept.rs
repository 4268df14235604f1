//! The bounds of the memory that packets on their way take: one for each peer, one for all.
//!
//! A peer may have [`PEER_BYTES`], but no more than half of what the others leave of [`TOTAL_BYTES`]: a dynamic threshold
//! (Choudhury and Hahne, "Dynamic queue length thresholds", 1998). So *n* peers that all want more have the *n + 1*st part each,
//! some is left for one that comes, and nothing is reserved for peers that need nothing. A client has one peer, its gateway, and
//! no bound for it but that for all: 48 MiB are 66 ms of repairs at 5 Gbit/s.
//!
//! It is counted at each turn of a peer. Between two turns it can have more by what one read of a socket brings.

/// What is kept for all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    bytes: u64,
    /// Whether there is but one peer, which has all.
    is_of_one: bool,
}

impl Kept {
    /// Nothing is kept, for many peers or for the only one.
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

    /// What is kept for all peers, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What may be kept for a peer that has `own` bytes of it.
    pub(super) fn limit(&self, own: u64) -> u64 {
        if self.is_of_one {
            return TOTAL_BYTES;
        }
        let others = self.bytes.saturating_sub(own);
        let left = TOTAL_BYTES.saturating_sub(others) / 2;
        left.min(PEER_BYTES)
    }

    /// A peer has `now` bytes instead of `before`.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.bytes = self.bytes.saturating_sub(before) + now;
    }
}

/// Most bytes of packets that are kept for one peer. With tables of fixed size that is at most 64 MiB in all.
pub const PEER_BYTES: u64 = 48 << 20;
/// Most bytes of packets that are kept for all peers.
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
