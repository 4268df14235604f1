//! Packets on the link with the shorter delay are delayed to match the slower link.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::world::{FAR_V4, FIXED, PATIENCE, World, packets, within};

/// Additional delay of the peer's answers to pings on link 1.
const LATER: Duration = Duration::from_millis(60);

#[test]
fn packets_of_the_quick_link_wait_and_all_arrive_in_order() {
    let Some(world) = World::new() else { return };
    let ends = answers(&world);
    for backend in ["bpf", "clsact"] {
        let equalizer = world.equalizer(&format!(
            "{FIXED}backend = \"{backend}\"\nspread = \"delay\"\nprobe = \"{FAR_V4}\"\n"
        ));
        let is_held = |status: &Value| hold_ms(status, "l0") >= 40.0 && !keeps_flows(status);
        let status = equalizer.until("packets of l0 wait", is_held);
        assert_eq!(hold_ms(&status, "l1"), 0.0, "{status}");
        assert_eq!(status["splitter"]["hold"]["probe"], FAR_V4);

        // Each link keeps its order, and no packet is lost.
        let receivers = ["r0", "r1"].map(|device| receiver(&world, device));
        send_numbers(&world, 400);
        let mut numbers = [Vec::new(), Vec::new()];
        within(PATIENCE, || {
            for (numbers, receiver) in numbers.iter_mut().zip(&receivers) {
                numbers.extend(read_numbers(receiver));
            }
            (numbers.iter().map(Vec::len).sum::<usize>() >= 400).then_some(())
        });
        for numbers in &numbers {
            assert!(numbers.is_sorted(), "{numbers:?}");
        }
        let of_links = numbers.map(|numbers| numbers.len());
        assert_eq!(of_links.iter().sum::<usize>(), 400, "{of_links:?}");
        assert!(
            (280..=320).contains(&of_links[0]),
            "three of four: {of_links:?}"
        );

        // Super-packets are unchanged by the detour.
        stream(&world);
        let status = equalizer.status().expect("it runs");
        assert_eq!(status["splitter"]["hold"]["lost"], 0, "{status}");
        equalizer.stop();
    }
    ends.store(true, Ordering::Relaxed);
}

#[test]
fn a_flow_keeps_its_link_while_the_delays_are_unknown() {
    let Some(world) = World::new() else { return };
    for backend in ["bpf", "clsact"] {
        let silent = [("ipv4/icmp_echo_ignore_all", "1")];
        world.peer.sysctl(&silent).expect("settings");
        let equalizer = world.equalizer(&format!(
            "{FIXED}backend = \"{backend}\"\nspread = \"delay\"\nprobe = \"{FAR_V4}\"\n"
        ));
        equalizer.until("nothing is known", keeps_flows);
        world.send(FAR_V4, 400, |_| 100);
        let share = equalizer.share("share_packets");
        assert!(
            !(0.01..0.99).contains(&share),
            "one flow, two links: {share}"
        );
        // Each socket has a port of its own.
        for _ in 0..400 {
            world.send(FAR_V4, 5, |_| 100);
        }
        let share = equalizer.share("share_packets");
        assert!((0.6..0.9).contains(&share), "many flows: {share}");
        let answering = [("ipv4/icmp_echo_ignore_all", "0")];
        world.peer.sysctl(&answering).expect("settings");
        equalizer.until("the delays are known", |status| !keeps_flows(status));
        equalizer.set_weights(&["l0=1", "l1=1"]);
        world.send(FAR_V4, 4_000, |_| 1_000);
        let share = equalizer.share("share_packets");
        assert!((0.48..0.52).contains(&share), "one of two: {share}");
        equalizer.stop();
    }
}

#[test]
fn what_nobody_holds_any_more_does_not_wait() {
    let Some(world) = World::new() else { return };
    let ends = answers(&world);
    // With this backend, the BPF program remains attached after its daemon has ended.
    let equalizer = world.equalizer(&format!(
        "{FIXED}backend = \"clsact\"\nspread = \"delay\"\nprobe = \"{FAR_V4}\"\n"
    ));
    equalizer.until("packets of l0 wait", |status| hold_ms(status, "l0") > 0.0);
    let held = within(PATIENCE, || {
        let (before, _) = packets(&world.host, "pleach-hold");
        world.send(FAR_V4, 40, |_| 100);
        thread::park_timeout(LATER * 2);
        (packets(&world.host, "pleach-hold").0 > before).then_some(())
    });
    assert!(held.is_some(), "nothing goes through the device");
    equalizer.kill();
    let goes_on = within(PATIENCE, || {
        let before = packets(&world.peer, "r0").0;
        world.send(FAR_V4, 40, |_| 100);
        (packets(&world.peer, "r0").0 >= before + 20).then_some(())
    });
    assert!(goes_on.is_some(), "packets of l0 go nowhere");
    world.equalizer(FIXED).stop();
    ends.store(true, Ordering::Relaxed);
}

fn hold_ms(status: &Value, link: &str) -> f64 {
    status["splitter"]["links"][link]["hold_ms"]
        .as_f64()
        .expect("a number")
}

fn keeps_flows(status: &Value) -> bool {
    status["splitter"]["hold"]["keeps_flows"]
        .as_bool()
        .expect("a truth value")
}

/// Makes the peer answer pings, those on link 1 later, until the returned flag is set.
fn answers(world: &World) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let off = [("ipv4/icmp_echo_ignore_all", "1")];
    world.peer.sysctl(&off).expect("settings");
    for (device, later) in [("r0", Duration::ZERO), ("r1", LATER)] {
        let (requests, replies) = world
            .peer
            .run(|| {
                let raw = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
                let (requests, replies) = (raw()?, raw()?);
                requests.bind_device(Some(device.as_bytes()))?;
                requests.set_read_timeout(Some(Duration::from_millis(100)))?;
                let far: SocketAddr = format!("{FAR_V4}:0").parse()?;
                replies.bind(&far.into())?;
                Ok((requests, replies))
            })
            .expect("sockets");
        let is_over = is_over.clone();
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let mut packet = [0; 256];
                let Ok(len) = (&requests).read(&mut packet) else {
                    continue;
                };
                // After the IP header, type 8 becomes 0, so the checksum increases by the same amount.
                let mut message = packet[20..len].to_vec();
                let from: [u8; 4] = packet[12..16].try_into().expect("four");
                if message[0] != 8 {
                    continue;
                }
                thread::park_timeout(later);
                message[0] = 0;
                let sum = u32::from(u16::from_be_bytes([message[2], message[3]])) + 0x0800;
                let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                let _ = replies.send_to(&message, &SocketAddr::from((from, 0)).into());
            }
        });
    }
    is_over
}

/// Opens a UDP socket for packets that arrive on `device`.
fn receiver(world: &World, device: &str) -> Socket {
    let open = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(device.as_bytes()))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(1 << 20)?;
        let any: SocketAddr = "0.0.0.0:9000".parse()?;
        socket.bind(&any.into())?;
        Ok(socket)
    };
    world.peer.run(open).expect("socket")
}

fn read_numbers(socket: &Socket) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut bytes = [0; 4];
    while let Ok(4) = (&*socket).read(&mut bytes) {
        numbers.push(u32::from_be_bytes(bytes));
    }
    numbers
}

fn send_numbers(world: &World, count: u32) {
    let send = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        for number in 0..count {
            socket.send_to(&number.to_be_bytes(), (FAR_V4, 9000))?;
        }
        Ok(())
    };
    world.host.run(send).expect("sends");
}

/// Sends a TCP stream from host to peer, and compares the data.
fn stream(world: &World) {
    const LEN: usize = 1 << 20;
    let reader = world.receive_stream();
    let data: Vec<u8> = (0..LEN)
        .map(|at| u8::try_from(at % 251).expect("small"))
        .collect();
    world
        .host
        .run(|| Ok(TcpStream::connect((FAR_V4, 7000))?.write_all(&data)?))
        .expect("sends");
    let received = reader.join().expect("no panic").expect("reads");
    assert!(received == data, "{} bytes arrived", received.len());
}
