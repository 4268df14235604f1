//! TCP, UDP and ICMP through the tunnel, and the senders that other tests use.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_core::rng::Rng;
use pleach_lab::netns::Netns;

use crate::{
    process::{Client, Gateway, OUTER_V4, OUTER_V6},
    world::{INTERRUPTION, PATIENCE, World, ping, run, within},
};

#[test]
fn every_kind_of_traffic_passes_over_ipv4() {
    every_kind_of_traffic_passes(OUTER_V4, "true", None);
}

#[test]
fn every_kind_of_traffic_passes_over_ipv6() {
    every_kind_of_traffic_passes(OUTER_V6, "\"nat66\"", None);
}

#[test]
fn every_kind_of_traffic_passes_if_one_end_has_parity() {
    // This end sends datagrams without UDP checksums.
    every_kind_of_traffic_passes(OUTER_V6, "\"nat66\"", Some("hamming"));
}

fn every_kind_of_traffic_passes(outer: &str, nat: &str, parity: Option<&str>) {
    let Some(world) = World::new() else { return };
    if nat == "true" {
        // IPv6 is routed, so the server needs a route back.
        let route = "-6 route add fd77::/64 via fd99::1\n";
        world.server.ip(route).expect("route");
    }
    let gateway = Gateway {
        nat,
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let client = Client {
        endpoint: outer,
        parity,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);

    let hidden_v6 = if nat == "true" { "fd77::2" } else { "fd99::1" };
    for (host, address, seen_from) in [
        (&world.gateway, "10.77.0.1", "10.77.0.2"),
        (&world.gateway, "fd77::1", "fd77::2"),
        (&world.server, "10.99.0.2", "10.99.0.1"),
        (&world.server, "fd99::2", hidden_v6),
    ] {
        let seen_from: IpAddr = seen_from.parse().expect("literal");
        let to = Target::new(host, address);
        assert!(ping(&world.client, &[address], PATIENCE), "{address}");
        assert_eq!(udp(&world.client, &to), Some(seen_from), "{address}");
        assert_eq!(tcp(&world.client, &to, 2 << 20).ok(), Some(seen_from));
    }
}

/// A host and one of its addresses.
pub(crate) struct Target<'a> {
    host: &'a Netns,
    address: IpAddr,
}

impl<'a> Target<'a> {
    pub(crate) fn new(host: &'a Netns, address: &str) -> Self {
        let address = address.parse().expect("literal");
        Self { host, address }
    }
}

/// Sends `len` bytes over TCP to a target that sends them back, and asserts that they are unchanged. Returns the source
/// address that the target saw.
///
/// # Errors
/// If no connection is established within [`INTERRUPTION`], or if a connection stalls for [`PATIENCE`].
pub(crate) fn tcp(from: &Netns, to: &Target<'_>, len: usize) -> io::Result<IpAddr> {
    try_tcp(from, to, len, INTERRUPTION)
}

/// Does the same as [`tcp`], but gives up if no connection is established within `patience`.
pub(crate) fn try_tcp(
    from: &Netns,
    to: &Target<'_>,
    len: usize,
    patience: Duration,
) -> io::Result<IpAddr> {
    let listener = listen(to);
    let address = listener.local_addr()?;
    let mirror = thread::spawn(move || {
        let (mut stream, peer) = listener.accept()?;
        let received = receive(&mut stream)?;
        stream.write_all(&received)?;
        Ok::<_, io::Error>(peer.ip())
    });
    let mut stream = connect(from, address, patience)?;
    let mut data = vec![0; len];
    Rng::new(7).fill(&mut data);
    stream.write_all(&data)?;
    stream.shutdown(Shutdown::Write)?;
    let returned = receive(&mut stream)?;
    assert!(returned == data, "other bytes came back");
    let seen = mirror.join();
    seen.unwrap_or_else(|_| Err(io::Error::other("the target panicked")))
}

/// Listens on a free port of the target.
pub(crate) fn listen(to: &Target<'_>) -> TcpListener {
    let address = SocketAddr::new(to.address, 0);
    let listener = to.host.run(|| Ok(TcpListener::bind(address)?));
    listener.expect("a free port")
}

/// Connects to `address` within `patience`.
pub(crate) fn connect(
    from: &Netns,
    address: SocketAddr,
    patience: Duration,
) -> io::Result<TcpStream> {
    let stream = from
        .run(|| Ok(TcpStream::connect_timeout(&address, patience)?))
        .map_err(io::Error::other)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A TCP connection that sends about 20 Mbit/s in both directions until dropped.
pub(crate) struct SteadyStream {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SteadyStream {
    pub(crate) fn start(from: &Netns, to: &Target<'_>) -> Self {
        let listener = listen(to);
        let address = listener.local_addr().expect("bound");
        let near = connect(from, address, INTERRUPTION).expect("a connection");
        let (far, _) = listener.accept().expect("connected");
        let is_over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for stream in [near, far] {
            let mut reader = stream.try_clone().expect("a copy");
            threads.push(thread::spawn(move || {
                let _ = io::copy(&mut reader, &mut io::sink());
            }));
            let (mut writer, is_over) = (stream, Arc::clone(&is_over));
            threads.push(thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) && writer.write_all(&[7; 12_000]).is_ok() {
                    thread::park_timeout(Duration::from_millis(5));
                }
                let _ = writer.shutdown(Shutdown::Both);
            }));
        }
        Self { is_over, threads }
    }
}

impl Drop for SteadyStream {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the host's TCP counter `name` in `/proc/net/snmp`.
pub(crate) fn tcp_counter(host: &Netns, name: &str) -> u64 {
    let text = run(host, "cat", &["/proc/self/net/snmp"]);
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let mut fields = || lines.next().expect("two lines").split_whitespace();
    let (mut names, mut values) = (fields(), fields());
    let at = names.position(|known| known == name).expect("known");
    let value = values.nth(at).expect("as many as names");
    value.parse().expect("a number")
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    Ok(data)
}

/// Sends a datagram repeatedly until it is sent back. Returns the source address that the target saw.
pub(crate) fn udp(from: &Netns, to: &Target<'_>) -> Option<IpAddr> {
    let bind = |host: &Netns, address: IpAddr| {
        let socket = host.run(|| Ok(UdpSocket::bind((address, 0))?));
        let socket = socket.expect("a free port");
        let timeout = Some(Duration::from_millis(100));
        socket.set_read_timeout(timeout).expect("a timeout");
        socket
    };
    let any: IpAddr = if to.address.is_ipv6() {
        "::".parse().expect("literal")
    } else {
        "0.0.0.0".parse().expect("literal")
    };
    let (near, far) = (bind(from, any), bind(to.host, to.address));
    let address = far.local_addr().expect("bound");
    let mut buffer = [0; 2048];
    within(PATIENCE, || {
        near.send_to(&[7; 1200], address).ok()?;
        let (len, peer) = far.recv_from(&mut buffer).ok()?;
        far.send_to(&buffer[..len], peer).ok()?;
        let (len, _) = near.recv_from(&mut buffer).ok()?;
        (buffer[..len] == [7; 1200]).then_some(peer.ip())
    })
}
