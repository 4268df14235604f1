//! The keys of policy `awi`.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::sched::{AwiSettings, Count, Dwd, Gain, LossSource, Wrr};

use super::values::{time, word};
use crate::config::{network, source::ConfigError, table::Table};

/// Reads the policy's keys from `table`. Missing keys get the paper's values.
///
/// # Errors
/// If a value has the wrong type or is out of its range.
pub(super) fn read(table: &Table<'_>) -> Result<AwiSettings<String>, ConfigError> {
    let mut settings = AwiSettings::default();
    if let Some(value) = table.optional("fixed") {
        settings.fixed = Some(network::name(&value)?);
    }
    if let Some(value) = table.optional("k") {
        let k = value.as_number().and_then(Gain::new);
        settings.k = k.ok_or_else(|| {
            value.expected("a number from 0.000001 to 1000", "write for example 0.5")
        })?;
    }
    for (key, field, range, example) in [
        ("t_dwd", &mut settings.t_dwd, &T_DWD, "250ms"),
        ("t_report", &mut settings.t_report, &T_REPORT, "50ms"),
        ("t_lto", &mut settings.t_lto, &T_LTO, "50ms"),
    ] {
        if let Some(value) = table.optional(key) {
            *field = time(&value, range, example)?;
        }
    }
    for (key, field, range, example) in [
        ("w_fixed", &mut settings.w_fixed, 1..=1000, 50),
        ("w_mobile_max", &mut settings.w_mobile_max, 0..=1000, 45),
    ] {
        if let Some(value) = table.optional(key) {
            *field = value
                .integer(range, &format!("write for example {example}"))?
                .into();
        }
    }
    word(
        table,
        "dwd",
        &mut settings.dwd,
        [("rearm", Dwd::Rearm), ("literal", Dwd::Literal)],
    )?;
    word(
        table,
        "loss",
        &mut settings.loss,
        [("fixed", LossSource::Fixed), ("both", LossSource::Both)],
    )?;
    word(
        table,
        "count",
        &mut settings.count,
        [("packets", Count::Packets), ("bytes", Count::Bytes)],
    )?;
    word(
        table,
        "wrr",
        &mut settings.wrr,
        [("block", Wrr::Block), ("smooth", Wrr::Smooth)],
    )?;
    Ok(settings)
}

const T_DWD: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// Permitted range of the report interval: reports more often than every 5 ms would be a load of their own.
const T_REPORT: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(10);
const T_LTO: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
