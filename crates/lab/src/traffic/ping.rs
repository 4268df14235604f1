//! Echo requests over UDP at a fixed interval. They begin [`IDLE_PING`] before the run, to see the idle round trip.

use core::{net::SocketAddr, time::Duration};
use std::{
    io::{Read as _, Write as _},
    thread::JoinHandle,
};

use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    measure::{FlowReport, IDLE_PING},
    results::{PingPoint, PingSummary, Quantiles},
};
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

/// One request.
#[derive(Clone, Copy, Debug)]
struct Request {
    sent_at: Instant,
    round_trip: Option<Duration>,
}

fn ping(socket: &Socket, schedule: &Schedule, interval: Duration) -> anyhow::Result<FlowReport> {
    let first = (schedule.begin - IDLE_PING).max(clock::now());
    let mut requests: Vec<Request> = Vec::new();
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
            // The number of the request, which is its index.
            let _ = (&*socket).write(&next.to_be_bytes());
            requests.push(Request {
                sent_at: clock::now(),
                round_trip: None,
            });
            next += 1;
            continue;
        }
        let until = if sends { send_at } else { end };
        receive(socket, &mut requests, until)?;
    }
    Ok(summary(&requests, schedule))
}

/// Takes replies that come before `until`, at least one if there is one.
fn receive(mut socket: &Socket, requests: &mut [Request], until: Instant) -> anyhow::Result<()> {
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
            let index = usize::try_from(number_at(&buffer[..count], 0)).unwrap_or(usize::MAX);
            if let Some(request) = requests.get_mut(index)
                && request.round_trip.is_none()
            {
                request.round_trip = Some(clock::now().since(request.sent_at));
            }
        }
        Ok(_) => {}
        Err(error) if is_timeout(&error) => {}
        // An ICMP error about an earlier request.
        Err(_) => {}
    }
    Ok(())
}

fn summary(requests: &[Request], schedule: &Schedule) -> FlowReport {
    let (idle, rest): (Vec<Request>, Vec<Request>) = requests
        .iter()
        .partition(|request| request.sent_at < schedule.begin);
    let loaded: Vec<Request> = rest
        .into_iter()
        .filter(|request| request.sent_at >= schedule.start)
        .collect();
    let points = loaded
        .iter()
        .map(|request| PingPoint {
            time_s: request.sent_at.since(schedule.begin).as_secs_f64(),
            rtt_ms: request.round_trip.map(millis),
        })
        .collect();
    let loaded_summary = phase(&loaded);
    FlowReport {
        delays_ms: loaded
            .iter()
            .filter_map(|request| request.round_trip.map(millis))
            .collect(),
        sent: loaded_summary.sent,
        received: loaded_summary.sent - loaded_summary.lost,
        pings: Some((phase(&idle), loaded_summary, points)),
        ..FlowReport::default()
    }
}

fn phase(requests: &[Request]) -> PingSummary {
    let mut rtt: Vec<f64> = requests
        .iter()
        .filter_map(|request| request.round_trip.map(millis))
        .collect();
    let count = |len: usize| u64::try_from(len).unwrap_or(0);
    PingSummary {
        sent: count(requests.len()),
        lost: count(requests.len() - rtt.len()),
        rtt_ms: Quantiles::of(&mut rtt),
        max_ms: rtt.last().copied(),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
