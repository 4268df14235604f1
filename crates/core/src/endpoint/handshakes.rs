//! Handshakes that a gateway answers.
//!
//! The less a sender has proved, the less work a gateway does for it. The checks run in this order, each only if the
//! initiation has passed the previous check:
//!
//! 1. mac1, one hash: rejects senders that do not know the gateway's public key.
//! 2. Whether this initiation was read before ([`SeenInitiations`]): a table look-up.
//! 3. mac2, at most four hashes: whether a cookie proves the source address.
//! 4. The token buckets of the source and of the gateway ([`HandshakeLimiter`]).
//! 5. Two X25519 operations, in [work that the owner runs](super::work): they yield the sender's key and the timestamp
//!    of the initiation. A sender with an unknown key may present an [invitation](super::enrolment).
//! 6. Whether the initiation is fresh: its timestamp is not before the start of this gateway, and later than the
//!    timestamps of all answered initiations of this peer. If it is not fresh, the sender must prove its address, so a
//!    client with a wrong clock needs one more RTT.
//! 7. The peer's token buckets: one for fresh initiations and a smaller one for all others. Then three X25519
//!    operations compute the answer.
//!
//! If the sender belongs to another [worker](super::workers), that worker's endpoint continues after step 5.
//!
//! The peer's session does not change until a datagram is decrypted with the new keys.
//!
//! [`SeenInitiations`]: crate::session::seen::SeenInitiations
//! [`HandshakeLimiter`]: crate::session::limiter::HandshakeLimiter

use core::{net::SocketAddr, time::Duration};

use super::{
    Endpoint, Event, PROTOCOL_VERSION, entropy,
    work::{Arrival, HandshakeResult, HandshakeWork, Outcome},
};
use crate::{
    counters::DropReason,
    session::{
        handshake::{EphemeralId, Established, HandshakeError, Incoming as Initiation},
        limiter::{Admission, Source},
        seen::MacId,
    },
    time::Instant,
    transmit::Route,
    tunnel::Incoming,
    wire::handshake::InitiationView,
};

/// Counters of the handshakes of an endpoint since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeCounters {
    /// Number of initiations with a valid mac1.
    pub initiations: u64,
    /// Number of initiations with a valid mac1 that had been read before and were dropped at once.
    pub replayed: u64,
    /// Number of initiations that were answered with a cookie reply.
    pub asked_for_proof: u64,
    /// Number of initiations that were answered with a busy reply.
    pub told_to_come_back: u64,
    /// Number of initiations that were read, at two curve operations each.
    pub read: u64,
    /// Number of initiations that were answered with a response, at three curve operations each.
    pub answered: u64,
    /// Number of handshakes that this end has started and that a response has completed. 0 at a gateway.
    pub completed: u64,
}

impl HandshakeCounters {
    /// Returns the number of X25519 operations that a gateway has spent on answering.
    #[must_use]
    pub const fn curve_operations(&self) -> u64 {
        2 * self.read + 3 * self.answered
    }
}

impl Endpoint {
    pub(super) fn handle_initiation(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let view = InitiationView::new(datagram).map_err(|_| DropReason::Malformed)?;
        if !self.jar.is_valid_mac1(datagram) {
            return Err(DropReason::HandshakeInvalid);
        }
        self.handshakes.initiations += 1;
        if self.jar.refresh(now, &mut *self.entropy) {
            self.seen.on_new_secret();
        }
        let mac = MacId::of(&view);
        let source = incoming.route.remote;
        // The MACs of an initiation that was read with a proof need not be checked again.
        let is_proved = !self.seen.contains(mac, true) && self.jar.check_mac2(source, datagram);
        if self.seen.contains(mac, is_proved) {
            self.handshakes.replayed += 1;
            return Err(DropReason::HandshakeReplayed);
        }
        let mut admission = self.limiter.admit(now, source, is_proved);
        if admission == Admission::Proceed && !self.work.has_room(is_proved) {
            admission = self.limiter.on_full(now, source, is_proved);
        }
        if admission != Admission::Proceed {
            return self.turn_away(incoming.route, is_proved, datagram, admission);
        }
        let arrival = Arrival {
            route: incoming.route,
            is_proved,
            id: EphemeralId::of(&view),
            is_handed: false,
            datagram: datagram.to_vec(),
        };
        if self.seen.is_full() {
            self.jar.hasten(now, &mut *self.entropy);
            self.seen.on_new_secret();
        }
        self.seen.insert(mac, is_proved);
        self.handshakes.read += 1;
        let keys = self.keys.clone();
        self.work.push(HandshakeWork::read(keys, arrival));
        Ok(())
    }

    /// Returns handshake work, which the owner runs on any thread and returns with [`Self::handle_handshake_result`].
    ///
    /// At most [`MAX_WORK`](super::work::MAX_WORK) pieces of work are waiting or in progress at any time.
    pub fn poll_handshake_work(&mut self) -> Option<HandshakeWork> {
        self.work.poll()
    }

    /// Handles the result of a piece of work.
    pub fn handle_handshake_result(&mut self, now: Instant, result: HandshakeResult) {
        self.work.on_done(&result);
        let outcome = match result.0 {
            Outcome::Read { arrival, read } => self.on_read(now, arrival, read),
            Outcome::Responded {
                arrival,
                peer,
                local_index,
                association,
                answer,
            } => self.on_responded(now, &arrival, peer, local_index, association, answer),
        };
        if let Err(reason) = outcome {
            self.common.drops.add(reason, 1);
        }
    }

    /// Does all handshake work at once, for owners without a thread for it.
    pub fn work_inline(&mut self, now: Instant) {
        while let Some(work) = self.poll_handshake_work() {
            self.handle_handshake_result(now, work.run());
        }
    }

    /// Returns the counters of handshakes.
    #[must_use]
    pub const fn handshakes(&self) -> &HandshakeCounters {
        &self.handshakes
    }

    fn on_read(
        &mut self,
        now: Instant,
        arrival: Arrival,
        read: Result<Box<Initiation>, HandshakeError>,
    ) -> Result<(), DropReason> {
        let Ok(initiation) = read else {
            if !arrival.is_proved {
                self.limiter.on_wasted(now);
            }
            return Err(DropReason::HandshakeInvalid);
        };
        let owner = self.others.share.owner_of(&initiation.remote_static);
        if owner != self.others.share.number() {
            return self.hand_over(now, arrival, initiation, owner);
        }
        match self.peers.of_key(&initiation.remote_static) {
            Some(index) => self.on_identified(now, arrival, index, initiation),
            None => self.on_stranger(now, arrival, initiation),
        }
    }

    /// Handles an initiation of a known peer that has been read.
    pub(super) fn on_identified(
        &mut self,
        now: Instant,
        arrival: Arrival,
        index: usize,
        initiation: Box<Initiation>,
    ) -> Result<(), DropReason> {
        if initiation.hello.protocol_version != PROTOCOL_VERSION {
            // The version mismatch is reported at once, before the other checks of the initiation.
            let version = initiation.hello.protocol_version;
            self.on_wasted(now, &arrival);
            return Err(self.refuse(index, HandshakeError::Version(version)));
        }
        let start_time = self.time_of_day.start();
        let peer = &mut self.peers[index];
        let time = initiation.hello.time.unwrap_or(0);
        let is_fresh = time > peer.newest && time >= start_time;
        if peer.recent.contains(arrival.id) {
            self.on_wasted(now, &arrival);
            self.handshakes.replayed += 1;
            return Err(DropReason::HandshakeReplayed);
        }
        if !arrival.is_proved && !is_fresh {
            self.on_wasted(now, &arrival);
            return self.turn_away_arrival(&arrival, Admission::ProveAddress);
        }
        // An attacker can add a proof of its own address to recorded initiations. They must not use up the budget of
        // the client's own initiations.
        let limits = self.limiter.limits();
        let (allowance, rate) = if is_fresh {
            (&mut peer.allowance, limits.client)
        } else {
            (&mut peer.not_fresh, limits.not_fresh)
        };
        if let Err(wait) = allowance.take(now, rate) {
            self.on_wasted(now, &arrival);
            return self.turn_away_arrival(&arrival, Admission::ComeBack(wait));
        }
        if !arrival.is_proved && peer.tunnel.sessions().has_unconfirmed() {
            // An attacker may have intercepted this initiation and delayed it until now. The initiation must not
            // displace another session.
            return self.turn_away_arrival(&arrival, Admission::ProveAddress);
        }
        if !self.work.has_room(true) {
            let admission = self
                .limiter
                .on_full(now, arrival.route.remote, arrival.is_proved);
            return self.turn_away_arrival(&arrival, admission);
        }
        let local_index = self
            .indices
            .allocate(index)
            .ok_or(DropReason::HandshakeLimited)?;
        // The largest timestamp is stored. So a client whose clock was set back is asked for a proof each time, but
        // recorded initiations do not become fresh when a clock is set back.
        let peer = &mut self.peers[index];
        peer.newest = peer.newest.max(time);
        peer.recent.insert(arrival.id);
        let hello = self.hello(index);
        self.work.push(HandshakeWork::respond(
            arrival,
            index,
            local_index,
            hello,
            initiation,
            self.peers[index].config.preshared_key.clone(),
            entropy::secret(&mut *self.entropy),
        ));
        Ok(())
    }

    fn on_responded(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        index: usize,
        local_index: u32,
        association: u64,
        answer: Result<(Established, Vec<u8>), HandshakeError>,
    ) -> Result<(), DropReason> {
        self.handshakes.answered += u64::from(answer.is_ok());
        let answer = match answer {
            // The association may have ended while the answer was computed.
            Ok(answer) if association == self.peers[index].association => Ok(answer),
            Ok(_) => Err(DropReason::UnknownSession),
            Err(error) => Err(self.refuse(index, error)),
        };
        let (established, response) = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                self.indices.free(local_index);
                return Err(reason);
            }
        };
        let peer = &mut self.peers[index];
        peer.tunnel
            .sessions()
            .install_answered(now, established, local_index);
        peer.tunnel.on_answered(now);
        if arrival.is_proved {
            self.on_address_proved(index, arrival.route.remote);
        }
        self.free_indices(index);
        self.peers.activate(index);
        self.reply(arrival.route, response);
        Ok(())
    }

    /// Records that a peer has proved `address`: by a cookie that was sent to the address, or by the first datagram of
    /// an answered session, which only the receiver of the response can send.
    pub(super) fn on_address_proved(&mut self, index: usize, address: SocketAddr) {
        let source = Source::from(address);
        let peer = &mut self.peers[index];
        if !peer.sources.contains(&Some(source)) {
            peer.sources.rotate_right(1);
            let former = peer.sources[0].replace(source);
            self.on_known(source, former);
        }
    }

    /// Returns the drop reason for a failed handshake of a known peer. Reports errors that the host can fix.
    pub(super) fn refuse(&mut self, index: usize, error: HandshakeError) -> DropReason {
        if let HandshakeError::Version(version) = error {
            self.events.push_back(Event::Incompatible {
                name: self.peers[index].config.name.clone(),
                version,
            });
        }
        DropReason::HandshakeInvalid
    }

    /// Sends the reply that `admission` specifies to an initiation that is not processed.
    pub(super) fn turn_away_arrival(
        &mut self,
        arrival: &Arrival,
        admission: Admission,
    ) -> Result<(), DropReason> {
        if arrival.is_handed {
            return self.return_arrival(arrival, admission);
        }
        self.turn_away(
            arrival.route,
            arrival.is_proved,
            &arrival.datagram,
            admission,
        )
    }

    fn turn_away(
        &mut self,
        route: Route,
        is_proved: bool,
        datagram: &[u8],
        admission: Admission,
    ) -> Result<(), DropReason> {
        let source = route.remote;
        let reply = match admission {
            Admission::ProveAddress => {
                self.handshakes.asked_for_proof += 1;
                self.jar.reply(source, datagram).ok()
            }
            Admission::ComeBack(wait) if is_proved => {
                self.handshakes.told_to_come_back += 1;
                self.jar.busy(source, datagram, wait.max(LEAST_WAIT))
            }
            Admission::ComeBack(_) | Admission::Proceed | Admission::Refuse => None,
        };
        if let Some(reply) = reply {
            self.reply(route, reply);
        }
        Err(DropReason::HandshakeLimited)
    }
}

/// Minimum wait that is sent to a client.
const LEAST_WAIT: Duration = Duration::from_millis(50);
