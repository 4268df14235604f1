//! How high the pace may be after congestion.

use core::time::Duration;

use crate::{time::Instant, units::Bitrate};

/// What congestion left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    pub(super) pace: Bitrate,
    /// When it was set.
    pub(super) since: Instant,
    /// Whether what is lost was sent under it.
    pub(super) is_settled: bool,
    /// When it was last raised, and by how much it is next, in percent.
    pub(super) raised_at: Instant,
    pub(super) step: u64,
}

impl Ceiling {
    /// One at `pace`.
    pub(super) const fn new(now: Instant, pace: Bitrate) -> Self {
        Self {
            pace,
            since: now,
            is_settled: false,
            raised_at: now,
            step: 2,
        }
    }

    /// Whether what is lost now was sent under it: it takes `settled_after` until the last losses of before are told. Once so, it stays
    /// so, however long round trips become.
    pub(super) fn is_settled(&mut self, now: Instant, settled_after: Duration) -> bool {
        self.is_settled |= now.since(self.since) >= settled_after;
        self.is_settled
    }

    /// Rises if it may. `rtt` is the present round trip: the one in which the path overflowed may have been seconds longer.
    pub(super) fn rise(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.since) < HOLD.max(rtt * 4) {
            self.raised_at = now;
        } else if now.since(self.raised_at) >= (rtt * 2).max(LEAST_ROUND) {
            self.raised_at = now;
            self.pace = self.pace.scale(100 + self.step, 100);
            self.step = (self.step * 2).min(25);
        }
    }
}

/// How long the pace stays below what the path carried in congestion.
const HOLD: Duration = Duration::from_secs(1);
/// Shortest time between two rises of the ceiling.
const LEAST_ROUND: Duration = Duration::from_millis(100);
