//! Random sets of links, to find problems that hand-written cases miss.
//!
//! - Rates: 1 to 300 Mbit/s, log-uniform.
//! - One-way delays: 2 to 300 ms, log-uniform.
//! - Queues: from 8 packets to one second of the link's rate, log-uniform.
//! - Jitter: half of the links have jitter. It is uniform up to half of the link's delay, at most 40 ms. A quarter of
//!   these links reorder packets.
//! - Loss: half of the links lose packets, 0.01 to 5 %, log-uniform.
//!
//! Set *i* of a seed does not depend on the number of sets.
//!
//! Asymmetric links have the same parameters. Their upload rate is a fraction of the rate, from 1 down to a twentieth,
//! log-uniform. Their upload queue is shorter by the same factor, but at least 8 packets long.

use pleach_core::rng::Rng;

use super::{Case, Link, PACKET_BYTES, Rate, Up};

/// Random sets of links.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Seed of the links.
    pub seed: u64,
    /// Number of sets.
    pub count: u32,
    /// Number of links in a set, 1 to 8. Larger numbers count as 8.
    pub links: u32,
    /// Whether the upload rate of links is below their download rate.
    pub asymmetric: bool,
}

impl Sweep {
    /// Returns the sets in order, named by seed and number.
    #[must_use]
    pub fn cases(self) -> Vec<Case> {
        let seed = self.seed;
        let mut rng = Rng::new(seed);
        // A separate generator, so that asymmetric sets have the links of the symmetric sets.
        let mut up_rng = Rng::new(!seed);
        let links = usize::try_from(self.links).unwrap_or(NAMES.len());
        let case = |index| {
            let names = NAMES.into_iter().take(links);
            let mut links: Vec<Link> = names.map(|name| link(&mut rng, name)).collect();
            if self.asymmetric {
                links.iter_mut().for_each(|link| narrow(&mut up_rng, link));
            }
            Case::new("sweep", format!("sweep-{seed}-{index:03}"), links)
        };
        (0..self.count).map(case).collect()
    }
}

/// Reduces the upload rate and queue of `link`.
fn narrow(rng: &mut Rng, link: &mut Link) {
    let share = log_uniform(rng, LEAST_UP, 1.0);
    if let Rate::Constant(mbps) = link.rate {
        link.up = Some(Up {
            mbps: mbps * share,
            queue_bytes: (link.queue_bytes * share).max(SHORTEST_QUEUE),
        });
    }
}

fn link(rng: &mut Rng, name: &str) -> Link {
    // All numbers are drawn, even if unused, so that a change of one parameter does not shift the others.
    let mbps = log_uniform(rng, 1.0, 300.0);
    let delay_ms = log_uniform(rng, 2.0, 300.0);
    let jitter_ms = rng.uniform() * (delay_ms / 2.0).min(40.0);
    let (has_jitter, overtakes) = (rng.chance(0.5), rng.chance(0.25));
    let loss = log_uniform(rng, 0.0001, 0.05);
    let is_lossy = rng.chance(0.5);
    let a_second = (mbps * 1e6 / 8.0).max(SHORTEST_QUEUE);
    let queue_bytes = log_uniform(rng, SHORTEST_QUEUE, a_second);
    Link {
        jitter_ms: if has_jitter { jitter_ms } else { 0.0 },
        reorder: has_jitter && overtakes,
        loss: if is_lossy { loss } else { 0.0 },
        queue_bytes,
        ..Link::new(name, mbps, delay_ms)
    }
}

/// Returns a number between `min` and `max` whose logarithm is uniformly distributed.
fn log_uniform(rng: &mut Rng, min: f64, max: f64) -> f64 {
    min * (max / min).powf(rng.uniform())
}

/// Names of links. Their number is the highest number of links in a set.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Shortest queue in bytes.
const SHORTEST_QUEUE: f64 = 8.0 * PACKET_BYTES;
/// Smallest ratio of upload rate to rate of an asymmetric link.
const LEAST_UP: f64 = 0.05;
