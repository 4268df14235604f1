//! Counts pauses of the data path.
//!
//! A round of the loop in [`super::data_path`] begins when the wait for events ends. Until the next wait, nobody reads
//! packets that arrive. A round that lasts longer than [`PAUSE`] delays packets by more than the jitter of a good link.
//! Its cause is a system call that blocks, much work at once, or another program that has the processor.

use std::time::Duration;

use crate::{control::DataThreadStatus, log_lines};

/// Duration of a round above which it counts as a pause.
const PAUSE: Duration = Duration::from_millis(20);

/// The pauses since the start.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    count: u64,
    longest: Duration,
}

impl Pauses {
    /// Records the duration of a round.
    pub(super) fn on_round(&mut self, duration: Duration) {
        self.longest = self.longest.max(duration);
        self.count += u64::from(duration > PAUSE);
    }

    /// Returns the state for the control socket.
    pub(super) fn status(&self) -> DataThreadStatus {
        DataThreadStatus {
            pauses: self.count,
            longest_pause_ms: self.longest.as_secs_f64() * 1e3,
            log_lines_dropped: log_lines::dropped(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rounds_above_twenty_milliseconds_are_pauses() {
        let mut pauses = Pauses::default();
        for millis in [1, 20, 21, 35, 2] {
            pauses.on_round(Duration::from_millis(millis));
        }
        let status = pauses.status();
        assert_eq!(status.pauses, 2);
        assert!((status.longest_pause_ms - 35.0).abs() < 1e-9);
    }
}
