//! The prediction of earliest-arrival policies for one path: until when its bottleneck is busy.
//!
//! The backlog is stored as bytes of work, so that a change of the estimated rate also applies to packets in flight.

use core::time::Duration;

use super::PathView;
use crate::{
    time::{Instant, saturating_nanos},
    units::{Bitrate, Bytes},
};

/// A path's bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// When the bottleneck will have sent all packets, at `rate`.
    busy_until: Instant,
    rate: Bitrate,
    /// Since when the path has been seen usable but not ready.
    blocked_since: Option<Instant>,
}

impl Line {
    /// Creates a bottleneck without backlog.
    pub(super) const fn empty() -> Self {
        Self {
            busy_until: Instant::ZERO,
            rate: MIN_RATE,
            blocked_since: None,
        }
    }

    /// Updates the line with the present state of the path and its assumed capacity.
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

    /// When the bottleneck will have sent `len` bytes that are passed to it now.
    pub(super) fn sent_until(&self, now: Instant, len: Bytes) -> Instant {
        self.busy_until.max(now) + len / self.rate
    }

    /// When the bottleneck of a path that is not ready will have sent `len` bytes. The time until the path is ready
    /// is unknown; it is assumed to be as long as the path has already been unready.
    pub(super) fn drained_at(&self, now: Instant, len: Bytes) -> Instant {
        self.sent_until(now + now.since(self.blocked_since.unwrap_or(now)), len)
    }

    /// Records that `len` bytes were passed to the path.
    pub(super) fn on_sent(&mut self, now: Instant, len: Bytes) {
        self.busy_until = self.sent_until(now, len);
    }
}

/// Minimum rate, so that a prediction stays finite; lower rates count as this rate.
const MIN_RATE: Bitrate = Bitrate::from_bps(1_000);
