//! The extension point through which another crate replaces an estimator of a path: currently only the delivery rate.
//!
//! The rate controller derives the pacing rate from the delivery rate, and scheduling policies see it as
//! [`PathView::rate`](crate::sched::PathView::rate). A [`RateEstimator`] gets every report about the sending direction
//! and estimates the capacity. [`Estimators`] holds its factory, which
//! [`SchedulerSettings::estimators`](crate::sched::SchedulerSettings::estimators) passes to an endpoint or the
//! simulator. By default each path has a [`WindowedRate`].
//!
//! Delay, queue and loss cannot be replaced: the controller and the model read their inner state, not a few results.

use core::fmt;
use std::sync::Arc;

use super::rate::{DeliveryRate, RateEstimator, WindowedRate};

/// Factory of the estimators of paths; by default it creates the estimators of this crate.
#[derive(Clone, Default)]
pub struct Estimators {
    rate: Option<Arc<MakeRate>>,
}

type MakeRate = dyn Fn() -> Box<dyn RateEstimator> + Send + Sync;

impl Estimators {
    /// Creates a factory of delivery-rate estimators. It calls `make` once for each path, and again when the path
    /// leads over another network. `make` must return an estimator without samples.
    #[must_use]
    pub fn with_rate<E: RateEstimator + 'static>(
        make: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        Self {
            rate: Some(Arc::new(move || Box::new(make()))),
        }
    }

    /// Creates an estimator of the delivery rate without samples.
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

/// Two values are equal if one is a clone of the other, because functions cannot be compared.
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
