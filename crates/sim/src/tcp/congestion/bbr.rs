//! BBR version 1: window and pacing follow a model of the path, not its losses.
//!
//! Source: Cardwell et al. 2016 (ACM Queue 14-5) and draft-cardwell-iccrg-bbr-congestion-control-00, as in Linux's
//! `tcp_bbr.c`. The model consists of the highest delivery rate of the last ten rounds and the smallest RTT of the last
//! ten seconds. The states are:
//!
//! - *Startup* doubles the rate per round until it grows by less than a quarter in three rounds.
//! - *Drain* empties the queue that startup has built.
//! - *Probe bandwidth* sends at 5/4 of the rate, then at 3/4, then six times at the rate itself, each for one RTT.
//! - *Probe RTT* reduces the data in flight to four segments for 200 ms when the smallest RTT is ten seconds old.
//!
//! The window limits the data in flight to twice the bandwidth-delay product plus the acknowledgements that arrive in
//! excess of the rate (aggregation). In the first round of a recovery as many segments are sent as are delivered.
//! Afterwards the window is restored.
//!
//! Differences from Linux: there is no long-term sampling (it detects token-bucket policers, which no emulated link
//! has). The first phase of the gain cycle depends on the number of delivered segments instead of chance. The maximum
//! is exact, not computed from three samples. Arithmetic is in floating point (only `+ - * /` and rounding, so that
//! every platform computes the same).

use core::time::Duration;

use pleach_core::time::Instant;

use super::{Delivery, Episode, Window};
use crate::tcp::pacer::Pacing;

/// Gain that doubles the rate each round: 2 / ln 2.
const HIGH_GAIN: f64 = 2.885;

/// Upper bound of the data in flight, in bandwidth-delay products.
const CWND_GAIN: f64 = 2.0;

/// Pacing gains of the cycle.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

/// Number of rounds for which a bandwidth sample is valid.
const BANDWIDTH_ROUNDS: usize = 10;

/// Time for which the smallest RTT is valid.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// Shortest duration of the RTT probe, which lasts at least one round.
const PROBE_RTT: Duration = Duration::from_millis(200);

/// Smallest window in segments.
const MIN_CWND: u32 = 4;

/// Growth per round below which the pipe may be full, and number of such rounds after which it is full.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;

/// Ratio of the pacing rate to the model's rate, below 1 so that rounding builds no queue.
const PACING_MARGIN: f64 = 0.99;

/// Window before the first RTT sample (RFC 6928), and RTT assumed then.
const INITIAL_CWND: u32 = 10;
const NOMINAL_RTT: Duration = Duration::from_millis(1);

/// Number of rounds in each of the two aggregation windows.
const EXTRA_ACKED_ROUNDS: u32 = 5;

/// Number of segments after which an aggregation epoch restarts.
const EPOCH_PKTS: u64 = 1 << 20;

/// Longest gap between acknowledgements that is compensated.
const EXTRA_ACKED_TIME: Duration = Duration::from_millis(100);

/// Rate in bytes per second below which a burst is one segment: 1.2 Mbit/s.
const SINGLE_BURST_RATE: u64 = 150_000;

/// Largest burst in bytes: a segmentation offload packet of 64 KiB without its headers.
const BURST_BYTES: u64 = (1 << 16) - 1 - 320;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

/// Maximum of the samples of the last [`BANDWIDTH_ROUNDS`] rounds up to the round of the newest sample. Samples expire
/// only when a new sample is added.
#[derive(Clone, Copy, Debug, Default)]
struct MaxFilter {
    /// Largest sample of each round, indexed by the round number.
    rounds: [f64; BANDWIDTH_ROUNDS + 1],
    newest: usize,
}

impl MaxFilter {
    fn add(&mut self, round: usize, sample: f64) {
        let passed = round.saturating_sub(self.newest).min(self.rounds.len());
        let len = self.rounds.len();
        for gone in 0..passed {
            self.rounds[round.saturating_sub(gone) % len] = 0.0;
        }
        self.newest = round;
        let largest = &mut self.rounds[round % len];
        *largest = largest.max(sample);
    }

    fn max(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }
}

/// State of BBR.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    mode: Mode,
    /// Delivery rates in segments per second.
    bandwidth: MaxFilter,
    /// Smallest RTT, and the time at which it was measured.
    min_rtt: Option<(Duration, Instant)>,
    /// RTT of the handshake, used until another sample is available (`bbr_init`).
    first_rtt: Option<Duration>,
    pacing_gain: f64,
    cwnd_gain: f64,
    /// Pacing rate in payload bytes per second.
    pacing_rate: u64,
    has_seen_rtt: bool,
    mss: u32,
    round: usize,
    /// Number of delivered segments at the end of the round: the round ends when a segment is delivered that was sent
    /// after this number was reached.
    round_end_pkts: u64,
    is_round_start: bool,
    full_bandwidth: f64,
    full_rounds: u32,
    is_pipe_full: bool,
    cycle_index: usize,
    cycle_at: Instant,
    /// End of the RTT probe. `None` until the queue is empty.
    probe_rtt_end: Option<Instant>,
    is_probe_round_done: bool,
    is_idle_restart: bool,
    /// Window that is restored after the probe or recovery.
    prior_cwnd: u32,
    episode: Episode,
    is_conserving: bool,
    aggregation: Aggregation,
}

/// Measures the segments acknowledged in excess of the bandwidth.
#[derive(Clone, Copy, Debug, Default)]
struct Aggregation {
    epoch_at: Instant,
    epoch_pkts: u64,
    /// Largest excess in the current window of rounds and in the previous one.
    excess_pkts: [u32; 2],
    index: usize,
    rounds: u32,
}

impl Bbr {
    pub(super) fn new(cwnd: u32, mss: u32, smoothed_rtt: Option<Duration>) -> Self {
        let mut bbr = Self {
            mode: Mode::default(),
            bandwidth: MaxFilter::default(),
            min_rtt: None,
            first_rtt: smoothed_rtt,
            pacing_gain: HIGH_GAIN,
            cwnd_gain: HIGH_GAIN,
            pacing_rate: 0,
            has_seen_rtt: false,
            mss,
            round: 0,
            round_end_pkts: 0,
            is_round_start: false,
            full_bandwidth: 0.0,
            full_rounds: 0,
            is_pipe_full: false,
            cycle_index: 0,
            cycle_at: Instant::ZERO,
            probe_rtt_end: None,
            is_probe_round_done: false,
            is_idle_restart: false,
            prior_cwnd: 0,
            episode: Episode::None,
            is_conserving: false,
            aggregation: Aggregation::default(),
        };
        bbr.init_pacing(cwnd, smoothed_rtt);
        bbr
    }

    /// Processes an acknowledgement: updates the model, then pacing and window.
    pub(super) fn on_delivery(&mut self, window: &mut Window, delivery: &Delivery) {
        self.update_bandwidth(delivery);
        self.update_aggregation(window, delivery);
        if self.mode == Mode::ProbeBandwidth && self.is_cycle_phase_over(delivery) {
            self.advance_cycle(delivery);
        }
        self.check_pipe(delivery);
        self.check_drain(window, delivery);
        self.update_min_rtt(window, delivery);
        (self.pacing_gain, self.cwnd_gain) = match self.mode {
            Mode::Startup => (HIGH_GAIN, HIGH_GAIN),
            Mode::Drain => (1.0 / HIGH_GAIN, HIGH_GAIN),
            Mode::ProbeBandwidth => (CYCLE[self.cycle_index % CYCLE.len()], CWND_GAIN),
            Mode::ProbeRtt => (1.0, 1.0),
        };
        if !self.has_seen_rtt && delivery.smoothed_rtt.is_some() {
            self.init_pacing(window.cwnd, delivery.smoothed_rtt);
        }
        self.set_pacing(self.pacing_gain);
        self.set_cwnd(window, delivery);
    }

    /// Returns the pacing of the next burst.
    pub(super) fn pacing(&self) -> Pacing {
        Pacing {
            bytes_per_s: self.pacing_rate,
            burst_pkts: self.burst_pkts(),
        }
    }

    /// Whether the RTT probe keeps the data in flight low.
    pub(super) fn is_probing_rtt(&self) -> bool {
        self.mode == Mode::ProbeRtt
    }

    /// Saves the window at the start of a recovery or loss episode.
    pub(super) fn save_cwnd(&mut self, window: &Window) {
        self.prior_cwnd = if self.episode == Episode::None && self.mode != Mode::ProbeRtt {
            window.cwnd
        } else {
            self.prior_cwnd.max(window.cwnd)
        };
    }

    /// Called when the retransmission timer has expired: the path may have changed.
    pub(super) fn on_timeout(&mut self) {
        self.episode = Episode::Loss;
        self.full_bandwidth = 0.0;
        self.is_round_start = true;
    }

    /// Called when the reduction proves unnecessary.
    pub(super) fn on_undo(&mut self) {
        self.full_bandwidth = 0.0;
        self.full_rounds = 0;
    }

    /// Called when sending resumes after the application had nothing to send.
    pub(super) fn on_restart(&mut self, now: Instant, window: &mut Window) {
        self.is_idle_restart = true;
        self.aggregation.epoch_at = now;
        self.aggregation.epoch_pkts = 0;
        match self.mode {
            Mode::ProbeBandwidth => self.set_pacing(1.0),
            Mode::ProbeRtt => self.end_probe_rtt(now, window, 0),
            Mode::Startup | Mode::Drain => {}
        }
    }

    fn update_bandwidth(&mut self, delivery: &Delivery) {
        self.is_round_start = false;
        let Some(sample) = delivery.sample.filter(|sample| !sample.interval.is_zero()) else {
            return;
        };
        if sample.prior_delivered_pkts >= self.round_end_pkts {
            self.round_end_pkts = delivery.delivered_pkts;
            self.is_round_start = true;
            self.is_conserving = false;
            self.round += 1;
        }
        let rate = pkts_to_f64(sample.delivered_pkts) / sample.interval.as_secs_f64();
        if !sample.is_app_limited || rate >= self.bandwidth.max() {
            self.bandwidth.add(self.round, rate);
        }
    }

    fn update_aggregation(&mut self, window: &Window, delivery: &Delivery) {
        if delivery.newly_delivered_pkts == 0 || delivery.sample.is_none() {
            return;
        }
        let bandwidth = self.bandwidth.max();
        let aggregation = &mut self.aggregation;
        if self.is_round_start {
            aggregation.rounds += 1;
            if aggregation.rounds >= EXTRA_ACKED_ROUNDS {
                aggregation.rounds = 0;
                aggregation.index = 1 - aggregation.index;
                aggregation.excess_pkts[aggregation.index] = 0;
            }
        }
        let epoch = delivery.delivered_at.since(aggregation.epoch_at);
        let mut expected = u64::from(to_pkts(bandwidth * epoch.as_secs_f64()));
        let newly = u64::from(delivery.newly_delivered_pkts);
        if aggregation.epoch_pkts <= expected || aggregation.epoch_pkts + newly >= EPOCH_PKTS {
            aggregation.epoch_pkts = 0;
            aggregation.epoch_at = delivery.delivered_at;
            expected = 0;
        }
        aggregation.epoch_pkts += newly;
        let excess = aggregation.epoch_pkts.saturating_sub(expected);
        let excess = u32::try_from(excess).unwrap_or(u32::MAX).min(window.cwnd);
        let largest = &mut aggregation.excess_pkts[aggregation.index];
        *largest = (*largest).max(excess);
    }

    fn is_cycle_phase_over(&self, delivery: &Delivery) -> bool {
        let min_rtt = self.min_rtt.map_or(Duration::ZERO, |(rtt, _)| rtt);
        let is_long = delivery.delivered_at.since(self.cycle_at) > min_rtt;
        let in_net = || self.in_net(delivery, delivery.prior_in_flight_pkts);
        if self.pacing_gain > 1.0 {
            // With a short RTT, the target is in flight only after more than one RTT. A loss shows that the path
            // cannot carry the target.
            is_long && (delivery.newly_lost_pkts > 0 || in_net() >= self.inflight(self.pacing_gain))
        } else if self.pacing_gain < 1.0 {
            is_long || in_net() <= self.inflight(1.0)
        } else {
            is_long
        }
    }

    fn advance_cycle(&mut self, delivery: &Delivery) {
        self.cycle_index = (self.cycle_index + 1) % CYCLE.len();
        self.cycle_at = delivery.delivered_at;
    }

    fn check_pipe(&mut self, delivery: &Delivery) {
        let is_app_limited = delivery.sample.is_some_and(|s| s.is_app_limited);
        if self.is_pipe_full || !self.is_round_start || is_app_limited {
            return;
        }
        let bandwidth = self.bandwidth.max();
        if bandwidth >= self.full_bandwidth * FULL_GROWTH {
            self.full_bandwidth = bandwidth;
            self.full_rounds = 0;
        } else {
            self.full_rounds += 1;
            self.is_pipe_full = self.full_rounds >= FULL_ROUNDS;
        }
    }

    fn check_drain(&mut self, window: &mut Window, delivery: &Delivery) {
        if self.mode == Mode::Startup && self.is_pipe_full {
            self.mode = Mode::Drain;
            window.ssthresh = self.inflight(1.0);
        }
        if self.mode == Mode::Drain
            && self.in_net(delivery, delivery.in_flight_pkts) <= self.inflight(1.0)
        {
            self.probe_bandwidth(delivery.delivered_pkts);
            self.cycle_at = delivery.delivered_at;
        }
    }

    /// Enters the cycle at any phase except the draining phase.
    fn probe_bandwidth(&mut self, delivered_pkts: u64) {
        self.mode = Mode::ProbeBandwidth;
        let skipped = usize::try_from(delivered_pkts % 7).unwrap_or(0);
        self.cycle_index = (CYCLE.len() - skipped) % CYCLE.len();
    }

    fn update_min_rtt(&mut self, window: &mut Window, delivery: &Delivery) {
        let now = delivery.now;
        if let Some(rtt) = self.first_rtt.take() {
            self.min_rtt = Some((rtt, now));
        }
        let is_expired = self
            .min_rtt
            .is_some_and(|(_, since)| now.since(since) > MIN_RTT_WINDOW);
        if let Some(rtt) = delivery.rtt
            && (is_expired || self.min_rtt.is_none_or(|(min, _)| rtt < min))
        {
            self.min_rtt = Some((rtt, now));
        }
        if is_expired && !self.is_idle_restart && self.mode != Mode::ProbeRtt {
            self.save_cwnd(window);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_end = None;
        }
        if self.mode == Mode::ProbeRtt {
            if self.probe_rtt_end.is_some() {
                self.is_probe_round_done |= self.is_round_start;
                if self.is_probe_round_done {
                    self.end_probe_rtt(now, window, delivery.delivered_pkts);
                }
            } else if delivery.in_flight_pkts <= MIN_CWND {
                self.probe_rtt_end = Some(now + PROBE_RTT);
                self.is_probe_round_done = false;
                self.round_end_pkts = delivery.delivered_pkts;
            }
        }
        if delivery.sample.is_some_and(|s| s.delivered_pkts > 0) {
            self.is_idle_restart = false;
        }
    }

    fn end_probe_rtt(&mut self, now: Instant, window: &mut Window, delivered_pkts: u64) {
        if self.probe_rtt_end.is_none_or(|end| now <= end) {
            return;
        }
        if let Some((_, since)) = &mut self.min_rtt {
            *since = now;
        }
        window.cwnd = window.cwnd.max(self.prior_cwnd);
        if self.is_pipe_full {
            self.probe_bandwidth(delivered_pkts);
            self.cycle_at = now;
        } else {
            self.mode = Mode::Startup;
        }
    }

    fn set_cwnd(&mut self, window: &mut Window, delivery: &Delivery) {
        let acked = delivery.newly_delivered_pkts;
        if acked > 0 && !self.recover_or_restore(window, delivery) {
            let target = self.bdp(self.cwnd_gain).saturating_add(self.extra_cwnd());
            let target = self.with_bursts(target);
            if self.is_pipe_full {
                window.cwnd = window.cwnd.saturating_add(acked).min(target);
            } else if window.cwnd < target || delivery.delivered_pkts < u64::from(INITIAL_CWND) {
                window.cwnd = window.cwnd.saturating_add(acked);
            }
            window.cwnd = window.cwnd.max(MIN_CWND);
        }
        if self.mode == Mode::ProbeRtt {
            window.cwnd = window.cwnd.min(MIN_CWND);
        }
    }

    /// Adapts the window to losses. `true`: as many segments may be sent as are delivered, and no more.
    fn recover_or_restore(&mut self, window: &mut Window, delivery: &Delivery) -> bool {
        let acked = delivery.newly_delivered_pkts;
        let conserved = delivery.in_flight_pkts.saturating_add(acked);
        window.cwnd = window.cwnd.saturating_sub(delivery.newly_lost_pkts).max(1);
        let before = core::mem::replace(&mut self.episode, delivery.episode);
        if delivery.episode == Episode::Recovery && before != Episode::Recovery {
            self.is_conserving = true;
            self.round_end_pkts = delivery.delivered_pkts;
            window.cwnd = conserved;
        } else if before != Episode::None && delivery.episode == Episode::None {
            window.cwnd = window.cwnd.max(self.prior_cwnd);
            self.is_conserving = false;
        }
        if self.is_conserving {
            window.cwnd = window.cwnd.max(conserved);
        }
        self.is_conserving
    }

    fn init_pacing(&mut self, cwnd: u32, smoothed_rtt: Option<Duration>) {
        self.has_seen_rtt = smoothed_rtt.is_some();
        let rtt = smoothed_rtt.unwrap_or(NOMINAL_RTT);
        let rtt = rtt.max(Duration::from_micros(1)).as_secs_f64();
        self.pacing_rate = self.rate(f64::from(cwnd) / rtt, HIGH_GAIN);
    }

    fn set_pacing(&mut self, gain: f64) {
        let rate = self.rate(self.bandwidth.max(), gain);
        if self.is_pipe_full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Returns the rate in bytes per second at which to send.
    fn rate(&self, pkts_per_s: f64, gain: f64) -> u64 {
        to_bytes(pkts_per_s * f64::from(self.mss) * gain * PACING_MARGIN)
    }

    /// Returns the number of segments in about a millisecond, the size of one of Linux's offload packets.
    fn burst_pkts(&self) -> u32 {
        let bytes = (self.pacing_rate >> 10).min(BURST_BYTES);
        let least = if self.pacing_rate < SINGLE_BURST_RATE {
            1
        } else {
            2
        };
        let pkts = u32::try_from(bytes / u64::from(self.mss.max(1))).unwrap_or(u32::MAX);
        pkts.max(least)
    }

    fn bdp(&self, gain: f64) -> u32 {
        match self.min_rtt {
            None => INITIAL_CWND,
            Some((rtt, _)) => to_pkts((self.bandwidth.max() * rtt.as_secs_f64() * gain).ceil()),
        }
    }

    /// Returns `pkts` plus an allowance for the bursts that both ends hold back.
    fn with_bursts(&self, pkts: u32) -> u32 {
        let pkts = pkts.saturating_add(3 * self.burst_pkts());
        let pkts = pkts.saturating_add(pkts % 2);
        let is_raising = self.mode == Mode::ProbeBandwidth && self.cycle_index == 0;
        pkts.saturating_add(if is_raising { 2 } else { 0 })
    }

    fn inflight(&self, gain: f64) -> u32 {
        self.with_bursts(self.bdp(gain))
    }

    /// Returns the segments in the network at the time the next burst is sent.
    fn in_net(&self, delivery: &Delivery, in_flight_pkts: u32) -> u32 {
        let wait = delivery.next_departure_at.since(delivery.now);
        let until_then = to_pkts(self.bandwidth.max() * wait.as_secs_f64());
        let raised = if self.pacing_gain > 1.0 {
            self.burst_pkts()
        } else {
            0
        };
        in_flight_pkts
            .saturating_add(raised)
            .saturating_sub(until_then)
    }

    fn extra_cwnd(&self) -> u32 {
        if !self.is_pipe_full {
            return 0;
        }
        let [a, b] = self.aggregation.excess_pkts;
        let most = to_pkts(self.bandwidth.max() * EXTRA_ACKED_TIME.as_secs_f64());
        a.max(b).min(most)
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a rate needs no more than 53 bits"
)]
fn pkts_to_f64(pkts: u64) -> f64 {
    pkts as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, which is meant"
)]
fn to_pkts(pkts: f64) -> u32 {
    pkts as u32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates, which is meant"
)]
fn to_bytes(bytes: f64) -> u64 {
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::rate::RateSample;

    const MS: Duration = Duration::from_millis(1);

    /// A path of 1000 segments per second and an RTT of 50 ms: each round has 50 segments.
    struct Path {
        bbr: Bbr,
        window: Window,
        now: Instant,
        delivered: u64,
    }

    impl Path {
        fn new() -> Self {
            Self {
                bbr: Bbr::new(10, 1_000, Some(50 * MS)),
                window: Window::new(10),
                now: Instant::from_millis(1_000),
                delivered: 0,
            }
        }

        /// Runs a round in which `pkts` are delivered with an RTT of `rtt` and `in_flight` remain.
        fn round(&mut self, pkts: u32, rtt: Duration, in_flight: u32) {
            self.now += rtt;
            let prior = self.delivered;
            self.delivered += u64::from(pkts);
            self.bbr.on_delivery(
                &mut self.window,
                &Delivery {
                    now: self.now,
                    sample: Some(RateSample {
                        delivered_pkts: pkts.into(),
                        interval: rtt,
                        prior_delivered_pkts: prior,
                        is_app_limited: false,
                    }),
                    newly_delivered_pkts: pkts,
                    newly_lost_pkts: 0,
                    delivered_pkts: self.delivered,
                    delivered_at: self.now,
                    prior_in_flight_pkts: in_flight,
                    in_flight_pkts: in_flight,
                    rtt: Some(rtt),
                    smoothed_rtt: Some(rtt),
                    episode: Episode::None,
                    next_departure_at: self.now,
                },
            );
        }
    }

    #[test]
    fn startup_ends_after_three_rounds_without_growth_and_drains() {
        let mut path = Path::new();
        for pkts in [10, 20, 40, 50, 50] {
            path.round(pkts, 50 * MS, 100);
            assert_eq!(path.bbr.mode, Mode::Startup);
        }
        // 50 is a quarter more than 40, so it counts as growth. These are the second and third rounds without growth.
        path.round(50, 50 * MS, 100);
        path.round(50, 50 * MS, 100);
        assert_eq!(path.bbr.mode, Mode::Drain);
        assert!(path.bbr.pacing().bytes_per_s < 400_000);
        path.round(50, 50 * MS, 50);
        assert_eq!(path.bbr.mode, Mode::ProbeBandwidth);
    }

    #[test]
    fn the_largest_is_forgotten_after_ten_rounds_with_samples() {
        let mut filter = MaxFilter::default();
        filter.add(1, 5.0);
        filter.add(11, 3.0);
        assert_eq!(filter.max(), 5.0);
        filter.add(12, 2.0);
        assert_eq!(filter.max(), 3.0);
        filter.add(100, 1.0);
        assert_eq!(filter.max(), 1.0);
    }

    #[test]
    fn the_window_is_twice_the_product_and_the_bursts() {
        let mut path = Path::new();
        for _ in 0..60 {
            path.round(50, 50 * MS, 50);
        }
        // The window is 2 · 50 plus three bursts of two. The excess of a whole round at once counts as aggregation.
        let excess = path.bbr.extra_cwnd();
        let expected = 100 + excess + 6;
        assert!(
            path.window.cwnd.abs_diff(expected) <= 3,
            "{:?}",
            path.window
        );
    }

    #[test]
    fn the_cycle_averages_to_the_rate() {
        assert_eq!(CYCLE.iter().sum::<f64>(), 8.0);
        let mut path = Path::new();
        (0..10).for_each(|_| path.round(50, 50 * MS, 50));
        let mut gains = Vec::new();
        for _ in 0..16 {
            path.round(50, 51 * MS, 70);
            gains.push(path.bbr.pacing_gain);
        }
        assert_eq!(gains.iter().sum::<f64>(), 16.0, "{gains:?}");
    }

    #[test]
    fn the_round_trip_is_probed_when_it_is_ten_seconds_old() {
        let mut path = Path::new();
        path.round(50, 50 * MS, 50);
        for _ in 0..190 {
            path.round(50, 52 * MS, 50);
            assert!(!path.bbr.is_probing_rtt());
        }
        (0..5).for_each(|_| path.round(50, 52 * MS, 50));
        assert!(path.bbr.is_probing_rtt());
        assert_eq!(path.window.cwnd, MIN_CWND);
        (0..6).for_each(|_| path.round(4, 50 * MS, 4));
        assert!(!path.bbr.is_probing_rtt());
        // The window is as before, except for the part that counted as aggregation.
        assert!(path.window.cwnd >= 100, "{:?}", path.window);
    }
}
