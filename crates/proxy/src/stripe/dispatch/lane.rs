//! One lane of an association (a TCP connection to the peer over one link), as the dispatcher sees it.

use core::time::Duration;
use std::collections::VecDeque;

use pleach_core::{ids::PathId, time::Instant, units::Bytes};

use crate::stripe::{
    MAX_LANES, MAX_SENT, MAX_SENT_BYTES, frame::LaneId, item::Item, rate::LaneEstimator,
    sched::LaneView,
};

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) slot: PathId,
    pub(super) estimator: LaneEstimator,
    pub(super) is_free: bool,
    pub(super) is_suspect: bool,
    pub(super) staged: VecDeque<Item>,
    pub(super) staged_bytes: u64,
    /// Items that the peer has not acknowledged yet. `None` for items that have become useless.
    pub(super) sent: VecDeque<Option<Item>>,
    pub(super) sent_bytes: u64,
    pub(super) sent_count: u64,
    /// Whether datagrams were sent on the lane and may be on the way.
    pub(super) carries_datagrams: bool,
    pub(super) progress_at: Instant,
}

impl Lane {
    /// Creates a lane that has sent nothing.
    pub(super) fn new(now: Instant, id: LaneId, slot: PathId) -> Self {
        Self {
            id,
            slot,
            estimator: LaneEstimator::default(),
            is_free: false,
            is_suspect: false,
            staged: VecDeque::new(),
            staged_bytes: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            sent_count: 0,
            carries_datagrams: false,
            progress_at: now,
        }
    }

    /// Whether the lane has sent or staged items, or datagrams on the way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.sent.is_empty() || !self.staged.is_empty() || self.carries_datagrams
    }

    /// Notes that the lane's socket accepts data. The staged items of a suspect lane have moved to other lanes. If
    /// nothing is in flight, no progress could clear the state.
    pub(super) fn on_ready(&mut self) {
        self.is_free = true;
        self.is_suspect &= !self.sent.is_empty() || self.carries_datagrams;
    }

    /// Whether the lane may be given items.
    pub(super) fn may_send(&self) -> bool {
        !self.is_suspect && self.sent.len() < MAX_SENT && self.sent_bytes < MAX_SENT_BYTES
    }

    /// Whether the lane has made no progress for so long that its link counts as dead.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now.since(self.progress_at) > patience(self.estimator.rtt())
    }

    /// Returns the lane's bit in a bit set of slots.
    pub(super) fn bit(&self) -> u8 {
        const { assert!(MAX_LANES <= 8) };
        1 << self.slot.0
    }

    /// Appends an item to the lane's queue.
    pub(super) fn stage(&mut self, now: Instant, item: Item) {
        if !self.is_waiting() {
            self.progress_at = now;
        }
        self.staged_bytes += item.data_bytes();
        self.staged.push_back(item);
    }

    /// Removes and returns the staged item at `place`.
    pub(super) fn unstage(&mut self, place: usize) -> Option<Item> {
        let item = self.staged.remove(place)?;
        self.staged_bytes -= item.data_bytes();
        Some(item)
    }

    pub(super) fn view(&self) -> LaneView {
        LaneView {
            slot: self.slot,
            rate: self.estimator.rate(),
            delay: self.estimator.delay(),
            waiting: self.estimator.unsent() + Bytes::new(self.staged_bytes),
            is_free: self.is_free && self.staged.is_empty(),
        }
    }
}

/// Returns how long a lane may make no progress. TCP's first timeout is 200 ms plus the RTT (RFC 6298, with Linux's
/// minimum).
fn patience(rtt: Duration) -> Duration {
    (LEAST_PATIENCE + rtt).min(MOST_PATIENCE)
}

const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// Upper bound, so that connections stall for less than a second.
const MOST_PATIENCE: Duration = Duration::from_millis(800);
