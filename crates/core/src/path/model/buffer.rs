//! The buffer at the bottleneck: the queueing delay at which it overflows.

use core::time::Duration;

use super::{MEMORY, standing::STANDING};
use crate::{time::Instant, units::Bitrate};

/// Longest queues, and what the buffer held when it overflowed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::path) struct Buffer {
    /// The longest queue lately, and when it was seen: losses are reported later than the queue that caused them.
    peak: (Duration, Instant),
    depth: Option<Depth>,
}

/// The queueing delay at which a buffer has overflowed.
#[derive(Clone, Copy, Debug)]
pub(in crate::path) struct Depth {
    pub(in crate::path) queue: Duration,
    /// The delivery rate at that time: at another rate the same buffer is another delay.
    pub(in crate::path) rate: Bitrate,
    pub(in crate::path) at: Instant,
}

impl Depth {
    /// Whether the buffer is so deep that its queue is seen before it overflows, and not only `noise`, and has drained to
    /// `queue`.
    pub(in crate::path) fn has_drained(
        self,
        queue: Duration,
        rtt: Duration,
        noise: Duration,
    ) -> bool {
        // At a quarter more than the capacity, the queue grows by a quarter of the time until its growth is reported.
        let deep = DEEP.max((STANDING + rtt) / 4).max(noise);
        self.queue >= deep && queue < self.queue / 4
    }
}

impl Buffer {
    /// Takes the standing queue of a report, on a path of capacity `rate`. The depth is forgotten if the buffer holds more, the
    /// path is faster, or the overflow was long ago.
    pub(in crate::path) fn on_queue(
        &mut self,
        now: Instant,
        queue: Duration,
        rtt: Duration,
        rate: Bitrate,
    ) {
        if queue >= self.peak.0 || now.since(self.peak.1) > PEAK_WINDOW + rtt {
            self.peak = (queue, now);
        }
        self.depth = self.depth.filter(|depth| {
            queue < depth.queue * 3 / 2
                && rate <= depth.rate.scale(5, 4)
                && now.since(depth.at) < MEMORY
        });
    }

    /// The buffer overflowed; the depth known before.
    pub(in crate::path) fn on_overflow(&mut self, now: Instant, rate: Bitrate) -> Option<Depth> {
        self.depth.replace(Depth {
            queue: self.peak.0.max(LEAST_DEPTH),
            rate,
            at: now,
        })
    }

    /// The overflow was none: `before` is the depth known before.
    pub(in crate::path) fn undo_overflow(&mut self, before: Option<Depth>) {
        self.depth = before;
    }

    /// So much of the delay that counted as queue is propagation delay.
    pub(in crate::path) fn on_longer_base(&mut self, delay: Duration) {
        self.peak.0 = self.peak.0.saturating_sub(delay);
        if let Some(depth) = &mut self.depth {
            depth.queue = depth.queue.saturating_sub(delay).max(LEAST_DEPTH);
        }
    }

    pub(in crate::path) const fn peak(&self) -> Duration {
        self.peak.0
    }

    pub(in crate::path) const fn depth(&self) -> Option<Depth> {
        self.depth
    }
}

/// A buffer of this depth is seen to fill before it overflows, unless the round trip is long.
const DEEP: Duration = Duration::from_millis(50);
/// The time between the report of a queue and the report of its losses.
const PEAK_WINDOW: Duration = Duration::from_millis(300);
/// Smallest depth: a full packet at 8 Mbit/s.
const LEAST_DEPTH: Duration = Duration::from_micros(1_500);
