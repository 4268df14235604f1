//! One direction of several links as a node: link *i* is connected to port *i* at both ends.

use pleach_core::time::Instant;

use super::packet::{Outbox, Packet};
use crate::{
    link::{LinkState, recorded::Recorded},
    measure::DirectionReport,
    scenario::Event,
};

/// Links in one direction.
#[derive(Debug)]
pub(crate) struct Line {
    links: Recorded<Packet>,
}

impl Line {
    pub(crate) fn new(links: Recorded<Packet>) -> Self {
        Self { links }
    }

    /// Schedules the start of the run, see [`Recorded::begin`].
    pub(crate) fn begin(&mut self, at: Instant, events: &[Event]) {
        self.links.begin(at, events);
    }

    /// Returns the measurements of each link since the run began.
    pub(crate) fn report(&self) -> DirectionReport {
        DirectionReport {
            links: self.links.report(),
            lateness_ns: None,
        }
    }

    pub(super) fn handle_packet(&mut self, now: Instant, link: usize, packet: Packet) {
        self.links
            .handle_packet(now, link, packet.bytes().len(), packet);
    }

    pub(super) fn settle(&mut self, now: Instant, outbox: &mut Outbox) {
        self.links.handle_timeout(now);
        while let Some(delivery) = self.links.poll_output(now) {
            outbox.send(delivery.link, delivery.packet);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.links.poll_timeout()
    }

    /// Returns a link whose carrier changed, and whether its sending end has a carrier now.
    pub(super) fn poll_carrier(&mut self) -> Option<(usize, bool)> {
        let (link, state) = self.links.poll_state()?;
        Some((link, state != LinkState::Down))
    }
}
