//! The clock, which is read only here, and 32 random bytes for simple needs.
//!
//! Time is `CLOCK_BOOTTIME`: monotonic, and it continues while the machine sleeps, so that keys age and dead peers are
//! detected after a laptop wakes up. Its epoch is the boot of the machine.

use pleach_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time in nanoseconds since boot.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Returns the time of day: seconds since 1970-01-01 UTC. This clock may be set forwards and backwards. It is for
/// billing, not for timers.
#[must_use]
pub fn unix_seconds() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}

/// Returns the time of day in nanoseconds since 1970-01-01 UTC, for handshakes; see `Endpoint::set_time_of_day` of the
/// engine.
#[must_use]
pub fn unix_nanos() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Returns 32 bytes from the kernel's generator, suitable for keys.
///
/// Waits until the generator is seeded, which is always the case on a running system.
///
/// # Errors
/// Returns the error of `getrandom(2)`, for example under a filter that forbids the call.
pub fn entropy() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    crate::entropy::draw(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let first = now();
        assert!(first > Instant::ZERO);
        assert!(now() >= first);
    }

    #[test]
    fn entropy_differs_each_time() {
        let first = entropy().expect("getrandom works");
        assert_ne!(first, entropy().expect("getrandom works"));
    }
}
