//! A gateway with several data threads.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::UdpSocket,
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use pleach_lab::{halted::HaltedThread, netns::Netns};
use pleach_linux::clock;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, Keys, OUTER_V6, TUNNEL, drops, link},
    traffic::{Target, tcp, udp},
    world::{PATIENCE, World, assert_same, has_settled, picture, ping, run, until},
};

const TWO: &str = "workers = 2\n";

/// Returns the worker of the client with these keys, of two: the lowest bit of the first byte of its public key.
fn worker_of(keys: &Keys) -> usize {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let second = keys.public.as_bytes()[1];
    let value = ALPHABET.iter().position(|known| *known == second);
    // The second character has the two lowest bits of the first byte, and four others.
    (value.expect("base64") >> 4) & 1
}

/// Returns keys of a client of `worker`, of two.
pub(crate) fn keys_of(worker: usize) -> Keys {
    loop {
        let keys = Keys::new();
        if worker_of(&keys) == worker {
            return keys;
        }
    }
}

/// A client of the crowd: last part of its inner addresses, its keys, and its host.
struct Member {
    number: u8,
    keys: Keys,
    host: Netns,
}

impl Member {
    fn daemon(&self, world: &World) -> Daemon {
        let link = format!("l{}", self.number);
        let links: &[&str] = if self.number == 2 {
            &["l0", "l1"]
        } else {
            &[&link]
        };
        Client {
            host: self.number,
            keys: &self.keys,
            links,
            // Half of the clients use IPv6.
            endpoint: if self.number.is_multiple_of(2) {
                Client::default().endpoint
            } else {
                OUTER_V6
            },
            ..Client::default()
        }
        .start(world, &self.host)
    }

    fn addresses(&self) -> [String; 2] {
        [
            format!("10.77.0.{}", self.number),
            format!("fd77::{}", self.number),
        ]
    }
}

/// Makes six clients, three of each worker. The first has two links, and belongs to worker 1.
fn members(world: &World) -> Vec<Member> {
    (2..8)
        .map(|number| Member {
            number,
            keys: keys_of(usize::from(number + 1) % 2),
            host: if number == 2 {
                world.client.clone()
            } else {
                world.another(number.into())
            },
        })
        .collect()
}

fn start_gateway(world: &World, members: &[Member], more: &str) -> Daemon {
    let clients = members
        .iter()
        .map(|member| (member.number, &member.keys, None));
    let gateway = Gateway {
        clients: clients.collect(),
        isolate: false,
        more_tunnel: TWO,
        more,
        ..Gateway::default()
    }
    .start(world);
    gateway.until_up();
    gateway
}

fn client<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    let mut clients = status["clients"].as_array().into_iter().flatten();
    clients.find(|client| client["name"] == name)
}

/// Whether the status has two workers, with these numbers of clients that are up.
fn has_up(status: &Value, up: [u64; 2]) -> bool {
    let workers = status["workers"].as_array();
    workers.is_some_and(|workers| {
        let found = workers.iter().map(|worker| worker["up"].as_u64());
        found.eq(up.map(Some))
    })
}

fn passed(status: &Value) -> u64 {
    let workers = status["workers"].as_array().expect("workers");
    let passed = workers.iter().map(|worker| worker["passed"].as_u64());
    passed.map(|passed| passed.expect("a number")).sum()
}

/// Sends a request to the control socket of a daemon, and returns the answer.
fn request(daemon: &Daemon, request: &str) -> String {
    let mut socket = UnixStream::connect(&daemon.control).expect("connects");
    writeln!(socket, "{request}").expect("written");
    let mut answer = String::new();
    let read = BufReader::new(socket).read_line(&mut answer);
    read.expect("readable");
    answer.trim().to_owned()
}

/// Returns the metrics of a daemon.
fn metrics(daemon: &Daemon) -> String {
    let mut socket = UnixStream::connect(&daemon.control).expect("connects");
    let request = "GET /metrics HTTP/1.1\r\nHost: pleach\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("readable");
    answer
}

/// Packets of each client pass in both directions, whoever begins, over both families.
fn all_reach(world: &World, members: &[Member]) {
    for member in members {
        let name = member.number;
        for address in ["10.77.0.1", "fd77::1", "10.99.0.2"] {
            assert!(ping(&member.host, &[address], PATIENCE), "{name} {address}");
        }
        for address in member.addresses() {
            assert!(ping(&world.gateway, &[&address], PATIENCE), "{address}");
        }
        for (host, address) in [(&world.gateway, "fd77::1"), (&world.server, "10.99.0.2")] {
            let to = Target::new(host, address);
            assert!(udp(&member.host, &to).is_some(), "{name} {address}");
            tcp(&member.host, &to, 1 << 20).expect("a transfer");
        }
    }
}

#[test]
fn two_workers_serve_the_clients_of_one_gateway() {
    let Some(world) = World::new() else { return };
    let members = members(&world);
    let hosts: Vec<&Netns> = members.iter().map(|member| &member.host).collect();
    until("the hosts settle", || {
        hosts.iter().all(|host| has_settled(host))
    });
    let before = picture(&world.gateway);
    let mut gateway = start_gateway(&world, &members, "");
    let mut daemons: Vec<Daemon> = members.iter().map(|member| member.daemon(&world)).collect();
    let status = gateway.until("all clients connect", |status| has_up(status, [3, 3]));
    let names: Vec<&str> = status["clients"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|client| client["name"].as_str())
        .collect();
    assert_eq!(names, ["c2", "c3", "c4", "c5", "c6", "c7"]);
    all_reach(&world, &members);
    // Clients reach each other, whatever their workers.
    for address in ["10.77.0.4", "10.77.0.5", "fd77::6", "fd77::7"] {
        assert!(ping(&world.client, &[address], PATIENCE), "{address}");
    }
    let status = gateway.until_up();
    assert!(passed(&status) > 0, "nothing was passed: {status}");
    assert_eq!(drops(&status, "worker_refused"), 0);
    assert_eq!(drops(&status, "unknown_session"), 0, "{status}");
    for name in names {
        let client = client(&status, name).expect("a client");
        for direction in ["up_bytes", "down_bytes"] {
            assert!(
                client[direction].as_u64() > Some(2 << 20),
                "{name}: {client}"
            );
        }
    }

    // A client of worker 1 roams: both of its links get new addresses, one after the other, during a transfer.
    let transfer = {
        let (from, to) = (world.client.clone(), world.server.clone());
        thread::spawn(move || tcp(&from, &Target::new(&to, "10.99.0.2"), 30 << 20).map(drop))
    };
    for number in [0, 1] {
        let device = format!("l{number}");
        run(&world.client, "ip", &["addr", "flush", "dev", &device]);
        world.number(&world.client, number, 9);
        daemons[0].until_links_up(&["l0", "l1"]);
        let address = format!("10.1.{number}.9:");
        gateway.until("the gateway knows the new address", |status| {
            let links = client(status, "c2").and_then(|client| client["links"].as_array());
            links.into_iter().flatten().any(|link| {
                let endpoint = link["endpoint"].as_str().unwrap_or_default();
                endpoint.starts_with(&address)
            })
        });
    }
    transfer
        .join()
        .expect("ends")
        .expect("the transfer survives");
    assert!(has_up(&gateway.until_up(), [3, 3]));

    // Clients of both workers are removed and come back, and the others stay.
    let text = fs::read_to_string(gateway.file()).expect("readable");
    let table = |number: u8| {
        let start = text
            .find(&format!("[[client]]\nname = \"c{number}\""))
            .expect("a client");
        let len = text[start + 1..]
            .find("[[client]]")
            .map_or(text.len() - start, |len| len + 1);
        text[start..start + len].to_owned()
    };
    let without = text.replace(&table(4), "").replace(&table(5), "");
    fs::write(gateway.file(), without).expect("written");
    assert!(gateway.command("reload", &[]).status.success());
    let status = gateway.until("two clients are gone", |status| has_up(status, [2, 2]));
    assert!(client(&status, "c4").is_none() && client(&status, "c5").is_none());
    assert!(!ping(
        &members[2].host,
        &["-W", "1", "10.77.0.1"],
        Duration::ZERO
    ));
    fs::write(gateway.file(), &text).expect("written");
    assert!(gateway.command("reload", &[]).status.success());
    gateway.until("they are back", |status| has_up(status, [3, 3]));
    all_reach(&world, &members[2..4]);

    // Requests reach the clients of both workers.
    let weigh = |name: &str| gateway.command("weights", &[&format!("{name}=7")]);
    for (name, link) in [("c4", "l4"), ("c5", "l5")] {
        let weighed = weigh(link);
        assert!(
            weighed.status.success(),
            "{}",
            String::from_utf8_lossy(&weighed.stderr)
        );
        gateway.until("the link has its weight", |status| {
            let found = client(status, name).map(|client| &client["links"][0]["weight"]);
            found == Some(&7.into())
        });
    }
    assert!(!weigh("l9").status.success(), "there is no such link");
    let draining = |is_on: bool| {
        let answer = request(
            &gateway,
            &format!("{{\"command\":\"drain\",\"on\":{is_on}}}"),
        );
        assert_eq!(answer, "{\"ok\":true}");
        let status = gateway.until_up();
        let workers = status["workers"].as_array().expect("workers").iter();
        workers
            .map(|worker| worker["draining"] == true)
            .chain([status["draining"] == true])
            .collect::<Vec<_>>()
    };
    assert_eq!(draining(true), [true; 3]);
    assert_eq!(draining(false), [false; 3]);
    let removed = request(&gateway, "{\"command\":\"remove-client\",\"name\":\"c6\"}");
    assert_eq!(removed, "{\"ok\":true}");
    let status = gateway.until("a client is gone", |status| has_up(status, [3, 2]));
    assert!(client(&status, "c6").is_none());

    // All clients connect anew after a crash, and after a restart.
    gateway.kill();
    gateway.start_again();
    gateway.until("all clients connect again", |status| has_up(status, [3, 3]));
    all_reach(&world, &members[..2]);
    gateway.stop();
    for daemon in &mut daemons {
        daemon.stop();
    }
    assert_same("the gateway", &before, &picture(&world.gateway));
}

#[test]
fn a_worker_that_hangs_is_named_and_keeps_nobody_waiting() {
    let Some(world) = World::new() else { return };
    let members: Vec<Member> = members(&world).into_iter().take(2).collect();
    let before = picture(&world.gateway);
    let mut gateway = start_gateway(&world, &members, "");
    let daemons: Vec<Daemon> = members.iter().map(|member| member.daemon(&world)).collect();
    gateway.until("both connect", |status| has_up(status, [1, 1]));
    let halt = || HaltedThread::halt(gateway.pid(), "worker 1").expect("it may be traced");

    let halted = halt();
    let mut times = Vec::new();
    for _ in 0..2 {
        let begun = clock::now();
        let status = gateway.status().expect("an answer");
        times.push(clock::now().since(begun));
        assert_eq!(status["silent_workers"], serde_json::json!([1]), "{status}");
        assert_eq!(status["workers"].as_array().map(Vec::len), Some(1));
        assert!(client(&status, "c2").is_none() && client(&status, "c3").is_some());
    }
    let second = Duration::from_secs(1);
    assert!(times[0] >= second && times[0] < 3 * second, "{times:?}");
    assert!(times[1] < second, "it is not waited for again: {times:?}");
    let text = gateway.command("status", &[]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("Data thread 1 does not answer"), "{text}");
    let text = metrics(&gateway);
    for line in [
        "pleach_worker_answers{worker=\"0\"} 1.0",
        "pleach_worker_answers{worker=\"1\"} 0.0",
        "pleach_worker_clients_connected{worker=\"0\"} 1.0",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(gateway.command("weights", &["l3=5"]).status.success());
    let refused = gateway.command("weights", &["l0=5"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("data thread 1 does not answer"), "{why}");
    assert_eq!(gateway.log().matches("does not answer").count(), 1);
    assert!(ping(&members[1].host, &["10.77.0.1"], PATIENCE));

    drop(halted);
    gateway.until("all answer again", |status| {
        status["silent_workers"].is_null() && has_up(status, [1, 1])
    });

    // It delays the end for a moment only, and everything is undone.
    let halted = halt();
    gateway.signal(Signal::TERM);
    until("the end is not delayed", || {
        gateway.log().contains("a data thread does not end")
    });
    until("the network is as it was", || {
        picture(&world.gateway) == before
    });
    drop(halted);
    until("the gateway ends", || gateway.has_ended());
    drop(daemons);
}

#[test]
fn tcp_carries_links_of_clients_of_all_workers() {
    let Some(world) = World::new() else { return };
    let members: Vec<Member> = members(&world).into_iter().take(3).collect();
    let gateway = start_gateway(&world, &members, "[carrier]\nlisten = \"[::]:443\"\n");
    let rules = "table inet plWorkers { chain c { type filter hook input priority 0; udp dport 7700 drop; }; }";
    run(&world.gateway, "nft", &[rules]);
    let daemons: Vec<Daemon> = members.iter().map(|member| member.daemon(&world)).collect();
    gateway.until("all clients connect", |status| has_up(status, [1, 2]));
    for (member, daemon) in members.iter().zip(&daemons) {
        let name = if member.number == 2 {
            "l0".to_owned()
        } else {
            format!("l{}", member.number)
        };
        let status = daemon.until_up();
        let carrier = link(&status, &name).and_then(|link| link["carrier"].as_str());
        assert_eq!(carrier, Some("tcp"), "{status}");
        let to = Target::new(&world.server, "10.99.0.2");
        tcp(&member.host, &to, 1 << 20).expect("a transfer");
    }
    let status = gateway.until_up();
    assert_eq!(
        client(&status, "c2").map(|client| &client["links"][0]["carrier"]),
        Some(&"tcp".into())
    );
}

#[test]
fn another_program_cannot_share_the_port_of_a_gateway_with_workers() {
    let Some(world) = World::new() else { return };
    let members: Vec<Member> = members(&world).into_iter().take(1).collect();
    let socket = world.gateway.run(|| Ok(UdpSocket::bind("[::]:7700")?));
    let socket = socket.expect("a free port");
    let clients = vec![(2, &members[0].keys, None)];
    let mut gateway = Gateway {
        clients,
        more_tunnel: TWO,
        ..Gateway::default()
    }
    .start(&world);
    until("the gateway ends", || gateway.has_ended());
    assert!(
        gateway.log().contains("cannot listen on [::]:7700"),
        "{}",
        gateway.log()
    );
    drop(socket);
    gateway.start_again();
    gateway.until_up();
    let text = run(&world.gateway, "ip", &["-d", "link", "show", "dev", TUNNEL]);
    assert!(text.contains("multi_queue"), "{text}");
}
