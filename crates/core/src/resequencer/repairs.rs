//! Packets that are known to be lost, and how long a held packet waits for their retransmission.
//!
//! A hold for a lost packet ends when the retransmission should have arrived, one RTT after the loss was known. If the
//! retransmission is lost as well, the path that carried it shows the loss, and the wait starts again. Its limit is
//! [`Repairs::longest_hold`]: `LONGEST_HOLD` plus the duration of a retransmission. That is shorter than the inner
//! transport's retransmission timeout, which is at least its RTT plus 200 ms (RFC 6298; `tcp_rto_min` of Linux).
//!
//! Bounds: `MAX_REPAIRS` gaps. Beyond that, gaps for which no packet waits are forgotten first, then the oldest gap.

use core::time::Duration;
use std::collections::VecDeque;

use super::LONGEST_HOLD;
use crate::{ids::Seq, time::Instant};

/// Pending and recent retransmissions.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Duration of a retransmission; `None` if the sender does not retransmit.
    time: Option<Duration>,
    known: VecDeque<Repair>,
}

#[derive(Debug)]
struct Repair {
    /// Number before the gap. Some of the numbers after it, up to and including `last`, were lost.
    after: Seq,
    /// Last number of the gap, which was certainly lost.
    last: Seq,
    /// Whether all numbers of the gap were lost.
    is_all: bool,
    until: Instant,
}

impl Repairs {
    /// Sets the duration of a retransmission; `None` if the sender does not retransmit.
    pub(super) fn set_time(&mut self, time: Option<Duration>) {
        self.time = time;
    }

    /// Whether the sender retransmits.
    pub(super) fn are_made(&self) -> bool {
        self.time.is_some()
    }

    /// Records a loss of `count` numbers between `after` and `last`, including `last`. Returns whether the sender
    /// retransmits them. No packet waits for numbers before `frontier`.
    pub(super) fn expect(
        &mut self,
        now: Instant,
        (after, last): (Seq, Seq),
        count: u32,
        frontier: Seq,
    ) -> bool {
        let Some(time) = self.time else {
            return false;
        };
        if self.known.len() == MAX_REPAIRS {
            self.known.retain(|repair| !frontier.is_after(repair.last));
        }
        if self.known.len() == MAX_REPAIRS {
            self.known.pop_front();
        }
        let is_alone = count == 1 || !last.is_after(after);
        let after = if is_alone { last.minus(1) } else { after };
        self.known.push_back(Repair {
            after,
            last,
            is_all: is_alone || last.distance_from(after).unsigned_abs() == count,
            until: now + time,
        });
        true
    }

    /// Returns the time at which the last retransmission of a number in `from..end` should arrive; `None` if no
    /// retransmission is pending.
    pub(super) fn due(&self, now: Instant, from: Seq, end: Seq) -> Option<Instant> {
        let concerns = |repair: &&Repair| {
            repair.until > now
                && repair.last.distance_from(from) >= 0
                && end.distance_from(repair.after) > 1
        };
        let until = self.known.iter().filter(concerns);
        until.map(|repair| repair.until).max()
    }

    /// Forgets losses before `frontier`, because no packet waits for them.
    pub(super) fn forget_before(&mut self, frontier: Seq) {
        let is_before = |repair: &Repair| frontier.is_after(repair.last);
        while self.known.front().is_some_and(is_before) {
            self.known.pop_front();
        }
    }

    /// Whether `seq` is known to be lost. If other numbers of the gap arrived on other paths, only the gap's last
    /// number is known to be lost.
    pub(super) fn has_lost(&self, seq: Seq) -> bool {
        let is_in = |repair: &Repair| {
            repair.last == seq
                || (repair.is_all && seq.is_after(repair.after) && repair.last.is_after(seq))
        };
        self.known.iter().any(is_in)
    }

    /// Returns the time at which the retransmission of an unknown packet lost at `at` should arrive; `None` if that
    /// time has passed.
    pub(super) fn due_since(&self, now: Instant, at: Instant) -> Option<Instant> {
        let due = at + self.time?;
        (due > now).then_some(due)
    }

    /// Returns the maximum hold time for retransmissions.
    pub(super) fn longest_hold(&self) -> Duration {
        LONGEST_HOLD + self.time.unwrap_or_default()
    }
}

const MAX_REPAIRS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    #[test]
    fn what_nobody_waits_for_makes_room_before_what_somebody_may() {
        let mut repairs = Repairs::default();
        repairs.set_time(Some(TIME));
        let mut expect = |seq: u32, frontier| {
            let span = (Seq(seq).minus(1), Seq(seq));
            assert!(repairs.expect(Instant::ZERO, span, 1, Seq(frontier)));
        };
        expect(60_000, 0);
        (1..2_000).for_each(|seq| expect(seq, seq));
        assert!(repairs.has_lost(Seq(60_000)) && repairs.has_lost(Seq(1_999)));
        assert!(repairs.known.len() <= MAX_REPAIRS);
        for seq in 0..2_000 {
            let span = (Seq(seq), Seq(seq + 1));
            let _ = repairs.expect(Instant::ZERO, span, 1, Seq(0));
        }
        assert_eq!(repairs.known.len(), MAX_REPAIRS);
        repairs.forget_before(Seq(2_001));
        assert_eq!(repairs.known.len(), 0);
    }

    #[test]
    fn of_a_burst_all_are_known_lost_if_nothing_between_went_elsewhere() {
        let mut repairs = Repairs::default();
        repairs.set_time(Some(TIME));
        let _ = repairs.expect(Instant::ZERO, (Seq(10), Seq(13)), 3, Seq(0));
        let _ = repairs.expect(Instant::ZERO, (Seq(20), Seq(24)), 3, Seq(0));
        let lost: Vec<u32> = (0..30).filter(|seq| repairs.has_lost(Seq(*seq))).collect();
        assert_eq!(lost, [11, 12, 13, 24]);
    }
}
