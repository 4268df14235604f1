//! Prints the results: a line per case, the worst cases in full, and a summary.

use core::fmt::Write as _;

use pleach_sim::results;

use crate::{
    figures::Outcome,
    options::{Options, Set, World},
};

/// Share of the better link's goodput below which the tunnel is a loss.
const NO_REGRET: f64 = 0.95;
/// Number of the worst cases that are shown in full.
const WORST: usize = 10;

/// Renders the table of `outcomes`.
pub(crate) fn text(outcomes: &[Outcome], options: &Options) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, outcomes, options);
    text
}

fn write(text: &mut String, outcomes: &[Outcome], options: &Options) -> core::fmt::Result {
    let widths = outcomes.iter().map(|outcome| outcome.case.name.len());
    let width = widths.max().unwrap_or(0).max(4);
    let in_lab = options.place == World::Lab;
    write!(
        text,
        "{:width$} {:>7} {:>7} {:>7} {:>6} {:>6}",
        "case", "best", "sum", "bonded", "/best", "/sum"
    )?;
    if in_lab {
        write!(text, " {:>7}", "mptcp")?;
    }
    for peer in &options.peers {
        write!(text, " {:>w$}", peer.name, w = peer.name.len().max(7))?;
    }
    if options.ping {
        write!(text, " {:>8} {:>8}", "ping p50+", "p99+")?;
    }
    writeln!(text, " {:>8}", "hold p95")?;
    for outcome in outcomes {
        row(text, outcome, width, options)?;
    }
    for outcome in outcomes {
        for remark in &outcome.remarks {
            writeln!(text, "{}: {remark}", outcome.case.name)?;
        }
    }
    if options.sets().contains(&Set::Sweep) {
        worst(text, outcomes)?;
    }
    summary(text, outcomes)
}

fn row(text: &mut String, outcome: &Outcome, width: usize, options: &Options) -> core::fmt::Result {
    write!(
        text,
        "{:width$} {:>7.2} {:>7.2} {:>7.2} {:>6.2} {:>6.2}",
        outcome.case.name,
        outcome.best_mbps(),
        outcome.sum_mbps(),
        outcome.bonded.goodput_mbps.unwrap_or(f64::NAN),
        outcome.over_best(),
        outcome.over_sum(),
    )?;
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    if options.place == World::Lab {
        write!(text, " {:>7}", optional(outcome.mptcp_mbps, 2))?;
    }
    for peer in &options.peers {
        let mbps = outcome.peers_mbps.get(&peer.name).copied().flatten();
        write!(
            text,
            " {:>w$}",
            optional(mbps, 2),
            w = peer.name.len().max(7)
        )?;
    }
    let bonded = &outcome.bonded;
    if options.ping {
        let (p50, p99) = (bonded.ping_added_p50_ms, bonded.ping_added_p99_ms);
        write!(text, " {:>9} {:>8}", optional(p50, 1), optional(p99, 1))?;
    }
    write!(text, " {:>8}", optional(bonded.hold_p95_ms, 1))?;
    let is_loss = outcome.over_best() < NO_REGRET;
    let is_missed = misses_target(outcome);
    writeln!(
        text,
        "{}{}",
        if is_loss { "  LOSS" } else { "" },
        if is_missed { "  below target" } else { "" },
    )
}

/// Writes the cases in which the tunnel lost most, with all their figures.
fn worst(text: &mut String, outcomes: &[Outcome]) -> core::fmt::Result {
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by(|a, b| a.over_best().total_cmp(&b.over_best()));
    writeln!(text, "the worst:")?;
    for outcome in sorted.into_iter().take(WORST) {
        let bonded = &outcome.bonded;
        writeln!(
            text,
            "  {}: bonded {:.2} = {:.2} of the best, {:.2} of the sum; hold p95 {:.1} ms, gap {:.0} ms, resent {:.0}, \
             queue drops {:.0}, line losses {:.0}",
            outcome.case.name,
            bonded.goodput_mbps.unwrap_or(f64::NAN),
            outcome.over_best(),
            outcome.over_sum(),
            bonded.hold_p95_ms.unwrap_or(f64::NAN),
            bonded.longest_gap_ms.unwrap_or(f64::NAN),
            bonded.retransmits.unwrap_or(f64::NAN),
            bonded.queue_drops.unwrap_or(f64::NAN),
            bonded.loss_drops.unwrap_or(f64::NAN),
        )?;
        for (link, mbps) in outcome.case.links.iter().zip(&outcome.singles_mbps) {
            writeln!(text, "    alone {mbps:>7.2}: {link}")?;
        }
    }
    Ok(())
}

fn summary(text: &mut String, outcomes: &[Outcome]) -> core::fmt::Result {
    let losses = outcomes
        .iter()
        .filter(|outcome| outcome.over_best() < NO_REGRET);
    let (losses, all) = (losses.count(), outcomes.len());
    let median = |ratio: fn(&Outcome) -> f64| {
        let ratios: Vec<f64> = outcomes.iter().map(ratio).collect();
        results::median(&ratios).unwrap_or(f64::NAN)
    };
    // A case in which nothing arrived counts as a thousandth.
    let mean = |ratio: fn(&Outcome) -> f64| {
        let logs = outcomes.iter().map(|outcome| ratio(outcome).max(1e-3).ln());
        (logs.sum::<f64>() / count(all.max(1))).exp()
    };
    writeln!(
        text,
        "{losses} of {all} below {NO_REGRET} of the best link ({:.1} %); median {:.3} of the best, {:.3} of the sum; \
         geometric mean {:.3} of the best, {:.3} of the sum",
        100.0 * ratio(losses, all),
        median(Outcome::over_best),
        median(Outcome::over_sum),
        mean(Outcome::over_best),
        mean(Outcome::over_sum),
    )?;
    let with_target = outcomes
        .iter()
        .filter(|outcome| outcome.case.target.is_some());
    let missed: Vec<String> = with_target
        .clone()
        .filter(|outcome| misses_target(outcome))
        .map(|outcome| {
            let (name, target) = (&outcome.case.name, outcome.case.target.unwrap_or(0.0));
            format!("{name} {:.2} < {target}", outcome.over_sum())
        })
        .collect();
    let (with_target, words) = (with_target.count(), missed.join(", "));
    if with_target > 0 {
        let colon = if missed.is_empty() { "" } else { ": " };
        writeln!(
            text,
            "{} of {with_target} targets missed{colon}{words}",
            missed.len()
        )?;
    }
    Ok(())
}

fn misses_target(outcome: &Outcome) -> bool {
    let target = outcome.case.target;
    target.is_some_and(|target| outcome.over_sum() < target)
}

fn ratio(part: usize, all: usize) -> f64 {
    count(part) / count(all.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of cases")]
fn count(cases: usize) -> f64 {
    cases as f64
}
