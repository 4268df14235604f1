//! A gateway that is configured by name is found over either link, and again after its address has changed.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pleach_linux::netns::run_in;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    dns::up,
    process::Client,
    process::Gateway,
    world::{World, until},
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

#[test]
fn a_named_gateway_is_found_and_found_again_elsewhere() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let resolver = Arc::new(Resolver {
        address: AtomicU32::new(Ipv4Addr::new(203, 0, 113, 5).to_bits()),
        asked: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    world
        .gateway
        .ip("addr add 203.0.113.53/32 dev lo\n")
        .expect("address");
    let socket = run_in(&world.gateway.path(), || UdpSocket::bind("203.0.113.53:53"));
    let socket = socket.expect("the namespace").expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("set");
    let serving = Arc::clone(&resolver);
    let server = thread::spawn(move || serving.serve(&socket));

    let named = Client {
        endpoint: "gw.example.net:7700",
        ..Client::default()
    };
    let file = named.write(&world);
    let resolv = world.dir.path().join("resolv.conf");
    fs::write(&resolv, "nameserver 203.0.113.53\n").expect("written");
    // The resolver does not answer over the first link.
    for rule in [
        "add table inet fault",
        "add chain inet fault in { type filter hook input priority 0; }",
        "add rule inet fault in iifname g0 udp dport 53 drop",
    ] {
        crate::world::run(&world.gateway, "nft", &[rule]);
    }
    let mut daemon = up(
        &world,
        &file,
        &resolv,
        &std::env::var("PATH").expect("there"),
    );
    let status = || -> Option<Value> {
        let control = file.with_extension("sock");
        let mut command = world.client.command(env!("CARGO_BIN_EXE_pleach"));
        let output = command
            .args(["status", "--json", "--control"])
            .arg(control)
            .output();
        serde_json::from_slice(&output.ok()?.stdout).ok()
    };
    let is_at = |address: &str| {
        let Some(status) = status() else { return false };
        let links = status["links"].as_array().cloned().unwrap_or_default();
        let mut links = links.iter();
        status["up"] == true
            && links.len() == 2
            && links.all(|link| link["state"] == "up" && link["endpoint"] == address)
    };
    until("it is found over the other link", || {
        is_at("203.0.113.5:7700")
    });
    let asked = resolver.asked.load(Ordering::Relaxed);
    assert!(asked > 0);

    // The gateway's address changes. The name is resolved again only while there is no session.
    resolver
        .address
        .store(Ipv4Addr::new(203, 0, 113, 6).to_bits(), Ordering::Relaxed);
    world
        .gateway
        .ip("addr add 203.0.113.6/32 dev lo\naddr del 203.0.113.5/32 dev lo\n")
        .expect("address");
    until("it is found again", || is_at("203.0.113.6:7700"));
    assert!(resolver.asked.load(Ordering::Relaxed) > asked);

    kill_process(Pid::from_child(&daemon), Signal::TERM).expect("it runs");
    assert!(daemon.wait().expect("our child").success());
    resolver.is_over.store(true, Ordering::Relaxed);
    server.join().expect("no panic");
}
