//! Runs every policy over every pair, and writes the measurements of the hosts as text.

use core::{fmt::Write as _, time::Duration};

use pleach_core::sched::Policy;
use pleach_sim::{
    results::{FlowKind, FlowResult},
    run::{EngineOnly, Options, run},
    scenario::Scenario,
};
use rayon::prelude::*;

use crate::pairs::{PAIRS, Pair};

/// Durations of the traffic.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) tcp: Duration,
    pub(crate) udp: Duration,
}

/// All policies over one pair with the same traffic.
pub(crate) struct Group {
    pub(crate) pair: &'static Pair,
    /// Description of the traffic.
    pub(crate) traffic: String,
    /// One entry per policy, in the order of their names.
    pub(crate) rows: Vec<Row>,
}

/// Result of one policy.
pub(crate) struct Row {
    pub(crate) policy: &'static str,
    pub(crate) flow: FlowResult,
}

/// Measures every policy over every pair, ordered by pair, traffic and policy. Only pairs and policies whose names are
/// `wanted` are measured. Runs are independent, on all cores.
pub(crate) fn measure(lengths: Lengths, wanted: impl Fn(&str) -> bool) -> Vec<Group> {
    let traffics = |pair: &'static Pair| {
        let udp = pair.udp.iter().map(|rate| Some(*rate));
        core::iter::once(None)
            .chain(udp)
            .map(move |udp| (pair, udp))
    };
    let pairs = PAIRS.iter().filter(|pair| wanted(pair.name));
    let groups: Vec<_> = pairs.flat_map(traffics).collect();
    let names = Policy::<String>::NAMES.iter().copied();
    let names: Vec<&str> = names.filter(|name| wanted(name)).collect();
    let runs: Vec<_> = groups
        .iter()
        .flat_map(|group| names.iter().map(move |policy| (*group, *policy)))
        .collect();
    let mut rows = runs
        .into_par_iter()
        .map(|((pair, udp), policy)| Row {
            policy,
            flow: simulate(&scenario(pair, udp, policy, lengths)),
        })
        .collect::<Vec<_>>()
        .into_iter();
    groups
        .into_iter()
        .map(|(pair, udp)| Group {
            pair,
            traffic: udp.map_or_else(|| "TCP".to_owned(), |rate| format!("UDP {rate}")),
            rows: rows.by_ref().take(names.len()).collect(),
        })
        .collect()
}

/// Returns the table. Every number is formatted by [`short`].
pub(crate) fn text(groups: &[Group]) -> String {
    let mut out = String::new();
    let mut last = "";
    for Group {
        pair,
        traffic,
        rows,
    } in groups
    {
        if pair.name != last {
            last = pair.name;
            put(&mut out, format_args!("\n{}: {}\n", pair.name, pair.why));
        }
        let kind = rows.first().map(|row| row.flow.kind);
        let (lost, delay) = match kind {
            Some(FlowKind::Quic | FlowKind::Tcp) => ("resent", "rtt"),
            _ => ("loss %", "delay"),
        };
        put(
            &mut out,
            format_args!(
                "  {traffic:<18}{:>8}{lost:>8}{:>11}{:>11}{:>9}{:>8}\n",
                "Mbit/s",
                format!("{delay} p50"),
                format!("{delay} p99"),
                "reorder",
                "gap"
            ),
        );
        for row in rows {
            let flow = &row.flow;
            let lost = match flow.kind {
                FlowKind::Quic | FlowKind::Tcp => count(flow.retransmits),
                FlowKind::Ping
                | FlowKind::Requests
                | FlowKind::Udp
                | FlowKind::Video
                | FlowKind::Voice => short(flow.loss * 100.0),
            };
            let reorder = match flow.kind {
                FlowKind::Quic | FlowKind::Tcp => "-".to_owned(),
                FlowKind::Ping
                | FlowKind::Requests
                | FlowKind::Udp
                | FlowKind::Video
                | FlowKind::Voice => count(Some(flow.reorder_depth_max)),
            };
            put(
                &mut out,
                format_args!(
                    "    {:<16}{:>8}{lost:>8}{:>11}{:>11}{reorder:>9}{:>8}\n",
                    row.policy,
                    short(flow.goodput_mbps),
                    millis(flow.delay_ms.p50),
                    millis(flow.delay_ms.p99),
                    millis(flow.longest_gap_ms),
                ),
            );
        }
    }
    out
}

/// Rounds `value` to two significant digits, or to half of the second digit if the first is 1, so that a step is 2 to
/// 10 % and small changes are not visible. Only zero is written as zero. Values below 0.01 are written as `<0.01`.
fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value < 0.01 {
        return "<0.01".to_owned();
    }
    // Formatting rounds exactly, the same on every machine.
    let two_digits = |value: f64| format!("{value:.1e}").parse().unwrap_or(f64::NAN);
    let text = format!("{value:e}");
    let rounded: f64 = if text.starts_with('1') {
        two_digits(value * 2.0) / 2.0
    } else {
        two_digits(value)
    };
    rounded.to_string()
}

/// Formats milliseconds. A dash if there was no measurement.
fn millis(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| short(value as f64))
}

fn put(out: &mut String, text: core::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a String cannot fail");
}

fn simulate(scenario: &Scenario) -> FlowResult {
    let options = Options {
        program: &EngineOnly,
        skip_baselines: true,
        progress: &|_| {},
    };
    let results = run(scenario, &options);
    let results = results.unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
    results.flows.into_iter().next().expect("one flow")
}

/// Returns the scenario of one TCP download, or of UDP at the rate `udp`.
pub(crate) fn scenario(pair: &Pair, udp: Option<&str>, policy: &str, lengths: Lengths) -> Scenario {
    let (duration, traffic) = match udp {
        None => (lengths.tcp, "kind = \"tcp\"\ncc = \"cubic\"".to_owned()),
        Some(rate) => (
            lengths.udp,
            format!("kind = \"udp\"\nsize = \"1200B\"\nrate = \"{rate}\""),
        ),
    };
    let text = format!(
        "name = \"{}, {policy}\"\nduration = \"{}ms\"\n{}\n[tunnel]\npolicy = \"{policy}\"\n[[traffic]]\n{traffic}\n",
        pair.name,
        duration.as_millis(),
        pair.links
    );
    Scenario::parse_alone(pair.name, &text).unwrap_or_else(|error| panic!("{error}"))
}
