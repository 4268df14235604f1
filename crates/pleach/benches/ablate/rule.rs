//! What is switched off.

use pleach_core::profile::{Mechanism, Part};

/// A part of the profile, or a rule of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Mechanism(Mechanism),
    Part(Part),
}

impl Rule {
    /// All that `adaptive` uses: parts first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let parts = Part::ALL.into_iter();
        // `adaptive` does not place packets on paths that are not ready.
        let parts = parts.filter(|part| *part != Part::LookAhead);
        parts
            .map(Self::Part)
            .chain(Mechanism::ALL.iter().copied().map(Self::Mechanism))
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mechanism(mechanism) => mechanism.name(),
            Self::Part(part) => part.key(),
        }
    }

    /// The line of `[tunnel]` that switches it off.
    pub(crate) fn line(self) -> String {
        match self {
            Self::Mechanism(mechanism) => format!("without = [{:?}]", mechanism.name()),
            Self::Part(part) => format!("{} = false", part.key()),
        }
    }
}
