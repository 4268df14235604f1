//! One direction of several links, some of which send through a common bottleneck.
//!
//! A packet of link *i* passes the link's own bottleneck, then the shared bottleneck if the link has one, then the
//! link's own loss and line. Packets enter a shared bottleneck in the order in which they leave the links' own
//! bottlenecks. At equal times the link with the lower index goes first. The cost per packet is linear in the number of
//! links, at most [`MAX_LINKS`].

use core::time::Duration;

use pleach_core::{time::Instant, units::Bytes};

use crate::link::{
    Corrupt, Link, LinkChange, LinkConfig, LinkState, LinkStats, earliest, queue::Bottleneck,
    trace::Rate,
};

/// Highest number of links in a bundle.
pub const MAX_LINKS: usize = 32;

/// A bottleneck that several links share.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    /// Serialisation rate.
    pub rate: Rate,
    /// Limit of the queue.
    pub queue: Bytes,
}

/// A packet that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<P> {
    /// Index of the link.
    pub link: usize,
    /// Time at which the model delivers the packet, not after the `now` of the poll.
    pub at: Instant,
    /// The packet.
    pub packet: P,
}

/// One direction of several links.
#[derive(Clone, Debug)]
pub struct Bundle<P> {
    links: Vec<Link<P>>,
    /// For each link, the index of its shared bottleneck.
    membership: Vec<Option<usize>>,
    shared: Vec<(SharedConfig, Bottleneck<(usize, P)>)>,
}

impl<P: Corrupt> Bundle<P> {
    /// Creates links, each with the index of its shared bottleneck. An index out of range means no shared bottleneck.
    #[must_use]
    pub fn new(
        links: Vec<(LinkConfig, Option<usize>)>,
        shared: Vec<SharedConfig>,
        seed: u64,
        now: Instant,
    ) -> Self {
        let membership = links
            .iter()
            .map(|(_, index)| index.filter(|&index| index < shared.len()))
            .collect();
        let link_seed = |index: u64| seed ^ (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let links = (0..)
            .zip(links)
            .map(|(index, (config, _))| Link::new(config, link_seed(index), now))
            .collect();
        let bottleneck =
            |config: &SharedConfig| Bottleneck::new(config.rate.clone(), config.queue, now);
        let shared = shared
            .into_iter()
            .map(|config| {
                let bottleneck = bottleneck(&config);
                (config, bottleneck)
            })
            .collect();
        Self {
            links,
            membership,
            shared,
        }
    }

    /// Restarts traces and counters at `now`. Packets in flight remain.
    pub fn restart(&mut self, now: Instant) {
        self.advance(now);
        self.links.iter_mut().for_each(|link| link.restart(now));
        for (config, bottleneck) in &mut self.shared {
            bottleneck.change(now, config.rate.clone(), now);
        }
    }

    /// Accepts a packet for link `link`. If the index is out of range, the packet is lost.
    pub fn handle_packet(&mut self, now: Instant, link: usize, len_bytes: usize, packet: P) {
        self.advance(now);
        let len = Bytes::of_len(len_bytes);
        match self.membership.get(link) {
            // A link without a rate of its own passes its packets to the shared bottleneck at once, unless the link
            // is down.
            Some(&Some(shared)) if self.passes_at_once(link, len) => {
                let target = &mut self.links[link];
                target.count_offered(len);
                Self::share(&mut self.shared[shared].1, target, now, len, (link, packet));
            }
            Some(_) => self.links[link].enter(now, len, packet),
            None => {}
        }
    }

    /// Returns the next packet that has arrived by `now`, in order of arrival.
    pub fn poll_output(&mut self, now: Instant) -> Option<Delivery<P>> {
        self.advance(now);
        let (_, link) = (0..)
            .zip(&self.links)
            .filter_map(|(index, link)| Some((link.next_arrival()?, index)))
            .min()?;
        let (at, packet) = self.links[link].leave(now)?;
        Some(Delivery { link, at, packet })
    }

    /// Returns the time of the next event. `None` while all links are idle.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.links.iter().filter_map(Link::poll_timeout).min();
        let shared = self.shared.iter().filter_map(|(_, b)| b.next_departure());
        earliest(links, shared.min())
    }

    /// Changes parameters of link `link` at `now`. Does nothing if the index is out of range.
    pub fn apply(&mut self, now: Instant, link: usize, change: &LinkChange) {
        self.advance(now);
        if let Some(link) = self.links.get_mut(link) {
            link.apply(now, change);
        }
    }

    /// Changes rate and queue of the shared bottleneck `shared` at `now`. Other fields of `change` are ignored.
    pub fn apply_shared(&mut self, now: Instant, shared: usize, change: &LinkChange) {
        self.advance(now);
        let Some((config, bottleneck)) = self.shared.get_mut(shared) else {
            return;
        };
        if let Some(queue) = change.queue {
            config.queue = queue;
            bottleneck.set_limit(queue);
        }
        if let Some(rate) = &change.rate {
            config.rate = rate.clone();
            let epoch = bottleneck.epoch();
            bottleneck.change(now, rate.clone(), epoch);
        }
    }

    /// Returns the links, by index.
    #[must_use]
    pub fn links(&self) -> &[Link<P>] {
        &self.links
    }

    /// Returns the longest time in queue and serialisation of link `link` since the last call. Zero if no packet left.
    pub fn take_longest_wait(&mut self, link: usize) -> Duration {
        let link = self.links.get_mut(link);
        link.map_or(Duration::ZERO, Link::take_longest_wait)
    }

    /// Returns the counters of all links, by index.
    pub fn stats(&self) -> impl Iterator<Item = &LinkStats> {
        self.links.iter().map(Link::stats)
    }

    /// Returns the number of bytes queued in front of link `link`: in its own queue, and in the shared queue if it has
    /// one.
    #[must_use]
    pub fn queue_len(&self, link: usize) -> Bytes {
        let own = self.links.get(link).map_or(Bytes::ZERO, Link::queue_len);
        let shared = self.membership.get(link).copied().flatten();
        own + shared.map_or(Bytes::ZERO, |index| self.shared[index].1.waiting())
    }

    /// Returns the number of bytes that link `link` could have carried from `from` to `to` with the current parameters,
    /// if no other link used the shared bottleneck. `None` if the rate is not limited.
    #[must_use]
    pub fn capacity_between(&self, link: usize, from: Instant, to: Instant) -> Option<Bytes> {
        let own = self.links.get(link)?.capacity_between(from, to);
        let shared =
            self.membership[link].and_then(|index| self.shared[index].1.capacity_between(from, to));
        match (own, shared) {
            (Some(own), Some(shared)) => Some(own.min(shared)),
            (own, shared) => own.or(shared),
        }
    }

    fn passes_at_once(&self, link: usize, len: Bytes) -> bool {
        let link = &self.links[link];
        link.config().mtu.is_none_or(|mtu| len <= mtu)
            && matches!(link.config().rate, Rate::Unlimited)
            && link.bottleneck().is_empty()
            && link.config().state != LinkState::Down
    }

    /// Moves every packet through the bottlenecks up to time `now`, in order of time.
    fn advance(&mut self, now: Instant) {
        loop {
            let own = (0..)
                .zip(&self.links)
                .filter_map(|(index, link)| Some((link.bottleneck().next_departure()?, index)))
                .min();
            let shared = (0..)
                .zip(&self.shared)
                .filter_map(|(index, (_, b))| Some((b.next_departure()?, index)))
                .min();
            match (own, shared) {
                // If a link's own bottleneck and a shared bottleneck are due at the same time, the shared bottleneck
                // goes first, so that its queue has free space for the packet from the link.
                (own, Some((at, index)))
                    if at <= now && own.is_none_or(|(other, _)| at <= other) =>
                {
                    self.leave_shared(index, now);
                }
                (Some((at, index)), _) if at <= now => self.leave_own(index, now),
                _ => return,
            }
        }
    }

    fn leave_shared(&mut self, shared: usize, now: Instant) {
        if let Some(departed) = self.shared[shared].1.poll(now) {
            let (link, packet) = departed.item;
            let link = &mut self.links[link];
            link.record_sojourn(departed.at.since(departed.arrived_at));
            link.travel(departed.at, departed.len, packet);
        }
    }

    fn leave_own(&mut self, index: usize, now: Instant) {
        let link = &mut self.links[index];
        let Some(departed) = link.bottleneck_mut().poll(now) else {
            return;
        };
        match self.membership[index] {
            Some(shared) => {
                let target = &mut self.shared[shared].1;
                Self::share(
                    target,
                    link,
                    departed.at,
                    departed.len,
                    (index, departed.item),
                );
            }
            None => {
                link.record_sojourn(departed.at.since(departed.arrived_at));
                link.travel(departed.at, departed.len, departed.item);
            }
        }
    }

    fn share(
        shared: &mut Bottleneck<(usize, P)>,
        link: &mut Link<P>,
        at: Instant,
        len: Bytes,
        item: (usize, P),
    ) {
        if shared.push(at, len, item).is_err() {
            link.count_queue_drop();
        }
    }
}
