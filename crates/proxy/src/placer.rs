//! Places connections on links: joins rules, sites, estimates and scheduler. The daemon's and a simulator's one partner.
//!
//! For each connection: [`Placer::begin`] ranks the links it may take and books it on the first; [`Placer::moved`] if
//! another one won; [`Placer::observe`] with its counters once a window; [`Placer::end`]. [`Placer::handle_window`]
//! closes a window of all links. Which links a connection may take, in this order:
//!
//! 1. links that are up, not `never`, and lead to one of its addresses; if an address is a neighbour on some link,
//!    only such links;
//! 2. the first rule that holds, those set while the proxy runs before those of its file (a strict rule leaves no other);
//! 3. the link its site had ([`crate::sticky`]);
//! 4. for a connection whose application is real-time ([`crate::estimate::class`]) the link of the shortest round trip that
//!    does not lose packets; for all others
//! 5. the scheduler's choice among the links of the least price ([`Placer::price`]). A dearer class joins when the cheaper ones would take
//!    longer than [`PATIENCE`]; standby links when nothing else is up; a suspect link, on which connecting failed
//!    while another link succeeded, when nothing else is left.
//!
//! What a connection will still move (`remaining`) follows from what its application's connections move, which is looked up
//! anew each window, and from what it has moved ([`Expected::left`]). One that moved nothing for [`QUIET`] is taken to be
//! done.
//!
//! A link of which nothing is known is taken for as good as the best one, but for no more than twice what it has shown since
//! its first byte ([`Beginning`]): so a slow one is told from a quick one within some round trips.

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

/// What does not change while the proxy runs.
#[derive(Clone, Debug)]
pub struct PlacerConfig {
    /// The scheduler.
    pub policy: Policy,
    /// Which connections keep their site's link.
    pub stickiness: Stickiness,
    /// How long a site is remembered.
    pub sticky_time: Duration,
    /// The user's rules; their links must exist.
    pub rules: Vec<Rule>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Placer {
    config: PlacerConfig,
    scheduler: Scheduler,
    links: Vec<Link>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_id: u64,
    /// What applications ask for.
    pub demands: Demands,
    /// What kind of traffic they have.
    pub classes: Classes,
    /// Rules that were set while it runs; they come before the user's file.
    assigned: Vec<Rule>,
    /// Whether links that need less energy are to be filled before those of the same cost that need more.
    pub saves_energy: bool,
    sites: Sites,
    window_began_at: Instant,
}

/// One link.
#[derive(Debug)]
pub struct Link {
    /// As the user describes it.
    pub settings: LinkSettings,
    /// Where it leads now.
    pub reach: Reach,
    /// What it carries.
    pub estimator: LinkEstimator,
    /// Payload sent to servers.
    pub tx_bytes: u64,
    /// Payload received from servers.
    pub rx_bytes: u64,
    /// What it has carried of its budget.
    pub account: Account,
    standing: Standing,
    suspect_until: Option<Instant>,
    /// When something last came back over it.
    heard_at: Option<Instant>,
    /// What this window saw so far.
    up: Traffic,
    down: Traffic,
    /// What was seen while there is no estimate, up and down.
    beginnings: (Beginning, Beginning),
    /// Whether the last one saw as much as a bulk connection moves, up and down.
    was_busy: (bool, bool),
}

#[derive(Debug)]
struct Connection {
    link: LinkId,
    client: IpAddr,
    app: Option<String>,
    target: Target,
    expected: Expected,
    /// What comes is known, and not expected only.
    is_foretold: bool,
    moved: Demand,
    /// The same when it was last looked at, be it between two windows.
    glanced: Demand,
    began_at: Instant,
    progress_at: Instant,
    /// Whether the last window moved something up, down.
    was_active: (bool, bool),
    /// What it moves is booked by [`Placer::observe_lane`].
    is_striped: bool,
    /// Whether it has lanes on several links, so that it loads none of them in particular.
    is_spread: bool,
    /// DSCP of its client's packets.
    dscp: Option<u8>,
    /// Segments of data to the server.
    segments: u32,
}

impl Link {
    /// How it stands to its budget.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }
}

impl Placer {
    /// A placer without links and connections.
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

    /// Adds a link that leads nowhere yet.
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

    /// Sets where `link` leads from now on. A link that comes anew is trusted anew.
    pub fn set_reach(&mut self, link: LinkId, reach: Reach) {
        if let Some(link) = self.links.get_mut(link.0)
            && link.reach != reach
        {
            link.reach = reach;
            link.suspect_until = None;
            link.beginnings = <(Beginning, Beginning)>::default();
        }
    }

    /// The scheduler in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Uses another scheduler from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        self.scheduler = Scheduler::new(policy);
    }

    /// Has connections that meet the conditions of `rule` take `link` from now on, before the rules of the file; `None`: no longer.
    ///
    /// # Errors
    /// Nothing was assigned under these conditions, or there are as many as there may be ([`MAX_ASSIGNED`]).
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

    /// All rules in force, the first that holds counts: those set while it runs, then those of the file.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.assigned.iter().chain(&self.config.rules)
    }

    /// The link that was assigned to the program `app` while this runs.
    #[must_use]
    pub fn assigned_to(&self, app: &str) -> Option<LinkId> {
        let of_app = |rule: &&Rule| {
            rule.app.as_deref() == Some(app) && rule.ports.is_none() && rule.destination.is_none()
        };
        self.assigned.iter().find(of_app).map(|rule| rule.link)
    }

    /// Notes how many segments of data connection `id` has sent to its server.
    pub fn note_segments(&mut self, id: ConnectionId, segments: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.segments = segments;
        }
    }

    /// All links, by id.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// One link, to restore what was known of it.
    pub fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link.0)
    }

    /// Books `bytes` that `link` has carried until `unix_s`, seconds since 1970-01-01 UTC, and says how it stands to its
    /// budget if that is new. Call it now and then with none, too: a month may have ended.
    pub fn charge(&mut self, link: LinkId, unix_s: u64, bytes: u64) -> Option<Standing> {
        let link = self.links.get_mut(link.0)?;
        let budget = link.settings.budget?;
        link.account.charge(&budget, unix_s, bytes);
        let standing = link.account.standing(&budget, unix_s);
        (core::mem::replace(&mut link.standing, standing) != standing).then_some(standing)
    }

    /// What using `link` is worth now: its cost, how it stands to its budget, and energy while that is saved.
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

    /// How many connections are on each link, by id. O(n).
    #[must_use]
    pub fn connection_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.links.len()];
        for connection in self.connections.values().filter(|one| !one.is_spread) {
            counts[connection.link.0] += 1;
        }
        counts
    }

    /// Ranks the links for a connection and books it on the first. O(links × connections).
    ///
    /// # Errors
    /// No link leads there now; nothing is booked.
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

    /// Books a connection over `link` that brings a part of what `whole` is to bring: `bytes` of it. `None`: there is no such
    /// connection.
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

    /// The links that may bring parts of what connection `id` brings: trusted ones that lead there, no dearer than its own; without
    /// any the cheapest.
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

    /// What connections have received over each link so far, as far as it was observed or glanced at. O(n).
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        let mut received: Vec<u64> = self.links.iter().map(|link| link.rx_bytes).collect();
        for one in self.connections.values().filter(|one| !one.is_striped) {
            received[one.link.0] += one.glanced.down.saturating_sub(one.moved.down);
        }
        received
    }

    /// Books connection `id` on `link`, because the one before did not work; `failed`: it is to blame, since `link`
    /// did.
    pub fn moved(&mut self, now: Instant, id: ConnectionId, link: LinkId, failed: &[LinkId]) {
        self.wake(now, link);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.link = link;
            connection.progress_at = now;
        }
        self.note_site(now, id);
        for failed in failed {
            // A full link loses a connection's first packet now and then, and is in the best of health.
            let is_alive = self.is_alive(now, *failed);
            if let Some(failed) = self.links.get_mut(failed.0)
                && !is_alive
            {
                failed.suspect_until = Some(now + SUSPICION);
            }
        }
    }

    /// Notes that connection `id` is striped: what it moves is told by lane ([`Self::observe_lane`]). `only`: the link of its
    /// lane; `None` if it has several.
    pub fn stripe(&mut self, id: ConnectionId, only: Option<LinkId>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_striped = true;
            connection.is_spread = only.is_none();
            connection.link = only.unwrap_or(connection.link);
        }
    }

    /// Notes what a striped connection has moved over `link` since it was last asked.
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

    /// Notes that something came back over `link`: it works.
    pub fn trust(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.suspect_until = None;
        }
    }

    /// Whether connections avoid `link` because it failed lately.
    #[must_use]
    pub fn is_suspect(&self, now: Instant, link: LinkId) -> bool {
        let until = self.links.get(link.0).and_then(|link| link.suspect_until);
        until.is_some_and(|until| now < until)
    }

    /// Whether something came back over `link` within the last second.
    #[must_use]
    pub fn is_alive(&self, now: Instant, link: LinkId) -> bool {
        let heard_at = self.links.get(link.0).and_then(|link| link.heard_at);
        heard_at.is_some_and(|heard_at| now.since(heard_at) <= ALIVE)
    }

    /// Notes what connection `id` has moved since it began, in the midst of a window.
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

    /// Notes that connection `id` moves `all` and no more: the server has said so. Who says more than `MAX_FORETOLD` has no
    /// end in mind.
    pub fn foretell(&mut self, id: ConnectionId, all: Demand) {
        if let Some(connection) = self.connections.get_mut(&id)
            && all.total() <= MAX_FORETOLD
        {
            connection.expected = Expected::exactly(all);
            connection.is_foretold = true;
        }
    }

    /// Notes what connection `id` has moved since it began, and whether its client, and not the network, held it up.
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

    /// Notes what TCP says of a connection on `link`.
    pub fn observe_tcp(&mut self, link: LinkId, sample: TcpSample) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.estimator.on_tcp(sample);
        }
    }

    /// Closes the window: call it every [`WINDOW`], after all connections were observed.
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
            // What goes the other way are questions, or acknowledgements.
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

    /// Notes the end of connection `id`. Call [`Self::observe`] before, for what it moved last. `completed`: how many questions
    /// its client asked; `None`: it was not established, so that its bytes say nothing of the application.
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

    /// The rates, up and down, that the scheduler takes for those of `link`.
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
                // Hope doubles for each further time of age, up to the best link.
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

    /// What `link` is known to carry from servers, from the user or from what it carried; `None`: nobody knows.
    #[must_use]
    pub fn known_download(&self, link: LinkId) -> Option<Bitrate> {
        let link = self.links.get(link.0)?;
        let shown = || link.estimator.down.rate().map(|(rate, _)| rate);
        link.settings.download.or_else(shown)
    }

    /// Notes that what comes from servers over `link` in this window is bound by the proxy itself.
    pub fn bind(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link.0) {
            link.down.is_bound = true;
        }
    }

    /// Whether nothing has borne out what `link` is taken to carry from servers for longer than that is taken as it is.
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
            // A rule may send over a link that is used for nothing else.
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
            // The turn of the round robins is for those that need it.
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

    /// Of `links` the one with the shortest round trip, those that lose packets last; `None` if the round trip of one is not
    /// known, or there is nothing to choose.
    fn quickest(&self, links: &[LinkId]) -> Option<LinkId> {
        let mut known = Vec::new();
        for id in links {
            let estimator = &self.links.get(id.0)?.estimator;
            known.push((estimator.is_lossy(), estimator.rtt()?, *id));
        }
        let best = known.iter().min().filter(|_| known.len() > 1)?;
        Some(best.2)
    }

    /// Of the `usable` links those the scheduler may choose from: trusted, and no dearer than need be.
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

    /// The links `ids` as they stand for a connection that will move what is `expected`, `answer` of it at first. It may use
    /// what is `warm`.
    fn views(
        &self,
        now: Instant,
        ids: &[LinkId],
        warm: &[Warm],
        expected: Demand,
        answer: Bytes,
    ) -> Vec<LinkView> {
        let loads = self.loads(now, answer);
        // A link of which nothing is known is no farther than the nearest.
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

    /// What connections on each link will probably still move, and what of that while each of them moves `answer`. O(n).
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

    /// `link` is given something to do. If it had nothing, the time until now says nothing of it.
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

    /// A line on why no link leads to any of `addresses`.
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

/// How many round trips a connection takes, however fast its link, until `bytes` have come: the handshake's, unless it is one
/// over which bytes were `received` already, and those of slow start.
fn rounds(bytes: Bytes, received: Option<Bytes>) -> u32 {
    let window = INITIAL_WINDOW.saturating_add(received.unwrap_or(Bytes::ZERO).get());
    u32::from(received.is_none()) + (bytes.get() / window + 1).ilog2() + 1
}

/// What a connection will probably still move.
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

/// Whether a connection is kept waiting: it gets on, and has had its time, but still lacks some of what it was expected to
/// move. What has moved more than that and is no bulk is a trickle, which says nothing.
fn is_kept(now: Instant, connection: &Connection) -> bool {
    !connection.is_striped
        && now.since(connection.progress_at) <= ALIVE
        && now.since(connection.began_at) >= ALIVE
        && connection.moved.total() < connection.expected.demand.total()
}

/// How long a window of the estimators is.
pub const WINDOW: Duration = Duration::from_millis(250);

/// RFC 6928: ten segments.
const INITIAL_WINDOW: u64 = 14_600;

/// A connection that moved less in a window (three packets, 130 kbit/s) is waiting for something else than the link.
const BULK_BYTES: u64 = 4 << 10;

/// So many connections kept waiting at a time on one link are its doing: what they move together is what it carries. On a
/// slow link each of many moves too little to be bulk by itself.
const CROWD: u32 = 4;

/// Rate of links of which nothing is known, all alike: what it is hardly matters then.
const FIRST_RATE: Bitrate = Bitrate::from_mbps(10);

/// More assignments than anybody makes by hand.
pub const MAX_ASSIGNED: usize = 256;

/// A tebibyte.
const MAX_FORETOLD: Bytes = Bytes::new(1 << 40);

/// A link is hoped to carry so many times what it has shown while it was not known: nobody may have asked for more.
const SHOWN_TO_HOPED: u64 = 2;

/// How long an estimate is taken as it is.
const MEMORY: Duration = Duration::from_secs(300);

/// A connection that would take longer than this on the cheap links may take a dearer one.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A connection that has been silent for this long has probably said all: browsers keep idle connections for minutes.
pub const QUIET: Duration = Duration::from_secs(5);

/// Four windows: long enough to see what a busy link receives.
const ALIVE: Duration = Duration::from_secs(1);

/// How long a link is avoided after connecting over it failed and over another one did not.
const SUSPICION: Duration = Duration::from_secs(10);
