//! Delivery rate of a path.
//!
//! The receiver reports running totals with the timestamps of its newest packet. Two reports at least 40 ms and 16
//! packets apart make one delivery-rate sample: bytes over time (draft-ietf-ccwg-bbr section 4.1). The time is the
//! longer of the interval between the arrivals and the interval between the departures of the same packets. So
//! neither a burst that the radio delayed nor a burst that the sender sent is mistaken for capacity. The receiver's
//! own clock measures the arrivals, so delayed or lost reports do no harm.
//!
//! A sample is application-limited if the sender had nothing to send during part of it. Such a sample is only a lower
//! bound of the capacity; it can raise an estimate but not lower it. The estimates are the maximum of 2 s (only time in
//! which samples are not application-limited counts), a mean (weight 1/8), and the maximum of this mean over the last
//! 30 s.
//!
//! Bounds: ten reports are stored, at least 5 ms and two packets apart, so that one of them is always old enough to
//! start a sample.

use core::{cmp::Reverse, time::Duration};

use super::{train::Guess, window::WindowedMin};
use crate::{
    time::Instant,
    units::{Bitrate, Bytes},
};

mod estimator;

pub use estimator::{DeliveryRate, RateEstimator};

/// A receiver's running totals of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Bytes received since the session began.
    pub bytes: Bytes,
    /// Packets received since the session began.
    pub packets: u64,
    /// The sender's timestamp on the newest of these packets ([`Instant::wire_micros`]).
    pub tx_us: u32,
    /// The receiver's clock when the newest packet arrived.
    pub rx_us: u32,
}

/// One measurement of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes over time.
    pub rate: Bitrate,
    /// Whether the sample is application-limited: a lower bound, not the capacity.
    pub app_limited: bool,
}

/// The default estimator; see the head of the module.
#[derive(Clone, Debug)]
pub struct WindowedRate {
    /// Reports stored as starts of samples, oldest first.
    starts: [Delivered; STARTS],
    len: usize,
    last_report_at: Instant,
    /// The running total of packets when the sender was last application-limited.
    app_limited_at_packets: Option<u64>,
    latest: Option<RateSample>,
    max: WindowedMin<Reverse<Bitrate>>,
    /// A clock that runs only while samples are not application-limited, and when it last ran. The window of `max`
    /// uses this clock, so that the capacity is not forgotten during application-limited periods.
    busy: Instant,
    busy_at: Instant,
    smoothed: Option<Bitrate>,
    /// Whether the maximum is a packet train's guess that a longer train may correct.
    is_unsure: bool,
    /// The guess of a packet train, if it may be far too high.
    doubtful: Option<Bitrate>,
    /// Maximum of `smoothed` over [`PEAK_WINDOW`].
    peak: WindowedMin<Reverse<Bitrate>>,
}

impl Default for WindowedRate {
    fn default() -> Self {
        Self::new()
    }
}

impl WindowedRate {
    /// Creates an estimate without samples.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            starts: [Delivered {
                bytes: Bytes::ZERO,
                packets: 0,
                tx_us: 0,
                rx_us: 0,
            }; STARTS],
            len: 0,
            last_report_at: Instant::ZERO,
            app_limited_at_packets: None,
            latest: None,
            max: WindowedMin::new(MAX_WINDOW),
            busy: Instant::ZERO,
            busy_at: Instant::ZERO,
            smoothed: None,
            is_unsure: false,
            doubtful: None,
            peak: WindowedMin::new(PEAK_WINDOW),
        }
    }

    /// Minimum duration of a sample.
    #[must_use]
    pub const fn least_time(&self) -> Duration {
        MIN_TIME
    }

    /// Processes one report. `app_limited`: since the last report the path could have carried more, but the sender
    /// had nothing to send. Reports that are older than the newest one, or repeat it, are ignored.
    ///
    /// Returns the sample that ends with this report, if a stored report is old enough to start it.
    pub fn on_report(
        &mut self,
        now: Instant,
        delivered: Delivered,
        app_limited: bool,
    ) -> Option<RateSample> {
        if now.since(self.last_report_at) > MAX_SILENCE {
            self.len = 0;
        }
        if let Some(newest) = self.starts[..self.len].last()
            && !is_after(&delivered, newest)
        {
            return None;
        }
        self.last_report_at = now;
        if app_limited {
            self.app_limited_at_packets = Some(delivered.packets);
        }
        let sample = self.sample(&delivered);
        self.remember(delivered);
        let sample = sample?;
        self.latest = Some(sample);
        let max = self.max().unwrap_or(Bitrate::ZERO);
        if !sample.app_limited {
            self.busy += now.since(self.busy_at).min(MOST_BUSY);
            self.busy_at = now;
        }
        if !sample.app_limited || sample.rate >= max {
            self.max.insert(self.busy, Reverse(sample.rate));
        }
        let smoothed = self.smoothed.unwrap_or(Bitrate::ZERO);
        if smoothed == Bitrate::ZERO {
            self.smoothed = Some(sample.rate);
        } else if !sample.app_limited || sample.rate > smoothed {
            let [old, new] = [smoothed.as_bps(), sample.rate.as_bps()];
            self.smoothed = Some(Bitrate::from_bps(old - old / 8 + new / 8));
        }
        if let Some(smoothed) = self.smoothed {
            self.peak.insert(now, Reverse(smoothed));
        }
        Some(sample)
    }

    /// The maximum of [`smoothed`](Self::smoothed) over the last 30 s.
    #[must_use]
    pub fn peak(&self) -> Option<Bitrate> {
        self.peak.min().map(|Reverse(rate)| rate)
    }

    /// Makes the guess of a packet train the maximum, if it exceeds the present maximum. Larger samples replace the
    /// guess at once, other samples when it is 2 s old. Before the first sample a sure guess replaces an unsure one.
    /// (Later the train may have shared the path with data.) A doubtful guess is replaced when the path overflows.
    pub fn guess(&mut self, guess: &Guess) {
        if guess.is_sure && self.is_unsure && self.latest.is_none() {
            self.max = WindowedMin::new(MAX_WINDOW);
        }
        if self.max().is_none_or(|max| max < guess.rate) {
            self.is_unsure = !guess.is_sure;
            self.doubtful = guess.is_doubtful.then_some(guess.rate);
            self.max.insert(self.busy, Reverse(guess.rate));
        }
    }

    /// Whether [`Self::max`] is a doubtful guess.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.is_some() && self.max() == self.doubtful
    }

    /// Replaces a doubtful guess by `rate`, because the path overflowed while it delivered `rate`. Otherwise the
    /// guess would persist, because samples below it are considered application-limited.
    pub fn on_overflow(&mut self, rate: Bitrate) {
        if self.is_doubtful() && rate > Bitrate::ZERO {
            self.doubtful = None;
            self.max = WindowedMin::new(MAX_WINDOW);
            self.max.insert(self.busy, Reverse(rate));
        }
    }

    /// Forgets all samples except the newest, because the path has become slow.
    pub fn on_collapse(&mut self) {
        let latest = self.latest.map(|sample| sample.rate);
        self.max = WindowedMin::new(MAX_WINDOW);
        self.smoothed = latest;
        if let Some(latest) = latest {
            self.max.insert(self.busy, Reverse(latest));
        }
    }

    /// The newest sample; `None` before the first sample.
    #[must_use]
    pub const fn latest(&self) -> Option<RateSample> {
        self.latest
    }

    /// The maximum of the last 2 s, not counting time in which samples are application-limited; `None` without
    /// samples and guesses.
    #[must_use]
    pub fn max(&self) -> Option<Bitrate> {
        self.max.min().map(|Reverse(rate)| rate)
    }

    /// The mean of the samples, the newest weighing 1/8; `None` before the first sample. Application-limited samples
    /// count only if they raise the mean.
    #[must_use]
    pub const fn smoothed(&self) -> Option<Bitrate> {
        self.smoothed
    }

    fn sample(&self, end: &Delivered) -> Option<RateSample> {
        let is_before = |start: &&Delivered| {
            elapsed(start, end) >= MIN_TIME && end.packets - start.packets >= MIN_PACKETS
        };
        let starts = &self.starts[..self.len];
        let start = starts.iter().rev().find(is_before)?;
        Some(RateSample {
            rate: Bitrate::from_transfer(end.bytes - start.bytes, elapsed(start, end))?,
            app_limited: self.app_limited_at_packets > Some(start.packets),
        })
    }

    fn remember(&mut self, report: Delivered) {
        if let Some(newest) = self.starts[..self.len].last()
            && (elapsed(newest, &report) < MIN_TIME / START_SPACING
                || report.packets - newest.packets < MIN_PACKETS / u64::from(START_SPACING))
        {
            return;
        }
        if self.len == STARTS {
            self.starts.rotate_left(1);
            self.len -= 1;
        }
        self.starts[self.len] = report;
        self.len += 1;
    }
}

/// Whether `next` is a later report than `last`, by totals and by stamps.
fn is_after(next: &Delivered, last: &Delivered) -> bool {
    next.packets > last.packets
        && next.bytes >= last.bytes
        && next.rx_us.wrapping_sub(last.rx_us).cast_signed() >= 0
}

/// The longer of two intervals: between the arrivals, and between the departures, of the newest packets of two
/// reports.
fn elapsed(start: &Delivered, end: &Delivered) -> Duration {
    let arrival = end.rx_us.wrapping_sub(start.rx_us).cast_signed();
    let departure = end.tx_us.wrapping_sub(start.tx_us).cast_signed();
    let micros = u64::try_from(arrival.max(departure)).unwrap_or(0);
    Duration::from_micros(micros)
}

/// Minimum duration of a sample: radio schedulers and Wi-Fi aggregates deliver in bursts of up to 10 ms.
const MIN_TIME: Duration = Duration::from_millis(40);

/// Minimum number of packets in a sample. With a smaller number, one packet more or less is an error above 6 %.
const MIN_PACKETS: u64 = 16;

/// Minimum distance of stored reports, as a fraction of a sample: 1/8.
const START_SPACING: u32 = 8;

const STARTS: usize = START_SPACING as usize + 2;

/// Maximum time between two samples that the clock `busy` counts.
const MOST_BUSY: Duration = Duration::from_millis(100);

const MAX_WINDOW: Duration = Duration::from_secs(2);
/// Time for which the capacity before a slow-down is remembered: longer than passing a bridge, a curve, or the edge
/// of a radio cell takes.
const PEAK_WINDOW: Duration = Duration::from_secs(30);

/// Time without reports after which measuring starts again, because the timestamps may have wrapped.
const MAX_SILENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that carries 1250-byte packets, reported at a steady pace.
    struct Line {
        rate: WindowedRate,
        total: Delivered,
        now: Instant,
    }

    impl Line {
        fn new() -> Self {
            let total = Delivered {
                rx_us: u32::MAX - 30_000, // wraps during the test
                tx_us: 77,
                ..Delivered::default()
            };
            Self {
                rate: WindowedRate::new(),
                total,
                now: Instant::ZERO,
            }
        }

        /// Reports that `packets` packets have arrived over `time_us`.
        fn run(&mut self, packets: u64, time_us: u32, app_limited: bool) -> Option<RateSample> {
            self.now += Duration::from_micros(time_us.into());
            self.total.packets += packets;
            self.total.bytes += Bytes::new(packets * 1250);
            self.total.rx_us = self.total.rx_us.wrapping_add(time_us);
            self.total.tx_us = self.total.tx_us.wrapping_add(time_us);
            self.rate.on_report(self.now, self.total, app_limited)
        }
    }

    #[test]
    fn a_steady_line_measures_its_rate_after_the_first_window() {
        let mut line = Line::new();
        for report in 0..100 {
            let sample = line.run(5, 5_000, false); // 10 Mbit/s
            if report < 8 {
                assert_eq!(sample, None);
            } else {
                assert_eq!(sample.map(|s| s.rate), Some(Bitrate::from_mbps(10)));
            }
        }
        assert_eq!(line.rate.max(), Some(Bitrate::from_mbps(10)));
        assert_eq!(line.rate.smoothed(), Some(Bitrate::from_mbps(10)));
    }

    #[test]
    fn slow_lines_wait_for_sixteen_packets() {
        let mut line = Line::new();
        line.run(1, 100_000, false);
        for _ in 0..15 {
            assert_eq!(line.run(1, 100_000, false), None);
        }
        let sample = (0..2).find_map(|_| line.run(1, 100_000, false));
        assert_eq!(sample.map(|s| s.rate), Some(Bitrate::from_bps(100_000)));
    }

    #[test]
    fn a_step_of_the_rate_shows_whole_within_fifty_milliseconds() {
        let mut line = Line::new();
        for _ in 0..50 {
            line.run(1, 1_000, false);
        }
        // The rate doubles: within 50 ms the sample holds nothing of the old rate.
        for _ in 0..50 {
            line.run(2, 1_000, false);
        }
        let latest = line.rate.latest().map(|s| s.rate);
        assert_eq!(latest, Some(Bitrate::from_mbps(20)));
    }

    #[test]
    fn bursts_that_the_radio_held_back_are_no_capacity() {
        let mut line = Line::new();
        for _ in 0..20 {
            line.run(5, 5_000, false);
        }
        // 500 ms of packets arrive within 50 ms; their departures were 500 ms apart.
        for _ in 0..10 {
            line.now += Duration::from_millis(5);
            line.total.packets += 50;
            line.total.bytes += Bytes::new(50 * 1250);
            line.total.rx_us = line.total.rx_us.wrapping_add(5_000);
            line.total.tx_us = line.total.tx_us.wrapping_add(50_000);
            line.rate.on_report(line.now, line.total, false);
        }
        assert_eq!(line.rate.max(), Some(Bitrate::from_mbps(10)));
    }

    #[test]
    fn app_limited_samples_never_lower_the_estimates() {
        let mut line = Line::new();
        for _ in 0..20 {
            line.run(5, 5_000, false);
        }
        for _ in 0..2_000 {
            line.run(2, 5_000, true);
        }
        let latest = line.rate.latest().expect("samples");
        assert!(latest.app_limited && latest.rate == Bitrate::from_mbps(4));
        assert_eq!(line.rate.max(), Some(Bitrate::from_mbps(10)));
        assert_eq!(line.rate.smoothed(), Some(Bitrate::from_mbps(10)));
        // The path is saturated again, at the lower rate: the old maximum leaves the window.
        for _ in 0..500 {
            line.run(2, 5_000, false);
        }
        assert_eq!(line.rate.max(), Some(Bitrate::from_mbps(4)));
        assert!(!line.rate.latest().expect("samples").app_limited);
    }

    #[test]
    fn a_doubtful_guess_ends_when_the_path_overflows() {
        for (is_doubtful, max) in [(true, 18), (false, 49)] {
            let mut rate = WindowedRate::new();
            rate.guess(&Guess {
                rate: Bitrate::from_mbps(49),
                is_sure: false,
                is_doubtful,
            });
            rate.on_overflow(Bitrate::ZERO);
            assert_eq!(
                rate.max(),
                Some(Bitrate::from_mbps(49)),
                "nothing was measured"
            );
            rate.on_overflow(Bitrate::from_mbps(18));
            assert_eq!(rate.max(), Some(Bitrate::from_mbps(max)));
        }
    }

    #[test]
    fn a_sure_guess_replaces_one_that_is_not_but_nothing_measured() {
        let guess = |mbps, is_sure| Guess {
            rate: Bitrate::from_mbps(mbps),
            is_sure,
            is_doubtful: false,
        };
        let max_after = |mut rate: WindowedRate, guesses: &[Guess]| {
            guesses.iter().for_each(|guess| rate.guess(guess));
            rate.max()
        };
        for (guesses, max) in [
            ([guess(92, false), guess(15, false)], 92),
            ([guess(92, false), guess(15, true)], 15),
            ([guess(92, true), guess(15, true)], 92),
            ([guess(15, false), guess(92, false)], 92),
        ] {
            let max = Some(Bitrate::from_mbps(max));
            assert_eq!(max_after(WindowedRate::new(), &guesses), max);
        }
        for mbps in [3, 98] {
            let mut line = Line::new();
            line.rate.guess(&guess(mbps, false));
            for _ in 0..20 {
                line.run(5, 5_000, false);
            }
            let before = line.rate.max();
            assert!(before >= Some(Bitrate::from_mbps(mbps)), "{before:?}");
            assert_eq!(max_after(line.rate, &[guess(4, true)]), before);
        }
    }

    #[test]
    fn old_repeated_and_nonsense_reports_are_ignored() {
        let mut line = Line::new();
        for _ in 0..20 {
            line.run(5, 5_000, false);
        }
        let (total, now) = (line.total, line.now);
        let before = line.rate.latest();
        assert_eq!(line.rate.on_report(now, total, false), None);
        let older = Delivered {
            packets: total.packets - 3,
            ..total
        };
        assert_eq!(line.rate.on_report(now, older, false), None);
        let backwards = Delivered {
            packets: u64::MAX,
            bytes: Bytes::ZERO,
            ..total
        };
        assert_eq!(line.rate.on_report(now, backwards, false), None);
        assert_eq!(line.rate.latest(), before);
    }

    #[test]
    fn arbitrary_reports_never_panic() {
        let mut rng = crate::rng::Rng::new(2);
        let mut rate = WindowedRate::new();
        let mut now = Instant::ZERO;
        for _ in 0..50_000 {
            let mut bits = || rng.next_u64() >> rng.below(64);
            let report = Delivered {
                bytes: Bytes::new(bits()),
                packets: bits(),
                tx_us: u32::try_from(bits() >> 32).expect("32 bits"),
                rx_us: u32::try_from(bits() >> 32).expect("32 bits"),
            };
            now += Duration::from_nanos(bits() >> 20);
            rate.on_report(now, report, report.packets.is_multiple_of(2));
        }
    }
}
