//! Waiting for an instant.

use core::time::Duration;

use pleach_core::time::Instant;
use rustix::{
    fs::Timespec,
    io::Errno,
    thread::{ClockId, clock_nanosleep_absolute},
};

/// Converts `duration` for the kernel. A value out of range becomes the longest possible time.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Sleeps until `at` on the clock of [`pleach_linux::clock::now`].
pub(crate) fn until(at: Instant) {
    let request = timespec(at.since(Instant::ZERO));
    while clock_nanosleep_absolute(ClockId::Boottime, &request) == Err(Errno::INTR) {}
}

/// Calls `ready` every 20 ms until it returns true or `deadline` has passed. Returns whether it returned true.
pub(crate) fn for_condition(deadline: Instant, mut ready: impl FnMut() -> bool) -> bool {
    loop {
        if ready() {
            return true;
        }
        let now = pleach_linux::clock::now();
        if now >= deadline {
            return false;
        }
        until((now + Duration::from_millis(20)).min(deadline));
    }
}
