//! Choice of the link for a new connection: the connection-oriented schedulers of DBAS (section II-D of the paper).
//!
//! A scheduler gets the links that a connection may take ([`LinkView`]) and the number of bytes that the connection
//! will probably move. It ranks the links. The first link is the choice, and the other links are tried in turn if
//! connecting over it fails. Schedulers know nothing of rules or sites: [`crate::placer`] handles both. Of links that
//! are equally good, the link that comes first in the configuration wins.

mod makespan;
mod max_throughput;
mod only_one;
pub mod round_robin;
#[cfg(test)]
mod tests;
pub mod weighted;

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

/// Index of a link in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// A link as a scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Link described by this view.
    pub id: LinkId,
    /// Capacity of the link, measured or assumed; above zero.
    pub rate: Bitrate,
    /// Number of bytes that the connections on the link will probably still move: `L` in the paper.
    pub load: Bytes,
    /// Part of `load` that moves while the first answer of the new connection is transferred, if all connections share
    /// the link equally. Each connection contributes at most the size of that answer.
    pub sharing: Bytes,
    /// Time that RTTs alone take until the first answer has arrived, however fast the link is. Zero if the RTT is not
    /// known.
    pub start: Duration,
    /// Maximum rate of a single connection, because the link loses packets. `None` if only `rate` limits a connection.
    pub single: Option<Bitrate>,
    /// Weight in weighted round robin. `None` if the weight is the link's rate.
    pub weight: Option<u16>,
}

impl LinkView {
    /// Returns the time in µs until the link has moved its load and `more` bytes of a new connection.
    #[must_use]
    pub fn all_done_us(&self, more: Bytes) -> u128 {
        self.time_us(self.load, more).max(self.single_us(more))
    }

    /// Returns the time in µs until a new connection has moved a first answer of `bytes` while it shares the link with
    /// the other connections.
    #[must_use]
    pub fn own_finish_us(&self, bytes: Bytes) -> u128 {
        let shared_us = self.time_us(self.sharing, bytes);
        self.start.as_micros() + shared_us.max(self.single_us(bytes))
    }

    /// Returns the cost in µs of a first answer of `bytes`: the time until it has arrived plus the time by which it
    /// delays the other connections. Because all connections share the link equally, the answer delays the others as
    /// much as they delay the answer.
    #[must_use]
    pub fn own_and_others_us(&self, bytes: Bytes) -> u128 {
        self.own_finish_us(bytes) + self.time_us(self.sharing, Bytes::ZERO)
    }

    /// Returns the minimum time in µs that a single connection needs for `bytes`, even on an idle link.
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

/// Scheduler that the configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Minimises the time until all transfers are finished, as in the paper.
    Makespan,
    /// Minimises the time until all transfers are finished, unless the new connection itself would take much longer.
    MaxThroughput,
    /// Always takes the first link, as an operating system does.
    OnlyOne,
    /// Takes the links in turn.
    RoundRobin,
    /// Takes the links in turn, in proportion to their rates or configured weights.
    WeightedRoundRobin,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 5] = [
        Self::Makespan,
        Self::MaxThroughput,
        Self::OnlyOne,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
    ];

    /// Returns the policy's name in configuration files.
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

    /// Returns the policy with the name `name`, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// A scheduler and its state.
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
    /// Returns a scheduler in its initial state.
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

    /// Ranks `links` for a connection that will probably move `demand` bytes, `answer` of them first. The first link of
    /// the result is the choice.
    ///
    /// `links` is sorted by id and has at most a few dozen elements. The result is empty if `links` is empty. O(n²).
    pub fn rank(&mut self, links: &[LinkView], demand: Bytes, answer: Bytes) -> Vec<LinkId> {
        let first = match self {
            Self::Makespan => makespan::pick(links, demand),
            Self::MaxThroughput => max_throughput::pick(links, demand, answer),
            Self::OnlyOne => only_one::pick(links),
            Self::RoundRobin(state) => state.pick(links),
            Self::WeightedRoundRobin(state) => state.pick(links),
        };
        let mut rest: Vec<&LinkView> = links.iter().filter(|link| Some(link.id) != first).collect();
        // The sort is stable, so links with equal keys stay in the order of their ids.
        rest.sort_by_key(|link| link.own_finish_us(answer));
        first
            .into_iter()
            .chain(rest.into_iter().map(|link| link.id))
            .collect()
    }
}

/// Returns the time in µs until all `links` have moved their loads if a connection with `demand` bytes is added to
/// `chosen`.
fn all_done_us(links: &[LinkView], chosen: &LinkView, demand: Bytes) -> u128 {
    let others = links.iter().filter(|link| link.id != chosen.id);
    let others_us = others.map(|link| link.all_done_us(Bytes::ZERO)).max();
    chosen.all_done_us(demand).max(others_us.unwrap_or(0))
}
