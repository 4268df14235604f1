//! The user's target for a path: the standing queue to keep, and how to share the path with cross traffic.
//!
//! A queue that a drain does not reduce is caused by cross traffic, or the delay is not a queue. Then:
//!
//! - [`Sharing::Auto`]: the remaining delay counts as the path's base delay.
//! - [`Sharing::Yield`]: the queue counts as caused by this end, so the drain continues while the delay exceeds the
//!   base delay of the last 10 s. Cross traffic that keeps the queue filled gets the whole path except 200 kbit/s.
//! - [`Sharing::Hold`]: as `Auto`, but for 30 s after cross traffic was last seen the pacing rate is at least the given
//!   share of the capacity measured without cross traffic. If less arrives than is sent, the path itself has become
//!   slower. Then the share refers to the delivered rate.

use core::time::Duration;

/// The user's settings for the pacing of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aim {
    /// Standing queue to keep; `None` for the default of 3 to 7 ms. On slow and jittery paths the queue is longer in
    /// any case.
    pub target_delay: Option<Duration>,
    /// How to share the path with cross traffic.
    pub sharing: Sharing,
}

/// How to react to a queue caused by cross traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Keep sending beside the cross traffic.
    #[default]
    Auto,
    /// Keep at least a share of the capacity while there is cross traffic.
    Hold {
        /// The share in percent, 1 to 100.
        percent: u8,
    },
    /// Yield to the cross traffic.
    Yield,
}

impl Aim {
    /// Standing queue below which the path is probed for more capacity; `usual` if the user has set no target.
    pub(super) fn low(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 3 / 5)
    }

    /// Standing queue above which the path is drained; `usual` if the user has set no target.
    pub(super) fn high(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 7 / 5)
    }
}
