//! Cross traffic: a queue, or losses, that stay although this end sends less than the path carried.
//!
//! A drain ([`super::super::control`]) is the test. If its queue did not go and all that was sent arrived, others fill the path.
//! If less arrived than was sent, the path itself has become slower.

use core::{cmp::Reverse, time::Duration};

use super::super::window::WindowedMin;
use crate::{time::Instant, units::Bitrate};

/// Cross traffic on one path.
#[derive(Clone, Debug)]
pub(in crate::path) struct CrossTraffic {
    /// When cross traffic was last seen.
    seen_at: Option<Instant>,
    /// The largest capacity while there was none.
    alone: WindowedMin<Reverse<Bitrate>>,
    /// The same, reduced by tests in which less arrived.
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
    /// Takes the sending rate at which the path's capacity arrives.
    pub(in crate::path) fn on_capacity(&mut self, now: Instant, gross: Option<Bitrate>) {
        if let Some(gross) = gross.filter(|_| !self.is_present(now)) {
            self.alone.insert(now, Reverse(gross));
            self.capacity = self.alone.min().map_or(gross, |Reverse(most)| most);
        }
    }

    /// Takes the result of a drain. `is_gone`: the queue went. `delivered`: the rate that arrived, if less than was sent.
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

    /// The path's capacity without the cross traffic; `None` while there is none.
    pub(in crate::path) fn shared_capacity(&self, now: Instant) -> Option<Bitrate> {
        self.is_present(now).then_some(self.capacity)
    }

    fn is_present(&self, now: Instant) -> bool {
        self.seen_at.is_some_and(|at| now.since(at) < MEMORY)
    }
}

/// How long cross traffic counts as present after it was last seen, and how far back the capacity without it is kept.
const MEMORY: Duration = Duration::from_secs(30);
