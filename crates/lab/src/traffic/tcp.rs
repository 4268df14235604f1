//! Bulk transfer over TCP or Multipath TCP.

use core::{net::SocketAddr, time::Duration};
use std::{
    io::{self, Read as _, Write as _},
    os::fd::AsRawFd as _,
    thread::JoinHandle,
};

use pleach_linux::clock;
use pleach_sim::{
    measure::FlowReport,
    scenario::{Direction, Turn},
};
use socket2::Socket;

use crate::{
    traffic::{Ends, GRACE, Schedule, TICK, connect, is_down, is_timeout, listen},
    wait,
};

/// Distance between the ports of two flows of one traffic section. Up to this many sections of 64 flows each thus
/// have different ports.
const FLOW_PORTS: u16 = 900;

/// Longest time for which an end waits for a message before the transfer.
const LONGEST_TURN: Duration = Duration::from_secs(5);

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

/// Parameters of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer<'a> {
    pub(super) cc: Option<&'a str>,
    /// Messages that the ends exchange before the transfer.
    pub(super) turns: &'static [Turn],
    pub(super) direction: Direction,
}

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    what: Transfer<'_>,
    flows: u32,
) -> anyhow::Result<Threads> {
    let Transfer {
        cc,
        turns,
        direction,
    } = what;
    let mut threads = Vec::new();
    for index in 0..flows {
        let port = server.port() + FLOW_PORTS * u16::try_from(index)?;
        let server = SocketAddr::new(server.ip(), port);
        let listener = listen(&ends.server, server, ends.mptcp, cc)?;
        let far = ends.server.spawn("tcp-server", move || {
            while clock::now() < schedule.stop {
                match listener.accept() {
                    Ok((socket, _)) => {
                        if take_turns(&socket, turns, false).is_err() {
                            return Ok(FlowReport::default());
                        }
                        return transfer(&socket, &schedule, is_down(direction));
                    }
                    Err(error) if is_timeout(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(FlowReport::default())
        })?;
        let (ends, cc) = (ends.clone(), cc.map(str::to_owned));
        let host = ends.client.clone();
        let near = host.spawn("tcp-client", move || {
            wait::until(schedule.start);
            let socket = connect(
                &ends.client,
                server,
                ends.bind,
                ends.mptcp,
                cc.as_deref(),
                schedule.stop,
            )?;
            match socket {
                Some(socket) if take_turns(&socket, turns, true).is_ok() => {
                    transfer(&socket, &schedule, !is_down(direction))
                }
                _ => Ok(FlowReport::default()),
            }
        })?;
        threads.extend([far, near]);
    }
    Ok(threads)
}

/// Sends the messages of this end and receives those of the other end.
fn take_turns(mut socket: &Socket, turns: &[Turn], is_client: bool) -> io::Result<()> {
    socket.set_read_timeout(Some(LONGEST_TURN))?;
    for turn in turns {
        let mut bytes = vec![0; turn.bytes.into()];
        if turn.is_client == is_client {
            socket.write_all(&bytes)?;
        } else {
            socket.read_exact(&mut bytes)?;
        }
    }
    Ok(())
}

fn transfer(socket: &Socket, schedule: &Schedule, is_sender: bool) -> anyhow::Result<FlowReport> {
    if is_sender {
        send(socket, schedule)
    } else {
        receive(socket, schedule)
    }
}

fn send(mut socket: &Socket, schedule: &Schedule) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let payload = vec![0_u8; 128 << 10];
    socket.set_write_timeout(Some(TICK))?;
    let mut sample_at = schedule.start + TICK;
    loop {
        let now = clock::now();
        if now >= schedule.stop {
            break;
        }
        if now >= sample_at {
            sample_at = now + TICK;
            if let Some((round_trip, _)) = info(socket).filter(|info| !info.0.is_zero()) {
                report.delay(round_trip);
            }
        }
        match socket.write(&payload) {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(_) => break,
        }
    }
    report.retransmits = info(socket).map(|info| info.1);
    // Data still queued would arrive after the end, so it is dropped.
    let _ = socket.set_linger(Some(Duration::ZERO));
    Ok(report)
}

fn receive(mut socket: &Socket, schedule: &Schedule) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut buffer = vec![0_u8; 256 << 10];
    socket.set_read_timeout(Some(TICK))?;
    while clock::now() < schedule.stop + GRACE {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            // Data that arrives after the end does not count.
            Ok(_) if clock::now() >= schedule.stop => {}
            Ok(count) => schedule.record(&mut report, count),
            Err(error) if is_timeout(&error) => {}
            Err(_) => break,
        }
    }
    Ok(report)
}

/// Returns the kernel's smoothed RTT and number of retransmitted segments.
fn info(socket: &Socket) -> Option<(Duration, u64)> {
    // SAFETY: all-zero bytes are a valid `tcp_info`.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the kernel writes at most `len` bytes to `info` and the length to `len`; both live here.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    (done == 0).then(|| {
        let round_trip = Duration::from_micros(info.tcpi_rtt.into());
        (round_trip, info.tcpi_total_retrans.into())
    })
}
