//! What the user wants of a path's pace: the standing queue that it keeps, and how it shares the path with cross traffic.
//!
//! A queue that does not go in a drain is cross traffic, or no queue. Then:
//!
//! - [`Sharing::Auto`]: the queue counts as the path's own delay.
//! - [`Sharing::Yield`]: the queue counts as ours, so the drain goes on while the delay exceeds the base delay of 10 s. Cross
//!   traffic that fills the queue gets the path but for 200 kbit/s.
//! - [`Sharing::Hold`]: as `Auto`, but for 30 s after cross traffic was seen the pace is at least a share of the capacity without
//!   it. If less arrives than is sent, the path itself has become slower, and the share is of the rate that arrives.

use core::time::Duration;

/// How a path is to be paced; by default as the rate control finds right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aim {
    /// The standing queue to keep; `None`: between 3 and 7 ms. Slow and jittery paths keep more in any case.
    pub target_delay: Option<Duration>,
    /// What to do about others on the path.
    pub sharing: Sharing,
}

/// What to do about a queue that others make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Go on beside it.
    #[default]
    Auto,
    /// Keep a share of what the path carries.
    Hold {
        /// The share in percent, 1 to 100.
        percent: u8,
    },
    /// Give way.
    Yield,
}

impl Aim {
    /// The queue below which the path is probed for more; `usual` without a target.
    pub(super) fn low(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 3 / 5)
    }

    /// The queue above which the path is drained; `usual` without a target.
    pub(super) fn high(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 7 / 5)
    }
}
