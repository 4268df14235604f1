//! UDP sockets on the loopback device, without privileges.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use pleach_core::packet::Ecn;
use pleach_linux::{
    clock,
    poll::{Poller, Token},
    udp::{RecvBatch, Transmit, UdpOptions, UdpSocket},
};

#[derive(Debug)]
struct Datagram {
    source: SocketAddr,
    destination: Option<IpAddr>,
    ecn: Ecn,
    contents: Vec<u8>,
}

fn bind(address: &str) -> UdpSocket {
    let mut options = UdpOptions::new(address.parse().expect("literal"));
    options.dual_stack = true;
    UdpSocket::bind(&options).expect("loopback can be bound")
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("bound").port()
}

/// Receives until `count` datagrams have arrived. Panics after five seconds.
fn receive(socket: &UdpSocket, count: usize) -> Vec<Datagram> {
    let poller = Poller::new().expect("epoll");
    poller.add(socket, Token(0)).expect("adds");
    let deadline = clock::now() + Duration::from_secs(5);
    let (mut all, mut batch, mut events) = (Vec::new(), RecvBatch::default(), Vec::new());
    while all.len() < count {
        assert!(clock::now() < deadline, "{} of {count} came", all.len());
        poller.wait(Some(deadline), &mut events).expect("waits");
        let _ = socket.recv(&mut batch, |message| {
            for contents in message.contents.chunks(message.stride) {
                all.push(Datagram {
                    source: message.source,
                    destination: message.destination,
                    ecn: message.ecn,
                    contents: contents.to_vec(),
                });
            }
        });
    }
    all
}

fn numbered(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
    Transmit {
        destination,
        src_ip: None,
        ecn: Ecn::Capable,
        segment_size: Some(1000),
        contents,
    }
}

#[test]
fn datagrams_without_checksums_arrive() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        // The receiving end does not switch checksums off.
        let [from, to] = [0, 1].map(|_| bind(address));
        from.set_checksums(false).expect("can be set");
        let ip = if address.starts_with('[') {
            "::1"
        } else {
            "127.0.0.1"
        };
        let destination = SocketAddr::new(ip.parse().expect("literal"), port(&to));
        assert_eq!(from.max_segments(), 1);
        let contents = numbered(2_500);
        let sent = from.send(&transmit(destination, &contents));
        assert_eq!(sent.ok(), Some(contents.len()));
        let came: Vec<u8> = receive(&to, 3)
            .into_iter()
            .flat_map(|d| d.contents)
            .collect();
        assert_eq!(came, contents);
        from.set_checksums(true).expect("can be set");
        assert!(from.max_segments() > 1);
    }
}

#[test]
fn batch_arrives_whole_with_and_without_segmentation() {
    for (from, to) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0")] {
        for segmentation in [true, false] {
            let (sender, receiver) = (bind(from), bind(to));
            if !segmentation {
                sender.disable_segmentation();
            }
            // The batch is longer than one system call accepts, and its last datagram is short.
            let contents = numbered(100_300);
            let destination = receiver.local_addr().expect("bound");
            let sent = sender
                .send(&transmit(destination, &contents))
                .expect("sends");
            assert_eq!(sent, contents.len());
            let datagrams = receive(&receiver, 101);
            let joined: Vec<u8> = datagrams.iter().flat_map(|d| d.contents.clone()).collect();
            assert_eq!(joined, contents);
            assert_eq!(datagrams[100].contents.len(), 300);
            assert!(datagrams.iter().all(|d| d.ecn == Ecn::Capable));
            assert!(datagrams.iter().all(|d| d.source.port() == port(&sender)));
            assert_eq!(sender.segmentation_refusals(), 0);
        }
    }
}

#[test]
fn dual_stack_answers_from_the_address_it_was_asked_on() {
    let server = bind("[::]:0");
    let asked: [(&str, &str); 3] = [
        ("127.0.0.1:0", "127.0.0.1"),
        ("127.0.0.1:0", "127.0.0.5"),
        ("[::1]:0", "::1"),
    ];
    for (client, ip) in asked {
        let client = bind(client);
        let ip: IpAddr = ip.parse().expect("literal");
        let to_server = SocketAddr::new(ip, port(&server));
        // The datagrams are coalesced, so that all control messages arrive together.
        client
            .send(&transmit(to_server, &numbered(3000)))
            .expect("sends");
        let question = receive(&server, 3).remove(0);
        assert_eq!(question.ecn, Ecn::Capable);
        assert_eq!(question.source, client.local_addr().expect("bound"));
        assert_eq!(question.destination, Some(ip));
        let mut answer = transmit(question.source, b"answer");
        answer.src_ip = question.destination;
        answer.ecn = Ecn::Congested;
        server.send(&answer).expect("sends");
        let answer = receive(&client, 1).remove(0);
        assert_eq!(answer.source, to_server);
        assert_eq!(answer.ecn, Ecn::Congested);
    }
}

#[test]
fn a_vanished_source_address_is_an_error_and_keeps_segmentation() {
    let (sender, receiver) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let contents = numbered(5000);
    let mut batch = transmit(receiver.local_addr().expect("bound"), &contents);
    batch.src_ip = Some("203.0.113.9".parse().expect("literal"));
    let error = sender.send(&batch).expect_err("not an address of ours");
    assert!(matches!(error.raw_os_error(), Some(22 | 101)), "{error}");
    assert!(sender.max_segments() > 1);
    assert_eq!(sender.segmentation_refusals(), 0);
    batch.src_ip = None;
    sender.send(&batch).expect("sends");
    assert!(receive(&receiver, 5).iter().all(|d| d.ecn == Ecn::Capable));
}

#[test]
fn refused_segments_go_out_one_by_one() {
    let (sender, receiver) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    // Linux refuses segments without checksums, with the error of a device that cannot segment.
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the pointer and length describe the live int.
    let result = unsafe {
        libc::setsockopt(
            sender.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            4,
        )
    };
    assert_eq!(result, 0);
    let contents = numbered(4500);
    let batch = transmit(receiver.local_addr().expect("bound"), &contents);
    for _ in 0..2 {
        assert_eq!(sender.send(&batch).expect("falls back"), contents.len());
        let datagrams = receive(&receiver, 5);
        let joined: Vec<u8> = datagrams.iter().flat_map(|d| d.contents.clone()).collect();
        assert_eq!(joined, contents);
        assert!(datagrams.iter().all(|d| d.ecn == Ecn::Capable));
    }
    assert_eq!(sender.max_segments(), 1);
    assert_eq!(sender.segmentation_refusals(), 1);
}

#[test]
fn too_long_datagrams_fail_and_keep_segmentation() {
    let (sender, receiver) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    // The largest UDP payload is 65 507 bytes.
    let contents = vec![0; 65_508];
    let mut batch = transmit(receiver.local_addr().expect("bound"), &contents);
    batch.segment_size = None;
    let error = sender.send(&batch).expect_err("too long");
    assert_eq!(error.raw_os_error(), Some(90));
    assert!(sender.max_segments() > 1);
}

#[test]
fn empty_socket_would_block_and_nothing_is_queued() {
    let socket = bind("127.0.0.1:0");
    let result = socket.recv(&mut RecvBatch::default(), |_| panic!("nothing was sent"));
    let kind = result.expect_err("empty").kind();
    assert_eq!(kind, std::io::ErrorKind::WouldBlock);
    assert_eq!(socket.queued_bytes().expect("ioctl"), 0);
}

#[test]
fn senders_are_told_apart() {
    let receiver = bind("[::]:0");
    let senders: Vec<_> = (0..4_u8).map(|_| bind("127.0.0.1:0")).collect();
    let destination = format!("127.0.0.1:{}", port(&receiver))
        .parse()
        .expect("literal");
    let mut expected = BTreeMap::new();
    for (sender, fill) in senders.iter().zip(1_u8..) {
        let contents = vec![fill; 3000];
        sender
            .send(&transmit(destination, &contents))
            .expect("sends");
        expected.insert(port(sender), fill);
    }
    for datagram in receive(&receiver, 12) {
        let fill = expected[&datagram.source.port()];
        assert_eq!(datagram.contents, vec![fill; 1000]);
    }
}
