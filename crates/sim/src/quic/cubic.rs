//! CUBIC in bytes as in quinn: RFC 8312 with the fast convergence of RFC 9438, without `HyStart`.
//!
//! It differs from the TCP model ([`crate::tcp`]), which follows Linux, in three ways. The target depends on the time
//! since the last reduction, not on epochs. Reno's window grows with time, not with acknowledgements. A reduction
//! covers all packets that were sent before it.

use core::time::Duration;

use pleach_core::time::Instant;

use crate::tcp::cube_root;

/// Multiplicative decrease.
const BETA: f64 = 0.7;

/// Scaling constant in packets per second cubed.
const C: f64 = 0.4;

/// Initial window in bytes: ten packets of 1200 bytes.
const INITIAL_WINDOW: u64 = 12_000;

/// State of CUBIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    window: u64,
    ssthresh: u64,
    /// Length of a packet in bytes.
    packet: u64,
    /// Time of the last reduction. Losses of packets sent before it do not reduce the window again.
    reduced_at: Option<Instant>,
    /// Time in seconds until the plateau, and height of the plateau in bytes.
    k: f64,
    w_max: f64,
    /// Growth in bytes that does not yet amount to a packet.
    credit: u64,
}

impl Cubic {
    pub(super) fn new(packet: u64) -> Self {
        Self {
            window: INITIAL_WINDOW,
            ssthresh: u64::MAX,
            packet: packet.max(1),
            reduced_at: None,
            k: 0.0,
            w_max: 0.0,
            credit: 0,
        }
    }

    /// Returns the congestion window in bytes.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Called when a packet of `bytes`, sent at `sent_at`, is delivered.
    pub(super) fn on_ack(&mut self, now: Instant, sent_at: Instant, bytes: u64, rtt: Duration) {
        if self.reduced_at.is_some_and(|at| sent_at <= at) {
            return;
        }
        if self.window < self.ssthresh {
            self.window += bytes;
            return;
        }
        let began_at = *self.reduced_at.get_or_insert_with(|| {
            self.w_max = to_f64(self.window);
            self.k = 0.0;
            now
        });
        let t = now.since(began_at).as_secs_f64();
        let packet = to_f64(self.packet);
        let w_max = self.w_max / packet;
        let rtt = rtt.as_secs_f64().max(1e-6);
        let ahead = t + rtt - self.k;
        let w_cubic = (C * ahead * ahead * ahead + w_max) * packet;
        let w_reno = (w_max * BETA + 3.0 * (1.0 - BETA) / (1.0 + BETA) * t / rtt) * packet;
        let mut target = self.window;
        if w_cubic < w_reno {
            target = target.max(to_bytes(w_reno));
        } else if target < to_bytes(w_cubic) {
            let window = to_f64(target);
            target = target.saturating_add(to_bytes((w_cubic - window) / window * packet));
        }
        self.credit = self.credit.saturating_add(target - self.window);
        if self.credit >= self.packet {
            self.window += self.packet;
            self.credit = 0;
        }
    }

    /// Called when a packet sent at `sent_at` is lost. `false`: the loss belongs to the previous episode.
    pub(super) fn on_loss(&mut self, now: Instant, sent_at: Instant, is_persistent: bool) -> bool {
        if self.reduced_at.is_some_and(|at| sent_at <= at) {
            return false;
        }
        self.reduced_at = Some(now);
        let window = to_f64(self.window);
        self.w_max = if window < self.w_max {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.ssthresh = to_bytes(window * BETA).max(2 * self.packet);
        self.window = self.ssthresh;
        self.k = cube_root(self.w_max / to_f64(self.packet) * (1.0 - BETA) / C);
        self.credit = to_bytes(to_f64(self.credit) * BETA);
        if is_persistent {
            self.reduced_at = None;
            self.w_max = to_f64(self.window);
            self.ssthresh = to_bytes(self.w_max * BETA).max(2 * self.packet);
            self.credit = 0;
            self.window = 2 * self.packet;
        }
        true
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a window needs no more than 53 bits"
)]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, which is meant"
)]
fn to_bytes(window: f64) -> u64 {
    window as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn doubles_then_returns_to_the_plateau_in_k_seconds() {
        let mut cubic = Cubic::new(1_000);
        let mut now = Instant::from_millis(1_000);
        cubic.window = 1_000_000;
        assert!(cubic.on_loss(now, now, false));
        assert_eq!(cubic.window(), 700_000);
        // K = cbrt(1000 · 0.3 / 0.4) = 9.09 s.
        for _ in 0..90 {
            now += RTT;
            for _ in 0..cubic.window() / 1_000 {
                cubic.on_ack(now, now, 1_000, RTT);
            }
        }
        assert!(cubic.window().abs_diff(1_000_000) < 20_000, "{cubic:?}");
    }

    #[test]
    fn one_episode_reduces_once() {
        let mut cubic = Cubic::new(1_000);
        let now = Instant::from_millis(500);
        assert!(cubic.on_loss(now, Instant::from_millis(400), false));
        assert!(!cubic.on_loss(now, Instant::from_millis(450), false));
        assert_eq!(cubic.window(), 8_400);
        cubic.on_ack(now, Instant::from_millis(450), 1_000, RTT);
        assert_eq!(cubic.window(), 8_400);
    }
}
