//! The budget of retransmissions and repair symbols.
//!
//! Repairs help where losses are random. Where a full queue causes the losses, repairs would load the queue further, so
//! their share of the traffic is limited; the inner transport protocols repair the remaining losses. Unspent budget is
//! saved, because a path that fails loses all its packets in flight at once. The savings cover an eighth of the traffic
//! of the last seconds and decay exponentially. This rule is pleach's own.

use core::time::Duration;

use crate::{path::sender::Numbered, time::Instant};

/// Budget of repairs: an eighth of the recent traffic, plus [`LEAST`] bytes at the start.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    forgot_at: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: LEAST,
            forgot_at: Instant::ZERO,
        }
    }
}

impl Budget {
    /// Adds to the budget the share of `len` sent bytes.
    pub(super) fn on_sent(&mut self, now: Instant, len: usize) {
        self.bytes += len as u64 / SHARE;
        let past = now.since(self.forgot_at);
        if past >= FORGET_EVERY {
            self.forgot_at = now;
            let kept = (-past.as_secs_f64() / SAVED_FOR.as_secs_f64()).exp();
            let least = self.bytes.min(LEAST);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "a share of the bytes sent in seconds"
            )]
            let bytes = (self.bytes as f64 * kept) as u64;
            self.bytes = bytes.max(least);
        }
    }

    /// Whether the budget covers a repair of `len` bytes.
    pub(super) fn has(&self, len: usize) -> bool {
        self.bytes >= len as u64
    }

    /// Refunds the cost of a packet that is not retransmitted after all.
    pub(super) fn refund(&mut self, numbered: &Numbered) {
        if numbered.origin.is_some_and(|origin| origin.is_paid) {
            self.bytes += numbered.packet.len() as u64;
        }
    }

    /// Pays for a repair of `len` bytes. Returns whether the budget covered it.
    pub(super) fn try_spend(&mut self, len: usize) -> bool {
        let rest = self.bytes.checked_sub(len as u64);
        self.bytes = rest.unwrap_or(self.bytes);
        rest.is_some()
    }
}

/// Reciprocal of the share of traffic that may be spent on repairs: losses of up to 12 % are repaired.
const SHARE: u64 = 8;
/// Bytes of the budget that do not decay: the loss when a queue of 256 packets is dropped at once.
const LEAST: u64 = 384 << 10;
/// Time constant of the decay of the savings. At a constant rate the savings reach an eighth of the traffic of this
/// time. This is the traffic of 300 ms, which is more than most paths have in flight.
const SAVED_FOR: Duration = Duration::from_millis(2_400);
const FORGET_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_last_seconds_is_saved() {
        let mut budget = Budget::default();
        // 100 kB each millisecond, for ten seconds.
        for ms in 0..10_000 {
            budget.on_sent(Instant::from_millis(ms), 100_000);
        }
        let saved_ms = budget.bytes / 100_000;
        assert!((295..310).contains(&saved_ms), "{saved_ms}");
        budget.on_sent(Instant::from_millis(10_000 + 2_400), 0);
        let saved_ms = budget.bytes / 100_000;
        assert!((105..115).contains(&saved_ms), "{saved_ms}");
        budget.on_sent(Instant::from_millis(1_000_000), 0);
        assert_eq!(budget.bytes, LEAST);
    }

    #[test]
    fn what_is_spent_comes_back_by_sending_alone() {
        let mut budget = Budget::default();
        assert!(budget.try_spend(384 << 10) && !budget.has(1) && !budget.try_spend(1));
        budget.on_sent(Instant::from_millis(60_000), 7);
        assert!(!budget.has(1));
        budget.on_sent(Instant::from_millis(120_000), 80_000);
        assert!(budget.try_spend(10_000) && !budget.has(1));
    }
}
