//! Settings of `osia`.

use core::time::Duration;

use serde::Deserialize;

use super::Osia;

/// Settings of [`Osia`], with the keys of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OsiaSettings {
    /// How long a plan goes by the same rates and delays, unless they change a lot.
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    /// Delays that differ by less count as equal.
    #[serde(with = "humantime_serde")]
    pub merge: Duration,
    /// How data that go over several lines are spread.
    pub faucets: Faucets,
}

impl Default for OsiaSettings {
    /// Section 5.1 for the period, 3.2 for what is merged.
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

    /// A scheduler with these settings.
    #[must_use]
    pub fn scheduler(&self) -> Osia {
        Osia::new(*self)
    }
}

/// How data that go over several lines are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Faucets {
    /// As evenly as their lengths allow.
    Smooth,
    /// By chance, as the paper has it ("probabilistic"): from a fixed seed.
    Random,
}
