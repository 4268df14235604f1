//! The section `[scheduler]`: a policy, and the user's changes to its profile.

use super::{AdaptiveSettings, AnyScheduler, OwnPolicy, Policy, Scheduler};
use crate::{
    ids::PathId,
    path::{control::aim::Aim, estimators::Estimators},
    profile::{Profile, ProfileChange},
};

impl<L> Policy<L> {
    /// The keys of all policies except `policy` itself, without duplicates.
    #[must_use]
    pub fn all_keys() -> Vec<&'static str> {
        let mut keys = Vec::new();
        for key in Self::NAMES.iter().flat_map(|name| Self::keys_of(name)) {
            if !keys.contains(key) {
                keys.push(*key);
            }
        }
        keys
    }
}

impl Policy {
    /// Returns how the policy wants the queue of `path` to be controlled.
    #[must_use]
    pub fn aim(&self, path: PathId) -> Aim {
        if let Self::Adaptive(settings) = self {
            return settings.aim(&path);
        }
        Aim::default()
    }
}

/// The section `[scheduler]`, which is a policy and the user's changes to its profile, and the estimators of the
/// paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings<L = PathId> {
    /// The policy that chooses the path of each packet.
    pub policy: Policy<L>,
    /// The user's changes to the policy's default profile.
    pub change: ProfileChange,
    /// The estimators of the paths; they have no key in the configuration file.
    pub estimators: Estimators,
}

impl<L> From<Policy<L>> for SchedulerSettings<L> {
    /// Returns the policy with its default profile.
    fn from(policy: Policy<L>) -> Self {
        Self {
            policy,
            change: ProfileChange::default(),
            estimators: Estimators::default(),
        }
    }
}

impl<L> Default for SchedulerSettings<L> {
    /// Returns `adaptive` without changes.
    fn default() -> Self {
        Policy::Adaptive(AdaptiveSettings::default()).into()
    }
}

impl SchedulerSettings {
    /// Creates a scheduler that has not placed any packet yet. Returns it with the profile in force.
    #[must_use]
    pub fn build(&self) -> (AnyScheduler, Profile) {
        let mut scheduler = self.policy.build();
        let profile = self.change.apply(scheduler.profile());
        scheduler.on_profile(&profile);
        (scheduler, profile)
    }
}

impl<L> SchedulerSettings<L> {
    /// Creates settings for a scheduler of another crate, called `name` in reports, with its own default profile.
    /// `make` creates schedulers that have not placed any packet yet.
    #[must_use]
    pub fn own<S: Scheduler + 'static>(
        name: &'static str,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        Policy::Own(OwnPolicy::new(name, make)).into()
    }

    /// Returns these settings with the names of links mapped ([`Policy::map_links`]).
    pub fn map_links<M>(self, map: impl FnMut(L) -> Option<M>) -> SchedulerSettings<M> {
        SchedulerSettings {
            policy: self.policy.map_links(map),
            change: self.change,
            estimators: self.estimators,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{
        Deserialize as _,
        de::value::{Error, MapDeserializer},
    };

    use super::*;
    use crate::{
        sched::{PacketInfo, PathView, Pick, RoundRobin, SingleSettings},
        time::Instant,
        units::Bytes,
    };

    fn parse(keys: &[(&str, &str)]) -> Result<Policy<String>, Error> {
        Policy::deserialize(MapDeserializer::new(keys.iter().copied()))
    }

    #[test]
    fn every_listed_name_parses_to_a_policy_of_that_name() {
        for name in Policy::<String>::NAMES {
            let policy = parse(&[("policy", name)]).expect(name);
            assert_eq!(policy.name(), *name);
            assert_eq!(Policy::named(name), Some(policy));
        }
        assert_eq!(Policy::<String>::named("fastest"), None);
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
    fn listed_keys_are_those_that_settings_know() {
        for name in Policy::<String>::NAMES {
            let error = parse(&[("policy", name), ("colour", "red")]).expect_err("no such key");
            let mut known: Vec<_> = error.to_string().split('`').map(str::to_owned).collect();
            // Every second part was in quotes; the first of these is the unknown key.
            known = known.into_iter().skip(3).step_by(2).collect();
            known.sort();
            let mut listed = Policy::<String>::keys_of(name).to_vec();
            listed.sort_unstable();
            assert_eq!(known, listed, "{name}");
        }
        assert!(Policy::<String>::keys_of("fastest").is_empty());
    }

    #[test]
    fn links_are_listed_by_key() {
        let policy = parse(&[("policy", "adaptive"), ("hold", "lte")]).expect("valid");
        assert_eq!(policy.links(), [("hold", &"lte".to_owned())]);
        let policy = parse(&[("policy", "single"), ("link", "dsl")]).expect("valid");
        assert_eq!(policy.links(), [("link", &"dsl".to_owned())]);
        assert!(Policy::<String>::Weighted {}.links().is_empty());
    }

    #[test]
    fn a_scheduler_of_another_crate_runs_under_its_name() {
        let settings: SchedulerSettings = SchedulerSettings::own("mine", RoundRobin::new);
        assert_eq!(settings.policy.name(), "mine");
        assert_eq!(settings, settings.clone().map_links(Some));
        let other: SchedulerSettings = SchedulerSettings::own("mine", RoundRobin::new);
        assert_ne!(settings, other, "another function");
        let (mut scheduler, profile) = settings.build();
        assert_eq!(profile, RoundRobin::new().profile());
        let paths = [0, 1].map(|id| PathView {
            ready: true,
            usable: true,
            ..PathView::unmeasured(PathId(id))
        });
        let packet = PacketInfo::of_len(Bytes::new(1_250));
        let mut pick = || scheduler.pick(Instant::ZERO, &paths, &packet);
        assert_eq!([pick(), pick(), pick()], [0, 1, 0].map(Pick::One));
    }

    #[test]
    fn links_are_resolved_by_name() {
        let policy = parse(&[("policy", "single"), ("link", "lte")]).expect("valid");
        let resolve = |name: String| (name == "lte").then_some(PathId(3));
        let link = Some(PathId(3));
        let expected = Policy::Single(SingleSettings { link });
        assert_eq!(policy.map_links(resolve), expected);
        let policy = parse(&[("policy", "single"), ("link", "tin-can")]).expect("valid");
        assert_eq!(
            policy.map_links(resolve),
            Policy::Single(SingleSettings::default())
        );
        let policy = parse(&[("policy", "awi"), ("fixed", "lte")]).expect("valid");
        let Policy::Awi(settings) = policy.map_links(resolve) else {
            panic!("another policy");
        };
        assert_eq!(settings.fixed, link);
    }
}
