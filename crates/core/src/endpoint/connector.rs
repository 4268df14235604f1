//! Connection attempts of the client: over which link, to which address, and when.
//!
//! Attempts rotate over every pair of link and gateway address, 100 ms apart, so that the tunnel comes up at once on
//! another link if the first link is dead. Several attempts may be pending, and the first answer wins. After two
//! attempts for each pair the interval grows to [`SLOW`].

use core::{net::SocketAddr, time::Duration};

use crate::{
    ids::PathId,
    session::{cookie::CookieCache, handshake::Initiator},
    time::Instant,
    transmit::Route,
};

/// The address families that a link can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whether the link has an IPv4 address and route.
    pub v4: bool,
    /// Whether the link has an IPv6 address and route.
    pub v6: bool,
}

impl Reach {
    /// Neither family: the link is down.
    pub const NONE: Self = Self {
        v4: false,
        v6: false,
    };

    fn includes(self, address: &SocketAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// State of the client's connection attempts.
#[derive(Debug)]
pub(super) struct Connector {
    endpoints: Vec<SocketAddr>,
    remote_public: [u8; 32],
    links: [Option<ClientLink>; PathId::MAX],
    /// Pending attempts, oldest first.
    pub(super) pending: Vec<Attempt>,
    next_attempt_at: Instant,
    /// Session indices of failed attempts, which the owner frees.
    given_up: Vec<u32>,
    /// Number of attempts since the last success.
    attempts: usize,
    turn: usize,
}

/// One of the client's links.
#[derive(Debug)]
struct ClientLink {
    reach: Reach,
    /// Index of the gateway address in use.
    endpoint: usize,
    cookies: CookieCache,
    /// Time before which the gateway has asked the client not to try again over this link.
    busy_until: Instant,
}

/// A pending handshake.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) initiator: Initiator,
    /// Datagram as last sent. It is stored to be sent again with a cookie, and to check replies by its MACs.
    pub(super) datagram: Vec<u8>,
    pub(super) route: Route,
    /// Time at which the datagram was last sent.
    pub(super) sent_at: Instant,
}

impl Connector {
    pub(super) fn new(now: Instant, endpoints: Vec<SocketAddr>, remote_public: &[u8; 32]) -> Self {
        Self {
            endpoints,
            remote_public: *remote_public,
            links: core::array::from_fn(|_| None),
            pending: Vec::new(),
            given_up: Vec::new(),
            next_attempt_at: now,
            attempts: 0,
            turn: 0,
        }
    }

    /// Replaces the addresses of the gateway; the new addresses are tried at once. The address in use by a link remains
    /// in use if it is among the new ones.
    pub(super) fn set_endpoints(&mut self, now: Instant, endpoints: Vec<SocketAddr>) {
        for link in self.links.iter_mut().flatten() {
            let used = self.endpoints.get(link.endpoint);
            let kept = endpoints.iter().position(|endpoint| Some(endpoint) == used);
            link.endpoint = kept.unwrap_or(0);
        }
        self.endpoints = endpoints;
        (self.attempts, self.turn) = (0, 0);
        self.next_attempt_at = self.next_attempt_at.min(now);
    }

    pub(super) fn add_link(&mut self) -> Option<PathId> {
        let index = self.links.iter().position(Option::is_none)?;
        self.links[index] = Some(ClientLink {
            reach: Reach::NONE,
            endpoint: 0,
            cookies: CookieCache::new(&self.remote_public),
            busy_until: Instant::ZERO,
        });
        u8::try_from(index).ok().map(PathId)
    }

    pub(super) fn remove_link(&mut self, id: PathId) {
        if let Some(slot) = self.links.get_mut(id.index()) {
            *slot = None;
        }
    }

    /// Sets which address families a link can reach now. Returns the route that its path should use.
    pub(super) fn set_reach(&mut self, now: Instant, id: PathId, reach: Reach) -> Option<Route> {
        let link = self.links.get_mut(id.index())?.as_mut()?;
        if link.reach == Reach::NONE && reach != Reach::NONE {
            // The link is new or has returned, so try it at once. A busy reply that the gateway sent to the link's
            // former address no longer applies.
            link.busy_until = Instant::ZERO;
            self.attempts = 0;
            self.next_attempt_at = self.next_attempt_at.min(now);
        }
        link.reach = reach;
        self.route_of(id)
    }

    /// Returns the route that a link's path should use: to the gateway address in use, or to the next address if the
    /// link's address families exclude the present one.
    pub(super) fn route_of(&mut self, id: PathId) -> Option<Route> {
        let link = self.links.get_mut(id.index())?.as_mut()?;
        let count = self.endpoints.len();
        let endpoint = (0..count)
            .map(|step| (link.endpoint + step) % count)
            .find(|endpoint| link.reach.includes(&self.endpoints[*endpoint]))?;
        link.endpoint = endpoint;
        Some(Route {
            link: id.0,
            remote: self.endpoints[endpoint],
            local: None,
        })
    }

    /// Switches a link to the next gateway address, because the present one does not answer. Returns the new route.
    pub(super) fn next_route(&mut self, id: PathId) -> Option<Route> {
        let link = self.links.get_mut(id.index())?.as_mut()?;
        link.endpoint = (link.endpoint + 1).checked_rem(self.endpoints.len())?;
        self.route_of(id)
    }

    /// Selects the gateway address of `route` for its link, because an answer has arrived over `route`.
    pub(super) fn on_answer(&mut self, route: &Route) {
        let endpoint = self
            .endpoints
            .iter()
            .position(|endpoint| *endpoint == route.remote);
        if let (Some(endpoint), Some(Some(link))) =
            (endpoint, self.links.get_mut(usize::from(route.link)))
        {
            link.endpoint = endpoint;
        }
    }

    /// Returns the route of the attempt that is due; `None` if no attempt is due or no link can reach a gateway
    /// address.
    pub(super) fn poll_attempt(&mut self, now: Instant) -> Option<Route> {
        let is_late = |attempt: &mut Attempt| now.since(attempt.sent_at) >= PATIENCE;
        for attempt in self.pending.extract_if(.., is_late) {
            self.given_up.push(attempt.initiator.local_index());
        }
        if now < self.next_attempt_at {
            return None;
        }
        let pairs = self.links.len() * self.endpoints.len();
        let is_usable = |pair: &usize| {
            let (link, endpoint) = self.pair(*pair);
            self.links[link].as_ref().is_some_and(|link| {
                link.busy_until <= now && link.reach.includes(&self.endpoints[endpoint])
            })
        };
        let pair = (0..pairs)
            .map(|step| (self.turn + step) % pairs)
            .find(is_usable);
        let usable = (0..pairs).filter(is_usable).count();
        let pace = if self.attempts < 2 * usable.max(1) {
            FAST
        } else {
            SLOW
        };
        self.next_attempt_at = now + pace;
        let pair = pair?;
        self.turn = pair + 1;
        self.attempts += 1;
        let (link, endpoint) = self.pair(pair);
        Some(Route {
            link: u8::try_from(link).unwrap_or(0),
            remote: self.endpoints[endpoint],
            local: None,
        })
    }

    /// Stores a handshake that is sent now, until it is answered or has timed out. At [`MAX_PENDING`] the oldest
    /// handshake is removed, and [`Self::poll_given_up`] returns its index.
    pub(super) fn push(
        &mut self,
        now: Instant,
        initiator: Initiator,
        datagram: Vec<u8>,
        route: Route,
    ) {
        if self.pending.len() == MAX_PENDING {
            let oldest = self.pending.remove(0);
            self.given_up.push(oldest.initiator.local_index());
        }
        self.pending.push(Attempt {
            initiator,
            datagram,
            route,
            sent_at: now,
        });
    }

    /// Returns the pending attempt over `link` with this end's session index `index`, and the cookies of the link.
    pub(super) fn attempt(
        &mut self,
        link: u8,
        index: u32,
    ) -> Option<(&mut Attempt, &mut CookieCache)> {
        let attempt = self.pending.iter_mut().find(|attempt| {
            attempt.route.link == link && attempt.initiator.local_index() == index
        })?;
        let link = self.links.get_mut(usize::from(link))?.as_mut()?;
        Some((attempt, &mut link.cookies))
    }

    /// Returns the cookies of a link.
    pub(super) fn cookies(&mut self, link: u8) -> Option<&mut CookieCache> {
        Some(&mut self.links.get_mut(usize::from(link))?.as_mut()?.cookies)
    }

    /// Handles the gateway's request not to try over a link before `until`.
    pub(super) fn on_busy(&mut self, link: u8, until: Instant) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(link)) {
            link.busy_until = link.busy_until.max(until);
        }
    }

    /// Ends all pending attempts, because the handshake with the session index `index` has succeeded. An index of 0
    /// stands for no handshake.
    pub(super) fn finish(&mut self, index: u32) {
        let attempts = self.pending.drain(..);
        let others = attempts.map(|attempt| attempt.initiator.local_index());
        self.given_up.extend(others.filter(|other| *other != index));
        self.attempts = 0;
    }

    /// Ends all attempts and tries to connect at once. The cookies are discarded, because this process is a copy and
    /// the cookies belong to the original.
    pub(super) fn start_over(&mut self, now: Instant) {
        self.finish(0);
        self.next_attempt_at = now;
        for link in self.links.iter_mut().flatten() {
            link.cookies = CookieCache::new(&self.remote_public);
            link.busy_until = Instant::ZERO;
        }
    }

    /// Ends all attempts. The next attempts are for the gateway with the public key `remote_public`, at addresses that
    /// [`Self::set_endpoints`] sets.
    pub(super) fn change_gateway(&mut self, now: Instant, remote_public: &[u8; 32]) {
        self.remote_public = *remote_public;
        self.endpoints.clear();
        self.start_over(now);
    }

    /// Returns the session index of a failed attempt, which is no longer used.
    pub(super) fn poll_given_up(&mut self) -> Option<u32> {
        self.given_up.pop()
    }

    /// Returns the time at which [`Self::poll_attempt`] is to be called again.
    pub(super) fn next_deadline(&self) -> Instant {
        self.next_attempt_at
    }

    /// Delays the next attempt until `at`.
    pub(super) fn sleep_until(&mut self, at: Instant) {
        self.next_attempt_at = at;
    }

    /// Returns the indices of link and address for a pair number. The link changes first, so that every link is tried
    /// before any link is tried with a second address.
    fn pair(&self, pair: usize) -> (usize, usize) {
        (pair % self.links.len(), pair / self.links.len())
    }
}

const FAST: Duration = Duration::from_millis(100);
/// Interval between attempts when no address answers.
pub(super) const SLOW: Duration = Duration::from_millis(500);
/// Maximum time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_PENDING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        session::{aead::Suite, handshake::StaticKeys},
        wire::handshake::Hello,
    };

    #[test]
    fn a_link_that_returns_does_not_wait_for_what_its_former_address_was_told() {
        let endpoint: SocketAddr = "192.0.2.1:7700".parse().expect("literal");
        let mut connector = Connector::new(Instant::ZERO, vec![endpoint], &[2; 32]);
        let link = connector.add_link().expect("room");
        let reach = Reach {
            v4: true,
            v6: false,
        };
        connector.set_reach(Instant::ZERO, link, reach);
        connector.on_busy(link.0, Instant::ZERO + Duration::from_secs(10));
        let now = Instant::ZERO + SLOW;
        // Setting the same reach again does not end the wait.
        connector.set_reach(now, link, reach);
        assert_eq!(connector.poll_attempt(now), None);
        connector.set_reach(now, link, Reach::NONE);
        connector.set_reach(now, link, reach);
        assert!(connector.poll_attempt(now).is_some());
    }

    #[test]
    fn every_attempt_gives_its_index_back_but_the_one_that_succeeds() {
        let keys = StaticKeys::from_private([1; 32]);
        let remote = *StaticKeys::from_private([2; 32]).public();
        let endpoint: SocketAddr = "192.0.2.1:7700".parse().expect("literal");
        let mut connector = Connector::new(Instant::ZERO, vec![endpoint], &remote);
        let hello = Hello {
            protocol_version: 1,
            capabilities: 0,
            suites: Suite::offer(Suite::preferred(true)),
            association: 1,
            time: None,
        };
        let push = |connector: &mut Connector, now, index| {
            let (initiator, datagram) =
                Initiator::new(&keys, &remote, &[0; 32], index, hello, [3; 32]).expect("valid");
            let route = Route {
                link: 0,
                remote: endpoint,
                local: None,
            };
            connector.push(now, initiator, datagram, route);
        };
        let given_up = |connector: &mut Connector| {
            let mut all: Vec<u32> = core::iter::from_fn(|| connector.poll_given_up()).collect();
            all.sort_unstable();
            all
        };
        for index in 1..=18 {
            push(&mut connector, Instant::ZERO, index);
        }
        assert_eq!(given_up(&mut connector), [1, 2], "too many");
        connector.poll_attempt(Instant::ZERO + PATIENCE);
        assert_eq!(given_up(&mut connector), (3..=18).collect::<Vec<_>>());
        for index in 19..=22 {
            push(&mut connector, Instant::ZERO + PATIENCE, index);
        }
        connector.finish(20);
        assert_eq!(given_up(&mut connector), [19, 21, 22]);
    }
}
