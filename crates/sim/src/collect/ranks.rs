//! Use of links of different cost: how full the cheap links were, and how much the costly links carried unnecessarily.
//!
//! Both figures are computed sample by sample ([`SAMPLE`](crate::measure::SAMPLE)) from the bytes that the links
//! delivered. Each compares the traffic of the cheaper links (for [`fill`], also of the links of the same rank) with
//! their capacity. The traffic that all links together delivered counts as the demand.

use crate::{
    measure::{LinkReport, Sample},
    scenario::{Cost, Scenario},
};

/// Returns the links above the lowest rank in the scenario.
pub(super) fn dear(scenario: &Scenario) -> Vec<usize> {
    let lowest = ranks(scenario).min();
    let links = scenario.links.iter().enumerate();
    let dear = links.filter(|(_, link)| rank(link.cost) > lowest);
    dear.map(|(index, _)| index).collect()
}

/// Returns the utilisation of `link` together with all other links of the same or lower cost, while costlier links
/// were in use. Only samples count in which all links together carried more than the capacity of these cheap links;
/// the result is the share of this capacity that was used. `None` if no link costs more, if there is no such sample,
/// or if the rate of a cheap link is not limited.
#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
pub(super) fn fill(scenario: &Scenario, link: usize, links: &[LinkReport]) -> Option<f64> {
    let own = rank(scenario.links.get(link)?.cost)?;
    let is_cheap = |rank: u16| rank <= own;
    if ranks(scenario).all(is_cheap) {
        return None;
    }
    let (mut carried, mut offered) = (0, 0);
    for sample in samples(scenario, links, is_cheap)? {
        if sample.cheap + sample.dear > sample.capacity {
            carried += sample.cheap;
            offered += sample.capacity;
        }
    }
    (offered > 0).then(|| carried as f64 / offered as f64)
}

/// Returns the traffic that `link` carried while cheaper links had free capacity for it, as a share of the traffic of
/// all links. `None` if no link is cheaper, or if the rate of a cheaper link is not limited.
#[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
pub(super) fn excess(scenario: &Scenario, link: usize, links: &[LinkReport]) -> Option<f64> {
    let own = rank(scenario.links.get(link)?.cost)?;
    let is_cheap = |rank: u16| rank < own;
    if !ranks(scenario).any(is_cheap) {
        return None;
    }
    let (mut needless, mut all) = (0, 0);
    let own_samples = &links.get(link)?.samples;
    for (sample, own) in samples(scenario, links, is_cheap)?.iter().zip(own_samples) {
        let room = sample.capacity.saturating_sub(sample.cheap);
        needless += room.min(own.tx_bytes);
        all += sample.cheap + sample.dear;
    }
    (all > 0).then(|| needless as f64 / all as f64)
}

/// Bytes that the links carried within a sample.
struct Ranked {
    cheap: u64,
    dear: u64,
    /// Bytes that the cheap links could have carried.
    capacity: u64,
}

fn samples(
    scenario: &Scenario,
    links: &[LinkReport],
    is_cheap: impl Fn(u16) -> bool,
) -> Option<Vec<Ranked>> {
    let length = links.iter().map(|link| link.samples.len()).min()?;
    let sum = |at: usize| {
        let mut ranked = Ranked {
            cheap: 0,
            dear: 0,
            capacity: 0,
        };
        for (spec, link) in scenario.links.iter().zip(links) {
            let Sample {
                tx_bytes, capacity, ..
            } = link.samples.get(at)?;
            if rank(spec.cost).is_some_and(&is_cheap) {
                ranked.cheap += tx_bytes;
                ranked.capacity += capacity.as_ref()?.get();
            } else {
                ranked.dear += tx_bytes;
            }
        }
        Some(ranked)
    };
    (0..length).map(sum).collect()
}

/// Returns the ranks of all links in the order of cost, except links that are never used.
fn ranks(scenario: &Scenario) -> impl Iterator<Item = u16> {
    scenario.links.iter().filter_map(|link| rank(link.cost))
}

/// Returns the rank of a link in the order of cost. `None` if the link is never used.
fn rank(cost: Cost) -> Option<u16> {
    match cost {
        Cost::Never => None,
        Cost::Rank(rank) => Some(rank.into()),
        Cost::Standby => Some(u16::MAX),
    }
}
