//! A gateway of a fleet: which clients are here, and the routes by which the network finds them.
//!
//! Each gateway has home networks, which lead to it as a whole. A client with other addresses that connects here gets routes
//! of its own ([`pleach_linux::routes::Setup::add_host_routes`]), from which a routing daemon learns where the client is. They
//! disappear when the client does. So the number of routes is that of the clients that are not at home. A client that is at
//! home needs no route, and one that is away has a more specific route from the gateway where it is.
//!
//! A client that changes its gateway has sessions with both for a moment, and may still stay. So a client is here when it has
//! sent inner data, or after [`SETTLED`]: then it gets its routes.
//!
//! Where a client is, is also written to the store, and a gateway asks the store for clients that have left it for another
//! one. It takes their routes back at once, because a client whose links have failed cannot say goodbye. The session of such
//! a client stays, because packets may still be on their way to it, until it ends by itself. If the client is heard for
//! [`BACK_AFTER`] all the same, it has come back, or the news was wrong.

use std::{collections::BTreeMap, time::Duration};

use ipnet::IpNet;
use pleach_core::{time::Instant, units::Bytes};

use super::data_path::DataPath;
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
}

/// A client that has connected.
#[derive(Debug)]
struct Coming {
    public_key: [u8; KEY_LEN],
    nets: Vec<IpNet>,
    up_at: Instant,
    /// Inner bytes that it had sent before.
    bytes: Bytes,
}

#[derive(Debug)]
struct Here {
    public_key: [u8; KEY_LEN],
    /// Networks of the client outside of the home networks.
    away: Vec<IpNet>,
    /// When the client has connected here.
    up_at: Instant,
    /// When the store said that the client has connected to another gateway; `None` if it is here.
    departed_at: Option<Instant>,
}

impl Fleet {
    /// Returns the state at the start.
    pub(super) const fn new(config: FleetConfig, networks: Vec<IpNet>) -> Self {
        Self {
            config,
            networks,
            here: BTreeMap::new(),
            coming: BTreeMap::new(),
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

    /// Returns when a client that has connected is here in any case.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let coming = self.coming.values();
        coming.map(|coming| coming.up_at + SETTLED).min()
    }

    /// Returns the clients that have connected and are here now. `sent`: the inner bytes that a client has sent.
    fn settled(
        &mut self,
        now: Instant,
        sent: impl Fn(&[u8; KEY_LEN]) -> Bytes,
    ) -> Vec<(String, Coming)> {
        let is_here = |_: &String, coming: &mut Coming| {
            now >= coming.up_at + SETTLED || sent(&coming.public_key) > coming.bytes
        };
        self.coming.extract_if(.., is_here).collect()
    }

    /// Notes that a client is here. Returns the networks to which it needs routes.
    fn on_here(&mut self, name: String, coming: Coming) -> Vec<IpNet> {
        let holds = |all: &[IpNet], net: &IpNet| all.iter().any(|one| one.contains(net));
        let is_away = |net: &IpNet| holds(&self.networks, net) && !holds(&self.config.home, net);
        let mut away = coming.nets;
        away.retain(is_away);
        let here = Here {
            public_key: coming.public_key,
            away: away.clone(),
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
        here.map_or_else(Vec::new, |here| here.away)
    }

    /// Notes that clients have connected to another gateway, unless they have come back here later. Returns the networks to
    /// which they need no routes.
    fn on_departed(&mut self, now: Instant, departures: &Departures) -> Vec<IpNet> {
        let mut gone = Vec::new();
        for (name, here) in &mut self.here {
            let left_at = departures.get(&here.public_key);
            if here.departed_at.is_none() && left_at.is_some_and(|at| *at > here.up_at) {
                here.departed_at = Some(now);
                gone.extend_from_slice(&here.away);
                tracing::debug!(client = name, "is at another gateway");
            }
        }
        gone
    }

    /// Returns the clients that have departed, but are still heard. `heard`: when a client was heard last.
    fn returned(
        &self,
        now: Instant,
        heard: impl Fn(&[u8; KEY_LEN]) -> Option<Instant>,
    ) -> Vec<String> {
        let is_back = |here: &Here| {
            let back_at = here.departed_at.map(|at| at + BACK_AFTER);
            back_at.is_some_and(|at| at <= now && heard(&here.public_key).is_some_and(|h| h > at))
        };
        let back = self.here.iter().filter(|(_, here)| is_back(here));
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
        let sent = self.endpoint.usage_of(&public_key);
        let coming = Coming {
            public_key,
            nets,
            up_at: now,
            bytes: sent.map_or(Bytes::ZERO, |usage| Bytes::new(usage.up_bytes)),
        };
        fleet.coming.insert(name.to_owned(), coming);
    }

    /// Adds the routes to clients that are here now, and writes it to the store.
    pub(super) fn settle_coming(&mut self, now: Instant) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let sent = |key: &[u8; KEY_LEN]| {
            let usage = self.endpoint.usage_of(key);
            usage.map_or(Bytes::ZERO, |usage| Bytes::new(usage.up_bytes))
        };
        let mut added = Vec::new();
        for (name, coming) in fleet.settled(now, sent) {
            if let Some(admitted) = &self.admitted {
                admitted.asker().on_arrived(coming.public_key, coming.up_at);
            }
            added.extend(fleet.on_here(name, coming));
        }
        self.change_host_routes(added, true);
    }

    /// Handles the news that clients have connected to another gateway.
    pub(super) fn on_departed(&mut self, now: Instant, departures: &Departures) {
        if let Some(fleet) = &mut self.fleet {
            let gone = fleet.on_departed(now, departures);
            self.change_host_routes(gone, false);
        }
    }

    /// Takes up clients again that the store has called departed, but that are here.
    pub(super) fn look_for_returned(&mut self, now: Instant) {
        let heard = |key: &[u8; KEY_LEN]| self.endpoint.last_heard(key);
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

/// Time after which a client that has departed and is still heard is here again: longer than a client that changes its gateway
/// keeps the former one.
const BACK_AFTER: Duration = Duration::from_secs(10);

/// Time after which a client that has connected and sends nothing is here: longer than a client waits for all of its links before
/// it uses the next gateway.
const SETTLED: Duration = Duration::from_millis(700);

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
            bytes: Bytes::ZERO,
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
        for (name, key) in [("stays", 1), ("sends", 2), ("waits", 3)] {
            let coming = coming(key, away.clone(), START);
            fleet.coming.insert(name.to_owned(), coming);
        }
        assert_eq!(fleet.next_at(), Some(START + SETTLED));
        let here = |fleet: &mut Fleet, at| {
            let sent = |key: &[u8; 32]| Bytes::new(u64::from(key[0] == 2));
            let settled = fleet.settled(at, sent).into_iter();
            settled.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(here(&mut fleet, START), ["sends"]);
        assert!(fleet.on_down("stays").is_empty());
        assert!(here(&mut fleet, START).is_empty());
        assert_eq!(here(&mut fleet, START + SETTLED), ["waits"]);
        assert_eq!(fleet.next_at(), None);
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
        // What it sends while it changes its gateway does not count.
        assert!(fleet.returned(later, |_| Some(soon)).is_empty());
        assert!(fleet.returned(soon, |_| Some(soon)).is_empty());
        assert_eq!(fleet.returned(later, |_| Some(later)), ["away"]);
        assert_eq!(on_here(&mut fleet, "away", 2, &away, later), away);
        assert!(fleet.returned(later, |_| Some(later)).is_empty());
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
