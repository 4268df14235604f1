//! Losses when a flow begins, and the time after the end of a flow for which links of a higher rank are still used.
//!
//! A flow that begins may overload the cheap links before the sender detects it. A flow that ends leaves free capacity
//! on cheap links for traffic that still uses costly links. Section 5.3 of "Multipath bonding at Layer 3" (ANRW 2016)
//! examines both.

use core::time::Duration;

use super::{bin_index, is_bulk, is_cross, mbps, millis, ranks};
use crate::{
    measure::{FlowReport, PhaseReport, SAMPLE, Sample},
    scenario::{Direction, Scenario, Traffic, TrafficKind},
};

/// Time after the start of a flow in which losses are attributed to it.
const START: Duration = Duration::from_secs(1);
/// Rate in Mbit/s below which links are at rest. It permits one or two packets per [`SAMPLE`] and the probes of an
/// idle link.
const AT_REST_MBPS: f64 = 0.2;
/// Number of consecutive samples for which links must be at rest: half a second.
const AT_REST_SAMPLES: usize = 5;

/// Returns the number of datagrams of all UDP flows in the direction of `traffic` that were sent within [`START`]
/// after `traffic` began and never arrived in time. A datagram that arrived after its deadline counts as lost. `None`
/// if there is no UDP flow, or if `traffic` is outside the tunnel.
pub(super) fn lost_at_start(
    scenario: &Scenario,
    traffic: &Traffic,
    report: &PhaseReport,
) -> Option<u64> {
    if !is_counted(scenario, traffic) {
        return None;
    }
    let (from, to) = (traffic.start, traffic.start + START);
    let flows = scenario.traffic.iter().zip(&report.flows);
    let losses = flows.filter_map(|(other, flow)| {
        let TrafficKind::Udp { size, .. } = other.kind else {
            return None;
        };
        let is_beside = other.direction == traffic.direction && !is_cross(scenario, other);
        let flow = flow.as_ref().filter(|_| is_beside)?;
        Some(lost_between(flow, from, to) / size.get().max(1))
    });
    losses.fold(None, |sum, lost| Some(sum.unwrap_or(0) + lost))
}

/// Returns the number of packets in the direction of `traffic` that links lost within [`START`] after `traffic`
/// began, in their queues or in transit. `None` if `traffic` is outside the tunnel.
pub(super) fn line_losses_at_start(
    scenario: &Scenario,
    traffic: &Traffic,
    report: &PhaseReport,
) -> Option<u64> {
    let links = match traffic.direction {
        Direction::Down => &report.down.links,
        Direction::Up => &report.up.links,
    };
    let (from, to) = (index(traffic.start), index(traffic.start + START));
    let lost = links.iter().map(|link| {
        let samples = link.samples.get(from..to.min(link.samples.len()));
        samples
            .unwrap_or_default()
            .iter()
            .map(|sample| sample.lost_pkts)
            .sum::<u64>()
    });
    is_counted(scenario, traffic).then(|| lost.sum())
}

/// Returns the time from the end of `traffic` until all links above the lowest rank are at rest, in milliseconds,
/// rounded up to a [`SAMPLE`]. 0 if they were at rest when the flow ended. `None` if they do not come to rest before
/// the next flow begins or the run ends, if all links have the same rank, or if `traffic` is outside the tunnel.
pub(super) fn return_ms(
    scenario: &Scenario,
    traffic: &Traffic,
    report: &PhaseReport,
) -> Option<f64> {
    let dear = ranks::dear(scenario);
    if dear.is_empty() || scenario.tunnel.is_none() || !is_counted(scenario, traffic) {
        return None;
    }
    let links = match traffic.direction {
        Direction::Down => &report.down.links,
        Direction::Up => &report.up.links,
    };
    let dear: Vec<&[Sample]> = dear
        .into_iter()
        .map(|link| links.get(link).map_or(&[][..], |link| &link.samples))
        .collect();
    let is_at_rest = |sample: usize| {
        let carried: Option<u64> = dear
            .iter()
            .map(|samples| Some(samples.get(sample)?.tx_bytes))
            .sum();
        carried.is_some_and(|bytes| mbps(bytes, SAMPLE.as_secs_f64()) < AT_REST_MBPS)
    };
    let begins = scenario
        .traffic
        .iter()
        .filter(|other| other.direction == traffic.direction && other.start >= traffic.stop);
    let until = begins.map(|other| other.start).min();
    let last = index(until.unwrap_or(scenario.duration));
    let first = index(traffic.stop);
    let at = (first..last)
        .find(|&at| at + AT_REST_SAMPLES <= last && (at..at + AT_REST_SAMPLES).all(is_at_rest))?;
    let at = SAMPLE * u32::try_from(at).ok()?;
    Some(millis(at.saturating_sub(traffic.stop)))
}

/// Whether `traffic` is a bulk flow that uses the tunnel.
fn is_counted(scenario: &Scenario, traffic: &Traffic) -> bool {
    is_bulk(traffic, false) && !is_cross(scenario, traffic)
}

/// Returns the number of bytes that were sent in `from..to` and never arrived in time.
fn lost_between(flow: &FlowReport, from: Duration, to: Duration) -> u64 {
    let sum = |bins: &[u64]| -> u64 {
        let bins = bins.iter().take(bin_index(to)).skip(bin_index(from));
        bins.sum()
    };
    sum(&flow.sent_bins).saturating_sub(sum(&flow.in_time_bins))
}

fn index(at: Duration) -> usize {
    usize::try_from(at.as_nanos() / SAMPLE.as_nanos()).unwrap_or(usize::MAX)
}
