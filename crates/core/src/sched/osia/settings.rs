//! Settings of `osia`.

use core::time::Duration;

use serde::Deserialize;

use super::Osia;

/// Settings of [`Osia`], with the keys of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OsiaSettings {
    /// Time for which a plan uses the same rates and delays, unless they change much.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// Difference between delays below which they count as equal.
    #[serde(with = "humantime_serde")]
    pub merge: Duration,
    /// How data that are sent over several lines are distributed.
    pub faucets: Faucets,
}

impl Default for OsiaSettings {
    /// Returns the paper's values: the period of section 5.1, and the merge threshold of section 3.2.
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            merge: Duration::from_millis(10),
            faucets: Faucets::Smooth,
        }
    }
}

impl OsiaSettings {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &["period", "merge", "faucets"];

    /// Creates a scheduler with these settings.
    #[must_use]
    pub fn scheduler(&self) -> Osia {
        Osia::new(*self)
    }
}

/// How data that are sent over several lines are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Faucets {
    /// As evenly as the lengths of the packets allow.
    Smooth,
    /// At random, as in the paper ("probabilistic"), with a fixed seed.
    Random,
}
