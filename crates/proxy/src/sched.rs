//! Which link a new connection takes: DBAS's connection-oriented schedulers (section II-D of the paper).
//!
//! A scheduler sees the links a connection may take ([`LinkView`]) and the bytes it will probably move, and ranks the
//! links: the first is the choice, the rest are tried in turn if it fails. Schedulers know nothing of rules or sites;
//! that is [`crate::placer`]'s matter. Ties break by the order of the links.

mod makespan;
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
    /// What a single connection gets at most, because the link loses packets; `None`: its rate.
    pub single: Option<Bitrate>,
    /// Share under weighted round robin; `None`: its rate.
    pub weight: Option<u16>,
}

impl LinkView {
    /// Microseconds until this link has moved its load and `more`.
    #[must_use]
    pub fn all_done_us(&self, more: Bytes) -> u128 {
        self.time_us(self.load, more).max(self.single_us(more))
    }

    /// Microseconds until a new connection has moved a first answer of `bytes`, sharing the link with the others.
    #[must_use]
    pub fn own_finish_us(&self, bytes: Bytes) -> u128 {
        let shared_us = self.time_us(self.sharing, bytes);
        self.start.as_micros() + shared_us.max(self.single_us(bytes))
    }

    /// Microseconds that a first answer of `bytes` takes, and takes from the others' while it moves: sharing alike, they wait
    /// for it as long as it waits for them.
    #[must_use]
    pub fn own_and_others_us(&self, bytes: Bytes) -> u128 {
        self.own_finish_us(bytes) + self.time_us(self.sharing, Bytes::ZERO)
    }

    /// Microseconds that a single connection needs for `bytes`, however idle the link.
    fn single_us(&self, bytes: Bytes) -> u128 {
        let bits = u128::from(bytes.get()) * 8;
        self.single.map_or(0, |rate| {
            bits * 1_000_000 / u128::from(rate.as_bps().max(1))
        })
    }

    fn time_us(&self, load: Bytes, more: Bytes) -> u128 {
        let bits = (u128::from(load.get()) + u128::from(more.get())) * 8;
        bits * 1_000_000 / u128::from(self.rate.as_bps().max(1))
    }
}

/// The schedulers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Minimises the time to finish everything, and nothing else: as the paper has it.
    Makespan,
    /// Minimises the time to finish everything, as far as no connection waits much longer for it.
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
    pub const ALL: [Self; 5] = [
        Self::Makespan,
        Self::MaxThroughput,
        Self::OnlyOne,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
    ];

    /// Its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Makespan => "makespan",
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
    /// See [`Policy::Makespan`].
    Makespan,
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
            Policy::Makespan => Self::Makespan,
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
            Self::Makespan => makespan::pick(links, demand),
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

/// Microseconds until all `links` have moved their loads, and `chosen` of them `demand` more.
fn all_done_us(links: &[LinkView], chosen: &LinkView, demand: Bytes) -> u128 {
    let others = links.iter().filter(|link| link.id != chosen.id);
    let others_us = others.map(|link| link.all_done_us(Bytes::ZERO)).max();
    chosen.all_done_us(demand).max(others_us.unwrap_or(0))
}
