//! Short transfers, each over a new TCP connection: the client requests a number of bytes and reads them.

use core::{net::SocketAddr, time::Duration};
use std::collections::BTreeMap;

use pleach_core::{rng::Rng, time::Instant};

use super::{Io, Schedule, TICK, tcp::initial_sequence_number};
use crate::{
    measure::FlowReport,
    tcp::{Connection, Flags, Segment, State, TcpConfig},
};

/// Time after which a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Length of a request in bytes.
const QUESTION_BYTES: u64 = 8;
/// Highest number of connections of a server.
const MAX_CONNECTIONS: usize = 1_024;
/// Number of ports that the client uses in rotation.
const PORTS: u16 = 20_000;

/// A server that answers requests.
#[derive(Debug)]
pub(super) struct Server {
    local: SocketAddr,
    size_bytes: u64,
    stop: Instant,
    config: TcpConfig,
    isn: Rng,
    connections: BTreeMap<SocketAddr, Answer>,
}

#[derive(Debug)]
struct Answer {
    connection: Connection,
    is_given: bool,
}

impl Server {
    pub(super) fn new(
        local: SocketAddr,
        schedule: Schedule,
        config: TcpConfig,
        size_bytes: u64,
        isn: Rng,
    ) -> Self {
        Self {
            local,
            size_bytes,
            stop: schedule.stop,
            config: TcpConfig {
                limit: Some(0),
                ..config
            },
            isn,
            connections: BTreeMap::new(),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_segment(
        &mut self,
        io: &mut Io<'_>,
        remote: SocketAddr,
        segment: &Segment,
    ) {
        if io.now >= self.stop {
            return;
        }
        let has_room = self.connections.len() < MAX_CONNECTIONS;
        match self.connections.get_mut(&remote) {
            Some(answer) => answer.connection.handle_segment(io.now, segment, false),
            None if has_room && segment.flags.contains(Flags::SYN) => {
                let isn = initial_sequence_number(&mut self.isn);
                let answer = Answer {
                    connection: Connection::accept(io.now, self.config, isn, segment),
                    is_given: false,
                };
                self.connections.insert(remote, answer);
            }
            None => return,
        }
        self.drain(io, remote);
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        let is_due = |answer: &Answer| {
            let at = answer.connection.poll_timeout();
            at.is_some_and(|at| at <= io.now)
        };
        let due = self.connections.iter().filter(|(_, answer)| is_due(answer));
        let due: Vec<SocketAddr> = due.map(|(remote, _)| *remote).collect();
        for remote in due {
            if let Some(answer) = self.connections.get_mut(&remote) {
                answer.connection.handle_timeout(io.now);
            }
            self.drain(io, remote);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.connections.values();
        connections
            .filter_map(|answer| answer.connection.poll_timeout())
            .min()
            .filter(|&at| at < self.stop)
    }

    fn drain(&mut self, io: &mut Io<'_>, remote: SocketAddr) {
        let Some(answer) = self.connections.get_mut(&remote) else {
            return;
        };
        let connection = &mut answer.connection;
        if !answer.is_given && connection.received() >= QUESTION_BYTES {
            answer.is_given = true;
            connection.write(self.size_bytes);
            connection.close();
        }
        while let Some(segment) = connection.poll_transmit(io.now) {
            io.send_segment(self.local, remote, &segment);
        }
        if matches!(connection.state(), State::Aborted | State::Closed) {
            self.connections.remove(&remote);
        }
    }
}

/// A client that sends one request after the other.
#[derive(Debug)]
pub(super) struct Client {
    local: SocketAddr,
    remote: SocketAddr,
    size_bytes: u64,
    schedule: Schedule,
    interval: Duration,
    config: TcpConfig,
    isn: Rng,
    /// Number of intervals that have been used.
    slots: u32,
    request: Option<Request>,
    /// Connections whose request is finished, until they are closed, by port.
    closing: BTreeMap<u16, Connection>,
    ports: u16,
    report: FlowReport,
}

#[derive(Debug)]
struct Request {
    began: Instant,
    deadline: Instant,
    port: u16,
    /// The connection. `None` while the next attempt waits for `connect_at`.
    connection: Option<Connection>,
    connect_at: Instant,
    received: u64,
}

impl Client {
    pub(super) fn new(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        config: TcpConfig,
        (size_bytes, interval): (u64, Duration),
        isn: Rng,
    ) -> Self {
        Self {
            local,
            remote,
            size_bytes,
            schedule,
            interval,
            config: TcpConfig {
                limit: Some(0),
                ..config
            },
            isn,
            slots: 0,
            request: None,
            closing: BTreeMap::new(),
            ports: 0,
            report: FlowReport::default(),
        }
    }

    pub(super) fn is_between(&self, remote: SocketAddr, local: SocketAddr) -> bool {
        let first = self.local.port();
        let is_ours = (first..first.saturating_add(PORTS)).contains(&local.port());
        remote == self.remote && local.ip() == self.local.ip() && is_ours
    }

    pub(super) fn handle_segment(&mut self, io: &mut Io<'_>, port: u16, segment: &Segment) {
        if io.now >= self.schedule.stop {
            return;
        }
        let current = self.request.as_mut().filter(|request| request.port == port);
        let current = current.and_then(|request| request.connection.as_mut());
        if let Some(connection) = current.or_else(|| self.closing.get_mut(&port)) {
            connection.handle_segment(io.now, segment, false);
            self.drain(io);
        }
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        if self.request.is_none() && self.next_at().is_some_and(|at| at <= io.now) {
            self.slots += 1;
            self.request = Some(Request {
                began: io.now,
                deadline: (io.now + PATIENCE).min(self.schedule.stop),
                port: self.next_port(),
                connection: None,
                connect_at: io.now,
                received: 0,
            });
        }
        if let Some(request) = &mut self.request {
            if request.deadline <= io.now {
                // A request that the end of the run interrupts is neither answered nor failed.
                self.report.sent += u64::from(request.deadline < self.schedule.stop);
                self.request = None;
            } else if request.connection.is_none() && request.connect_at <= io.now {
                let isn = initial_sequence_number(&mut self.isn);
                let mut connection = Connection::connect(io.now, self.config, isn);
                connection.write(QUESTION_BYTES);
                request.connection = Some(connection);
            }
        }
        let request = self.request.as_mut();
        let current = request.and_then(|request| request.connection.as_mut());
        for connection in current.into_iter().chain(self.closing.values_mut()) {
            if connection.poll_timeout().is_some_and(|at| at <= io.now) {
                connection.handle_timeout(io.now);
            }
        }
        self.drain(io);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let closing = self.closing.values().filter_map(Connection::poll_timeout);
        let next = match &self.request {
            None => self.next_at(),
            Some(request) => match &request.connection {
                None => Some(request.connect_at.min(request.deadline)),
                Some(connection) => connection
                    .poll_timeout()
                    .map_or(Some(request.deadline), |at| Some(at.min(request.deadline))),
            },
        };
        closing
            .chain(next)
            .min()
            .filter(|&at| at < self.schedule.stop)
    }

    pub(super) fn finish(self) -> FlowReport {
        self.report
    }

    /// Returns the time at which the next request is to begin.
    fn next_at(&self) -> Option<Instant> {
        let at = self.schedule.start + self.interval.saturating_mul(self.slots);
        (at < self.schedule.stop).then_some(at)
    }

    fn next_port(&mut self) -> u16 {
        let port = self.local.port() + self.ports;
        self.ports = (self.ports + 1) % PORTS;
        port
    }

    /// Receives arrived data, and sends segments that may be sent.
    fn drain(&mut self, io: &mut Io<'_>) {
        if let Some(request) = &mut self.request
            && let Some(connection) = &mut request.connection
        {
            send(io, self.local, request.port, self.remote, connection);
            let new = connection.received() - request.received;
            request.received += new;
            let new = usize::try_from(new).unwrap_or(usize::MAX);
            self.schedule.record(&mut self.report, io.now, new);
            if request.received >= self.size_bytes {
                self.report.sent += 1;
                self.report.received += 1;
                self.report.delay(io.now.since(request.began));
                connection.close();
                let port = request.port;
                let request = self.request.take();
                let connection = request.and_then(|request| request.connection);
                self.closing
                    .extend(connection.map(|connection| (port, connection)));
            } else if connection.state() == State::Aborted {
                request.connection = None;
                request.connect_at = io.now + TICK;
                request.received = 0;
            }
        }
        for (port, connection) in &mut self.closing {
            send(io, self.local, *port, self.remote, connection);
        }
        self.closing
            .retain(|_, connection| !matches!(connection.state(), State::Aborted | State::Closed));
    }
}

fn send(
    io: &mut Io<'_>,
    local: SocketAddr,
    port: u16,
    remote: SocketAddr,
    connection: &mut Connection,
) {
    while let Some(segment) = connection.poll_transmit(io.now) {
        io.send_segment(SocketAddr::new(local.ip(), port), remote, &segment);
    }
}
