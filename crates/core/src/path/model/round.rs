//! Rounds: bytes sent and delivered in one RTT.

use core::time::Duration;

use super::Signals;
use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The current round.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::path) struct Rounds {
    began_at: Instant,
    /// The maximum delivery rate when the round began, and the byte totals at that time.
    rate: Bitrate,
    sent_bytes: u64,
    received_bytes: u64,
    /// Pacing rate when the round began.
    pace: Option<Bitrate>,
    /// Whether the previous round sent over a quarter more than the capacity.
    is_pushed: bool,
    /// Whether the previous round sent over a tenth more than arrived in it.
    is_overrun: bool,
}

impl Rounds {
    /// Ends the round if it has lasted one RTT, or if `is_over`. `max`: maximum delivery rate. `gross`: the sending
    /// rate at which `max` arrives. If a round ended, returns whether it was flat: the delivery rate grew by less
    /// than a quarter, although the previous round sent over a quarter more than the capacity.
    pub(in crate::path) fn on_report(
        &mut self,
        now: Instant,
        signals: &Signals,
        is_over: bool,
        max: Bitrate,
        gross: Bitrate,
    ) -> Option<bool> {
        let elapsed = now.since(self.began_at);
        if elapsed < signals.rtt.max(LEAST_ROUND) && !is_over {
            return None;
        }
        let rate = |bytes, before| {
            let bytes = Bytes::new(u64::saturating_sub(bytes, before));
            Bitrate::from_transfer(bytes, elapsed).unwrap_or(Bitrate::ZERO)
        };
        let sent = rate(signals.sent_bytes, self.sent_bytes);
        let received = rate(signals.received_bytes, self.received_bytes);
        let is_flat = self.is_pushed && max < self.rate.scale(5, 4);
        *self = Self {
            began_at: now,
            rate: max,
            sent_bytes: signals.sent_bytes,
            received_bytes: signals.received_bytes,
            pace: signals.pace,
            is_pushed: sent > gross.scale(5, 4),
            is_overrun: sent > received.scale(110, 100),
        };
        Some(is_flat)
    }

    /// The pacing rate when the round began.
    pub(in crate::path) const fn pace(&self) -> Option<Bitrate> {
        self.pace
    }

    /// Whether the previous round sent over a tenth more than arrived in it.
    pub(in crate::path) const fn is_overrun(&self) -> bool {
        self.is_overrun
    }
}

/// Minimum duration of a round: one and a half delivery-rate samples without jitter.
pub(in crate::path) const LEAST_ROUND: Duration = Duration::from_millis(60);
