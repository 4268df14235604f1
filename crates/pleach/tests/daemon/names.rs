//! Tests that a client resolves the name of its gateway over either link, and again after the gateway's address has
//! changed, with UDP and with TCP. Also tests that the name of an HTTP proxy is resolved over the proxy's link.

use std::{
    fs,
    io::Read as _,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::PathBuf,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_linux::netns::run_in;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    dns::up,
    process::Client,
    process::Gateway,
    world::{World, until, within},
};

/// A resolver that answers queries for IPv4 addresses with `address`, and all other queries with no address.
struct Resolver {
    address: AtomicU32,
    asked: AtomicU64,
    is_over: AtomicBool,
}

impl Resolver {
    fn serve(&self, socket: &UdpSocket) {
        let mut buffer = [0; 512];
        while !self.is_over.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            self.asked.fetch_add(1, Ordering::Relaxed);
            let mut reply = buffer[..len].to_vec();
            // Make a response without error to one query; it has type A if the query ends with this type.
            let is_v4 = reply.ends_with(&[0, 1, 0, 1]);
            reply[2] |= 0x80;
            reply[7] = u8::from(is_v4);
            if is_v4 {
                // The name of the query, A, IN, ten seconds, four bytes.
                reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 10, 0, 4]);
                reply.extend_from_slice(&self.address.load(Ordering::Relaxed).to_be_bytes());
            }
            let _ = socket.send_to(&reply, from);
        }
    }
}

/// A thread that answers DNS queries on the gateway's host, with the `resolv.conf` that names it.
struct Answering {
    resolver: Arc<Resolver>,
    thread: Option<JoinHandle<()>>,
    resolv: PathBuf,
}

impl Answering {
    /// Starts the thread, which answers all queries with `address`.
    fn start(world: &World, address: [u8; 4]) -> Self {
        let resolver = Arc::new(Resolver {
            address: AtomicU32::new(Ipv4Addr::from(address).to_bits()),
            asked: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let address = "addr add 203.0.113.53/32 dev lo\n";
        world.gateway.ip(address).expect("address");
        let socket = run_in(&world.gateway.path(), || UdpSocket::bind("203.0.113.53:53"));
        let socket = socket.expect("the namespace").expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("set");
        let serving = Arc::clone(&resolver);
        let thread = thread::spawn(move || serving.serve(&socket));
        let resolv = world.dir.path().join("resolv.conf");
        fs::write(&resolv, "nameserver 203.0.113.53\n").expect("written");
        Self {
            resolver,
            thread: Some(thread),
            resolv,
        }
    }

    fn asked(&self) -> u64 {
        self.resolver.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.resolver.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// A running client whose host uses the resolver of [`Answering`].
struct Named<'a> {
    world: &'a World,
    file: PathBuf,
    daemon: Child,
}

impl<'a> Named<'a> {
    fn start(world: &'a World, client: &Client<'_>, answering: &Answering) -> Self {
        let file = client.write(world);
        let path = std::env::var("PATH").expect("there");
        let daemon = up(world, &file, &answering.resolv, &path);
        Self {
            world,
            file,
            daemon,
        }
    }

    fn status(&self) -> Option<Value> {
        let control = self.file.with_extension("sock");
        let mut command = self.world.client.command(env!("CARGO_BIN_EXE_pleach"));
        let output = command
            .args(["status", "--json", "--control"])
            .arg(control)
            .output();
        serde_json::from_slice(&output.ok()?.stdout).ok()
    }

    /// Whether both links are up and reach the gateway at `address` over `carrier`.
    fn is_at(&self, address: &str, carrier: &str) -> bool {
        let Some(status) = self.status() else {
            return false;
        };
        let links = status["links"].as_array().cloned().unwrap_or_default();
        let mut links = links.iter();
        let is_there = |link: &Value| {
            link["state"] == "up" && link["endpoint"] == address && link["carrier"] == carrier
        };
        status["up"] == true && links.len() == 2 && links.all(is_there)
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.daemon), Signal::TERM).expect("it runs");
        assert!(self.daemon.wait().expect("our child").success());
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Tests that a named gateway is found, and found again after its address has changed. `carrier`: `udp` or `tcp`. For
/// `tcp`, the gateway's host drops the tunnel's UDP datagrams.
fn is_found_and_found_again(carrier: &str) {
    let Some(world) = World::new() else { return };
    let gateway = Gateway {
        more: "[carrier]\nlisten = \"[::]:443\"\n",
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let answering = Answering::start(&world, [203, 0, 113, 5]);
    // The resolver does not answer over the first link.
    for rule in [
        "add table inet fault",
        "add chain inet fault in { type filter hook input priority 0; }",
        "add rule inet fault in iifname g0 udp dport 53 drop",
    ] {
        crate::world::run(&world.gateway, "nft", &[rule]);
    }
    if carrier == "tcp" {
        let rule = "add rule inet fault in iifname { g0, g1 } udp dport 7700 drop";
        crate::world::run(&world.gateway, "nft", &[rule]);
    }
    let client = Client {
        endpoint: "gw.example.net:7700",
        ..Client::default()
    };
    let named = Named::start(&world, &client, &answering);
    until("it is found over the other link", || {
        named.is_at("203.0.113.5:7700", carrier)
    });
    let asked = answering.asked();
    assert!(asked > 0);

    // The gateway's address changes. The name is resolved again only while there is no session.
    let address = &answering.resolver.address;
    address.store(Ipv4Addr::new(203, 0, 113, 6).to_bits(), Ordering::Relaxed);
    world
        .gateway
        .ip("addr add 203.0.113.6/32 dev lo\naddr del 203.0.113.5/32 dev lo\n")
        .expect("address");
    let found = within(LONG, || {
        named.is_at("203.0.113.6:7700", carrier).then_some(())
    });
    found.unwrap_or_else(|| panic!("never found again: {:?}", named.status()));
    assert!(answering.asked() > asked);
    named.stop();
}

#[test]
fn a_named_gateway_is_found_and_found_again_elsewhere() {
    is_found_and_found_again("udp");
}

#[test]
fn a_named_gateway_is_found_again_elsewhere_over_tcp() {
    is_found_and_found_again("tcp");
}

#[test]
fn a_named_http_proxy_is_asked_for_over_its_link() {
    let Some(world) = World::new() else { return };
    let _gateway = Gateway::default().start(&world);
    let answering = Answering::start(&world, [10, 1, 0, 1]);
    // Only the resolver and the HTTP proxy are reachable.
    let table = "table inet plOnly { chain c { type filter hook input priority 0; iifname { g0, g1 } tcp dport 3128 accept; iifname { g0, g1 } udp dport 53 accept; iifname { g0, g1 } meta l4proto { tcp, udp } drop; }; }";
    crate::world::run(&world.gateway, "nft", &[table]);
    let proxy = run_in(&world.gateway.path(), || TcpListener::bind("10.1.0.1:3128"));
    let proxy = proxy.expect("the namespace").expect("a socket");
    let asked = thread::spawn(move || {
        let (mut stream, from) = proxy.accept()?;
        let mut request = [0; 512];
        let len = stream.read(&mut request)?;
        std::io::Result::Ok((from, String::from_utf8_lossy(&request[..len]).into_owned()))
    });
    let client = Client {
        links: &[],
        more: "[[link]]\nname = \"l0\"\ndevice = \"l0\"\nhttp_proxy = \"http://proxy.example.net:3128\"\n",
        ..Client::default()
    };
    let named = Named::start(&world, &client, &answering);
    let is_asked = within(LONG, || asked.is_finished().then_some(()));
    is_asked.unwrap_or_else(|| panic!("the proxy is not asked: {:?}", named.status()));
    let (from, request) = asked.join().expect("no panic").expect("a request");
    assert_eq!(from.ip().to_string(), "10.1.0.2");
    assert!(
        request.starts_with("CONNECT 203.0.113.5:443 HTTP/1.1\r\n"),
        "{request}"
    );
    named.stop();
}

/// Time limit for tests in which a session over TCP must be found dead and the name resolved again, which is done every
/// five seconds.
const LONG: Duration = Duration::from_secs(40);
