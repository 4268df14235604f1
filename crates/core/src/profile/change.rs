//! The parts of a profile that a user can override.

use super::{Mechanism, Mechanisms, Profile};

/// A part of a [`Profile`] that can be switched on or off by its key in `[scheduler]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Key of [`Profile::ack_pacing`].
    AckPacing,
    /// Key of [`Profile::fec`].
    Fec,
    /// Key of [`Profile::look_ahead`].
    LookAhead,
    /// Key of [`Profile::pacing`].
    Pacing,
    /// Key of [`Profile::repair`].
    Repair,
    /// Key of [`Profile::search`].
    Search,
    /// Key of [`Profile::trains`].
    Trains,
    /// Key of [`Profile::voice`].
    Voice,
}

impl Part {
    /// All parts, sorted by key.
    pub const ALL: [Self; 8] = [
        Self::AckPacing,
        Self::Fec,
        Self::LookAhead,
        Self::Pacing,
        Self::Repair,
        Self::Search,
        Self::Trains,
        Self::Voice,
    ];

    /// The keys of all parts, sorted.
    pub const KEYS: [&str; 8] = [
        "ack_pacing",
        "fec",
        "look_ahead",
        "pacing",
        "repair",
        "search",
        "trains",
        "voice",
    ];

    /// Returns the part with the key `key`.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.key() == key)
    }

    /// The key of this part in a configuration file.
    #[must_use]
    pub const fn key(self) -> &'static str {
        Self::KEYS[self as usize]
    }

    const fn of(self, profile: &mut Profile) -> &mut bool {
        match self {
            Self::AckPacing => &mut profile.ack_pacing,
            Self::Fec => &mut profile.fec,
            Self::LookAhead => &mut profile.look_ahead,
            Self::Pacing => &mut profile.pacing,
            Self::Repair => &mut profile.repair,
            Self::Search => &mut profile.search,
            Self::Trains => &mut profile.trains,
            Self::Voice => &mut profile.voice,
        }
    }
}

/// The user's changes to a policy's default profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileChange {
    parts: [Option<bool>; Part::ALL.len()],
    without: Mechanisms,
}

impl ProfileChange {
    /// The key of the list of [`Mechanism`]s that are switched off.
    pub const WITHOUT: &str = "without";

    /// Switches a part on or off.
    pub const fn set(&mut self, part: Part, is_on: bool) {
        self.parts[part as usize] = Some(is_on);
    }

    /// Switches a rule of the engine off.
    pub const fn remove(&mut self, mechanism: Mechanism) {
        self.without = self.without.with(mechanism);
    }

    /// Returns `profile` with the changes applied.
    #[must_use]
    pub fn apply(&self, mut profile: Profile) -> Profile {
        for (part, wanted) in Part::ALL.into_iter().zip(self.parts) {
            let is_on = part.of(&mut profile);
            *is_on = wanted.unwrap_or(*is_on);
        }
        profile.mechanisms = profile.mechanisms.minus(self.without);
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_own_key_and_field() {
        assert!(Part::KEYS.is_sorted());
        for part in Part::ALL {
            let default = Profile::default();
            let mut changed = default;
            let before = *part.of(&mut changed);
            let mut change = ProfileChange::default();
            change.set(part, !before);
            changed = change.apply(default);
            assert_eq!(*part.of(&mut changed), !before, "{}", part.key());
            *part.of(&mut changed) = before;
            assert_eq!(changed, default, "{} changes nothing else", part.key());
        }
    }

    #[test]
    fn a_removed_mechanism_is_off_and_the_others_stay_on() {
        let mut change = ProfileChange::default();
        change.remove(Mechanism::LatePaths);
        let profile = change.apply(Profile::default());
        for mechanism in Mechanism::ALL {
            assert_eq!(
                profile.has(*mechanism),
                *mechanism != Mechanism::LatePaths,
                "{}",
                mechanism.name()
            );
        }
    }
}
