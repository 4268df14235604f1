//! The table `[scheduler]`: the policy, its own keys, and parts of its profile.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::{
    profile::Part,
    sched::{AutoWeightSettings, Policy, SchedulerSettings, SingleSettings},
};
use serde::Deserialize as _;
use toml::de::Deserializer;

use super::{
    source::ConfigError,
    table::{Table, Value},
};

mod adaptive;
mod awi;
mod consn;
mod osia;
mod profile;
pub(super) mod sec;
mod values;

/// A table `[scheduler]`: a policy with its keys, and the user's changes to the policy's profile.
pub(crate) type SchedulerConfig = SchedulerSettings<String>;

/// Reads the table `[scheduler]` of `root`, or returns the default if the table is missing.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn read(root: &Table<'_>) -> Result<SchedulerConfig, ConfigError> {
    match root.optional("scheduler") {
        Some(value) => read_table(&value, "[scheduler]"),
        None => Ok(SchedulerConfig::default()),
    }
}

/// Reads the scheduler table `value`, called `label` in messages.
///
/// # Errors
/// If the policy is unknown, a key belongs to another policy, or a value is invalid.
pub(super) fn read_table(value: &Value<'_>, label: &str) -> Result<SchedulerConfig, ConfigError> {
    let table = value.table(label.to_owned(), &keys())?;
    let list = format!("write one of: {}", NAMES.join(", "));
    let policy = table.required("policy", "policy = \"adaptive\"")?;
    let name = policy.text("the name of a policy", &list)?;
    if !NAMES.contains(&name) {
        return Err(policy.expected("a known policy", &list));
    }
    refuse_foreign_keys(&table, name)?;
    let change = profile::read(&table)?;
    let policy = match name {
        "adaptive" => Policy::Adaptive(adaptive::read(&table)?),
        "auto-weight" => {
            let mut settings = AutoWeightSettings::default();
            if let Some(value) = table.optional("interval") {
                settings.interval = values::time(&value, &INTERVAL, "200ms")?;
            }
            Policy::AutoWeight(settings)
        }
        "awi" => Policy::Awi(awi::read(&table)?),
        "consn" => Policy::Consn(consn::read(&table)?),
        "osia" => Policy::Osia(osia::read(&table)?),
        "single" => {
            let link = table.required("link", "link = \"NAME\", the name of the link to use")?;
            let link = Some(super::network::name(&link)?);
            Policy::Single(SingleSettings { link })
        }
        "srtt-weighted" => Policy::SrttWeighted(consn::read_srtt_weighted(&table)?),
        _ => read_plain(&table, name)?,
    };
    let config = SchedulerConfig {
        change,
        ..policy.into()
    };
    refuse_parts_without_effect(&table, &config)?;
    Ok(config)
}

/// Reads a policy whose keys need no checks beyond their types.
///
/// # Errors
/// If a value has the wrong type.
fn read_plain(table: &Table<'_>, name: &str) -> Result<Policy<String>, ConfigError> {
    let keys = Policy::<String>::keys_of(name);
    let own = table.only(|key| key == "policy" || keys.contains(&key));
    Policy::deserialize(Deserializer::from(own)).map_err(|error| {
        let what = error.message().replace(char::is_control, " ");
        let remedy = format!("correct the value; the policy's keys: {}", keys.join(", "));
        table.wrong("policy", what, &remedy)
    })
}

/// Returns all keys that the table may have.
pub(super) fn keys() -> Vec<&'static str> {
    let mut keys = vec!["policy"];
    keys.extend(Policy::<String>::all_keys());
    keys.extend(profile::keys());
    keys
}

/// Names of all policies.
const NAMES: &[&str] = Policy::<String>::NAMES;

/// Permitted range of the interval of the policy `auto-weight`.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Refuses parts of the profile that are switched on but have no effect with the other settings.
fn refuse_parts_without_effect(
    table: &Table<'_>,
    config: &SchedulerConfig,
) -> Result<(), ConfigError> {
    let is_on = |part: Part| {
        let value = table.optional(part.key());
        value.and_then(|value| value.as_bool()) == Some(true)
    };
    let (_, profile) = config.clone().map_links(|_| None).build();
    if is_on(Part::LookAhead) && !matches!(config.policy, Policy::Osia(_)) {
        let what = "only policy \"osia\" uses look_ahead";
        return Err(table.wrong(Part::LookAhead.key(), what, "remove it"));
    }
    if is_on(Part::Search) && !profile.pacing {
        let what = "search requires pacing, which is off";
        return Err(table.wrong(Part::Search.key(), what, "add pacing = true, or remove it"));
    }
    Ok(())
}

fn refuse_foreign_keys(table: &Table<'_>, name: &str) -> Result<(), ConfigError> {
    let keys_of = Policy::<String>::keys_of;
    let foreign = table.present().into_iter().find(|key| {
        *key != "policy" && !keys_of(name).contains(key) && !profile::keys().any(|own| own == *key)
    });
    let Some(key) = foreign else { return Ok(()) };
    let owners: Vec<&str> = NAMES
        .iter()
        .copied()
        .filter(|owner| keys_of(owner).contains(&key))
        .collect();
    let owners = owners.join(", ");
    Err(table.wrong(
        key,
        format!("not a key of policy \"{name}\""),
        &format!("remove it, or choose a policy that has this key: {owners}"),
    ))
}
