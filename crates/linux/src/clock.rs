//! The clock: the only place that reads it. And 32 random bytes, for who needs no more.
//!
//! Time is `CLOCK_BOOTTIME`: monotonic, and it goes on while the machine sleeps, so that keys age and dead peers are
//! noticed after a laptop wakes up. Its epoch is the boot of the machine.

use pleach_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds since boot.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The time of day: seconds since 1970-01-01 UTC. It may be set, forwards and backwards; for billing, not for timers.
#[must_use]
pub fn unix_seconds() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}

/// The same in nanoseconds, for handshakes; see `Endpoint::set_time_of_day` of the engine.
#[must_use]
pub fn unix_nanos() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// 32 bytes fit for keys, from the kernel's generator.
///
/// Waits until the generator is seeded, which on a running system it is.
///
/// # Errors
/// The error of `getrandom(2)`, for example under a filter that forbids the call.
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
