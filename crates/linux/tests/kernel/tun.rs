//! Two TUN devices in two namespaces, connected by this process.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use pleach_core::{
    packet::{PacketBuf, Pool, ones_complement_sum},
    rng::Rng,
};
use pleach_linux::{
    clock,
    poll::{Poller, Token, Waker},
    tun::{Tun, WriteOutcome},
    udp::{RecvBatch, Transmit, UdpOptions, UdpSocket},
};

use crate::namespace::{Namespace, until};

const TRANSFER_LEN: usize = 20_000_000;

struct World {
    a: Namespace,
    b: Namespace,
    tun_a: Tun,
    tun_b: Tun,
}

fn world() -> Option<World> {
    let (a, b) = (Namespace::new()?, Namespace::new()?);
    let make = |namespace: &Namespace, number: u8| {
        let tun = namespace.run(|| Tun::create("plLtun", 1400).expect("root makes TUNs"));
        namespace.ip(&format!("address add 10.98.0.{number}/24 dev plLtun"));
        namespace.ip(&format!("address add fd98::{number}/64 dev plLtun nodad"));
        namespace.ip("link set plLtun up");
        // The kernel completes IPv6 addresses in the background.
        let local = format!("-6 route show table local fd98::{number}");
        until("the IPv6 address works", || {
            let is_tentative = namespace.ip("-6 address show tentative").contains("fd98");
            !is_tentative && namespace.ip(&local).contains("local")
        });
        tun
    };
    let (tun_a, tun_b) = (make(&a, 1), make(&b, 2));
    Some(World { a, b, tun_a, tun_b })
}

/// Moves packets in both directions while `work` runs. `merge`: whether whole batches are written, or each packet
/// alone.
fn joined(tun_a: &mut Tun, tun_b: &mut Tun, merge: bool, work: impl FnOnce()) -> WriteOutcome {
    let (stop, waker) = (AtomicBool::new(false), Waker::new().expect("eventfd"));
    thread::scope(|scope| {
        let (stop, poll_waker) = (&stop, waker.clone());
        let pump = scope.spawn(move || {
            let poller = Poller::new().expect("epoll");
            poller.add(&poll_waker, Token(0)).expect("adds");
            poller.add(&*tun_a, Token(1)).expect("adds");
            poller.add(&*tun_b, Token(2)).expect("adds");
            let (mut pool, mut packets) = (Pool::new(512, 1500), Vec::new());
            let (mut events, mut total) = (Vec::new(), WriteOutcome::default());
            while !stop.load(Ordering::Relaxed) {
                poller.wait(None, &mut events).expect("waits");
                for event in &events {
                    match event.token {
                        Token(1) => pass(tun_a, tun_b, merge, &mut pool, &mut packets, &mut total),
                        Token(2) => pass(tun_b, tun_a, merge, &mut pool, &mut packets, &mut total),
                        _ => {}
                    }
                }
            }
            total
        });
        let guard = StopOnDrop(stop, waker);
        work();
        drop(guard);
        pump.join().expect("the pump does not panic")
    })
}

/// Stops the pump, even if the work panics.
struct StopOnDrop<'a>(&'a AtomicBool, Waker);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.wake();
    }
}

fn pass(
    from: &mut Tun,
    to: &mut Tun,
    merge: bool,
    pool: &mut Pool,
    packets: &mut Vec<PacketBuf>,
    total: &mut WriteOutcome,
) {
    match from.read_batch(pool, packets) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return,
        result => result.expect("the device lives"),
    };
    for batch in packets.chunks(if merge { packets.len().max(1) } else { 1 }) {
        let outcome = to.write_batch(batch).expect("the device lives");
        assert_eq!(outcome.written + outcome.dropped, batch.len());
        total.written += outcome.written;
        total.dropped += outcome.dropped;
        total.writes += outcome.writes;
    }
    packets.drain(..).for_each(|packet| pool.recycle(packet));
}

fn tcp_transfer(a: &Namespace, b: &Namespace, to: IpAddr) {
    let mut contents = vec![0; TRANSFER_LEN];
    Rng::new(8).fill(&mut contents);
    let address = SocketAddr::new(to, 0);
    let listener = b.run(|| TcpListener::bind(address).expect("the address is there"));
    let address = listener.local_addr().expect("bound");
    let mut stream = a.run(|| {
        TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("the other end answers")
    });
    let (mut accepted, _) = listener.accept().expect("connected");
    let limit = Some(Duration::from_secs(20));
    stream.set_write_timeout(limit).expect("sets");
    accepted.set_read_timeout(limit).expect("sets");
    let sent = contents.clone();
    let writer = thread::spawn(move || stream.write_all(&sent).expect("sends"));
    let mut received = Vec::new();
    accepted.read_to_end(&mut received).expect("receives");
    writer.join().expect("does not panic");
    assert!(received == contents, "the bytes differ");
}

/// Returns a counter of `/proc/net/snmp`.
fn counter(namespace: &Namespace, protocol: &str, name: &str) -> u64 {
    let text = namespace.command("cat /proc/net/snmp");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns
        .find(|(column, _)| *column == name)
        .expect("counter");
    value.parse().expect("number")
}

#[test]
fn tcp_passes_intact_merged_and_single() {
    let Some(World {
        a,
        b,
        mut tun_a,
        mut tun_b,
    }) = world()
    else {
        return;
    };
    for to in ["10.98.0.2", "fd98::2"] {
        for merge in [true, false] {
            let to = to.parse().expect("literal");
            let outcome = joined(&mut tun_a, &mut tun_b, merge, || tcp_transfer(&a, &b, to));
            assert_eq!(outcome.dropped, 0);
            assert!(outcome.written > TRANSFER_LEN / 1400, "{outcome:?}");
            // The kernel verifies the checksums of single packets. The counters below must stay zero.
            assert!(merge || outcome.writes == outcome.written, "{outcome:?}");
            assert!(
                !merge || outcome.writes * 4 < outcome.written,
                "{outcome:?}"
            );
        }
    }
    for namespace in [&a, &b] {
        assert_eq!(counter(namespace, "Tcp:", "InCsumErrors"), 0);
        assert_eq!(counter(namespace, "Ip:", "InHdrErrors"), 0);
    }
    assert_eq!(tun_a.malformed_reads() + tun_b.malformed_reads(), 0);
}

#[test]
fn udp_segments_pass_intact_merged_and_single() {
    let Some(World {
        a,
        b,
        mut tun_a,
        mut tun_b,
    }) = world()
    else {
        return;
    };
    let mut contents = vec![0; 30_300];
    Rng::new(9).fill(&mut contents);
    for (from, to) in [
        ("10.98.0.1:0", "10.98.0.2:0"),
        ("[fd98::1]:0", "[fd98::2]:0"),
    ] {
        for (merge, segmentation) in [(true, true), (true, false), (false, true)] {
            let bind = |address: &str| {
                UdpSocket::bind(&UdpOptions::new(address.parse().expect("literal"))).expect("binds")
            };
            let (sender, receiver) = (a.run(|| bind(from)), b.run(|| bind(to)));
            if !segmentation {
                sender.disable_segmentation();
            }
            let transmit = Transmit {
                destination: receiver.local_addr().expect("bound"),
                src_ip: None,
                ecn: pleach_core::packet::Ecn::Capable,
                segment_size: Some(1000),
                contents: &contents,
            };
            let outcome = joined(&mut tun_a, &mut tun_b, merge, || {
                assert_eq!(sender.send(&transmit).expect("sends"), contents.len());
                assert!(
                    receive(&receiver, contents.len()) == contents,
                    "the bytes differ"
                );
            });
            assert_eq!(outcome.dropped, 0);
            assert_eq!(sender.segmentation_refusals(), 0);
        }
    }
    for namespace in [&a, &b] {
        assert_eq!(counter(namespace, "Udp:", "InCsumErrors"), 0);
    }
}

/// Receives `len` bytes in order; panics after five seconds.
fn receive(socket: &UdpSocket, len: usize) -> Vec<u8> {
    let poller = Poller::new().expect("epoll");
    poller.add(socket, Token(0)).expect("adds");
    let deadline = clock::now() + Duration::from_secs(5);
    let (mut all, mut batch, mut events) = (Vec::new(), RecvBatch::default(), Vec::new());
    while all.len() < len {
        assert!(clock::now() < deadline, "{} of {len} came", all.len());
        poller.wait(Some(deadline), &mut events).expect("waits");
        let _ = socket.recv(&mut batch, |message| {
            all.extend_from_slice(message.contents)
        });
    }
    all
}

#[test]
fn a_taken_name_is_explained_and_a_closed_device_is_gone() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let tun = namespace.run(|| Tun::create("plLtun", 1380).expect("root makes TUNs"));
    let shown = namespace.ip("link show plLtun");
    assert!(
        shown.contains("mtu 1380") && shown.contains("qlen 500"),
        "{shown}"
    );
    let error = namespace
        .run(|| Tun::create("plLtun", 1380))
        .expect_err("taken");
    assert!(error.to_string().contains("choose another"), "{error}");
    drop(tun);
    namespace.until_gone("plLtun");
}

#[test]
fn writing_to_a_device_that_is_down_drops_and_counts() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let mut tun = namespace.run(|| Tun::create("plLtun", 1400).expect("root makes TUNs"));
    let packets = [PacketBuf::from(vec![0x45; 60]), PacketBuf::from(vec![0; 3])];
    let outcome = tun.write_batch(&packets).expect("the device lives");
    assert_eq!((outcome.written, outcome.dropped), (0, 2));
}

/// Returns a UDP packet of 32 bytes to `10.97.0.1`, without a UDP checksum.
fn datagram(from: [u8; 4], ports: [u16; 2]) -> PacketBuf {
    let mut packet = [0; 32];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17]);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&[10, 97, 0, 1]);
    let sum = !ones_complement_sum(&[&packet[..20]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
    packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
    packet[24..26].copy_from_slice(&12_u16.to_be_bytes());
    PacketBuf::from(packet.to_vec())
}

#[test]
fn answers_are_read_from_the_queue_that_has_written_the_question() {
    let Some(here) = Namespace::new() else {
        return;
    };
    let make = || Tun::create_queues("plLtunq", 1400, 3).expect("root makes TUNs");
    let mut queues = here.run(make);
    here.ip("address add 10.97.0.1/24 dev plLtunq");
    here.ip("link set plLtunq up");
    let bind = || std::net::UdpSocket::bind("10.97.0.1:5000").expect("binds");
    let host = here.run(bind);
    let timeout = Some(Duration::from_secs(10));
    host.set_read_timeout(timeout).expect("set");
    let (mut pool, mut packets) = (Pool::new(512, 1500), Vec::new());
    for port in 6000..6030 {
        let writer = usize::from(port) % 3;
        // Another flow of the same address is written by another queue.
        for (port, writer) in [(port, writer), (port + 100, (writer + 1) % 3)] {
            let packet = datagram([10, 97, 0, 2], [port, 5000]);
            let written = queues[writer].write_batch(&[packet]).expect("written");
            assert_eq!(written.written, 1);
            let (_, from) = host.recv_from(&mut [0; 64]).expect("arrives");
            host.send_to(&[7; 40], from).expect("sent");
            let mut readers = Vec::new();
            until("the answer arrives", || {
                for (number, queue) in queues.iter_mut().enumerate() {
                    while queue.read_batch(&mut pool, &mut packets).is_ok() {}
                    for packet in packets.drain(..) {
                        let is_answer = packet.len() == 68;
                        readers.extend(is_answer.then_some(number));
                        pool.recycle(packet);
                    }
                }
                !readers.is_empty()
            });
            assert_eq!(readers, [writer], "{port}");
        }
    }
    let last = queues.pop();
    drop(queues);
    assert!(here.try_ip("link show plLtunq"), "a queue is left");
    drop(last);
    here.until_gone("plLtunq");
}
