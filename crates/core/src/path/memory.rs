//! Estimates of a path that are kept while this end does not run or the link is away.
//!
//! A rate of the past is a guess: the network may be another one, slower, or shared. So it never enters the model. Startup begins
//! with it (`control/recalled.rs`), and policies see it of a path that has delivered nothing yet.
//!
//! The keeper decides which network a path leads over. Beside that, a path whose round-trip time is far from the remembered one
//! counts as another ([`PathMemory::fits`]).

use core::time::Duration;

use crate::units::Bitrate;

/// What one end remembers of the direction it sends in on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMemory {
    /// What the path delivered when it was full.
    pub rate: Bitrate,
    /// The least round-trip time of late.
    pub min_rtt: Duration,
    /// The path's own share of losses, in parts per million.
    pub loss_ppm: u32,
}

impl PathMemory {
    /// Whether a path with this least round-trip time may be the one remembered: half to twice as long, or 20 ms off.
    #[must_use]
    pub fn fits(&self, min_rtt: Duration) -> bool {
        let (less, more) = (self.min_rtt.min(min_rtt), self.min_rtt.max(min_rtt));
        more <= less * 2 + Duration::from_millis(20)
    }
}

/// What is older is not to be recalled.
pub const MOST_AGE: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_far_shorter_or_longer_is_another() {
        let memory = PathMemory {
            rate: Bitrate::from_mbps(50),
            min_rtt: Duration::from_millis(40),
            loss_ppm: 0,
        };
        for (millis, fits) in [
            (9, false),
            (10, true),
            (40, true),
            (100, true),
            (101, false),
        ] {
            assert_eq!(memory.fits(Duration::from_millis(millis)), fits, "{millis}");
        }
    }
}
