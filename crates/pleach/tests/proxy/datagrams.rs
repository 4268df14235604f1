//! UDP flows through UDP ASSOCIATE to another proxy on the server's host, spread over both links datagram by datagram.

use std::{
    io,
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pleach_linux::{clock, udp};
use serde_json::Value;
use socket2::SockRef;

use crate::{
    client,
    peers::{key_pair, pair, striped, trust},
    world::{ECHO_PORT, PEER_PORT, Proxy, SERVER, World},
};

const SINK_PORT: u16 = 5004;
/// Payload of each datagram in bytes.
const LEN: u16 = 1200;

/// A SOCKS5 UDP association.
struct Association {
    socket: UdpSocket,
    relay: SocketAddr,
    header: Vec<u8>,
    _control: TcpStream,
}

impl Association {
    /// Creates an association for datagrams to `port` of the server. Call it inside the client's namespace.
    fn new(port: u16) -> io::Result<Self> {
        let (control, reply) = client::socks5(3, &client::v4("0.0.0.0"), 0)?;
        assert_eq!(reply[1], 0);
        let ip = std::net::Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
        let address = [client::v4(SERVER).as_slice(), &port.to_be_bytes()].concat();
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        udp::set_buffers(&SockRef::from(&socket), 4 << 20);
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            socket,
            relay: (ip, u16::from_be_bytes([reply[8], reply[9]])).into(),
            header: [&[0, 0, 0], address.as_slice()].concat(),
            _control: control,
        })
    }

    fn send(&self, payload: &[u8]) -> io::Result<()> {
        let datagram = [&self.header, payload].concat();
        self.socket.send_to(&datagram, self.relay).map(drop)
    }

    /// Receives the payload of a datagram, whose header must name the destination.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut datagram = vec![0; 3000];
        let len = self.socket.recv(&mut datagram)?;
        assert_eq!(datagram[..self.header.len()], self.header);
        Ok(datagram[self.header.len()..len].to_vec())
    }
}

/// Sends `count` numbered datagrams at `mbps` of payload. The next are sent as soon as they are due.
fn send_paced(count: u32, mbps: f64, send: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let began = clock::now();
    let per_second = mbps * 1e6 / 8.0 / f64::from(LEN);
    let mut payload = vec![0; usize::from(LEN)];
    for number in 0..count {
        let due = Duration::from_secs_f64(f64::from(number) / per_second);
        while clock::now().since(began) < due {
            let left = due.saturating_sub(clock::now().since(began));
            thread::park_timeout(left.max(PACE));
        }
        payload[..4].copy_from_slice(&number.to_be_bytes());
        send(&payload)?;
    }
    Ok(())
}

/// Receives numbered datagrams until `is_over` is set and none arrives for a while. Returns the number of different
/// datagrams, and checks that no datagram arrives twice.
fn count(is_over: &AtomicBool, mut receive: impl FnMut() -> io::Result<Vec<u8>>) -> u32 {
    let mut seen = std::collections::BTreeSet::new();
    loop {
        match receive() {
            Ok(payload) => {
                assert_eq!(payload.len(), usize::from(LEN));
                let number = payload
                    .first_chunk()
                    .map(|bytes| u32::from_be_bytes(*bytes));
                assert!(seen.insert(number.expect("long")), "a datagram twice");
            }
            Err(_) if is_over.load(Ordering::Relaxed) => break,
            Err(_) => {}
        }
    }
    u32::try_from(seen.len()).expect("few")
}

/// Returns the datagrams sent and received on each lane of the only flow.
fn lanes(status: &Value) -> Vec<[u64; 2]> {
    let lanes = status["connections"][0]["striped"]["links"].as_array();
    let number = |lane: &Value, key: &str| lane[key].as_u64().expect("a number");
    let lane = |lane: &Value| ["tx_datagrams", "rx_datagrams"].map(|key| number(lane, key));
    lanes.expect("lanes").iter().map(lane).collect()
}

/// Finds the peer, and waits for a lane on each link.
fn meet(proxy: &Proxy) {
    drop(striped(proxy, ECHO_PORT));
    proxy.until("it is gone", |status| status["connection_count"] == 0);
}

/// Sends [`SENT`] numbered datagrams at [`MBPS`] by `send`, and receives them by `receive`. Returns how many were sent
/// and lost.
fn carry(
    send: impl Fn(&[u8]) -> io::Result<()>,
    receive: impl FnMut() -> io::Result<Vec<u8>> + Send,
) -> io::Result<[u32; 2]> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let counting = scope.spawn(|| count(&is_over, receive));
        let outcome = send_paced(SENT, f64::from(MBPS), send);
        is_over.store(true, Ordering::Relaxed);
        let received = counting.join().expect("no panic");
        outcome.map(|()| [SENT, SENT - received])
    })
}

/// Asserts that `attempt` loses at most 0.1 % of the datagrams. It has three tries, because other programs may occupy
/// the machine for longer than datagrams wait.
fn loses_nothing(
    way: &str,
    proxies: [&Proxy; 2],
    mut attempt: impl FnMut() -> io::Result<[u32; 2]>,
) -> io::Result<()> {
    let mut losses = Vec::new();
    for _ in 0..3 {
        let [sent, lost] = attempt()?;
        let statuses = proxies.map(|proxy| proxy.status().expect("it runs"));
        eprintln!(
            "{way}: {MBPS} Mbit/s, {lost} of {sent} datagrams lost, by lane {:?}, drops {} {}",
            lanes(&statuses[0]),
            statuses[0]["drops"],
            statuses[1]["drops"],
        );
        losses.push(f64::from(lost) / f64::from(sent));
        if losses.iter().any(|loss| *loss <= 0.001) {
            return Ok(());
        }
    }
    panic!("{way}: losses {losses:?}");
}

#[test]
fn datagrams_faster_than_either_link_arrive_in_both_directions() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "osia");
    let silence = Some(Duration::from_millis(500));
    let server = world.topology.server.run(|| {
        let socket = UdpSocket::bind((SERVER, SINK_PORT))?;
        udp::set_buffers(&SockRef::from(&socket), 4 << 20);
        socket.set_read_timeout(silence)?;
        Ok(socket)
    });
    let server = server.expect("server");
    world
        .client()
        .run(|| {
            meet(&proxy);
            let association = Association::new(SINK_PORT)?;
            association.socket.set_read_timeout(silence)?;
            let from = Mutex::new(None);
            loses_nothing("up", [&proxy, &peer], || {
                let receive = || {
                    let mut datagram = vec![0; 3000];
                    let (len, source) = server.recv_from(&mut datagram)?;
                    *from.lock().expect("no panic") = Some(source);
                    datagram.truncate(len);
                    Ok(datagram)
                };
                carry(|payload| association.send(payload), receive)
            })?;
            // The answers are spread by the answering end.
            let from = from.into_inner().expect("no panic");
            let from = from.expect("datagrams arrived");
            loses_nothing("down", [&proxy, &peer], || {
                let send = |payload: &[u8]| server.send_to(payload, from).map(drop);
                carry(send, || association.receive())
            })?;
            // Each link has carried about its share, in both directions.
            let lanes = lanes(&proxy.status().expect("it runs"));
            for way in 0..2 {
                let all: u64 = lanes.iter().map(|lane| lane[way]).sum();
                assert!(lanes.iter().all(|lane| lane[way] >= all / 5), "{lanes:?}");
            }
            Ok(())
        })
        .expect("datagrams");
    // The association has ended, and with it the flow at the other end.
    peer.until("the flow is gone", |status| status["connection_count"] == 0);
}

#[test]
fn datagrams_do_not_wait_for_a_download_and_are_not_kept_for_a_dead_link() {
    let Some(world) = World::new() else { return };
    let (peer, proxy) = pair(&world, "osia");
    let host = world.client();
    host.run(|| {
        meet(&proxy);
        let association = Association::new(ECHO_PORT)?;
        let round_trip = |number: u32| -> io::Result<Duration> {
            let began = clock::now();
            association.send(&number.to_be_bytes())?;
            loop {
                if association.receive()? == number.to_be_bytes() {
                    return Ok(clock::now().since(began));
                }
            }
        };
        round_trip(0)?;
        // An upload without end fills the lanes of the proxy.
        let (upload, reply) = client::socks5(1, &client::v4(SERVER), ECHO_PORT)?;
        assert_eq!(reply[1], 0);
        let (mut writer, mut reader) = (upload.try_clone()?, upload.try_clone()?);
        let writing = thread::spawn(move || io::copy(&mut io::repeat(7), &mut writer));
        let reading = thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
        proxy.until("the upload runs", |status| {
            let connections = status["connections"].as_array().expect("some").iter();
            let sent = |one: &Value| one["tx_bytes"].as_u64().expect("a number");
            connections.map(sent).max() > Some(3_000_000)
        });
        let mut times: Vec<Duration> = (1..=50).map(round_trip).collect::<io::Result<_>>()?;
        times.sort_unstable();
        eprintln!(
            "beside an upload: median {:?}, maximum {:?}",
            times[25], times[49]
        );
        // The queues of the links hold 24 and 48 ms in each direction. If datagrams were sent after the chunks that
        // wait, none would be answered before the upload ends.
        assert!(times[25] < Duration::from_millis(600), "{times:?}");
        upload.shutdown(std::net::Shutdown::Both)?;
        let _ = (writing.join(), reading.join());

        // One link drops everything, without any notification. The other carries on.
        let rules = "add table inet hole
            add chain inet hole in { type filter hook input priority 0; }
            add chain inet hole out { type filter hook output priority 0; }
            add rule inet hole in iifname wifi drop
            add rule inet hole out oifname wifi drop";
        assert!(host.command("nft").arg(rules).status()?.success());
        association
            .socket
            .set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut answered = Vec::new();
        for number in 1000..1060_u32 {
            answered.push(round_trip(number).is_ok());
        }
        let late = answered[30..].iter().filter(|is| **is).count();
        assert!(late >= 29, "{answered:?}");
        Ok(())
    })
    .expect("inside");
    drop(peer);
}

#[test]
fn a_peer_that_does_not_allow_the_target_leaves_datagrams_to_one_link() {
    let Some(world) = World::new() else { return };
    let (ours, theirs) = (key_pair(), key_pair());
    let router = "10.99.0.1";
    let peer = world.peer("osia", &trust(&theirs.0, &ours.1));
    let told = format!("endpoint = \"{SERVER}:{PEER_PORT}\"\nnetworks = [\"{router}/32\"]\n");
    let proxy = world.proxy("", &format!("[peer]\n{}{told}", trust(&ours.0, &theirs.1)));
    let echo = world
        .topology
        .gateway
        .run(|| Ok(UdpSocket::bind((router, ECHO_PORT))?));
    let echo = echo.expect("server");
    thread::spawn(move || {
        let mut datagram = [0; 100];
        while let Ok((len, from)) = echo.recv_from(&mut datagram) {
            let _ = echo.send_to(&datagram[..len], from);
        }
    });
    world
        .client()
        .run(|| {
            let mut association = Association::new(ECHO_PORT)?;
            let address = [client::v4(router).as_slice(), &ECHO_PORT.to_be_bytes()].concat();
            association.header = [&[0, 0, 0], address.as_slice()].concat();
            association
                .socket
                .set_read_timeout(Some(Duration::from_millis(500)))?;
            // The peer refuses the first datagram. The following ones go plainly.
            let answer = (0..20).find_map(|_| {
                association.send(b"hello").ok()?;
                association.receive().ok()
            });
            assert_eq!(answer.as_deref(), Some(&b"hello"[..]));
            let status = proxy.status().expect("it runs");
            let flow = &status["connections"][0];
            assert!(
                flow["striped"].is_null() && flow["link"].is_string(),
                "{status}"
            );
            Ok(())
        })
        .expect("inside");
    let drops = &peer.status().expect("it runs")["drops"];
    assert_eq!(drops["peer-refused"], 1, "{drops}");
}

/// Payload in Mbit/s: more than the better link carries (20), less than both together (28 without headers).
const MBPS: u32 = 25;
/// Number of datagrams of a measurement: 6 s.
const SENT: u32 = MBPS * 1_000_000 / 8 * 6 / (LEN as u32);
/// Minimum pause of a sender.
const PACE: Duration = Duration::from_millis(1);
