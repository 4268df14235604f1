//! Packets with a deadline that have not been assigned to a path.
//!
//! Packets of flows that send little leave first, then the oldest packets. A packet that requires order never overtakes
//! an earlier packet of its flow. The newest packets that need no order may leave before all others, because they have
//! the most time left.
//!
//! Bound: [`MOST_URGENT`] packets of each of the three kinds `small`, `ordered` and `unordered`. When a kind is full,
//! its oldest packet is dropped.

use std::collections::VecDeque;

use crate::{path::on_wire::in_datagrams, queue::Queued, units::Bytes};

/// Packets with a deadline, in order of arrival; at most [`MOST_URGENT`] packets of each kind.
#[derive(Debug, Default)]
pub(super) struct Urgent {
    /// Packets of flows that send little.
    small: VecDeque<Queued>,
    ordered: VecDeque<Queued>,
    unordered: VecDeque<Queued>,
    bytes: Bytes,
}

impl Urgent {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.ordered.len() + self.unordered.len()
    }

    pub(super) fn on_wire(&self) -> Bytes {
        in_datagrams(self.bytes, self.len())
    }

    /// Adds a packet. Returns the oldest packet of its kind if there are too many.
    pub(super) fn push(
        &mut self,
        is_small: bool,
        is_ordered: bool,
        queued: Queued,
    ) -> Option<Queued> {
        self.bytes += Bytes::of_len(queued.packet.len());
        // A packet that requires order must not overtake an earlier packet of its flow.
        let is_behind = |before: &Queued| before.flow == queued.flow;
        let is_first = is_small && !(is_ordered && self.ordered.iter().any(is_behind));
        let kind = match (is_first, is_ordered) {
            (true, _) => &mut self.small,
            (false, true) => &mut self.ordered,
            (false, false) => &mut self.unordered,
        };
        kind.push_back(queued);
        let too_many = kind.len() > MOST_URGENT;
        let oldest = if too_many { kind.pop_front() } else { None };
        self.counted(oldest)
    }

    pub(super) fn oldest(&mut self) -> Option<Queued> {
        let at = |kind: &VecDeque<Queued>| kind.front().map(|queued| queued.enqueued_at);
        let is_ordered_first = match (at(&self.ordered), at(&self.unordered)) {
            (Some(ordered), Some(unordered)) => ordered <= unordered,
            (ordered, _) => ordered.is_some(),
        };
        let next = match self.small.pop_front() {
            None if is_ordered_first => self.ordered.pop_front(),
            None => self.unordered.pop_front(),
            small => small,
        };
        self.counted(next)
    }

    pub(super) fn newest(&mut self) -> Option<Queued> {
        let newest = self.unordered.pop_back();
        self.counted(newest)
    }

    /// Puts back the newest packet.
    pub(super) fn put_back(&mut self, queued: Queued) {
        self.bytes += Bytes::of_len(queued.packet.len());
        self.unordered.push_back(queued);
    }

    /// Returns `queued` after subtracting its length, because it has been removed.
    fn counted(&mut self, queued: Option<Queued>) -> Option<Queued> {
        let len = queued.as_ref().map_or(0, |queued| queued.packet.len());
        self.bytes = self.bytes - Bytes::of_len(len);
        queued
    }
}

/// Maximum number of packets of each kind: one second at 30 Mbit/s.
const MOST_URGENT: usize = 2_560;
