//! The hostile client and its way to the gateway.

use std::collections::VecDeque;

use pleach_core::{
    session::handshake::StaticKeys,
    time::{Instant, saturating_nanos},
};

use super::{
    gateway::{BEYOND, GATEWAY_KEY, Gateway, HOSTILE_KEY, INNER},
    peer::{Data, Habits, Lane, Peer},
};

/// The client.
pub(super) struct Client {
    pub(super) peer: Peer,
    attempts: u8,
    /// Latest datagrams.
    sent: VecDeque<(u8, Vec<u8>)>,
}

impl Client {
    pub(super) fn new() -> Self {
        let gateway = *StaticKeys::from_private([GATEWAY_KEY; 32]).public();
        let keys = StaticKeys::from_private([HOSTILE_KEY; 32]);
        Self {
            peer: Peer::new(keys, gateway, INNER, BEYOND),
            attempts: 0,
            sent: VecDeque::new(),
        }
    }

    /// Shakes hands from address `source`. `is_new`: as another association.
    pub(super) fn connect(&mut self, gateway: &mut Gateway, source: u8, is_new: bool) {
        self.attempts = self.attempts.saturating_add(1);
        self.peer.association += u64::from(is_new);
        // The gateway's clock counts from zero.
        let time = saturating_nanos(gateway.now.since(Instant::ZERO));
        let seed = [self.attempts; 32];
        let datagram = self.peer.initiation(gateway.now, time, source, seed);
        gateway.handle(source, datagram.expect("a key"));
    }

    /// Describes a link for each of some paths.
    pub(super) fn bring_up(&mut self, gateway: &mut Gateway) {
        for datagram in self.peer.bring_up(gateway.now, 4) {
            self.send(gateway, 0, Some(datagram));
        }
    }

    /// Reports what has come, or what it says has come.
    pub(super) fn report(&mut self, gateway: &mut Gateway) {
        let report = self.peer.report(gateway.now);
        self.send(gateway, 0, report);
    }

    /// Changes how it behaves.
    pub(super) fn change(&mut self, habits: u8, association: bool) {
        self.peer.habits = Habits {
            answers: habits & 1 == 0,
            reports: habits & 2 == 0,
            settles: habits & 4 == 0,
        };
        self.peer.association += u64::from(association);
    }

    /// Sends a control datagram.
    pub(super) fn control(&mut self, gateway: &mut Gateway, source: u8, lane: Lane, body: &[u8]) {
        let sealed = self.peer.control(gateway.now, lane, body);
        self.send(gateway, source, sealed);
    }

    /// Sends a data datagram.
    pub(super) fn data(&mut self, gateway: &mut Gateway, source: u8, lane: Lane, data: &Data) {
        let sealed = self.peer.data(gateway.now, lane, data);
        self.send(gateway, source, sealed);
    }

    fn send(&mut self, gateway: &mut Gateway, source: u8, sealed: Option<Vec<u8>>) {
        let Some(datagram) = sealed else {
            return;
        };
        if self.sent.len() >= 64 {
            self.sent.pop_front();
        }
        self.sent.push_back((source, datagram.clone()));
        gateway.handle(source, datagram);
    }

    /// Sends an earlier datagram again.
    pub(super) fn replay(&mut self, gateway: &mut Gateway, which: usize) {
        if let Some((source, datagram)) = self.sent.get(which) {
            gateway.handle(*source, datagram.clone());
        }
    }

    /// Sends the last datagram again, with a wrong bit.
    pub(super) fn damage(&mut self, gateway: &mut Gateway, at: u16, bit: u8) {
        if let Some((source, datagram)) = self.sent.back() {
            let mut datagram = datagram.clone();
            let at = usize::from(at) % datagram.len();
            datagram[at] ^= 1 << (bit % 8);
            gateway.handle(*source, datagram);
        }
    }
}
