//! Cross traffic that comes and goes: section 5.1's Pareto on and off periods of 10 ms to 1 s.

use core::time::Duration;

use pleach_core::rng::Rng;

/// Length of the next period, on or off.
pub(super) fn period(rng: &mut Rng) -> Duration {
    // Inverse of the distribution function of a Pareto law cut off at both ends.
    let (least, most) = (LEAST_S.powf(-SHAPE), MOST_S.powf(-SHAPE));
    let at = least - rng.uniform() * (least - most);
    Duration::from_secs_f64(at.powf(-1.0 / SHAPE))
}

const LEAST_S: f64 = 0.01;
const MOST_S: f64 = 1.0;
/// Not published; the value usual for such sources.
const SHAPE: f64 = 1.5;
