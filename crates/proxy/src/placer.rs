//! Chooses the link of each connection from rules, sites, estimates and the scheduler. It is the only interface of
//! these parts that the daemon and the simulator use.
//!
//! Calls for each connection:
//!
//! - [`Placer::begin`] ranks the links that the connection may take, and registers the connection on the first of them.
//! - [`Placer::moved`] registers the connection on another link, if connecting over the first link failed.
//! - [`Placer::observe`] reports the byte counters of the connection once per window.
//! - [`Placer::end`] removes the connection.
//!
//! [`Placer::handle_window`] closes a window of all links. The link of a connection is chosen in these steps:
//!
//! 1. Links qualify if they are up, do not have the cost `never`, and lead to one of the server's addresses. If one of
//!    the addresses is a neighbour on some link, only the links with a neighbour qualify.
//! 2. The first matching rule names the link. Rules that were set at run time come before the rules of the
//!    configuration file. A strict rule excludes all other links.
//! 3. Otherwise a connection takes the link that its site used before ([`crate::sticky`]).
//! 4. Otherwise a connection of a real-time application ([`crate::estimate::class`]) takes the link with the shortest
//!    RTT. Links that lose packets come after all others.
//! 5. Otherwise the scheduler chooses among the links of the lowest price ([`Placer::price`]). Links of a higher price
//!    are added if the connection would take longer than [`PATIENCE`] on the cheaper links. Standby links are used only
//!    if no other link is up. A link is suspect after connecting over it failed while another link succeeded. Suspect
//!    links are used only if no other link is left.
//!
//! The number of bytes that a connection will still move (`remaining`) follows from the mean of its application's
//! connections and from the bytes that the connection has already moved ([`Expected::left`]). The mean is looked up
//! again in each window. A connection that has moved nothing for [`QUIET`] is considered finished.
//!
//! A link without an estimate is assumed to be as fast as the fastest link, but at most twice as fast as the rate
//! observed since its first byte ([`Beginning`]). So a slow link is recognized within a few RTTs.

pub(crate) mod cost;
mod link;
mod placement;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::{collections::BTreeMap, net::IpAddr};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};

use crate::{
    budget::{Account, Standing},
    estimate::{
        application::{Demand, Demands, Expected},
        class::{Class, Classes, Seen},
        link::{Beginning, LinkEstimator, TcpSample, Traffic},
    },
    rules::Rule,
    sched::{LinkId, LinkView, Policy, Scheduler},
    sticky::{Sites, Stickiness},
    target::Target,
};

pub use cost::Cost;
pub use link::{LinkSettings, Price, Reach};
pub use placement::{Ask, ConnectionId, NoLink, Placement, Warm, Why};

/// Settings of a [`Placer`]. Only `policy` can change while the proxy runs.
#[derive(Clone, Debug)]
pub struct PlacerConfig {
    /// The scheduler.
    pub policy: Policy,
    /// Connections that keep the link of their site.
    pub stickiness: Stickiness,
    /// Duration for which the link of a site is stored.
    pub sticky_time: Duration,
    /// Rules of the configuration file. The links that they name must exist.
    pub rules: Vec<Rule>,
}

/// Chooses the link of each connection. See the module's documentation.
#[derive(Debug)]
pub struct Placer {
    config: PlacerConfig,
    scheduler: Scheduler,
    links: Vec<Link>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_id: u64,
    /// Amount of data that connections of each application move.
    pub demands: Demands,
    /// Kind of traffic of each application.
    pub classes: Classes,
    /// Rules that were set at run time. They take precedence over the rules of the configuration file.
    assigned: Vec<Rule>,
    /// Whether links that need less energy are filled before links of the same cost that need more.
    pub saves_energy: bool,
    sites: Sites,
    window_began_at: Instant,
}

/// State of one link.
#[derive(Debug)]
pub struct Link {
    /// Settings from the configuration.
    pub settings: LinkSettings,
    /// Networks that the link reaches at present.
    pub reach: Reach,
    /// Estimate of the link's capacity, RTT and loss.
    pub estimator: LinkEstimator,
    /// Payload bytes sent to servers.
    pub tx_bytes: u64,
    /// Payload bytes received from servers.
    pub rx_bytes: u64,
    /// Data volume counted against the link's budget.
    pub account: Account,
    standing: Standing,
    suspect_until: Option<Instant>,
    /// Time at which data last arrived over the link.
    heard_at: Option<Instant>,
    /// Traffic of the current window: `up` to servers, `down` from servers.
    up: Traffic,
    down: Traffic,
    /// Traffic since the first byte, up and down. It is used as long as there is no estimate.
    beginnings: (Beginning, Beginning),
    /// Whether the previous window moved at least as many bytes as a bulk connection does, up and down.
    was_busy: (bool, bool),
}

#[derive(Debug)]
struct Connection {
    link: LinkId,
    client: IpAddr,
    app: Option<String>,
    target: Target,
    expected: Expected,
    /// Whether `expected` is known from the server and not only estimated.
    is_foretold: bool,
    moved: Demand,
    /// Bytes moved until the connection was last observed or glanced at. A glance happens within a window.
    glanced: Demand,
    began_at: Instant,
    progress_at: Instant,
    /// Whether the connection moved at least `BULK_BYTES` in the last window, up and down.
    was_active: (bool, bool),
    /// Whether the connection's bytes are counted by [`Placer::observe_lane`].
    is_striped: bool,
    /// Whether the connection has lanes on several links. Then it does not count as load of any link.
    is_spread: bool,
    /// DSCP of the client's packets.
    dscp: Option<u8>,
    /// Number of data segments sent to the server.
    segments: u32,
}

impl Link {
    /// Returns how the link's data volume compares with its budget.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }
}

impl Placer {
    /// Returns a placer without links and connections.
    #[must_use]
    pub fn new(config: PlacerConfig, now: Instant) -> Self {
        Self {
            scheduler: Scheduler::new(config.policy),
            sites: Sites::new(config.sticky_time),
            config,
            links: Vec::new(),
            connections: BTreeMap::new(),
            next_id: 0,
            demands: Demands::default(),
            classes: Classes::default(),
            assigned: Vec::new(),
            saves_energy: false,
            window_began_at: now,
        }
    }

    /// Adds a link that reaches no network yet.
    pub fn add_link(&mut self, settings: LinkSettings) -> LinkId {
        self.links.push(Link {
            settings,
            reach: Reach::default(),
            estimator: LinkEstimator::default(),
            tx_bytes: 0,
            rx_bytes: 0,
            account: Account::default(),
            standing: Standing::Within,
            suspect_until: None,
            heard_at: None,
            up: Traffic::default(),
            down: Traffic::default(),
            beginnings: <(Beginning, Beginning)>::default(),
            was_busy: (false, false),
        });
        LinkId(self.links.len() - 1)
    }

    /// Sets the networks that `link` reaches from now on. If they changed, the link is no longer suspect.
    pub fn set_reach(&mut self, link: LinkId, reach: Reach) {
        if let Some(link) = self.links.get_mut(link.0)
            && link.reach != reach
        {
            link.reach = reach;
            link.suspect_until = None;
            link.beginnings = <(Beginning, Beginning)>::default();
        }
    }

    /// Returns the current scheduling policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Changes the scheduling policy.
    pub fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        self.scheduler = Scheduler::new(policy);
    }

    /// Adds a rule: new connections that meet the conditions of `rule` take `link`. The rule takes precedence over the
    /// rules of the configuration file. If `link` is `None`, the rule with these conditions is removed.
    ///
    /// # Errors
    /// No rule with these conditions exists to be removed, or there are already [`MAX_ASSIGNED`] rules.
    pub fn assign(&mut self, rule: Rule, link: Option<LinkId>) -> Result<(), String> {
        let is_same = |other: &Rule| {
            (&other.app, &other.ports, &other.destination)
                == (&rule.app, &rule.ports, &rule.destination)
        };
        let before = self.assigned.len();
        self.assigned.retain(|other| !is_same(other));
        let Some(link) = link else {
            let removed = self.assigned.len() < before;
            return removed
                .then_some(())
                .ok_or_else(|| "nothing was assigned there".to_owned());
        };
        if self.assigned.len() >= MAX_ASSIGNED {
            return Err(format!(
                "{MAX_ASSIGNED} assignments are there already; remedy: take some back with link=auto"
            ));
        }
        self.assigned.insert(0, Rule { link, ..rule });
        Ok(())
    }

    /// Returns all rules in order of precedence: first the rules set at run time, then the rules of the configuration
    /// file.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.assigned.iter().chain(&self.config.rules)
    }

    /// Returns the link that was assigned to the program `app` at run time.
    #[must_use]
    pub fn assigned_to(&self, app: &str) -> Option<LinkId> {
        let of_app = |rule: &&Rule| {
            rule.app.as_deref() == Some(app) && rule.ports.is_none() && rule.destination.is_none()
        };
        self.assigned.iter().find(of_app).map(|rule| rule.link)
    }

    /// Stores how many data segments connection `id` has sent to its server.
    pub fn note_segments(&mut self, id: ConnectionId, segments: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.segments = segments;
        }
    }

    /// Returns all links, sorted by id.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns a link, so that a stored estimate can be restored.
    pub fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link.0)
    }

    /// Counts `bytes` that `link` has carried until `unix_s` (seconds since 1970-01-01 UTC) against its budget. Returns
    /// the standing of the link if it has changed. Call this function from time to time with zero bytes, too, because a
    /// new budget month may have begun.
    pub fn charge(&mut self, link: LinkId, unix_s: u64, bytes: u64) -> Option<Standing> {
        let link = self.links.get_mut(link.0)?;
        let budget = link.settings.budget?;
        link.account.charge(&budget, unix_s, bytes);
        let standing = link.account.standing(&budget, unix_s);
        (core::mem::replace(&mut link.standing, standing) != standing).then_some(standing)
    }

    /// Returns the present price of `link`. It consists of the configured cost, raised according to the link's budget,
    /// and of the link's energy if energy is to be saved.
    #[must_use]
    pub fn price(&self, link: &Link) -> Price {
        Price {
            cost: link.standing.cost(link.settings.cost),
            energy: if self.saves_energy {
                link.settings.energy
            } else {
                0
            },
        }
    }

    /// Returns the number of connections on each link, in the order of ids. O(n).
    #[must_use]
    pub fn connection_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.links.len()];
        for connection in self.connections.values().filter(|one| !one.is_spread) {
            counts[connection.link.0] += 1;
        }
        counts
    }

    /// Ranks the links for a connection and registers the connection on the first link. O(links × connections).
    ///
    /// # Errors
    /// No link leads to the server at present. No connection is registered.
    pub fn begin(&mut self, now: Instant, ask: Ask<'_>) -> Result<Placement, NoLink> {
        let expected = self.demands.expected(ask.app, ask.target.port);
        let (links, why) = self.rank(now, ask, expected)?;
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.wake(now, links[0]);
        let connection = Connection {
            link: links[0],
            client: ask.client,
            app: ask.app.map(str::to_owned),
            target: ask.target.clone(),
            expected,
            is_foretold: false,
            moved: Demand { up: 0, down: 0 },
            glanced: Demand { up: 0, down: 0 },
            began_at: now,
            progress_at: now,
            was_active: (false, false),
            is_striped: false,
            is_spread: false,
            dscp: ask.dscp,
            segments: 0,
        };
        self.connections.insert(id, connection);
        self.note_site(now, id);
        Ok(Placement { id, links, why })
    }

    /// Registers a connection over `link` that downloads a part of `bytes` bytes of the data that connection `whole` is
    /// to download. Returns `None` if the connection `whole` does not exist.
    pub fn begin_part(
        &mut self,
        now: Instant,
        whole: ConnectionId,
        link: LinkId,
        bytes: Bytes,
    ) -> Option<ConnectionId> {
        let whole = self.connections.get(&whole)?;
        let none = Demand { up: 0, down: 0 };
        let part = Connection {
            link,
            client: whole.client,
            app: whole.app.clone(),
            target: whole.target.clone(),
            expected: Expected::exactly(Demand {
                up: 0,
                down: bytes.get(),
            }),
            is_foretold: true,
            moved: none,
            glanced: none,
            began_at: now,
            progress_at: now,
            was_active: (false, false),
            is_striped: false,
            is_spread: false,
            dscp: None,
            segments: 0,
        };
        self.wake(now, link);
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.connections.insert(id, part);
        Some(id)
    }

    /// Returns the links that may download parts of the data of connection `id`. These are the trusted links that lead
    /// to one of `addresses` and are not dearer than the connection's own link. If all trusted links are dearer, the
    /// cheapest of them are returned.
    #[must_use]
    pub fn helpers(&self, now: Instant, id: ConnectionId, addresses: &[IpAddr]) -> Vec<LinkId> {
        let own = self.connections.get(&id);
        let Some(own) = own.and_then(|connection| self.links.get(connection.link.0)) else {
            return Vec::new();
        };
        let price = self.price(own);
        let ids = self.ids(|link| {
            let leads = addresses.iter().any(|ip| link.reach.covers(*ip));
            leads && link.settings.cost != Cost::Never
        });
        let price_of = |id: &LinkId| self.price(&self.links[id.0]);
        let trusted = ids.into_iter().filter(|id| !self.is_suspect(now, *id));
        let trusted: Vec<LinkId> = trusted.collect();
        let least = trusted.iter().map(price_of).min();
        let limit = least.map_or(price, |least| least.max(price));
        let cheap = trusted.into_iter().filter(|id| price_of(id) <= limit);
        cheap.collect()
    }

    /// Returns the number of bytes that connections have received over each link, as far as they were observed or
    /// glanced at. O(n).
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        let mut received: Vec<u64> = self.links.iter().map(|link| link.rx_bytes).collect();
        for one in self.connections.values().filter(|one| !one.is_striped) {
            received[one.link.0] += one.glanced.down.saturating_sub(one.moved.down);
        }
        received
    }

    /// Registers connection `id` on `link`, because connecting over the links `failed` did not succeed. These links
    /// become suspect unless data arrived over them recently.
    pub fn moved(&mut self, now: Instant, id: ConnectionId, link: LinkId, failed: &[LinkId]) {
        self.wake(now, link);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.link = link;
            connection.progress_at = now;
        }
        self.note_site(now, id);
        for failed in failed {
            // A saturated link sometimes loses the first packet of a connection although the link works.
            let is_alive = self.is_alive(now, *failed);
            if let Some(failed) = self.links.get_mut(failed.0)
                && !is_alive
            {
                failed.suspect_until = Some(now + SUSPICION);
            }
        }
    }

    /// Marks connection `id` as striped: [`Self::observe_lane`] counts its bytes per lane. `only` is the link of its
    /// lane, or `None` if it has several lanes.
    pub fn stripe(&mut self, id: ConnectionId, only: Option<LinkId>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_striped = true;
            connection.is_spread = only.is_none();
            connection.link = only.unwrap_or(connection.link);
        }
    }

    /// Counts the bytes that a striped connection has moved over `link` since the previous call.
    pub fn observe_lane(
        &mut self,
        now: Instant,
        link: LinkId,
        moved: Demand,
        client_limited: bool,
    ) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.tx_bytes += moved.up;
            link.rx_bytes += moved.down;
            if moved.down > 0 {
                link.heard_at = Some(now);
            }
            link.up.bytes += moved.up;
            link.down.bytes += moved.down;
            link.up.bulk += u32::from(moved.up >= BULK_BYTES);
            link.down.bulk += u32::from(moved.down >= BULK_BYTES && !client_limited);
        }
    }

    /// Marks `link` as working, because data arrived over it.
    pub fn trust(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.suspect_until = None;
        }
    }

    /// Whether new connections avoid `link` because connecting over it has recently failed.
    #[must_use]
    pub fn is_suspect(&self, now: Instant, link: LinkId) -> bool {
        let until = self.links.get(link.0).and_then(|link| link.suspect_until);
        until.is_some_and(|until| now < until)
    }

    /// Whether data arrived over `link` within the last second.
    #[must_use]
    pub fn is_alive(&self, now: Instant, link: LinkId) -> bool {
        let heard_at = self.links.get(link.0).and_then(|link| link.heard_at);
        heard_at.is_some_and(|heard_at| now.since(heard_at) <= ALIVE)
    }

    /// Updates the number of bytes that connection `id` has moved since it began, within a window.
    pub fn glance(&mut self, now: Instant, id: ConnectionId, moved: Demand) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !connection.is_striped
            && let Some(link) = self.links.get_mut(connection.link.0)
        {
            let seen = core::mem::replace(&mut connection.glanced, moved);
            let (up, down) = &mut link.beginnings;
            up.on_bytes(now, moved.up.saturating_sub(seen.up));
            down.on_bytes(now, moved.down.saturating_sub(seen.down));
        }
    }

    /// Sets the total amount of data that connection `id` will move, as announced by the server. An amount of more than
    /// `MAX_FORETOLD` is ignored, because such a transfer is not meant to end.
    pub fn foretell(&mut self, id: ConnectionId, all: Demand) {
        if let Some(connection) = self.connections.get_mut(&id)
            && all.total() <= MAX_FORETOLD
        {
            connection.expected = Expected::exactly(all);
            connection.is_foretold = true;
        }
    }

    /// Updates the number of bytes that connection `id` has moved since it began. `client_limited`: whether the client,
    /// not the network, limited the connection's throughput.
    pub fn observe(&mut self, now: Instant, id: ConnectionId, moved: Demand, client_limited: bool) {
        self.glance(now, id, moved);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if !connection.is_foretold {
            let port = connection.target.port;
            connection.expected = self.demands.expected(connection.app.as_deref(), port);
        }
        let up = moved.up.saturating_sub(connection.moved.up);
        let down = moved.down.saturating_sub(connection.moved.down);
        connection.moved = moved;
        if up + down > 0 {
            connection.progress_at = now;
        }
        if connection.is_striped {
            connection.glanced = moved;
            return;
        }
        let (was_up, was_down) = connection.was_active;
        connection.was_active = (up >= BULK_BYTES, down >= BULK_BYTES);
        if let Some(link) = self.links.get_mut(connection.link.0) {
            link.tx_bytes += up;
            link.rx_bytes += down;
            if down > 0 {
                link.heard_at = Some(now);
            }
            link.up.bytes += up;
            link.down.bytes += down;
            link.up.bulk += u32::from(was_up && up >= BULK_BYTES);
            link.down.bulk += u32::from(was_down && down >= BULK_BYTES && !client_limited);
        }
    }

    /// Passes TCP's statistics of a connection on `link` to the link's estimator.
    pub fn observe_tcp(&mut self, link: LinkId, sample: TcpSample) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.estimator.on_tcp(sample);
        }
    }

    /// Closes the window. Call this function every [`WINDOW`], after all connections were observed.
    pub fn handle_window(&mut self, now: Instant) {
        let length = now.since(self.window_began_at);
        self.window_began_at = now;
        let mut crowds = vec![0; self.links.len()];
        for connection in self.connections.values().filter(|one| is_kept(now, one)) {
            crowds[connection.link.0] += 1;
        }
        for (link, crowd) in self.links.iter_mut().zip(crowds) {
            let [mut up, mut down] = [&mut link.up, &mut link.down].map(core::mem::take);
            let was_busy = core::mem::replace(
                &mut link.was_busy,
                (up.bytes >= BULK_BYTES, down.bytes >= BULK_BYTES),
            );
            // Only the direction with more bytes is considered. The other direction carries requests or
            // acknowledgements.
            let (main, was_busy) = if up.bytes > down.bytes {
                (&mut up, was_busy.0)
            } else {
                (&mut down, was_busy.1)
            };
            main.has_crowd = crowd >= CROWD && was_busy && main.bytes >= BULK_BYTES;
            link.estimator.up.on_window(now, up, length);
            link.estimator.down.on_window(now, down, length);
        }
    }

    /// Removes connection `id`, which has ended. Call [`Self::observe`] before, to count its last bytes. `completed` is
    /// the number of requests of the client. It is `None` if the connection was not established; then its bytes do not
    /// enter the application's averages.
    pub fn end(&mut self, now: Instant, id: ConnectionId, completed: Option<u64>) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        if let Some(questions) = completed {
            let app = connection.app.as_deref();
            let port = connection.target.port;
            self.demands
                .note(now, app, port, connection.moved, questions);
            let seen = Seen {
                port,
                dscp: connection.dscp,
                up: connection.moved.up,
                down: connection.moved.down,
                segments: connection.segments,
                lasted: now.since(connection.began_at),
            };
            self.classes.note(now, app, &seen);
        }
    }

    /// Returns the rates of `link`, up and down, that the scheduler assumes.
    #[must_use]
    pub fn rates(&self, now: Instant, link: LinkId) -> (Bitrate, Bitrate) {
        let of = |is_up: bool| {
            let rate = |link: &Link| {
                let given = if is_up {
                    link.settings.upload
                } else {
                    link.settings.download
                };
                let estimator = if is_up {
                    &link.estimator.up
                } else {
                    &link.estimator.down
                };
                (given, estimator.rate())
            };
            let shown = |link: &Link| {
                let (up, down) = link.beginnings;
                let shown = if is_up { up.rate() } else { down.rate() };
                shown.map(|shown| shown.scale(SHOWN_TO_HOPED, 1))
            };
            let highest = self.links.iter().filter_map(|link| match rate(link) {
                (Some(given), _) => Some(given),
                (None, Some((rate, _))) => Some(rate),
                (None, None) => shown(link),
            });
            let least = |link: &Link| {
                let estimator = if is_up {
                    &link.estimator.up
                } else {
                    &link.estimator.down
                };
                estimator.least()
            };
            let highest = highest.max().unwrap_or(FIRST_RATE);
            let highest = self.links.iter().map(least).fold(highest, Bitrate::max);
            match self.links.get(link.0).map(rate) {
                Some((Some(given), _)) => given,
                // The assumed rate doubles with each `MEMORY` of the estimate's age, up to the rate of the fastest
                // link.
                Some((None, Some((rate, proven_at)))) => {
                    let ages = now.since(proven_at).as_secs() / MEMORY.as_secs();
                    let hoped = rate.as_bps().saturating_mul(1 << ages.min(30));
                    Bitrate::from_bps(hoped).min(highest).max(rate)
                }
                Some((None, None)) | None => {
                    let unknown = self.links.get(link.0);
                    let hoped = unknown.and_then(shown).unwrap_or(highest);
                    hoped.min(highest).max(unknown.map_or(Bitrate::ZERO, least))
                }
            }
        };
        (of(true), of(false))
    }

    /// Returns the download rate of `link` from the configuration or from the estimate. `None` if there is neither.
    #[must_use]
    pub fn known_download(&self, link: LinkId) -> Option<Bitrate> {
        let link = self.links.get(link.0)?;
        let shown = || link.estimator.down.rate().map(|(rate, _)| rate);
        link.settings.download.or_else(shown)
    }

    /// Marks the download traffic of `link` in this window as limited by the proxy itself.
    pub fn bind(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.down.is_bound = true;
        }
    }

    /// Whether the download rate of `link` is not configured and its estimate has not been confirmed for `MEMORY`, or
    /// does not exist.
    #[must_use]
    pub fn is_stale(&self, now: Instant, link: LinkId) -> bool {
        let link = self.links.get(link.0);
        link.is_some_and(|link| {
            let found = link.estimator.down.rate();
            let is_old = found.is_none_or(|(_, proven_at)| now.since(proven_at) >= MEMORY);
            link.settings.download.is_none() && is_old
        })
    }

    fn rank(
        &mut self,
        now: Instant,
        ask: Ask<'_>,
        expected: Expected,
    ) -> Result<(Vec<LinkId>, Why), NoLink> {
        let leads = |link: &Link| ask.addresses.iter().any(|ip| link.reach.covers(*ip));
        let is_neighbour =
            |link: &Link| ask.addresses.iter().any(|ip| link.reach.is_neighbour(*ip));
        let mut usable: Vec<LinkId> =
            self.ids(|link| link.settings.cost != Cost::Never && leads(link));
        let neighbours = self.ids(|link| link.settings.cost != Cost::Never && is_neighbour(link));
        if !neighbours.is_empty() {
            usable = neighbours.clone();
        }

        let assigned = self.assigned.iter().map(|rule| (Why::Assigned, rule));
        let rules = self.config.rules.iter().enumerate();
        let rules = rules.map(|(index, rule)| (Why::Rule(index + 1), rule));
        let rule = assigned
            .chain(rules)
            .find(|(_, rule)| rule.holds(ask.app, ask.target, ask.addresses));
        let mut preferred = None;
        if let Some((why, rule)) = rule {
            // A rule may name a link whose cost is `never`.
            let is_there = self.links.get(rule.link.0).is_some_and(leads);
            match (is_there, rule.strict) {
                (true, true) => return Ok((vec![rule.link], why)),
                (true, false) => preferred = Some((rule.link, why)),
                (false, true) => {
                    let name = &self.links[rule.link.0].settings.name;
                    let text =
                        format!("{why} allows link {name} only, which does not lead there now");
                    return Err(NoLink(text));
                }
                (false, false) => {}
            }
        }
        if usable.is_empty() && preferred.is_none() {
            return Err(NoLink(self.why_none(ask.addresses)));
        }
        if preferred.is_none() && self.config.stickiness.holds(ask.target.port) {
            let link = self.sites.link(now, ask.client, ask.target);
            let link = link.filter(|link| usable.contains(link) && !self.is_suspect(now, *link));
            preferred = link.map(|link| (link, Why::Site));
        }

        let (demand, answer) = (expected.demand.total(), expected.answer);
        let chosen = self.economical(now, &usable, ask.warm, expected.demand);
        let views = self.views(now, &chosen, ask.warm, expected.demand, answer);
        let class = self.classes.expected(ask.app, ask.target.port, ask.dscp);
        let quickest = if preferred.is_none() && class == Some(Class::RealTime) {
            self.quickest(&chosen)
        } else {
            None
        };
        let mut ranked = if preferred.is_some() || quickest.is_some() {
            // Connections with a preferred link do not advance the order of the round robin schedulers.
            Scheduler::new(Policy::MaxThroughput).rank(&views, demand, answer)
        } else {
            self.scheduler.rank(&views, demand, answer)
        };
        let mut rest: Vec<LinkId> = usable
            .iter()
            .filter(|id| !ranked.contains(id))
            .copied()
            .collect();
        rest.sort_by_key(|id| (self.is_suspect(now, *id), self.price(&self.links[id.0])));
        ranked.extend(rest);
        preferred = preferred.or(quickest.map(|link| (link, Why::RealTime)));
        let why = if let Some((link, why)) = preferred {
            ranked.retain(|id| *id != link);
            ranked.insert(0, link);
            why
        } else if !neighbours.is_empty() {
            Why::Neighbour
        } else if usable.len() == 1 {
            Why::OnlyLink
        } else {
            Why::Scheduler(self.config.policy)
        };
        Ok((ranked, why))
    }

    /// Returns the link of `links` with the shortest RTT. Links that lose packets come after all others. Returns `None`
    /// if the RTT of one of `links` is not known, or if there are fewer than two links.
    fn quickest(&self, links: &[LinkId]) -> Option<LinkId> {
        let mut known = Vec::new();
        for id in links {
            let estimator = &self.links.get(id.0)?.estimator;
            known.push((estimator.is_lossy(), estimator.rtt()?, *id));
        }
        let best = known.iter().min().filter(|_| known.len() > 1)?;
        Some(best.2)
    }

    /// Returns the links of `usable` from which the scheduler may choose: trusted links of the lowest price, plus
    /// dearer links as far as they are needed.
    fn economical(
        &self,
        now: Instant,
        usable: &[LinkId],
        warm: &[Warm],
        expected: Demand,
    ) -> Vec<LinkId> {
        let trusted: Vec<LinkId> = usable
            .iter()
            .filter(|id| !self.is_suspect(now, **id))
            .copied()
            .collect();
        let pool = if trusted.is_empty() { usable } else { &trusted };
        let price = |id: &LinkId| self.price(&self.links[id.0]);
        let mut prices: Vec<Price> = pool.iter().map(price).collect();
        prices.sort_unstable();
        prices.dedup();
        let mut chosen: Vec<LinkId> = Vec::new();
        for class in prices {
            let is_needed = chosen.is_empty()
                || class.cost != Cost::Standby && {
                    let views = self.views(now, &chosen, warm, expected, expected.total());
                    let finish = views
                        .iter()
                        .map(|view| view.own_finish_us(expected.total()));
                    finish
                        .min()
                        .is_none_or(|finish_us| finish_us > PATIENCE.as_micros())
                };
            if !is_needed {
                break;
            }
            chosen.extend(pool.iter().filter(|id| price(id) == class));
        }
        chosen.sort_unstable();
        chosen
    }

    /// Returns the scheduler's view of the links `ids` for a connection that will move `expected`, `answer` bytes of it
    /// first. The connection may reuse the connections `warm`.
    fn views(
        &self,
        now: Instant,
        ids: &[LinkId],
        warm: &[Warm],
        expected: Demand,
        answer: Bytes,
    ) -> Vec<LinkView> {
        let loads = self.loads(now, answer);
        // A link without a known RTT is assumed to have the shortest RTT of all links.
        let nearest = self
            .links
            .iter()
            .filter_map(|link| link.estimator.min_rtt());
        let nearest = nearest.min().unwrap_or(Duration::ZERO);
        let view = |id: &LinkId| {
            let (up, down) = self.rates(now, *id);
            let rtt = self.links[id.0].estimator.min_rtt().unwrap_or(nearest);
            let warm = warm.iter().filter(|warm| warm.link == *id);
            let received = warm.map(|warm| warm.received).max();
            LinkView {
                id: *id,
                rate: if expected.up > expected.down {
                    up
                } else {
                    down
                },
                load: Bytes::new(loads[id.0].0),
                sharing: Bytes::new(loads[id.0].1),
                start: rtt * rounds(answer, received),
                single: self.links[id.0].estimator.single(),
                weight: self.links[id.0].settings.weight,
            }
        };
        ids.iter().map(view).collect()
    }

    /// Returns for each link how many bytes its connections will probably still move, and how many of these bytes move
    /// while each connection moves at most `answer` bytes. O(n).
    #[must_use]
    pub fn loads(&self, now: Instant, answer: Bytes) -> Vec<(u64, u64)> {
        let mut loads = vec![(0_u64, 0_u64); self.links.len()];
        for connection in self.connections.values().filter(|one| !one.is_spread) {
            let left = remaining(now, connection);
            let (load, sharing) = &mut loads[connection.link.0];
            *load = load.saturating_add(left);
            *sharing = sharing.saturating_add(left.min(answer.get()));
        }
        loads
    }

    /// Notes that a connection begins on `link`. If the link was idle, the idle time is excluded from its rate since
    /// the first byte.
    fn wake(&mut self, now: Instant, link: LinkId) {
        let mut connections = self.connections.values();
        let is_busy = connections
            .any(|one| one.link == link && one.began_at < now && remaining(now, one) > 0);
        if let Some(link) = self.links.get_mut(link.0)
            && !is_busy
        {
            link.beginnings.0.skip(now);
            link.beginnings.1.skip(now);
        }
    }

    fn ids(&self, holds: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let links = self.links.iter().enumerate();
        links
            .filter(|(_, link)| holds(link))
            .map(|(index, _)| LinkId(index))
            .collect()
    }

    fn note_site(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.connections.get(&id)
            && self.config.stickiness.holds(connection.target.port)
        {
            let Connection {
                client,
                target,
                link,
                ..
            } = connection;
            self.sites.note(now, *client, target, *link);
        }
    }

    /// Returns a one-line message that says why no link leads to any of `addresses`.
    fn why_none(&self, addresses: &[IpAddr]) -> String {
        if self.links.is_empty() {
            return "no link: no interface has a default route".to_owned();
        }
        let reason = |link: &Link| {
            let text = if link.settings.cost == Cost::Never {
                "never used"
            } else if link.reach.is_nothing() {
                "down"
            } else if addresses.iter().all(IpAddr::is_ipv6) {
                "no IPv6"
            } else {
                "no IPv4"
            };
            format!("{}: {text}", link.settings.name)
        };
        self.links.iter().map(reason).collect::<Vec<_>>().join("; ")
    }
}

/// Returns how many RTTs a connection takes until `bytes` have arrived, however fast its link is: one for the handshake
/// and the RTTs of slow start. A reused connection has no handshake, and `received` is the number of bytes that have
/// already arrived over it.
fn rounds(bytes: Bytes, received: Option<Bytes>) -> u32 {
    let window = INITIAL_WINDOW.saturating_add(received.unwrap_or(Bytes::ZERO).get());
    u32::from(received.is_none()) + (bytes.get() / window + 1).ilog2() + 1
}

/// Returns how many bytes a connection will probably still move.
fn remaining(now: Instant, connection: &Connection) -> u64 {
    if now.since(connection.progress_at) > QUIET {
        return 0;
    }
    let (expected, moved) = (connection.expected, connection.glanced.total());
    let left = if connection.is_foretold {
        expected.demand.total().saturating_sub(moved)
    } else {
        expected.left(moved)
    };
    left.get()
}

/// Whether a connection probably waits for its link. It has existed for `ALIVE`, made progress within the last `ALIVE`,
/// and has not yet moved the expected amount of data. A connection that has moved more than expected and is not bulk
/// may be slow for another reason, so it does not count.
fn is_kept(now: Instant, connection: &Connection) -> bool {
    !connection.is_striped
        && now.since(connection.progress_at) <= ALIVE
        && now.since(connection.began_at) >= ALIVE
        && connection.moved.total() < connection.expected.demand.total()
}

/// Length of a window of the estimators.
pub const WINDOW: Duration = Duration::from_millis(250);

/// Initial congestion window in bytes: ten segments (RFC 6928).
const INITIAL_WINDOW: u64 = 14_600;

/// Minimum number of bytes per window of a bulk connection: about three packets, 130 kbit/s. A connection that moved
/// fewer bytes is probably not limited by the link.
const BULK_BYTES: u64 = 4 << 10;

/// Minimum number of simultaneously waiting connections at which a link counts as saturated. Their total throughput is
/// then the link's capacity. On a slow link, each of many connections moves too few bytes to be bulk.
const CROWD: u32 = 4;

/// Rate assumed for all links if no rate is known. Its value hardly matters, because it is equal for all links.
const FIRST_RATE: Bitrate = Bitrate::from_mbps(10);

/// Maximum number of rules set at run time: more than anybody sets by hand.
pub const MAX_ASSIGNED: usize = 256;

/// Maximum amount of data that a server can announce: 1 TiB.
const MAX_FORETOLD: Bytes = Bytes::new(1 << 40);

/// Ratio of the rate assumed for a link without an estimate to the rate observed so far. The link may be faster than
/// observed, because nothing may have demanded more.
const SHOWN_TO_HOPED: u64 = 2;

/// Age up to which an estimate is used unchanged.
const MEMORY: Duration = Duration::from_secs(300);

/// Expected duration of a connection on the cheaper links above which it may take a dearer link.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Duration without data after which a connection is considered finished. Browsers keep idle connections for minutes.
pub const QUIET: Duration = Duration::from_secs(5);

/// Time without received data after which a link or connection does not count as alive: four windows.
const ALIVE: Duration = Duration::from_secs(1);

/// Duration for which a link is avoided after connecting over it failed while connecting over another link succeeded.
const SUSPICION: Duration = Duration::from_secs(10);
