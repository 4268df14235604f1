//! Probe up and cruise: a little more is sent than the path carries, so that more capacity and a queue are seen.
//!
//! Where the buffer has overflowed, the gain is so small that the queue grows by a third of the buffer until its growth is
//! reported: each overflow costs a round trip without data in order, in which the path runs empty. Where jitter hides the
//! queue, losses have to show it.

use core::time::Duration;

use crate::path::model::{Model, STANDING};

/// Pacing gains.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gain {
    /// Without a queue for long: the capacity may be much more.
    Calm,
    /// Without a queue.
    Up,
    /// With a short queue.
    Cruise,
}

impl Gain {
    /// In percent of the capacity.
    pub(super) fn percent(self, rtt: Duration, model: &Model) -> u64 {
        match self {
            Self::Calm => 125,
            Self::Up => 100 + growth_percent(rtt, model),
            Self::Cruise => 100 + growth_percent(rtt, model).min(3),
        }
    }
}

/// By how many percent the capacity may be exceeded without a queue: 10, and 2 at least in a short buffer.
fn growth_percent(rtt: Duration, model: &Model) -> u64 {
    let Some(depth) = model.visible_depth() else {
        return 10;
    };
    let seen_after = (STANDING + rtt).as_micros().max(1);
    let percent = (depth / 3).as_micros() * 100 / seen_after;
    u64::try_from(percent).unwrap_or(10).clamp(2, 10)
}
