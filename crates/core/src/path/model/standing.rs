//! Standing delay: the part of the delay that lasts longer than jitter.

use core::time::Duration;

use crate::time::Instant;

/// The minimum delay over at least [`STANDING`] and [`STANDING_PKTS`] packets, because a few packets may all be late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Minima of the current half of the window and of the previous one.
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
    /// Adds the minimum delay of `packets` packets. Returns the standing delay.
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

/// Minimum duration of the window. A delay that lasts this long is not jitter: radio schedulers and Wi-Fi aggregates
/// delay packets by 10 to 30 ms.
pub(in crate::path) const STANDING: Duration = Duration::from_millis(40);
/// Minimum number of packets in the window: all of a smaller number of packets may be late.
pub(super) const STANDING_PKTS: u64 = 24;
