//! Bulk transfer over TCP: one connection, each end an application.

use core::net::SocketAddr;

use pleach_core::{rng::Rng, time::Instant};

use super::{Io, Schedule, TICK};
use crate::{
    measure::FlowReport,
    scenario::Turn,
    tcp::{Connection, Segment, State, TcpConfig},
};

/// One end of a bulk transfer.
#[derive(Debug)]
pub(super) struct Bulk {
    local: SocketAddr,
    remote: SocketAddr,
    schedule: Schedule,
    config: TcpConfig,
    is_client: bool,
    is_sender: bool,
    isn: Rng,
    connection: Option<Connection>,
    /// Time at which the client connects (again).
    connect_at: Option<Instant>,
    /// Time of the sender's next RTT sample.
    sample_at: Instant,
    received: u64,
    /// Messages before the payload, number of messages that are complete, and number of bytes that the other end had
    /// sent by then.
    turns: &'static [Turn],
    over: usize,
    heard: u64,
    report: FlowReport,
}

impl Bulk {
    /// Creates the end that connects.
    pub(super) fn client(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        config: TcpConfig,
        is_sender: bool,
        isn: Rng,
    ) -> Self {
        Self {
            connect_at: Some(schedule.start),
            is_client: true,
            ..Self::server(local, remote, schedule, config, is_sender, isn)
        }
    }

    /// Creates the end that listens.
    pub(super) fn server(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        config: TcpConfig,
        is_sender: bool,
        isn: Rng,
    ) -> Self {
        let limit = if is_sender { None } else { Some(0) };
        Self {
            local,
            remote,
            schedule,
            config: TcpConfig { limit, ..config },
            is_client: false,
            is_sender,
            isn,
            connection: None,
            connect_at: None,
            sample_at: schedule.start + TICK,
            received: 0,
            turns: &[],
            over: 0,
            heard: 0,
            report: FlowReport::default(),
        }
    }

    /// Sets the messages that the ends exchange before the sender begins.
    pub(super) fn with_turns(mut self, turns: &'static [Turn]) -> Self {
        if !turns.is_empty() {
            self.config.limit = Some(0);
        }
        self.turns = turns;
        self
    }

    pub(super) fn is_between(&self, remote: SocketAddr, local: SocketAddr) -> bool {
        (self.remote, self.local) == (remote, local)
    }

    pub(super) fn handle_segment(&mut self, io: &mut Io<'_>, segment: &Segment) {
        if io.now >= self.schedule.stop {
            return;
        }
        match &mut self.connection {
            Some(connection) => connection.handle_segment(io.now, segment, false),
            None if !self.is_client => {
                let isn = initial_sequence_number(&mut self.isn);
                self.connection = Some(Connection::accept(io.now, self.config, isn, segment));
            }
            None => return,
        }
        self.drain(io);
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        if io.now >= self.schedule.stop {
            return;
        }
        if self.connect_at.is_some_and(|at| at <= io.now) {
            self.connect_at = None;
            let isn = initial_sequence_number(&mut self.isn);
            self.connection = Some(Connection::connect(io.now, self.config, isn));
        }
        if let Some(connection) = &mut self.connection {
            connection.handle_timeout(io.now);
        }
        self.drain(io);
        if self.samples() && self.sample_at <= io.now {
            self.sample_at = io.now + TICK;
            let stats = self.connection.as_ref().map(Connection::stats);
            if let Some(round_trip) = stats.and_then(|stats| stats.smoothed_rtt) {
                self.report.delay(round_trip);
            }
        }
    }

    /// Returns the time of the next event. `None` after the end of the flow: segments still queued then are dropped.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let connection = self.connection.as_ref().and_then(Connection::poll_timeout);
        let sample = self.samples().then_some(self.sample_at);
        [connection, self.connect_at, sample]
            .into_iter()
            .flatten()
            .min()
            .filter(|&at| at < self.schedule.stop)
    }

    pub(super) fn finish(mut self) -> FlowReport {
        if self.is_sender {
            let stats = self.connection.as_ref().map(Connection::stats);
            self.report.retransmits = stats.map(|stats| stats.retransmits);
        }
        self.report
    }

    fn samples(&self) -> bool {
        self.is_sender && self.connection.is_some()
    }

    /// Sends the message that is due from this end.
    fn take_turns(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while let Some(turn) = self.turns.get(self.over) {
            let bytes = turn.bytes.into();
            if turn.is_client == self.is_client {
                connection.write(bytes);
            } else if connection.received() >= self.heard + bytes {
                self.heard += bytes;
            } else {
                return;
            }
            self.over += 1;
            if self.over == self.turns.len() && self.is_sender {
                connection.write(ENDLESS);
            }
        }
    }

    /// Receives arrived data, and sends segments that may be sent.
    fn drain(&mut self, io: &mut Io<'_>) {
        self.take_turns();
        let Some(connection) = &mut self.connection else {
            return;
        };
        while let Some(segment) = connection.poll_transmit(io.now) {
            io.send_segment(self.local, self.remote, &segment);
        }
        let new = connection.received() - self.received;
        if new > 0 {
            self.received += new;
            let new = usize::try_from(new).unwrap_or(usize::MAX);
            self.schedule.record(&mut self.report, io.now, new);
        }
        if connection.state() == State::Aborted {
            // The listener waits for another connection. The client connects again, as after a refusal.
            self.connection = None;
            (self.received, self.over, self.heard) = (0, 0, 0);
            if self.is_client {
                self.connect_at = Some(io.now + TICK);
            }
        }
    }
}

/// Number of bytes that exceeds the length of any scenario.
const ENDLESS: u64 = 1 << 50;

/// Returns a random initial sequence number.
pub(super) fn initial_sequence_number(rng: &mut Rng) -> u32 {
    u32::try_from(rng.next_u64() >> 32).unwrap_or(0)
}
