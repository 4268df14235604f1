//! Datagrams that arrive on a path. They update the path's remote address, are counted for reports, and show that the
//! other direction works.

use super::{
    Path, delay::RelativeDelay, health::LinkEvent, on_wire, receiver::DataArrival,
    train::TrainPacket,
};
use crate::{ids::Seq, time::Instant, transmit::Route, units::Bytes, wire::Kind};

impl Path {
    /// Processes an authentic datagram of `len` bytes of UDP payload. `roams_to`: the source address of the datagram,
    /// if this end follows the peer's address. It becomes the path's remote address if the datagram is newer than all
    /// earlier ones of its kind (data or control).
    pub fn on_authentic(
        &mut self,
        now: Instant,
        kind: Kind,
        (counter, len): (u64, usize),
        roams_to: Option<Route>,
    ) {
        let newest = &mut self.newest[kind as usize];
        if newest.is_none_or(|newest| counter > newest) {
            *newest = Some(counter);
            if let Some(route) = roams_to.filter(|route| self.route != Some(*route)) {
                // A change of the port alone keeps the MTU.
                let is_elsewhere = self
                    .route
                    .is_none_or(|known| known.remote.ip() != route.remote.ip());
                if is_elsewhere {
                    self.mtu.restart();
                }
                self.address.on_move(now, self.route, route);
                self.route = Some(route);
                self.health.on_link(now, LinkEvent::Up);
            }
        }
        if let Some(route) = &roams_to {
            self.address.on_received(route, len);
        }
        self.health.on_received(now);
    }

    /// Processes a data datagram. Returns its one-way delay.
    pub fn on_data(&mut self, now: Instant, arrival: &DataArrival) -> RelativeDelay {
        let interval = self.feedback_interval();
        self.receiver.on_data(now, arrival, interval)
    }

    /// Processes a control datagram that was sent at `sent_us` of the peer's clock.
    pub fn on_control(&mut self, now: Instant, sent_us: u32) {
        self.receiver.on_control(now, sent_us);
    }

    /// Queues the answer to a ping.
    pub fn on_ping(&mut self, token: u32, size: u16) {
        self.probes.owe(token, size);
    }

    /// Processes a tail frame: no data datagram follows `path_seq` for now.
    pub fn on_tail(&mut self, now: Instant, path_seq: Seq) {
        self.receiver.on_tail(now, path_seq);
    }

    /// Processes a datagram of a packet train, of `len` bytes of UDP payload. `may_begin` says whether a train that has
    /// just begun may be measured.
    pub fn on_train_arrival(
        &mut self,
        now: Instant,
        packet: TrainPacket,
        len: Bytes,
        may_begin: impl FnOnce() -> bool,
    ) {
        let len = len + on_wire::headers(self.route.as_ref());
        let len = u32::try_from(len.get()).unwrap_or(u32::MAX);
        self.train_receiver.on_arrival(now, packet, len, may_begin);
    }
}
