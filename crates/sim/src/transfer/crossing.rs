//! On-off cross traffic: Pareto distributed on and off periods of 10 ms to 1 s, as in section 5.1 of the OSIA paper.

use core::time::Duration;

use pleach_core::rng::Rng;

/// Returns the length of the next period, on or off.
pub(super) fn period(rng: &mut Rng) -> Duration {
    // Inverse of the distribution function of a Pareto law that is truncated at both ends.
    let (least, most) = (LEAST_S.powf(-SHAPE), MOST_S.powf(-SHAPE));
    let at = least - rng.uniform() * (least - most);
    Duration::from_secs_f64(at.powf(-1.0 / SHAPE))
}

const LEAST_S: f64 = 0.01;
const MOST_S: f64 = 1.0;
/// Shape of the Pareto law. The paper does not publish it; 1.5 is usual for such sources.
const SHAPE: f64 = 1.5;
