//! Applications of simulated hosts: the lab's traffic programs as state machines, with the same packets, schedule and
//! measurements.

mod ping;
mod quic;
mod requests;
mod tcp;
mod udp;

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::collections::VecDeque;

use pleach_core::{packet::PacketView, time::Instant};

use crate::{
    measure::{Asked, FlowReport},
    pattern::{Pattern, Profile, Rates},
    scenario::{self, Direction, Traffic, TrafficKind},
    tcp::{CongestionControl, HEADER_LEN, Recovery, Segment, TcpConfig, UnknownCongestionControl},
    voice,
    world::{Buffers, Packet, datagram, stream},
};

/// Time for which receivers wait for packets in flight after the senders stop.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Interval of hellos, of samples of TCP's RTT, and of attempts to connect.
const TICK: Duration = Duration::from_millis(100);

/// TCP's protocol number.
const TCP: u8 = 6;

/// Interface through which an application sends packets.
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

    /// Sends a TCP segment.
    fn send_segment(&mut self, source: SocketAddr, destination: SocketAddr, segment: &Segment) {
        let (from, to) = (source.port(), destination.port());
        let fill = |bytes: &mut Vec<u8>| segment.write(from, to, bytes);
        let packet = self
            .buffers
            .packet(TCP, source.ip(), destination.ip(), fill);
        self.sent.extend(packet);
    }
}

/// Time at which a flow runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Start of the run.
    pub(crate) begin: Instant,
    pub(crate) start: Instant,
    pub(crate) stop: Instant,
}

impl Schedule {
    /// Counts `bytes` that arrive at `now`.
    fn record(&self, report: &mut FlowReport, now: Instant, bytes: usize) {
        if let Some(at) = self.elapsed(now) {
            report.record(at, bytes);
        }
    }

    /// Returns the time since the run began. `None` before the run.
    fn elapsed(&self, now: Instant) -> Option<Duration> {
        (now >= self.begin).then(|| now.since(self.begin))
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
    Quic(Box<quic::Bulk>),
    RequestClient(requests::Client),
    RequestServer(requests::Server),
    Tcp(tcp::Bulk),
    UdpSink(udp::Sink),
    UdpSource(udp::Source),
}

impl App {
    /// Creates an application that answers every datagram to `local` and measures nothing.
    #[cfg(test)]
    pub(crate) fn echo(local: SocketAddr) -> Self {
        Self {
            flow: 0,
            program: Program::Echo(ping::Echo::new(local)),
        }
    }

    /// Processes a packet for this host. Returns false if the packet is for another application.
    pub(crate) fn handle_packet(&mut self, io: &mut Io<'_>, packet: &PacketView<'_>) -> bool {
        if packet.protocol() == Some(TCP) {
            return self.handle_segment(io, packet);
        }
        let Some(datagram) = datagram(packet) else {
            return false;
        };
        let local = match &self.program {
            Program::Echo(echo) => echo.local(),
            Program::Ping(ping) => ping.local(),
            Program::Quic(bulk) => bulk.local(),
            Program::UdpSink(sink) => sink.local(),
            Program::UdpSource(source) => source.local(),
            Program::RequestClient(_) | Program::RequestServer(_) | Program::Tcp(_) => {
                return false;
            }
        };
        if datagram.destination != local {
            return false;
        }
        match &mut self.program {
            Program::Echo(echo) => echo.handle_datagram(io, &datagram),
            Program::Ping(ping) => ping.handle_datagram(io, &datagram),
            Program::Quic(bulk) => bulk.handle_datagram(io, &datagram),
            Program::UdpSink(sink) => sink.handle_datagram(io, &datagram),
            Program::UdpSource(source) => source.handle_datagram(&datagram),
            Program::RequestClient(_) | Program::RequestServer(_) | Program::Tcp(_) => {}
        }
        true
    }

    fn handle_segment(&mut self, io: &mut Io<'_>, packet: &PacketView<'_>) -> bool {
        let Ok((from, to, segment)) = Segment::parse(packet.transport()) else {
            return false;
        };
        let remote = SocketAddr::new(packet.source(), from);
        let local = SocketAddr::new(packet.destination(), to);
        match &mut self.program {
            Program::RequestClient(client) if client.is_between(remote, local) => {
                client.handle_segment(io, to, &segment);
            }
            Program::RequestServer(server) if server.local() == local => {
                server.handle_segment(io, remote, &segment);
            }
            Program::Tcp(bulk) if bulk.is_between(remote, local) => {
                bulk.handle_segment(io, &segment);
            }
            Program::Echo(_)
            | Program::Ping(_)
            | Program::Quic(_)
            | Program::RequestClient(_)
            | Program::RequestServer(_)
            | Program::Tcp(_)
            | Program::UdpSink(_)
            | Program::UdpSource(_) => return false,
        }
        true
    }

    /// Runs the timers that are due.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        match &mut self.program {
            Program::Echo(_) => {}
            Program::Ping(ping) => ping.handle_timeout(io),
            Program::Quic(bulk) => bulk.handle_timeout(io),
            Program::RequestClient(client) => client.handle_timeout(io),
            Program::RequestServer(server) => server.handle_timeout(io),
            Program::Tcp(bulk) => bulk.handle_timeout(io),
            Program::UdpSink(sink) => sink.handle_timeout(io),
            Program::UdpSource(source) => source.handle_timeout(io),
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.program {
            Program::Echo(_) => None,
            Program::Ping(ping) => ping.poll_timeout(),
            Program::Quic(bulk) => bulk.poll_timeout(),
            Program::RequestClient(client) => client.poll_timeout(),
            Program::RequestServer(server) => server.poll_timeout(),
            Program::Tcp(bulk) => bulk.poll_timeout(),
            Program::UdpSink(sink) => sink.poll_timeout(),
            Program::UdpSource(source) => source.poll_timeout(),
        }
    }

    /// Returns the flow's index and the measurements of this end.
    pub(crate) fn finish(self) -> (usize, FlowReport) {
        let report = match self.program {
            Program::Echo(_) | Program::RequestServer(_) => FlowReport::default(),
            Program::Ping(ping) => ping.finish(),
            Program::Quic(bulk) => bulk.finish(),
            Program::RequestClient(client) => client.finish(),
            Program::Tcp(bulk) => bulk.finish(),
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

/// Addresses and parameters of a flow's ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
    /// Length of the longest packet between the ends.
    pub(crate) mtu: u16,
    /// Loss detection of TCP.
    pub(crate) recovery: scenario::Recovery,
    /// Highest number of segments of reordering that TCP learns to tolerate.
    pub(crate) max_reordering: u32,
}

/// Creates the applications of `traffic`, the traffic number `index` of a scenario with `seed`, for a run that begins
/// at `begin`.
///
/// # Errors
/// Fails if the traffic requires a congestion control that is not modelled.
pub(crate) fn start(
    traffic: &Traffic,
    index: usize,
    ends: &Ends,
    seed: u64,
    begin: Instant,
) -> Result<Flow, UnknownCongestionControl> {
    let schedule = Schedule {
        begin,
        start: begin + traffic.start,
        stop: begin + traffic.stop,
    };
    let offset = u16::try_from(index).unwrap_or(u16::MAX) % MAX_FLOWS;
    let client = SocketAddr::new(ends.client, CLIENT_PORTS + offset);
    let server = SocketAddr::new(ends.server, SERVER_PORTS + offset);
    let is_down = traffic.direction == Direction::Down;
    let isn = |end: &str| stream(seed, &format!("{end} of {}", traffic.name));
    let mut flow = Flow::default();
    let mut add = |near, far| {
        let app = |program| App {
            flow: index,
            program,
        };
        flow.client.push(app(near));
        flow.server.push(app(far));
    };
    let mut datagrams = |pattern, by_number| {
        let source =
            |local, peer| Program::UdpSource(udp::Source::new(local, peer, schedule, pattern));
        let sink = |local, peer| Program::UdpSink(udp::Sink::new(local, peer, schedule, by_number));
        if is_down {
            add(sink(client, Some(server)), source(server, None));
        } else {
            add(source(client, Some(server)), sink(server, None));
        }
    };
    match &traffic.kind {
        TrafficKind::Ping { interval } => add(
            Program::Ping(ping::Ping::new(client, server, schedule, *interval)),
            Program::Echo(ping::Echo::new(server)),
        ),
        TrafficKind::Quic => {
            let near = quic::Bulk::client(client, server, schedule, !is_down, ends.mtu);
            let far = quic::Bulk::server(server, client, schedule, is_down, ends.mtu);
            add(Program::Quic(Box::new(near)), Program::Quic(Box::new(far)));
        }
        TrafficKind::Requests { size, interval } => {
            let config = tcp_config(None, ends)?;
            let size = size.get();
            let what = (size, *interval);
            let near = requests::Client::new(client, server, schedule, config, what, isn("client"));
            let far = requests::Server::new(server, schedule, config, size, isn("server"));
            add(Program::RequestClient(near), Program::RequestServer(far));
        }
        TrafficKind::Tcp { cc, flows, opening } => {
            let config = tcp_config(cc.as_deref(), ends)?;
            let turns = opening.turns();
            for number in 0..*flows {
                let step = MAX_FLOWS * u16::try_from(number).unwrap_or(0);
                let server = SocketAddr::new(server.ip(), server.port() + step);
                let isn = |end: &str| isn(&format!("{end} {number}"));
                let near =
                    tcp::Bulk::client(client, server, schedule, config, !is_down, isn("client"));
                let far =
                    tcp::Bulk::server(server, client, schedule, config, is_down, isn("server"));
                let (near, far) = (near.with_turns(turns), far.with_turns(turns));
                add(Program::Tcp(near), Program::Tcp(far));
            }
        }
        TrafficKind::Udp {
            rates,
            size,
            profile,
            jitter,
            deadline,
        } => {
            let rng = stream(seed, &format!("jitter of {}", traffic.name));
            let pattern = Pattern::new(rates.clone(), *size, *profile).with_jitter(*jitter, rng);
            datagrams(
                pattern,
                Asked {
                    deadline: *deadline,
                    by_number: false,
                },
            );
        }
        // Video is refused earlier.
        TrafficKind::Video(_) => {}
        TrafficKind::Voice { .. } => {
            let rates = Rates::constant(voice::RATE);
            let pattern = Pattern::new(rates, voice::PACKET_BYTES, Profile::Constant);
            datagrams(
                pattern,
                Asked {
                    deadline: None,
                    by_number: true,
                },
            );
        }
    }
    Ok(flow)
}

fn tcp_config(cc: Option<&str>, ends: &Ends) -> Result<TcpConfig, UnknownCongestionControl> {
    let ip_header = if ends.client.is_ipv6() { 40 } else { 20 };
    Ok(TcpConfig {
        cc: cc.map_or(Ok(CongestionControl::default()), str::parse)?,
        recovery: match ends.recovery {
            scenario::Recovery::Dupack => Recovery::DupAck,
            scenario::Recovery::Fack => Recovery::Forward,
            scenario::Recovery::Rack => Recovery::Rack,
        },
        max_reordering: ends.max_reordering,
        mss: usize::from(ends.mtu).saturating_sub(ip_header + HEADER_LEN),
        ..TcpConfig::default()
    })
}

/// First port of servers. Each flow has one port; the connections of a bulk transfer have ports [`MAX_FLOWS`] apart.
const SERVER_PORTS: u16 = 5_000;
/// First port of clients.
const CLIENT_PORTS: u16 = 42_000;
/// Number of flows after which ports are reused.
const MAX_FLOWS: u16 = 500;

/// Returns eight bytes of a datagram at `offset` as a number. Zero if the datagram is shorter.
fn number_at(datagram: &[u8], offset: usize) -> u64 {
    datagram
        .get(offset..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
