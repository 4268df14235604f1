//! A gateway of a fleet: which clients are here, and the routes by which the network finds them.
//!
//! Each gateway has home networks, which lead to it as a whole. A client with other addresses that connects here gets routes
//! of its own ([`pleach_linux::routes::Setup::add_host_routes`]), from which a routing daemon learns where the client is. They
//! disappear when the client does. So the number of routes is that of the clients that are not at home. A client that is at
//! home needs no route, and one that is away has a more specific route from the gateway where it is.
//!
//! A client that returns home has a route of its own, too, if the store says that it was at another gateway before, which has
//! not asked for clients that have left it since: that gateway may still announce the client, by a route that is more specific
//! than the home network. The route at home stays until the other gateway has asked, for a day at most.
//!
//! A client that changes its gateway has sessions with both for a moment, and may still stay. So a client is here when it has
//! sent inner data, or is still up after a while ([`FirstData`]): then it gets its routes.
//!
//! Where a client is, is also written to the store, and a gateway asks the store for clients that have left it for another
//! one. It takes their routes back at once, because a client whose links have failed cannot say goodbye. The session of such
//! a client stays, because packets may still be on their way to it, until it ends by itself. If the client is heard for
//! [`BACK_AFTER`] all the same, it has come back, or the news was wrong.
//!
//! With several workers, worker 0 decides all of this, and asks the worker of a client whether the client is here or was
//! heard.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{endpoint::Endpoint, time::Instant};

use super::{
    data_path::DataPath,
    first_data::FirstData,
    workers::{Crew, Order},
};
use crate::{
    clients::Departures,
    config::{FleetConfig, Role},
    control::{FleetReport, Reply},
    keys::KEY_LEN,
};

/// Clients that are connected to this gateway of a fleet.
#[derive(Debug)]
pub(super) struct Fleet {
    config: FleetConfig,
    /// Networks of all clients: there are no routes to others.
    networks: Vec<IpNet>,
    /// By name.
    here: BTreeMap<String, Here>,
    /// Clients that have connected, but may still stay at another gateway, by name.
    coming: BTreeMap<String, Coming>,
    /// Clients of the own engine among `coming`.
    first_data: FirstData,
    /// Clients that are here, but still among `coming`.
    seen_here: BTreeSet<[u8; KEY_LEN]>,
}

/// A client that has connected.
#[derive(Debug)]
struct Coming {
    public_key: [u8; KEY_LEN],
    nets: Vec<IpNet>,
    up_at: Instant,
}

#[derive(Debug)]
struct Here {
    public_key: [u8; KEY_LEN],
    /// Networks of the client outside of the home networks. They have routes while the client is here.
    away: Vec<IpNet>,
    /// Networks of the client in the home networks.
    home: Vec<IpNet>,
    home_routes: HomeRoutes,
    /// When the client has connected here.
    up_at: Instant,
    /// When the store said that the client has connected to another gateway; `None` if it is here.
    departed_at: Option<Instant>,
}

/// Routes to the networks of a client in the home networks, which it needs while another gateway may still announce them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HomeRoutes {
    None,
    /// Another gateway does not know yet that the client has left it.
    Needed,
    /// All gateways know, and by this time all routers do.
    Until(Instant),
}

impl Here {
    /// Returns the time from which on a departed client that is heard has come back. `None` if it has not departed.
    fn back_at(&self) -> Option<Instant> {
        self.departed_at.map(|at| at + BACK_AFTER)
    }

    /// Notes that the client has no routes any more. Returns the networks that had some.
    fn take_routes(&mut self) -> Vec<IpNet> {
        let mut gone = self.away.clone();
        if self.home_routes != HomeRoutes::None {
            self.home_routes = HomeRoutes::None;
            gone.extend_from_slice(&self.home);
        }
        gone
    }
}

impl Fleet {
    /// Returns the state at the start.
    pub(super) fn new(config: FleetConfig, networks: Vec<IpNet>) -> Self {
        Self {
            config,
            networks,
            here: BTreeMap::new(),
            coming: BTreeMap::new(),
            first_data: FirstData::default(),
            seen_here: BTreeSet::new(),
        }
    }

    /// Returns the state for the status.
    pub(super) fn report(&self) -> FleetReport {
        let here = || self.here.values().filter(|here| here.departed_at.is_none());
        FleetReport {
            name: self.config.name.clone(),
            connected: here().count() as u64,
            away_from_home: here().filter(|here| !here.away.is_empty()).count() as u64,
        }
    }

    /// Returns when a client of the own engine that has connected may be here although it sends nothing.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.first_data.next_at()
    }

    /// Notes that clients which have connected are here.
    pub(super) fn on_seen_here(&mut self, mut keys: BTreeSet<[u8; KEY_LEN]>) {
        self.seen_here.append(&mut keys);
    }

    /// Returns the clients that have connected and are here now.
    fn settled(&mut self) -> Vec<(String, Coming)> {
        let seen = std::mem::take(&mut self.seen_here);
        if seen.is_empty() {
            return Vec::new();
        }
        let is_here = |_: &String, coming: &mut Coming| seen.contains(&coming.public_key);
        self.coming.extract_if(.., is_here).collect()
    }

    /// Notes that a client is here. Returns the networks to which it needs routes.
    fn on_here(&mut self, name: String, coming: Coming) -> Vec<IpNet> {
        let holds = |all: &[IpNet], net: &IpNet| all.iter().any(|one| one.contains(net));
        let routed = coming.nets.into_iter();
        let routed = routed.filter(|net| holds(&self.networks, net));
        let (home, away): (Vec<_>, Vec<_>) = routed.partition(|net| holds(&self.config.home, net));
        // If it has connected again, it still has the same routes.
        let known = self.here.get(&name);
        let home_routes = known.map_or(HomeRoutes::None, |here| here.home_routes);
        let here = Here {
            public_key: coming.public_key,
            away: away.clone(),
            home,
            home_routes,
            up_at: coming.up_at,
            departed_at: None,
        };
        self.here.insert(name, here);
        away
    }

    /// Notes that a client is not connected any more. Returns the networks to which it needs no routes.
    fn on_down(&mut self, name: &str) -> Vec<IpNet> {
        self.coming.remove(name);
        let here = self.here.remove(name);
        here.map_or_else(Vec::new, |mut here| here.take_routes())
    }

    /// Notes that other gateways may still announce clients that are here. Returns the networks to which they need routes
    /// because of that.
    fn on_contested(&mut self, keys: &BTreeSet<[u8; KEY_LEN]>) -> Vec<IpNet> {
        let mut added = Vec::new();
        for here in self.here.values_mut() {
            let is_here = here.departed_at.is_none() && !here.home.is_empty();
            if is_here && keys.contains(&here.public_key) {
                here.home_routes = HomeRoutes::Needed;
                added.extend_from_slice(&here.home);
            }
        }
        added
    }

    /// Notes that the other gateways know that these clients have left them.
    fn on_settled(&mut self, now: Instant, keys: &BTreeSet<[u8; KEY_LEN]>) {
        for here in self.here.values_mut() {
            if here.home_routes == HomeRoutes::Needed && keys.contains(&here.public_key) {
                here.home_routes = HomeRoutes::Until(now + SPREAD);
            }
        }
    }

    /// Returns the networks that need no routes any more because no other gateway announces them.
    fn uncontested(&mut self, now: Instant) -> Vec<IpNet> {
        let mut gone = Vec::new();
        for here in self.here.values_mut() {
            if matches!(here.home_routes, HomeRoutes::Until(until) if until <= now) {
                here.home_routes = HomeRoutes::None;
                gone.extend_from_slice(&here.home);
            }
        }
        gone
    }

    /// Notes that clients have connected to another gateway, unless they have come back here later. Returns the networks to
    /// which they need no routes.
    fn on_departed(&mut self, now: Instant, departures: &Departures) -> Vec<IpNet> {
        let mut gone = Vec::new();
        for (name, here) in &mut self.here {
            let left_at = departures.get(&here.public_key);
            if here.departed_at.is_none() && left_at.is_some_and(|at| *at > here.up_at) {
                here.departed_at = Some(now);
                gone.append(&mut here.take_routes());
                tracing::debug!(client = name, "is at another gateway");
            }
        }
        gone
    }

    /// Returns the clients that have departed, and have come back if they were heard after the time beside them.
    fn may_be_back(&self, now: Instant) -> Vec<([u8; KEY_LEN], Instant)> {
        let departed = self.here.values();
        let departed = departed.filter_map(|here| Some((here.public_key, here.back_at()?)));
        departed.filter(|(_, at)| *at <= now).collect()
    }

    /// Returns the names of departed clients that were heard, by their keys.
    fn returned(&self, now: Instant, heard: &BTreeSet<[u8; KEY_LEN]>) -> Vec<String> {
        let is_back = |name: &String, here: &Here| {
            let is_due = here.back_at().is_some_and(|at| at <= now);
            is_due && heard.contains(&here.public_key) && !self.coming.contains_key(name)
        };
        let back = self.here.iter().filter(|(name, here)| is_back(name, here));
        back.map(|(name, _)| name.clone()).collect()
    }
}

impl DataPath {
    /// Handles the event that a client of this gateway has connected, or is not connected any more.
    pub(super) fn on_client(&mut self, now: Instant, name: &str, is_up: bool) {
        if !is_up {
            let gone = self.fleet.as_mut().map(|fleet| fleet.on_down(name));
            return self.change_host_routes(gone.unwrap_or_default(), false);
        }
        let known = self.client_of(name);
        let (Some(fleet), Some((public_key, nets))) = (&mut self.fleet, known) else {
            return;
        };
        let coming = Coming {
            public_key,
            nets,
            up_at: now,
        };
        fleet.coming.insert(name.to_owned(), coming);
        match (&self.crew, owner_of(self.crew.as_ref(), &public_key)) {
            (Some(crew), worker) if worker != 0 => crew.order(worker, Order::Watch(public_key)),
            _ => {
                let seen = self.endpoint.seen(&public_key);
                fleet.first_data.watch(now, public_key, seen);
            }
        }
    }

    /// Adds the routes to clients that are here now, and writes it to the store.
    pub(super) fn settle_coming(&mut self, now: Instant) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let endpoint = &self.endpoint;
        let here = fleet.first_data.take(now, |key| endpoint.seen(key));
        fleet.on_seen_here(here);
        let mut added = Vec::new();
        for (name, coming) in fleet.settled() {
            if let Some(admitted) = &self.admitted {
                admitted.asker().on_arrived(coming.public_key, coming.up_at);
            }
            added.extend(fleet.on_here(name, coming));
        }
        self.change_host_routes(added, true);
    }

    /// Handles the news that clients which have connected here were at another gateway before.
    pub(super) fn on_contested(&mut self, keys: &BTreeSet<[u8; KEY_LEN]>) {
        if let Some(fleet) = &mut self.fleet {
            let added = fleet.on_contested(keys);
            self.change_host_routes(added, true);
        }
    }

    /// Handles the news that the other gateways know that these clients are here.
    pub(super) fn on_settled(&mut self, now: Instant, keys: &BTreeSet<[u8; KEY_LEN]>) {
        if let Some(fleet) = &mut self.fleet {
            fleet.on_settled(now, keys);
        }
    }

    /// Handles the news that clients have connected to another gateway.
    pub(super) fn on_departed(&mut self, now: Instant, departures: &Departures) {
        if let Some(fleet) = &mut self.fleet {
            let gone = fleet.on_departed(now, departures);
            self.change_host_routes(gone, false);
        }
    }

    /// Removes the routes to clients at home that no other gateway announces. It looks at all clients, so it is not called in
    /// each round.
    pub(super) fn look_for_uncontested(&mut self, now: Instant) {
        if let Some(fleet) = &mut self.fleet {
            let gone = fleet.uncontested(now);
            self.change_host_routes(gone, false);
        }
    }

    /// Looks for clients that the store has called departed, but that are here. Other workers are asked about theirs.
    pub(super) fn look_for_returned(&mut self, now: Instant) {
        let fleet = self.fleet.as_ref();
        let mut of_worker: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for client in fleet.map_or_else(Vec::new, |fleet| fleet.may_be_back(now)) {
            let worker = owner_of(self.crew.as_ref(), &client.0);
            of_worker.entry(worker).or_default().push(client);
        }
        let own = of_worker.remove(&0).unwrap_or_default();
        if let Some(crew) = &self.crew {
            for (worker, clients) in of_worker {
                crew.find_heard(worker, clients);
            }
        }
        let heard = heard_since(&self.endpoint, own);
        self.take_back(now, &heard);
    }

    /// Takes up departed clients again that were heard.
    pub(super) fn take_back(&mut self, now: Instant, heard: &BTreeSet<[u8; KEY_LEN]>) {
        let fleet = self.fleet.as_ref();
        for name in fleet.map_or_else(Vec::new, |fleet| fleet.returned(now, heard)) {
            tracing::info!(client = name, "is at this gateway again");
            self.on_client(now, &name, true);
        }
    }

    /// Asks the clients of this gateway to use another gateway, or no longer.
    pub(super) fn drain(&mut self, is_on: bool, reply: Reply<()>) {
        if matches!(self.config.role, Role::Client(_)) {
            return reply.send(Err("this is a client, no gateway".to_owned()));
        }
        if self.endpoint.is_draining() != is_on {
            tracing::info!(draining = is_on, "asked by the control socket");
        }
        self.endpoint.set_draining(is_on);
        // A question reaches another worker if the kernel refuses to steer, or has merged datagrams.
        self.order_all(|| Order::Drain(is_on));
        reply.send(Ok(()));
    }

    /// Returns key and addresses of the client `name`.
    fn client_of(&self, name: &str) -> Option<([u8; KEY_LEN], Vec<IpNet>)> {
        let admitted = self.admitted.as_ref();
        if let Some(client) = admitted.and_then(|all| all.client_of(name)) {
            return Some((client.public_key, client.allowed_ips.clone()));
        }
        let Role::Gateway(gateway) = &self.config.role else {
            return None;
        };
        let mut configured = gateway.clients.iter();
        let client = configured.find(|client| client.name == name)?;
        Some((client.public_key, client.allowed_ips.clone()))
    }

    /// Adds or removes routes to clients.
    fn change_host_routes(&self, nets: Vec<IpNet>, is_added: bool) {
        if nets.is_empty() {
            return;
        }
        self.host.run(move |host| {
            let changed = if is_added {
                host.setup.add_host_routes(&nets)
            } else {
                host.setup.delete_host_routes(&nets)
            };
            host.on_clients_routed(&changed);
        });
    }
}

/// Returns the worker of the client with this key.
fn owner_of(crew: Option<&Crew>, public_key: &[u8; KEY_LEN]) -> usize {
    crew.map_or(0, |crew| crew.owner_of(public_key))
}

/// Returns those of `clients` from which `endpoint` has heard after the time beside them.
pub(super) fn heard_since(
    endpoint: &Endpoint,
    clients: Vec<([u8; KEY_LEN], Instant)>,
) -> BTreeSet<[u8; KEY_LEN]> {
    let clients = clients.into_iter();
    let heard = clients.filter(|(key, at)| endpoint.last_heard(key).is_some_and(|h| h > *at));
    heard.map(|(key, _)| key).collect()
}

/// Time after which all routers know that a gateway announces a client no more.
const SPREAD: Duration = Duration::from_secs(2);

/// Time after which a client that has departed and is still heard is here again: longer than a client that changes its gateway
/// keeps the former one.
const BACK_AFTER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        let parse = |text: &&str| text.parse().expect("net");
        texts.iter().map(parse).collect()
    }

    const START: Instant = Instant::from_millis(50_000);

    fn departed(key: u8, at: Instant) -> Departures {
        Departures::from([([key; 32], at)])
    }

    fn fleet() -> Fleet {
        let config = FleetConfig {
            name: "gw1".to_owned(),
            home: nets(&["10.77.1.0/24", "fd77:0:0:1::/64"]),
        };
        Fleet::new(config, nets(&["10.77.0.0/16", "fd77::/48"]))
    }

    const fn coming(key: u8, nets: Vec<IpNet>, up_at: Instant) -> Coming {
        Coming {
            public_key: [key; 32],
            nets,
            up_at,
        }
    }

    /// Lets a client be here. Returns its routes.
    fn on_here(fleet: &mut Fleet, name: &str, key: u8, nets: &[IpNet], at: Instant) -> Vec<IpNet> {
        fleet.on_here(name.to_owned(), coming(key, nets.to_vec(), at))
    }

    #[test]
    fn only_clients_away_from_home_have_routes() {
        let mut fleet = fleet();
        let home = nets(&["10.77.1.2/32", "fd77:0:0:1::2/128"]);
        assert!(on_here(&mut fleet, "home", 1, &home, START).is_empty());
        let away = nets(&["10.77.2.2/32", "fd77:0:0:2::2/128"]);
        let more = nets(&[
            "10.77.2.2/32",
            "fd77:0:0:2::2/128",
            "0.0.0.0/0",
            "192.168.7.0/24",
        ]);
        assert_eq!(on_here(&mut fleet, "away", 2, &more, START), away);
        let report = fleet.report();
        assert_eq!((report.connected, report.away_from_home), (2, 1));
        assert!(fleet.on_down("home").is_empty());
        assert_eq!(fleet.on_down("away"), away);
        assert!(fleet.on_down("away").is_empty());
    }

    #[test]
    fn a_client_that_may_still_stay_at_another_gateway_is_not_here() {
        let mut fleet = fleet();
        let away = nets(&["10.77.2.2/32"]);
        for (name, key) in [("stays", 1), ("comes", 2)] {
            let coming = coming(key, away.clone(), START);
            fleet.coming.insert(name.to_owned(), coming);
        }
        let here = |fleet: &mut Fleet| {
            let settled = fleet.settled().into_iter();
            settled.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert!(here(&mut fleet).is_empty());
        fleet.on_seen_here(BTreeSet::from([[2; 32], [9; 32]]));
        assert_eq!(here(&mut fleet), ["comes"]);
        assert!(fleet.on_down("stays").is_empty());
        fleet.on_seen_here(BTreeSet::from([[1; 32]]));
        assert!(here(&mut fleet).is_empty());
    }

    #[test]
    fn a_client_that_is_heard_after_it_has_departed_is_here_again() {
        let mut fleet = fleet();
        let away = nets(&["10.77.2.2/32"]);
        on_here(&mut fleet, "away", 2, &away, START);
        let now = Instant::ZERO + Duration::from_secs(100);
        assert_eq!(fleet.on_departed(now, &departed(2, now)), away);
        assert!(fleet.on_departed(now, &departed(2, now)).is_empty(), "once");
        assert_eq!(fleet.report().connected, 0);
        let later = now + BACK_AFTER + Duration::from_secs(5);
        let soon = now + Duration::from_secs(1);
        let heard = BTreeSet::from([[2; 32]]);
        // What it sends while it changes its gateway does not count.
        assert_eq!(fleet.may_be_back(soon), []);
        assert_eq!(fleet.may_be_back(later), [([2; 32], now + BACK_AFTER)]);
        assert!(fleet.returned(later, &BTreeSet::new()).is_empty());
        assert!(fleet.returned(soon, &heard).is_empty());
        assert_eq!(fleet.returned(later, &heard), ["away"]);
        assert_eq!(on_here(&mut fleet, "away", 2, &away, later), away);
        assert!(fleet.returned(later, &heard).is_empty());
    }

    #[test]
    fn a_client_that_returns_home_has_a_route_until_the_other_gateway_has_let_go() {
        let mut fleet = fleet();
        let home = nets(&["10.77.1.2/32", "fd77:0:0:1::2/128"]);
        let contested = BTreeSet::from([[1; 32]]);
        assert!(fleet.on_contested(&contested).is_empty(), "not here");
        on_here(&mut fleet, "home", 1, &home, START);
        assert_eq!(fleet.on_contested(&contested), home);
        assert_eq!(fleet.report().away_from_home, 0);
        let until = START + Duration::from_secs(3600);
        // It connects again at the same gateway.
        let soon = START + Duration::from_secs(1);
        on_here(&mut fleet, "home", 1, &home, soon);
        assert!(fleet.uncontested(soon).is_empty());
        // The other gateway hangs.
        assert!(fleet.uncontested(until).is_empty());
        fleet.on_settled(until - SPREAD, &contested);
        assert_eq!(fleet.uncontested(until), home);
        assert!(fleet.uncontested(until).is_empty(), "once");
        assert!(fleet.on_down("home").is_empty());

        // The other gateway has asked.
        on_here(&mut fleet, "home", 1, &home, until);
        fleet.on_settled(until, &contested);
        assert!(fleet.uncontested(until + SPREAD).is_empty(), "no routes");
        fleet.on_contested(&contested);
        fleet.on_settled(until, &contested);
        fleet.on_settled(until + Duration::from_secs(1), &contested);
        assert!(fleet.uncontested(until).is_empty());
        assert_eq!(fleet.uncontested(until + SPREAD), home);

        // The routes go with the client.
        on_here(&mut fleet, "home", 1, &home, until);
        fleet.on_contested(&contested);
        let left_at = until + Duration::from_secs(1);
        assert_eq!(fleet.on_departed(left_at, &departed(1, left_at)), home);
        assert!(fleet.on_contested(&contested).is_empty(), "gone");
        on_here(&mut fleet, "home", 1, &home, left_at);
        fleet.on_contested(&contested);
        assert_eq!(fleet.on_down("home"), home);
        // A client away from home has its routes anyway.
        let away = nets(&["10.77.2.2/32"]);
        on_here(&mut fleet, "away", 1, &away, left_at);
        assert!(fleet.on_contested(&contested).is_empty());
    }

    #[test]
    fn old_news_of_a_departure_does_not_count_after_a_return() {
        let mut fleet = fleet();
        let away = nets(&["10.77.2.2/32"]);
        let after = |millis| START + Duration::from_millis(millis);
        on_here(&mut fleet, "away", 2, &away, START);
        on_here(&mut fleet, "away", 2, &away, after(2_000));
        let gone = fleet.on_departed(after(2_500), &departed(2, after(1_000)));
        assert!(gone.is_empty(), "it left before it came back");
        assert_eq!(fleet.report().connected, 1);
        let gone = fleet.on_departed(after(4_000), &departed(2, after(3_000)));
        assert_eq!(gone, away);
    }
}
