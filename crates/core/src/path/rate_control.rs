//! How fast to send on a path at most, so that bursts wait in the tunnel queue and not in a shallow modem's.
//!
//! A path that was filled within 10 s is paced at a tenth more than the largest rate it delivered in the last 2 s: enough
//! to notice within a few reports that it carries more, and slow enough that a burst of some milliseconds, as a stalled
//! machine or a radio makes it, does not overflow a queue of a few dozen packets.
//!
//! After a loss the pace is nine tenths for two round trips: what waits in the tunnel queue would keep the path's queue
//! full and losing, and a sender that loses again after it has backed off backs off again.
//!
//! A path that was not filled is not paced: of its capacity only a lower bound is known, and a TCP sender that starts
//! takes the spacing of its acknowledgements for the path's (HyStart, RFC 9406).
//!
//! Known limit: this does not keep the path's own queue short; that takes a controller that also drains.

use core::time::Duration;

use super::rate::{DeliveryRate, RateSample};
use crate::{time::Instant, units::Bitrate};

/// The state of one path's burst limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateControl {
    /// When the path, not the sender, last limited the rate.
    filled_at: Option<Instant>,
    /// Until when it is eased after a loss.
    eased_until: Option<Instant>,
}

impl RateControl {
    /// Takes note of a new sample of the delivery rate.
    pub fn on_sample(&mut self, now: Instant, sample: RateSample) {
        if !sample.app_limited {
            self.filled_at = Some(now);
        }
    }

    /// Takes note that the path lost something; `rtt`: its smoothed round-trip time.
    pub fn on_loss(&mut self, now: Instant, rtt: Duration) {
        if self
            .eased_until
            .is_none_or(|until| now.since(until) > BETWEEN_EASES)
        {
            self.eased_until = Some(now + (rtt * 2).max(LEAST_EASE));
        }
    }

    /// The pace; `None`: no limit is known.
    #[must_use]
    pub fn pace(&self, now: Instant, rate: &DeliveryRate) -> Option<Bitrate> {
        let is_known = self.filled_at.is_some_and(|at| now.since(at) < MEMORY);
        let is_eased = self.eased_until.is_some_and(|until| now < until);
        let percent = if is_eased { 90 } else { 110 };
        let pace = rate.max().filter(|_| is_known)?.scale(percent, 100);
        Some(pace.max(LEAST))
    }
}

/// From this queue delay on the path, not the sender, limits the rate.
pub const FILLED: Duration = Duration::from_millis(4);
/// How long a path's capacity is remembered after it was last full.
const MEMORY: Duration = Duration::from_secs(10);
const LEAST_EASE: Duration = Duration::from_millis(50);
/// Losses in this time after an ease change nothing, so that random loss does not wear the pace down.
const BETWEEN_EASES: Duration = Duration::from_secs(1);
/// No pace is lower: from less, a wrong first estimate would take too long to grow, and a burst at this rate is short.
const LEAST: Bitrate = Bitrate::from_mbps(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::rate::Delivered;

    /// Feeds `millis` of delivery at `rate` in reports 10 ms apart; the pace after each.
    fn deliver(
        control: &mut RateControl,
        meter: &mut DeliveryRate,
        start: u64,
        rate: Bitrate,
        filled: bool,
    ) -> Vec<Option<Bitrate>> {
        (0..30)
            .map(|i| {
                let now = Instant::from_millis(start + i * 10);
                let bytes = rate.bytes_in(now.since(Instant::ZERO));
                let delivered = Delivered {
                    bytes,
                    packets: bytes.get() / 1000,
                    tx_us: now.wire_micros(),
                    rx_us: now.wire_micros(),
                };
                if let Some(sample) = meter.on_report(now, delivered, !filled) {
                    control.on_sample(now, sample);
                }
                control.pace(now, meter)
            })
            .collect()
    }

    #[test]
    fn only_a_filled_path_is_paced_and_a_tenth_above_its_rate() {
        let (mut control, mut meter) = (RateControl::default(), DeliveryRate::new());
        let rate = Bitrate::from_mbps(64);
        assert!(
            deliver(&mut control, &mut meter, 0, rate, false)
                .iter()
                .all(Option::is_none)
        );
        let pace = deliver(&mut control, &mut meter, 300, rate, true)
            .pop()
            .flatten()
            .expect("paced");
        assert!(
            (Bitrate::from_mbps(69)..Bitrate::from_mbps(72)).contains(&pace),
            "{pace}"
        );
        assert_eq!(
            control.pace(Instant::from_millis(20_000), &meter),
            None,
            "forgotten"
        );
    }

    #[test]
    fn a_loss_eases_the_pace_for_a_while_and_not_at_once_again() {
        let (mut control, mut meter) = (RateControl::default(), DeliveryRate::new());
        let full = deliver(&mut control, &mut meter, 0, Bitrate::from_mbps(64), true)
            .pop()
            .flatten()
            .expect("paced");
        let rtt = Duration::from_millis(40);
        control.on_loss(Instant::from_millis(300), rtt);
        assert!(
            control
                .pace(Instant::from_millis(310), &meter)
                .expect("paced")
                < full.scale(85, 100)
        );
        assert_eq!(control.pace(Instant::from_millis(380), &meter), Some(full));
        control.on_loss(Instant::from_millis(390), rtt);
        assert_eq!(control.pace(Instant::from_millis(391), &meter), Some(full));
    }

    #[test]
    fn a_tiny_first_estimate_does_not_hold_the_path_back() {
        let (mut control, mut meter) = (RateControl::default(), DeliveryRate::new());
        let paces = deliver(
            &mut control,
            &mut meter,
            0,
            Bitrate::from_bps(3_000_000),
            true,
        );
        assert_eq!(paces.last().copied().flatten(), Some(LEAST));
    }
}
