//! A table of a sweep by policy: how the bond compares with its links.

use std::collections::BTreeMap;

use super::Row;

/// Share of the best link below which a case counts as a loss from bonding.
pub const NO_REGRET: f64 = 0.95;

/// Cases with one policy.
#[derive(Default)]
struct Group {
    cases: u64,
    failed: u64,
    of_best: Vec<f64>,
    of_sum: Vec<f64>,
    /// Lowest share of the best link, and its case.
    lowest: Option<(f64, u64)>,
}

/// Returns a table with a line for each policy: number of cases, number of cases that could not be simulated, geometric
/// means of the shares of the best link and of the sum of the links, number of cases below [`NO_REGRET`] of the best
/// link, and the lowest share with the number of its case.
///
/// The geometric mean is 0 if a share is 0.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for row in rows {
        groups.entry(&row.policy).or_default().add(row);
    }
    let head = [
        "policy",
        "cases",
        "failed",
        "of best",
        "of sum",
        "below 0.95",
        "lowest",
        "in case",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(groups.iter().map(|(policy, group)| group.line(policy)));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; 8] = core::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        for (column, field) in line.iter().enumerate() {
            let width = widths[column];
            match column {
                0 => text += &format!("{field:<width$}"),
                _ => text += &format!("  {field:>width$}"),
            }
        }
        text.push('\n');
    }
    text
}

impl Group {
    fn add(&mut self, row: &Row) {
        self.cases += 1;
        self.failed += u64::from(row.error.is_some());
        self.of_sum.extend(row.share_of_sum);
        if let Some(share) = row.share_of_best {
            self.of_best.push(share);
            if self.lowest.is_none_or(|(lowest, _)| share < lowest) {
                self.lowest = Some((share, row.case));
            }
        }
    }

    fn line(&self, policy: &str) -> [String; 8] {
        let number = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
        };
        let below = self.of_best.iter().filter(|share| **share < NO_REGRET);
        [
            if policy.is_empty() {
                "no tunnel"
            } else {
                policy
            }
            .to_owned(),
            self.cases.to_string(),
            self.failed.to_string(),
            number(geometric_mean(&self.of_best)),
            number(geometric_mean(&self.of_sum)),
            below.count().to_string(),
            number(self.lowest.map(|(share, _)| share)),
            self.lowest
                .map_or_else(|| "-".to_owned(), |(_, case)| case.to_string()),
        ]
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of cases")]
fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: u64, policy: &str, of_best: Option<f64>) -> Row {
        Row {
            case,
            policy: policy.to_owned(),
            share_of_best: of_best,
            share_of_sum: of_best.map(|share| share / 2.0),
            error: of_best
                .is_none()
                .then(|| "the tunnel did not come up".to_owned()),
            ..Row::default()
        }
    }

    #[test]
    fn policies_are_compared_by_geometric_means() {
        let rows = [
            row(0, "adaptive", Some(2.0)),
            row(1, "min-rtt", Some(1.0)),
            row(2, "adaptive", Some(0.5)),
            row(3, "min-rtt", None),
        ];
        assert_eq!(
            table(&rows),
            "policy    cases  failed  of best  of sum  below 0.95  lowest  in case\n\
             adaptive      2       0    1.000   0.500           1   0.500        2\n\
             min-rtt       2       1    1.000   0.500           0   1.000        1\n"
        );
    }
}
