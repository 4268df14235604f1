//! CUBIC, RFC 9438, with the details of Linux where they differ.
//!
//! The target is computed for one minimum RTT ahead (section 4.2). The Reno-friendly window grows by one segment for
//! `1.875 cwnd` acknowledged segments (Linux's integer form of section 4.3's α = 3 (1 - β) / (1 + β)). Growth never
//! exceeds one segment for two acknowledged segments. Until the first loss, the window grows by at least one segment
//! for twenty acknowledged ones. As in Linux, the growth rate is computed when the window has changed or 1/32 s has
//! passed, in whole segments, so with short RTTs the window lags its target by a segment or two. Differences from
//! Linux: time is not in ticks, and the cubic function is in floating point (only `+ - * /`, so that every platform
//! computes the same).

use core::time::Duration;

use pleach_core::time::Instant;

use super::{
    Ack, MIN_SSTHRESH, Window,
    hystart::{HyStart, LOW_WINDOW},
};

/// Multiplicative decrease: Linux's 717/1024, RFC 9438's 0.7.
const BETA: f64 = 717.0 / 1024.0;

/// Scaling constant in segments per second cubed, RFC 9438 section 5.
const C: f64 = 0.4;

/// Segments acknowledged per increase of the Reno-friendly window, in eighths of the window: Linux's `beta_scale`.
const FRIENDLY_EIGHTHS: u32 = 15;

/// Time for which the growth rate remains valid while the window does not change.
const STANDING: Duration = Duration::from_micros(31_250);

/// Time after the start of an epoch in which RTT samples still contain the old queue.
const SETTLING: Duration = Duration::from_secs(1);

/// Twice the largest number of bytes that Linux aggregates into one segment (four times, divided by the pacing rate's
/// factor of two).
const AGGREGATE_BYTES: u32 = 128 << 10;

/// Typical payload in bytes, which converts [`AGGREGATE_BYTES`] to segments.
const TYPICAL_MSS: u32 = 1448;

/// State of CUBIC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cubic {
    epoch: Option<Epoch>,
    /// `W_max`; zero before the first loss.
    w_max: f64,
    delay_min: Option<Duration>,
    hystart: HyStart,
}

/// Window growth since the last loss.
#[derive(Clone, Debug)]
struct Epoch {
    started_at: Instant,
    /// Window at the plateau.
    origin: f64,
    /// Time in seconds until the plateau is reached.
    k: f64,
    /// `W_est`, the window that Reno would have, in segments.
    friendly: u32,
    /// Number of acknowledged segments that are not yet part of `friendly`.
    friendly_credit: u32,
    /// Time and window for which the growth rate was computed.
    paced: (Instant, u32),
    /// Number of acknowledged segments after which the window grows by one.
    per_increase: u32,
}

impl Cubic {
    pub(super) fn on_rtt_sample(&mut self, window: &mut Window, ack: &Ack, rtt: Duration) {
        if let Some(epoch) = &self.epoch
            && ack.now.since(epoch.started_at) < SETTLING
        {
            return;
        }
        let delay_min = self.delay_min.map_or(rtt, |min| min.min(rtt));
        self.delay_min = Some(delay_min);
        if window.is_slow_start() && window.cwnd >= LOW_WINDOW {
            let window_bytes = window.cwnd.saturating_mul(TYPICAL_MSS).max(1);
            let window_time = rtt.saturating_mul(AGGREGATE_BYTES) / window_bytes;
            if self
                .hystart
                .should_exit(ack.now, ack.una, ack.nxt, rtt, delay_min, window_time)
            {
                window.ssthresh = window.cwnd;
            }
        }
    }

    pub(super) fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        let left = window.slow_start(ack.acked_pkts);
        if left > 0 {
            let per_increase = self.acks_per_increase(ack.now, window.cwnd, left);
            window.additive_increase(per_increase, left);
        }
    }

    /// Returns the number of acknowledged segments after which the window grows by one.
    fn acks_per_increase(&mut self, now: Instant, cwnd: u32, acked_pkts: u32) -> u32 {
        let w_max = self.w_max;
        if let Some(epoch) = &mut self.epoch {
            epoch.friendly_credit = epoch.friendly_credit.saturating_add(acked_pkts);
            let (paced_at, paced_cwnd) = epoch.paced;
            if paced_cwnd == cwnd && now.since(paced_at) <= STANDING {
                return epoch.per_increase;
            }
        }
        let window = f64::from(cwnd);
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            started_at: now,
            origin: w_max.max(window),
            k: cube_root((w_max - window).max(0.0) / C),
            friendly: cwnd,
            friendly_credit: acked_pkts,
            paced: (now, cwnd),
            per_increase: 0,
        });
        epoch.paced = (now, cwnd);
        let ahead = self.delay_min.unwrap_or_default();
        let t = (now.since(epoch.started_at) + ahead).as_secs_f64() - epoch.k;
        let target = to_pkts(epoch.origin + (C * t * t * t).trunc());
        let mut per_increase = if target > cwnd {
            cwnd / (target - cwnd)
        } else {
            cwnd.saturating_mul(100)
        };
        if w_max == 0.0 {
            per_increase = per_increase.min(20);
        }
        let per_friendly = (cwnd.saturating_mul(FRIENDLY_EIGHTHS) / 8).max(1);
        // As in Linux, steps are subtracted while more than one step remains.
        let steps = epoch.friendly_credit.saturating_sub(1) / per_friendly;
        epoch.friendly = epoch.friendly.saturating_add(steps);
        epoch.friendly_credit -= steps * per_friendly;
        if epoch.friendly > cwnd {
            per_increase = per_increase.min(cwnd / (epoch.friendly - cwnd));
        }
        epoch.per_increase = per_increase.max(2);
        epoch.per_increase
    }

    pub(super) fn ssthresh(&mut self, window: &Window) -> u32 {
        let cwnd = f64::from(window.cwnd);
        self.epoch = None;
        // Fast convergence, section 4.7.
        self.w_max = if cwnd < self.w_max {
            (cwnd * (1.0 + BETA) / 2.0).trunc()
        } else {
            cwnd
        };
        to_pkts(cwnd * BETA).max(MIN_SSTHRESH)
    }

    pub(super) fn on_timeout(&mut self, now: Instant, nxt: u64) {
        *self = Self::default();
        self.hystart.start_round(now, nxt);
    }

    /// Excludes idle time from window growth, section 5.8.
    pub(super) fn on_idle(&mut self, now: Instant, idle: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.started_at = (epoch.started_at + idle).min(now);
        }
    }
}

/// Returns a finite, positive window in whole segments.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, which is meant"
)]
fn to_pkts(window: f64) -> u32 {
    window as u32
}

/// Returns the cube root of `x` ≥ 0, computed by Newton's method; `f64::cbrt` may differ between platforms.
pub(crate) fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = x.max(1.0);
    // From above, each step reduces the value by at most a third until it is near the root, then converges
    // quadratically.
    for _ in 0..200 {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(now: Instant) -> Ack {
        Ack {
            now,
            acked_pkts: 1,
            una: 0,
            nxt: 0,
        }
    }

    #[test]
    fn cube_root_is_one() {
        for x in [1e-6_f64, 0.3, 1.0, 27.0, 1e6, 1e12] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn follows_the_cubic_function_of_section_4_2() {
        // W_max = 2000 and a window of 1400 after the loss give K = cbrt(600 / 0.4) = 11.45 s. The RTT is 100 ms.
        let rtt = Duration::from_millis(100);
        let mut cubic = Cubic {
            delay_min: Some(rtt),
            ..Cubic::default()
        };
        let mut window = Window::new(2_000);
        window.ssthresh = cubic.ssthresh(&window);
        window.cwnd = window.ssthresh;
        assert_eq!(window.cwnd, 1_400);
        let k = cube_root(600.0 / C);
        let mut now = Instant::ZERO;
        for _ in 0..150 {
            for _ in 0..window.cwnd {
                cubic.on_ack(&mut window, &ack(now));
            }
            now += rtt;
            let t = now.since(Instant::ZERO).as_secs_f64() - k;
            let expected = 2_000.0 + C * t * t * t;
            let error = f64::from(window.cwnd) - expected;
            assert!(error.abs() < 25.0, "{now:?} {} {expected}", window.cwnd);
        }
    }

    #[test]
    fn grows_no_slower_than_reno_with_its_decrease() {
        // With a short RTT, section 4.3 applies with alpha = 0.53 segments per round.
        let mut cubic = Cubic::default();
        let mut window = Window::new(20);
        window.ssthresh = cubic.ssthresh(&window);
        window.cwnd = window.ssthresh;
        let start = window.cwnd;
        for round in 0..40 {
            for _ in 0..window.cwnd {
                cubic.on_ack(&mut window, &ack(Instant::from_millis(round)));
            }
        }
        let grown = f64::from(window.cwnd - start);
        assert!((18.0..=23.0).contains(&grown), "{grown}");
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.ssthresh(&Window::new(100)), 70);
        assert_eq!(cubic.w_max, 100.0);
        assert_eq!(cubic.ssthresh(&Window::new(80)), 56);
        assert_eq!(cubic.w_max, (80.0 * (1.0 + BETA) / 2.0).trunc());
    }

    #[test]
    fn grows_at_most_by_half_a_window_a_round() {
        let mut cubic = Cubic::default();
        let mut window = Window::new(100);
        window.ssthresh = cubic.ssthresh(&window);
        cubic.on_ack(&mut window, &ack(Instant::ZERO));
        let per_increase = cubic.acks_per_increase(Instant::from_millis(60_000), 70, 1);
        assert_eq!(per_increase, 2);
    }
}
