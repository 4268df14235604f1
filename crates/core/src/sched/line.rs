//! What is predicted of one path by policies that send for the earliest arrival: until when its bottleneck is busy.
//!
//! What it is busy with is kept as work, so that a change of the estimated rate takes effect on what is already under way.

use core::time::Duration;

use super::PathView;
use crate::{
    time::{Instant, saturating_nanos},
    units::{Bitrate, Bytes},
};

/// A path's bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// When all that was sent will have passed it at `rate`.
    busy_until: Instant,
    rate: Bitrate,
    /// Since when the path has been usable but not ready, as far as seen.
    blocked_since: Option<Instant>,
}

impl Line {
    /// One on which nothing was sent.
    pub(super) const fn empty() -> Self {
        Self {
            busy_until: Instant::ZERO,
            rate: MIN_RATE,
            blocked_since: None,
        }
    }

    /// Takes note of the path as it is now, and of what it is taken to carry.
    pub(super) fn update(&mut self, now: Instant, path: &PathView, rate: Bitrate) {
        let rate = rate.max(MIN_RATE);
        if !path.usable {
            self.busy_until = now;
        } else if rate != self.rate {
            let left = u128::from(saturating_nanos(self.busy_until.since(now)));
            let left = left * u128::from(self.rate.as_bps()) / u128::from(rate.as_bps());
            self.busy_until = now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX));
        }
        self.rate = rate;
        self.blocked_since = if path.ready || !path.usable {
            None
        } else {
            self.blocked_since.or(Some(now))
        };
    }

    /// When `len` bytes handed over now will have passed.
    pub(super) fn sent_until(&self, now: Instant, len: Bytes) -> Instant {
        self.busy_until.max(now) + len / self.rate
    }

    /// The same of a path that is not ready. How long it will stay so is unknown; it is taken for as long as it has been
    /// already.
    pub(super) fn drained_at(&self, now: Instant, len: Bytes) -> Instant {
        self.sent_until(now + now.since(self.blocked_since.unwrap_or(now)), len)
    }

    /// Notes that `len` bytes were handed over.
    pub(super) fn on_sent(&mut self, now: Instant, len: Bytes) {
        self.busy_until = self.sent_until(now, len);
    }
}

/// Below this a rate counts as this, so that a prediction stays a number.
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);
