//! Datagrams at a given rate, each with a sequence number and the time it was sent.
//!
//! If the client receives, it sends hellos until the first datagram arrives. This also creates a mapping in address
//! translators.

use core::net::SocketAddr;

use pleach_core::time::Instant;

use super::{GRACE, Io, Schedule, TICK, number_at};
use crate::{
    measure::{Arrival, Arrivals, Asked, FlowReport},
    pattern::{Departure, Pattern},
    world::Datagram,
};

/// Length in bytes of a datagram's header: its number and its time of sending.
const HEADER_BYTES: usize = 16;

/// The sending end.
#[derive(Debug)]
pub(super) struct Source {
    local: SocketAddr,
    /// Address of the receiver. `None` until its hello arrives.
    peer: Option<SocketAddr>,
    schedule: Schedule,
    size: usize,
    pattern: Pattern,
    next: Option<Departure>,
    report: FlowReport,
}

impl Source {
    pub(super) fn new(
        local: SocketAddr,
        peer: Option<SocketAddr>,
        schedule: Schedule,
        mut pattern: Pattern,
    ) -> Self {
        Self {
            local,
            peer,
            schedule,
            size: usize::try_from(pattern.size().get()).unwrap_or(usize::MAX),
            next: pattern.next_departure(),
            pattern,
            report: FlowReport::default(),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_datagram(&mut self, datagram: &Datagram<'_>) {
        self.peer.get_or_insert(datagram.source);
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        let Some(peer) = self.peer else { return };
        while self.poll_timeout().is_some_and(|at| at <= io.now) {
            let datagrams = self.next.map_or(0, |departure| departure.datagrams);
            for _ in 0..datagrams {
                let (number, size) = (self.report.sent, self.size);
                let stamp = io.now.as_nanos();
                io.send(self.local, peer, |bytes| {
                    let end = bytes.len() + size;
                    bytes.extend_from_slice(&number.to_be_bytes());
                    bytes.extend_from_slice(&stamp.to_be_bytes());
                    bytes.resize(end, 0);
                });
                self.report.sent += 1;
                if let Some(at) = self.schedule.elapsed(io.now) {
                    self.report.record_sent(at, size);
                }
            }
            self.next = self.pattern.next_departure();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.peer?;
        let at = self.schedule.start + self.next?.at;
        (at < self.schedule.stop).then_some(at)
    }

    pub(super) fn finish(self) -> FlowReport {
        self.report
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Sink {
    local: SocketAddr,
    /// Server to which hellos are sent.
    server: Option<SocketAddr>,
    schedule: Schedule,
    hello_at: Option<Instant>,
    asked: Asked,
    arrivals: Arrivals,
    report: FlowReport,
}

impl Sink {
    pub(super) fn new(
        local: SocketAddr,
        server: Option<SocketAddr>,
        schedule: Schedule,
        asked: Asked,
    ) -> Self {
        Self {
            local,
            server,
            hello_at: server.map(|_| schedule.begin - TICK),
            schedule,
            asked,
            arrivals: Arrivals::default(),
            report: FlowReport::default(),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_datagram(&mut self, io: &Io<'_>, datagram: &Datagram<'_>) {
        let payload = datagram.payload;
        if payload.len() < HEADER_BYTES || io.now >= self.schedule.stop + GRACE {
            return;
        }
        self.hello_at = None;
        let number = number_at(payload, 0);
        let arrival = self.arrivals.note(number);
        if arrival == Arrival::Copy {
            return;
        }
        let sent_at = Instant::from_nanos(number_at(payload, 8));
        let delay = io.now.since(sent_at);
        let at = self.schedule.elapsed(sent_at);
        let asked = self.asked;
        self.report
            .record_delay(number, at, delay, payload.len(), asked);
        self.schedule
            .record(&mut self.report, io.now, payload.len());
        if let (Arrival::InOrder, Some(at)) = (arrival, self.schedule.elapsed(io.now)) {
            self.report.record_in_order(at, payload.len());
        }
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        let Some(server) = self.server else { return };
        if self.poll_timeout().is_some_and(|at| at <= io.now) {
            io.send(self.local, server, |bytes| {
                bytes.extend_from_slice(b"hello")
            });
            self.hello_at = Some(io.now + TICK);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.hello_at.filter(|&at| at < self.schedule.stop + GRACE)
    }

    pub(super) fn finish(mut self) -> FlowReport {
        self.report.reorder_depth_max = self.arrivals.depth_max();
        self.report.received = self.arrivals.count();
        self.report.received_in_order = self.arrivals.in_order();
        self.report
    }
}
