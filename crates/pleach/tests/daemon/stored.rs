//! Clients of a gateway from an SQLite store: added, capped, counted and removed while the gateway runs.

mod away;

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::clock;
use serde_json::Value;

use crate::{
    database::{PASSWORD, Server},
    process::{Client, Daemon, Keys, TUNNEL, feed},
    service::{self, Service},
    traffic::{Target, tcp},
    world::{PATIENCE, World, ping, run, until},
};

/// A gateway with a store, and the commands that change the store.
struct Provider {
    host: Netns,
    dir: PathBuf,
}

impl Provider {
    /// Writes the gateway's file, with an SQLite store.
    fn new(world: &World) -> Self {
        Self::with(world, "source = \"sqlite\"\nstore = \"clients.db\"")
    }

    /// Writes the gateway's file, with the store of `source`.
    fn with(world: &World, source: &str) -> Self {
        let dir = world.dir.path().join("provider");
        fs::create_dir(&dir).expect("directory");
        let text = format!(
            "mode = \"gateway\"\n\
             [tunnel]\nname = \"{TUNNEL}\"\naddress = [\"10.77.0.1/24\", \"fd77::1/64\"]\n\
             private_key = \"{}\"\nlisten = \"[::]:7700\"\nnat = true\n\
             control = {:?}\nsplit_tcp = \"off\"\n\
             [scheduler]\npolicy = \"earliest-arrival\"\n\
             [clients]\n{source}\nwrite_every = \"1s\"\n",
            Keys::gateway().private,
            dir.join("gateway.sock").display().to_string(),
        );
        let file = dir.join("gateway.toml");
        fs::write(&file, text).expect("written");
        run(
            &world.gateway,
            "chmod",
            &["600", &file.display().to_string()],
        );
        Self {
            host: world.gateway.clone(),
            dir,
        }
    }

    /// Returns the lines of `[clients]` for a new database of a server on another host; see [`Self::put_password`].
    fn remote(server: &Server, name: &str, address: &str) -> String {
        format!(
            "source = \"postgres\"\nstore = \"{}\"\npassword_file = \"database.password\"\nca_file = {:?}",
            server.remote_database(name, address),
            server.authority()
        )
    }

    /// Writes the file with the password of the database.
    fn put_password(&self, password: &str) {
        let file = self.dir.join("database.password");
        fs::write(&file, format!("{password}\n")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("owned");
    }

    fn start(&self) -> Daemon {
        let path = |name: &str| self.dir.join(name);
        Daemon::with_file(&self.host, path("gateway.toml"), path("gateway.sock"))
    }

    /// Runs `pleach gateway ARGUMENTS`, which must succeed. Returns its output.
    #[track_caller]
    fn does(&self, arguments: &str) -> String {
        let dir = self.dir.display().to_string();
        let mut all = vec!["gateway"];
        all.extend(arguments.split_whitespace());
        all.extend(["--dir", &dir]);
        run(&self.host, env!("CARGO_BIN_EXE_pleach"), &all)
    }

    /// Adds the client whose inner addresses end in `host`.
    #[track_caller]
    fn add(&self, host: u8) {
        let key = &Keys::client(host).public;
        self.does(&format!(
            "add c{host} --public-key {key} --address 10.77.0.{host}/32,fd77::{host}/128"
        ));
    }

    /// Changes the store as another program would.
    fn sql(&self, text: &str) {
        let store = rusqlite::Connection::open(self.store()).expect("opens");
        store.busy_timeout(PATIENCE).expect("set");
        store.execute_batch(text).expect("valid SQL");
    }

    fn store(&self) -> PathBuf {
        self.dir.join("clients.db")
    }

    /// Returns the bytes of `client` in the store, from and to it.
    fn usage(&self, client: &str) -> [u64; 2] {
        let text = self.does("clients --csv");
        let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let row = rows.find(|row| row[0] == client);
        let number = |at: usize| {
            row.as_ref()
                .map_or(0, |row| row[at].parse().expect("bytes"))
        };
        [number(1), number(2)]
    }
}

fn refused(status: &Value, reason: &str) -> u64 {
    status["store"]["refused"][reason].as_u64().unwrap_or(0)
}

fn is_up(status: &Value, name: &str) -> bool {
    let clients = status["clients"].as_array().into_iter().flatten();
    clients
        .filter(|client| client["name"] == name)
        .any(|client| client["up"] == true)
}

/// Starts the client whose inner addresses end in `number`, on `host` with one link.
fn other(world: &World, host: &Netns, number: u8, link: &str) -> Daemon {
    Client {
        host: number,
        keys: Keys::client(number),
        links: &[link],
        ..Client::default()
    }
    .start(world, host)
}

#[test]
fn clients_come_and_go_with_their_rows() {
    let Some(world) = World::new() else { return };
    let provider = Provider::new(&world);
    let gateway = provider.start();
    gateway.until_up();
    let first = Client::default().start(&world, &world.client);
    gateway.until("a client without a row is refused and counted", |status| {
        refused(status, "unknown") > 0
    });
    assert!(!first.status().is_some_and(|status| status["up"] == true));

    // The client connects without a reload of the gateway.
    provider.add(2);
    first.until_links_up(&["l0", "l1"]);
    let reaches = |what: &str| {
        assert!(ping(&world.client, &["10.99.0.2"], PATIENCE), "{what}");
    };
    reaches("after it was added");
    let listed: Value = serde_json::from_str(&provider.does("clients --json")).expect("JSON");
    let listed = &listed["clients"][0];
    assert_eq!(
        (&listed["name"], &listed["state"]),
        (&"c2".into(), &"stored".into())
    );
    assert_eq!(listed["connected"], true);

    // While the store is away, the known client is unaffected, and a new one is refused.
    provider.add(3);
    let away = provider.dir.join("away.db");
    fs::rename(provider.store(), &away).expect("moved");
    gateway.until("the store is missed", |status| {
        status["store"]["trouble"]
            .as_str()
            .is_some_and(|text| text.contains("clients.db"))
    });
    let second = other(&world, &world.another(2), 3, "l2");
    gateway.until("a new client is refused and counted", |status| {
        refused(status, "unreadable") > 0
    });
    reaches("while the store is away");
    assert!(!provider.store().exists(), "no empty store hides the loss");
    fs::rename(&away, provider.store()).expect("moved back");
    second.until_links_up(&["l2"]);

    // An address that another client has is not assigned again.
    let key = &Keys::client(4).public;
    provider.sql(&format!(
        "INSERT INTO clients (name, public_key, allowed_ips) VALUES ('c4', '{key}', '10.77.0.3/32')"
    ));
    let _third = other(&world, &world.another(3), 4, "l3");
    let status = gateway.until("the clash is counted", |status| {
        refused(status, "clash") > 0
    });
    assert!(is_up(&status, "c3") && is_up(&status, "c2"));

    // A removed client is disconnected, and refused from then on.
    provider.sql("DELETE FROM clients WHERE name = 'c2'");
    let (removed_at, before) = (clock::now(), refused(&status, "unknown"));
    gateway.until("the client is disconnected", |status| !is_up(status, "c2"));
    println!("disconnected after {:?}", clock::now().since(removed_at));
    gateway.until("it is refused", |status| {
        refused(status, "unknown") > before
    });
    first.until("it notices", |status| status["up"] == false);
    let status = gateway.until_up();
    assert_eq!(status["store"]["removed"], 1);
    assert!(is_up(&status, "c3"), "the others stay");
    provider.does("remove c3");
    gateway.until("also by the command", |status| !is_up(status, "c3"));
}

#[test]
fn a_database_that_goes_away_disconnects_nobody_and_is_asked_again_when_it_is_back() {
    let Some(world) = World::new() else { return };
    let Some(mut server) = Server::start() else {
        return;
    };
    let source = format!(
        "source = \"postgres\"\nstore = \"{}\"",
        server.database("clients")
    );
    let provider = Provider::with(&world, &source);
    let gateway = provider.start();
    gateway.until_up();
    provider.add(2);
    let _client = Client::default().start(&world, &world.client);
    gateway.until("the client is found in the database", |status| {
        is_up(status, "c2")
    });
    server.stop();
    gateway.until("the trouble is told", |status| {
        let trouble = status["store"]["trouble"].as_str().unwrap_or_default();
        trouble.contains("dbname=clients")
    });
    let reaches = ping(&world.client, &["10.77.0.1"], PATIENCE);
    assert!(reaches, "a known client is served");
    server.start_again();
    gateway.until("the database is read again", |status| {
        status["store"]["trouble"].is_null() && is_up(status, "c2")
    });
    // Another program removes the client.
    let mut other = server.client("clients").expect("connected");
    let removed = other.execute("DELETE FROM pleach.clients WHERE name = 'c2'", &[]);
    assert_eq!(removed.expect("valid SQL"), 1);
    gateway.until("the client is disconnected", |status| !is_up(status, "c2"));
}

#[test]
fn a_database_on_another_host_is_asked_over_tls_with_a_password() {
    let Some(world) = World::new() else { return };
    let Some(mut server) = Server::start_remote(Some(&world.server), &["10.99.0.2", "fd99::2"])
    else {
        return;
    };
    let (authority, other) = (server.authority(), server.other_authority());
    let source = Provider::remote(&server, "clients", "fd99::2");
    let provider = Provider::with(&world, &source);
    let file = provider.dir.join("gateway.toml");
    let with_authority = |authority: &Path| {
        let text = fs::read_to_string(&file).expect("written before");
        let lines = text.lines().filter(|line| !line.starts_with("ca_file"));
        let mut text: String = lines.map(|line| format!("{line}\n")).collect();
        // [clients] is the last table.
        text.push_str(&format!("ca_file = {authority:?}\n"));
        fs::write(&file, text).expect("written");
    };
    // A gateway that cannot begin to use its database ends, and says why.
    let refused = |words: [&str; 2]| {
        let mut pleach = world.gateway.command(env!("CARGO_BIN_EXE_pleach"));
        let output = pleach.arg("up").arg(&file).output().expect("starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(
            !text.contains(PASSWORD) && !text.contains("mistaken"),
            "{text}"
        );
    };
    provider.put_password("mistaken");
    refused(["password authentication failed", "[clients] password_file"]);
    provider.put_password(PASSWORD);
    with_authority(&other);
    refused(["UnknownIssuer", "[clients] ca_file"]);
    with_authority(&authority);

    let gateway = provider.start();
    gateway.until_up();
    provider.add(2);
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let trouble_is = |words: [&str; 2]| {
        gateway.until(words[0], |status| {
            let trouble = status["store"]["trouble"].as_str().unwrap_or_default();
            words.iter().all(|word| trouble.contains(word))
        });
        let reaches = ping(&world.client, &["10.99.0.2"], PATIENCE);
        assert!(reaches, "a known client is served: {}", words[0]);
    };
    // The server is started again with another password, and then without TLS.
    server.set_password("another");
    server.stop();
    server.start_again();
    trouble_is(["password authentication failed", "[clients] password_file"]);
    server.set_password(PASSWORD);
    server.stop();
    server.start_again_with_tls(false);
    trouble_is(["does not support TLS", "ssl = on"]);
    server.stop();
    server.start_again_with_tls(true);
    gateway.until("the database is read again", |status| {
        status["store"]["trouble"].is_null() && is_up(status, "c2")
    });
    provider.does("remove c2");
    gateway.until("the client is disconnected", |status| !is_up(status, "c2"));
    let log = gateway.log();
    assert!(
        log.contains("cannot be read") && !log.contains(PASSWORD),
        "{log}"
    );
}

#[test]
fn a_service_is_asked_by_http_and_a_restart_needs_none() {
    let Some(world) = World::new() else { return };
    let listener = world.gateway.run(|| Ok(TcpListener::bind("[::1]:0")?));
    let service = Service::start(listener.expect("a free port"), |stream| stream);
    let source = format!(
        "source = \"http\"\nstore = \"{}\"\ntoken_file = \"token\"\ncache = \"answers.db\"",
        service.store("http")
    );
    let provider = Provider::with(&world, &source);
    let token = provider.dir.join("token");
    fs::write(&token, service::TOKEN).expect("written");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("owned");
    let put = |host: u8, nets: &[&str]| {
        service.put(&Keys::client(host).public, &format!("c{host}"), nets);
    };
    put(2, &["10.77.0.2", "fd77::2"]);
    let mut gateway = provider.start();
    let first = Client::default().start(&world, &world.client);
    first.until_links_up(&["l0", "l1"]);
    let reaches = |what: &str| {
        assert!(ping(&world.client, &["10.99.0.2"], PATIENCE), "{what}");
    };
    reaches("after the service has named it");
    let second = other(&world, &world.another(2), 3, "l2");
    gateway.until("an unknown client is refused", |status| {
        refused(status, "unknown") > 0
    });
    // Its address belongs to another client.
    put(3, &["10.77.0.2"]);
    gateway.until("the clash is counted", |status| {
        refused(status, "clash") > 0
    });
    until("the bytes are counted", || provider.usage("c2")[0] > 0);
    let listed = provider.does("clients");
    assert!(
        listed.contains("c2") && listed.contains("10.77.0.2"),
        "{listed}"
    );
    let add = format!(
        "add c4 --address 10.77.0.4/32 --public-key {}",
        Keys::client(4).public
    );
    for command in [&add, "invite c4", "remove c2", "cap c2"] {
        let mut pleach = world.gateway.command(env!("CARGO_BIN_EXE_pleach"));
        pleach.arg("gateway").args(command.split(' '));
        let output = pleach.arg("--dir").arg(&provider.dir).output();
        let output = output.expect("started");
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_refused = !output.status.success() && errors.contains("service http://[::1]");
        assert!(is_refused, "{command}: {errors}");
    }

    // While the service is away, a gateway that has just started serves the clients that it knew.
    service.state().is_away = true;
    gateway.until("the trouble is told", |status| {
        let trouble = status["store"]["trouble"].as_str().unwrap_or_default();
        trouble.contains("http://[::1]")
    });
    reaches("while the service is away");
    gateway.kill();
    gateway.start_again();
    gateway.until("the known client is back", |status| is_up(status, "c2"));
    reaches("after a restart without the service");
    put(3, &["10.77.0.3", "fd77::3"]);
    gateway.until("others are refused", |status| {
        refused(status, "unreadable") > 0
    });
    service.state().is_away = false;
    second.until_links_up(&["l2"]);

    service.remove(&Keys::client(2).public);
    let removed_at = clock::now();
    let status = gateway.until("the client is disconnected", |status| !is_up(status, "c2"));
    let took = clock::now().since(removed_at);
    println!("disconnected after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(is_up(&status, "c3"), "the other stays: {status}");
}

#[test]
fn invitations_are_in_the_store_too() {
    let Some(world) = World::new() else { return };
    let provider = Provider {
        host: world.gateway.clone(),
        dir: world.dir.path().join("provider"),
    };
    provider.does("init --store --no-start");
    let again = provider.does("init --store --no-start");
    assert!(again.contains("already"), "{again}");
    let gateway = provider.start();
    gateway.until_up();
    let text = provider.does("invite home");
    let token = text.lines().next().expect("a line").to_owned();
    assert!(provider.does("clients").contains("invited"));
    let dir = world.dir.path().join("joined");
    let mut join = world.client.command(env!("CARGO_BIN_EXE_pleach"));
    join.args(["join", "--no-start", "--dir"]).arg(&dir);
    let joined = feed(join, &token);
    let errors = String::from_utf8_lossy(&joined.stderr);
    assert!(joined.status.success(), "{errors}");
    let clients = provider.does("clients --json");
    assert!(
        clients.contains("\"stored\"") && !clients.contains("invited"),
        "{clients}"
    );
    let path = |name: &str| dir.join(name);
    let client = Daemon::with_file(&world.client, path("client.toml"), path("client.sock"));
    client.until_links_up(&["l0", "l1"]);
    assert!(ping(&world.client, &["10.99.0.2"], PATIENCE));
    provider.does("remove home");
    client.until("it is disconnected", |status| status["up"] == false);
    assert!(!provider.does("clients").contains("home"));
}

#[test]
fn caps_change_without_a_new_session() {
    let Some(world) = World::new() else { return };
    let provider = Provider::new(&world);
    provider.add(2);
    let gateway = provider.start();
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    provider.does("cap c2 --rate-up 8Mbit --rate-down 16Mbit");
    gateway.until("the caps are in force", |status| {
        status["clients"][0]["rate_up_mbps"] == 8.0
            && status["clients"][0]["rate_down_mbps"] == 16.0
    });
    let begin = clock::now();
    let server = Target::new(&world.server, "10.99.0.2");
    // 2 MB up and then 2 MB down take 2 s and 1 s at the caps, however fast the links are.
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
    let time = clock::now().since(begin);
    assert!(time >= Duration::from_millis(2_900), "{time:?}");
    let status = gateway.until_up();
    assert!(is_up(&status, "c2"), "{status}");
    provider.does("cap c2");
    gateway.until("the caps are removed", |status| {
        status["clients"][0]["rate_up_mbps"].is_null()
    });
    assert!(is_up(&gateway.until_up(), "c2"));
}

/// Datagrams between a client and a server behind the gateway, a thousand a second in each direction, until dropped.
struct Chatter {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Chatter {
    fn start(client: &Netns, server: &Netns) -> Self {
        let bound = server.run(|| Ok(UdpSocket::bind("10.99.0.2:0")?));
        let echo = bound.expect("a free port");
        let address = echo.local_addr().expect("bound");
        echo.set_read_timeout(Some(Duration::from_millis(50)))
            .expect("set");
        let opened = client.run(|| Ok(UdpSocket::bind("0.0.0.0:0")?));
        let socket = opened.expect("a free port");
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let echoing = thread::spawn(move || {
            let mut datagram = [0; 2000];
            while !over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = echo.recv_from(&mut datagram) {
                    let _ = echo.send_to(&datagram[..len], from);
                }
            }
        });
        let over = Arc::clone(&is_over);
        let sending = thread::spawn(move || {
            // Datagrams differ in their lengths and in the hops that they may take, so that no two are merged, which would hide
            // headers.
            for number in (0..u16::MAX).cycle() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                socket.set_ttl(64 + u32::from(number % 64)).expect("set");
                // Unreachable while the tunnel is down.
                let _ = socket.send_to(&[7; 1200][..600 + usize::from(number % 600)], address);
                thread::park_timeout(Duration::from_millis(1));
            }
        });
        let threads = vec![echoing, sending];
        Self { is_over, threads }
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Counts what a host's kernel gets from the tunnel and gives to it, whatever becomes of the daemon.
struct Truth<'a> {
    host: &'a Netns,
}

/// What a host's kernel has got from the tunnel and has given to it.
#[derive(Clone, Copy, Debug)]
struct Carried {
    from: u64,
    to: u64,
}

impl<'a> Truth<'a> {
    fn new(host: &'a Netns) -> Self {
        let rules = format!(
            "table inet truth {{
               counter from {{ }}
               counter to {{ }}
               chain in {{ type filter hook prerouting priority -300; iifname \"{TUNNEL}\" counter name from; }}
               chain out {{ type filter hook postrouting priority 300; oifname \"{TUNNEL}\" counter name to; }}
             }}"
        );
        let mut nft = host.command("nft");
        nft.args(["-f", "-"]);
        assert!(feed(nft, &rules).status.success());
        Self { host }
    }

    fn bytes(&self) -> Carried {
        let [from, to] = ["from", "to"].map(|name| {
            let text = run(
                self.host,
                "nft",
                &["list", "counter", "inet", "truth", name],
            );
            let mut words = text.split_whitespace().skip_while(|word| *word != "bytes");
            let bytes = words.nth(1).expect("a counter");
            bytes.parse().expect("a number")
        });
        Carried { from, to }
    }
}

#[test]
fn counters_survive_twenty_kills_and_are_never_above_the_truth() {
    let Some(world) = World::new() else { return };
    let provider = Provider::new(&world);
    provider.add(2);
    let mut gateway = provider.start();
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let (near, far) = (Truth::new(&world.client), Truth::new(&world.gateway));
    let chatter = Chatter::start(&world.client, &world.server);
    let carry = || {
        let before = (far.bytes().from, near.bytes().from);
        until("bytes are carried in both directions", || {
            far.bytes().from > before.0 + 600_000 && near.bytes().from > before.1 + 600_000
        });
    };
    for round in 0..20 {
        carry();
        gateway.kill();
        let ([up, down], carried) = (provider.usage("c2"), far.bytes());
        assert!(
            up <= carried.from && down <= carried.to,
            "kill {round}: {up} and {down} of {carried:?}"
        );
        gateway.start_again();
        gateway.until_up();
    }
    carry();
    drop(chatter);
    gateway.stop();
    let ([up, down], near, far) = (provider.usage("c2"), near.bytes(), far.bytes());
    println!("counted {up} and {down}; client {near:?}, gateway {far:?}");
    // What the gateway's kernel gave to the tunnel may have been dropped in the tunnel's queue, and what left the queue may
    // not have arrived.
    assert!(up <= far.from && down <= far.to);
    for (counted, carried) in [(up, far.from), (down, near.from)] {
        // A gateway that is killed while this machine stands still has more than a datagram in its hands.
        let missing = 1.0 - counted as f64 / carried as f64;
        assert!(missing < 0.005, "{counted} of {carried}: {missing}");
    }
}
