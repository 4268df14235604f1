//! The mechanisms that are switched off in a run.

use anyhow::Context as _;
use pleach_core::profile::{Mechanism, Part};

/// Parts of the profile and rules of the engine that are switched off together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    parts: Vec<Part>,
    mechanisms: Vec<Mechanism>,
}

impl Rule {
    /// Returns each part of the profile that `adaptive` uses, then each rule, each by itself.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let parts = Part::ALL.into_iter();
        // `adaptive` does not place packets on paths that are not ready.
        let parts = parts.filter(|part| *part != Part::LookAhead);
        let parts = parts.map(|part| Self {
            parts: vec![part],
            mechanisms: Vec::new(),
        });
        parts.chain(Mechanism::ALL.iter().map(|mechanism| Self {
            parts: Vec::new(),
            mechanisms: vec![*mechanism],
        }))
    }

    /// Returns the rule called `names`, or the union of several names joined by `+`.
    ///
    /// # Errors
    /// The message contains the unknown name.
    pub(crate) fn named(names: &str) -> anyhow::Result<Self> {
        let mut joint = Self {
            parts: Vec::new(),
            mechanisms: Vec::new(),
        };
        for name in names.split('+') {
            let one = Self::all().find(|rule| rule.name() == name);
            let one =
                one.with_context(|| format!("no mechanism is called {name}; --list prints all"))?;
            joint.parts.extend(one.parts);
            joint.mechanisms.extend(one.mechanisms);
        }
        Ok(joint)
    }

    pub(crate) fn name(&self) -> String {
        let parts = self.parts.iter().map(|part| part.key());
        let mechanisms = self.mechanisms.iter().map(|mechanism| mechanism.name());
        parts.chain(mechanisms).collect::<Vec<_>>().join("+")
    }

    /// Returns the lines of `[tunnel]` that switch the rule off.
    pub(crate) fn lines(&self) -> Vec<String> {
        let parts = self.parts.iter();
        let mut lines: Vec<String> = parts
            .map(|part| format!("{} = false", part.key()))
            .collect();
        if !self.mechanisms.is_empty() {
            let names = self.mechanisms.iter().map(|mechanism| mechanism.name());
            lines.push(format!("without = {:?}", names.collect::<Vec<_>>()));
        }
        lines
    }
}
