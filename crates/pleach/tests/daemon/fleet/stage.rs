//! The world of a fleet: three gateways with BIRD, PostgreSQL and BIRD at the router behind them.
//!
//! The database is on the router's host, which gateways reach over TLS with a password.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use pleach_lab::netns::Netns;
use pleach_linux::requirement;
use serde_json::Value;

use crate::{
    database::{PASSWORD, Server},
    process::{Daemon, Keys, TUNNEL},
    world::{World, run, until},
};

/// The addresses of a fleet.
pub(super) struct Plan {
    /// Networks of all clients, IPv4 and IPv6.
    pub(super) all: [&'static str; 2],
    /// Home networks of the gateways.
    homes: [[&'static str; 2]; 3],
}

/// A plan for the clients 10.77.0.1 to 10.77.0.23.
pub(super) const SMALL: Plan = Plan {
    all: ["10.77.0.0/24", "fd77::/64"],
    homes: [
        ["10.77.0.0/29", "fd77::/125"],
        ["10.77.0.8/29", "fd77::8/125"],
        ["10.77.0.16/29", "fd77::10/125"],
    ],
};

/// A plan for 254 clients at each gateway.
pub(super) const LARGE: Plan = Plan {
    all: ["10.77.0.0/16", "fd77::/48"],
    homes: [
        ["10.77.1.0/24", "fd77:0:0:1::/64"],
        ["10.77.2.0/24", "fd77:0:0:2::/64"],
        ["10.77.3.0/24", "fd77:0:0:3::/64"],
    ],
};

impl Plan {
    fn home(&self, number: u8) -> [&'static str; 2] {
        self.homes[usize::from(number) - 1]
    }

    /// Returns the tables of the three gateways for a client's file, which are tried in the order `order`.
    pub(super) fn tables(&self, order: [u8; 3]) -> String {
        let [v4, v6] = self.all;
        let table = |(priority, number): (usize, &u8)| {
            let wire = number + 1;
            format!(
                "[[gateway]]\nname = \"gw{number}\"\npriority = {priority}\npublic_key = \"{}\"\n\
                 endpoints = [\"10.1.{wire}.2:7700\", \"[fd01:{wire}::2]:7700\"]\n\
                 allowed_ips = [\"{v4}\", \"10.97.0.0/24\", \"{v6}\", \"fd97::/64\"]\n",
                keys(*number).public
            )
        };
        order.iter().enumerate().map(table).collect()
    }

    /// Returns a configuration of BIRD with the networks of all clients.
    fn networks_in(&self, text: &str) -> String {
        let [v4, v6] = self.all;
        text.replace("10.77.0.0/16", v4).replace("fd77::/48", v6)
    }
}

fn keys(number: u8) -> &'static Keys {
    match number {
        1 => Keys::gateway(),
        _ => Keys::client(number + 2),
    }
}

/// A gateway of the fleet.
pub(super) struct Site {
    number: u8,
    pub(super) host: Netns,
    dir: PathBuf,
    pub(super) daemon: Daemon,
    _bird: Bird,
}

impl Site {
    /// Connects a gateway's host to the router, and starts its daemons.
    fn start(world: &World, plan: &Plan, number: u8, workers: u8, database: &Database<'_>) -> Self {
        let host = world.another_gateway(number);
        host.ip(&format!(
            "route add 10.97.0.2 via 10.98.{number}.2\n\
             -6 route add fd97::2 via fd98:{number}::2\n"
        ))
        .expect("routes");
        let dir = world.dir.path().join(format!("gw{number}"));
        fs::create_dir(&dir).expect("directory");
        let file = dir.join("gateway.toml");
        let control = dir.join("gateway.sock");
        let [v4, v6] = plan.home(number);
        let text = format!(
            "mode = \"gateway\"\n\
             [tunnel]\nname = \"{TUNNEL}\"\naddress = [\"10.77.0.25{number}/32\", \"fd77::f{number}/128\"]\n\
             private_key = \"{}\"\nlisten = \"[::]:7700\"\nnat = false\nsplit_tcp = \"off\"\ncontrol = {control:?}\n\
             workers = {workers}\n\
             [scheduler]\npolicy = \"adaptive\"\n\
             [clients]\nsource = \"postgres\"\nstore = \"{}\"\nwrite_every = \"1s\"\n\
             password_file = \"database.password\"\nca_file = {:?}\nnetworks = {:?}\n\
             [fleet]\nname = \"gw{number}\"\nhome = [\"{v4}\", \"{v6}\"]\n",
            keys(number).private,
            database.store,
            database.authority,
            plan.all,
        );
        for (file, text) in [(&file, &*text), (&dir.join("database.password"), PASSWORD)] {
            fs::write(file, text).expect("written");
            fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("our file");
        }
        let conf = gateway_conf(plan, number);
        let bird = Bird::start(world, &host, &format!("gw{number}"), &conf);
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

    /// The name of the gateway.
    pub(super) fn name(&self) -> String {
        format!("gw{}", self.number)
    }

    /// Runs `pleach gateway ARGUMENTS`. Returns its output, and whether it succeeds.
    pub(super) fn does(&self, arguments: &str) -> (String, bool) {
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

    /// Returns the names of the clients that are connected to this gateway.
    pub(super) fn connected(&self) -> BTreeSet<String> {
        let status = self.daemon.status().unwrap_or_default();
        let clients = status["clients"].as_array().cloned().unwrap_or_default();
        let up = clients.iter().filter(|client| client["up"] == true);
        up.filter_map(|client| client["name"].as_str().map(str::to_owned))
            .collect()
    }

    /// Asks the store, by `pleach gateway clients` of this gateway, at which gateway each client has connected last.
    pub(super) fn places(&self) -> BTreeMap<String, String> {
        let (text, _) = self.does("clients --json");
        let listed: Value = serde_json::from_str(&text).unwrap_or_default();
        let clients = listed["clients"].as_array().cloned().unwrap_or_default();
        let place = |client: &Value| {
            let text = |key: &str| client[key].as_str().map(str::to_owned);
            Some((text("name")?, text("gateway")?))
        };
        clients.iter().filter_map(place).collect()
    }

    /// Returns the routes to single clients that the gateway has set.
    pub(super) fn own_routes(&self) -> String {
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

/// How the gateways reach the database.
struct Database<'a> {
    store: &'a str,
    authority: &'a Path,
}

/// A routing daemon, which is killed when dropped. What it knows is printed if the test fails.
pub(super) struct Bird {
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

    /// Returns the answer of the daemon to `show WHAT`.
    fn shows(&self, what: &str) -> String {
        let mut command = Command::new("birdc");
        command.arg("-s").arg(&self.control).args(["show", what]);
        let output = command.output().map(|output| output.stdout);
        String::from_utf8_lossy(&output.unwrap_or_default()).into_owned()
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
            eprintln!("{}\n{}", self.shows("protocols"), self.shows("route"));
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
fn gateway_conf(plan: &Plan, number: u8) -> String {
    let text = include_str!("../../../../../packaging/bird/gateway.conf");
    let [v4, v6] = plan.home(number);
    let own = [
        ("10.77.1.0/24", v4.to_owned()),
        ("fd77:0:0:1::/64", v6.to_owned()),
        ("pleach0", TUNNEL.to_owned()),
    ];
    let text = filled_in(text, number, &own);
    format!("log stderr all;\n{}", plan.networks_in(&text))
}

/// Returns the configuration of BIRD at the router.
fn router_conf(plan: &Plan) -> String {
    let text = include_str!("../../../../../packaging/bird/router.conf");
    let sessions_at = text.find("protocol bgp").expect("sessions");
    let (common, sessions) = text.split_at(sessions_at);
    let common = common.replace("router id 192.0.2.2", "router id 10.98.0.2");
    let of_gateway = |number| {
        let text = sessions.replace("gw1", &format!("gw{number}"));
        filled_in(&text, number, &[])
    };
    let sessions: String = (1..=3).map(of_gateway).collect();
    format!("log stderr all;\n{}{sessions}", plan.networks_in(&common))
}

/// Returns a template with the addresses of a gateway and of the router, and `more`.
fn filled_in(text: &str, number: u8, more: &[(&str, String)]) -> String {
    let common = [
        ("192.0.2.1", format!("10.98.{number}.1")),
        ("192.0.2.2", format!("10.98.{number}.2")),
        ("2001:db8::1", format!("fd98:{number}::1")),
        ("2001:db8::2", format!("fd98:{number}::2")),
        ("65001", format!("6500{number}")),
    ];
    for (from, _) in common.iter().chain(more) {
        assert!(text.contains(from), "{from} is in the template");
    }
    let all = more.iter().chain(&common);
    all.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Everything of a fleet but its clients. The sites are in the order of their numbers.
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) database: Server,
    router: Bird,
    pub(super) sites: Vec<Site>,
}

/// Address of the server that clients reach, and of the database.
pub(super) const SERVER: [&str; 2] = ["10.97.0.2", "fd97::2"];
/// Name of the database.
pub(super) const DATABASE: &str = "fleet";

impl Stage {
    /// Starts the database, the gateways with `workers` data threads each, and the router, and waits until the router
    /// knows all home networks. `None` if something is missing here.
    pub(super) fn start(plan: &Plan, workers: u8) -> Option<Self> {
        if !has_bird() {
            return None;
        }
        let world = World::new()?;
        let settings = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
        for host in [&world.gateway, &world.server] {
            host.sysctl(&settings).expect("settings");
        }
        let [v4, v6] = SERVER;
        world
            .server
            .ip(&format!(
                "addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n"
            ))
            .expect("server");
        let database = Server::start_remote(Some(&world.server), &SERVER)?;
        let store = database.remote_database(DATABASE, v4);
        let reached = Database {
            store: &store,
            authority: &database.authority(),
        };
        let sites: Vec<Site> = (1..=3)
            .map(|number| Site::start(&world, plan, number, workers, &reached))
            .collect();
        let router = Bird::start(&world, &world.server, "router", &router_conf(plan));
        let this = Self {
            world,
            database,
            router,
            sites,
        };
        until("the router knows all home networks", || {
            let text = this.routes();
            plan.homes.iter().flatten().all(|home| text.contains(home))
        });
        Some(this)
    }

    /// Returns the routes that BIRD has set at the router.
    fn routes(&self) -> String {
        ["-4", "-6"]
            .map(|family| {
                run(
                    &self.world.server,
                    "ip",
                    &[family, "route", "show", "proto", "bird"],
                )
            })
            .concat()
    }

    /// Returns the destinations of the router's routes to single clients.
    pub(super) fn single_routes(&self) -> BTreeSet<String> {
        let text = self.routes();
        let destinations = text.lines().filter_map(|line| line.split(' ').next());
        let single = destinations.filter(|to| to.starts_with("10.77.") || to.starts_with("fd77:"));
        single
            .filter(|to| !to.contains('/'))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the addresses of single clients that more than one gateway announces to the router.
    pub(super) fn announced_twice(&self) -> BTreeSet<String> {
        let (mut once, mut twice) = (BTreeSet::new(), BTreeSet::new());
        let mut last = "";
        let text = self.router.shows("route");
        for line in text.lines().filter(|line| line.contains("unicast [")) {
            // Further routes to the same destination do not repeat it.
            if !line.starts_with(' ') {
                last = line.split(' ').next().unwrap_or_default();
            }
            let is_single = last.ends_with("/32") || last.ends_with("/128");
            if is_single && !once.insert(last) {
                twice.insert(last.to_owned());
            }
        }
        twice
    }

    /// Returns the clients that are connected to more than one gateway.
    pub(super) fn connected_twice(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let all = self.sites.iter().flat_map(Site::connected);
        all.filter(|name| !seen.insert(name.clone())).collect()
    }
}
