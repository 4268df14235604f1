//! Random sets of links, to find what nobody thought of.
//!
//! Rates 1 to 300 Mbit/s, one-way delays 2 to 300 ms, queues from 8 packets to a second of the link's rate, all with a
//! uniform logarithm. Half of the links have jitter, uniform up to half their delay and 40 ms, of which a quarter overtakes.
//! Half of them lose packets, 0.01 to 5 % with a uniform logarithm. Set *i* of a seed does not depend on the count.

use pleach_core::rng::Rng;

use crate::case::{Case, Link, PACKET_BYTES};

/// Names of links; so many are in a set at most.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// `count` sets of `seed`, each of `links` links.
pub(crate) fn cases(seed: u64, count: u32, links: u32) -> Vec<Case> {
    let mut rng = Rng::new(seed);
    let links = usize::try_from(links).unwrap_or(NAMES.len());
    let case = |index| {
        let names = NAMES.into_iter().take(links);
        let links = names.map(|name| link(&mut rng, name)).collect();
        Case::new("sweep", format!("sweep-{seed}-{index:03}"), links)
    };
    (0..count).map(case).collect()
}

fn link(rng: &mut Rng, name: &str) -> Link {
    // All numbers are drawn, needed or not, so that a change of one does not shift the others.
    let mbps = log_uniform(rng, 1.0, 300.0);
    let delay_ms = log_uniform(rng, 2.0, 300.0);
    let jitter_ms = rng.uniform() * (delay_ms / 2.0).min(40.0);
    let (has_jitter, overtakes) = (rng.chance(0.5), rng.chance(0.25));
    let loss = log_uniform(rng, 0.0001, 0.05);
    let is_lossy = rng.chance(0.5);
    let shortest = 8.0 * PACKET_BYTES;
    let queue_bytes = log_uniform(rng, shortest, (mbps * 1e6 / 8.0).max(shortest));
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
