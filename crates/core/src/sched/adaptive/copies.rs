//! What copies may cost by which paths are searched.

use core::time::Duration;

use crate::{time::Instant, units::Bytes};

/// What a path may still carry in copies, and as of when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    left: Bytes,
    since: Instant,
}

impl Copies {
    /// As much as may be granted at a time.
    pub(super) const fn granted() -> Self {
        Self {
            left: COPIES,
            since: Instant::ZERO,
        }
    }

    /// Whether a packet of `len` bytes may be copied `times` times now; then that is charged.
    pub(super) fn may_copy(&mut self, now: Instant, len: Bytes, times: u8) -> bool {
        let len = Bytes::new(len.get() * u64::from(times));
        if now.since(self.since) > COPIES_AGAIN {
            self.left = COPIES;
            self.since = now;
        }
        let may = self.left >= len;
        if may {
            self.left = self.left - len;
        }
        may
    }
}

/// What a path may carry in copies at most, and how often that is granted.
const COPIES: Bytes = Bytes::new(8_000_000);
const COPIES_AGAIN: Duration = Duration::from_secs(60);
