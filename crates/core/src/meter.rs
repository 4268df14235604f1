//! Counts the bytes of a peer's packets in one direction, and limits their rate.
//!
//! The limit is a token bucket in the form of the [`Pacer`]. The bucket holds the bytes of [`BURST`], so that a late
//! timer does not waste the rate. Over a time *t* at most `rate * (t + BURST)` bytes and one packet pass. The bytes are
//! those of inner packets with their IP headers.

use core::time::Duration;

use crate::{
    path::pacer::Pacer,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Counter and limit of one direction.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    cap: Option<Pacer>,
    bytes: u64,
}

impl Meter {
    /// Sets the limit; `None` removes it. Does nothing if the limit is unchanged.
    pub(crate) fn set_cap(&mut self, now: Instant, cap: Option<Bitrate>) {
        if self.cap() == cap {
            return;
        }
        self.cap = cap.map(|rate| {
            // A pacer lets the larger of three packets and 1 ms pass at once.
            let burst = rate.bytes_in(BURST).get().max(LEAST_BURST);
            let mut pacer = Pacer::new(Bytes::new(burst / 3));
            pacer.set_rate(now, Some(rate));
            pacer
        });
    }

    /// Returns the limit.
    pub(crate) fn cap(&self) -> Option<Bitrate> {
        self.cap.as_ref().and_then(Pacer::rate)
    }

    /// Whether a packet may pass now.
    #[inline]
    pub(crate) fn can_pass(&self, now: Instant) -> bool {
        self.cap.as_ref().is_none_or(|pacer| pacer.can_send(now))
    }

    /// Counts packets of `bytes` bytes together that pass now.
    #[inline]
    pub(crate) fn on_passed(&mut self, now: Instant, bytes: Bytes) {
        self.bytes += bytes.get();
        if let Some(pacer) = &mut self.cap {
            pacer.on_sent(now, bytes);
        }
    }

    /// Takes back the count of packets that have passed and are given up before they were sent.
    pub(crate) fn take_back(&mut self, bytes: Bytes) {
        self.bytes = self.bytes.saturating_sub(bytes.get());
    }

    /// Returns the first time at which [`Self::can_pass`] holds if nothing else passes; it may be in the past. `None`
    /// without a limit.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.cap.as_ref().and_then(Pacer::next_release)
    }

    /// Returns the number of bytes that have passed.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Time in which an unused rate accumulates: longer than the usual lateness of a timer, short compared with the time
/// over which a user measures a rate.
const BURST: Duration = Duration::from_millis(5);
/// Minimum burst in bytes: two packets of 1500 bytes. Below 4.8 Mbit/s it is longer than [`BURST`].
const LEAST_BURST: u64 = 3000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets packets of `len` bytes pass for `time`, polled every `step`. Returns the rate.
    fn rate_of(cap: Bitrate, len: u64, step: Duration, time: Duration) -> f64 {
        let mut meter = Meter::default();
        meter.set_cap(Instant::ZERO, Some(cap));
        let mut now = Instant::ZERO;
        let end = now + time;
        while now < end {
            while meter.can_pass(now) {
                meter.on_passed(now, Bytes::new(len));
            }
            assert!(meter.next_at().is_some_and(|at| at > now));
            now += step;
        }
        meter.bytes() as f64 * 8.0 / time.as_secs_f64()
    }

    #[test]
    fn the_rate_is_kept_whatever_the_packets_are_and_however_late_the_timers_are() {
        let time = Duration::from_secs(5);
        for mbps in [1, 10, 100, 1000] {
            let cap = Bitrate::from_mbps(mbps);
            for len in [64, 576, 1400] {
                for step in [50, 1000, 2000] {
                    let step = Duration::from_micros(step);
                    let share = rate_of(cap, len, step, time) / (mbps as f64 * 1e6);
                    assert!(
                        (0.99..1.01).contains(&share),
                        "{mbps} {len} {step:?} {share}"
                    );
                }
            }
        }
    }

    #[test]
    fn without_a_cap_packets_are_counted_only() {
        let mut meter = Meter::default();
        for _ in 0..1000 {
            assert!(meter.can_pass(Instant::ZERO));
            meter.on_passed(Instant::ZERO, Bytes::new(1400));
        }
        assert_eq!((meter.bytes(), meter.next_at()), (1_400_000, None));
        meter.set_cap(Instant::ZERO, Some(Bitrate::from_mbps(1)));
        assert_eq!(meter.bytes(), 1_400_000, "the count goes on");
    }
}
