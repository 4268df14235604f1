//! Datagrams at a given rate, each with a sequence number and the time it was sent.
//!
//! For traffic towards the client, the client says hello until the first datagram arrives, which also opens a way
//! through address translation.

use core::{net::SocketAddr, time::Duration};
use std::{io::Read as _, thread::JoinHandle};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::clock;
use pleach_sim::{
    measure::FlowReport,
    scenario::{Direction, Profile},
};
use socket2::{SockAddr, Socket};

use crate::{
    traffic::{
        Ends, GRACE, Schedule, TICK, is_down, is_timeout, number_at, stamp, times, udp_socket,
        unspecified,
    },
    wait,
};

type Threads = Vec<JoinHandle<anyhow::Result<FlowReport>>>;

/// Datagrams behind the newest within which a late one is looked for.
const MAX_DEPTH: usize = 1 << 16;
const FRAMES_PER_SECOND: u64 = 30;

/// When datagrams leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    size: usize,
    interval: Duration,
    burst: u64,
}

impl Pattern {
    pub(super) fn new(rate: Bitrate, size: Bytes, profile: Profile) -> Self {
        let burst = match profile {
            Profile::Constant => 1,
            Profile::Video => {
                let per_frame = rate.as_bps() / 8 / FRAMES_PER_SECOND;
                per_frame.div_ceil(size.get()).max(1)
            }
        };
        Self {
            size: usize::try_from(size.get()).unwrap_or(1200),
            interval: Bytes::new(size.get() * burst) / rate,
            burst,
        }
    }
}

pub(super) fn start(
    ends: &Ends,
    server: SocketAddr,
    schedule: Schedule,
    direction: Direction,
    pattern: Pattern,
) -> anyhow::Result<Threads> {
    let far_socket = ends.server.run(|| {
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
    let near_socket = ends.client.run(|| udp_socket(bind, server))?;
    let far = ends.server.spawn("udp-server", move || {
        if !is_down(direction) {
            return receive(&far_socket, &schedule);
        }
        match wait_for_hello(&far_socket, &schedule)? {
            Some(peer) => send(&far_socket, Some(&peer), &schedule, pattern),
            None => Ok(FlowReport::default()),
        }
    })?;
    let near = ends.client.spawn("udp-client", move || {
        if is_down(direction) {
            receive(&near_socket, &schedule)
        } else {
            send(&near_socket, None, &schedule, pattern)
        }
    })?;
    Ok(vec![far, near])
}

fn wait_for_hello(socket: &Socket, schedule: &Schedule) -> anyhow::Result<Option<SockAddr>> {
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
    pattern: Pattern,
) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut datagram = vec![0_u8; pattern.size];
    for slot in 0.. {
        let at = schedule.start + times(pattern.interval, slot);
        if at >= schedule.stop {
            break;
        }
        wait::until(at);
        for _ in 0..pattern.burst {
            datagram[..8].copy_from_slice(&report.sent.to_be_bytes());
            datagram[8..16].copy_from_slice(&stamp(clock::now()));
            // What the host refuses counts as lost, as what the network loses.
            let _ = match peer {
                Some(peer) => socket.send_to(&datagram, peer),
                None => socket.send(&datagram),
            };
            report.sent += 1;
        }
    }
    Ok(report)
}

fn receive(mut socket: &Socket, schedule: &Schedule) -> anyhow::Result<FlowReport> {
    let mut report = FlowReport::default();
    let mut arrivals = Arrivals::default();
    let mut buffer = vec![0_u8; 65_536];
    socket.set_read_timeout(Some(TICK))?;
    let is_client = socket.peer_addr().is_ok();
    while clock::now() < schedule.stop + GRACE {
        if is_client && arrivals.count == 0 && clock::now() >= schedule.begin - TICK {
            let _ = socket.send(b"hello");
        }
        match socket.read(&mut buffer) {
            Ok(count) if count >= 16 => {
                let number = number_at(&buffer[..count], 0);
                if arrivals.is_new(number) {
                    let sent_at = Instant::from_nanos(number_at(&buffer[..count], 8));
                    report.delay(clock::now().since(sent_at));
                    schedule.record(&mut report, count);
                }
            }
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            // An ICMP error about an earlier datagram.
            Err(_) => {}
        }
    }
    report.reorder_depth_max = arrivals.depth_max;
    report.received = arrivals.count;
    Ok(report)
}

/// Which sequence numbers have arrived.
#[derive(Debug, Default)]
struct Arrivals {
    seen: Vec<bool>,
    count: u64,
    depth_max: u64,
}

impl Arrivals {
    /// Most datagrams of a flow; later ones are not counted.
    const MAX: usize = 1 << 28;

    /// Notes `number`; false for a copy of one that has arrived.
    fn is_new(&mut self, number: u64) -> bool {
        let Ok(index) = usize::try_from(number) else {
            return false;
        };
        if index >= Self::MAX {
            return false;
        }
        if index >= self.seen.len() {
            self.seen.resize(index + 1, false);
        }
        if self.seen[index] {
            return false;
        }
        self.seen[index] = true;
        self.count += 1;
        let later = self.seen[index + 1..].iter().take(MAX_DEPTH);
        let depth = later.filter(|&&seen| seen).count();
        self.depth_max = self.depth_max.max(u64::try_from(depth).unwrap_or(0));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_those_that_overtook() {
        let mut arrivals = Arrivals::default();
        for number in [0, 2, 3, 5, 1] {
            assert!(arrivals.is_new(number));
        }
        assert!(!arrivals.is_new(3));
        assert_eq!((arrivals.depth_max, arrivals.count), (3, 5));
    }

    #[test]
    fn a_frame_is_a_burst() {
        let pattern = Pattern::new(Bitrate::from_mbps(3), Bytes::new(1250), Profile::Video);
        assert_eq!(pattern.burst, 10);
        assert_eq!(pattern.interval.as_micros(), 33_333);
    }
}
