//! The estimator of a path's delivery rate: the default one, or one that another crate provides.

use core::{fmt, time::Duration};

use super::{Delivered, MIN_TIME, RateSample, WindowedRate};
use crate::{path::train::Guess, time::Instant, units::Bitrate};

/// An estimator of the delivery rate of one direction of one path.
///
/// It must not panic on any input, because reports come from the other end. The getters run for each packet and must
/// be O(1).
///
/// ```
/// use pleach_core::{
///     path::{
///         estimators::Estimators,
///         rate::{Delivered, RateEstimator, RateSample},
///     },
///     sched::{Policy, SchedulerSettings},
///     time::Instant,
///     units::Bitrate,
/// };
///
/// /// The rate between the last two reports. Older reports have no influence.
/// #[derive(Debug, Default)]
/// struct Latest {
///     last: Option<(Instant, Delivered)>,
///     sample: Option<RateSample>,
/// }
///
/// impl RateEstimator for Latest {
///     fn on_report(&mut self, now: Instant, delivered: Delivered, app_limited: bool) -> Option<RateSample> {
///         let (then, before) = self.last.replace((now, delivered))?;
///         let rate = Bitrate::from_transfer(delivered.bytes - before.bytes, now.since(then))?;
///         self.sample = Some(RateSample { rate, app_limited });
///         self.sample
///     }
///
///     fn latest(&self) -> Option<RateSample> {
///         self.sample
///     }
///
///     fn max(&self) -> Option<Bitrate> {
///         self.sample.map(|sample| sample.rate)
///     }
/// }
///
/// let settings = SchedulerSettings::<String> {
///     estimators: Estimators::with_rate(Latest::default),
///     ..Policy::MinRtt {}.into()
/// };
/// # let _ = settings;
/// ```
pub trait RateEstimator: fmt::Debug + Send {
    /// Processes one report, which contains the receiver's running totals. `app_limited`: since the last report the
    /// path could have carried more, but the sender had nothing to send. Reports may repeat, be lost, or arrive out
    /// of order.
    ///
    /// Returns the sample that ends with this report, if any. The controller reacts to samples.
    fn on_report(
        &mut self,
        now: Instant,
        delivered: Delivered,
        app_limited: bool,
    ) -> Option<RateSample>;

    /// The newest sample; `None` before the first sample. All getters return `None` before the first sample.
    fn latest(&self) -> Option<RateSample>;

    /// The expected capacity, from which the controller derives the pacing rate.
    fn max(&self) -> Option<Bitrate>;

    /// A slower estimate. When it falls, the path has become slow.
    fn smoothed(&self) -> Option<Bitrate> {
        self.max()
    }

    /// The recent maximum of [`smoothed`](Self::smoothed).
    fn peak(&self) -> Option<Bitrate> {
        self.smoothed()
    }

    /// Minimum duration of a sample. This is the time until a change of the pacing rate becomes visible in samples.
    fn least_time(&self) -> Duration {
        MIN_TIME
    }

    /// Processes a packet train's estimate of the capacity.
    fn guess(&mut self, guess: &Guess) {
        let _ = guess;
    }

    /// Whether [`max`](Self::max) is a guess that may be far too high.
    fn is_doubtful(&self) -> bool {
        false
    }

    /// Records that the path overflowed while it delivered `rate`.
    fn on_overflow(&mut self, rate: Bitrate) {
        let _ = rate;
    }

    /// Records that the path has become slow: samples before the newest are no longer valid.
    fn on_collapse(&mut self) {}
}

/// Delivery rate of one direction of one path, measured by the default estimator or by one of another crate. The
/// default one is dispatched by enum.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every path has the large one, which is read for each packet"
)]
#[derive(Debug)]
pub enum DeliveryRate {
    /// An estimator that another crate provides.
    Own(Box<dyn RateEstimator>),
    /// See [`WindowedRate`].
    Windowed(WindowedRate),
}

/// Evaluates `$call` on the estimator of either variant.
macro_rules! each {
    ($any:expr, $rate:ident => $call:expr) => {
        match $any {
            DeliveryRate::Own($rate) => $call,
            DeliveryRate::Windowed($rate) => $call,
        }
    };
}

/// The methods of [`RateEstimator`].
impl DeliveryRate {
    /// See [`RateEstimator::on_report`].
    pub fn on_report(
        &mut self,
        now: Instant,
        delivered: Delivered,
        app_limited: bool,
    ) -> Option<RateSample> {
        each!(self, rate => rate.on_report(now, delivered, app_limited))
    }

    /// See [`RateEstimator::latest`].
    #[must_use]
    pub fn latest(&self) -> Option<RateSample> {
        each!(self, rate => rate.latest())
    }

    /// See [`RateEstimator::max`].
    #[must_use]
    pub fn max(&self) -> Option<Bitrate> {
        each!(self, rate => rate.max())
    }

    /// See [`RateEstimator::smoothed`].
    #[must_use]
    pub fn smoothed(&self) -> Option<Bitrate> {
        each!(self, rate => rate.smoothed())
    }

    /// See [`RateEstimator::peak`].
    #[must_use]
    pub fn peak(&self) -> Option<Bitrate> {
        each!(self, rate => rate.peak())
    }

    /// See [`RateEstimator::least_time`].
    #[must_use]
    pub fn least_time(&self) -> Duration {
        each!(self, rate => rate.least_time())
    }

    /// See [`RateEstimator::guess`].
    pub fn guess(&mut self, guess: &Guess) {
        each!(self, rate => rate.guess(guess));
    }

    /// See [`RateEstimator::is_doubtful`].
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        each!(self, rate => rate.is_doubtful())
    }

    /// See [`RateEstimator::on_overflow`].
    pub fn on_overflow(&mut self, rate: Bitrate) {
        each!(self, estimator => estimator.on_overflow(rate));
    }

    /// See [`RateEstimator::on_collapse`].
    pub fn on_collapse(&mut self) {
        each!(self, rate => rate.on_collapse());
    }
}
