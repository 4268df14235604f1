//! The figures of a run, and their table.

use core::fmt;

use serde::Serialize;

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of processor cores, which gateway, clients and attackers share.
    pub cores: usize,
    /// The scenarios that were run.
    pub scenarios: Vec<Scenario>,
}

/// The figures of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// What was done.
    pub name: &'static str,
    /// Figures without a limit.
    pub facts: Vec<Fact>,
    /// Figures with a limit.
    pub limits: Vec<Limit>,
    /// What was found, in words.
    pub notes: Vec<String>,
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// What was measured.
    pub what: String,
    /// The value.
    pub value: f64,
    /// Unit of the value; empty for a number.
    pub unit: &'static str,
}

/// A figure with a limit.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// What was measured.
    pub what: String,
    /// The value.
    pub value: f64,
    /// The largest value that is allowed.
    pub most: f64,
    /// Unit of both; empty for a number.
    pub unit: &'static str,
    /// Whether the value is within the limit.
    pub holds: bool,
}

impl Report {
    /// Whether all figures are within their limits.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.scenarios.iter().all(Scenario::holds)
    }
}

impl Scenario {
    /// Returns a scenario without figures.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            facts: Vec::new(),
            limits: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a figure.
    pub(crate) fn fact(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let what = what.into();
        self.facts.push(Fact { what, value, unit });
    }

    /// Adds a figure with a limit.
    pub(crate) fn limit(
        &mut self,
        what: impl Into<String>,
        value: f64,
        most: f64,
        unit: &'static str,
    ) {
        self.limits.push(Limit {
            what: what.into(),
            value,
            most,
            unit,
            // A value that is not a number is not within its limit.
            holds: value <= most,
        });
    }

    /// Whether all figures are within their limits.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.limits.iter().all(|limit| limit.holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for scenario in &self.scenarios {
            writeln!(f, "{scenario}")?;
        }
        let verdict = if self.holds() {
            "all figures are within their limits"
        } else {
            "FAILED: the figures marked above are beyond their limits"
        };
        writeln!(f, "{verdict} ({} cores)", self.cores)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        for Fact { what, value, unit } in &self.facts {
            writeln!(f, "  {what:<58} {value:>12.2} {unit}")?;
        }
        for limit in &self.limits {
            let mark = if limit.holds { "ok" } else { "FAILED" };
            let Limit {
                what,
                value,
                most,
                unit,
                ..
            } = limit;
            writeln!(
                f,
                "  {what:<58} {value:>12.2} {unit}, at most {most}: {mark}"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

/// Returns by how much `with` is below `without`, in percent; negative if it is above.
pub(super) fn fall(without: f64, with: f64) -> f64 {
    (1.0 - with / without) * 100.0
}

/// Returns bytes in MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_beyond_its_limit_or_not_measured_is_marked() {
        let mut scenario = Scenario::new("a scenario");
        scenario.limit("good", 10.0, 10.0, "%");
        assert!(scenario.holds());
        scenario.limit("not measured", fall(0.0, 0.0), 10.0, "%");
        assert!(!scenario.holds());
        let report = Report {
            cores: 2,
            scenarios: vec![scenario],
        };
        let text = report.to_string();
        assert_eq!(text.matches("FAILED").count(), 2, "{text}");
        assert!(text.contains("at most 10: ok"), "{text}");
    }
}
