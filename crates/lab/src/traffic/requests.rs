//! Short transfers, each over a new TCP connection: the client requests a number of bytes and reads them.

use core::{net::SocketAddr, time::Duration};
use std::{
    io::{Read as _, Write as _},
    thread::{self, JoinHandle},
};

use anyhow::bail;
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::measure::FlowReport;
use socket2::Socket;

use crate::{
    traffic::{Ends, Schedule, TICK, connect, is_timeout, listen, number_at, times},
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

/// Time after which a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    size_bytes: u64,
    interval: Duration,
) -> anyhow::Result<Threads> {
    let listener = listen(&ends.server, server, ends.mptcp, None)?;
    let far = ends
        .server
        .spawn("requests-server", move || serve(&listener, schedule.stop))?;
    let (ends, host) = (ends.clone(), ends.client.clone());
    let near = host.spawn("requests-client", move || {
        let mut report = FlowReport::default();
        for slot in 0.. {
            let at = schedule.start + times(interval, slot);
            if at >= schedule.stop {
                break;
            }
            wait::until(at);
            let began = clock::now();
            let deadline = (began + PATIENCE).min(schedule.stop);
            let done = request(&ends, server, size_bytes, deadline, &mut report, &schedule);
            // A request that the end of the run interrupts is neither answered nor failed.
            if done.is_err() && deadline == schedule.stop {
                break;
            }
            report.sent += 1;
            if done.is_ok() {
                report.received += 1;
                report.delay(clock::now().since(began));
            }
        }
        Ok(report)
    })?;
    Ok(vec![far, near])
}

fn serve(listener: &Socket, stop: Instant) -> anyhow::Result<FlowReport> {
    // A transfer has its own deadline, so the scope ends soon after the loop.
    thread::scope(|scope| {
        while clock::now() < stop {
            match listener.accept() {
                Ok((socket, _)) => {
                    scope.spawn(move || answer(&socket, stop));
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(FlowReport::default())
    })
}

fn answer(mut socket: &Socket, stop: Instant) {
    let mut question = [0; 8];
    let limit = Some(stop.since(clock::now()).clamp(TICK, PATIENCE));
    if socket.set_read_timeout(limit).is_err()
        || socket.set_write_timeout(limit).is_err()
        || socket.read_exact(&mut question).is_err()
    {
        return;
    }
    let payload = [0; 16 << 10];
    let mut left = number_at(&question, 0);
    while left > 0 && clock::now() < stop {
        let count = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(payload.len());
        match socket.write(&payload[..count]) {
            Ok(count) => left -= u64::try_from(count).unwrap_or(left),
            Err(_) => return,
        }
    }
}

fn request(
    ends: &Ends,
    server: SocketAddr,
    size_bytes: u64,
    deadline: Instant,
    report: &mut FlowReport,
    schedule: &Schedule,
) -> anyhow::Result<()> {
    let connected = connect(&ends.client, server, ends.bind, ends.mptcp, None, deadline)?;
    let Some(socket) = connected else {
        bail!("not connected in time");
    };
    let mut stream = &socket;
    stream.write_all(&size_bytes.to_be_bytes())?;
    socket.set_read_timeout(Some(TICK))?;
    let mut buffer = vec![0; 64 << 10];
    let mut left = size_bytes;
    while left > 0 {
        if clock::now() >= deadline {
            bail!("not served in time");
        }
        match stream.read(&mut buffer) {
            Ok(0) => bail!("cut off"),
            Ok(count) => {
                schedule.record(report, count);
                left = left.saturating_sub(u64::try_from(count)?);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
