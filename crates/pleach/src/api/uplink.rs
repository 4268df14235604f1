//! The rate at which an encoder may send: the rate that the tunnel carries in the sending direction, so that a live
//! video does not fill its queue.
//!
//! For each sample, the rate is [`SHARE`] times the sum, over all links in use, of the capacity minus the part that is
//! lost. The result is the minimum of this rate and of the last [`MEMORY`] samples, which are at least a second apart. So
//! the result falls with the first sample in which a link fails, and rises only after [`MEMORY`] higher samples. This is
//! hysteresis without a threshold.
//!
//! When the health of a link changes, the hub samples sooner. Such a sample counts for the present result, but is not
//! stored: a link that was silent for a moment lowers the rate for this moment, not for ten seconds.
//!
//! Limits: the capacity of a link is measured only while the link carries much traffic. For a link that has carried
//! little traffic, the rate may be too low, but not too high. Samples are taken only while a client asks; an encoder
//! should ask once a second.

use std::collections::VecDeque;

use pleach_core::time::Instant;
use serde::Serialize;
use utoipa::ToSchema;

use super::hub::PERIOD;
use crate::{
    control::{LinkState, LinkStatus, StatusReport},
    reasons,
};

/// Rate, delay and loss that an encoder has to expect now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct Uplink {
    /// Rate at which an encoder may send, all its streams and headers together, in 10^6 bit/s; 0: no link is in use.
    pub(super) rate_mbps: f64,
    /// One-way delay to expect on the slowest link in use, in milliseconds: half its round-trip time plus its queue
    /// delay.
    pub(super) delay_ms: f64,
    /// Loss to expect without repair, a fraction from 0 to 1: mean over the links in use, weighted by capacity.
    pub(super) loss: f64,
    /// Whether the rate is the minimum of 10 samples; `false` while there are fewer samples.
    pub(super) settled: bool,
}

/// Computes [`Uplink`] from samples.
#[derive(Debug, Default)]
pub(super) struct UplinkMeter {
    /// The newest [`MEMORY`] rates, at least [`PERIOD`] apart.
    rates: VecDeque<f64>,
    stored_at: Option<Instant>,
}

impl UplinkMeter {
    /// Adds a sample taken at `now`. Returns `None` except for a client.
    pub(super) fn take(&mut self, now: Instant, status: &StatusReport) -> Option<Uplink> {
        if status.mode != "client" {
            return None;
        }
        let is_used = |link: &&LinkStatus| {
            let reason = link.idle_reason.as_deref();
            status.up
                && link.state == LinkState::Up
                && !reason.is_some_and(|word| LEFT_OUT.contains(&word))
        };
        let used = || status.links.iter().filter(is_used);
        let capacity = |link: &LinkStatus| link.capacity_mbps.unwrap_or(0.0);
        let carried = |link: &LinkStatus| capacity(link) * (1.0 - link.loss.clamp(0.0, 1.0));
        let total: f64 = used().map(capacity).sum();
        let delivered: f64 = used().map(carried).sum();
        let present = delivered * SHARE;
        if self.stored_at.is_none_or(|at| now.since(at) >= PERIOD) {
            self.stored_at = Some(now);
            if self.rates.len() == MEMORY {
                self.rates.pop_front();
            }
            self.rates.push_back(present);
        }
        let delay = |link: &LinkStatus| {
            link.rtt_ms.unwrap_or(0.0) / 2.0 + link.queue_delay_ms.unwrap_or(0.0)
        };
        Some(Uplink {
            rate_mbps: self.rates.iter().copied().fold(present, f64::min),
            delay_ms: used().map(delay).fold(0.0, f64::max),
            loss: if total > 0.0 {
                1.0 - delivered / total
            } else {
                0.0
            },
            settled: self.rates.len() == MEMORY,
        })
    }
}

/// Fraction of the carried rate at which an encoder may send. The reason: the rate of an encoder varies around its mean
/// by some ten percent.
const SHARE: f64 = 0.8;

/// Number of stored samples whose minimum is used: ten seconds.
const MEMORY: usize = 10;

/// Idle reasons of links that would carry nothing even if there were more to send.
const LEFT_OUT: [&str; 5] = [
    reasons::BUDGET,
    "never",
    "standby",
    "too-late-for-its-flows",
    "worth-too-little",
];

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn status(capacities: &[f64]) -> StatusReport {
        let link = |capacity: &f64| LinkStatus {
            state: LinkState::Up,
            capacity_mbps: Some(*capacity),
            rtt_ms: Some(20.0),
            ..LinkStatus::bare("l", "eth0")
        };
        StatusReport {
            mode: "client".to_owned(),
            up: true,
            links: capacities.iter().map(link).collect(),
            ..StatusReport::default()
        }
    }

    #[test]
    fn the_rate_falls_at_once_and_rises_after_ten_samples() {
        let mut meter = UplinkMeter::default();
        let mut now = Instant::ZERO;
        let mut rate = |meter: &mut UplinkMeter, capacities: &[f64]| {
            now += PERIOD;
            let uplink = meter.take(now, &status(capacities)).expect("a client");
            (uplink.rate_mbps, uplink.settled)
        };
        assert_eq!(rate(&mut meter, &[20.0, 10.0]), (24.0, false));
        assert_eq!(rate(&mut meter, &[20.0]), (16.0, false));
        for _ in 0..9 {
            assert_eq!(rate(&mut meter, &[20.0, 10.0]).0, 16.0);
        }
        assert_eq!(rate(&mut meter, &[20.0, 10.0]), (24.0, true));
    }

    #[test]
    fn a_link_that_is_silent_for_a_moment_lowers_the_rate_for_this_moment() {
        let mut meter = UplinkMeter::default();
        let mut rate = |after_ms: u64, capacities: &[f64]| {
            let now = Instant::ZERO + Duration::from_millis(after_ms);
            let uplink = meter.take(now, &status(capacities)).expect("a client");
            uplink.rate_mbps
        };
        assert_eq!(rate(0, &[20.0, 10.0]), 24.0);
        assert_eq!(rate(500, &[20.0]), 16.0);
        assert_eq!(rate(600, &[20.0, 10.0]), 24.0);
        assert_eq!(rate(1_600, &[20.0]), 16.0);
        assert_eq!(rate(1_700, &[20.0, 10.0]), 16.0, "stored");
    }

    #[test]
    fn links_that_carry_nothing_do_not_count() {
        let mut sample = status(&[20.0, 10.0, 5.0]);
        sample.links[0].loss = 0.1;
        sample.links[1].idle_reason = Some("too-late-for-its-flows".to_owned());
        sample.links[2].state = LinkState::Suspect;
        let uplink = UplinkMeter::default()
            .take(Instant::ZERO, &sample)
            .expect("a client");
        assert!((uplink.rate_mbps - 14.4).abs() < 1e-9 && (uplink.loss - 0.1).abs() < 1e-9);
        sample.up = false;
        let uplink = UplinkMeter::default()
            .take(Instant::ZERO, &sample)
            .expect("a client");
        assert_eq!((uplink.rate_mbps, uplink.loss), (0.0, 0.0));
        sample.mode = "proxy".to_owned();
        assert_eq!(UplinkMeter::default().take(Instant::ZERO, &sample), None);
    }
}
