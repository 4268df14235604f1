//! Random connections: their times and sizes.

use pleach_core::rng::Rng;

use super::settings::{Case, Sizes, Workload};

/// A connection that will be opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Time of opening in seconds from the beginning.
    pub at_s: f64,
    /// Application that opens the connection.
    pub app: App,
    /// Size in whole bytes.
    pub bytes: f64,
}

/// Application that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Opens many small connections.
    Small,
    /// Opens few large connections.
    Large,
    /// Opens one connection that does not end during the run.
    Long,
}

/// Returns the connections of one run, the earliest first. Small and large connections are opened by two independent
/// Poisson processes.
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
        // Each application has its own random stream, so that more large connections do not change the small ones.
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

/// Returns a random factor of mean 1.
fn factor(rng: &mut Rng, sizes: Sizes) -> f64 {
    match sizes {
        Sizes::Fixed => 1.0,
        Sizes::Exponential => exponential(rng),
        Sizes::Pareto => {
            // Bounded to 1..=SPREAD, then scaled to a mean of 1.
            let cut = SPREAD.powf(-SHAPE);
            let value = (1.0 - rng.uniform() * (1.0 - cut)).powf(-1.0 / SHAPE);
            let mean = SHAPE / (SHAPE - 1.0) * (1.0 - SPREAD.powf(1.0 - SHAPE)) / (1.0 - cut);
            value / mean
        }
    }
}

impl App {
    /// Returns the destination port of the application's connections, by which the proxy identifies the application.
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
