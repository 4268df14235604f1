//! Echo requests over UDP at a fixed interval. They begin [`IDLE_PING`] before the run, to measure the idle RTT.

use core::{net::SocketAddr, time::Duration};

use pleach_core::time::Instant;

use super::{GRACE, Io, Schedule, number_at};
use crate::{
    measure::{EchoRequests, FlowReport, IDLE_PING},
    world::Datagram,
};

/// A server that returns every datagram.
#[derive(Debug)]
pub(super) struct Echo {
    local: SocketAddr,
}

impl Echo {
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { local }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_datagram(&self, io: &mut Io<'_>, datagram: &Datagram<'_>) {
        io.send(self.local, datagram.source, |bytes| {
            bytes.extend_from_slice(datagram.payload);
        });
    }
}

/// A client that sends echo requests.
#[derive(Debug)]
pub(super) struct Ping {
    local: SocketAddr,
    server: SocketAddr,
    schedule: Schedule,
    interval: Duration,
    next_at: Instant,
    requests: EchoRequests,
}

impl Ping {
    pub(super) fn new(
        local: SocketAddr,
        server: SocketAddr,
        schedule: Schedule,
        interval: Duration,
    ) -> Self {
        Self {
            local,
            server,
            schedule,
            interval,
            next_at: schedule.begin - IDLE_PING,
            requests: EchoRequests::default(),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_datagram(&mut self, io: &Io<'_>, datagram: &Datagram<'_>) {
        if datagram.payload.len() >= 8 && io.now < self.schedule.stop + GRACE {
            self.requests
                .receive(io.now, number_at(datagram.payload, 0));
        }
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        while self.poll_timeout().is_some_and(|at| at <= io.now) {
            let number = self.requests.send(io.now);
            io.send(self.local, self.server, |bytes| {
                bytes.extend_from_slice(&number.to_be_bytes());
            });
            self.next_at += self.interval;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (self.next_at < self.schedule.stop).then_some(self.next_at)
    }

    pub(super) fn finish(self) -> FlowReport {
        self.requests
            .report(self.schedule.begin, self.schedule.start)
    }
}
