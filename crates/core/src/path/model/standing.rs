//! Standing delay: jitter is shorter.

use core::time::Duration;

use crate::time::Instant;

/// The minimum delay over at least [`STANDING`] and [`STANDING_PKTS`] packets: a few packets may all be late.
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
    /// Takes the minimum delay of `packets` packets; returns the standing delay.
    pub(super) fn insert(&mut self, now: Instant, delay: i32, packets: u64) -> i32 {
        if now.since(self.began_at) >= STANDING / 2 && self.packets >= STANDING_PKTS / 2 {
            self.halves = [i32::MAX, self.halves[0]];
            self.began_at = now;
            self.packets = 0;
        }
        self.packets = self.packets.saturating_add(packets);
        self.halves[0] = self.halves[0].min(delay);
        self.min()
    }

    /// The standing delay.
    pub(super) fn min(&self) -> i32 {
        self.halves[0].min(self.halves[1])
    }
}

/// A delay that lasts so long is no jitter: radio schedulers and Wi-Fi aggregates hold packets for 10 to 30 ms.
pub(in crate::path) const STANDING: Duration = Duration::from_millis(40);
/// Fewer packets may all be late.
pub(super) const STANDING_PKTS: u64 = 24;
