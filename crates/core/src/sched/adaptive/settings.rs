//! Settings of `adaptive`.

use core::time::Duration;

use serde::{Deserialize, Deserializer};

use super::Adaptive;
use crate::{
    ids::PathId,
    path::control::aim::{Aim, Sharing},
};

/// Settings of [`Adaptive`], with the keys of a configuration file; all are optional.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    bound(deserialize = "L: Deserialize<'de>")
)]
pub struct AdaptiveSettings<L> {
    /// See [`Aim::target_delay`].
    #[serde(with = "humantime_serde")]
    pub target_delay: Option<Duration>,
    /// Links on which other traffic has priority. The key takes one link or a list.
    #[serde(rename = "yield", deserialize_with = "one_or_more")]
    pub yields: Vec<L>,
    /// Links on which a [`share`](Self::share) of the capacity is claimed beside other traffic. The key takes one
    /// link or a list.
    #[serde(rename = "hold", deserialize_with = "one_or_more")]
    pub holds: Vec<L>,
    /// The claimed share in percent, 1 to 100.
    pub share: u8,
}

impl<L> Default for AdaptiveSettings<L> {
    fn default() -> Self {
        Self {
            target_delay: None,
            yields: Vec::new(),
            holds: Vec::new(),
            share: 50,
        }
    }
}

impl<L> AdaptiveSettings<L> {
    /// The keys, in the order they are listed to users.
    pub const KEYS: &[&str] = &["target_delay", "yield", "hold", "share"];

    /// The links that the settings name, each with its key.
    pub fn links(&self) -> Vec<(&'static str, &L)> {
        let named = [("yield", &self.yields), ("hold", &self.holds)].into_iter();
        named
            .flat_map(|(key, links)| links.iter().map(move |link| (key, link)))
            .collect()
    }

    /// Returns these settings with every link replaced by the result of `map`; links without a result are omitted.
    pub fn map_links<M>(self, mut map: impl FnMut(L) -> Option<M>) -> AdaptiveSettings<M> {
        AdaptiveSettings {
            target_delay: self.target_delay,
            yields: self.yields.into_iter().filter_map(&mut map).collect(),
            holds: self.holds.into_iter().filter_map(map).collect(),
            share: self.share,
        }
    }
}

impl AdaptiveSettings<PathId> {
    /// Creates a scheduler. The settings affect the pacing of paths only, not the choice of a path.
    #[must_use]
    pub const fn scheduler(&self) -> Adaptive {
        Adaptive::new()
    }
}

impl<L: PartialEq> AdaptiveSettings<L> {
    /// Returns how `link` is paced. A link that both settings name yields.
    #[must_use]
    pub fn aim(&self, link: &L) -> Aim {
        let sharing = if self.yields.contains(link) {
            Sharing::Yield
        } else if self.holds.contains(link) {
            let percent = self.share.clamp(1, 100);
            Sharing::Hold { percent }
        } else {
            Sharing::Auto
        };
        Aim {
            target_delay: self.target_delay,
            sharing,
        }
    }
}

fn one_or_more<'de, D: Deserializer<'de>, L: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<L>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore<L> {
        One(L),
        More(Vec<L>),
    }
    Ok(match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(link) => vec![link],
        OneOrMore::More(links) => links,
    })
}
