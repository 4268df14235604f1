//! Three gateways that share a PostgreSQL database and their addresses, with BIRD at each of them and at the router behind
//! them: what clients notice when a gateway is killed, is drained, or loses its database.
//!
//! ```text
//!                               l2 ─── gw1 ─── b1
//!  c2 ── l0, l1 ─┐            /                   \
//!  c3 ── l5 ───── (Internet) ── l3 ─── gw2 ─── b2 ─── router, server   10.97.0.2, fd97::2
//!  c9 ── l6 ─────┘            \                   /
//!                               l4 ─── gw3 ─── b3
//! ```
//!
//! Each gateway announces its home network to the router by BGP, and single clients only while they are away from home.

mod crowd;
mod echoes;
mod scale;
mod stage;

use std::{collections::BTreeSet, time::Duration};

use pleach_lab::netns::Netns;
use pleach_linux::clock;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    flows::{Stream, Transfer, retransmitted},
    process::{Client, Daemon, Keys},
    workers::keys_of,
    world::{INTERRUPTION, PATIENCE, ping, until},
};
use stage::{SERVER, SMALL, Site, Stage};

/// Returns the name of the gateway in use; empty if the tunnel is down.
fn used(status: &Value) -> String {
    let gateways = status["gateways"].as_array().cloned().unwrap_or_default();
    let used = gateways.iter().find(|gateway| gateway["used"] == true);
    let name = used.filter(|_| status["up"] == true);
    name.and_then(|gateway| gateway["name"].as_str())
        .unwrap_or_default()
        .to_owned()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Everything of the test.
struct Fleet {
    stage: Stage,
    hosts: [Netns; 3],
    clients: [Daemon; 3],
}

impl Fleet {
    /// Starts gateways with `workers` data threads.
    fn start(workers: u8) -> Option<Self> {
        let stage = Stage::start(&SMALL, workers)?;
        let world = &stage.world;
        let hosts = [world.client.clone(), world.another(5), world.another(6)];
        // If there are two workers, each has a client at home of gw1.
        let keys = [0, 1, 1].map(keys_of);
        for (name, keys) in [2, 3, 9].into_iter().zip(&keys) {
            let key = &keys.public;
            let (text, is_done) = stage.sites[0].does(&format!(
                "add c{name} --public-key {key} --address 10.77.0.{name}/32,fd77::{name}/128"
            ));
            assert!(is_done, "{text}");
        }
        let start = |host: &Netns, name, keys: &Keys, links: &[&str], order| {
            Client {
                host: name,
                keys,
                gateways: Some(&SMALL.tables(order)),
                more_tunnel: "gateway_return = 5\nsplit_tcp = \"off\"\n",
                policy: "adaptive",
                links,
                ..Client::default()
            }
            .start(world, host)
        };
        let clients = [
            start(&hosts[0], 2, &keys[0], &["l0", "l1"], [1, 2, 3]),
            start(&hosts[1], 3, &keys[1], &["l5"], [1, 2, 3]),
            start(&hosts[2], 9, &keys[2], &["l6"], [2, 1, 3]),
        ];
        for (client, wanted) in clients.iter().zip(["gw1", "gw1", "gw2"]) {
            client.until("it is at home", |status| used(status) == wanted);
        }
        Some(Self {
            stage,
            hosts,
            clients,
        })
    }

    /// Waits until all clients use the gateway `number`, and the router leads to `away` by single routes.
    #[track_caller]
    fn until_at(&self, number: u8, away: &[&str]) {
        let name = format!("gw{number}");
        for client in &self.clients {
            client.until(&format!("it uses {name}"), |status| used(status) == name);
        }
        let wanted = names(away);
        until("the router leads to the clients", || {
            self.stage.single_routes() == wanted
        });
    }

    fn transfers(&self) -> Vec<Transfer> {
        let pairs = self
            .hosts
            .iter()
            .flat_map(|host| SERVER.map(|to| (host, to)));
        let interval = Duration::from_millis(10);
        pairs
            .map(|(host, to)| Transfer::start(&self.stage.world, host, to, interval))
            .collect()
    }

    /// Returns the segments that TCP has sent again, at the server and at the clients.
    fn retransmitted(&self) -> Vec<u64> {
        let hosts = core::iter::once(&self.stage.world.server).chain(&self.hosts);
        hosts.map(retransmitted).collect()
    }
}

#[test]
fn clients_move_when_a_gateway_is_killed_or_drained_and_stay_when_the_store_is_away() {
    if let Some(fleet) = Fleet::start(1) {
        clients_move(fleet);
    }
}

#[test]
fn clients_move_between_gateways_with_two_workers() {
    if let Some(fleet) = Fleet::start(2) {
        let status = fleet.stage.sites[0].daemon.status().expect("it runs");
        let workers = status["workers"].as_array().expect("two workers").iter();
        let up: Vec<_> = workers.map(|worker| worker["up"].as_u64()).collect();
        assert_eq!(up, [Some(1); 2], "each has a client");
        clients_move(fleet);
    }
}

fn clients_move(mut fleet: Fleet) {
    assert_eq!(fleet.stage.single_routes(), BTreeSet::new());
    let transfers = fleet.transfers();
    let gaps = |transfers: &[Transfer]| -> Vec<Duration> {
        transfers.iter().map(Transfer::longest_gap).collect()
    };
    gaps(&transfers);

    // A gateway is killed.
    let killed_at = clock::now();
    fleet.stage.sites[0].daemon.kill();
    let moved = ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"];
    fleet.until_at(2, &moved);
    let time = clock::now().since(killed_at);
    let longest = gaps(&transfers);
    eprintln!(
        "killed: all clients are routed by another gateway after {time:?}; gaps of downloads: {longest:?}"
    );
    assert!(longest.iter().all(|gap| *gap < INTERRUPTION), "{longest:?}");
    assert_eq!(fleet.stage.sites[0].own_routes(), "");
    assert_eq!(fleet.stage.sites[1].own_routes().lines().count(), 4);
    until("the store knows where the clients are", || {
        let places = fleet.stage.sites[2].places();
        places.len() == 3 && places.values().all(|gateway| gateway == "gw2")
    });

    // The other one is drained: not one packet is lost.
    let before = fleet.retransmitted();
    let streams: Vec<Stream> = fleet
        .hosts
        .iter()
        .map(|host| Stream::start(&fleet.stage.world, host, SERVER[0]))
        .collect();
    let (text, is_done) = fleet.stage.sites[1].does("drain --timeout 40s");
    assert!(is_done && text.contains("No client is connected"), "{text}");
    let status = fleet.stage.sites[1].daemon.status().expect("it runs");
    assert_eq!(status["draining"], true);
    fleet.until_at(
        3,
        &[
            "10.77.0.2",
            "10.77.0.3",
            "10.77.0.9",
            "fd77::2",
            "fd77::3",
            "fd77::9",
        ],
    );
    assert_eq!(fleet.stage.sites[1].own_routes(), "");
    assert_eq!(fleet.stage.sites[2].connected(), names(&["c2", "c3", "c9"]));
    let longest = gaps(&transfers);
    let lost: Vec<_> = streams.into_iter().map(Stream::end).collect();
    let after = fleet.retransmitted();
    eprintln!(
        "drained: gaps of downloads: {longest:?}; datagrams sent, lost to and from the server: {lost:?}; \
         segments that TCP has sent again before and after: {before:?} {after:?}"
    );
    assert!(lost.iter().all(|(_, up, down)| up + down == 0), "{lost:?}");

    // The database goes away: connections last, and nothing is assigned.
    fleet.stage.database.stop();
    fleet.stage.sites[2]
        .daemon
        .until("it is noticed", |status| {
            status["store"]["trouble"].is_string()
        });
    assert!(!fleet.stage.sites[2].does("add c4 --public-key hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo= --address 10.77.0.2/32").1);
    gaps(&transfers);
    let (text, is_done) = fleet.stage.sites[1].does("drain --off");
    assert!(is_done, "{text}");
    // A gateway that knows its former clients takes them while the database is away: c9 returns home.
    fleet.clients[2].until("it is at home", |status| used(status) == "gw2");
    gaps(&transfers);
    fleet.stage.database.start_again();
    until("the store knows where the client is", || {
        fleet.stage.sites[2]
            .places()
            .get("c9")
            .is_some_and(|gateway| gateway == "gw2")
    });
    assert!(transfers.into_iter().all(Transfer::end));
    fleet.stage.sites[2].daemon.stop();
    assert_eq!(fleet.stage.sites[2].own_routes(), "");
}

#[test]
fn clients_return_home_without_loss_and_even_if_the_other_gateway_hangs() {
    let Some(fleet) = Fleet::start(2) else {
        return;
    };
    let [gw1, gw2, _] = &fleet.stage.sites[..] else {
        panic!("three gateways");
    };
    let drain = |site: &Site| {
        let (text, is_done) = site.does("drain --timeout 40s");
        assert!(is_done, "{text}");
    };
    let moved = ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"];
    drain(gw1);
    fleet.until_at(2, &moved);
    let streams: Vec<Stream> = fleet.hosts[..2]
        .iter()
        .map(|host| Stream::start(&fleet.stage.world, host, SERVER[0]))
        .collect();
    assert!(gw1.does("drain --off").1);
    let mut routes_at_home = BTreeSet::new();
    until("they are at home, and the other gateway lets go", || {
        let routes = gw1.own_routes();
        let destinations = routes.lines().filter_map(|line| line.split(' ').next());
        routes_at_home.extend(destinations.map(str::to_owned));
        gw2.own_routes().is_empty()
    });
    assert_eq!(routes_at_home, names(&moved));
    until("the routes at home are of no use any more", || {
        gw1.own_routes().is_empty()
    });
    let lost: Vec<_> = streams.into_iter().map(Stream::end).collect();
    eprintln!("returned: datagrams sent, lost to and from the server: {lost:?}");
    assert!(lost.iter().all(|(_, up, down)| up + down == 0), "{lost:?}");

    // A gateway hangs, so its routes stay, and the router would choose it among equal ones: c9 is reached at home all the same,
    // and the others away from home.
    drain(gw2);
    fleet.until_at(1, &["10.77.0.9", "fd77::9"]);
    assert!(gw2.does("drain --off").1);
    gw1.daemon.signal(Signal::STOP);
    for client in &fleet.clients {
        client.until("it is at gw2", |status| used(status) == "gw2");
    }
    for number in [2, 3, 9] {
        for (source, network) in [("10.97.0.2", "10.77.0."), ("fd97::2", "fd77::")] {
            let address = format!("{network}{number}");
            assert!(
                ping(
                    &fleet.stage.world.server,
                    &["-I", source, &address],
                    PATIENCE
                ),
                "{address} is not reached"
            );
        }
    }
    assert_eq!(gw1.own_routes().lines().count(), 2, "those of c9");
    gw1.daemon.signal(Signal::CONT);
    until("it lets go", || gw1.own_routes().is_empty());
}
