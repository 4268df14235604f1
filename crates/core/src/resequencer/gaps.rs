//! What the sequence numbers of one path say about missing packets.
//!
//! A path keeps order, so a number skipped on it is lost, unless the path reorders after all. A gap is therefore only
//! believed after three more packets on the path or 2 ms, as RFC 9002 section 6.1 does with its thresholds. When a packet
//! counted lost arrives after all, the time threshold widens to what was seen, the packet threshold is dropped, and both
//! come back after [`CALM`].

use core::time::Duration;
use std::collections::VecDeque;

use super::{MAX_SPAN, Way};
use crate::{ids::Seq, time::Instant};

/// Datagrams missing in a row on one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// How many; at least 1.
    pub(super) count: u32,
    /// Global number that arrived on the path before the gap.
    pub(super) after: Seq,
    /// Global number of the last missing one.
    pub(super) last: Seq,
    /// Whether `last` has been dealt with.
    pub(super) is_last_settled: bool,
    /// How many numbers between `after` and `last` are missing on any path, once counted.
    pub(super) missing: Option<u32>,
    /// Number on the path of the first missing one.
    first_path_seq: Seq,
    /// Number on the path that arrived after the gap.
    end_path_seq: Seq,
    seen_at: Instant,
}

/// When a gap is believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    now: Instant,
    highest: Seq,
    window: Duration,
}

/// The order of arrivals on one path.
#[derive(Debug)]
pub(super) struct PathOrder {
    /// Highest number on the path and the global number it carried.
    highest: Option<(Seq, Seq)>,
    /// How far in the order of all the path has got of late: what is sent again comes behind later packets.
    latest: Option<Seq>,
    last_packet_at: Instant,
    /// Highest number on the path of any datagram, with a packet or without.
    newest: Option<Seq>,
    /// When numbers were last skipped of which nothing says yet what they carried.
    unnamed_at: Option<Instant>,
    gaps: VecDeque<Gap>,
    window: Duration,
    /// When a packet counted lost last arrived.
    disproved_at: Option<Instant>,
}

impl Default for PathOrder {
    fn default() -> Self {
        Self {
            highest: None,
            latest: None,
            last_packet_at: Instant::ZERO,
            newest: None,
            unnamed_at: None,
            gaps: VecDeque::new(),
            window: FIRST_WINDOW,
            disproved_at: None,
        }
    }
}

impl PathOrder {
    /// Notes that the datagram `path_seq` arrived, which carried `seq`; `previous` travelled before it.
    pub(super) fn on_arrival(
        &mut self,
        now: Instant,
        seq: Seq,
        Way {
            path_seq,
            path_previous: previous,
            is_out_of_turn,
            ..
        }: Way,
    ) {
        if !is_out_of_turn {
            self.on_passed(seq);
        }
        self.last_packet_at = now;
        self.skipped(path_seq);
        let Some((highest, highest_global)) = self.highest else {
            self.highest = Some((path_seq, seq));
            // Numbers begin at 0: what is missing before the first that comes is a gap as well, though only of the last is known
            // which it was.
            if let (Some(last), 1..LONGEST_BEGINNING) = (previous, path_seq.0) {
                let none = (Seq(0).minus(1), last.minus(LONGEST_BEFORE));
                self.push_gap(now, none, path_seq, last);
            }
            return;
        };
        let step = path_seq.distance_from(highest);
        if step <= 0 {
            self.on_reordered(path_seq);
            return;
        }
        self.highest = Some((path_seq, seq));
        if self.newest == Some(path_seq) && (previous.is_some() || step == 1) {
            self.unnamed_at = None;
        }
        if let (Some(last), 2..) = (previous, step) {
            self.push_gap(now, (highest, highest_global), path_seq, last);
        }
    }

    /// Notes that the path brings nothing up to `seq` any more, unless as a repair.
    fn on_passed(&mut self, seq: Seq) {
        // Of a path that was silent for so long that numbers began anew, nothing earlier counts.
        let is_later =
            |latest: &Seq| (0..MAX_SPAN.cast_signed()).contains(&latest.distance_from(seq));
        self.latest = self.latest.filter(is_later).or(Some(seq));
    }

    /// Notes that all between the datagram `before` and the datagram `end` is missing; the last of it carried `last`.
    fn push_gap(
        &mut self,
        now: Instant,
        (before, after): (Seq, Seq),
        end_path_seq: Seq,
        last: Seq,
    ) {
        if self.gaps.len() == MAX_GAPS {
            self.gaps.pop_front();
        }
        let first_path_seq = before.plus(1);
        self.gaps.push_back(Gap {
            count: end_path_seq.distance_from(first_path_seq).unsigned_abs(),
            after,
            last,
            is_last_settled: false,
            missing: None,
            first_path_seq,
            end_path_seq,
            seen_at: now,
        });
    }

    /// Notes that the datagram `path_seq` carried no packet. Behind a gap it cannot say which was lost; what comes next
    /// can, and then counts it among the missing, which have one place more in the order than they need.
    pub(super) fn on_empty(&mut self, now: Instant, path_seq: Seq) {
        if self.skipped(path_seq) {
            self.unnamed_at = Some(now);
        } else if self.newest != Some(path_seq) {
            // It was skipped before, out of order.
            self.unnamed_at = None;
        }
        if let Some((highest, _)) = &mut self.highest
            && path_seq == highest.plus(1)
        {
            *highest = path_seq;
        }
    }

    /// Notes that nothing follows the datagram `path_seq`, which carried `seq`, for now.
    pub(super) fn on_tail(&mut self, now: Instant, seq: Seq, path_seq: Seq) {
        let Some(before) = self.highest else {
            return;
        };
        if path_seq.is_after(before.0) {
            self.skipped(path_seq);
            let end = path_seq.plus(1);
            // What tells this may have come first.
            if self.newest.is_none_or(|newest| !newest.is_after(end)) {
                self.unnamed_at = None;
            }
            self.push_gap(now, before, end, seq);
            self.highest = Some((path_seq, seq));
            self.on_passed(seq);
        }
    }

    /// Takes note that the datagram `path_seq` came; whether it is newer than all others and some between are missing.
    fn skipped(&mut self, path_seq: Seq) -> bool {
        let newest = self.newest.unwrap_or(path_seq);
        let step = path_seq.distance_from(newest);
        if step >= 0 {
            self.newest = Some(path_seq);
        }
        step > 1
    }

    /// When numbers were last skipped of which nothing says yet what they carried, if that may have been before `seq`.
    pub(super) fn unnamed_before(&self, seq: Seq) -> Option<Instant> {
        let is_passed = |(_, global): (Seq, Seq)| !seq.is_after(global);
        self.unnamed_at
            .filter(|_| !self.highest.is_some_and(is_passed))
    }

    /// Takes note that what was skipped has been computed, or something else has.
    pub(super) fn on_computed(&mut self) {
        self.unnamed_at = None;
    }

    /// Whether `seq` may still be under way on this path: none later than `seq` has come on it, and the last packet was no longer
    /// ago than `silence`.
    pub(super) fn may_bring(&self, now: Instant, seq: Seq, silence: Duration) -> bool {
        let is_passed = |latest: Seq| !seq.is_after(latest);
        let is_flowing = self.highest.is_some() && now.since(self.last_packet_at) < silence;
        is_flowing && !self.latest.is_some_and(is_passed)
    }

    /// Whether `seq` may be in a gap that is not believed yet.
    pub(super) fn may_miss(&self, seq: Seq) -> bool {
        let may =
            |gap: &Gap| !gap.is_last_settled && seq.is_after(gap.after) && !seq.is_after(gap.last);
        self.gaps.iter().any(may)
    }

    /// Notes that `seq`, missing so far, has arrived on some path.
    pub(super) fn on_found(&mut self, seq: Seq) {
        for gap in &mut self.gaps {
            if seq.is_after(gap.after) && gap.last.is_after(seq) {
                gap.missing = gap.missing.map(|missing| missing.saturating_sub(1));
            }
        }
    }

    /// Notes that a packet counted lost arrived on this path after all, as `path_seq`: the path reorders, unless the
    /// packet was sent again.
    pub(super) fn on_late(&mut self, now: Instant, path_seq: Seq) {
        let is_new = |(highest, _): (Seq, Seq)| path_seq.is_after(highest);
        if self.highest.is_none_or(is_new) {
            return;
        }
        self.disproved_at = Some(now);
        self.window = (self.window * 2).min(WIDEST_WINDOW);
    }

    /// Whether there is anything to settle.
    pub(super) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Takes the gaps out, to be returned by [`Self::put_back`].
    pub(super) fn take_gaps(&mut self) -> VecDeque<Gap> {
        core::mem::take(&mut self.gaps)
    }

    /// Returns the gaps that are not settled.
    pub(super) fn put_back(&mut self, gaps: VecDeque<Gap>) {
        self.gaps = gaps;
    }

    /// What a gap must exceed at `now` to be believed.
    pub(super) fn limits(&mut self, now: Instant) -> Limits {
        if self.disproved_at.is_some_and(|at| now.since(at) > CALM) {
            self.disproved_at = None;
            self.window = FIRST_WINDOW;
        }
        Limits {
            now,
            highest: self.highest.map_or(Seq(0), |(highest, _)| highest),
            window: self.window,
        }
    }

    /// When the next gap is believed, if no packet arrives before.
    pub(super) fn next_verdict(&self) -> Option<Instant> {
        let gap = self.gaps.iter().find(|gap| !gap.is_last_settled)?;
        Some(gap.seen_at + self.window)
    }

    /// A number that had been skipped arrived: its gap is one smaller.
    fn on_reordered(&mut self, path_seq: Seq) {
        let is_inside = |gap: &Gap| {
            path_seq.distance_from(gap.first_path_seq) >= 0 && gap.end_path_seq.is_after(path_seq)
        };
        let Some(index) = self.gaps.iter().rposition(is_inside) else {
            return;
        };
        let gap = &mut self.gaps[index];
        gap.count -= 1;
        if gap.count == 0 {
            self.gaps.remove(index);
        }
    }
}

impl Gap {
    /// Whether nothing had come on the path before, so that of its members only the last is known.
    pub(super) fn is_beginning(&self) -> bool {
        self.first_path_seq == Seq(0)
    }

    /// Whether the gap is believed.
    pub(super) fn is_due(&self, limits: &Limits) -> bool {
        let later_pkts = limits.highest.distance_from(self.end_path_seq);
        let is_ordered_path = limits.window == FIRST_WINDOW;
        self.is_last_settled
            || (is_ordered_path && later_pkts >= PACKET_THRESHOLD)
            || limits.now.since(self.seen_at) >= limits.window
    }
}

/// RFC 9002 section 6.1.1.
const PACKET_THRESHOLD: i32 = 3;
const FIRST_WINDOW: Duration = Duration::from_millis(2);
const WIDEST_WINDOW: Duration = Duration::from_millis(64);
/// How long a path must keep order before its gaps are believed as quickly as at the start.
const CALM: Duration = Duration::from_secs(10);
/// So many of a path's first numbers are told missing before one of them has come.
const LONGEST_BEGINNING: u32 = u32::BITS;
/// And how far before the last of them, in the order of all, the first may be.
const LONGEST_BEFORE: u32 = 256;
/// Gaps remembered per path; the oldest is left to the deadline.
const MAX_GAPS: usize = 256;
