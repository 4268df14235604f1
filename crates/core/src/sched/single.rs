//! `single`: one path carries everything; another path is used only while this path does not work.
//!
//! The path is the configured one while it is usable; otherwise it is the usable path with the lowest rank, and of
//! several the one with the lowest id. No bonding: plain failover, and the baseline that every other policy must beat.

use serde::Deserialize;

use super::{PacketInfo, PathView, Pick, Scheduler, only};
use crate::{ids::PathId, profile::Profile, time::Instant};

/// Settings of [`Single`], with the keys of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    bound(deserialize = "L: Deserialize<'de>")
)]
pub struct SingleSettings<L> {
    /// The link to use; the first one if absent.
    pub link: Option<L>,
}

impl<L> Default for SingleSettings<L> {
    fn default() -> Self {
        Self { link: None }
    }
}

impl<L> SingleSettings<L> {
    /// The keys in a configuration.
    pub const KEYS: &[&str] = &["link"];

    /// The links that the settings name, each with its key.
    pub fn links(&self) -> Vec<(&'static str, &L)> {
        self.link.iter().map(|link| ("link", link)).collect()
    }

    /// Returns these settings with the link replaced by the result of `map`.
    pub fn map_links<M>(self, map: impl FnMut(L) -> Option<M>) -> SingleSettings<M> {
        SingleSettings {
            link: self.link.and_then(map),
        }
    }
}

impl SingleSettings<PathId> {
    /// Creates a scheduler with these settings.
    #[must_use]
    pub const fn scheduler(&self) -> Single {
        Single::new(self.link)
    }
}

/// Uses one path. While it is not usable, fails over to the usable path with the lowest rank, then the lowest id.
///
/// Waits if the path in use is usable but not ready.
#[derive(Clone, Debug)]
pub struct Single {
    preferred: Option<PathId>,
}

impl Single {
    /// Creates a scheduler that prefers `preferred`, or the path with the lowest rank and id if `None`.
    #[must_use]
    pub const fn new(preferred: Option<PathId>) -> Self {
        Self { preferred }
    }
}

impl Scheduler for Single {
    fn pick(&mut self, _now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        let usable = paths.iter().enumerate().filter(|(_, path)| path.usable);
        let best =
            usable.min_by_key(|(_, path)| (Some(path.id) != self.preferred, path.cost, path.id));
        only(paths, best.map(|(index, _)| index))
    }

    fn profile(&self) -> Profile {
        Profile {
            ranks: false,
            ..Profile::default()
        }
    }
}
