//! The `[scheduler]` table: which policy, its own keys, and parts of its profile.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::{
    profile::Part,
    sched::{AutoWeightSettings, Policy, SchedulerSettings},
};

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

/// A section `[scheduler]`: a policy with its keys, and what differs from the policy's profile.
pub(crate) type SchedulerConfig = SchedulerSettings<String>;

/// The links that a policy names, each with its key.
pub(super) fn links(policy: &Policy<String>) -> Vec<(&'static str, &str)> {
    match policy {
        Policy::Adaptive(settings) => {
            let named = [("yield", &settings.yields), ("hold", &settings.holds)];
            let named = named.into_iter();
            named
                .flat_map(|(key, links)| links.iter().map(move |link| (key, link.as_str())))
                .collect()
        }
        Policy::Awi(settings) => {
            let fixed = settings.fixed.as_deref();
            fixed.map(|name| ("fixed", name)).into_iter().collect()
        }
        Policy::Single { link } => link.iter().map(|link| ("link", link.as_str())).collect(),
        Policy::AutoWeight(_)
        | Policy::Consn(_)
        | Policy::EarliestArrival {}
        | Policy::Flow {}
        | Policy::MinRtt {}
        | Policy::Osia(_)
        | Policy::Redundant {}
        | Policy::RoundRobin {}
        | Policy::SrttWeighted(_)
        | Policy::Weighted {} => Vec::new(),
    }
}

/// Reads the table `[scheduler]` of `root`, or takes the default.
///
/// # Errors
/// The first mistake in it.
pub(super) fn read(root: &Table<'_>) -> Result<SchedulerConfig, ConfigError> {
    match root.optional("scheduler") {
        Some(value) => read_table(&value, "[scheduler]"),
        None => Ok(SchedulerConfig::default()),
    }
}

/// Reads the scheduler table `value`, called `label`.
///
/// # Errors
/// An unknown policy, a key of another policy, a bad value.
pub(super) fn read_table(value: &Value<'_>, label: &str) -> Result<SchedulerConfig, ConfigError> {
    let table = value.table(label.to_owned(), &keys())?;
    let names: Vec<&str> = POLICIES.iter().map(|policy| policy.name).collect();
    let list = format!("write one of: {}", names.join(", "));
    let policy = table.required("policy", "policy = \"adaptive\"")?;
    let name = policy.text("the name of a policy", &list)?;
    let Some(spec) = POLICIES.iter().find(|spec| spec.name == name) else {
        return Err(policy.expected("a known policy", &list));
    };
    refuse_foreign_keys(&table, spec)?;
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
        "flow" => Policy::Flow {},
        "min-rtt" => Policy::MinRtt {},
        "osia" => Policy::Osia(osia::read(&table)?),
        "redundant" => Policy::Redundant {},
        "round-robin" => Policy::RoundRobin {},
        "single" => {
            let link = table.required("link", "link = \"NAME\", the name of the link to use")?;
            let link = Some(super::network::name(&link)?);
            Policy::Single { link }
        }
        "srtt-weighted" => Policy::SrttWeighted(consn::read_srtt_weighted(&table)?),
        "weighted" => Policy::Weighted {},
        _ => Policy::EarliestArrival {},
    };
    let config = SchedulerConfig { policy, change };
    refuse_parts_without_effect(&table, &config)?;
    Ok(config)
}

/// Every key the table may have.
pub(super) fn keys() -> Vec<&'static str> {
    let mut keys = vec!["policy"];
    for key in POLICIES.iter().flat_map(|policy| policy.keys) {
        // Some belong to several.
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    keys.extend(profile::keys());
    keys
}

/// A policy as configuration files know it.
struct PolicySpec {
    name: &'static str,
    /// Keys beside `policy`.
    keys: &'static [&'static str],
}

/// Of "auto-weight".
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Every accepted policy.
const POLICIES: [PolicySpec; 13] = [
    PolicySpec {
        name: "adaptive",
        keys: adaptive::KEYS,
    },
    PolicySpec {
        name: "auto-weight",
        keys: &["interval"],
    },
    PolicySpec {
        name: "awi",
        keys: awi::KEYS,
    },
    PolicySpec {
        name: "consn",
        keys: consn::KEYS,
    },
    PolicySpec {
        name: "earliest-arrival",
        keys: &[],
    },
    PolicySpec {
        name: "flow",
        keys: &[],
    },
    PolicySpec {
        name: "min-rtt",
        keys: &[],
    },
    PolicySpec {
        name: "osia",
        keys: osia::KEYS,
    },
    PolicySpec {
        name: "redundant",
        keys: &[],
    },
    PolicySpec {
        name: "round-robin",
        keys: &[],
    },
    PolicySpec {
        name: "single",
        keys: &["link"],
    },
    PolicySpec {
        name: "srtt-weighted",
        keys: consn::SRTT_WEIGHTED_KEYS,
    },
    PolicySpec {
        name: "weighted",
        keys: &[],
    },
];

/// Refuses parts of the profile that are switched on and do nothing beside the others.
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
        let what = "no policy but \"osia\" looks ahead";
        return Err(table.wrong(Part::LookAhead.key(), what, "remove it"));
    }
    if is_on(Part::Search) && !profile.pacing {
        let what = "rates are not searched where pacing is off";
        return Err(table.wrong(Part::Search.key(), what, "add pacing = true, or remove it"));
    }
    Ok(())
}

fn refuse_foreign_keys(table: &Table<'_>, spec: &PolicySpec) -> Result<(), ConfigError> {
    let foreign = table.present().into_iter().find(|key| {
        *key != "policy" && !spec.keys.contains(key) && !profile::keys().any(|own| own == *key)
    });
    let Some(key) = foreign else { return Ok(()) };
    let owners: Vec<&str> = POLICIES
        .iter()
        .filter(|policy| policy.keys.contains(&key))
        .map(|policy| policy.name)
        .collect();
    let owners = owners.join(", ");
    Err(table.wrong(
        key,
        format!("not a key of policy \"{}\"", spec.name),
        &format!("remove it, or choose the policy it belongs to: {owners}"),
    ))
}
