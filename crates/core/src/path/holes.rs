//! Loss detection at the receiver: which datagrams of one path are missing, for NACKs to a sender that retransmits
//! them.
//!
//! A run of skipped numbers is a *hole*. It is considered lost once three later datagrams have arrived or 2 ms
//! (`FIRST_WINDOW`) have passed (the thresholds of RFC 9002 section 6.1). If a datagram arrives after it was NACKed,
//! the path reorders. The reordering window then grows to 1.5 times the lateness of that datagram, up to 100 ms
//! (`WIDEST_WINDOW`). Until the path has kept order for 10 s (`CALM`), only this window applies, not the packet
//! threshold.
//!
//! Numbers begin at 0. A datagram is *kept* if the sender stores it for retransmission. Loss detection starts with the
//! first kept datagram that arrives. A bit set records which of the first 32 numbers (`BEGINNING`) arrived before that
//! datagram, so that losses at the beginning of a flow are detected as well. If the first kept datagram has a later
//! number, there are no holes before it.
//!
//! A lost hole is NACKed three times (`TELLS`), at most 25 ms (`RETELL`) apart, so that the NACK survives lost reports,
//! and is then forgotten. All numbers before the first hole have arrived or were NACKed: they are *settled*, and the
//! sender need not store them. But a report may overtake earlier reports on a return path with a shorter delay, so
//! NACKed numbers count as settled only 500 ms (`TOLD_WITHIN`) after the last NACK.
//!
//! Bounds: at most 256 holes (`MAX_HOLES`) are stored, and the oldest is forgotten first. Only the newest 1024 numbers
//! (`LONGEST`) of a hole count, because a longer silence is handled by the path's health. For numbers NACKed for the
//! last time, at most one entry per millisecond (`TOLD_GRAIN`) is stored. Cost: O(holes) per arrival.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{ids::Seq, time::Instant};

/// The missing datagrams of one path.
#[derive(Debug)]
pub struct Holes {
    highest: Option<Seq>,
    /// Bit set of the first [`BEGINNING`] numbers that arrived before the first kept datagram.
    begun: u32,
    /// The holes, oldest first; no hole is empty, and holes do not overlap.
    holes: VecDeque<Hole>,
    /// First numbers of holes that were NACKed for the last time, each with the time until which it is not settled.
    /// Numbers and times ascend.
    told: VecDeque<(Seq, Instant)>,
    window: Duration,
    /// Time for which a NACK of a newly detected hole is delayed, because repair symbols may fill the hole.
    grace: Duration,
    /// When a NACKed datagram last arrived (a spurious loss), if less than [`CALM`] ago. While it is set, the path
    /// reorders.
    disproved_at: Option<Instant>,
}

/// A run of missing numbers.
#[derive(Clone, Copy, Debug)]
struct Hole {
    first: Seq,
    count: u32,
    /// The number that followed the hole when it was detected.
    end: Seq,
    seen_at: Instant,
    /// Number of NACKs sent for the hole, and when the next NACK is due.
    told: u8,
    tell_at: Instant,
    /// Whether repair symbols may still fill the hole; then only `tell_at` counts, not the packet threshold.
    is_patient: bool,
}

impl Default for Holes {
    fn default() -> Self {
        Self {
            highest: None,
            begun: 0,
            holes: VecDeque::new(),
            told: VecDeque::new(),
            window: FIRST_WINDOW,
            grace: Duration::ZERO,
            disproved_at: None,
        }
    }
}

impl Holes {
    /// Whether a kept datagram has arrived, so that loss detection runs.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.highest.is_some()
    }

    /// Sets the time for which NACKs of holes are delayed because repair symbols ([`crate::fec`]) may fill the holes.
    /// Applies to holes that are detected after this call.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Records the arrival of the datagram `seq`. `is_kept`: the sender retransmits it if it is NACKed.
    pub fn on_arrival(&mut self, now: Instant, seq: Seq, is_kept: bool) {
        match self.highest {
            Some(highest) => self.on_next(now, seq, highest),
            None if is_kept => self.begin(now, seq),
            None if seq.0 < BEGINNING => self.begun |= 1 << seq.0,
            None => {}
        }
    }

    /// Records the arrival of `seq`, the first kept datagram.
    fn begin(&mut self, now: Instant, seq: Seq) {
        if seq.0 >= BEGINNING {
            self.highest = Some(seq);
            return;
        }
        let came = self.begun | 1 << seq.0;
        let mut highest = Seq(0).minus(1);
        for next in (0..BEGINNING).filter(|bit| came & 1 << bit != 0).map(Seq) {
            self.on_next(now, next, highest);
            highest = next;
        }
    }

    /// Records the arrival of `seq`. `highest`: the highest number that arrived before.
    fn on_next(&mut self, now: Instant, seq: Seq, highest: Seq) {
        let step = seq.distance_from(highest);
        if step <= 0 {
            self.fill(now, seq);
            return;
        }
        self.highest = Some(seq);
        self.dig(now, step.unsigned_abs() - 1, seq);
        if self.disproved_at.is_some_and(|at| now.since(at) > CALM) {
            self.disproved_at = None;
            self.window = FIRST_WINDOW;
        }
    }

    /// Processes a tail frame: no datagram follows `seq` for now. Numbers up to `seq` that have not arrived are
    /// missing.
    pub fn on_tail(&mut self, now: Instant, seq: Seq) {
        let Some(highest) = self.highest else {
            return;
        };
        let missing = seq.distance_from(highest);
        if missing > 0 {
            self.highest = Some(seq);
            self.dig(now, missing.unsigned_abs(), seq.plus(1));
        }
    }

    /// Adds a hole of `count` numbers before `end`.
    fn dig(&mut self, now: Instant, count: u32, end: Seq) {
        let count = count.min(LONGEST);
        if count == 0 {
            return;
        }
        if self.holes.len() == MAX_HOLES
            && let Some(oldest) = self.holes.pop_front()
            && oldest.told > 0
        {
            self.keep_told(oldest.first, now + TOLD_WITHIN);
        }
        self.holes.push_back(Hole {
            first: end.minus(count),
            count,
            end,
            seen_at: now,
            told: 0,
            tell_at: now + self.window.max(self.grace),
            is_patient: self.grace > Duration::ZERO,
        });
    }

    /// When the next NACK is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let at = |hole: &Hole| {
            if self.is_passed(hole) {
                hole.seen_at
            } else {
                hole.tell_at
            }
        };
        self.holes.iter().map(at).min()
    }

    /// Passes each hole that is considered lost to `tell`, as its first number and its length. `tell` returns whether
    /// the NACK had room for the hole.
    pub fn take(&mut self, now: Instant, mut tell: impl FnMut(Seq, u32) -> bool) {
        let mut index = 0;
        while let Some(hole) = self.holes.get(index).copied() {
            let is_believed = hole.told > 0 || self.is_passed(&hole) || hole.tell_at <= now;
            if is_believed && !tell(hole.first, hole.count) {
                return;
            }
            let Some(hole) = self.holes.get_mut(index).filter(|_| is_believed) else {
                index += 1;
                continue;
            };
            hole.told += 1;
            hole.tell_at = now + RETELL;
            if hole.told == TELLS {
                let first = hole.first;
                self.holes.remove(index);
                self.keep_told(first, now + TOLD_WITHIN);
            } else {
                index += 1;
            }
        }
    }

    /// Marks the numbers from `first` on as not settled until `until`.
    fn keep_told(&mut self, first: Seq, until: Instant) {
        while self
            .told
            .pop_back_if(|(seq, _)| !first.is_after(*seq))
            .is_some()
        {}
        if self.told.back().is_none_or(|(_, at)| *at < until) {
            self.told.push_back((first, until + TOLD_GRAIN));
        }
    }

    /// Returns the number before which all numbers are settled; `None` if no kept datagram has arrived.
    pub fn settled(&mut self, now: Instant) -> Option<Seq> {
        while self.told.front().is_some_and(|(_, until)| *until <= now) {
            self.told.pop_front();
        }
        let end = self.highest?.plus(1);
        let missing = self.holes.front().map_or(end, |hole| hole.first);
        let told = self.told.front().map_or(end, |(first, _)| *first);
        Some(if missing.is_after(told) {
            told
        } else {
            missing
        })
    }

    /// Whether a hole that was not NACKed yet is considered lost at once, because enough later datagrams have
    /// arrived.
    fn is_passed(&self, hole: &Hole) -> bool {
        let later = self
            .highest
            .map_or(0, |highest| highest.distance_from(hole.end));
        let is_quick = self.disproved_at.is_none() && !hole.is_patient;
        hole.told == 0 && is_quick && later >= PACKET_THRESHOLD - 1
    }

    /// Records the arrival of a number that is not above the highest one.
    fn fill(&mut self, now: Instant, seq: Seq) {
        let is_inside = |hole: &Hole| {
            let at = seq.distance_from(hole.first);
            u32::try_from(at).is_ok_and(|at| at < hole.count)
        };
        let Some(index) = self.holes.iter().position(is_inside) else {
            return;
        };
        let hole = self.holes[index];
        if hole.told > 0 {
            let late = now.since(hole.seen_at);
            self.window = self.window.max(late + late / 2).min(WIDEST_WINDOW);
            self.disproved_at = Some(now);
        }
        let before = seq.distance_from(hole.first).unsigned_abs();
        let after = hole.count - before - 1;
        let rest = Hole {
            first: seq.plus(1),
            count: after,
            ..hole
        };
        self.holes[index].count = before;
        if before == 0 && after == 0 {
            self.holes.remove(index);
        } else if before == 0 {
            self.holes[index] = rest;
        } else if after > 0 && self.holes.len() < MAX_HOLES {
            self.holes.insert(index + 1, rest);
        } else if after > 0 && rest.told > 0 {
            self.keep_told(rest.first, now + TOLD_WITHIN);
        }
    }
}

/// Number of later datagrams after which a hole is considered lost (RFC 9002 section 6.1.1).
const PACKET_THRESHOLD: i32 = 3;
const FIRST_WINDOW: Duration = Duration::from_millis(2);
const WIDEST_WINDOW: Duration = Duration::from_millis(100);
/// Time for which a path must keep order before the initial reordering window applies again.
const CALM: Duration = Duration::from_secs(10);
/// Number of NACKs per hole. If one report in twenty is lost, one hole in 8000 is never reported.
const TELLS: u8 = 3;
const RETELL: Duration = Duration::from_millis(25);
/// Time within which a report arrives on most return paths. After this time the resequencer ([`crate::resequencer`])
/// no longer waits for most of the packets that the report requests.
const TOLD_WITHIN: Duration = Duration::from_millis(500);
/// Time by which an entry of numbers that are not settled yet is extended. The entry then also covers NACKs that are
/// sent up to this time later.
const TOLD_GRAIN: Duration = Duration::from_millis(1);
const MAX_HOLES: usize = 256;
const LONGEST: u32 = 1024;
const BEGINNING: u32 = u32::BITS;

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(holes: &mut Holes, ms: u64) -> Option<Seq> {
        holes.settled(Instant::from_millis(ms))
    }

    fn arrive(holes: &mut Holes, ms: u64, seqs: impl IntoIterator<Item = u32>) {
        for seq in seqs {
            holes.on_arrival(Instant::from_millis(ms), Seq(seq), true);
        }
    }

    fn told(holes: &mut Holes, ms: u64) -> Vec<(u32, u32)> {
        let mut told = Vec::new();
        holes.take(Instant::from_millis(ms), |first, count| {
            told.push((first.0, count));
            true
        });
        told
    }

    #[test]
    fn a_hole_is_told_after_three_packets_and_three_times() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [45, 46, 49, 50]);
        assert_eq!(told(&mut holes, 0), []);
        assert_eq!(holes.due(), Some(Instant::from_millis(2)));
        assert_eq!(settled(&mut holes, 0), Some(Seq(47)));
        arrive(&mut holes, 0, [51]);
        assert_eq!(holes.due(), Some(Instant::from_millis(0)));
        for ms in [1, 2, 30] {
            assert_eq!(told(&mut holes, ms), [(47, 2)]);
        }
        assert_eq!(told(&mut holes, 40), []);
        assert_eq!(holes.due(), None);
        assert_eq!(
            settled(&mut holes, 530),
            Some(Seq(47)),
            "a report may come before the last"
        );
        assert_eq!(settled(&mut holes, 531), Some(Seq(52)));
    }

    #[test]
    fn a_hole_is_left_to_repair_symbols_for_a_while() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [0]);
        holes.set_grace(Duration::from_millis(15));
        arrive(&mut holes, 1, [2, 3, 4, 5, 6]);
        assert_eq!(holes.due(), Some(Instant::from_millis(16)));
        assert_eq!(told(&mut holes, 15), []);
        holes.set_grace(Duration::ZERO);
        arrive(&mut holes, 15, [8, 9, 10]);
        assert_eq!(told(&mut holes, 15), [(7, 1)], "this one is not");
        assert_eq!(told(&mut holes, 16), [(1, 1), (7, 1)]);
    }

    #[test]
    fn what_was_told_is_settled_half_a_second_later() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [0]);
        for ms in 0..100 {
            let next = u32::try_from(ms * 10 + 10).expect("small");
            arrive(&mut holes, ms, [next, next + 2, next + 3, next + 4]);
            for _ in 0..3 {
                let _ = told(&mut holes, ms);
            }
        }
        // The first holes were NACKed for the last time at 0 ms.
        assert_eq!(settled(&mut holes, 499), Some(Seq(1)));
        assert_eq!(settled(&mut holes, 550).map(|seq| seq.0 / 10), Some(50));
        assert!(holes.told.len() <= 60, "{}", holes.told.len());
        assert_eq!(settled(&mut holes, 600), Some(Seq(1005)));
        assert_eq!(holes.told.len(), 0);
    }

    #[test]
    fn the_first_numbers_are_missed_as_well() {
        let mut holes = Holes::default();
        for seq in [1, 3] {
            holes.on_arrival(Instant::ZERO, Seq(seq), false);
        }
        assert_eq!(
            (settled(&mut holes, 0), holes.due()),
            (None, None),
            "nothing is kept"
        );
        arrive(&mut holes, 1, [6]);
        assert_eq!(settled(&mut holes, 1), Some(Seq(0)));
        assert_eq!(told(&mut holes, 3), [(0, 1), (2, 1), (4, 2)]);

        let mut overtaken = Holes::default();
        overtaken.on_arrival(Instant::ZERO, Seq(2), false);
        arrive(&mut overtaken, 1, [1, 3]);
        assert_eq!(told(&mut overtaken, 3), [(0, 1)]);

        for (first, missing) in [(31, vec![(0, 31)]), (32, vec![])] {
            let mut later = Holes::default();
            arrive(&mut later, 1, [first]);
            assert_eq!(told(&mut later, 3), missing);
            assert_eq!(later.highest, Some(Seq(first)));
        }
    }

    #[test]
    fn a_hole_is_told_after_a_while_without_packets() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [0, 2]);
        assert_eq!(told(&mut holes, 1), []);
        assert_eq!(told(&mut holes, 2), [(1, 1)]);
    }

    #[test]
    fn what_comes_late_is_taken_out_and_a_path_that_reorders_is_given_time() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [0, 10, 11, 12]);
        assert_eq!(told(&mut holes, 0), [(1, 9)]);
        arrive(&mut holes, 20, [4, 9, 1]);
        assert_eq!(told(&mut holes, 20), [(2, 2), (5, 4)]);
        arrive(&mut holes, 20, [20, 21, 22, 23]);
        assert_eq!(
            told(&mut holes, 49),
            [(2, 2), (5, 4)],
            "the new one has 30 ms"
        );
        assert_eq!(told(&mut holes, 50), [(13, 7)]);
        arrive(&mut holes, 11_000, [24]);
        arrive(&mut holes, 11_000, [26, 27, 28]);
        assert!(told(&mut holes, 11_000).contains(&(25, 1)), "calm again");
    }

    #[test]
    fn a_path_that_reorders_by_less_than_the_first_time_is_given_that_time() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, [0, 2, 3, 4]);
        assert_eq!(told(&mut holes, 0), [(1, 1)]);
        arrive(&mut holes, 1, [1, 6, 7, 8, 9]);
        assert_eq!(told(&mut holes, 2), []);
        assert_eq!(told(&mut holes, 3), [(5, 1)]);
    }

    #[test]
    fn bounds_hold_and_what_is_refused_is_told_later() {
        let mut holes = Holes::default();
        arrive(&mut holes, 0, (0..2000).map(|i| i * 2));
        assert_eq!(holes.holes.len(), MAX_HOLES);
        arrive(&mut holes, 0, [1 << 30]);
        assert_eq!(holes.holes.back().map(|hole| hole.count), Some(LONGEST));
        let mut room = 3;
        holes.take(Instant::from_millis(5), |_, _| {
            room -= 1;
            room >= 0
        });
        let told = holes.holes.iter().filter(|hole| hole.told > 0).count();
        assert_eq!(told, 3);
    }
}
