//! Whether the clock of this host is behind.
//!
//! Handshakes carry the time. A gateway answers a handshake that is older than the client's last handshake only after a
//! cookie exchange, and at a lower rate, until the client's clock has passed the old time again. The check compares the
//! clock with the modification times of files; a clock before these times is wrong. Limit: a clock that is ahead is not
//! detected.

use std::{
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use pleach_linux::clock;

use crate::doctor::problem::Problem;

/// Times to compare, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Current time of the clock.
    now: u64,
    /// Latest modification time of a file.
    written: u64,
}

/// Reads the clock and the modification times of `files`.
pub(crate) fn observe<'a>(files: impl Iterator<Item = &'a Path>) -> Facts {
    let written = files.filter_map(|file| {
        let modified = file.metadata().ok()?.modified().ok()?;
        Some(modified.duration_since(UNIX_EPOCH).ok()?.as_secs())
    });
    Facts {
        now: clock::unix_nanos() / 1_000_000_000,
        written: written.max().unwrap_or(0).max(BUILT),
    }
}

pub(crate) fn verdict(facts: &Facts) -> Option<Problem> {
    let behind = facts.written.checked_sub(facts.now)?;
    (behind > TOLERANCE.as_secs()).then(|| {
        let behind = humantime::format_duration(Duration::from_secs(behind - behind % 60));
        Problem::new(
            "clock",
            format!("the clock of this host is at least {behind} slow: a file of its configuration has a later time; a gateway does not answer a client whose clock was set back"),
            "set the clock, and enable NTP (`timedatectl set-ntp true`)",
        )
    })
}

/// Build time, in seconds since 1970: 2026-11-01. No build of this program is older.
const BUILT: u64 = 1_793_491_200;
/// Tolerated difference: longer than the rounding of times in file systems, shorter than the error of a wrong time
/// zone.
const TOLERANCE: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_before_the_files_is_wrong() {
        let problem = |now, written| verdict(&Facts { now, written });
        assert_eq!(problem(10_000, 9_000), None);
        assert_eq!(problem(10_000, 10_100), None);
        let found = problem(10_000, 10_000 + 7200).expect("found");
        assert!(found.what.contains("2h"), "{}", found.what);
        let none = observe(std::iter::empty());
        assert_eq!(none.written, BUILT);
    }
}
