//! What sending lost packets again, and repair symbols, may cost.
//!
//! Repairs pay off where losses are random. Where they come from a full queue, repairs would feed it, so they get a share
//! of what is sent and no more; the rest is left to the inner transports. What was not spent is saved, for a path that collapses
//! takes with it all that is under way on it: that share of the last seconds, which is forgotten bit by bit. Own rule.

use core::time::Duration;

use crate::{path::sender::Numbered, time::Instant};

/// What may be spent on repairs: an eighth of what was sent of late, and [`LEAST`] at first.
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
    /// Takes note of `len` bytes sent.
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

    /// Whether a repair of `len` bytes can be paid.
    pub(super) fn has(&self, len: usize) -> bool {
        self.bytes >= len as u64
    }

    /// Gives back what was paid for a packet that is not sent again after all.
    pub(super) fn refund(&mut self, numbered: &Numbered) {
        if numbered.origin.is_some_and(|origin| origin.is_paid) {
            self.bytes += numbered.packet.len() as u64;
        }
    }

    /// Pays for a repair of `len` bytes; whether there was enough.
    pub(super) fn try_spend(&mut self, len: usize) -> bool {
        let rest = self.bytes.checked_sub(len as u64);
        self.bytes = rest.unwrap_or(self.bytes);
        rest.is_some()
    }
}

/// One part in so many of what is sent: losses of up to 12 % are repaired.
const SHARE: u64 = 8;
/// In bytes, never forgotten: what a queue of 256 packets loses at once.
const LEAST: u64 = 384 << 10;
/// An eighth of that is 300 ms of what the paths carry: more than is under way on most.
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
