//! The receiving half of a connection: the received data, and the time and content of acknowledgements.
//!
//! The application reads at once, so the right edge of the window is always at the configured distance.
//! Acknowledgements follow RFC 5681 section 4.2 with Linux's timing. The second full segment is acknowledged at once,
//! other segments after 40 ms or more (adapting to the gaps between arrivals). At the start, after a long gap and after
//! a duplicate, each segment is acknowledged at once for a while. Out-of-order segments are always acknowledged at
//! once. SACK blocks are listed with the most recent first (RFC 2018 section 4), and DSACK in front (RFC 2883). Linux's
//! compression of SACKs (one acknowledgement for many segments within 1 ms) is not modelled. Bound: the ranges within
//! the window.

use core::{ops::Range, time::Duration};

use pleach_core::time::Instant;

use super::{ranges::RangeSet, segment::MAX_SACK_BLOCKS};

/// Smallest delay of an acknowledgement, Linux's `TCP_DELACK_MIN`.
const MIN_DELAY: Duration = Duration::from_millis(40);

/// Largest delay of an acknowledgement, half a second as in Linux.
const MAX_DELAY: Duration = Duration::from_millis(500);

/// Highest number of consecutive segments that are acknowledged one by one, Linux's `TCP_MAX_QUICKACKS`.
const MAX_QUICK_ACKS: u32 = 16;

/// Receiver of one direction.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// Next position expected.
    next: u64,
    window: u64,
    out_of_order: RangeSet,
    /// One position in each reported range, the most recent first.
    recent: [Option<u64>; MAX_SACK_BLOCKS],
    duplicate: Option<Range<u64>>,
    fin_at: Option<u64>,
    /// Length of the largest segment so far. Segments of this length count as full.
    mss: u32,
    is_delaying: bool,
    unanswered_bytes: u64,
    is_ack_due: bool,
    ack_at: Option<Instant>,
    quick_acks: u32,
    /// Delay of acknowledgements, Linux's `ato`.
    delay: Duration,
    last_arrival: Option<Instant>,
    /// Last acknowledged position.
    last_acked: u64,
}

impl Receiver {
    /// Creates a receiver that expects position 1. `window` is in bytes.
    pub(super) fn new(window: u64, is_delaying: bool) -> Self {
        Self {
            next: 1,
            window,
            out_of_order: RangeSet::default(),
            recent: [None; MAX_SACK_BLOCKS],
            duplicate: None,
            fin_at: None,
            mss: 536,
            is_delaying,
            unanswered_bytes: 0,
            is_ack_due: false,
            ack_at: None,
            quick_acks: MAX_QUICK_ACKS,
            delay: MIN_DELAY,
            last_arrival: None,
            last_acked: 1,
        }
    }

    /// Returns the next expected position.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the position after the last acceptable position.
    pub(super) fn window_end(&self) -> u64 {
        self.next.saturating_add(self.window)
    }

    /// Returns the last acknowledged position (timestamps are accepted up to it).
    pub(super) fn last_acked(&self) -> u64 {
        self.last_acked
    }

    /// Returns the number of payload bytes delivered in order.
    pub(super) fn received_bytes(&self) -> u64 {
        self.next - 1 - u64::from(self.is_finished())
    }

    /// Whether all data up to the FIN was received.
    pub(super) fn is_finished(&self) -> bool {
        self.fin_at.is_some_and(|fin_at| self.next > fin_at)
    }

    /// Whether out-of-order data is waiting for missing data.
    pub(super) fn has_hole(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// Whether the next acknowledgement should report SACK blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.has_hole() || self.duplicate.is_some()
    }

    /// Accepts the positions of a segment, including a FIN. `false` if they are outside the window or contradict an
    /// earlier FIN.
    pub(super) fn on_data(
        &mut self,
        now: Instant,
        positions: Range<u64>,
        has_fin: bool,
        srtt: Option<Duration>,
        rto: Duration,
    ) -> bool {
        let Range { start, end } = positions;
        if end <= self.next {
            self.duplicate = Some(start..end);
            self.quick_acks = MAX_QUICK_ACKS;
            self.is_ack_due = true;
            return true;
        }
        let is_beyond_fin = self
            .fin_at
            .is_some_and(|fin_at| end > fin_at + 1 || (has_fin && end != fin_at + 1));
        let known_end = self.out_of_order.end().unwrap_or(self.next);
        if end > self.window_end().saturating_add(1)
            || is_beyond_fin
            || (has_fin && end < known_end)
        {
            self.is_ack_due = true;
            return false;
        }
        if has_fin {
            self.fin_at = Some(end - 1);
        }
        let len = u32::try_from(end - start - u64::from(has_fin)).unwrap_or(u32::MAX);
        self.mss = self.mss.max(len);
        self.adapt_delay(now, rto);
        if start > self.next {
            self.keep_out_of_order(start..end);
            self.is_ack_due = true;
            return true;
        }
        if start < self.next {
            self.duplicate = Some(start..self.next);
        }
        let had_hole = self.has_hole();
        let prior = self.next;
        self.next = end;
        while let Some(range) = self.out_of_order.take_touching(self.next) {
            if range.start < self.next {
                self.duplicate = Some(range.start..range.end.min(self.next));
            }
            self.next = self.next.max(range.end);
        }
        self.unanswered_bytes += self.next - prior;
        self.schedule_ack(now, had_hole || has_fin, srtt);
        true
    }

    /// Requests an immediate acknowledgement.
    pub(super) fn ack_now(&mut self) {
        self.is_ack_due = true;
    }

    pub(super) fn is_ack_due(&self, now: Instant) -> bool {
        self.is_ack_due || self.ack_at.is_some_and(|at| at <= now)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.ack_at
    }

    /// Called when an acknowledgement is sent.
    pub(super) fn on_ack_sent(&mut self) {
        self.is_ack_due = false;
        self.ack_at = None;
        self.unanswered_bytes = 0;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        self.last_acked = self.next;
    }

    /// Passes the blocks to report to `push`, the most recent first, until `push` returns false. A duplicate is
    /// reported once.
    pub(super) fn take_blocks(&mut self, mut push: impl FnMut(Range<u64>) -> bool) {
        let duplicate = self.duplicate.take();
        if let Some(duplicate) = duplicate
            && !push(duplicate)
        {
            return;
        }
        for anchor in self.recent.into_iter().flatten() {
            if let Some(range) = self.out_of_order.find(anchor)
                && !push(range)
            {
                return;
            }
        }
    }

    fn keep_out_of_order(&mut self, range: Range<u64>) {
        let mut is_new = false;
        self.out_of_order.insert(range.clone(), |_| is_new = true);
        if !is_new {
            self.duplicate = Some(range.clone());
        }
        let merged = self.out_of_order.find(range.start);
        let is_elsewhere = |anchor: &u64| {
            merged
                .as_ref()
                .is_none_or(|merged| !merged.contains(anchor))
        };
        let others = self
            .recent
            .into_iter()
            .flatten()
            .filter(|anchor| *anchor >= self.next && is_elsewhere(anchor));
        let mut recent = [None; MAX_SACK_BLOCKS];
        for (slot, anchor) in recent
            .iter_mut()
            .zip([range.start].into_iter().chain(others))
        {
            *slot = Some(anchor);
        }
        self.recent = recent;
    }

    fn schedule_ack(&mut self, now: Instant, is_urgent: bool, srtt: Option<Duration>) {
        let is_second = self.unanswered_bytes > u64::from(self.mss);
        if is_urgent || is_second || self.quick_acks > 0 || !self.is_delaying {
            self.is_ack_due = true;
        } else if self.ack_at.is_none() {
            let most = srtt.map_or(MAX_DELAY, |srtt| srtt.clamp(MIN_DELAY, MAX_DELAY));
            self.ack_at = Some(now + self.delay.min(most));
        }
    }

    fn adapt_delay(&mut self, now: Instant, rto: Duration) {
        if let Some(last) = self.last_arrival.replace(now) {
            let gap = now.since(last);
            if gap <= MIN_DELAY / 2 {
                self.delay = self.delay / 2 + MIN_DELAY / 2;
            } else if gap < self.delay {
                self.delay = (self.delay / 2 + gap).min(rto);
            } else if gap > rto {
                self.quick_acks = MAX_QUICK_ACKS;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(300);

    fn receiver() -> Receiver {
        let mut receiver = Receiver::new(100_000, true);
        receiver.mss = 1_000;
        receiver
    }

    fn arrive(receiver: &mut Receiver, ms: u64, positions: Range<u64>) -> bool {
        receiver.on_data(Instant::from_millis(ms), positions, false, None, RTO)
    }

    fn blocks(receiver: &mut Receiver) -> Vec<Range<u64>> {
        let mut blocks = Vec::new();
        receiver.take_blocks(|block| {
            blocks.push(block);
            true
        });
        blocks
    }

    #[test]
    fn answers_each_at_first_then_every_second_or_after_the_delay() {
        let mut receiver = receiver();
        let mut at = 1;
        for _ in 0..MAX_QUICK_ACKS {
            arrive(&mut receiver, 0, at..at + 1_000);
            assert!(receiver.is_ack_due(Instant::ZERO));
            receiver.on_ack_sent();
            at += 1_000;
        }
        arrive(&mut receiver, 0, at..at + 1_000);
        assert!(!receiver.is_ack_due(Instant::ZERO));
        assert_eq!(receiver.poll_timeout(), Some(Instant::from_millis(40)));
        arrive(&mut receiver, 1, at + 1_000..at + 2_000);
        assert!(receiver.is_ack_due(Instant::from_millis(1)));
    }

    #[test]
    fn reports_the_most_recent_range_first_and_duplicates_in_front() {
        let mut receiver = receiver();
        for start in [3_000, 7_000, 5_000, 11_000, 13_000] {
            assert!(arrive(&mut receiver, 0, start..start + 1_000));
            assert!(receiver.is_ack_due(Instant::ZERO));
        }
        assert_eq!(
            blocks(&mut receiver),
            [13_000..14_000, 11_000..12_000, 5_000..6_000, 7_000..8_000]
        );
        arrive(&mut receiver, 0, 6_000..7_000);
        assert_eq!(blocks(&mut receiver)[0], 5_000..8_000);
        arrive(&mut receiver, 0, 6_000..7_000);
        assert_eq!(blocks(&mut receiver)[..2], [6_000..7_000, 5_000..8_000]);
        assert_eq!(blocks(&mut receiver)[0], 5_000..8_000);
    }

    #[test]
    fn delivers_in_order_once_and_ends_at_fin() {
        let mut receiver = receiver();
        arrive(&mut receiver, 0, 1_001..2_001);
        assert_eq!(receiver.received_bytes(), 0);
        let fin = 2_001..2_502;
        assert!(receiver.on_data(Instant::ZERO, fin, true, None, RTO));
        arrive(&mut receiver, 0, 1..1_001);
        assert_eq!(
            (receiver.received_bytes(), receiver.is_finished()),
            (2_500, true)
        );
        assert!(arrive(&mut receiver, 0, 1..1_001));
        assert_eq!(receiver.received_bytes(), 2_500);
        assert!(!arrive(&mut receiver, 0, 2_502..2_600));
    }

    #[test]
    fn refuses_what_lies_beyond_the_window() {
        let mut receiver = receiver();
        assert!(!arrive(&mut receiver, 0, 100_500..101_500));
        assert!(arrive(&mut receiver, 0, 99_001..100_001));
    }
}
