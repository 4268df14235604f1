//! Estimates of a link's capacity, from the bytes of the connections over the link, and of its RTT and loss.
//!
//! Bytes are counted per direction in windows of 250 ms. The throughput of a window shows the link's capacity only if
//! the link was saturated. A link counts as saturated in two cases:
//!
//! - A *bulk* connection used it. Such a connection moved many bytes in this window and the one before, and was not
//!   limited by the client.
//! - A *crowd* used it: many connections that wait for the link ([`crate::placer`]).
//!
//! The throughput of a window is a lower bound of the capacity:
//!
//! - The estimate rises immediately, to the lower of the throughputs of two consecutive windows. The minimum of two
//!   windows filters bursts.
//! - A first estimate requires 1 s of bulk traffic, or 0.5 s with a crowd. The throughput of a transfer in its start-up
//!   phase is far below the capacity, and would keep other connections away from the link.
//! - The estimate falls slowly, because the server may be the bottleneck. The time constant is 5 s if several bulk
//!   connections or a crowd used the window, and 60 s for a single bulk connection.
//! - The estimate does not fall in the first window of bulk or crowd traffic, because the transfer was still in its
//!   start-up phase in the window before.
//! - The estimate does not fall while the proxy itself limits the received data ([`crate::window`]).
//!
//! A link without bulk traffic keeps its estimate. [`RateEstimator::rate`] returns the time of the last confirmation.
//! The placer raises an old estimate with time, so that a link that was once slow is tried again.
//!
//! RTT and loss are taken from the kernel's statistics of the existing TCP connections (`TCP_INFO`). The paper instead
//! probes remote servers all the time.

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Traffic of one window in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of payload bytes.
    pub bytes: u64,
    /// Number of bulk connections.
    pub bulk: u32,
    /// Whether many connections waited for the link, even if each of them moved few bytes.
    pub has_crowd: bool,
    /// Whether receive windows ([`crate::window`]) may have limited the traffic.
    pub is_bound: bool,
}

/// TCP's statistics of a connection since the previous sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSample {
    /// Smoothed RTT.
    pub rtt: Duration,
    /// Minimum RTT.
    pub min_rtt: Duration,
    /// Number of segments sent.
    pub segments: u32,
    /// Number of segments retransmitted.
    pub retransmitted: u32,
}

/// Estimates of one link.
#[derive(Clone, Debug, Default)]
pub struct LinkEstimator {
    /// Rate to servers.
    pub up: RateEstimator,
    /// Rate from servers.
    pub down: RateEstimator,
    rtt: Option<Duration>,
    min_rtt: Option<Duration>,
    segments: u64,
    retransmitted: u64,
}

/// Traffic of one direction of a link since its first byte. It is reset after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beginning {
    /// Times at which the first and the last bytes were reported. The bytes of the first report arrived before that
    /// time.
    times: Option<(Instant, Instant)>,
    /// Number of bytes reported after the first time.
    bytes: u64,
}

/// Estimate of the capacity in one direction.
#[derive(Clone, Debug, Default)]
pub struct RateEstimator {
    rate: Option<Bitrate>,
    /// Used as long as there is no estimate. `shown` is the highest throughput of two consecutive windows.
    /// `bulk_windows` is the number of consecutive windows with bulk traffic; a window with a crowd counts as several.
    shown: Bitrate,
    bulk_windows: u32,
    last: Bitrate,
    /// Whether the previous window had bulk traffic or a crowd.
    was_used: bool,
    proven_at: Instant,
}

impl LinkEstimator {
    /// Adds a sample of TCP's statistics.
    pub fn on_tcp(&mut self, sample: TcpSample) {
        self.rtt = Some(match self.rtt {
            None => sample.rtt,
            Some(rtt) => (rtt * 7 + sample.rtt) / 8,
        });
        let forgotten = self.min_rtt.map(|rtt| rtt + rtt / MIN_RTT_MEMORY);
        let least = forgotten.map_or(sample.min_rtt, |rtt| rtt.min(sample.min_rtt));
        self.min_rtt = Some(least);
        self.segments += u64::from(sample.segments);
        self.retransmitted += u64::from(sample.retransmitted);
        if self.segments > LOSS_MEMORY_SEGMENTS {
            self.segments /= 2;
            self.retransmitted /= 2;
        }
    }

    /// Returns the smoothed RTT to the servers in use. `None` before the first connection.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Returns the recent minimum RTT to the nearest of the servers in use. This is the delay of the link without a
    /// queue. `None` before the first connection.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    /// Whether so many packets are lost that the link itself is the cause, not congestion by the connections over it.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.loss() >= LOSSY
    }

    /// Returns the maximum throughput of a single connection over a link that loses packets by itself. `None` if the
    /// link does not lose packets by itself or if no RTT is known. The formula is that of Mathis et al., "The
    /// macroscopic behavior of the TCP congestion avoidance algorithm" (1997): segment size / (RTT × √(loss × 2/3)).
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and saturating"
    )]
    pub fn single(&self) -> Option<Bitrate> {
        let rtt = self.min_rtt.filter(|rtt| *rtt > Duration::ZERO)?;
        let bits = SEGMENT_BITS / (rtt.as_secs_f64() * (self.loss() * 2.0 / 3.0).sqrt());
        self.is_lossy()
            .then(|| Bitrate::from_bps(bits.round() as u64))
    }

    /// Returns the fraction of recently sent segments that were retransmissions.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "both are small")]
    pub fn loss(&self) -> f64 {
        if self.segments == 0 {
            return 0.0;
        }
        (self.retransmitted as f64 / self.segments as f64).min(1.0)
    }
}

impl Beginning {
    /// Adds `bytes` that were observed at `now`.
    pub fn on_bytes(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match &mut self.times {
            Some((first_at, last_at)) if now.since(*last_at) <= PAUSE => {
                *last_at = now;
                // If several connections report bytes at the first time, all these bytes arrived before it.
                if now > *first_at {
                    self.bytes += bytes;
                }
            }
            times => {
                *times = Some((now, now));
                self.bytes = 0;
            }
        }
    }

    /// Excludes the time from the last bytes until `now`, because the link was idle.
    pub fn skip(&mut self, now: Instant) {
        if let Some((first_at, last_at)) = &mut self.times
            && now.since(*last_at) <= PAUSE
        {
            *first_at += now.since(*last_at);
            *last_at = now;
        }
    }

    /// Returns the mean rate so far. `None` earlier than `FIRST_STEPS` or later than `LAST_STEPS` after the first byte.
    /// If there is still no estimate after `LAST_STEPS`, the traffic is too little to show the link's capacity.
    #[must_use]
    pub fn rate(&self) -> Option<Bitrate> {
        let (first_at, last_at) = self.times?;
        let length = last_at.since(first_at);
        if !(FIRST_STEPS..=LAST_STEPS).contains(&length) {
            return None;
        }
        Bitrate::from_transfer(Bytes::new(self.bytes), length)
    }
}

impl RateEstimator {
    /// Adds the traffic of a window of `length` that ended at `now`.
    pub fn on_window(&mut self, now: Instant, traffic: Traffic, length: Duration) {
        let Some(sample) = Bitrate::from_transfer(Bytes::new(traffic.bytes), length) else {
            return;
        };
        let (low, high) = (sample.min(self.last), sample.max(self.last));
        self.last = sample;
        let is_used = traffic.bulk > 0 || traffic.has_crowd;
        let was_used = core::mem::replace(&mut self.was_used, is_used);
        let Some(rate) = self.rate else {
            self.shown = self.shown.max(low);
            if is_used && low > Bitrate::ZERO {
                // A waiting connection is past its start-up phase, but may have just received its last bytes.
                self.bulk_windows += if traffic.has_crowd {
                    FIRST_WINDOWS / 2
                } else {
                    1
                };
                if self.bulk_windows >= FIRST_WINDOWS {
                    self.rate = Some(self.shown);
                    self.proven_at = now;
                }
            } else {
                self.bulk_windows = 0;
            }
            return;
        };
        if low >= rate {
            self.rate = Some(low);
            self.proven_at = now;
        } else if is_used {
            // Most of the traffic of this window and the one before belongs to a transfer in its start-up phase. It
            // does not confirm the estimate either.
            if !was_used {
                return;
            }
            self.proven_at = now;
            let memory = if traffic.bulk > 1 || traffic.has_crowd {
                SHARED_MEMORY
            } else {
                SINGLE_MEMORY
            };
            if traffic.is_bound {
                return;
            }
            let above = rate.as_bps().saturating_sub(high.as_bps());
            let step = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            let memory = u64::try_from(memory.as_millis()).unwrap_or(u64::MAX);
            let fall = Bitrate::from_bps(above).scale(step.min(memory), memory);
            self.rate = Some(Bitrate::from_bps(
                rate.as_bps() - fall.as_bps().min(rate.as_bps()),
            ));
        }
    }

    /// Returns the estimate and the time at which a window last confirmed it. `None` if there is no estimate.
    #[must_use]
    pub fn rate(&self) -> Option<(Bitrate, Instant)> {
        self.rate.map(|rate| (rate, self.proven_at))
    }

    /// Returns a lower bound of the capacity: the highest throughput of two consecutive windows. Zero if there is an
    /// estimate.
    #[must_use]
    pub fn least(&self) -> Bitrate {
        if self.rate.is_some() {
            Bitrate::ZERO
        } else {
            self.shown
        }
    }

    /// Sets the estimate to `rate`, which was stored by an earlier process.
    pub fn restore(&mut self, now: Instant, rate: Bitrate) {
        if rate > Bitrate::ZERO {
            self.rate = Some(rate);
            self.proven_at = now;
        }
    }
}

/// Duration without data after which a [`Beginning`] is reset.
const PAUSE: Duration = Duration::from_millis(500);
/// Minimum time after the first byte at which a [`Beginning`] has a rate: several RTTs. Before that time, the rate
/// mostly depends on the RTT to the servers.
const FIRST_STEPS: Duration = Duration::from_millis(150);
const LAST_STEPS: Duration = Duration::from_secs(3);
/// Number of consecutive windows with bulk traffic from which the first estimate is made. They take 1 s, which is
/// several RTTs of slow start on most links.
const FIRST_WINDOWS: u32 = 4;
/// Time constant with which the estimate falls while several connections saturate the link.
const SHARED_MEMORY: Duration = Duration::from_secs(5);
/// Time constant with which the estimate falls while a single connection saturates the link. It is long because the
/// connection's server may be the bottleneck.
const SINGLE_MEMORY: Duration = Duration::from_secs(60);
/// Divisor for the growth of the minimum RTT: with each sample it grows by 1/512 of itself, so that an outdated minimum
/// is replaced. A web page causes about a hundred samples.
const MIN_RTT_MEMORY: u32 = 512;
/// Number of segments at which the loss counters are halved, so that older segments count less.
const LOSS_MEMORY_SEGMENTS: u64 = 20_000;

/// Loss ratio from which packet loss is attributed to the link itself. Congestion causes less loss, except with very
/// short queues.
const LOSSY: f64 = 0.02;
/// Size of a segment in bits: 1460 bytes.
const SEGMENT_BITS: f64 = 11_680.0;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(250);

    /// Adds a window with the rate `mbps` and the other properties of `traffic`, and advances `now` to its end.
    fn window(estimator: &mut RateEstimator, now: &mut Instant, mbps: u64, traffic: Traffic) {
        *now += WINDOW;
        let bytes = Bitrate::from_mbps(mbps).bytes_in(WINDOW).get();
        estimator.on_window(*now, Traffic { bytes, ..traffic }, WINDOW);
    }

    /// Returns the traffic of a window with or without a crowd.
    fn crowd(has_crowd: bool) -> Traffic {
        Traffic {
            has_crowd,
            ..Traffic::default()
        }
    }

    /// Adds windows of `mbps` with `bulk` connections. Returns the time after the last window.
    fn feed(
        estimator: &mut RateEstimator,
        mut now: Instant,
        mbps: u64,
        bulk: u32,
        windows: u32,
    ) -> Instant {
        let traffic = Traffic {
            bulk,
            ..Traffic::default()
        };
        for _ in 0..windows {
            window(estimator, &mut now, mbps, traffic);
        }
        now
    }

    fn mbps(estimator: &RateEstimator) -> u64 {
        let rate = estimator.rate().expect("known").0;
        (rate.as_bps() + 500_000) / 1_000_000
    }

    #[test]
    fn rises_at_once_but_not_for_one_burst() {
        let mut estimator = RateEstimator::default();
        let now = feed(&mut estimator, Instant::ZERO, 20, 0, 8);
        assert_eq!(estimator.rate(), None, "little things prove nothing");
        // A transfer in its start-up phase is slow and does not show the link's capacity.
        let now = feed(&mut estimator, now, 1, 1, 3);
        assert_eq!(estimator.rate(), None);
        let now = feed(&mut estimator, now, 0, 0, 1);
        let now = feed(&mut estimator, now, 1, 1, 1);
        let now = feed(&mut estimator, now, 20, 1, 2);
        assert_eq!(estimator.rate(), None);
        let now = feed(&mut estimator, now, 20, 1, 2);
        assert_eq!(mbps(&estimator), 20);
        let now = feed(&mut estimator, now, 90, 1, 1);
        assert_eq!(mbps(&estimator), 20);
        feed(&mut estimator, now, 60, 1, 1);
        assert_eq!(mbps(&estimator), 60);
    }

    #[test]
    fn falls_fast_only_if_several_share_the_link() {
        let mut shared = RateEstimator::default();
        let now = feed(&mut shared, Instant::ZERO, 100, 2, 4);
        let mut single = shared.clone();
        feed(&mut shared, now, 10, 2, 4 * 10);
        assert!((20..26).contains(&mbps(&shared)), "{}", mbps(&shared));
        feed(&mut single, now, 10, 1, 4 * 10);
        assert!((84..88).contains(&mbps(&single)), "{}", mbps(&single));
        let mut idle = single.clone();
        feed(&mut idle, now, 0, 0, 4_000);
        assert_eq!(mbps(&idle), mbps(&single));
    }

    #[test]
    fn who_has_been_kept_waiting_shows_more_in_two_windows_than_in_one() {
        let mut estimator = RateEstimator::default();
        let mut now = Instant::ZERO;
        // The last window of a page does not show the link's capacity. Earlier windows have shown more.
        for (mbps, has_crowd) in [(5, false), (6, false), (1, true), (0, false)] {
            window(&mut estimator, &mut now, mbps, crowd(has_crowd));
        }
        assert_eq!(estimator.rate(), None);
        assert_eq!(estimator.least(), Bitrate::from_mbps(5));
        for _ in 0..3 {
            window(&mut estimator, &mut now, 2, crowd(true));
        }
        assert_eq!(mbps(&estimator), 5);
        assert_eq!(estimator.least(), Bitrate::ZERO);
    }

    #[test]
    fn pages_that_begin_do_not_make_a_link_slower() {
        let mut estimator = RateEstimator::default();
        let mut now = feed(&mut estimator, Instant::ZERO, 20, 2, 4);
        for _ in 0..40 {
            for (mbps, has_crowd) in [(1, false), (5, true), (20, true), (9, true)] {
                window(&mut estimator, &mut now, mbps, crowd(has_crowd));
            }
        }
        assert_eq!(mbps(&estimator), 20);
    }

    #[test]
    fn bursts_of_one_window_bear_out_nothing() {
        let mut estimator = RateEstimator::default();
        let mut now = feed(&mut estimator, Instant::ZERO, 20, 2, 6);
        let known_at = now;
        for _ in 0..2_000 {
            now = feed(&mut estimator, now, 0, 0, 1);
            now = feed(&mut estimator, now, 5, 2, 1);
        }
        let (rate, proven_at) = estimator.rate().expect("known");
        assert_eq!(rate, Bitrate::from_mbps(20));
        assert_eq!(proven_at, known_at, "it is to be tried again");
        now = feed(&mut estimator, now, 19, 2, 1);
        assert_eq!(estimator.rate().expect("known").1, now);
    }

    #[test]
    fn what_the_proxy_bounds_shows_no_less_than_a_link_carries() {
        let mut estimator = RateEstimator::default();
        let mut now = feed(&mut estimator, Instant::ZERO, 20, 2, 8);
        let bound = Traffic {
            bulk: 2,
            is_bound: true,
            ..Traffic::default()
        };
        for _ in 0..200 {
            window(&mut estimator, &mut now, 15, bound);
        }
        assert_eq!(mbps(&estimator), 20);
        feed(&mut estimator, now, 15, 2, 80);
        assert_eq!(mbps(&estimator), 15);
    }

    #[test]
    fn a_beginning_shows_what_came_after_the_first_byte_until_a_pause() {
        let at = Instant::from_millis;
        let mut beginning = Beginning::default();
        // Two connections report bytes for the first time. It is not known when they began to move these bytes.
        beginning.on_bytes(at(1000), 50_000);
        beginning.on_bytes(at(1000), 50_000);
        beginning.on_bytes(at(1100), 10_000);
        assert_eq!(beginning.rate(), None, "too early");
        beginning.on_bytes(at(1200), 10_000);
        beginning.on_bytes(at(1200), 5_000);
        beginning.on_bytes(at(1300), 0);
        assert_eq!(beginning.rate(), Some(Bitrate::from_mbps(1)));
        beginning.on_bytes(at(1900), 10_000);
        assert_eq!(beginning.rate(), None, "anew");
        for step in 1..=8 {
            beginning.on_bytes(at(1900 + step * 400), 1_000);
            assert_eq!(beginning.rate().is_some(), step <= 7, "a trickle");
        }
        // The link is idle for half a second.
        let mut beginning = Beginning::default();
        beginning.on_bytes(at(1000), 1);
        beginning.on_bytes(at(1100), 12_500);
        beginning.skip(at(1600));
        beginning.on_bytes(at(1700), 12_500);
        assert_eq!(beginning.rate(), Some(Bitrate::from_mbps(1)));
        beginning.skip(at(2300));
        beginning.on_bytes(at(2300), 12_500);
        assert_eq!(beginning.rate(), None, "too long");
    }

    #[test]
    fn loss_and_round_trip_follow_tcp() {
        let mut link = LinkEstimator::default();
        assert_eq!((link.rtt(), link.loss()), (None, 0.0));
        let sample = |rtt, retransmitted| TcpSample {
            rtt: Duration::from_millis(rtt),
            min_rtt: Duration::from_millis(rtt / 2),
            segments: 1000,
            retransmitted,
        };
        link.on_tcp(sample(80, 0));
        assert_eq!(link.rtt(), Some(Duration::from_millis(80)));
        assert_eq!(link.min_rtt(), Some(Duration::from_millis(40)));
        link.on_tcp(sample(0, 40));
        assert_eq!(link.rtt(), Some(Duration::from_millis(70)));
        assert!((link.loss() - 0.02).abs() < 1e-9);
        assert_eq!(link.single(), None, "no round trip");
        assert_eq!(link.min_rtt(), Some(Duration::ZERO));
        for _ in 0..100 {
            link.on_tcp(sample(10, 0));
        }
        assert!(link.loss() < 0.001);
    }

    #[test]
    fn a_lossy_link_bounds_what_one_connection_gets() {
        let of = |retransmitted, millis| {
            let mut link = LinkEstimator::default();
            link.on_tcp(TcpSample {
                rtt: Duration::from_millis(millis),
                min_rtt: Duration::from_millis(millis),
                segments: 1000,
                retransmitted,
            });
            link.single().map(|rate| rate.as_bps() / 1000)
        };
        // 11 680 bit / (100 ms × √0.04) = 584 kbit/s.
        assert_eq!(of(60, 100), Some(584));
        assert_eq!(of(60, 50), Some(1168));
        assert_eq!(
            (of(19, 100), of(0, 100)),
            (None, None),
            "no more than congestion"
        );
    }
}
