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

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_lab::netns::Netns;
use pleach_linux::{clock, requirement};
use serde_json::Value;

use crate::{
    database::Server,
    process::{Client, Daemon, Keys, TUNNEL},
    traffic::connect,
    world::{INTERRUPTION, PATIENCE, World, run, until, within},
};

/// A gateway of the fleet.
struct Site {
    number: u8,
    host: Netns,
    dir: PathBuf,
    daemon: Daemon,
    _bird: Bird,
}

impl Site {
    /// Connects a gateway's host to the router, and starts its daemons.
    fn start(world: &World, number: u8, database: &str) -> Self {
        let host = world.another_gateway(number);
        let dir = world.dir.path().join(format!("gw{number}"));
        fs::create_dir(&dir).expect("directory");
        let file = dir.join("gateway.toml");
        let control = dir.join("gateway.sock");
        let [v4, v6] = home(number);
        let text = format!(
            "mode = \"gateway\"\n\
             [tunnel]\nname = \"{TUNNEL}\"\naddress = [\"10.77.0.25{number}/32\", \"fd77::f{number}/128\"]\n\
             private_key = \"{}\"\nlisten = \"[::]:7700\"\nnat = false\nsplit_tcp = \"off\"\ncontrol = {control:?}\n\
             [scheduler]\npolicy = \"adaptive\"\n\
             [clients]\nsource = \"postgres\"\nstore = \"{database}\"\nwrite_every = \"1s\"\n\
             networks = [\"10.77.0.0/24\", \"fd77::/64\"]\n\
             [fleet]\nname = \"gw{number}\"\nhome = [\"{v4}\", \"{v6}\"]\n",
            keys(number).private,
        );
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("our file");
        let bird = Bird::start(world, &host, &format!("gw{number}"), &gateway_conf(number));
        let daemon = Daemon::with_file(&host, file, control);
        daemon.until_up();
        Self {
            number,
            host,
            dir,
            daemon,
            _bird: bird,
        }
    }

    /// Runs `pleach gateway ARGUMENTS`. Returns its output, and whether it succeeds.
    fn does(&self, arguments: &str) -> (String, bool) {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_pleach"));
        command.arg("gateway").args(arguments.split_whitespace());
        let output = command.arg("--dir").arg(&self.dir).output();
        let output = output.expect("starts");
        let text = [output.stdout, output.stderr].concat();
        (
            String::from_utf8_lossy(&text).into_owned(),
            output.status.success(),
        )
    }

    fn connected(&self) -> BTreeSet<String> {
        let status = self.daemon.status().unwrap_or_default();
        let clients = status["clients"].as_array().cloned().unwrap_or_default();
        let up = clients.iter().filter(|client| client["up"] == true);
        up.filter_map(|client| client["name"].as_str().map(str::to_owned))
            .collect()
    }

    /// Returns the routes to single clients that the gateway has set.
    fn own_routes(&self) -> String {
        let protocol = pleach_linux::netlink::HOST_PROTOCOL.to_string();
        ["-4", "-6"]
            .map(|family| {
                run(
                    &self.host,
                    "ip",
                    &[family, "route", "show", "proto", &protocol],
                )
            })
            .concat()
    }
}

fn keys(number: u8) -> &'static Keys {
    match number {
        1 => Keys::gateway(),
        _ => Keys::client(number + 2),
    }
}

/// Home networks of a gateway.
const fn home(number: u8) -> [&'static str; 2] {
    match number {
        1 => ["10.77.0.0/29", "fd77::/125"],
        2 => ["10.77.0.8/29", "fd77::8/125"],
        _ => ["10.77.0.16/29", "fd77::10/125"],
    }
}

/// A routing daemon, which is killed when dropped. What it knows is printed if the test fails.
struct Bird {
    process: Child,
    log: PathBuf,
    control: PathBuf,
}

impl Bird {
    fn start(world: &World, host: &Netns, name: &str, text: &str) -> Self {
        let path = |extension: &str| world.dir.path().join(format!("bird-{name}.{extension}"));
        let file = path("conf");
        fs::write(&file, text).expect("written");
        let (log, control) = (path("log"), path("ctl"));
        let out = fs::File::create(&log).expect("file");
        let process = host
            .command("bird")
            .args(["-f", "-c"])
            .arg(&file)
            .arg("-s")
            .arg(&control)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .expect("bird starts");
        Self {
            process,
            log,
            control,
        }
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "--- {}\n{}",
                self.log.display(),
                fs::read_to_string(&self.log).unwrap_or_default()
            );
            for what in ["protocols", "route"] {
                let mut command = Command::new("birdc");
                command.arg("-s").arg(&self.control).args(["show", what]);
                let output = command.output().map(|output| output.stdout);
                eprintln!("{}", String::from_utf8_lossy(&output.unwrap_or_default()));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether BIRD is installed.
fn has_bird() -> bool {
    let found = Command::new("bird").arg("--version").output().is_ok();
    if !found {
        requirement::skip("BIRD is missing: install the Debian package bird2");
    }
    found
}

/// Returns the configuration of BIRD at a gateway.
fn gateway_conf(number: u8) -> String {
    let text = include_str!("../../../../packaging/bird/gateway.conf");
    let [v4, v6] = home(number);
    let own = [
        ("10.77.1.0/24", v4.to_owned()),
        ("fd77:0:0:1::/64", v6.to_owned()),
        ("pleach0", TUNNEL.to_owned()),
    ];
    format!("log stderr all;\n{}", filled_in(text, number, &own))
}

/// Returns the configuration of BIRD at the router.
fn router_conf() -> String {
    let text = include_str!("../../../../packaging/bird/router.conf");
    let sessions_at = text.find("protocol bgp").expect("sessions");
    let (common, sessions) = text.split_at(sessions_at);
    let common = common
        .replace("router id 192.0.2.2", "router id 10.98.0.2")
        .replace("10.77.0.0/16", "10.77.0.0/24")
        .replace("fd77::/48", "fd77::/64");
    let of_gateway = |number| {
        let text = sessions.replace("gw1", &format!("gw{number}"));
        filled_in(&text, number, &[])
    };
    let sessions: String = (1..=3).map(of_gateway).collect();
    format!("log stderr all;\n{common}{sessions}")
}

/// Returns a template with the addresses of a gateway and of the router, the networks of all clients, and `more`.
fn filled_in(text: &str, number: u8, more: &[(&str, String)]) -> String {
    let common = [
        ("192.0.2.1", format!("10.98.{number}.1")),
        ("192.0.2.2", format!("10.98.{number}.2")),
        ("2001:db8::1", format!("fd98:{number}::1")),
        ("2001:db8::2", format!("fd98:{number}::2")),
        ("65001", format!("6500{number}")),
    ];
    let networks = [
        ("10.77.0.0/16", "10.77.0.0/24".to_owned()),
        ("fd77::/48", "fd77::/64".to_owned()),
    ];
    for (from, _) in common.iter().chain(more) {
        assert!(text.contains(from), "{from} is in the template");
    }
    let all = more.iter().chain(&common).chain(&networks);
    all.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A TCP connection between a client and the server in which each end sends some Mbit/s and checks what it receives.
struct Transfer {
    is_over: Arc<AtomicBool>,
    /// Bytes that the client has received, and the longest time between two arrivals.
    received: Arc<AtomicU64>,
    gap: Arc<Mutex<(Duration, Instant)>>,
    threads: Vec<JoinHandle<u64>>,
}

impl Transfer {
    fn start(world: &World, client: &Netns, address: &str) -> Self {
        let address = SocketAddr::new(address.parse().expect("literal"), 0);
        let listener = world.server.run(|| Ok(TcpListener::bind(address)?));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let near = within(INTERRUPTION, || {
            connect(client, address, Duration::from_secs(2)).ok()
        })
        .expect("a connection");
        let (far, _) = listener.accept().expect("connected");
        let mut transfer = Self {
            is_over: Arc::default(),
            received: Arc::default(),
            gap: Arc::new(Mutex::new((Duration::ZERO, clock::now()))),
            threads: Vec::new(),
        };
        for (end, counts) in [(&near, true), (&far, false)] {
            end.set_read_timeout(Some(PATIENCE)).expect("set");
            let sending = end.try_clone().expect("a descriptor");
            let over = Arc::clone(&transfer.is_over);
            transfer
                .threads
                .push(thread::spawn(move || send(sending, &over)));
            let receiving = end.try_clone().expect("a descriptor");
            let received = if counts {
                Arc::clone(&transfer.received)
            } else {
                Arc::default()
            };
            let gap = if counts {
                Arc::clone(&transfer.gap)
            } else {
                Arc::new(Mutex::new((Duration::ZERO, clock::now())))
            };
            transfer
                .threads
                .push(thread::spawn(move || receive(receiving, &received, &gap)));
        }
        transfer
    }

    /// Waits for the arrival of further data, then returns the longest gap since the last call.
    fn longest_gap(&self) -> Duration {
        let before = self.received.load(Ordering::Relaxed);
        until("data arrive", || {
            self.received.load(Ordering::Relaxed) > before + 100_000
        });
        let mut gap = self.gap.lock().expect("no panic");
        core::mem::take(&mut gap.0)
    }

    /// Ends the connection, and asserts that all data have arrived.
    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let counts = self.threads.into_iter().map(|thread| thread.join());
        let counts: Vec<u64> = counts.map(|count| count.expect("no panic")).collect();
        assert!(counts[0] > 0 && counts[0] == counts[3], "{counts:?}");
        assert!(counts[2] > 0 && counts[2] == counts[1], "{counts:?}");
    }
}

/// The byte at a position of the data.
const fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send(mut stream: TcpStream, over: &AtomicBool) -> u64 {
    let mut sent = 0_u64;
    while !over.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (sent..sent + 4_000).map(byte_at).collect();
        stream.write_all(&chunk).expect("the connection lasts");
        sent += 4_000;
        thread::park_timeout(Duration::from_millis(10));
    }
    stream
        .shutdown(Shutdown::Write)
        .expect("the connection lasts");
    sent
}

fn receive(mut stream: TcpStream, received: &AtomicU64, gap: &Mutex<(Duration, Instant)>) -> u64 {
    let mut buffer = [0; 65_536];
    loop {
        let len = stream.read(&mut buffer).expect("the connection lasts");
        let before = received.load(Ordering::Relaxed);
        if len == 0 {
            return before;
        }
        let is_same = (before..)
            .zip(&buffer[..len])
            .all(|(at, byte)| byte_at(at) == *byte);
        assert!(is_same, "other bytes arrive");
        received.fetch_add(len as u64, Ordering::Relaxed);
        let mut gap = gap.lock().expect("one thread");
        let now = clock::now();
        *gap = (gap.0.max(now.since(gap.1)), now);
    }
}

/// Datagrams with numbers from a client to the server and back, some hundred a second.
struct Stream {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<BTreeSet<u64>>>,
}

impl Stream {
    fn start(world: &World, client: &Netns) -> Self {
        let far = world.server.run(|| Ok(UdpSocket::bind("10.97.0.2:0")?));
        let far = far.expect("a free port");
        let near = client.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?));
        let near = near.expect("a free port");
        near.connect(far.local_addr().expect("bound"))
            .expect("a route");
        let patience = Some(Duration::from_millis(200));
        for socket in [&far, &near] {
            socket.set_read_timeout(patience).expect("set");
        }
        let is_over = Arc::<AtomicBool>::default();
        let over = [(); 3].map(|()| Arc::clone(&is_over));
        let [over_send, over_echo, over_receive] = over;
        let sender = near.try_clone().expect("a descriptor");
        let sending = thread::spawn(move || {
            let mut sent = BTreeSet::new();
            while !over_send.load(Ordering::Relaxed) {
                let number = sent.len() as u64;
                if sender.send(&number.to_be_bytes()).is_ok() {
                    sent.insert(number);
                }
                thread::park_timeout(Duration::from_millis(3));
            }
            sent
        });
        let echoing = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            let mut buffer = [0; 8];
            loop {
                match far.recv_from(&mut buffer) {
                    Ok((_, from)) => {
                        seen.insert(u64::from_be_bytes(buffer));
                        let _ = far.send_to(&buffer, from);
                    }
                    Err(_) if over_echo.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        let receiving = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            let mut buffer = [0; 8];
            loop {
                match near.recv(&mut buffer) {
                    Ok(_) => {
                        seen.insert(u64::from_be_bytes(buffer));
                    }
                    Err(_) if over_receive.load(Ordering::Relaxed) => return seen,
                    Err(_) => {}
                }
            }
        });
        Self {
            is_over,
            threads: vec![sending, echoing, receiving],
        }
    }

    /// Returns the number of datagrams that were sent, and how many of them were lost on the way there and back.
    fn end(self) -> (usize, usize, usize) {
        self.is_over.store(true, Ordering::Relaxed);
        let numbers = self.threads.into_iter().map(|thread| thread.join());
        let numbers: Vec<BTreeSet<u64>> = numbers.map(|all| all.expect("no panic")).collect();
        let lost_up = numbers[0].difference(&numbers[1]).count();
        let lost_down = numbers[1].difference(&numbers[2]).count();
        (numbers[0].len(), lost_up, lost_down)
    }
}

/// Returns the segments that all TCP connections of a host have sent again.
fn retransmitted(host: &Netns) -> u64 {
    let text = run(host, "ss", &["-tinH"]);
    let numbers = text.split_whitespace().filter_map(|word| {
        let counts = word.strip_prefix("retrans:")?;
        counts.split('/').nth(1)?.parse::<u64>().ok()
    });
    numbers.sum()
}

/// Returns the tables of the three gateways, which are tried in the order `order`.
fn tables(order: [u8; 3]) -> String {
    let table = |(priority, number): (usize, &u8)| {
        let wire = number + 1;
        format!(
            "[[gateway]]\nname = \"gw{number}\"\npriority = {priority}\npublic_key = \"{}\"\n\
             endpoints = [\"10.1.{wire}.2:7700\", \"[fd01:{wire}::2]:7700\"]\n\
             allowed_ips = [\"10.77.0.0/24\", \"10.97.0.0/24\", \"fd77::/64\", \"fd97::/64\"]\n",
            keys(*number).public
        )
    };
    order.iter().enumerate().map(table).collect()
}

/// Returns the name of the gateway in use; empty if the tunnel is down.
fn used(status: &Value) -> String {
    let gateways = status["gateways"].as_array().cloned().unwrap_or_default();
    let used = gateways.iter().find(|gateway| gateway["used"] == true);
    let name = used.filter(|_| status["up"] == true);
    name.and_then(|gateway| gateway["name"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Returns the destinations of the router's routes that BIRD has set, without those of home networks.
fn single_routes(world: &World) -> BTreeSet<String> {
    let text = ["-4", "-6"].map(|family| {
        run(
            &world.server,
            "ip",
            &[family, "route", "show", "proto", "bird"],
        )
    });
    let text = text.concat();
    let destinations = text.lines().filter_map(|line| line.split(' ').next());
    let single = destinations.filter(|to| to.starts_with("10.77.") || to.starts_with("fd77:"));
    single
        .filter(|to| !to.contains('/'))
        .map(str::to_owned)
        .collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Everything of the test: the sites are in the order of their numbers.
struct Fleet {
    world: World,
    database: Server,
    _router: Bird,
    sites: Vec<Site>,
    hosts: [Netns; 3],
    clients: [Daemon; 3],
}

impl Fleet {
    fn start() -> Option<Self> {
        if !has_bird() {
            return None;
        }
        let world = World::new()?;
        let database = Server::start()?;
        let settings = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
        for host in [&world.gateway, &world.server] {
            host.sysctl(&settings).expect("settings");
        }
        world
            .server
            .ip("addr add 10.97.0.2/32 dev lo\naddr add fd97::2/128 dev lo nodad\n")
            .expect("server");
        let connection = database.database("fleet");
        let sites: Vec<Site> = (1..=3)
            .map(|number| Site::start(&world, number, &connection))
            .collect();
        let router = Bird::start(&world, &world.server, "router", &router_conf());
        for site in &sites {
            let number = site.number;
            site.host
                .ip(&format!(
                    "route add 10.97.0.2 via 10.98.{number}.2\n\
                     -6 route add fd97::2 via fd98:{number}::2\n"
                ))
                .expect("routes");
        }
        let hosts = [world.client.clone(), world.another(5), world.another(6)];
        for (name, key) in [(2, 2), (3, 3), (9, 6)] {
            let key = &Keys::client(key).public;
            let (text, is_done) = sites[0].does(&format!(
                "add c{name} --public-key {key} --address 10.77.0.{name}/32,fd77::{name}/128"
            ));
            assert!(is_done, "{text}");
        }
        let start = |host: &Netns, name, key, links: &[&str], order| {
            Client {
                host: name,
                keys: Keys::client(key),
                gateways: Some(&tables(order)),
                more_tunnel: "gateway_return = 5\nsplit_tcp = \"off\"\n",
                policy: "adaptive",
                links,
                ..Client::default()
            }
            .start(&world, host)
        };
        let clients = [
            start(&hosts[0], 2, 2, &["l0", "l1"], [1, 2, 3]),
            start(&hosts[1], 3, 3, &["l5"], [1, 2, 3]),
            start(&hosts[2], 9, 6, &["l6"], [2, 3, 1]),
        ];
        for (client, wanted) in clients.iter().zip(["gw1", "gw1", "gw2"]) {
            client.until("it is at home", |status| used(status) == wanted);
        }
        until("the router knows all home networks", || {
            let text = run(&world.server, "ip", &["route", "show", "proto", "bird"]);
            let v6 = run(
                &world.server,
                "ip",
                &["-6", "route", "show", "proto", "bird"],
            );
            (1..=3).all(|number| {
                let [home_v4, home_v6] = home(number);
                text.contains(home_v4) && v6.contains(home_v6)
            })
        });
        Some(Self {
            world,
            database,
            _router: router,
            sites,
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
            single_routes(&self.world) == wanted
        });
    }

    fn transfers(&self) -> Vec<Transfer> {
        let pairs = self
            .hosts
            .iter()
            .flat_map(|host| ["10.97.0.2", "fd97::2"].map(|to| (host, to)));
        pairs
            .map(|(host, to)| Transfer::start(&self.world, host, to))
            .collect()
    }
}

#[test]
fn clients_move_when_a_gateway_is_killed_or_drained_and_stay_when_the_store_is_away() {
    let Some(mut fleet) = Fleet::start() else {
        return;
    };
    assert_eq!(single_routes(&fleet.world), BTreeSet::new());
    let transfers = fleet.transfers();
    let gaps = |transfers: &[Transfer]| -> Vec<Duration> {
        transfers.iter().map(Transfer::longest_gap).collect()
    };
    gaps(&transfers);

    // A gateway is killed.
    let killed_at = clock::now();
    fleet.sites[0].daemon.kill();
    let moved = ["10.77.0.2", "10.77.0.3", "fd77::2", "fd77::3"];
    fleet.until_at(2, &moved);
    let time = clock::now().since(killed_at);
    let longest = gaps(&transfers);
    eprintln!(
        "killed: all clients are routed by another gateway after {time:?}; gaps of downloads: {longest:?}"
    );
    assert!(longest.iter().all(|gap| *gap < INTERRUPTION), "{longest:?}");
    assert_eq!(fleet.sites[0].own_routes(), "");
    assert_eq!(fleet.sites[1].own_routes().lines().count(), 4);
    until("the store knows where the clients are", || {
        let (text, _) = fleet.sites[2].does("clients --json");
        let clients: Value = serde_json::from_str(&text).unwrap_or_default();
        let clients = clients["clients"].as_array().cloned().unwrap_or_default();
        clients.len() == 3 && clients.iter().all(|client| client["gateway"] == "gw2")
    });

    // The other one is drained: not one packet is lost.
    let before = [
        &fleet.world.server,
        &fleet.hosts[0],
        &fleet.hosts[1],
        &fleet.hosts[2],
    ]
    .map(retransmitted);
    let streams: Vec<Stream> = fleet
        .hosts
        .iter()
        .map(|host| Stream::start(&fleet.world, host))
        .collect();
    let (text, is_done) = fleet.sites[1].does("drain --timeout 40s");
    assert!(is_done && text.contains("No client is connected"), "{text}");
    let status = fleet.sites[1].daemon.status().expect("it runs");
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
    assert_eq!(fleet.sites[1].own_routes(), "");
    assert_eq!(fleet.sites[2].connected(), names(&["c2", "c3", "c9"]));
    let longest = gaps(&transfers);
    let lost: Vec<_> = streams.into_iter().map(Stream::end).collect();
    let after = [
        &fleet.world.server,
        &fleet.hosts[0],
        &fleet.hosts[1],
        &fleet.hosts[2],
    ]
    .map(retransmitted);
    eprintln!(
        "drained: gaps of downloads: {longest:?}; datagrams sent, lost to and from the server: {lost:?}; \
         segments that TCP has sent again before and after: {before:?} {after:?}"
    );
    assert!(lost.iter().all(|(_, up, down)| up + down == 0), "{lost:?}");

    // The database goes away: connections last, and nothing is assigned.
    fleet.database.stop();
    fleet.sites[2].daemon.until("it is noticed", |status| {
        status["store"]["trouble"].is_string()
    });
    assert!(!fleet.sites[2].does("add c4 --public-key hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo= --address 10.77.0.2/32").1);
    gaps(&transfers);
    let (text, is_done) = fleet.sites[1].does("drain --off");
    assert!(is_done, "{text}");
    // A gateway that knows its former clients takes them while the database is away: c9 returns home.
    fleet.clients[2].until("it is at home", |status| used(status) == "gw2");
    gaps(&transfers);
    fleet.database.start_again();
    until("the store knows where the client is", || {
        let (text, _) = fleet.sites[2].does("clients --json");
        let clients: Value = serde_json::from_str(&text).unwrap_or_default();
        let clients = clients["clients"].as_array().cloned().unwrap_or_default();
        let mut clients = clients.iter();
        clients.any(|client| client["name"] == "c9" && client["gateway"] == "gw2")
    });
    transfers.into_iter().for_each(Transfer::end);
    fleet.sites[2].daemon.stop();
    assert_eq!(fleet.sites[2].own_routes(), "");
}
