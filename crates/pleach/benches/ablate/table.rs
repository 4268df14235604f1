//! Computes effects with their confidence intervals, and the verdicts.

use core::fmt::Write as _;

use pleach_sim::{bonds::Case, results};

use crate::{
    rule::Rule,
    runs::{Job, Runs},
    workload::Workload,
};

/// Minimum effect, as geometric mean in percent, of a mechanism that is worth its complexity.
pub(crate) const LEAST_EFFECT: f64 = 0.5;
/// Share of the better link's goodput that the tunnel promises to reach.
const LEAST_SHARE: f64 = 0.95;
/// Half width of a 95 % interval in standard errors, for at least 30 cases.
const STANDARD_ERRORS: f64 = 1.96;

/// Effects of one mechanism.
#[derive(Debug)]
pub(crate) struct Row {
    rule: Rule,
    /// Effect on each kind of traffic.
    effects: Vec<(Workload, Effect)>,
    all: Effect,
    /// Pairs that fall below the better link without the mechanism: index of the case, and traffic.
    fallen: Vec<(usize, Workload)>,
    /// Number of pairs that reach the better link only without the mechanism.
    risen: usize,
}

/// Mean gain over cases, in percent.
#[derive(Clone, Copy, Debug, Default)]
struct Effect {
    cases: usize,
    mean: f64,
    /// Half width of the 95 % confidence interval.
    error: f64,
    /// Number of cases in which both runs gave exactly the same figure.
    same: usize,
}

impl Row {
    /// Compares runs with and without `rule`.
    pub(crate) fn of(
        rule: &Rule,
        cases: &[Case],
        workloads: &[Workload],
        count: u32,
        runs: &Runs,
    ) -> Self {
        let (mut effects, mut all) = (Vec::new(), Vec::new());
        let (mut fallen, mut risen) = (Vec::new(), 0);
        for &workload in workloads {
            let mut gains = Vec::new();
            for (index, case) in cases.iter().enumerate().take(workload.most_cases()) {
                let figures = |rule| median(case, workload, rule, count, runs);
                let (Some(with), Some(without)) = (figures(None), figures(Some(rule))) else {
                    continue;
                };
                gains.push((with / without).ln() * 100.0);
                if let Some(best) = best(case, workload, count, runs) {
                    let keeps = |figure: f64| figure / best >= LEAST_SHARE;
                    match (keeps(with), keeps(without)) {
                        (true, false) => fallen.push((index, workload)),
                        (false, true) => risen += 1,
                        (true, true) | (false, false) => {}
                    }
                }
            }
            effects.push((workload, Effect::of(&gains)));
            all.extend(gains);
        }
        Self {
            rule: rule.clone(),
            effects,
            all: Effect::of(&all),
            fallen,
            risen,
        }
    }

    /// Returns the pairs that fall below the better link without the mechanism.
    pub(crate) fn fallen<'a>(
        &'a self,
        cases: &'a [Case],
    ) -> impl Iterator<Item = (&'a Rule, &'a Case, Workload)> {
        let fallen = self.fallen.iter();
        fallen.map(|(index, workload)| (&self.rule, &cases[*index], *workload))
    }

    /// Removes the pairs that do not fall in the median of `count` runs.
    pub(crate) fn confirm(mut self, cases: &[Case], count: u32, runs: &Runs) -> Self {
        let rule = &self.rule;
        self.fallen.retain(|(index, workload)| {
            let case = &cases[*index];
            let share = |rule| {
                let best = best(case, *workload, count, runs)?;
                Some(median(case, *workload, rule, count, runs)? / best)
            };
            let (with, without) = (share(None), share(Some(rule)));
            with >= Some(LEAST_SHARE) && without < Some(LEAST_SHARE)
        });
        self
    }

    fn verdict(&self) -> &'static str {
        let is_strong = |effect: &Effect| effect.mean - effect.error > LEAST_EFFECT;
        let is_weak = self.all.mean + self.all.error < LEAST_EFFECT;
        if is_strong(&self.all) || !self.fallen.is_empty() {
            "stays"
        } else if is_weak && !self.effects.iter().any(|(_, effect)| is_strong(effect)) {
            "idle"
        } else {
            "open"
        }
    }
}

impl Effect {
    #[expect(clippy::cast_precision_loss, reason = "a number of cases")]
    fn of(gains: &[f64]) -> Self {
        let count = gains.len() as f64;
        if gains.is_empty() {
            return Self::default();
        }
        let mean = gains.iter().sum::<f64>() / count;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>();
        let variance = variance / (count - 1.0).max(1.0);
        Self {
            cases: gains.len(),
            mean,
            error: STANDARD_ERRORS * (variance / count).sqrt(),
            same: gains.iter().filter(|gain| **gain == 0.0).count(),
        }
    }
}

/// Returns the median figure of `count` runs through the tunnel.
fn median(
    case: &Case,
    workload: Workload,
    rule: Option<&Rule>,
    count: u32,
    runs: &Runs,
) -> Option<f64> {
    let figures = (0..count).filter_map(|run| runs.figure(&Job::bonded(case, workload, rule, run)));
    results::median(&figures.collect::<Vec<_>>())
}

/// Returns the median figure of the better link.
fn best(case: &Case, workload: Workload, count: u32, runs: &Runs) -> Option<f64> {
    if !workload.has_share() {
        return None;
    }
    let links = case.links.len();
    let jobs: Vec<Vec<Job<'_>>> = (0..count)
        .map(|run| Job::singles(case, workload, run))
        .collect();
    let of_link = |link: usize| {
        let figures = jobs.iter().filter_map(|jobs| runs.figure(&jobs[link]));
        results::median(&figures.collect::<Vec<_>>())
    };
    (0..links).filter_map(of_link).reduce(f64::max)
}

/// Renders the table in Markdown.
pub(crate) fn text(rows: &[Row], cases: &[Case]) -> String {
    let mut text = String::new();
    let Some(first) = rows.first() else {
        return text;
    };
    // Writing to a string cannot fail.
    let _ = write!(text, "| mechanism | gain, all, % ");
    for (workload, effect) in &first.effects {
        let _ = write!(text, "| {} ({} cases) ", workload.name(), effect.cases);
    }
    let _ = writeln!(text, "| unchanged | pairs kept at 0.95 | verdict |");
    let columns = first.effects.len();
    let _ = writeln!(
        text,
        "| --- {}| ---: | --- | --- |",
        "| ---: ".repeat(columns + 1)
    );
    for row in rows {
        let _ = write!(text, "| `{}` | {}", row.rule.name(), show(&row.all));
        for (_, effect) in &row.effects {
            let _ = write!(text, " | {}", show(effect));
        }
        let names = row.fallen.iter().map(|(index, workload)| {
            let name = &cases[*index].name;
            format!("{name} ({})", workload.name())
        });
        let kept = names.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            " | {} of {} | {kept}{} | {} |",
            row.all.same,
            row.all.cases,
            if row.risen > 0 {
                format!(" (−{})", row.risen)
            } else {
                String::new()
            },
            row.verdict()
        );
    }
    text
}

fn show(effect: &Effect) -> String {
    format!("{:+.2} ± {:.2}", effect.mean, effect.error)
}
