//! Random sets of links, to find what nobody thought of.
//!
//! Rates 1 to 300 Mbit/s, one-way delays 2 to 300 ms, queues from 8 packets to a second of the link's rate, all with a
//! uniform logarithm. Half of the links have jitter, uniform up to half their delay and 40 ms, of which a quarter overtakes.
//! Half of them lose packets, 0.01 to 5 % with a uniform logarithm. Set *i* of a seed does not depend on the count.
//!
//! Asymmetric links are the same, and upload a part of that rate, down to a twentieth with a uniform logarithm, out of a queue
//! that is as much shorter but at least 8 packets long.

use pleach_core::rng::Rng;

use super::{Case, Link, PACKET_BYTES, Rate, Up};

/// Random sets of links.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Seed of the links.
    pub seed: u64,
    /// Number of sets.
    pub count: u32,
    /// Links of a set, 1 to 6; more are as 6.
    pub links: u32,
    /// Whether links upload less than they download.
    pub asymmetric: bool,
}

impl Sweep {
    /// The sets, in order, named by seed and number.
    #[must_use]
    pub fn cases(self) -> Vec<Case> {
        let seed = self.seed;
        let mut rng = Rng::new(seed);
        // Its own, so that the links are those of the symmetric set.
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

/// Gives `link` less room for uploads.
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
    // All numbers are drawn, needed or not, so that a change of one does not shift the others.
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

/// A number between `min` and `max` whose logarithm is uniform.
fn log_uniform(rng: &mut Rng, min: f64, max: f64) -> f64 {
    min * (max / min).powf(rng.uniform())
}

/// Names of links; so many are in a set at most.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// In bytes.
const SHORTEST_QUEUE: f64 = 8.0 * PACKET_BYTES;
/// Least part of the rate that an asymmetric link uploads.
const LEAST_UP: f64 = 0.05;
