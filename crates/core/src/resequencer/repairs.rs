//! Packets that are known lost and will be sent again: how long they are worth waiting for.
//!
//! A hold for what is lost ends when the repair should be here, which is a round trip after the loss was known; if the repair is lost as
//! well, that is seen on the path it took, and the wait begins anew, up to [`Repairs::longest_hold`]: `LONGEST_HOLD`
//! beyond the time a repair takes. That is below the inner transport's retransmission timeout, which is at least 200 ms
//! beyond its round-trip time (RFC 6298; `tcp_rto_min` of Linux).
//!
//! Bounds: `MAX_REPAIRS` gaps; the oldest is forgotten first.

use core::time::Duration;
use std::collections::VecDeque;

use super::LONGEST_HOLD;
use crate::{ids::Seq, time::Instant};

/// Repairs under way, and the last that were.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// How long one takes; `None`: nothing is sent again.
    time: Option<Duration>,
    pending: VecDeque<Repair>,
}

#[derive(Debug)]
struct Repair {
    /// Some of the numbers after this one and
    after: Seq,
    /// up to this one were lost, this one certainly.
    last: Seq,
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

    /// Notes a loss of `count` numbers between `after` and `last`, `last` among them; whether it will be repaired.
    pub(super) fn expect(&mut self, now: Instant, after: Seq, last: Seq, count: u32) -> bool {
        let Some(time) = self.time else {
            return false;
        };
        if self.pending.len() == MAX_REPAIRS {
            self.pending.pop_front();
        }
        let is_alone = count == 1 || !last.is_after(after);
        self.pending.push_back(Repair {
            after: if is_alone { last.minus(1) } else { after },
            last,
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
        let until = self.pending.iter().filter(concerns);
        until.map(|repair| repair.until).max()
    }

    /// Forgets what is before `frontier`: nobody waits for it.
    pub(super) fn forget_before(&mut self, frontier: Seq) {
        let is_before = |repair: &Repair| frontier.is_after(repair.last);
        while self.pending.front().is_some_and(is_before) {
            self.pending.pop_front();
        }
    }

    /// Whether `seq` is known to have been lost. Of several in a row only the last is known.
    pub(super) fn has_lost(&self, seq: Seq) -> bool {
        self.pending.iter().any(|repair| repair.last == seq)
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
