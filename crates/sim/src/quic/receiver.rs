//! The receiving endpoint: acknowledges packets and restores the order of the stream. RFC 9000 section 13.2.

use core::ops::Range;

use pleach_core::time::{Instant, saturating_nanos};

use super::{
    MAX_ACK_DELAY, STREAM_WINDOW,
    wire::{Ack, MAX_RANGES},
};
use crate::tcp::RangeSet;

/// Distance behind the highest packet number from which packets cannot be distinguished from duplicates.
const DUPLICATE_WINDOW: u64 = 129;

/// Receiver of the stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    /// Numbers of packets that arrived: the highest ranges.
    numbers: RangeSet,
    /// The highest packet number, and its time of arrival.
    highest: Option<(u64, Instant)>,
    /// Ranges of the stream that arrived out of order.
    pieces: RangeSet,
    in_order: u64,
    /// Packets since the last acknowledgement.
    unanswered: u32,
    is_ack_due: bool,
    ack_at: Option<Instant>,
    dropped_pkts: u64,
}

impl Receiver {
    /// Processes a packet with a piece of the stream.
    pub(super) fn on_packet(&mut self, now: Instant, number: u64, piece: Range<u64>) {
        let highest = self.highest.map(|(number, _)| number);
        let is_too_late = highest.is_some_and(|highest| number + DUPLICATE_WINDOW <= highest);
        let mut is_new = false;
        if !is_too_late {
            self.numbers.insert(number..number + 1, |_| is_new = true);
        }
        if !is_new || piece.end > self.in_order + STREAM_WINDOW {
            self.dropped_pkts += 1;
            return;
        }
        while self.numbers.iter_descending().count() > MAX_RANGES {
            self.numbers.take_touching(u64::MAX);
        }
        if highest.is_none_or(|highest| number > highest) {
            self.highest = Some((number, now));
        }
        self.unanswered += 1;
        let expected = highest.map_or(0, |highest| highest + 1);
        if self.unanswered > 1 || number != expected {
            self.is_ack_due = true;
        }
        self.ack_at.get_or_insert(now + MAX_ACK_DELAY);
        self.pieces.insert(piece, |_| {});
        if let Some(range) = self.pieces.take_touching(self.in_order) {
            self.in_order = self.in_order.max(range.end);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.is_ack_due |= self.ack_at.is_some_and(|at| at <= now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.ack_at
    }

    /// Returns the acknowledgement that is due, if any.
    pub(super) fn poll_ack(&mut self, now: Instant) -> Option<Ack> {
        if !core::mem::take(&mut self.is_ack_due) {
            return None;
        }
        self.ack_at = None;
        self.unanswered = 0;
        let (_, arrived_at) = self.highest?;
        let delay_us = saturating_nanos(now.since(arrived_at)) / 1_000;
        let mut ack = Ack::new(delay_us, self.in_order + STREAM_WINDOW);
        self.numbers
            .iter_descending()
            .all(|range| ack.push(range.start, range.end - 1));
        Some(ack)
    }

    /// Returns the number of stream bytes received in order.
    pub(super) fn in_order_bytes(&self) -> u64 {
        self.in_order
    }

    /// Returns the number of packets that were duplicates, too late, or beyond the window.
    pub(super) fn dropped_pkts(&self) -> u64 {
        self.dropped_pkts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives packet `number`, which contains byte `number` of the stream. Returns whether an acknowledgement was
    /// due.
    fn take(receiver: &mut Receiver, ms: u64, number: u64) -> bool {
        let now = Instant::from_millis(ms);
        receiver.on_packet(now, number, number..number + 1);
        receiver.poll_ack(now).is_some()
    }

    #[test]
    fn answers_every_second_packet_a_gap_and_a_single_one_after_a_while() {
        let mut receiver = Receiver::default();
        assert!(!take(&mut receiver, 0, 0));
        assert!(take(&mut receiver, 1, 1));
        assert!(take(&mut receiver, 2, 3));
        assert!(take(&mut receiver, 3, 2));
        assert!(!take(&mut receiver, 4, 4));
        assert_eq!(receiver.poll_timeout(), Some(Instant::from_millis(29)));
        receiver.handle_timeout(Instant::from_millis(29));
        let ack = receiver.poll_ack(Instant::from_millis(29)).expect("due");
        assert_eq!(ack.ranges(), [(0, 4)]);
        assert_eq!((ack.delay_us, receiver.in_order_bytes()), (25_000, 5));
    }

    #[test]
    fn what_is_far_behind_is_dropped() {
        let mut receiver = Receiver::default();
        take(&mut receiver, 0, 0);
        take(&mut receiver, 0, 200);
        take(&mut receiver, 0, 72);
        assert_eq!(receiver.dropped_pkts(), 0);
        take(&mut receiver, 0, 71);
        take(&mut receiver, 0, 72);
        assert_eq!(receiver.dropped_pkts(), 2);
    }
}
