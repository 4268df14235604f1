//! The keys of policy `osia`.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::sched::osia::{Faucets, OsiaSettings};

use super::values::{time, word};
use crate::config::{source::ConfigError, table::Table};

/// Reads the policy's keys from `table`. Missing keys get the paper's values.
///
/// # Errors
/// If a value has the wrong type or is out of its range.
pub(super) fn read(table: &Table<'_>) -> Result<OsiaSettings, ConfigError> {
    let mut settings = OsiaSettings::default();
    if let Some(value) = table.optional("period") {
        settings.period = time(&value, &PERIOD, "1s")?;
    }
    if let Some(value) = table.optional("merge") {
        settings.merge = time(&value, &MERGE, "10ms")?;
    }
    word(
        table,
        "faucets",
        &mut settings.faucets,
        [("smooth", Faucets::Smooth), ("random", Faucets::Random)],
    )?;
    Ok(settings)
}

const PERIOD: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
const MERGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(1);
