//! What the user wants of a path's pace: how long a queue it keeps, and what it does when that queue is another's.
//!
//! A queue that does not go when the path is sent less is another's, or none (`rate_control`). What then:
//!
//! - [`Sharing::Auto`]: it counts as the path's own delay, and what this end sends goes on beside it.
//! - [`Sharing::Yield`]: it counts as ours, so the path is sent less and less, while it stands and the least delay of 10 s
//!   is below it. A sender that fills the queue gets the path but for `LEAST`.
//! - [`Sharing::Hold`]: as `Auto`, but for `FOREIGN` after that neither losses nor queues take the pace below a share of
//!   what the path carried before. If less than that comes, the path itself has become slower, and the share is taken of
//!   what comes.

use core::{cmp::Reverse, time::Duration};

use super::super::window::WindowedMin;
use crate::{time::Instant, units::Bitrate};

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
    /// A queue below this needs more; `usual` if nothing is said.
    pub(super) fn low(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 3 / 5)
    }

    /// A queue above this is drained; `usual` if nothing is said.
    pub(super) fn high(self, usual: Duration) -> Duration {
        self.target_delay.map_or(usual, |target| target * 7 / 5)
    }
}

/// What is known of others that fill the path.
#[derive(Clone, Debug)]
pub(super) struct Others {
    /// When a queue, or losses, last stayed though less was sent.
    seen_at: Option<Instant>,
    /// What the path carried at most while there were none.
    alone: WindowedMin<Reverse<Bitrate>>,
    /// The same, as far as they have left of it.
    capacity: Bitrate,
}

impl Default for Others {
    fn default() -> Self {
        Self {
            seen_at: None,
            alone: WindowedMin::new(FOREIGN),
            capacity: Bitrate::ZERO,
        }
    }
}

impl Others {
    /// Takes note of what must be sent for as much to arrive as did at most of late.
    pub(super) fn on_rate(&mut self, now: Instant, carried: Option<Bitrate>) {
        if let Some(carried) = carried.filter(|_| !self.are_there(now)) {
            self.alone.insert(now, Reverse(carried));
            self.capacity = self.alone.min().map_or(carried, |Reverse(most)| most);
        }
    }

    /// Less was sent for a while than the path carried. `is_gone`: what stood before it went. `carried`: what came, if
    /// that was less than was sent.
    pub(super) fn on_test(&mut self, now: Instant, is_gone: bool, carried: Option<Bitrate>) {
        if let Some(carried) = carried {
            self.alone = WindowedMin::new(FOREIGN);
            self.capacity = self.capacity.min(carried);
        } else if !is_gone {
            self.seen_at = Some(now);
        }
    }

    /// The pace that is kept beside others; zero if none is, or there are none.
    pub(super) fn share(&self, now: Instant, aim: Aim) -> Bitrate {
        match aim.sharing {
            Sharing::Hold { percent } if self.are_there(now) => {
                self.capacity.scale(percent.into(), 100)
            }
            Sharing::Auto | Sharing::Hold { .. } | Sharing::Yield => Bitrate::ZERO,
        }
    }

    fn are_there(&self, now: Instant) -> bool {
        self.seen_at.is_some_and(|at| now.since(at) < FOREIGN)
    }
}

/// How long others are taken to be there after they were last seen, and how far back the path is remembered without them.
const FOREIGN: Duration = Duration::from_secs(30);
