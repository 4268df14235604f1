//! The pacer: when a path may send its next packet.
//!
//! A token bucket in its virtual-clock form (GCRA, ITU-T I.371): `busy_until` is the time when the packets sent so
//! far will have left at the pacing rate. Sending is allowed while `busy_until` is ahead of the present time by less
//! than the bucket's depth, so the last packet may overdraw by its own length. The depth is the larger of three
//! packets and 1 ms, because timers and batches are that coarse. Times are rounded up to the nanosecond per packet:
//! an error below 0.1 % at 10 Gbit/s and 1500 bytes.

use core::time::Duration;

use crate::{
    time::{Instant, saturating_nanos},
    units::{Bitrate, Bytes},
};

/// Paces one path.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Option<Bitrate>,
    max_packet: Bytes,
    busy_until: Instant,
}

impl Pacer {
    /// Creates a pacer without limit, for packets of at most `max_packet` bytes on the wire.
    #[must_use]
    pub const fn new(max_packet: Bytes) -> Self {
        Self {
            rate: None,
            max_packet,
            busy_until: Instant::ZERO,
        }
    }

    /// Sets the pacing rate; `None` removes the limit. A present overdraft is paid back at the new rate.
    pub fn set_rate(&mut self, now: Instant, rate: Option<Bitrate>) {
        if let (Some(old), Some(new)) = (self.rate, rate)
            && old != new
        {
            let left = saturating_nanos(self.busy_until.since(now));
            let bits = u128::from(left) * u128::from(old.as_bps());
            let left = bits / u128::from(new.as_bps().max(1));
            self.busy_until = now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX));
        } else if rate.is_none() {
            self.busy_until = now;
        }
        self.rate = rate;
    }

    /// The pacing rate; `None` without limit.
    #[must_use]
    pub const fn rate(&self) -> Option<Bitrate> {
        self.rate
    }

    /// Whether a packet may be sent now.
    #[must_use]
    pub fn can_send(&self, now: Instant) -> bool {
        match self.rate {
            None => true,
            Some(Bitrate::ZERO) => false,
            Some(rate) => self.busy_until.since(now) < self.depth(rate),
        }
    }

    /// Time until the packets sent so far have left at the pacing rate.
    #[must_use]
    pub fn debt(&self, now: Instant) -> Duration {
        self.busy_until.since(now)
    }

    /// Charges for a packet of `bytes` sent now, whether it was allowed or not.
    pub fn on_sent(&mut self, now: Instant, bytes: Bytes) {
        if let Some(rate) = self.rate {
            self.busy_until = self.busy_until.max(now) + bytes / rate;
        }
    }

    /// The first instant at which [`can_send`](Self::can_send) holds if nothing more is sent; it may lie in the past.
    /// `None` if there is no limit, or if the rate is zero.
    #[must_use]
    pub fn next_release(&self) -> Option<Instant> {
        let rate = self.rate.filter(|rate| *rate != Bitrate::ZERO)?;
        let in_advance = self.depth(rate).saturating_sub(Duration::from_nanos(1));
        Some(self.busy_until - in_advance)
    }

    fn depth(&self, rate: Bitrate) -> Duration {
        let three_packets = Bytes::new(self.max_packet.get().saturating_mul(3)) / rate;
        three_packets.max(MIN_DEPTH)
    }
}

const MIN_DEPTH: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const PACKET: Bytes = Bytes::new(1_500);

    fn pacer(rate: Option<Bitrate>) -> Pacer {
        let mut pacer = Pacer::new(PACKET);
        pacer.set_rate(Instant::ZERO, rate);
        pacer
    }

    /// Sends as many packets as the pacer allows at `now`. Returns the bytes sent.
    fn drain(pacer: &mut Pacer, now: Instant) -> u64 {
        let mut bytes = 0;
        while pacer.can_send(now) {
            pacer.on_sent(now, PACKET);
            bytes += PACKET.get();
        }
        bytes
    }

    #[test]
    fn without_a_rate_everything_goes() {
        let mut pacer = pacer(None);
        pacer.on_sent(Instant::ZERO, Bytes::new(u64::MAX));
        assert!(pacer.can_send(Instant::ZERO));
        assert_eq!(pacer.next_release(), None);
    }

    #[test]
    fn at_rate_zero_nothing_goes_until_a_rate_comes() {
        let mut pacer = pacer(Some(Bitrate::ZERO));
        assert!(!pacer.can_send(Instant::from_millis(1_000)));
        assert_eq!(pacer.next_release(), None);
        pacer.on_sent(Instant::ZERO, PACKET);
        pacer.set_rate(Instant::ZERO, Some(Bitrate::from_mbps(10)));
        assert!(pacer.can_send(Instant::ZERO));
    }

    #[test]
    fn the_bucket_holds_three_packets_or_one_millisecond() {
        let mut slow = pacer(Some(Bitrate::from_mbps(1)));
        assert_eq!(drain(&mut slow, Instant::ZERO), 3 * 1_500);
        let mut fast = pacer(Some(Bitrate::from_mbps(120)));
        assert_eq!(drain(&mut fast, Instant::ZERO), 10 * 1_500);
        // Idle time does not fill the bucket beyond its depth.
        assert_eq!(drain(&mut fast, Instant::from_millis(60_000)), 10 * 1_500);
    }

    #[test]
    fn the_last_packet_may_overdraw() {
        let mut pacer = pacer(Some(Bitrate::from_mbps(1)));
        pacer.on_sent(Instant::ZERO, Bytes::new(4_499));
        assert!(pacer.can_send(Instant::ZERO));
        pacer.on_sent(Instant::ZERO, PACKET);
        assert!(!pacer.can_send(Instant::from_millis(11)));
        assert!(pacer.can_send(Instant::from_millis(12)));
    }

    #[test]
    fn release_is_the_first_instant_that_allows_sending() {
        let mut rng = Rng::new(4);
        let mut now = Instant::ZERO;
        let mut pacer = Pacer::new(PACKET);
        for _ in 0..2_000 {
            let rate = Bitrate::from_bps(1 + (rng.next_u64() >> (30 + rng.below(34))));
            pacer.set_rate(now, Some(rate));
            drain(&mut pacer, now);
            let release = pacer.next_release().expect("a rate is set");
            assert!(release > now && pacer.can_send(release));
            assert!(!pacer.can_send(release - Duration::from_nanos(1)));
            now = release;
        }
    }

    #[test]
    fn long_run_rate_is_the_set_rate_also_with_coarse_timers() {
        let mut pacer = pacer(Some(Bitrate::from_mbps(50)));
        let mut bytes = 0;
        for tick in 0..10_000 {
            bytes += drain(&mut pacer, Instant::from_millis(tick));
        }
        // 10 s of 50 Mbit/s, plus at most the bucket and one packet.
        assert!((62_480_000..62_530_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn debt_is_paid_at_the_new_rate() {
        let mut pacer = pacer(Some(Bitrate::from_mbps(1)));
        pacer.on_sent(Instant::ZERO, Bytes::new(125_000)); // one second of debt
        pacer.set_rate(Instant::ZERO, Some(Bitrate::from_mbps(100)));
        assert!(pacer.can_send(Instant::from_millis(10)));
    }

    #[test]
    fn removing_the_limit_forgives_the_debt() {
        let mut pacer = pacer(Some(Bitrate::from_bps(1)));
        pacer.on_sent(Instant::ZERO, PACKET);
        pacer.on_sent(Instant::ZERO, Bytes::new(1_000_000));
        pacer.set_rate(Instant::ZERO, None);
        pacer.set_rate(Instant::ZERO, Some(Bitrate::from_mbps(1)));
        assert!(pacer.can_send(Instant::ZERO));
    }
}
