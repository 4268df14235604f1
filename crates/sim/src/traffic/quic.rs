//! Bulk transfer over QUIC: one connection with one stream, each end an application.

use core::net::SocketAddr;

use pleach_core::time::Instant;

use super::{Io, Schedule, TICK};
use crate::{measure::FlowReport, quic::Connection, world::Datagram};

/// One end of a bulk transfer.
#[derive(Debug)]
pub(super) struct Bulk {
    local: SocketAddr,
    remote: SocketAddr,
    schedule: Schedule,
    is_sender: bool,
    connection: Connection,
    /// Time of the sender's next RTT sample.
    sample_at: Instant,
    received: u64,
    report: FlowReport,
}

impl Bulk {
    /// Creates the end that connects. `mtu`: length of the longest IP packet to the other end.
    pub(super) fn client(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        is_sender: bool,
        mtu: u16,
    ) -> Self {
        let payload = max_payload(local, mtu);
        let connection = Connection::connect(schedule.start, is_sender, payload);
        Self::new(local, remote, schedule, is_sender, connection)
    }

    /// Creates the end that waits for a connection.
    pub(super) fn server(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        is_sender: bool,
        mtu: u16,
    ) -> Self {
        let connection = Connection::listen(is_sender, max_payload(local, mtu));
        Self::new(local, remote, schedule, is_sender, connection)
    }

    fn new(
        local: SocketAddr,
        remote: SocketAddr,
        schedule: Schedule,
        is_sender: bool,
        connection: Connection,
    ) -> Self {
        Self {
            local,
            remote,
            schedule,
            is_sender,
            connection,
            sample_at: schedule.start + TICK,
            received: 0,
            report: FlowReport::default(),
        }
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn handle_datagram(&mut self, io: &mut Io<'_>, datagram: &Datagram<'_>) {
        if io.now >= self.schedule.stop || datagram.source != self.remote {
            return;
        }
        self.connection.handle_datagram(io.now, datagram.payload);
        self.drain(io);
    }

    pub(super) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        if io.now >= self.schedule.stop {
            return;
        }
        self.connection.handle_timeout(io.now);
        self.drain(io);
        if self.is_sender && self.sample_at <= io.now {
            self.sample_at = io.now + TICK;
            if let Some(round_trip) = self.connection.smoothed_rtt() {
                self.report.delay(round_trip);
            }
        }
    }

    /// Returns the time of the next event. `None` after the end of the flow.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let sample = self.is_sender.then_some(self.sample_at);
        crate::link::earliest(self.connection.poll_timeout(), sample)
            .filter(|&at| at < self.schedule.stop)
    }

    pub(super) fn finish(mut self) -> FlowReport {
        if self.is_sender {
            self.report.retransmits = Some(self.connection.stats().lost_pkts);
        }
        self.report
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        while let Some(packet) = self.connection.poll_transmit(io.now) {
            io.send(self.local, self.remote, |bytes| packet.write(bytes));
        }
        let new = self.connection.received() - self.received;
        if new > 0 {
            self.received += new;
            let new = usize::try_from(new).unwrap_or(usize::MAX);
            self.schedule.record(&mut self.report, io.now, new);
        }
    }
}

/// Returns the longest UDP payload in a packet of `mtu` bytes.
fn max_payload(local: SocketAddr, mtu: u16) -> u16 {
    mtu.saturating_sub(if local.is_ipv6() { 48 } else { 28 })
}
