//! Applications of simulated hosts: the lab's traffic programs as state machines, with the same packets, the same
//! schedule and the same measurement.

mod ping;
mod udp;

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::collections::VecDeque;

use pleach_core::{packet::PacketView, time::Instant};

use crate::{
    measure::FlowReport,
    pattern::{Pattern, Rates},
    scenario::{self, Direction, Traffic, TrafficKind},
    world::{Buffers, Packet, datagram},
};

/// How long receivers wait for what is under way when the senders stop.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Time between two hellos, two samples of TCP's round trip, two attempts to connect.
const TICK: Duration = Duration::from_millis(100);

/// What an application can do while it has its turn.
pub(crate) struct Io<'a> {
    now: Instant,
    sent: &'a mut VecDeque<Packet>,
    buffers: &'a mut Buffers,
}

impl<'a> Io<'a> {
    pub(crate) fn new(
        now: Instant,
        sent: &'a mut VecDeque<Packet>,
        buffers: &'a mut Buffers,
    ) -> Self {
        Self { now, sent, buffers }
    }

    /// Sends a datagram whose payload `fill` appends.
    fn send(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        self.sent
            .extend(self.buffers.datagram(source, destination, fill));
    }
}

/// When a flow runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Time zero of the run.
    pub(crate) begin: Instant,
    pub(crate) start: Instant,
    pub(crate) stop: Instant,
}

impl Schedule {
    /// Counts `bytes` that arrive `now`.
    fn record(&self, report: &mut FlowReport, now: Instant, bytes: usize) {
        if now >= self.begin {
            report.record(now.since(self.begin), bytes);
        }
    }
}

/// An application: one end of a flow.
#[derive(Debug)]
pub(crate) struct App {
    /// Index of the flow in the scenario.
    flow: usize,
    program: Program,
}

#[derive(Debug)]
enum Program {
    Echo(ping::Echo),
    Ping(ping::Ping),
    UdpSink(udp::Sink),
    UdpSource(udp::Source),
}

impl App {
    /// Takes a packet for this host; false if it is for another application.
    pub(crate) fn handle_packet(&mut self, io: &mut Io<'_>, packet: &PacketView<'_>) -> bool {
        let Some(datagram) = datagram(packet) else {
            return false;
        };
        let local = match &self.program {
            Program::Echo(echo) => echo.local(),
            Program::Ping(ping) => ping.local(),
            Program::UdpSink(sink) => sink.local(),
            Program::UdpSource(source) => source.local(),
        };
        if datagram.destination != local {
            return false;
        }
        match &mut self.program {
            Program::Echo(echo) => echo.handle_datagram(io, &datagram),
            Program::Ping(ping) => ping.handle_datagram(io, &datagram),
            Program::UdpSink(sink) => sink.handle_datagram(io, &datagram),
            Program::UdpSource(source) => source.handle_datagram(&datagram),
        }
        true
    }

    /// Lets time pass.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        match &mut self.program {
            Program::Echo(_) => {}
            Program::Ping(ping) => ping.handle_timeout(io),
            Program::UdpSink(sink) => sink.handle_timeout(io),
            Program::UdpSource(source) => source.handle_timeout(io),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) next has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.program {
            Program::Echo(_) => None,
            Program::Ping(ping) => ping.poll_timeout(),
            Program::UdpSink(sink) => sink.poll_timeout(),
            Program::UdpSource(source) => source.poll_timeout(),
        }
    }

    /// The flow's index and what this end of it has measured.
    pub(crate) fn finish(self) -> (usize, FlowReport) {
        let report = match self.program {
            Program::Echo(_) => FlowReport::default(),
            Program::Ping(ping) => ping.finish(),
            Program::UdpSink(sink) => sink.finish(),
            Program::UdpSource(source) => source.finish(),
        };
        (self.flow, report)
    }
}

/// The applications of a flow.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) client: Vec<App>,
    pub(crate) server: Vec<App>,
}

/// The applications of `traffic`, item `index` of the scenario, between two addresses.
pub(crate) fn start(
    traffic: &Traffic,
    index: usize,
    client: IpAddr,
    server: IpAddr,
    begin: Instant,
) -> Flow {
    let schedule = Schedule {
        begin,
        start: begin + traffic.start,
        stop: begin + traffic.stop,
    };
    let offset = u16::try_from(index).unwrap_or(u16::MAX / 2);
    let client = SocketAddr::new(client, 20_000 + offset);
    let server = SocketAddr::new(server, 5_000 + offset);
    let app = |program| {
        let flow = index;
        vec![App { flow, program }]
    };
    match &traffic.kind {
        TrafficKind::Ping { interval } => Flow {
            client: app(Program::Ping(ping::Ping::new(
                client, server, schedule, *interval,
            ))),
            server: app(Program::Echo(ping::Echo::new(server))),
        },
        TrafficKind::Udp {
            rate,
            size,
            profile,
        } => {
            let profile = match profile {
                scenario::Profile::Constant => crate::pattern::Profile::Constant,
                scenario::Profile::Video => crate::pattern::Profile::Video,
            };
            let pattern = Pattern::new(Rates::constant(*rate), *size, profile);
            match traffic.direction {
                Direction::Down => Flow {
                    client: app(Program::UdpSink(udp::Sink::new(
                        client,
                        Some(server),
                        schedule,
                    ))),
                    server: app(Program::UdpSource(udp::Source::new(
                        server, None, schedule, pattern,
                    ))),
                },
                Direction::Up => Flow {
                    client: app(Program::UdpSource(udp::Source::new(
                        client,
                        Some(server),
                        schedule,
                        pattern,
                    ))),
                    server: app(Program::UdpSink(udp::Sink::new(server, None, schedule))),
                },
            }
        }
        TrafficKind::Requests { .. } | TrafficKind::Tcp { .. } => Flow::default(),
    }
}

/// Eight bytes of a datagram at `offset` as a number; zero if it is shorter.
fn number_at(datagram: &[u8], offset: usize) -> u64 {
    datagram
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
