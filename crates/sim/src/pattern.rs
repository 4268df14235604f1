//! Times at which the datagrams of a flow are sent: one pure schedule for the senders of the lab and of the simulator.
//!
//! The rate is a piecewise constant function of the time since the flow began. [`Rates`] interpolates between given
//! points: by steps, linearly, or exponentially, in steps of a given length. A [`Profile`] adds pauses or bundles
//! datagrams into frames. Datagram *n* is sent when the integral of the rate reaches the size of the *n* datagrams
//! before it, rounded up to a nanosecond. The integral is stored in whole bit·nanoseconds, so rounding errors do not
//! accumulate.
//!
//! A program that is woken for each datagram is sometimes late. [`Pattern::with_jitter`] adds a uniformly distributed
//! lateness that preserves the order: datagrams that became due before a late datagram was sent are sent together with
//! it. Without this jitter, several flows into one full queue synchronise: the same flow loses every time.

use core::time::Duration;

use pleach_core::{
    rng::Rng,
    time::saturating_nanos,
    units::{Bitrate, Bytes},
};

const FRAMES_PER_SECOND: u64 = 30;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A rate over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Points in order of time: nanoseconds since the flow began, and the rate from then on.
    points: Vec<(u64, Bitrate)>,
    curve: Curve,
    step_nanos: u64,
}

/// Interpolation of the rate between two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Curve {
    /// The rate changes by the same factor in each step.
    Exponential,
    /// The rate changes by the same amount in each step.
    Linear,
    /// The rate stays constant until the next point.
    #[default]
    Steps,
}

/// Distribution of datagrams over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Evenly spaced.
    #[default]
    Constant,
    /// Evenly spaced datagrams for the time `on`, then no datagrams for the time `off`, periodically.
    OnOff {
        /// Time in which datagrams are sent.
        on: Duration,
        /// Time in which no datagrams are sent.
        off: Duration,
    },
    /// A frame every `interval`. The datagrams of a frame are sent back to back.
    Frames {
        /// Time between two frames.
        interval: Duration,
    },
    /// Thirty frames a second. The datagrams of a frame are sent back to back.
    Video,
}

/// Datagrams that are sent at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Time since the flow began.
    pub at: Duration,
    /// Number of datagrams, at least one.
    pub datagrams: u64,
}

/// The departures of one flow, in order.
#[derive(Clone, Debug)]
pub struct Pattern {
    rates: Rates,
    profile: Profile,
    size: Bytes,
    departed: u64,
    /// Start and end of the current piece of constant rate, its rate, and the integral of the rate before it.
    begin: u64,
    end: u64,
    bps: u64,
    bit_nanos: u128,
    /// Upper bound of the lateness of a datagram.
    jitter_nanos: u64,
    rng: Rng,
    /// Time of the last departure.
    last: Duration,
}

impl Rates {
    /// Creates a rate that never changes.
    #[must_use]
    pub fn constant(rate: Bitrate) -> Self {
        Self::new(vec![(Duration::ZERO, rate)], Curve::Steps, Duration::MAX)
    }

    /// Creates the rates at `points`, in order of time since the flow began. Between points the rate follows `curve`
    /// in steps of `step`, each with the rate at its start. The first rate also holds before its point, and the last
    /// rate has no end. An exponential change from or to a rate of zero is a single step.
    #[must_use]
    pub fn new(points: Vec<(Duration, Bitrate)>, curve: Curve, step: Duration) -> Self {
        Self {
            points: points
                .into_iter()
                .map(|(at, rate)| (saturating_nanos(at), rate))
                .collect(),
            curve,
            step_nanos: saturating_nanos(step).max(1),
        }
    }

    /// Returns the rate at `time` since the flow began.
    #[must_use]
    pub fn at(&self, time: Duration) -> Bitrate {
        Bitrate::from_bps(self.piece(saturating_nanos(time)).0)
    }

    /// Returns the rate at the start of the flow.
    #[must_use]
    pub fn first(&self) -> Bitrate {
        self.at(Duration::ZERO)
    }

    /// Returns the rate in bit/s at `at`, and the time until which this rate holds.
    fn piece(&self, at: u64) -> (u64, u64) {
        let next = self.points.partition_point(|point| point.0 <= at);
        let after = self.points.get(next);
        let Some(&(from, low)) = self.points.get(next.saturating_sub(1)) else {
            return (0, u64::MAX);
        };
        let (Some(&(to, high)), true) = (after, self.curve != Curve::Steps && next > 0) else {
            return (low.as_bps(), after.map_or(u64::MAX, |point| point.0));
        };
        let step = (at - from) / self.step_nanos;
        let begin = step.saturating_mul(self.step_nanos);
        let end = from.saturating_add(begin.saturating_add(self.step_nanos));
        (self.between(low, high, begin, to - from), end.min(to))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "rates are far below 2^53 and not negative"
    )]
    fn between(&self, low: Bitrate, high: Bitrate, part: u64, whole: u64) -> u64 {
        let share = part as f64 / whole as f64;
        let (from, to) = (low.as_bps() as f64, high.as_bps() as f64);
        let rate = match self.curve {
            Curve::Exponential if from > 0.0 && to > 0.0 => from * (to / from).powf(share),
            Curve::Linear => from + (to - from) * share,
            Curve::Exponential | Curve::Steps => from,
        };
        rate.round() as u64
    }
}

impl Pattern {
    /// Creates the schedule of datagrams of `size` payload bytes at `rates`, distributed by `profile`.
    #[must_use]
    pub fn new(rates: Rates, size: Bytes, profile: Profile) -> Self {
        let mut this = Self {
            rates,
            profile,
            size,
            departed: 0,
            begin: 0,
            end: 0,
            bps: 0,
            bit_nanos: 0,
            jitter_nanos: 0,
            rng: Rng::new(0),
            last: Duration::ZERO,
        };
        (this.bps, this.end) = this.piece(0);
        this
    }

    /// Returns the payload size of each datagram.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Delays each datagram by a random time of up to `jitter`, drawn from `rng`.
    #[must_use]
    pub fn with_jitter(mut self, jitter: Duration, rng: Rng) -> Self {
        self.jitter_nanos = saturating_nanos(jitter);
        self.rng = rng;
        self
    }

    /// Returns the next datagrams to send; each call advances the schedule. `None` if the rate remains zero.
    pub fn next_departure(&mut self) -> Option<Departure> {
        let due = self.next_due()?;
        let late = match self.jitter_nanos {
            0 => 0,
            most => self.rng.below(most.saturating_add(1)),
        };
        self.last = self.last.max(due.at + Duration::from_nanos(late));
        Some(Departure {
            at: self.last,
            ..due
        })
    }

    fn next_due(&mut self) -> Option<Departure> {
        let due =
            u128::from(self.departed) * u128::from(self.size.get().max(1)) * 8 * NANOS_PER_SECOND;
        loop {
            if self.bps > 0 {
                let wait = due
                    .saturating_sub(self.bit_nanos)
                    .div_ceil(u128::from(self.bps));
                let at = u128::from(self.begin) + wait;
                if at <= u128::from(self.end) {
                    let datagrams = self.bundled();
                    self.departed += datagrams;
                    // The conversion succeeds, because `at` is not after `end`.
                    let at = Duration::from_nanos(u64::try_from(at).unwrap_or(self.end));
                    return Some(Departure { at, datagrams });
                }
            }
            if self.end == u64::MAX {
                return None;
            }
            self.bit_nanos += u128::from(self.bps) * u128::from(self.end - self.begin);
            self.begin = self.end;
            (self.bps, self.end) = self.piece(self.begin);
        }
    }

    /// Returns the number of datagrams sent at once.
    fn bundled(&self) -> u64 {
        match self.profile {
            Profile::Constant | Profile::OnOff { .. } => 1,
            Profile::Frames { interval } => {
                let per_frame = Bitrate::from_bps(self.bps).bytes_in(interval);
                per_frame.get().div_ceil(self.size.get().max(1)).max(1)
            }
            Profile::Video => {
                let per_frame = self.bps / 8 / FRAMES_PER_SECOND;
                per_frame.div_ceil(self.size.get().max(1)).max(1)
            }
        }
    }

    /// Extends [`Rates::piece`] by the pauses of the profile.
    fn piece(&self, at: u64) -> (u64, u64) {
        let (bps, end) = self.rates.piece(at);
        let Profile::OnOff { on, off } = self.profile else {
            return (bps, end);
        };
        let (on, off) = (saturating_nanos(on), saturating_nanos(off));
        let period = on.saturating_add(off).max(1);
        let phase = at % period;
        if bps == 0 {
            (0, end)
        } else if phase < on {
            (bps, end.min(at.saturating_add(on - phase)))
        } else {
            (0, end.min(at.saturating_add(period - phase)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Bytes = Bytes::new(1_250);

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn count(mut pattern: Pattern, until: Duration) -> u64 {
        let mut count = 0;
        let mut last = Duration::ZERO;
        while let Some(departure) = pattern.next_departure()
            && departure.at < until
        {
            assert!(departure.at >= last, "in order");
            last = departure.at;
            count += departure.datagrams;
        }
        count
    }

    /// Returns a ramp: from 63 to 105 Mbit/s in 15 s, constant for 10 s, and back.
    fn ramp() -> Rates {
        let rate = Bitrate::from_mbps;
        let points = [(0.0, 63), (15.0, 105), (25.0, 105), (40.0, 63)]
            .map(|(at, mbps)| (secs(at), rate(mbps)))
            .to_vec();
        Rates::new(points, Curve::Exponential, Duration::from_millis(200))
    }

    #[test]
    fn a_constant_rate_is_even_and_does_not_drift() {
        let mut pattern = Pattern::new(
            Rates::constant(Bitrate::from_mbps(3)),
            SIZE,
            Profile::Constant,
        );
        let at: Vec<u128> = (0..4)
            .map(|_| pattern.next_departure().expect("for ever").at.as_nanos())
            .collect();
        assert_eq!(at, [0, 3_333_334, 6_666_667, 10_000_000]);
        for _ in 4..300_000 {
            let _ = pattern.next_departure();
        }
        let at = pattern.next_departure().expect("for ever").at;
        assert_eq!(at, Duration::from_secs(1_000));
    }

    #[test]
    fn an_exponential_grows_by_a_factor_a_step() {
        let rates = ramp();
        let mbps = |at| rates.at(secs(at)).as_mbps();
        assert_eq!(mbps(0.0), 63.0);
        assert_eq!(mbps(0.1999), 63.0);
        let factor = (105.0_f64 / 63.0).powf(1.0 / 75.0);
        for step in 0..75_u32 {
            let at = f64::from(step) * 0.2 + 0.1;
            let wanted = 63.0 * factor.powi(i32::try_from(step).expect("small"));
            assert!((mbps(at) - wanted).abs() < 1e-5, "{at}");
        }
        assert_eq!((mbps(15.0), mbps(24.9), mbps(25.1)), (105.0, 105.0, 105.0));
        assert!((mbps(25.3) - 105.0 / factor).abs() < 1e-5);
        assert_eq!((mbps(40.0), mbps(99.0)), (63.0, 63.0));
    }

    #[test]
    fn as_many_leave_as_the_integral_says() {
        // Reference implementation: the integral in steps of 0.2 s.
        let rates = ramp();
        let bits: f64 = (0..200_u32)
            .map(|step| rates.at(secs(f64::from(step) * 0.2 + 0.1)).as_mbps() * 0.2e6)
            .sum();
        let sent = count(Pattern::new(rates, SIZE, Profile::Constant), secs(40.0));
        let wanted = bits / 1e4;
        assert!(
            (u32::try_from(sent).map(f64::from).expect("small") - wanted).abs() <= 1.0,
            "{sent} of {wanted}"
        );
    }

    #[test]
    fn lines_and_steps_and_pauses() {
        let rate = Bitrate::from_mbps;
        let points = vec![(secs(0.0), rate(10)), (secs(2.0), rate(20))];
        let line = Rates::new(points.clone(), Curve::Linear, secs(1.0));
        assert_eq!(line.at(secs(1.5)), rate(15));
        assert_eq!(
            count(Pattern::new(line, SIZE, Profile::Constant), secs(3.0)),
            1_000 + 1_500 + 2_000
        );
        let steps = Rates::new(points, Curve::Steps, secs(1.0));
        assert_eq!(steps.at(secs(1.5)), rate(10));
        let zero = vec![
            (secs(0.0), Bitrate::ZERO),
            (secs(1.0), rate(10)),
            (secs(2.0), Bitrate::ZERO),
        ];
        let mut pattern = Pattern::new(
            Rates::new(zero, Curve::Steps, secs(1.0)),
            SIZE,
            Profile::Constant,
        );
        assert_eq!(pattern.next_departure().expect("one").at, secs(1.0));
        let rest = core::iter::from_fn(|| pattern.next_departure()).count();
        assert_eq!(rest, 1_000, "ends by itself");
    }

    #[test]
    fn on_and_off() {
        let profile = Profile::OnOff {
            on: secs(0.5),
            off: secs(1.5),
        };
        let mut pattern = Pattern::new(Rates::constant(Bitrate::from_mbps(10)), SIZE, profile);
        let at: Vec<Duration> =
            core::iter::from_fn(|| Some(pattern.next_departure().expect("for ever").at))
                .take_while(|&at| at < secs(4.0))
                .collect();
        assert!(at.len().abs_diff(1_000) <= 1, "{}", at.len());
        assert!(
            at.iter()
                .all(|at| at.as_nanos() % 2_000_000_000 <= 500_000_000)
        );
    }

    #[test]
    fn a_frame_is_a_burst() {
        let mut pattern =
            Pattern::new(Rates::constant(Bitrate::from_mbps(3)), SIZE, Profile::Video);
        let first = pattern.next_departure().expect("for ever");
        let second = pattern.next_departure().expect("for ever");
        assert_eq!((first.datagrams, second.datagrams), (10, 10));
        assert_eq!(second.at.as_micros(), 33_333);
    }

    #[test]
    fn frames_leave_at_their_interval() {
        let profile = Profile::Frames {
            interval: Duration::from_millis(25),
        };
        let mut pattern = Pattern::new(Rates::constant(Bitrate::from_mbps(8)), SIZE, profile);
        for frame in 0..1_000 {
            let departure = pattern.next_departure().expect("for ever");
            assert_eq!(departure.datagrams, 20);
            assert_eq!(departure.at, Duration::from_millis(25) * frame);
        }
    }

    #[test]
    fn nothing_from_no_rate() {
        let mut none = Pattern::new(
            Rates::new(vec![], Curve::Linear, secs(1.0)),
            SIZE,
            Profile::Video,
        );
        assert_eq!(none.next_departure(), None);
    }

    #[test]
    fn jitter_delays_in_order_and_changes_no_rate() {
        let pattern = || {
            Pattern::new(
                Rates::constant(Bitrate::from_mbps(10)),
                SIZE,
                Profile::Constant,
            )
        };
        let jitter = Duration::from_millis(3);
        let mut late = pattern().with_jitter(jitter, Rng::new(1));
        let mut even = pattern();
        let mut sum = Duration::ZERO;
        let mut last = Duration::ZERO;
        for _ in 0..10_000 {
            let (even, late) = (even.next_departure(), late.next_departure());
            let (even, late) = (even.expect("endless").at, late.expect("endless").at);
            assert!((even..=even + jitter).contains(&late) && late >= last);
            sum += late - even;
            last = late;
        }
        // Datagrams are due 1 ms apart. Each is late by its own random delay, or by more if one of the two datagrams
        // before it is sent after that time.
        let mean = sum / 10_000;
        assert!((1_500..2_200).contains(&mean.as_micros()), "{mean:?}");
    }
}
