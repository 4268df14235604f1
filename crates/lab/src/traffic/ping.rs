//! Echo requests over UDP at a fixed interval. They begin [`IDLE_PING`] before the run, to measure the idle RTT.

use core::{net::SocketAddr, time::Duration};
use std::{
    io::{Read as _, Write as _},
    thread::JoinHandle,
};

use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::measure::{EchoRequests, FlowReport, IDLE_PING};
use socket2::{Domain, Socket, Type};

use crate::{
    netns::Netns,
    traffic::{Ends, GRACE, Schedule, TICK, is_timeout, number_at, times, udp_socket, unspecified},
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    interval: Duration,
) -> anyhow::Result<Threads> {
    let far = echo(&ends.server, server, schedule.stop + GRACE)?;
    let bind = ends.bind;
    let socket = ends.client.run(|| udp_socket(bind, server))?;
    let near = ends
        .client
        .spawn("ping", move || ping(&socket, &schedule, interval))?;
    Ok(vec![far, near])
}

pub(super) fn echo(
    host: &Netns,
    address: SocketAddr,
    stop: Instant,
) -> anyhow::Result<JoinHandle<anyhow::Result<FlowReport>>> {
    let socket = host.run(|| {
        let any = unspecified(address);
        let socket = Socket::new(Domain::for_address(any), Type::DGRAM, None)?;
        socket.bind(&any.into())?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(socket)
    })?;
    let thread = host.spawn("echo", move || {
        let socket = std::net::UdpSocket::from(socket);
        let mut buffer = [0; 2048];
        while clock::now() < stop {
            if let Ok((count, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..count], peer);
            }
        }
        Ok(FlowReport::default())
    })?;
    Ok(thread)
}

fn ping(socket: &Socket, schedule: &Schedule, interval: Duration) -> anyhow::Result<FlowReport> {
    let first = (schedule.begin - IDLE_PING).max(clock::now());
    let mut requests = EchoRequests::default();
    let mut next: u64 = 0;
    let end = schedule.stop + GRACE;
    loop {
        let now = clock::now();
        if now >= end {
            break;
        }
        let send_at = first + times(interval, next);
        let sends = send_at < schedule.stop;
        if sends && now >= send_at {
            let number = requests.send(clock::now());
            let _ = (&*socket).write(&number.to_be_bytes());
            next += 1;
            continue;
        }
        let until = if sends { send_at } else { end };
        receive(socket, &mut requests, until)?;
    }
    Ok(requests.report(schedule.begin, schedule.start))
}

/// Waits for a reply until `until`, but at most [`TICK`], and records it.
fn receive(mut socket: &Socket, requests: &mut EchoRequests, until: Instant) -> anyhow::Result<()> {
    // Zero would mean no timeout.
    let left = until.since(clock::now()).max(Duration::from_micros(1));
    let mut fds = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::IN,
    )];
    match rustix::event::poll(&mut fds, Some(&wait::timespec(left.min(TICK)))) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut buffer = [0; 64];
    match socket.read(&mut buffer) {
        Ok(count) if count >= 8 => {
            requests.receive(clock::now(), number_at(&buffer[..count], 0));
        }
        Ok(_) => {}
        Err(error) if is_timeout(&error) => {}
        // The error is an ICMP error about an earlier request.
        Err(_) => {}
    }
    Ok(())
}
