//! Policies as the configuration names them: `policy = "…"` and the keys of that policy beside it.

use serde::Deserialize;

use super::{
    AdaptiveSettings, AnyScheduler, AutoWeight, AutoWeightSettings, Awi, AwiSettings, Consn,
    ConsnSettings, EarliestArrival, FlowSticky, MinRtt, Osia, OsiaSettings, Redundant, RoundRobin,
    Scheduler as _, Single, SrttWeighted, SrttWeightedSettings, Weighted,
};
use crate::{
    ids::PathId,
    path::control::aim::Aim,
    profile::{Profile, ProfileChange},
};

/// A policy with its settings.
///
/// Links are named by `L`: by their text in a configuration file (`Policy<String>`), by id in the engine
/// ([`map_links`](Self::map_links) turns one into the other). Keys a policy does not know are errors.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Policy<L = PathId> {
    /// See [`Adaptive`](super::Adaptive).
    Adaptive(AdaptiveSettings<L>),
    /// See [`AutoWeight`].
    AutoWeight(AutoWeightSettings),
    /// See [`Awi`].
    Awi(AwiSettings<L>),
    /// See [`Consn`].
    Consn(ConsnSettings),
    /// See [`EarliestArrival`].
    EarliestArrival {},
    /// See [`FlowSticky`].
    Flow {},
    /// See [`MinRtt`].
    MinRtt {},
    /// See [`Osia`].
    Osia(OsiaSettings),
    /// See [`Redundant`].
    Redundant {},
    /// See [`RoundRobin`].
    RoundRobin {},
    /// See [`Single`].
    Single {
        /// The link to use; the first if not given.
        link: Option<L>,
    },
    /// See [`SrttWeighted`].
    SrttWeighted(SrttWeightedSettings),
    /// See [`Weighted`].
    Weighted {},
}

impl<L> Policy<L> {
    /// The names of all policies, sorted, for error messages and lists.
    pub const NAMES: &[&str] = &[
        "adaptive",
        "auto-weight",
        "awi",
        "consn",
        "earliest-arrival",
        "flow",
        "min-rtt",
        "osia",
        "redundant",
        "round-robin",
        "single",
        "srtt-weighted",
        "weighted",
    ];

    /// The name of this policy, as the configuration writes it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Adaptive(_) => "adaptive",
            Self::AutoWeight(_) => "auto-weight",
            Self::Awi(_) => "awi",
            Self::Consn(_) => "consn",
            Self::EarliestArrival {} => "earliest-arrival",
            Self::Flow {} => "flow",
            Self::MinRtt {} => "min-rtt",
            Self::Osia(_) => "osia",
            Self::Redundant {} => "redundant",
            Self::RoundRobin {} => "round-robin",
            Self::Single { .. } => "single",
            Self::SrttWeighted(_) => "srtt-weighted",
            Self::Weighted {} => "weighted",
        }
    }

    /// The same policy with every link replaced by what `map` makes of it; one it knows nothing of is left to the
    /// policy's default.
    pub fn map_links<M>(self, map: impl FnMut(L) -> Option<M>) -> Policy<M> {
        match self {
            Self::Adaptive(settings) => Policy::Adaptive(settings.map_links(map)),
            Self::AutoWeight(settings) => Policy::AutoWeight(settings),
            Self::Awi(settings) => Policy::Awi(settings.map_link(map)),
            Self::Consn(settings) => Policy::Consn(settings),
            Self::EarliestArrival {} => Policy::EarliestArrival {},
            Self::Flow {} => Policy::Flow {},
            Self::MinRtt {} => Policy::MinRtt {},
            Self::Osia(settings) => Policy::Osia(settings),
            Self::Redundant {} => Policy::Redundant {},
            Self::RoundRobin {} => Policy::RoundRobin {},
            Self::Single { link } => Policy::Single {
                link: link.and_then(map),
            },
            Self::SrttWeighted(settings) => Policy::SrttWeighted(settings),
            Self::Weighted {} => Policy::Weighted {},
        }
    }
}

impl Policy {
    /// How the policy wants a path's queue kept.
    #[must_use]
    pub fn aim(&self, path: PathId) -> Aim {
        if let Self::Adaptive(settings) = self {
            return settings.aim(&path);
        }
        Aim::default()
    }

    /// A scheduler for this policy that has placed no packet yet.
    #[must_use]
    pub fn build(&self) -> AnyScheduler {
        match self {
            Self::Adaptive(_) => AnyScheduler::Adaptive(Box::default()),
            Self::AutoWeight(settings) => {
                AnyScheduler::AutoWeight(Box::new(AutoWeight::new(*settings)))
            }
            Self::Awi(settings) => AnyScheduler::Awi(Awi::new(settings.clone())),
            Self::Consn(settings) => AnyScheduler::Consn(Box::new(Consn::new(*settings))),
            Self::EarliestArrival {} => AnyScheduler::EarliestArrival(EarliestArrival::new()),
            Self::Flow {} => AnyScheduler::Flow(FlowSticky),
            Self::MinRtt {} => AnyScheduler::MinRtt(MinRtt),
            Self::Osia(settings) => AnyScheduler::Osia(Box::new(Osia::new(*settings))),
            Self::Redundant {} => AnyScheduler::Redundant(Redundant),
            Self::RoundRobin {} => AnyScheduler::RoundRobin(RoundRobin::new()),
            Self::Single { link } => AnyScheduler::Single(Single::new(*link)),
            Self::SrttWeighted(settings) => {
                AnyScheduler::SrttWeighted(SrttWeighted::new(*settings))
            }
            Self::Weighted {} => AnyScheduler::Weighted(Weighted::new()),
        }
    }
}

/// A policy, and what the user changes of its profile: a section `[scheduler]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings<L = PathId> {
    /// Which path a packet takes.
    pub policy: Policy<L>,
    /// What else is done for packets, as far as it differs from the policy's default.
    pub change: ProfileChange,
}

impl<L> From<Policy<L>> for SchedulerSettings<L> {
    /// The policy with its default profile.
    fn from(policy: Policy<L>) -> Self {
        Self {
            policy,
            change: ProfileChange::default(),
        }
    }
}

impl<L> Default for SchedulerSettings<L> {
    /// `adaptive`, nothing changed.
    fn default() -> Self {
        Policy::Adaptive(AdaptiveSettings::default()).into()
    }
}

impl SchedulerSettings {
    /// A scheduler that has placed no packet yet, and the profile in force.
    #[must_use]
    pub fn build(&self) -> (AnyScheduler, Profile) {
        let mut scheduler = self.policy.build();
        let profile = self.change.apply(scheduler.profile());
        scheduler.on_profile(&profile);
        (scheduler, profile)
    }
}

impl<L> SchedulerSettings<L> {
    /// The same with links named otherwise ([`Policy::map_links`]).
    pub fn map_links<M>(self, map: impl FnMut(L) -> Option<M>) -> SchedulerSettings<M> {
        SchedulerSettings {
            policy: self.policy.map_links(map),
            change: self.change,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, MapDeserializer};

    use super::*;

    fn parse(keys: &[(&str, &str)]) -> Result<Policy<String>, Error> {
        Policy::deserialize(MapDeserializer::new(keys.iter().copied()))
    }

    #[test]
    fn every_listed_name_parses_to_a_policy_of_that_name() {
        for name in Policy::<String>::NAMES {
            let policy = parse(&[("policy", name)]).expect(name);
            assert_eq!(policy.name(), *name);
        }
        assert!(Policy::<String>::NAMES.is_sorted());
    }

    #[test]
    fn unknown_names_and_keys_are_errors() {
        let error = parse(&[("policy", "fastest")]).expect_err("no such policy");
        assert!(error.to_string().contains("`round-robin`"), "{error}");
        for name in Policy::<String>::NAMES {
            let keys = [("policy", *name), ("colour", "red")];
            let error = parse(&keys).expect_err("no such key").to_string();
            assert!(error.contains("colour"), "{error}");
        }
    }

    #[test]
    fn links_are_resolved_by_name() {
        let policy = parse(&[("policy", "single"), ("link", "lte")]).expect("valid");
        let resolve = |name: String| (name == "lte").then_some(PathId(3));
        let link = Some(PathId(3));
        assert_eq!(policy.map_links(resolve), Policy::Single { link });
        let policy = parse(&[("policy", "single"), ("link", "tin-can")]).expect("valid");
        assert_eq!(policy.map_links(resolve), Policy::Single { link: None });
        let policy = parse(&[("policy", "awi"), ("fixed", "lte")]).expect("valid");
        let Policy::Awi(settings) = policy.map_links(resolve) else {
            panic!("another policy");
        };
        assert_eq!(settings.fixed, link);
    }
}
