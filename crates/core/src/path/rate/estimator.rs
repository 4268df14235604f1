//! Which estimator a path's delivery rate comes from: the one of this crate, or another crate's.

use core::{fmt, time::Duration};

use super::{Delivered, MIN_TIME, RateSample, WindowedRate};
use crate::{path::train::Guess, time::Instant, units::Bitrate};

/// An estimate of what one direction of one path delivers.
///
/// It must not panic whatever it is told: reports come from the other end. Cost: O(1) for the getters, which run for each
/// packet.
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
/// /// The rate between the last two reports, and nothing remembered.
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
    /// Takes one report: the receiver's running totals. `app_limited`: the sender could have sent more on this path since the
    /// last report, but had nothing to send. Reports may repeat, be lost, or come out of order.
    ///
    /// Returns the sample that ends here, if one does: the controller acts on samples.
    fn on_report(
        &mut self,
        now: Instant,
        delivered: Delivered,
        app_limited: bool,
    ) -> Option<RateSample>;

    /// The newest sample; `None` before the first, here and below.
    fn latest(&self) -> Option<RateSample>;

    /// What the path is expected to carry: the controller paces by it.
    fn max(&self) -> Option<Bitrate>;

    /// A slower estimate, of which a fall shows that the path has become slow.
    fn smoothed(&self) -> Option<Bitrate> {
        self.max()
    }

    /// The largest [`smoothed`](Self::smoothed) of late.
    fn peak(&self) -> Option<Bitrate> {
        self.smoothed()
    }

    /// How long a sample takes at least: as long a change of the pace takes to show.
    fn least_time(&self) -> Duration {
        MIN_TIME
    }

    /// Takes what a packet train says of the capacity.
    fn guess(&mut self, guess: &Guess) {
        let _ = guess;
    }

    /// Whether [`max`](Self::max) is a guess that may be far too high.
    fn is_doubtful(&self) -> bool {
        false
    }

    /// The path overflowed while it carried `rate`.
    fn on_overflow(&mut self, rate: Bitrate) {
        let _ = rate;
    }

    /// The path has become slow: what it carried before the newest sample says nothing any more.
    fn on_collapse(&mut self) {}
}

/// Delivery rate estimate of one direction of one path, by whichever estimator. The one of this crate is dispatched by enum.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every path has the large one, which is read for each packet"
)]
#[derive(Debug)]
pub enum DeliveryRate {
    /// Of another crate.
    Own(Box<dyn RateEstimator>),
    /// See [`WindowedRate`].
    Windowed(WindowedRate),
}

/// `$call` on whichever estimator it is.
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
