//! A measurement: the database is away for minutes while traffic runs. `./dev bench store-away`; what is measured:
//! `docs/clients.md`.

use std::{thread, time::Duration};

use pleach_lab::netns::Netns;
use pleach_linux::clock;

use super::{Provider, is_up, other, refused};
use crate::{
    database::{PASSWORD, Server},
    figures::{Report, number, seconds},
    flows::{Stream, Transfer},
    process::{Client, Daemon},
    world::{INTERRUPTION, PATIENCE, World, ping, run, within},
};

/// The environment variable PLEACH_AWAY_SECONDS is the time for which the database is away.
#[test]
#[ignore = "a measurement of five minutes: ./dev bench store-away"]
fn known_clients_notice_nothing_while_the_database_is_away_for_minutes() {
    let away = Duration::from_secs(number("PLEACH_AWAY_SECONDS", 300));
    let Some(world) = World::new() else { return };
    let server = Server::start_remote(Some(&world.server), &["10.99.0.2"]);
    let Some(server) = server else { return };
    let mut report = Report::new("The database of a gateway is away");
    report.phase("store away");
    let scene = Scene::start(&world, server);
    scene.plays(&world, away, &mut report);
    report.publish();
    report.check();
}

/// The gateway, its database, and two clients that it knows.
struct Scene {
    server: Server,
    provider: Provider,
    gateway: Daemon,
    steady: Daemon,
    /// Its daemon is killed and started again.
    restarting: Daemon,
    /// The host of `restarting`.
    host: Netns,
}

impl Scene {
    fn start(world: &World, server: Server) -> Self {
        let source = Provider::remote(&server, "clients", "10.99.0.2");
        let provider = Provider::with(world, &source);
        provider.put_password(PASSWORD);
        let gateway = provider.start();
        gateway.until_up();
        provider.add(2);
        provider.add(4);
        let steady = Client::default().start(world, &world.client);
        let host = world.another(3);
        let restarting = other(world, &host, 4, "l3");
        steady.until_links_up(&["l0", "l1"]);
        restarting.until_links_up(&["l3"]);
        Self {
            server,
            provider,
            gateway,
            steady,
            restarting,
            host,
        }
    }

    fn plays(mut self, world: &World, away: Duration, report: &mut Report) {
        count_responses(world);
        // The second client is in the store, but has never connected.
        self.provider.add(3);
        let stream = Stream::start(world, &world.client, "10.99.0.2");
        let transfer =
            Transfer::start(world, &world.client, "10.99.0.2", Duration::from_millis(20));
        let stopped_at = clock::now();
        self.server.stop();
        let trouble = within(PATIENCE, || {
            let status = self.gateway.status()?;
            status["store"]["trouble"]
                .is_string()
                .then(|| clock::now().since(stopped_at))
        });
        report.put_time(
            "noticed_s",
            "the status of the gateway says so after, s",
            trouble,
        );
        let host = world.another(2);
        let new = other(world, &host, 3, "l2");
        let is_refused = within(PATIENCE, || {
            let status = self.gateway.status()?;
            (refused(&status, "unreadable") > 0).then_some(())
        });
        report.require(is_refused.is_some(), "a new client is refused and counted");
        wait_until(stopped_at + away / 2);
        self.restarts(report);
        wait_until(stopped_at + away);
        let status = self.gateway.status().unwrap_or_default();
        report.put(
            "refused",
            "handshakes of a new client that were refused",
            refused(&status, "unreadable"),
        );
        report.require(
            is_up(&status, "c2") && is_up(&status, "c4"),
            "known clients stay",
        );
        report.require(!is_up(&status, "c3"), "the new client stays out");
        let log = self.gateway.log();
        let says = log.contains("known clients are served, new ones are refused");
        report.require(says, "the log of the gateway says so");

        let gap = transfer.gap();
        let time = clock::now().since(stopped_at);
        report.put_time("away_s", "database away for, s", Some(time));
        self.returns(world, &new, report);
        let (sent, lost_up, lost_down) = stream.end();
        report.put("sent", "datagrams of the steady client", sent);
        report.put("lost_up", "of these lost to the server", lost_up);
        report.put("lost_down", "of these lost to the client", lost_down);
        report.require(lost_up + lost_down == 0, "no datagram is lost");
        report.put(
            "gap_s",
            "longest gap of its TCP download, s",
            gap.map(seconds),
        );
        report.require(
            transfer.end(),
            "its TCP connection lasts, with right contents",
        );
        let changes = responses(world);
        report.put("key_changes", "handshakes of the steady client", changes);
        // Keys change every 120 s.
        report.require(
            changes >= time.as_secs().saturating_sub(5) / 120,
            "its keys change",
        );
        drop(self.steady);
    }

    /// A known client is killed and started again while the database is away.
    fn restarts(&mut self, report: &mut Report) {
        self.restarting.kill();
        let begun = clock::now();
        self.restarting.start_again();
        let is_back = ping(&self.host, &["10.99.0.2"], INTERRUPTION * 2);
        let time = is_back.then(|| clock::now().since(begun));
        report.put_time(
            "restart_s",
            "a known client that starts again has traffic after, s",
            time,
        );
    }

    /// The database is back, the new client gets in, and a removed one out.
    fn returns(&mut self, world: &World, new: &Daemon, report: &mut Report) {
        self.server.start_again();
        let back_at = clock::now();
        let read = within(PATIENCE, || {
            let status = self.gateway.status()?;
            let is_read = status["store"]["trouble"].is_null();
            is_read.then(|| clock::now().since(back_at))
        });
        report.put_time("read_s", "database back: it is read again after, s", read);
        let up = within(PATIENCE * 2, || {
            let is_up = new.status()?["up"] == true;
            is_up.then(|| clock::now().since(back_at))
        });
        report.put_time("new_s", "the new client is connected after, s", up);
        // By another program, so that the gateway must find out.
        let mut store = self.server.client("clients").expect("connected");
        let removed = store.execute("DELETE FROM pleach.clients WHERE name = 'c4'", &[]);
        assert_eq!(removed.expect("valid SQL"), 1);
        let removed_at = clock::now();
        let gone = within(PATIENCE, || {
            let is_gone = !is_up(&self.gateway.status()?, "c4");
            is_gone.then(|| clock::now().since(removed_at))
        });
        report.put_time(
            "removed_s",
            "a client whose row another program deletes is disconnected after, s",
            gone,
        );
        let is_soon = gone.is_some_and(|time| time < Duration::from_secs(5));
        report.require(is_soon, "within 5 s");
        let reaches = ping(&world.client, &["10.99.0.2"], PATIENCE);
        report.require(reaches, "the steady client is still served");
    }
}

/// Counts the answers of the gateway to handshakes of the world's client: the first byte of such a datagram is 2.
fn count_responses(world: &World) {
    let table = "add table inet plCount; add chain inet plCount out { type filter hook output priority 0; }; \
                 add rule inet plCount out oifname { g0, g1 } udp sport 7700 @th,64,8 2 counter";
    run(&world.gateway, "nft", &[table]);
}

fn responses(world: &World) -> u64 {
    let text = run(&world.gateway, "nft", &["list table inet plCount"]);
    let mut words = text
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    words.nth(1).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn wait_until(at: pleach_core::time::Instant) {
    while clock::now() < at {
        thread::park_timeout(at.since(clock::now()));
    }
}
