//! Which link a new connection takes: DBAS's connection-oriented schedulers (section II-D of the paper).
//!
//! A scheduler sees the links a connection may take ([`LinkView`]) and the bytes it will probably move, and ranks the
//! links: the first is the choice, the rest are tried in turn if it fails. Schedulers know nothing of rules or sites;
//! that is [`crate::placer`]'s matter. Ties break by the order of the links.

mod max_throughput;
mod only_one;
pub mod round_robin;
#[cfg(test)]
mod tests;
pub mod weighted;

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// A link by its place in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// A link as a scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Which.
    pub id: LinkId,
    /// What it carries, as measured or assumed; above zero.
    pub rate: Bitrate,
    /// What its connections will probably still move: `L` in the paper's terms.
    pub load: Bytes,
    /// The part of it that will move while the new connection's first answer does, if all share the link alike: of each
    /// connection at most so much.
    pub sharing: Bytes,
    /// What round trips alone take until that answer is there, however fast the link; zero if they are not known.
    pub start: Duration,
    /// Share under weighted round robin; `None`: its rate.
    pub weight: Option<u16>,
}

impl LinkView {
    /// Microseconds until this link has moved its load and `more`.
    #[must_use]
    pub fn all_done_us(&self, more: Bytes) -> u128 {
        self.time_us(self.load, more)
    }

    /// Microseconds until a new connection has moved a first answer of `bytes`, sharing the link with the others.
    #[must_use]
    pub fn own_finish_us(&self, bytes: Bytes) -> u128 {
        self.start.as_micros() + self.time_us(self.sharing, bytes)
    }

    /// Microseconds that a first answer of `bytes` takes, and takes from the others' while it moves: sharing alike, they wait
    /// for it as long as it waits for them.
    #[must_use]
    pub fn own_and_others_us(&self, bytes: Bytes) -> u128 {
        self.own_finish_us(bytes) + self.time_us(self.sharing, Bytes::ZERO)
    }

    fn time_us(&self, load: Bytes, more: Bytes) -> u128 {
        let bits = (u128::from(load.get()) + u128::from(more.get())) * 8;
        bits * 1_000_000 / u128::from(self.rate.as_bps().max(1))
    }
}

/// The schedulers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Minimises the time to finish everything.
    MaxThroughput,
    /// The first link, as an operating system does.
    OnlyOne,
    /// One after the other.
    RoundRobin,
    /// In turn, in proportion to rates or given weights.
    WeightedRoundRobin,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::MaxThroughput,
        Self::OnlyOne,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
    ];

    /// Its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxThroughput => "max-throughput",
            Self::OnlyOne => "only-one",
            Self::RoundRobin => "round-robin",
            Self::WeightedRoundRobin => "weighted-round-robin",
        }
    }

    /// The policy called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// A scheduler at work.
#[derive(Debug)]
pub enum Scheduler {
    /// See [`Policy::MaxThroughput`].
    MaxThroughput,
    /// See [`Policy::OnlyOne`].
    OnlyOne,
    /// See [`Policy::RoundRobin`].
    RoundRobin(round_robin::RoundRobin),
    /// See [`Policy::WeightedRoundRobin`].
    WeightedRoundRobin(weighted::Weighted),
}

impl Scheduler {
    /// A scheduler that has placed nothing yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        match policy {
            Policy::MaxThroughput => Self::MaxThroughput,
            Policy::OnlyOne => Self::OnlyOne,
            Policy::RoundRobin => Self::RoundRobin(round_robin::RoundRobin::default()),
            Policy::WeightedRoundRobin => Self::WeightedRoundRobin(weighted::Weighted::default()),
        }
    }

    /// Ranks `links` for a connection that will probably move `demand`, `answer` of it at first, the choice first.
    ///
    /// `links`: sorted by id, at most a few dozen. Empty in, empty out. O(n²).
    pub fn rank(&mut self, links: &[LinkView], demand: Bytes, answer: Bytes) -> Vec<LinkId> {
        let first = match self {
            Self::MaxThroughput => max_throughput::pick(links, demand, answer),
            Self::OnlyOne => only_one::pick(links),
            Self::RoundRobin(state) => state.pick(links),
            Self::WeightedRoundRobin(state) => state.pick(links),
        };
        let mut rest: Vec<&LinkView> = links.iter().filter(|link| Some(link.id) != first).collect();
        // Stable: ties stay in the links' order.
        rest.sort_by_key(|link| link.own_finish_us(answer));
        first
            .into_iter()
            .chain(rest.into_iter().map(|link| link.id))
            .collect()
    }
}
