//! A measurement: many clients over three gateways, one of which is killed, another one drained, and the third one cut off
//! from the store. `./dev bench fleet`; what is measured: `docs/fleet.md`.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::clock;

use super::{
    crowd::{self, MOST, Member},
    echoes::{self, Echoes},
    stage::{LARGE, SERVER, Stage},
};
use crate::{
    figures::{Load, Report, memory_kb, number, quantiles, seconds},
    flows::{Transfer, retransmitted},
    world::{PATIENCE, run, within},
};

/// The environment variables PLEACH_FLEET_CLIENTS and PLEACH_FLEET_RATE are the number of clients, and how many datagrams
/// each of them sends in a second.
#[test]
#[ignore = "a measurement of minutes: ./dev bench fleet"]
fn many_clients_move_without_a_broken_connection() {
    let clients = number("PLEACH_FLEET_CLIENTS", 6).clamp(3, MOST.into());
    let rate = number("PLEACH_FLEET_RATE", 2).clamp(1, 1000);
    let interval = Duration::from_secs(1) / u32::try_from(rate).expect("in range");
    let clients = u16::try_from(clients).expect("in range");
    let title = format!("{clients} clients over three gateways");
    let mut report = Report::new(&title);
    report.phase("start");
    let Some(mut fleet) = Fleet::start(clients, interval, &mut report) else {
        return;
    };
    fleet.is_steady(&mut report);
    fleet.loses_a_gateway(&mut report);
    fleet.gets_it_back(&mut report);
    fleet.drains_a_gateway(&mut report);
    fleet.loses_the_store(&mut report);
    fleet.ends(&mut report);
    report.publish();
    report.check();
}

/// Everything of the measurement.
struct Fleet {
    echoes: Echoes,
    interval: Duration,
    /// Connections, each with the number of its client.
    transfers: Vec<(usize, Transfer)>,
    members: Vec<Member>,
    /// At the start; see [`refused_neighbours`].
    refused_neighbours: u64,
    stage: Stage,
}

impl Fleet {
    fn start(clients: u16, interval: Duration, report: &mut Report) -> Option<Self> {
        let begun = clock::now();
        let refused_neighbours = refused_neighbours();
        let stage = Stage::start(&LARGE, 1)?;
        let members = crowd::start(&stage, clients);
        let are_home = (1..=3).all(|number| {
            within(START, || is_home(&stage, &members, number).then_some(())).is_some()
        });
        assert!(are_home, "all clients connect");
        let hosts: Vec<_> = members.iter().map(|member| &member.host).collect();
        let echoes = Echoes::start(&stage.world.server, &hosts, interval);
        let transfers = hosts.iter().enumerate().take(TRANSFERS);
        let transfers = transfers.map(|(number, host)| {
            let to = SERVER[echoes::family(number)];
            let transfer = Transfer::start(&stage.world, host, to, TRANSFER_INTERVAL);
            (number, transfer)
        });
        let transfers: Vec<_> = transfers.collect();
        let time = clock::now().since(begun);
        report.put("clients", "client daemons", clients);
        report.put_time(
            "start_s",
            "time until all run and are at home, s",
            Some(time),
        );
        report.put(
            "echo_interval_s",
            "each client sends a datagram every, s",
            seconds(interval),
        );
        report.put(
            "transfers",
            "TCP connections with 0.16 Mbit/s in both directions",
            transfers.len(),
        );
        Some(Self {
            echoes,
            interval,
            transfers,
            members,
            refused_neighbours,
            stage,
        })
    }

    /// Nothing happens.
    fn is_steady(&self, report: &mut Report) {
        report.phase("steady");
        let account = self.account();
        wait(Duration::from_secs(10));
        let pids = self.members.iter().map(|member| member.daemon.pid());
        let memory: Vec<u64> = pids.map(memory_kb).collect();
        let mean = memory.iter().sum::<u64>() / memory.len().max(1) as u64;
        report.put(
            "client_memory_kb",
            "memory of a client daemon, mean, kB",
            mean,
        );
        let gateways = self.stage.sites.iter().map(|site| site.daemon.pid());
        let gateways: Vec<u64> = gateways.map(memory_kb).collect();
        report.put("gateway_memory_kb", "memory of each gateway, kB", gateways);
        self.close(account, Loss::None, report);
    }

    /// The first gateway is killed.
    fn loses_a_gateway(&mut self, report: &mut Report) {
        report.phase("gw1 killed");
        let moved = self.at_home(1);
        let account = self.account();
        self.stage.sites[0].daemon.kill();
        let killed_at = clock::now();
        let back = || self.echoes.back(&moved, killed_at);
        within(PATIENCE, || {
            back().iter().all(Option::is_some).then_some(())
        });
        let back: Vec<Option<Duration>> = back();
        let times: Vec<Duration> = back.iter().flatten().copied().collect();
        report.put("moved", "its clients", moved.len());
        report.put(
            "not_back",
            "of these without traffic after 30 s",
            moved.len() - times.len(),
        );
        report.require(times.len() == moved.len(), "all clients have traffic again");
        let [median, most, all] = quantiles(times);
        report.put_time("back_median_s", "traffic again after, median, s", median);
        report.put_time("back_99_s", "traffic again after, 99 %, s", most);
        report.put_time("back_max_s", "traffic again after, maximum, s", all);
        let is_met = all.is_some_and(|all| all <= TARGET);
        report.put("within_target", "all within 2 s", is_met);
        let routed = self.until_away(1, killed_at);
        report.put_time(
            "routed_s",
            "router has a route to each of them, seen after, s",
            routed,
        );
        wait(SETTLED);
        let until = clock::now();
        wait(UNDERWAY);
        let lost = moved.iter().zip(&back).flat_map(|(client, back)| {
            let back = back.unwrap_or_default();
            let lost = self.echoes.lost(*client, killed_at, until);
            lost.into_iter().map(move |at| (at, at > back))
        });
        let lost: Vec<(Duration, bool)> = lost.collect();
        let last = lost.iter().map(|(at, _)| *at).max();
        let later = lost.iter().filter(|(_, is_later)| *is_later).count();
        report.put(
            "last_lost_s",
            "last lost datagram sent after, s",
            last.map(seconds),
        );
        report.put(
            "lost_later",
            "datagrams lost by clients that had traffic again",
            later,
        );
        self.close(account, Loss::Of(&moved), report);
    }

    /// The first gateway starts again.
    fn gets_it_back(&mut self, report: &mut Report) {
        report.phase("gw1 started again");
        let account = self.account();
        self.stage.sites[0].daemon.start_again();
        self.stage.sites[0].daemon.until_up();
        let home = self.until_home(1, account.from);
        report.put_time("home_s", "all clients at home again, seen after, s", home);
        self.close(account, Loss::None, report);
    }

    /// The second gateway is drained, and takes its clients again.
    fn drains_a_gateway(&self, report: &mut Report) {
        report.phase("gw2 drained");
        self.drain(2, Loss::None, report);
        report.phase("gw2 takes clients again");
        self.end_drain(2, Loss::None, report);
    }

    /// The third gateway cannot reach the store any more, while clients move.
    fn loses_the_store(&self, report: &mut Report) {
        report.phase("gw3 cut off from the store");
        let account = self.account();
        let cut = "add table inet plCut; add chain inet plCut in { type filter hook input priority 0; }; \
                   add rule inet plCut in ip saddr 10.98.3.1 tcp dport 5432 drop";
        run(&self.stage.world.server, "nft", &[cut]);
        let noticed = self.until(PATIENCE, account.from, || self.has_trouble(3));
        report.put_time("noticed_s", "its status says so after, s", noticed);
        wait(SETTLED);
        self.close(account, Loss::None, report);
        report.phase("then gw1 drained: half of its clients go to gw3");
        self.drain(1, Loss::Tolerated, report);
        report.phase("gw1 takes clients again");
        self.end_drain(1, Loss::Tolerated, report);
        report.phase("gw3, still cut off, drained");
        self.drain(3, Loss::Tolerated, report);
        report.phase("gw3, still cut off, takes clients again");
        self.end_drain(3, Loss::Tolerated, report);
        report.phase("gw3 reaches the store again");
        let account = self.account();
        run(
            &self.stage.world.server,
            "nft",
            &["delete table inet plCut"],
        );
        let noticed = self.until(PATIENCE, account.from, || !self.has_trouble(3));
        report.put_time("noticed_s", "its status says so after, s", noticed);
        let stored = self.until(PATIENCE, account.from, || self.store_is_right());
        report.put_time(
            "stored_s",
            "the store says of each client where it is after, s",
            stored,
        );
        self.close(account, Loss::None, report);
    }

    fn ends(&mut self, report: &mut Report) {
        report.phase("end");
        let transfers = core::mem::take(&mut self.transfers);
        let count = transfers.len();
        let whole = transfers
            .into_iter()
            .filter_map(|(_, transfer)| transfer.end().then_some(()));
        let whole = whole.count();
        report.put(
            "whole",
            "TCP connections that lasted, with right contents",
            whole,
        );
        report.require(whole == count, "all TCP connections last");
        let refused = refused_neighbours() - self.refused_neighbours;
        let what =
            "neighbours that the kernel had no room for (gc_thresh3): a fault of the measurement";
        report.put("refused_neighbours", what, refused);
        report.require(refused == 0, what);
    }

    fn drain(&self, number: u8, loss: Loss<'_>, report: &mut Report) {
        let account = self.account();
        let (text, is_done) = self.site(number).does("drain --timeout 90s");
        let drained = is_done.then(|| clock::now().since(account.from));
        report.put_time("drained_s", "no client left after, s", drained);
        report.require(is_done, &text);
        let routed = self.until_away(number, account.from);
        report.put_time(
            "routed_s",
            "router has a route to each of them, seen after, s",
            routed,
        );
        self.once(report);
        self.close(account, loss, report);
    }

    fn end_drain(&self, number: u8, loss: Loss<'_>, report: &mut Report) {
        let account = self.account();
        let (text, is_done) = self.site(number).does("drain --off");
        report.require(is_done, &text);
        let home = self.until_home(number, account.from);
        report.put_time("home_s", "all clients at home again, seen after, s", home);
        self.once(report);
        self.close(account, loss, report);
    }

    /// Waits until no client is at two gateways.
    fn once(&self, report: &mut Report) {
        let from = clock::now();
        let once = self.until(PATIENCE, from, || {
            self.stage.announced_twice().is_empty() && self.stage.connected_twice().is_empty()
        });
        let what = "from then on, no client is connected to two gateways or announced by two, seen after, s";
        report.put_time("once_s", what, once);
    }

    fn site(&self, number: u8) -> &super::stage::Site {
        &self.stage.sites[usize::from(number) - 1]
    }

    /// Returns the numbers of the clients at home at a gateway.
    fn at_home(&self, number: u8) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        members
            .filter_map(|(at, member)| (member.home == number).then_some(at))
            .collect()
    }

    fn has_trouble(&self, number: u8) -> bool {
        let status = self.site(number).daemon.status().unwrap_or_default();
        status["store"]["trouble"].is_string()
    }

    /// Whether `pleach gateway clients` says of each client that it is where it is.
    fn store_is_right(&self) -> bool {
        let places = self.site(1).places();
        places.len() == self.members.len()
            && self.stage.sites.iter().all(|site| {
                let name = site.name();
                let mut connected = site.connected().into_iter();
                connected.all(|client| places.get(&client) == Some(&name))
            })
    }

    /// Waits until the router has routes to the clients of gateway `number` and no others. Returns the time since `from`.
    fn until_away(&self, number: u8, from: Instant) -> Option<Duration> {
        let of_gateway = self.members.iter().filter(|member| member.home == number);
        let away = of_gateway.flat_map(|member| member.addresses.clone());
        let away: BTreeSet<String> = away.collect();
        self.until(PATIENCE, from, || self.stage.single_routes() == away)
    }

    /// Waits until the clients of gateway `number` are there, and the router needs no routes to them.
    fn until_home(&self, number: u8, from: Instant) -> Option<Duration> {
        self.until(RETURN, from, || {
            is_home(&self.stage, &self.members, number) && self.stage.single_routes().is_empty()
        })
    }

    /// Looks every half second whether `holds`. Returns the time since `from`.
    fn until(
        &self,
        patience: Duration,
        from: Instant,
        holds: impl Fn() -> bool,
    ) -> Option<Duration> {
        let deadline = clock::now() + patience;
        loop {
            if holds() {
                return Some(clock::now().since(from));
            }
            if clock::now() >= deadline {
                return None;
            }
            wait(self.interval.max(Duration::from_millis(500)));
        }
    }

    /// Begins to count.
    fn account(&self) -> Account {
        for (_, transfer) in &self.transfers {
            transfer.gap();
        }
        Account {
            load: Load::now(),
            retransmitted: self.retransmitted(),
            from: clock::now(),
        }
    }

    /// Reports what was lost since `account`, and what may not be.
    fn close(&self, account: Account, loss: Loss<'_>, report: &mut Report) {
        let until = clock::now();
        let load = account.load.percent();
        wait(UNDERWAY);
        let is_affected = |client: &usize| matches!(loss, Loss::Of(all) if all.contains(client));
        let (affected, others): (Vec<usize>, Vec<usize>) =
            (0..self.members.len()).partition(is_affected);
        if !affected.is_empty() {
            let tally = self.echoes.tally(&affected, account.from, until);
            report.put(
                "lost_of_affected",
                "datagrams that these clients lost",
                tally.lost(),
            );
        }
        let tally = self.echoes.tally(&others, account.from, until);
        let whose = match loss {
            Loss::None | Loss::Tolerated => "datagrams of all clients",
            Loss::Of(_) => "datagrams of all other clients",
        };
        report.put("sent", whose, tally.sent);
        report.put("lost_up", "of these lost to the server", tally.lost_up);
        report.put("lost_down", "of these lost to the client", tally.lost_down);
        let may_lose = matches!(loss, Loss::Tolerated);
        report.require(may_lose || tally.lost() == 0, "no datagram is lost");
        let gaps: Vec<Option<Duration>> = self
            .transfers
            .iter()
            .map(|(_, transfer)| transfer.gap())
            .collect();
        report.require(
            gaps.iter().all(Option::is_some),
            "all TCP connections go on",
        );
        let longest = gaps.into_iter().flatten().max();
        report.put(
            "gap_s",
            "longest gap of a TCP download, s",
            longest.map(seconds),
        );
        let again = self.retransmitted().saturating_sub(account.retransmitted);
        report.put("retransmitted", "segments that TCP has sent again", again);
        report.put("busy_percent", "processors busy, %", load);
    }

    /// Returns the segments that TCP has sent again, at the server and at the clients.
    fn retransmitted(&self) -> u64 {
        let clients = self
            .transfers
            .iter()
            .map(|(number, _)| &self.members[*number].host);
        let hosts = core::iter::once(&self.stage.world.server).chain(clients);
        hosts.map(retransmitted).sum()
    }
}

/// What had happened when a phase began.
struct Account {
    from: Instant,
    load: Load,
    retransmitted: u64,
}

/// Who may lose datagrams.
#[derive(Clone, Copy)]
enum Loss<'a> {
    /// Nobody.
    None,
    /// These clients.
    Of(&'a [usize]),
    /// Everybody: a gateway that cannot reach the store learns by the goodbye of a client alone that it has left. Packets
    /// of the time until the router knows are lost.
    Tolerated,
}

/// Returns how often the kernel has refused a neighbour since the start of the machine, of both families.
fn refused_neighbours() -> u64 {
    let of_family = |file: &str| {
        let text = fs::read_to_string(format!("/proc/net/stat/{file}")).unwrap_or_default();
        let mut lines = text.lines().map(str::split_whitespace);
        let at = lines.next()?.position(|name| name == "table_fulls")?;
        let counts = lines.filter_map(|mut line| u64::from_str_radix(line.nth(at)?, 16).ok());
        Some(counts.sum::<u64>())
    };
    let counts = ["arp_cache", "ndisc_cache"].map(of_family);
    counts.into_iter().flatten().sum()
}

/// Whether all clients of gateway `number` are connected to it.
fn is_home(stage: &Stage, members: &[Member], number: u8) -> bool {
    let connected = stage.sites[usize::from(number) - 1].connected();
    let mut own = members.iter().filter(|member| member.home == number);
    own.all(|member| connected.contains(&member.name))
}

fn wait(time: Duration) {
    let until = clock::now() + time;
    loop {
        let left = until.since(clock::now());
        if left == Duration::ZERO {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Longest time until a client has traffic again that the project promises.
const TARGET: Duration = Duration::from_secs(2);
/// Number of TCP connections, and the interval in which each of their ends sends 4 kB.
const TRANSFERS: usize = 12;
const TRANSFER_INTERVAL: Duration = Duration::from_millis(200);
/// Time for all clients to connect.
const START: Duration = Duration::from_secs(180);
/// Time for all clients to return: they wait five seconds (`gateway_return`), and ask gateways every ten seconds at least.
const RETURN: Duration = Duration::from_secs(90);
/// Time for which traffic runs after a change.
const SETTLED: Duration = Duration::from_secs(5);
/// Time after which a datagram that has not returned is lost.
const UNDERWAY: Duration = Duration::from_secs(2);
