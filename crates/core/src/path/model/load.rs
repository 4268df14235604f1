//! Whether the path was loaded for as long as a standing delay takes.

use core::time::Duration;

use super::{
    Signals,
    standing::{STANDING, STANDING_PKTS},
};
use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Whether a path has delivered at least a quarter of its capacity for as long as a standing delay takes. After a pause its own
/// delay may be shorter, as with jitter that keeps order, which few packets meet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// When the period under way began, and what had come by then.
    began_at: Instant,
    received_bytes: u64,
    /// Since when it has been loaded, and for how many packets.
    since: Instant,
    packets: u64,
}

impl Load {
    /// Takes note of what a report says came; `max`: what the path can carry.
    pub(super) fn on_report(&mut self, now: Instant, signals: &Signals, max: Bitrate) {
        self.packets = self.packets.saturating_add(signals.received);
        let elapsed = now.since(self.began_at);
        if elapsed < LOAD_PERIOD {
            return;
        }
        let came = signals.received_bytes.saturating_sub(self.received_bytes);
        let came = Bitrate::from_transfer(Bytes::new(came), elapsed);
        if came.is_none_or(|came| came < max.scale(1, 4)) {
            (self.since, self.packets) = (now, 0);
        }
        (self.began_at, self.received_bytes) = (now, signals.received_bytes);
    }

    /// Whether it has been loaded for long enough.
    pub(super) fn is_steady(&self, now: Instant) -> bool {
        now.since(self.since) > STANDING * 2 && self.packets >= STANDING_PKTS * 2
    }
}

/// Shortest time over which load is measured: reports on a few packets arrive at any moment.
const LOAD_PERIOD: Duration = Duration::from_millis(10);
