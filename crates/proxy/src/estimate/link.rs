//! What a link carries, seen from the bytes of the connections on it, and how far and lossy it is.
//!
//! Bytes are counted in windows of a quarter of a second, per direction. A window says what the link carries only if
//! something used it to the full: a *bulk* connection, which moved bytes through this window and the one before and
//! was not held up by the client; or a *crowd*, connections that are kept waiting ([`crate::placer`]). What a window shows
//! is a lower bound, so the estimate rises at once, to the lesser of two windows, against bursts. A first estimate takes a
//! second of bulk, or half of one with a crowd: what a transfer shows while it begins is far below the link, and would keep others away from it. An
//! estimate falls slowly, because the server may be what is slow: with a time constant of 5 s
//! if two or more bulk connections shared the window, of 60 s for a single one; not at all in the first window of such use, for
//! the one before, which it is held against, is one in which that was still beginning, nor while the proxy itself bounds what comes ([`crate::window`]). A link without bulk keeps its estimate;
//! [`RateEstimator::rate`] says how old it is, and the placer grows more hopeful with time, so that a link that was once
//! bad is tried again.
//!
//! Round trip and loss come from TCP's own account of the live connections (`TCP_INFO`). Differs from the paper, which
//! probes remote servers all the time.

use core::time::Duration;

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

/// One direction of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload.
    pub bytes: u64,
    /// Bulk connections.
    pub bulk: u32,
    /// Whether many connections were kept waiting, each of which may have moved little.
    pub has_crowd: bool,
    /// Whether receive windows ([`crate::window`]) may have kept it from being more.
    pub is_bound: bool,
}

/// What TCP says of a connection since it was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSample {
    /// Its smoothed round trip.
    pub rtt: Duration,
    /// Its shortest round trip.
    pub min_rtt: Duration,
    /// Segments sent.
    pub segments: u32,
    /// Segments sent again.
    pub retransmitted: u32,
}

/// Estimates of one link.
#[derive(Clone, Debug, Default)]
pub struct LinkEstimator {
    /// To servers.
    pub up: RateEstimator,
    /// From servers.
    pub down: RateEstimator,
    rtt: Option<Duration>,
    min_rtt: Option<Duration>,
    segments: u64,
    retransmitted: u64,
}

/// What one direction of a link has shown since something first came over it; begins anew after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beginning {
    /// When the first bytes were seen, which had come before, and the last.
    times: Option<(Instant, Instant)>,
    /// Those between.
    bytes: u64,
}

/// The rate of one direction.
#[derive(Clone, Debug, Default)]
pub struct RateEstimator {
    rate: Option<Bitrate>,
    /// While there is no estimate: the most that was shown so far, and what counts of windows with bulk in a row.
    shown: Bitrate,
    bulk_windows: u32,
    last: Bitrate,
    /// Whether the last window had bulk or a crowd.
    was_used: bool,
    proven_at: Instant,
}

impl LinkEstimator {
    /// Notes what TCP said.
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

    /// Smoothed round trip to the servers in use; `None` before the first connection.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// The shortest round trip of late, to the nearest of the servers in use: what the link itself adds, and no queue; `None`
    /// before the first connection.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt
    }

    /// Whether so much is lost that it is the link's doing, and not that of connections which fill it.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.loss() >= LOSSY
    }

    /// What a single connection gets at most on a link that loses packets by itself; `None`: it does not, or no round trip is
    /// known. Mathis et al., "The macroscopic behavior of the TCP congestion avoidance algorithm" (1997): a segment, by the
    /// round trip, by the root of two thirds of the loss.
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

    /// Segments sent again of the last thousands sent, as a fraction.
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
    /// Notes that `bytes` more were seen `now`.
    pub fn on_bytes(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match &mut self.times {
            Some((first_at, last_at)) if now.since(*last_at) <= PAUSE => {
                *last_at = now;
                // What several connections are seen to have moved at first came before, too.
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

    /// Leaves out the time from the last bytes until `now`: nobody wanted anything.
    pub fn skip(&mut self, now: Instant) {
        if let Some((first_at, last_at)) = &mut self.times
            && now.since(*last_at) <= PAUSE
        {
            *first_at += now.since(*last_at);
            *last_at = now;
        }
    }

    /// The mean rate so far; `None` but from `FIRST_STEPS` to `LAST_STEPS` after the first byte: what an estimate has not come
    /// of by then trickles, which says nothing.
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
    /// Notes a window of `length` that ended `now`.
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
                // Who has been kept waiting is not about to begin, but may just have got the last it wanted.
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
            // This and the one before are mostly of somebody who was beginning, which bears out nothing either.
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

    /// The rate and when a window last bore it out; `None` if no window ever said anything.
    #[must_use]
    pub fn rate(&self) -> Option<(Bitrate, Instant)> {
        self.rate.map(|rate| (rate, self.proven_at))
    }

    /// What two windows in a row have shown it to carry at least; zero where there is an estimate.
    #[must_use]
    pub fn least(&self) -> Bitrate {
        if self.rate.is_some() {
            Bitrate::ZERO
        } else {
            self.shown
        }
    }

    /// Takes `rate` as known from an earlier run.
    pub fn restore(&mut self, now: Instant, rate: Bitrate) {
        if rate > Bitrate::ZERO {
            self.rate = Some(rate);
            self.proven_at = now;
        }
    }
}

/// After so long without a byte a link's beginning is forgotten.
const PAUSE: Duration = Duration::from_millis(500);
/// Some round trips: before, it is hardly more than how far the servers are.
const FIRST_STEPS: Duration = Duration::from_millis(150);
const LAST_STEPS: Duration = Duration::from_secs(3);
/// So many windows with bulk in a row make a first estimate: a second, several round trips of slow start on most links.
const FIRST_WINDOWS: u32 = 4;
/// Falls to a third of the way in this time while several connections fill the link.
const SHARED_MEMORY: Duration = Duration::from_secs(5);
/// The same while one does, which may be its server's doing.
const SINGLE_MEMORY: Duration = Duration::from_secs(60);
/// The shortest round trip grows by so little a sample, of which a page makes a hundred.
const MIN_RTT_MEMORY: u32 = 512;
/// Loss is that of about this many segments.
const LOSS_MEMORY_SEGMENTS: u64 = 20_000;

/// Connections that fill a link lose less, but for very short queues.
const LOSSY: f64 = 0.02;
/// 1460 bytes.
const SEGMENT_BITS: f64 = 11_680.0;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(250);

    /// Feeds a window of `mbps` that is otherwise like `traffic`, and moves `now` to its end.
    fn window(estimator: &mut RateEstimator, now: &mut Instant, mbps: u64, traffic: Traffic) {
        *now += WINDOW;
        let bytes = Bitrate::from_mbps(mbps).bytes_in(WINDOW).get();
        estimator.on_window(*now, Traffic { bytes, ..traffic }, WINDOW);
    }

    /// What comes while connections are kept waiting, or not.
    fn crowd(has_crowd: bool) -> Traffic {
        Traffic {
            has_crowd,
            ..Traffic::default()
        }
    }

    /// Feeds windows of `mbps` with `bulk` connections; returns the time after.
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
        // What begins is slow, and says nothing of the link.
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
        // A page ends: what its last window shows is no rate of the link, but it has shown more before.
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
        // Two connections are seen for the first time; who knows since when they move.
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
        // A second's half in which nobody wanted anything.
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
        // 11 680 bit in 100 ms, by the root of 0.04.
        assert_eq!(of(60, 100), Some(584));
        assert_eq!(of(60, 50), Some(1168));
        assert_eq!(
            (of(19, 100), of(0, 100)),
            (None, None),
            "no more than congestion"
        );
    }
}
