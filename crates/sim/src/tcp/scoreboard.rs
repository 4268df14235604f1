//! What a sender knows of each segment under way: RFC 6675's scoreboard, kept per segment as Linux does.
//!
//! Segments never split, so each has a number that stays: its place in a deque is its number less the first one's.
//! Beside it: the numbers selectively acknowledged as ranges (a block that was seen before costs O(log n)), a linked
//! list through the deque in the order of sending (for RACK), and a heap of what is lost and not sent again. A segment
//! enters and leaves each once per transmission, so an acknowledgement costs O(log n) amortised. Nothing is allocated
//! once the deque has its size. Bound: the peer's window in segments.

use core::{cmp::Reverse, ops::Range};
use std::collections::{BinaryHeap, VecDeque};

use pleach_core::time::Instant;

use super::{ranges::RangeSet, rate::Mark};

/// No segment, in links of the list.
const NONE: u64 = u64::MAX;

/// A segment under way.
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
    /// When it was last sent.
    pub(super) sent_at: Instant,
    /// What was delivered by then.
    pub(super) mark: Mark,
    /// Whether it ends the stream.
    pub(super) has_fin: bool,
    /// Selectively acknowledged.
    pub(super) is_sacked: bool,
    /// Taken for lost; stays set when sent again.
    pub(super) is_lost: bool,
    /// Sent again, and that one is still under way.
    pub(super) is_resent: bool,
    /// Ever sent again.
    pub(super) was_resent: bool,
    is_linked: bool,
    older: u64,
    newer: u64,
}

/// All segments under way.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    segments: VecDeque<Sent>,
    first_id: u64,
    sacked: RangeSet,
    to_resend: BinaryHeap<Reverse<u64>>,
    oldest: u64,
    newest: u64,
    /// All below were looked at when losses were last marked.
    marked_below: u64,
    sacked_pkts: u32,
    lost_pkts: u32,
    resent_pkts: u32,
    /// Duplicate acknowledgements, standing for SACK when there is none (RFC 6582).
    pub(super) duplicate_acks: u32,
    /// Segments ever delivered.
    pub(super) delivered_pkts: u64,
    /// Segments ever taken for lost, those sent again and lost again included.
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
    /// Appends a new segment that is sent at `now`.
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

    /// Segments sent and not cumulatively acknowledged.
    pub(super) fn outstanding_pkts(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Segments in the network, RFC 6675's pipe.
    pub(super) fn in_flight_pkts(&self) -> u32 {
        (self.outstanding_pkts() + self.resent_pkts)
            .saturating_sub(self.sacked_pkts + self.duplicate_acks + self.lost_pkts)
    }

    /// Segments known to have left the network while an earlier one has not.
    pub(super) fn sacked_pkts(&self) -> u32 {
        self.sacked_pkts + self.duplicate_acks
    }

    /// Segments lost and not delivered yet.
    pub(super) fn lost_pkts(&self) -> u32 {
        self.lost_pkts
    }

    /// Segments sent again that are still under way.
    pub(super) fn resent_pkts(&self) -> u32 {
        self.resent_pkts
    }

    /// Number past the highest segment delivered; the first outstanding one's if none is selectively acknowledged.
    pub(super) fn highest_sacked_id(&self) -> u64 {
        self.sacked.end().unwrap_or(self.first_id)
    }

    /// Number of the first outstanding segment.
    pub(super) fn first_id(&self) -> u64 {
        self.first_id
    }

    /// Number of the last segment that is not known to be delivered.
    pub(super) fn last_undelivered_id(&self) -> Option<u64> {
        let highest = self.sacked.iter_descending().next();
        let end = match highest.filter(|range| range.end == self.end_id()) {
            Some(range) => range.start,
            None => self.end_id(),
        };
        end.checked_sub(1).filter(|id| *id >= self.first_id)
    }

    /// Takes out what `una` acknowledges cumulatively; `on_segment` gets each with its number.
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

    /// Marks the segments that lie wholly in `positions` as selectively acknowledged; `on_segment` gets each new one as
    /// it was, with its number.
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

    /// Takes segment `id` for lost: the original, or if it was sent again, that one.
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

    /// Takes for lost what has at least `threshold` selectively acknowledged segments above it (RFC 6675 `IsLost`).
    /// What was sent again is left alone.
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

    /// Takes every segment for lost of which `is_lost` says so; it gets the number too.
    pub(super) fn mark_lost_where(&mut self, mut is_lost: impl FnMut(u64, &Sent) -> bool) {
        for id in self.first_id..self.end_id() {
            if self.get_mut(id).is_some_and(|s| is_lost(id, s)) {
                self.mark_lost(id);
            }
        }
    }

    /// Takes segments for lost in the order they were sent, as long as `is_lost` says so.
    pub(super) fn mark_lost_by_age(&mut self, mut is_lost: impl FnMut(&Sent) -> bool) {
        while let Some(segment) = self.get(self.oldest) {
            if !is_lost(segment) {
                break;
            }
            self.mark_lost(self.oldest);
        }
    }

    /// Nothing is lost after all: what was marked and not sent again counts as under way.
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

    /// The lowest segment that is lost and not sent again.
    pub(super) fn next_lost(&mut self) -> Option<u64> {
        while let Some(Reverse(id)) = self.to_resend.peek().copied() {
            if self.get(id).is_some_and(|s| s.is_lost && !s.is_resent) {
                return Some(id);
            }
            self.to_resend.pop();
        }
        None
    }

    /// Notes that segment `id` is sent again at `now`; what it is.
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

    /// Links segment `id` before the first that was sent after it: O(1) where what is linked in comes from the newest to
    /// the oldest and is older than all the rest.
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
            // The list holds what is under way, in the order of sending.
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
