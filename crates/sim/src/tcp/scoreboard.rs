//! State of each outstanding segment at a sender: RFC 6675's scoreboard, stored per segment as in Linux.
//!
//! Segments are never split, so each has a fixed number. Its index in a deque is its number minus the number of the
//! first segment. Further structures:
//!
//! - the numbers of selectively acknowledged segments as ranges (a repeated block costs O(log n)),
//! - a linked list through the deque in sending order (for RACK),
//! - a heap of lost segments that have not been retransmitted.
//!
//! A segment enters and leaves each structure once per transmission, so an acknowledgement costs O(log n) amortised
//! for n outstanding segments. No memory is allocated once the deque has reached its size. Bound: the peer's window
//! in segments.

use core::{cmp::Reverse, ops::Range};
use std::collections::{BinaryHeap, VecDeque};

use pleach_core::time::Instant;

use super::{ranges::RangeSet, rate::Mark};

/// Marker for the absence of a segment in links of the list.
const NONE: u64 = u64::MAX;

/// An outstanding segment.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent marks of RFC 6675 and RFC 8985"
)]
pub(super) struct Sent {
    /// First position.
    pub(super) start: u64,
    /// Position past the last, FIN included.
    pub(super) end: u64,
    /// Time of the last transmission.
    pub(super) sent_at: Instant,
    /// Delivery state at that time.
    pub(super) mark: Mark,
    /// Whether the segment ends the stream.
    pub(super) has_fin: bool,
    /// Whether the segment is selectively acknowledged.
    pub(super) is_sacked: bool,
    /// Whether the segment is considered lost. Remains set after a retransmission.
    pub(super) is_lost: bool,
    /// Whether the segment was retransmitted and the retransmission is in flight.
    pub(super) is_resent: bool,
    /// Whether the segment was ever retransmitted.
    pub(super) was_resent: bool,
    is_linked: bool,
    older: u64,
    newer: u64,
}

/// All outstanding segments.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    segments: VecDeque<Sent>,
    first_id: u64,
    sacked: RangeSet,
    to_resend: BinaryHeap<Reverse<u64>>,
    oldest: u64,
    newest: u64,
    /// Number below which all segments were examined when losses were last marked.
    marked_below: u64,
    sacked_pkts: u32,
    lost_pkts: u32,
    resent_pkts: u32,
    /// Number of duplicate acknowledgements, which replace SACK if it is not in use (RFC 6582).
    pub(super) duplicate_acks: u32,
    /// Total number of delivered segments.
    pub(super) delivered_pkts: u64,
    /// Total number of segments considered lost, including lost retransmissions.
    pub(super) total_lost_pkts: u64,
}

impl Default for Scoreboard {
    fn default() -> Self {
        Self {
            segments: VecDeque::new(),
            first_id: 0,
            sacked: RangeSet::default(),
            to_resend: BinaryHeap::new(),
            oldest: NONE,
            newest: NONE,
            marked_below: 0,
            sacked_pkts: 0,
            lost_pkts: 0,
            resent_pkts: 0,
            duplicate_acks: 0,
            delivered_pkts: 0,
            total_lost_pkts: 0,
        }
    }
}

impl Scoreboard {
    /// Appends a new segment, sent at `now`.
    pub(super) fn push(&mut self, now: Instant, positions: Range<u64>, has_fin: bool, mark: Mark) {
        let id = self.end_id();
        self.segments.push_back(Sent {
            start: positions.start,
            end: positions.end,
            sent_at: now,
            mark,
            has_fin,
            is_sacked: false,
            is_lost: false,
            is_resent: false,
            was_resent: false,
            is_linked: false,
            older: NONE,
            newer: NONE,
        });
        self.link_newest(id);
    }

    /// Returns the number of segments sent and not cumulatively acknowledged.
    pub(super) fn outstanding_pkts(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of segments in the network, RFC 6675's pipe.
    pub(super) fn in_flight_pkts(&self) -> u32 {
        (self.outstanding_pkts() + self.resent_pkts)
            .saturating_sub(self.sacked_pkts + self.duplicate_acks + self.lost_pkts)
    }

    /// Returns the number of segments known to have left the network while an earlier segment has not.
    pub(super) fn sacked_pkts(&self) -> u32 {
        self.sacked_pkts + self.duplicate_acks
    }

    /// Returns the number of segments that are lost and not yet delivered.
    pub(super) fn lost_pkts(&self) -> u32 {
        self.lost_pkts
    }

    /// Returns the number of retransmitted segments that are still in flight.
    pub(super) fn resent_pkts(&self) -> u32 {
        self.resent_pkts
    }

    /// Returns the number after the highest delivered segment. Without selective acknowledgements it is the number of
    /// the first outstanding segment.
    pub(super) fn highest_sacked_id(&self) -> u64 {
        self.sacked.end().unwrap_or(self.first_id)
    }

    /// Returns the number of the first outstanding segment.
    pub(super) fn first_id(&self) -> u64 {
        self.first_id
    }

    /// Returns the number of the last segment that is not known to be delivered.
    pub(super) fn last_undelivered_id(&self) -> Option<u64> {
        let highest = self.sacked.iter_descending().next();
        let end = match highest.filter(|range| range.end == self.end_id()) {
            Some(range) => range.start,
            None => self.end_id(),
        };
        end.checked_sub(1).filter(|id| *id >= self.first_id)
    }

    /// Removes the segments that `una` acknowledges cumulatively and passes each with its number to `on_segment`.
    pub(super) fn acknowledge(&mut self, una: u64, mut on_segment: impl FnMut(u64, &Sent)) {
        while self.segments.front().is_some_and(|s| s.end <= una) {
            let id = self.first_id;
            self.unlink(id);
            let Some(segment) = self.segments.pop_front() else {
                break;
            };
            self.first_id += 1;
            if segment.is_sacked {
                self.sacked_pkts -= 1;
            } else if self.duplicate_acks == 0 {
                self.delivered_pkts += 1;
            }
            self.lost_pkts -= u32::from(segment.is_lost);
            self.resent_pkts -= u32::from(segment.is_resent);
            on_segment(id, &segment);
        }
        self.sacked.remove_below(self.first_id);
    }

    /// Marks the segments that lie entirely within `positions` as selectively acknowledged. Passes each newly marked
    /// segment in its previous state to `on_segment`, with its number.
    pub(super) fn sack(&mut self, positions: Range<u64>, mut on_segment: impl FnMut(u64, &Sent)) {
        let first = self.segments.partition_point(|s| s.start < positions.start);
        let last = self.segments.partition_point(|s| s.end <= positions.end);
        let ids = self.first_id + to_u64(first)..self.first_id + to_u64(last);
        let mut sacked = core::mem::take(&mut self.sacked);
        sacked.insert(ids, |new| {
            for id in new {
                self.unlink(id);
                if let Some(segment) = self.get_mut(id) {
                    let before = *segment;
                    segment.is_sacked = true;
                    segment.is_lost = false;
                    segment.is_resent = false;
                    self.lost_pkts -= u32::from(before.is_lost);
                    self.resent_pkts -= u32::from(before.is_resent);
                    self.sacked_pkts += 1;
                    self.delivered_pkts += 1;
                    on_segment(id, &before);
                }
            }
        });
        self.sacked = sacked;
    }

    /// Marks segment `id` as lost: its original transmission, or its retransmission if there was one.
    pub(super) fn mark_lost(&mut self, id: u64) {
        let Some(segment) = self.get_mut(id) else {
            return;
        };
        if segment.is_sacked || (segment.is_lost && !segment.is_resent) {
            return;
        }
        let before = *segment;
        segment.is_lost = true;
        segment.is_resent = false;
        self.lost_pkts += u32::from(!before.is_lost);
        self.resent_pkts -= u32::from(before.is_resent);
        self.total_lost_pkts += 1;
        self.unlink(id);
        self.to_resend.push(Reverse(id));
    }

    /// Marks as lost the segments that have at least `threshold` selectively acknowledged segments above them (RFC
    /// 6675 `IsLost`). Retransmitted segments are not changed.
    pub(super) fn mark_lost_by_count(&mut self, threshold: u32) {
        let mut above = 0;
        let mut limit = None;
        for range in self.sacked.iter_descending() {
            above += range.end - range.start;
            if above >= u64::from(threshold) {
                limit = Some(range.start + (above - u64::from(threshold)));
                break;
            }
        }
        let Some(limit) = limit else {
            return;
        };
        for id in self.marked_below.max(self.first_id)..limit {
            if self.get_mut(id).is_some_and(|s| !s.is_lost && !s.is_resent) {
                self.mark_lost(id);
            }
        }
        self.marked_below = self.marked_below.max(limit);
    }

    /// Marks every segment as lost for which `is_lost` returns true. `is_lost` gets the number too.
    pub(super) fn mark_lost_where(&mut self, mut is_lost: impl FnMut(u64, &Sent) -> bool) {
        for id in self.first_id..self.end_id() {
            if self.get_mut(id).is_some_and(|s| is_lost(id, s)) {
                self.mark_lost(id);
            }
        }
    }

    /// Marks segments as lost in the order in which they were sent, as long as `is_lost` returns true.
    pub(super) fn mark_lost_by_age(&mut self, mut is_lost: impl FnMut(&Sent) -> bool) {
        while let Some(segment) = self.get(self.oldest) {
            if !is_lost(segment) {
                break;
            }
            self.mark_lost(self.oldest);
        }
    }

    /// Undoes loss marks: segments that were marked as lost and not retransmitted count as in flight again.
    pub(super) fn unmark_lost(&mut self) {
        self.to_resend.clear();
        self.marked_below = 0;
        self.lost_pkts = 0;
        for id in (self.first_id..self.end_id()).rev() {
            if let Some(segment) = self.get_mut(id) {
                segment.is_lost = false;
                if !segment.is_sacked && !segment.is_linked {
                    self.link_by_time(id);
                }
            }
        }
    }

    /// Returns the lowest segment that is lost and not retransmitted.
    pub(super) fn next_lost(&mut self) -> Option<u64> {
        while let Some(Reverse(id)) = self.to_resend.peek().copied() {
            if self.get(id).is_some_and(|s| s.is_lost && !s.is_resent) {
                return Some(id);
            }
            self.to_resend.pop();
        }
        None
    }

    /// Records the retransmission of segment `id` at `now` and returns the segment.
    pub(super) fn resend(&mut self, now: Instant, id: u64, mark: Mark) -> Option<Sent> {
        let segment = self.get_mut(id)?;
        debug_assert!(!segment.is_sacked, "what was delivered is not sent again");
        let was_under_way = segment.is_resent;
        segment.is_resent = true;
        segment.was_resent = true;
        segment.sent_at = now;
        segment.mark = mark;
        let sent = *segment;
        self.resent_pkts += u32::from(!was_under_way);
        self.unlink(id);
        self.link_newest(id);
        Some(sent)
    }

    fn end_id(&self) -> u64 {
        self.first_id + to_u64(self.segments.len())
    }

    fn index(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.first_id)?).ok()
    }

    fn get(&self, id: u64) -> Option<&Sent> {
        self.segments.get(self.index(id)?)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Sent> {
        let index = self.index(id)?;
        self.segments.get_mut(index)
    }

    fn link_newest(&mut self, id: u64) {
        self.link_after(self.newest, id);
    }

    /// Links segment `id` before the first segment that was sent after it. O(1) if segments are linked in from newest
    /// to oldest and are older than all linked segments.
    fn link_by_time(&mut self, id: u64) {
        let Some(segment) = self.get(id).copied() else {
            return;
        };
        let (mut older, mut newer) = (NONE, self.oldest);
        while let Some(other) = self.get(newer) {
            if (other.sent_at, other.end) > (segment.sent_at, segment.end) {
                break;
            }
            (older, newer) = (newer, other.newer);
        }
        self.link_after(older, id);
    }

    fn link_after(&mut self, older: u64, id: u64) {
        let newer = match self.get_mut(older) {
            Some(older) => core::mem::replace(&mut older.newer, id),
            None => core::mem::replace(&mut self.oldest, id),
        };
        match self.get_mut(newer) {
            Some(newer) => newer.older = id,
            None => self.newest = id,
        }
        if let Some(segment) = self.get_mut(id) {
            segment.is_linked = true;
            segment.older = older;
            segment.newer = newer;
        }
    }

    fn unlink(&mut self, id: u64) {
        let Some(segment) = self.get_mut(id).filter(|s| s.is_linked) else {
            return;
        };
        segment.is_linked = false;
        let (older, newer) = (segment.older, segment.newer);
        match self.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pleach_core::rng::Rng;

    use super::*;

    const MSS: u64 = 100;

    fn board(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        for i in 0..segments {
            board.push(
                Instant::from_millis(i),
                i * MSS..(i + 1) * MSS,
                false,
                Mark::default(),
            );
        }
        board
    }

    fn segments(range: Range<u64>) -> Range<u64> {
        range.start * MSS..range.end * MSS
    }

    fn lost(board: &mut Scoreboard) -> Vec<u64> {
        core::iter::from_fn(|| {
            let id = board.next_lost()?;
            board.resend(Instant::from_millis(1_000), id, Mark::default())?;
            Some(id)
        })
        .collect()
    }

    #[test]
    fn counts_agree_with_a_recount() {
        let mut rng = Rng::new(3);
        let mut board = board(0);
        let mut end = 0;
        for step in 0..20_000 {
            let now = Instant::from_millis(step);
            let id = board.first_id + rng.below(u64::from(board.outstanding_pkts()) + 1);
            match rng.below(8) {
                0..3 => {
                    board.push(now, end..end + MSS, false, Mark::default());
                    end += MSS;
                }
                3 => board.acknowledge(id * MSS, |_, _| {}),
                4 => board.sack(segments(id..id + rng.below(5)), |_, _| {}),
                5 => board.mark_lost(id),
                6 => {
                    if let Some(id) = board.next_lost() {
                        board.resend(now, id, Mark::default());
                    }
                }
                _ if rng.chance(0.05) => board.unmark_lost(),
                _ => board.mark_lost_by_count(3),
            }
            let count = |mark: fn(&Sent) -> bool| {
                u32::try_from(board.segments.iter().filter(|s| mark(s)).count()).unwrap()
            };
            assert_eq!(board.sacked_pkts, count(|s| s.is_sacked));
            assert_eq!(board.lost_pkts, count(|s| s.is_lost));
            assert_eq!(board.resent_pkts, count(|s| s.is_resent));
            // The list contains the segments in flight, in the order of sending.
            let mut listed = Vec::new();
            let mut id = board.oldest;
            while let Some(segment) = board.get(id) {
                listed.push(segment.sent_at);
                id = segment.newer;
            }
            assert!(listed.is_sorted());
            let under_way = count(|s| !s.is_sacked && (!s.is_lost || s.is_resent));
            assert_eq!(listed.len(), usize::try_from(under_way).unwrap());
        }
    }

    #[test]
    fn the_last_segment_not_delivered_is_known() {
        assert_eq!(board(0).last_undelivered_id(), None);
        let mut board = board(10);
        for (sacked, last) in [
            (6..8, Some(9)),
            (8..10, Some(5)),
            (1..6, Some(0)),
            (0..1, None),
        ] {
            board.sack(segments(sacked), |_, _| {});
            assert_eq!(board.last_undelivered_id(), last);
        }
    }

    #[test]
    fn three_above_make_a_loss() {
        let mut board = board(10);
        board.sack(segments(2..4), |_, _| {});
        board.mark_lost_by_count(3);
        assert_eq!(board.lost_pkts(), 0);
        board.sack(segments(6..7), |_, _| {});
        board.mark_lost_by_count(3);
        assert_eq!(lost(&mut board), [0, 1]);
        board.sack(segments(8..10), |_, _| {});
        board.mark_lost_by_count(3);
        assert_eq!(lost(&mut board), [4, 5]);
        assert_eq!(board.in_flight_pkts(), 5);
    }

    #[test]
    fn a_partly_covered_segment_is_not_acknowledged() {
        let mut board = board(3);
        let mut seen = Vec::new();
        board.sack(150..299, |id, _| seen.push(id));
        assert!(seen.is_empty());
        board.sack(150..300, |id, _| seen.push(id));
        assert_eq!(seen, [2]);
        board.acknowledge(150, |id, _| seen.push(id));
        assert_eq!(seen, [2, 0]);
    }

    #[test]
    fn oldest_are_lost_first_and_a_resent_one_is_newest() {
        let mut board = board(5);
        board.mark_lost_by_age(|s| s.sent_at < Instant::from_millis(2));
        assert_eq!(lost(&mut board), [0, 1]);
        board.mark_lost_by_age(|s| s.sent_at < Instant::from_millis(900));
        assert_eq!(lost(&mut board), [2, 3, 4]);
        assert_eq!(board.in_flight_pkts(), 5);
        board.mark_lost(0);
        assert_eq!((board.in_flight_pkts(), board.lost_pkts()), (4, 5));
        board.unmark_lost();
        assert_eq!(board.in_flight_pkts(), 5 + 4);
    }
}
