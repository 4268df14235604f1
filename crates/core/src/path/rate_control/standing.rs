//! Delays that stand: jitter is shorter.

use core::time::Duration;

use crate::time::Instant;

/// The least of the delays of at least [`STANDING`] and [`STANDING_PKTS`] packets: a few packets may all be late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The half under way, and the one before it.
    halves: [i32; 2],
    began_at: Instant,
    packets: u64,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            halves: [i32::MAX; 2],
            began_at: Instant::ZERO,
            packets: 0,
        }
    }
}

impl Standing {
    /// Takes the least delay of `packets` packets; the least of late.
    pub(super) fn insert(&mut self, now: Instant, delay: i32, packets: u64) -> i32 {
        if now.since(self.began_at) >= STANDING / 2 && self.packets >= STANDING_PKTS / 2 {
            self.halves = [i32::MAX, self.halves[0]];
            self.began_at = now;
            self.packets = 0;
        }
        self.packets = self.packets.saturating_add(packets);
        self.halves[0] = self.halves[0].min(delay);
        self.halves[0].min(self.halves[1])
    }
}

/// A queue stands if it does not fall below its length for so long; jitter is shorter.
pub(super) const STANDING: Duration = Duration::from_millis(40);
/// Nor while so few packets tell of it.
pub(super) const STANDING_PKTS: u64 = 24;
