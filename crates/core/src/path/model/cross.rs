//! Cross traffic: a queue, or losses, that persist while this end sends less than the path's capacity.
//!
//! The test is a drain ([`super::super::control`]), which lowers the sending rate for a moment. If the queue remains
//! and everything sent arrived, other senders fill the path. If less arrived than was sent, the path itself has
//! become slower.

use core::{cmp::Reverse, time::Duration};

use super::super::window::WindowedMin;
use crate::{time::Instant, units::Bitrate};

/// Cross traffic on one path.
#[derive(Clone, Debug)]
pub(in crate::path) struct CrossTraffic {
    /// When cross traffic was last seen.
    seen_at: Option<Instant>,
    /// Maximum capacity while no cross traffic was present.
    alone: WindowedMin<Reverse<Bitrate>>,
    /// Capacity without cross traffic: `alone`, reduced by drains in which less arrived than was sent.
    capacity: Bitrate,
}

impl Default for CrossTraffic {
    fn default() -> Self {
        Self {
            seen_at: None,
            alone: WindowedMin::new(MEMORY),
            capacity: Bitrate::ZERO,
        }
    }
}

impl CrossTraffic {
    /// Records the sending rate at which the path's capacity arrives, while no cross traffic is present.
    pub(in crate::path) fn on_capacity(&mut self, now: Instant, gross: Option<Bitrate>) {
        if let Some(gross) = gross.filter(|_| !self.is_present(now)) {
            self.alone.insert(now, Reverse(gross));
            self.capacity = self.alone.min().map_or(gross, |Reverse(most)| most);
        }
    }

    /// Records the result of a drain. `is_gone`: the queue was drained. `delivered`: the delivery rate, if it was
    /// below the sending rate.
    pub(in crate::path) fn on_test(
        &mut self,
        now: Instant,
        is_gone: bool,
        delivered: Option<Bitrate>,
    ) {
        if let Some(delivered) = delivered {
            self.alone = WindowedMin::new(MEMORY);
            self.capacity = self.capacity.min(delivered);
        } else if !is_gone {
            self.seen_at = Some(now);
        }
    }

    /// The path's capacity without cross traffic; `None` while no cross traffic is present.
    pub(in crate::path) fn shared_capacity(&self, now: Instant) -> Option<Bitrate> {
        self.is_present(now).then_some(self.capacity)
    }

    fn is_present(&self, now: Instant) -> bool {
        self.seen_at.is_some_and(|at| now.since(at) < MEMORY)
    }
}

/// Time for which cross traffic counts as present after it was last seen, and window of the maximum capacity without
/// it.
const MEMORY: Duration = Duration::from_secs(30);
