//! The seam through which another crate replaces an estimator of a path: so far the delivery rate.
//!
//! The delivery rate is what the rate controller paces by and what policies see as
//! [`PathView::rate`](crate::sched::PathView::rate). A [`RateEstimator`] gets every report about the sending direction and says what the
//! path carries. [`Estimators`] says how it is made; [`SchedulerSettings::estimators`](crate::sched::SchedulerSettings::estimators) takes it into
//! an endpoint or the simulator. Without one each path has a [`WindowedRate`].
//!
//! Delay, queue and loss have no seam: controller and model read their inner state, not a few results.

use core::fmt;
use std::sync::Arc;

use super::rate::{DeliveryRate, RateEstimator, WindowedRate};

/// How the estimators of paths are made; by default those of this crate.
#[derive(Clone, Default)]
pub struct Estimators {
    rate: Option<Arc<MakeRate>>,
}

type MakeRate = dyn Fn() -> Box<dyn RateEstimator> + Send + Sync;

impl Estimators {
    /// The delivery rate by estimators that `make` makes, each without samples: one a path, and another when the path leads
    /// over another network.
    #[must_use]
    pub fn with_rate<E: RateEstimator + 'static>(
        make: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self {
            rate: Some(Arc::new(move || Box::new(make()))),
        }
    }

    /// An estimator of the delivery rate without samples.
    pub(super) fn rate(&self) -> DeliveryRate {
        match &self.rate {
            None => DeliveryRate::Windowed(WindowedRate::new()),
            Some(make) => DeliveryRate::Own(make()),
        }
    }
}

impl fmt::Debug for Estimators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.as_ref().map_or("windowed", |_| "own");
        f.debug_struct("Estimators").field("rate", &rate).finish()
    }
}

/// Two are equal if one is a clone of the other: whether two functions do the same cannot be known.
impl PartialEq for Estimators {
    fn eq(&self, other: &Self) -> bool {
        match (&self.rate, &other.rate) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl Eq for Estimators {}
