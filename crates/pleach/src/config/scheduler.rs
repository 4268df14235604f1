//! The `[scheduler]` table: which policy, and its own keys.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::sched::{
    AdaptiveSettings, AutoWeightSettings, AwiSettings, ConsnSettings, SrttWeightedSettings,
    osia::OsiaSettings,
};

use super::{
    source::ConfigError,
    table::{Table, Value},
};

mod adaptive;
mod awi;
mod consn;
mod osia;
pub(super) mod sec;
mod values;

/// A scheduling policy with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SchedulerConfig {
    /// Every path that helps; the default.
    Adaptive(AdaptiveSettings<String>),
    /// By what each link carries, measured now and then.
    AutoWeight(AutoWeightSettings),
    /// The fixed line first, the others what it loses.
    Awi(AwiSettings<String>),
    /// Blocks of packets, split so that the paths' sequences run towards each other.
    Consn(ConsnSettings),
    /// The path on which the packet arrives first.
    EarliestArrival,
    /// A flow stays on a link.
    Flow,
    /// The ready path with the lowest round-trip time.
    MinRtt,
    /// Out of order, so that all arrives in order.
    Osia(OsiaSettings),
    /// A copy on every path.
    Redundant,
    /// One after the other.
    RoundRobin,
    /// One link only, by name.
    Single {
        /// The link's name.
        link: String,
    },
    /// By the links' round trips.
    SrttWeighted(SrttWeightedSettings),
    /// Smooth weighted round robin by the links' weights.
    Weighted,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self::Adaptive(AdaptiveSettings::default())
    }
}

impl SchedulerConfig {
    /// The policy's name as configuration and status show it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Adaptive(_) => "adaptive",
            Self::AutoWeight(_) => "auto-weight",
            Self::Awi(_) => "awi",
            Self::Consn(_) => "consn",
            Self::EarliestArrival => "earliest-arrival",
            Self::Flow => "flow",
            Self::MinRtt => "min-rtt",
            Self::Osia(_) => "osia",
            Self::Redundant => "redundant",
            Self::RoundRobin => "round-robin",
            Self::Single { .. } => "single",
            Self::SrttWeighted(_) => "srtt-weighted",
            Self::Weighted => "weighted",
        }
    }

    /// The links it names, each with its key.
    pub(super) fn links(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Adaptive(settings) => {
                let named = [("yield", &settings.yields), ("hold", &settings.holds)];
                let named = named.into_iter();
                named
                    .flat_map(|(key, links)| links.iter().map(move |link| (key, link.as_str())))
                    .collect()
            }
            Self::Awi(settings) => {
                let fixed = settings.fixed.as_deref();
                fixed.map(|name| ("fixed", name)).into_iter().collect()
            }
            Self::Single { link } => vec![("link", link)],
            Self::AutoWeight(_)
            | Self::Consn(_)
            | Self::EarliestArrival
            | Self::Flow
            | Self::MinRtt
            | Self::Osia(_)
            | Self::Redundant
            | Self::RoundRobin
            | Self::SrttWeighted(_)
            | Self::Weighted => Vec::new(),
        }
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
    Ok(match name {
        "adaptive" => SchedulerConfig::Adaptive(adaptive::read(&table)?),
        "auto-weight" => {
            let mut settings = AutoWeightSettings::default();
            if let Some(value) = table.optional("interval") {
                settings.interval = values::time(&value, &INTERVAL, "200ms")?;
            }
            SchedulerConfig::AutoWeight(settings)
        }
        "awi" => SchedulerConfig::Awi(awi::read(&table)?),
        "consn" => SchedulerConfig::Consn(consn::read(&table)?),
        "flow" => SchedulerConfig::Flow,
        "min-rtt" => SchedulerConfig::MinRtt,
        "osia" => SchedulerConfig::Osia(osia::read(&table)?),
        "redundant" => SchedulerConfig::Redundant,
        "round-robin" => SchedulerConfig::RoundRobin,
        "single" => {
            let link = table.required("link", "link = \"NAME\", the name of the link to use")?;
            let name = super::network::name(&link)?;
            SchedulerConfig::Single { link: name }
        }
        "srtt-weighted" => SchedulerConfig::SrttWeighted(consn::read_srtt_weighted(&table)?),
        "weighted" => SchedulerConfig::Weighted,
        _ => SchedulerConfig::EarliestArrival,
    })
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

fn refuse_foreign_keys(table: &Table<'_>, spec: &PolicySpec) -> Result<(), ConfigError> {
    let foreign = table
        .present()
        .into_iter()
        .find(|key| *key != "policy" && !spec.keys.contains(key));
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
