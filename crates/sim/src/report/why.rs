//! Why a goal was missed, from the measurements of the run.

use super::{
    facts::Facts,
    format::{duration, percent},
};
use crate::results::{Event, FlowKind, Results};

/// Returns what became of the lines' capacity: how full the lines were, and the share of headers and repetitions.
/// `None` if the capacities or the goodput are not known.
pub(super) fn share(results: &Results, facts: &Facts<'_>) -> Option<String> {
    let (mut capacity, mut carried) = (0.0, 0.0);
    for link in &results.links {
        let side = facts.side(link);
        let mbps = side.capacity_mbps?;
        capacity += mbps;
        carried += mbps * side.utilisation?;
    }
    let goodput = facts.goodput_mbps?;
    if !(capacity > 0.0 && carried >= goodput && carried <= capacity) {
        return None;
    }
    let (full, rest) = (
        percent(carried / capacity),
        percent(1.0 - goodput / carried),
    );
    Some(format!(
        "the lines were {full} full; headers and repetitions took {rest} of what they carried"
    ))
}

/// Returns how long pings through the tunnel stopped after `event`, if that was shorter than the pause of the data.
pub(super) fn gap(results: &Results, facts: &Facts<'_>, event: &Event) -> Option<String> {
    let pause_ms = event.gap_ms?;
    // Replies tell when the tunnel worked, whatever the senders of the data did.
    let near = event.time_s - 0.5..event.time_s + 2.0 + pause_ms / 1e3;
    let pings = results.series.ping.iter();
    let answered: Vec<f64> = pings
        .filter(|ping| near.contains(&ping.time_s))
        .filter_map(|ping| Some(ping.time_s * 1e3 + ping.rtt_ms?))
        .collect();
    // Without an answer after the pause, it is not known when the tunnel worked again.
    let resumed_ms = event.time_s * 1e3 + pause_ms;
    answered.iter().find(|at| **at >= resumed_ms)?;
    let steps = answered.windows(2).map(|pair| pair[1] - pair[0]);
    let stopped_ms = steps.reduce(f64::max)?;
    let is_tcp = !facts.bulk.is_empty() && facts.bulk.iter().all(|flow| flow.kind == FlowKind::Tcp);
    (is_tcp && stopped_ms < pause_ms).then(|| {
        format!(
            "pings stopped for {}; the rest is the time that TCP needs to send lost data again",
            duration(stopped_ms)
        )
    })
}
