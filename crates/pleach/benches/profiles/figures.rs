//! Computes the figures of a case from the results of a run.

use std::collections::BTreeMap;

use pleach_sim::{
    bonds::Case,
    results::{self, Results},
};
use serde::Serialize;

/// Figures of a run through the tunnel; for several runs, the median of each figure.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Goodput after the warm-up.
    pub(crate) goodput_mbps: Option<f64>,
    /// Median RTT of the ping before the download.
    pub(crate) ping_idle_ms: Option<f64>,
    /// Increase of the RTT over the idle median during the download: median, and 99th percentile.
    pub(crate) ping_added_p50_ms: Option<f64>,
    pub(crate) ping_added_p99_ms: Option<f64>,
    /// Share of pings without reply.
    pub(crate) ping_loss: Option<f64>,
    /// 95th percentile of the time for which the receiving end's resequencer buffered packets, at the end.
    pub(crate) hold_p95_ms: Option<f64>,
    /// Longest time in which no payload arrived.
    pub(crate) longest_gap_ms: Option<f64>,
    /// Number of segments that the server retransmitted.
    pub(crate) retransmits: Option<f64>,
    /// Packets in the direction of the flow that full queues dropped, and that the lines lost.
    pub(crate) queue_drops: Option<f64>,
    pub(crate) loss_drops: Option<f64>,
}

/// All results of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) case: Case,
    /// Goodput of each link alone.
    pub(crate) singles_mbps: Vec<f64>,
    /// Goodput of the kernel's MPTCP (lab only).
    pub(crate) mptcp_mbps: Option<f64>,
    /// Goodput of other programs, by name (lab only).
    pub(crate) peers_mbps: BTreeMap<String, Option<f64>>,
    pub(crate) bonded: Figures,
    /// Goodput of each run.
    pub(crate) runs_mbps: Vec<f64>,
    /// Reasons why runs failed or must not be trusted, one entry for each such run.
    pub(crate) remarks: Vec<String>,
}

impl Outcome {
    /// Returns the goodput of the better link.
    pub(crate) fn best_mbps(&self) -> f64 {
        self.singles_mbps.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the sum of the goodputs of all links, each measured alone.
    pub(crate) fn sum_mbps(&self) -> f64 {
        self.singles_mbps.iter().sum()
    }

    /// Returns the tunnel's goodput divided by the better link's; zero if the tunnel carried nothing.
    pub(crate) fn over_best(&self) -> f64 {
        self.bonded.goodput_mbps.unwrap_or(0.0) / self.best_mbps()
    }

    /// Returns the tunnel's goodput divided by the sum over all links.
    pub(crate) fn over_sum(&self) -> f64 {
        self.bonded.goodput_mbps.unwrap_or(0.0) / self.sum_mbps()
    }
}

impl Figures {
    /// Returns the figures of one run.
    pub(crate) fn of(case: &Case, results: &Results, is_upload: bool) -> Self {
        let flow = results.flows.first();
        let pings = results.pings.as_ref();
        let idle = pings.and_then(|pings| pings.idle.rtt_ms.p50);
        let added = |loaded: Option<f64>| Some(loaded? - idle?);
        let total = |drops: fn(&results::LinkSide) -> u64| {
            let links = results.links.iter();
            let drops = links.map(|link| match is_upload {
                true => drops(&link.up),
                false => drops(&link.down),
            });
            count(drops.sum())
        };
        Self {
            goodput_mbps: case.goodput(results),
            ping_idle_ms: idle,
            ping_added_p50_ms: pings.and_then(|pings| added(pings.loaded.rtt_ms.p50)),
            ping_added_p99_ms: pings.and_then(|pings| added(pings.loaded.rtt_ms.p99)),
            ping_loss: pings.and_then(|pings| {
                let loaded = &pings.loaded;
                Some(count(loaded.lost)? / count(loaded.sent.max(1))?)
            }),
            hold_p95_ms: hold_p95(results, if is_upload { "gateway" } else { "client" }),
            longest_gap_ms: flow.and_then(|flow| flow.longest_gap_ms),
            retransmits: flow.and_then(|flow| count(flow.retransmits?)),
            queue_drops: total(|side| side.queue_drops),
            loss_drops: total(|side| side.loss_drops),
        }
    }

    /// Returns the median of each figure over `runs`.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(figure).collect();
            results::median(&values)
        };
        Self {
            goodput_mbps: median(|run| run.goodput_mbps),
            ping_idle_ms: median(|run| run.ping_idle_ms),
            ping_added_p50_ms: median(|run| run.ping_added_p50_ms),
            ping_added_p99_ms: median(|run| run.ping_added_p99_ms),
            ping_loss: median(|run| run.ping_loss),
            hold_p95_ms: median(|run| run.hold_p95_ms),
            longest_gap_ms: median(|run| run.longest_gap_ms),
            retransmits: median(|run| run.retransmits),
            queue_drops: median(|run| run.queue_drops),
            loss_drops: median(|run| run.loss_drops),
        }
    }
}

/// Returns the goodput over the kernel's MPTCP after the warm-up, in Mbit/s, if it was measured.
pub(crate) fn mptcp(case: &Case, results: &Results) -> Option<f64> {
    let mut baselines = results.baselines.iter();
    let mptcp = baselines.find(|baseline| baseline.transport == results::Transport::Mptcp)?;
    case.after_warm_up(results.series.interval_ms, &mptcp.series_mbps)
}

/// Returns the resequencer's 95th percentile of buffering time in the last status of `node`.
fn hold_p95(results: &Results, node: &str) -> Option<f64> {
    let mut samples = results.status.iter().rev();
    let last = samples.find(|sample| sample.node == node)?;
    last.status.pointer("/resequencer/hold_p95_ms")?.as_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "beside figures that may be missing"
)]
fn count(count: u64) -> Option<f64> {
    Some(count as f64)
}
