//! Which connections come, when, and how long they are.

use pleach_core::rng::Rng;

use super::settings::{Case, Sizes, Workload};

/// A connection to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Seconds from the beginning.
    pub at_s: f64,
    /// Whose it is.
    pub app: App,
    /// Whole bytes.
    pub bytes: f64,
}

/// Who opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Of the many small ones.
    Small,
    /// Of the few large ones.
    Large,
    /// The one that never ends.
    Long,
}

/// The connections of one run, the earliest first: Poisson processes of either application.
#[must_use]
pub fn arrivals(workload: &Workload, case: &Case, seed: u64) -> Vec<Arrival> {
    let mut all = Vec::new();
    if case.long {
        all.push(Arrival {
            at_s: 0.0,
            app: App::Long,
            bytes: workload.long_bytes(case).round(),
        });
    }
    let processes = [
        (App::Small, case.small_per_s, workload.small, 0x5eed_0001),
        (App::Large, case.large_per_s, workload.large, 0x5eed_0002),
    ];
    for (app, per_s, mean, salt) in processes {
        if per_s <= 0.0 {
            continue;
        }
        // An application's own stream: that there are more of the large changes nothing about the small.
        let mut rng = Rng::new(seed ^ (salt << 32));
        let mut at_s = exponential(&mut rng) / per_s;
        while at_s < workload.seconds {
            #[expect(clippy::cast_precision_loss, reason = "at most 10^9")]
            let mean = mean.get() as f64;
            let bytes = (mean * factor(&mut rng, workload.sizes)).round().max(1.0);
            all.push(Arrival { at_s, app, bytes });
            at_s += exponential(&mut rng) / per_s;
        }
    }
    all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    all
}

/// A random factor whose mean is 1.
fn factor(rng: &mut Rng, sizes: Sizes) -> f64 {
    match sizes {
        Sizes::Fixed => 1.0,
        Sizes::Exponential => exponential(rng),
        Sizes::Pareto => {
            // Bounded to 1..=SPREAD, then brought to a mean of 1.
            let cut = SPREAD.powf(-SHAPE);
            let value = (1.0 - rng.uniform() * (1.0 - cut)).powf(-1.0 / SHAPE);
            let mean = SHAPE / (SHAPE - 1.0) * (1.0 - SPREAD.powf(1.0 - SHAPE)) / (1.0 - cut);
            value / mean
        }
    }
}

impl App {
    /// The port its connections go to, by which the proxy knows it.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::Small => 80,
            Self::Large => 21,
            Self::Long => 22,
        }
    }
}

fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.uniform()).ln()
}

const SHAPE: f64 = 1.2;
const SPREAD: f64 = 1_000.0;
