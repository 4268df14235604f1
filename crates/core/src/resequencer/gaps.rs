//! Loss detection by the sequence numbers of one path.
//!
//! A path keeps order, so a skipped number is lost, unless the path reorders after all. A gap is therefore considered
//! lost only after three more packets on the path or 2 ms, like the thresholds of RFC 9002 section 6.1. If a packet
//! counted as lost arrives (a spurious loss), the time threshold is doubled and the packet threshold is disabled. Both
//! return to normal after [`CALM`].

use core::time::Duration;
use std::collections::VecDeque;

use super::{MAX_SPAN, Way};
use crate::{ids::Seq, time::Instant};

/// Consecutive missing datagrams on one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Number of missing datagrams; at least 1.
    pub(super) count: u32,
    /// Global sequence number of the packet that arrived on the path before the gap.
    pub(super) after: Seq,
    /// Global sequence number of the last missing datagram.
    pub(super) last: Seq,
    /// Whether `last` has been settled, that is, counted as lost.
    pub(super) is_last_settled: bool,
    /// Number of global numbers between `after` and `last` that are missing on all paths; `None` before they are
    /// counted.
    pub(super) missing: Option<u32>,
    /// Path sequence number of the first missing datagram.
    first_path_seq: Seq,
    /// Path sequence number of the datagram that arrived after the gap.
    end_path_seq: Seq,
    seen_at: Instant,
}

/// Thresholds from which a gap is considered lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    now: Instant,
    highest: Seq,
    window: Duration,
}

/// The order of arrivals on one path.
#[derive(Debug)]
pub(super) struct PathOrder {
    /// Highest path sequence number, with its global sequence number.
    highest: Option<(Seq, Seq)>,
    /// Highest global sequence number that the path has recently passed. Retransmissions are sent after packets with
    /// higher numbers, so they do not count.
    latest: Option<Seq>,
    last_packet_at: Instant,
    /// Highest path sequence number of any datagram, with or without a packet.
    newest: Option<Seq>,
    /// Time of the last skip on the path in which the global sequence numbers of the missing datagrams are still
    /// unknown.
    unnamed_at: Option<Instant>,
    gaps: VecDeque<Gap>,
    window: Duration,
    /// Time of the last spurious loss, that is, of the arrival of a packet that had been counted as lost.
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
    /// Records the arrival of the datagram `path_seq`, which carried `seq`; `previous` was sent before it on the path.
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
            // Numbers begin at 0, so datagrams missing before the first arrival are a gap as well. Only the global
            // number of the last of them is known.
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

    /// Records that the path has passed `seq`. Numbers up to `seq` can now arrive on the path only as retransmissions.
    fn on_passed(&mut self, seq: Seq) {
        // Keep `latest` only if it is less than `MAX_SPAN` ahead: after a long silence the numbers may have wrapped.
        let is_later =
            |latest: &Seq| (0..MAX_SPAN.cast_signed()).contains(&latest.distance_from(seq));
        self.latest = self.latest.filter(is_later).or(Some(seq));
    }

    /// Adds a gap: all datagrams between `before` and `end_path_seq` are missing, and the last of them carried `last`.
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

    /// Records that the datagram `path_seq` carried no packet. If datagrams before `path_seq` are missing, the lost
    /// packet is not named by this datagram, but by the next datagram with a packet. The gap then includes `path_seq`,
    /// so the number of path sequence numbers in the gap exceeds the number of missing global numbers by one.
    pub(super) fn on_empty(&mut self, now: Instant, path_seq: Seq) {
        if self.skipped(path_seq) {
            self.unnamed_at = Some(now);
        } else if self.newest != Some(path_seq) {
            // The datagram had been skipped and arrived out of order.
            self.unnamed_at = None;
        }
        if let Some((highest, _)) = &mut self.highest
            && path_seq == highest.plus(1)
        {
            *highest = path_seq;
        }
    }

    /// Records that no datagram follows the datagram `path_seq` for now. The datagram `path_seq` carried `seq`.
    pub(super) fn on_tail(&mut self, now: Instant, seq: Seq, path_seq: Seq) {
        let Some(before) = self.highest else {
            return;
        };
        if path_seq.is_after(before.0) {
            self.skipped(path_seq);
            let end = path_seq.plus(1);
            // The tail frame names the last skipped datagram, unless a datagram after `end` has arrived.
            if self.newest.is_none_or(|newest| !newest.is_after(end)) {
                self.unnamed_at = None;
            }
            self.push_gap(now, before, end, seq);
            self.highest = Some((path_seq, seq));
            self.on_passed(seq);
        }
    }

    /// Records the arrival of the datagram `path_seq`. Returns whether it is the newest datagram and datagrams before
    /// it were skipped.
    fn skipped(&mut self, path_seq: Seq) -> bool {
        let newest = self.newest.unwrap_or(path_seq);
        let step = path_seq.distance_from(newest);
        if step >= 0 {
            self.newest = Some(path_seq);
        }
        step > 1
    }

    /// Returns the time of the last skip in which the global numbers of the missing datagrams are unknown, if these
    /// numbers may be before `seq`.
    pub(super) fn unnamed_before(&self, seq: Seq) -> Option<Instant> {
        let is_passed = |(_, global): (Seq, Seq)| !seq.is_after(global);
        self.unnamed_at
            .filter(|_| !self.highest.is_some_and(is_passed))
    }

    /// Records that FEC has recovered a packet. The skipped datagrams with unknown global numbers are assumed to be
    /// recovered.
    pub(super) fn on_computed(&mut self) {
        self.unnamed_at = None;
    }

    /// Whether `seq` may still be in flight on this path: no packet after `seq` has arrived on the path, and the last
    /// packet arrived on it less than `silence` ago.
    pub(super) fn may_bring(&self, now: Instant, seq: Seq, silence: Duration) -> bool {
        let is_passed = |latest: Seq| !seq.is_after(latest);
        let is_flowing = self.highest.is_some() && now.since(self.last_packet_at) < silence;
        is_flowing && !self.latest.is_some_and(is_passed)
    }

    /// Whether `seq` may be in a gap that is not yet considered lost.
    pub(super) fn may_miss(&self, seq: Seq) -> bool {
        let may =
            |gap: &Gap| !gap.is_last_settled && seq.is_after(gap.after) && !seq.is_after(gap.last);
        self.gaps.iter().any(may)
    }

    /// Records that the missing number `seq` has arrived on some path.
    pub(super) fn on_found(&mut self, seq: Seq) {
        for gap in &mut self.gaps {
            if seq.is_after(gap.after) && gap.last.is_after(seq) {
                gap.missing = gap.missing.map(|missing| missing.saturating_sub(1));
            }
        }
    }

    /// Records that a packet counted as lost arrived on this path as `path_seq`. The path reorders, unless the packet
    /// was retransmitted.
    pub(super) fn on_late(&mut self, now: Instant, path_seq: Seq) {
        let is_new = |(highest, _): (Seq, Seq)| path_seq.is_after(highest);
        if self.highest.is_none_or(is_new) {
            return;
        }
        self.disproved_at = Some(now);
        self.window = (self.window * 2).min(WIDEST_WINDOW);
    }

    /// Whether the path has gaps.
    pub(super) fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Removes and returns the gaps, to be passed to [`Self::put_back`].
    pub(super) fn take_gaps(&mut self) -> VecDeque<Gap> {
        core::mem::take(&mut self.gaps)
    }

    /// Stores the gaps that are not settled.
    pub(super) fn put_back(&mut self, gaps: VecDeque<Gap>) {
        self.gaps = gaps;
    }

    /// Returns the thresholds at `now`.
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

    /// Returns the time at which the next gap is considered lost if no packet arrives before.
    pub(super) fn next_verdict(&self) -> Option<Instant> {
        let gap = self.gaps.iter().find(|gap| !gap.is_last_settled)?;
        Some(gap.seen_at + self.window)
    }

    /// Records that a skipped number arrived; its gap shrinks by one.
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
    /// Whether the gap is before the path's first arrival, so that only its last global number is known.
    pub(super) fn is_beginning(&self) -> bool {
        self.first_path_seq == Seq(0)
    }

    /// Whether the gap is considered lost.
    pub(super) fn is_due(&self, limits: &Limits) -> bool {
        let later_pkts = limits.highest.distance_from(self.end_path_seq);
        let is_ordered_path = limits.window == FIRST_WINDOW;
        self.is_last_settled
            || (is_ordered_path && later_pkts >= PACKET_THRESHOLD)
            || limits.now.since(self.seen_at) >= limits.window
    }
}

/// Number of later packets on a path after which a gap is considered lost (RFC 9002 section 6.1.1).
const PACKET_THRESHOLD: i32 = 3;
const FIRST_WINDOW: Duration = Duration::from_millis(2);
const WIDEST_WINDOW: Duration = Duration::from_millis(64);
/// Duration without a spurious loss after which the initial thresholds apply again.
const CALM: Duration = Duration::from_secs(10);
/// Limit of the length of a gap before a path's first arrival, in datagrams. If more are missing, no gap is recorded.
const LONGEST_BEGINNING: u32 = u32::BITS;
/// Maximum distance in global numbers between the first and the last datagram of a gap before a path's first arrival.
const LONGEST_BEFORE: u32 = 256;
/// Maximum number of gaps per path. The oldest gap is dropped, and its packets are left to the deadline.
const MAX_GAPS: usize = 256;
