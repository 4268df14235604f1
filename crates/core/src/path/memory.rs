//! Estimates of a path that are stored while this end is not running or the link is absent.
//!
//! A remembered rate is a guess: the network may be another one, slower, or shared. So it never enters the model.
//! Startup begins with it (`control/recalled.rs`), and scheduling policies see it while the path has delivered nothing
//! yet.
//!
//! The owner of these memories decides which network a path leads over. In addition, a path whose RTT is far from the
//! remembered one counts as another path ([`PathMemory::fits`]).

use core::time::Duration;

use crate::units::Bitrate;

/// Remembered estimates of one end's sending direction on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMemory {
    /// Delivery rate when the path was saturated.
    pub rate: Bitrate,
    /// The min RTT.
    pub min_rtt: Duration,
    /// The loss floor, in parts per million.
    pub loss_ppm: u32,
}

impl PathMemory {
    /// Whether a path with this min RTT may be the remembered one: the longer of the two min RTTs is at most twice the
    /// shorter plus 20 ms.
    #[must_use]
    pub fn fits(&self, min_rtt: Duration) -> bool {
        let (less, more) = (self.min_rtt.min(min_rtt), self.min_rtt.max(min_rtt));
        more <= less * 2 + Duration::from_millis(20)
    }
}

/// Maximum age of a memory to recall.
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
