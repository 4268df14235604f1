//! Packets that are known lost, as long as somebody may wait for one, and how long their repairs are worth waiting for.
//!
//! A hold for what is lost ends when the repair should be here, which is a round trip after the loss was known; if the repair is lost as
//! well, that is seen on the path it took, and the wait begins anew, up to [`Repairs::longest_hold`]: `LONGEST_HOLD`
//! beyond the time a repair takes. That is below the inner transport's retransmission timeout, which is at least 200 ms
//! beyond its round-trip time (RFC 6298; `tcp_rto_min` of Linux).
//!
//! Bounds: `MAX_REPAIRS` gaps; then those that nobody waits for are forgotten, or else the oldest.

use core::time::Duration;
use std::collections::VecDeque;

use super::LONGEST_HOLD;
use crate::{ids::Seq, time::Instant};

/// Repairs under way, and the last that were.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// How long one takes; `None`: nothing is sent again.
    time: Option<Duration>,
    known: VecDeque<Repair>,
}

#[derive(Debug)]
struct Repair {
    /// Some of the numbers after this one and
    after: Seq,
    /// up to this one were lost, this one certainly.
    last: Seq,
    /// Whether all of them were.
    is_all: bool,
    until: Instant,
}

impl Repairs {
    /// Says whether lost packets are sent again, and how long that takes.
    pub(super) fn set_time(&mut self, time: Option<Duration>) {
        self.time = time;
    }

    /// Whether lost packets are sent again.
    pub(super) fn are_made(&self) -> bool {
        self.time.is_some()
    }

    /// Notes a loss of `count` numbers between `after` and `last`, `last` among them; whether it will be repaired. What is before
    /// `frontier` nobody waits for.
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

    /// When the last repair of something from `from` on and before `end` should be here; `None` if none is under way.
    pub(super) fn due(&self, now: Instant, from: Seq, end: Seq) -> Option<Instant> {
        let concerns = |repair: &&Repair| {
            repair.until > now
                && repair.last.distance_from(from) >= 0
                && end.distance_from(repair.after) > 1
        };
        let until = self.known.iter().filter(concerns);
        until.map(|repair| repair.until).max()
    }

    /// Forgets what is before `frontier`: nobody waits for it.
    pub(super) fn forget_before(&mut self, frontier: Seq) {
        let is_before = |repair: &Repair| frontier.is_after(repair.last);
        while self.known.front().is_some_and(is_before) {
            self.known.pop_front();
        }
    }

    /// Whether `seq` is known to have been lost. Of several in a row, between which others came elsewhere, only the last is.
    pub(super) fn has_lost(&self, seq: Seq) -> bool {
        let is_in = |repair: &Repair| {
            repair.last == seq
                || (repair.is_all && seq.is_after(repair.after) && repair.last.is_after(seq))
        };
        self.known.iter().any(is_in)
    }

    /// When the repair of what was lost at `at`, whatever it was, should be here; `None` if it should by now.
    pub(super) fn due_since(&self, now: Instant, at: Instant) -> Option<Instant> {
        let due = at + self.time?;
        (due > now).then_some(due)
    }

    /// Longest hold for the sake of repairs.
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
