//! The keys of the media policies `consn` and `srtt-weighted`.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::sched::{Alpha, ConsnSettings, SrttWeightedSettings, Variant, Weights};

use super::values::{time, word};
use crate::config::{source::ConfigError, table::Table};

/// Reads the keys of `consn` from `table`. Missing keys get the paper's values.
///
/// # Errors
/// If a value has the wrong type or is out of its range.
pub(super) fn read(table: &Table<'_>) -> Result<ConsnSettings, ConfigError> {
    let mut settings = ConsnSettings::default();
    if let Some(value) = table.optional("variant") {
        let number = value.integer(1..=2, "write 1 (the default) or 2")?;
        settings.variant = Variant::new(u64::from(number)).unwrap_or(settings.variant);
    }
    flag(table, "redundancy", &mut settings.redundancy)?;
    let shared = Shared {
        alpha: &mut settings.alpha,
        pdc: &mut settings.pdc,
        deadline: &mut settings.deadline,
        in_order: &mut settings.in_order,
    };
    shared.read(table)?;
    Ok(settings)
}

/// Reads the keys of `srtt-weighted` from `table`. Missing keys get their defaults.
///
/// # Errors
/// As [`read`].
pub(super) fn read_srtt_weighted(table: &Table<'_>) -> Result<SrttWeightedSettings, ConfigError> {
    let mut settings = SrttWeightedSettings::default();
    word(
        table,
        "weights",
        &mut settings.weights,
        [("srtt", Weights::Srtt), ("equal", Weights::Equal)],
    )?;
    let shared = Shared {
        alpha: &mut settings.alpha,
        pdc: &mut settings.pdc,
        deadline: &mut settings.deadline,
        in_order: &mut settings.in_order,
    };
    shared.read(table)?;
    Ok(settings)
}

/// Fields of the keys that both policies have.
struct Shared<'a> {
    alpha: &'a mut Alpha,
    pdc: &'a mut bool,
    deadline: &'a mut Duration,
    in_order: &'a mut bool,
}

impl Shared<'_> {
    fn read(self, table: &Table<'_>) -> Result<(), ConfigError> {
        if let Some(value) = table.optional("alpha") {
            let alpha = value.as_number().and_then(Alpha::new);
            *self.alpha = alpha.ok_or_else(|| {
                value.expected("a number from 0.001 to 1", "write for example 0.125")
            })?;
        }
        flag(table, "pdc", self.pdc)?;
        if let Some(value) = table.optional("deadline") {
            *self.deadline = time(&value, &DEADLINE, "200ms")?;
        }
        flag(table, "in_order", self.in_order)
    }
}

fn flag(table: &Table<'_>, key: &str, field: &mut bool) -> Result<(), ConfigError> {
    if let Some(value) = table.optional(key) {
        let remedy = format!("write {}, or remove it", !*field);
        *field = value
            .as_bool()
            .ok_or_else(|| value.expected("true or false", &remedy))?;
    }
    Ok(())
}

const DEADLINE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
