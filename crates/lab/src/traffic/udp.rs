//! Datagrams at a given rate, each with a sequence number and the time it was sent.
//!
//! If the client receives, it sends hellos until the first datagram arrives. This also creates a mapping in address
//! translators.

use core::net::SocketAddr;
use std::{io::Read as _, thread::JoinHandle};

use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    measure::{Arrival, Arrivals, Asked, FlowReport},
    pattern::Pattern,
    scenario::Direction,
};
use socket2::{SockAddr, Socket};

use crate::{
    traffic::{
        Ends, GRACE, Schedule, TICK, is_down, is_timeout, number_at, stamp, udp_socket, unspecified,
    },
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    direction: Direction,
    pattern: Pattern,
    asked: Asked,
) -> anyhow::Result<Threads> {
    let (far_socket, near_socket) = sockets(ends, server)?;
    let far_pattern = pattern.clone();
    let far = ends.server.spawn("udp-server", move || {
        if !is_down(direction) {
            return receive(&far_socket, &schedule, asked);
        }
        match wait_for_hello(&far_socket, &schedule)? {
            Some(peer) => send(&far_socket, Some(&peer), &schedule, far_pattern),
            None => Ok(FlowReport::default()),
        }
    })?;
    let near = ends.client.spawn("udp-client", move || {
        if is_down(direction) {
            receive(&near_socket, &schedule, asked)
        } else {
            send(&near_socket, None, &schedule, pattern)
        }
    })?;
    Ok(vec![far, near])
}

/// Creates the sockets of server and client. The client's socket is connected.
pub(super) fn sockets(ends: &Ends, server: SocketAddr) -> anyhow::Result<(Socket, Socket)> {
    let far = ends.server.run(|| {
        let any = unspecified(server);
        let socket = Socket::new(
            socket2::Domain::for_address(any),
            socket2::Type::DGRAM,
            None,
        )?;
        let _ = socket.set_recv_buffer_size(4 << 20);
        let _ = socket.set_send_buffer_size(4 << 20);
        socket.bind(&any.into())?;
        Ok(socket)
    })?;
    let bind = ends.bind;
    let near = ends.client.run(|| udp_socket(bind, server))?;
    Ok((far, near))
}

/// Returns the client's address. `None` if no hello arrives.
pub(super) fn wait_for_hello(
    socket: &Socket,
    schedule: &Schedule,
) -> anyhow::Result<Option<SockAddr>> {
    socket.set_read_timeout(Some(TICK))?;
    while clock::now() < schedule.stop {
        let mut buffer = [core::mem::MaybeUninit::uninit(); 16];
        match socket.recv_from(&mut buffer) {
            Ok((_, peer)) => return Ok(Some(peer)),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn send(
    socket: &Socket,
    peer: Option<&SockAddr>,
    schedule: &Schedule,
    mut pattern: Pattern,
) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut datagram = vec![0_u8; usize::try_from(pattern.size().get())?];
    while let Some(departure) = pattern.next_departure() {
        let at = schedule.start + departure.at;
        if at >= schedule.stop {
            break;
        }
        wait::until(at);
        for _ in 0..departure.datagrams {
            datagram[..8].copy_from_slice(&report.sent.to_be_bytes());
            let now = clock::now();
            datagram[8..16].copy_from_slice(&stamp(now));
            // A datagram that the host refuses counts as lost, like one that the network loses.
            let _ = match peer {
                Some(peer) => socket.send_to(&datagram, peer),
                None => socket.send(&datagram),
            };
            report.sent += 1;
            // The receiver counts the datagram by this time.
            if now >= schedule.begin {
                report.record_sent(now.since(schedule.begin), datagram.len());
            }
        }
    }
    Ok(report)
}

fn receive(mut socket: &Socket, schedule: &Schedule, asked: Asked) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut arrivals = Arrivals::default();
    let mut buffer = vec![0_u8; 65_536];
    socket.set_read_timeout(Some(TICK))?;
    let is_client = socket.peer_addr().is_ok();
    while clock::now() < schedule.stop + GRACE {
        if is_client && arrivals.count() == 0 && clock::now() >= schedule.begin - TICK {
            let _ = socket.send(b"hello");
        }
        match socket.read(&mut buffer) {
            Ok(count) if count >= 16 => {
                let number = number_at(&buffer[..count], 0);
                let arrival = arrivals.note(number);
                if arrival == Arrival::Copy {
                    continue;
                }
                let sent_at = Instant::from_nanos(number_at(&buffer[..count], 8));
                let at = (sent_at >= schedule.begin).then(|| sent_at.since(schedule.begin));
                let delay = clock::now().since(sent_at);
                report.record_delay(number, at, delay, count, asked);
                schedule.record(&mut report, count);
                if let (Arrival::InOrder, Some(at)) = (arrival, schedule.elapsed()) {
                    report.record_in_order(at, count);
                }
            }
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            // The error is an ICMP error about an earlier datagram.
            Err(_) => {}
        }
    }
    report.reorder_depth_max = arrivals.depth_max();
    report.received = arrivals.count();
    report.received_in_order = arrivals.in_order();
    Ok(report)
}
