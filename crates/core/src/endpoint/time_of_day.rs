//! The time of day, and the timestamps of initiations.

use crate::time::{Instant, saturating_nanos};

/// What an endpoint knows about the time of day. Times are in nanoseconds since 1970.
#[derive(Debug)]
pub(super) struct TimeOfDay {
    /// Offset from an [`Instant`] to the time of day.
    offset: u64,
    started_at: Instant,
    /// Timestamp of the latest initiation that this end has sent.
    latest: u64,
}

impl TimeOfDay {
    /// The endpoint starts at `now`, and has not been told the time of day.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            offset: 0,
            started_at: now,
            latest: 0,
        }
    }

    /// Sets the time of day at `now`.
    pub(super) fn set(&mut self, now: Instant, unix_nanos: u64) {
        self.offset = unix_nanos.saturating_sub(since_zero(now));
    }

    /// The endpoint starts once more.
    pub(super) const fn start_over(&mut self, now: Instant) {
        self.started_at = now;
    }

    /// Returns the time of day at which the endpoint started.
    pub(super) fn start(&self) -> u64 {
        self.at(self.started_at)
    }

    /// Returns the timestamp of the next initiation, which is later than all previous timestamps.
    pub(super) fn next_timestamp(&mut self, now: Instant) -> u64 {
        self.latest = self.at(now).max(self.latest.saturating_add(1));
        self.latest
    }

    fn at(&self, at: Instant) -> u64 {
        self.offset.saturating_add(since_zero(at))
    }
}

fn since_zero(at: Instant) -> u64 {
    saturating_nanos(at.since(Instant::ZERO))
}
