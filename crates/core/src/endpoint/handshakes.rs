//! Handshakes: answering them, and starting them when the client needs one.
//!
//! A gateway spends the least on whoever has shown the least: mac1 costs two hashes and keeps out who does not know our
//! public key; then the rate limit, which asks for a cookie; then the X25519 operations, which tell who it is; then that
//! client's own limit and its recent initiations. Nothing changes until a datagram opens under the new keys.

use core::time::Duration;

use super::{Endpoint, Event, connector::SLOW, shared};
use crate::{
    counters::DropReason,
    ids::PathId,
    session::{
        entropy,
        handshake::{HandshakeError, Initiator, Responder},
        limiter::Admission,
        rotation::Change,
    },
    time::Instant,
    tunnel::Incoming,
    wire::handshake::{InitiationView, ResponseView},
};

impl Endpoint {
    pub(super) fn handle_initiation(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        InitiationView::new(datagram).map_err(|_| DropReason::Malformed)?;
        if !self.jar.is_valid_mac1(datagram) {
            return Err(DropReason::HandshakeInvalid);
        }
        let source = incoming.route.remote;
        self.jar.refresh(now, &mut *self.entropy);
        let address_proved = self.jar.check_mac2(source, datagram);
        match self.limiter.admit(now, address_proved) {
            Admission::Proceed => {}
            Admission::ProveAddress => {
                return self.ask_for_cookie(incoming, datagram);
            }
            Admission::Refuse => return Err(DropReason::HandshakeLimited),
        }
        let initiation = Responder::read_initiation(&self.keys, datagram)
            .map_err(|_| DropReason::HandshakeInvalid)?;
        let index = *self
            .by_key
            .get(&initiation.remote_static)
            .ok_or(DropReason::HandshakeInvalid)?;
        let peer = &mut self.peers[index];
        if peer.recent.contains(initiation.ephemeral) {
            return Err(DropReason::HandshakeReplayed);
        }
        if peer.tunnel.sessions().has_unconfirmed() && !address_proved {
            // A replayed initiation must not push out a true handshake.
            return self.ask_for_cookie(incoming, datagram);
        }
        if !self.limiter.admit_client(now, &initiation.remote_static) {
            return Err(DropReason::HandshakeLimited);
        }
        peer.recent.insert(initiation.ephemeral);
        let local_index = self
            .indices
            .allocate(index)
            .ok_or(DropReason::HandshakeLimited)?;
        let psk = self.peers[index].config.preshared_key.clone();
        let hello = self.hello(index);
        let seed = entropy::secret(&mut *self.entropy);
        let (established, response) =
            match initiation.respond(psk.expose(), local_index, hello, seed) {
                Ok(answer) => answer,
                Err(error) => {
                    self.indices.free(local_index);
                    return Err(self.refuse(index, error));
                }
            };
        let tunnel = &mut self.peers[index].tunnel;
        tunnel
            .sessions()
            .install_answered(now, established, local_index);
        tunnel.on_answered(now);
        self.free_indices(index);
        self.activate(index);
        self.reply(incoming.route, response);
        Ok(())
    }

    /// Why the handshake of a known peer counts as dropped; tells the host what it can mend.
    fn refuse(&mut self, index: usize, error: HandshakeError) -> DropReason {
        if let HandshakeError::Version(version) = error {
            self.events.push_back(Event::Incompatible {
                name: self.peers[index].config.name.clone(),
                version,
            });
        }
        DropReason::HandshakeInvalid
    }

    fn ask_for_cookie(&mut self, incoming: &Incoming, datagram: &[u8]) -> Result<(), DropReason> {
        if let Ok(reply) = self.jar.reply(incoming.route.remote, datagram) {
            self.reply(incoming.route, reply.to_vec());
        }
        Err(DropReason::HandshakeLimited)
    }

    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let view = ResponseView::new(datagram).map_err(|_| DropReason::Malformed)?;
        let connector = self.connector.as_mut().ok_or(DropReason::Malformed)?;
        let wanted = view.receiver_index();
        let attempt = connector
            .pending
            .iter_mut()
            .find(|attempt| attempt.initiator.local_index() == wanted);
        let attempt = attempt.ok_or(DropReason::UnknownSession)?;
        let established = match attempt.initiator.read_response(datagram) {
            Ok(established) => established,
            Err(error) => return Err(self.refuse(0, error)),
        };
        connector.on_answer(&incoming.route);
        connector.finish(wanted);
        let route = connector.route_of(PathId(incoming.route.link));
        let mut shared = shared(&mut self.pool, &mut self.delivered, &mut self.drops);
        let tunnel = &mut self.peers[0].tunnel;
        if tunnel
            .sessions()
            .install_initiated(now, established, wanted)
            == Change::Restarted
        {
            tunnel.reset(now, &mut shared);
        }
        tunnel.set_route(now, PathId(incoming.route.link), route);
        tunnel.on_connected(now);
        self.free_indices(0);
        self.activate(0);
        Ok(())
    }

    pub(super) fn handle_cookie_reply(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let connector = self.connector.as_mut().ok_or(DropReason::Malformed)?;
        let cookies = connector
            .cookies(incoming.route.link)
            .ok_or(DropReason::Malformed)?;
        cookies
            .handle_reply(now, datagram)
            .map_err(|_| DropReason::HandshakeInvalid)?;
        let latest = connector
            .pending
            .iter()
            .rposition(|attempt| attempt.route.link == incoming.route.link);
        if let Some(latest) = latest {
            let mut datagram = connector.pending[latest].datagram.clone();
            let route = connector.pending[latest].route;
            if connector
                .cookies(route.link)
                .is_some_and(|cookies| cookies.stamp(now, &mut datagram).is_ok())
            {
                self.reply(route, datagram);
            }
        }
        Ok(())
    }

    /// Starts a handshake if we are a client that needs one, and looks for ways around addresses that do not answer.
    pub(super) fn connect(&mut self, now: Instant) {
        let Some(connector) = &mut self.connector else {
            return;
        };
        if now < connector.next_deadline() {
            return;
        }
        let tunnel = &mut self.peers[0].tunnel;
        let is_silent = tunnel
            .last_received_at()
            .is_none_or(|at| now.since(at) >= SILENCE);
        let has_session = tunnel.sessions().sending(now).is_some();
        if has_session && !is_silent && !tunnel.sessions().needs_rekey(now) {
            connector.sleep_until(now + SLOW);
            for id in tunnel.stuck_paths() {
                let route = connector.next_route(id);
                tunnel.set_route(now, id, route);
            }
            return;
        }
        let route = connector.poll_attempt(now);
        self.free_indices(0);
        let Some(route) = route else {
            return;
        };
        let Some(local_index) = self.indices.allocate(0) else {
            return;
        };
        let config = &self.peers[0].config;
        let (public_key, psk) = (config.public_key, config.preshared_key.clone());
        let hello = self.hello(0);
        let seed = entropy::secret(&mut *self.entropy);
        let Ok((initiator, mut datagram)) = Initiator::new(
            &self.keys,
            &public_key,
            psk.expose(),
            local_index,
            hello,
            seed,
        ) else {
            self.indices.free(local_index);
            return;
        };
        if let Some(connector) = &mut self.connector {
            if let Some(cookies) = connector.cookies(route.link) {
                // Only fails for what is no initiation.
                let _ = cookies.stamp(now, &mut datagram);
            }
            connector.push(now, initiator, datagram.clone(), route);
        }
        self.reply(route, datagram);
    }
}

/// A client that hears nothing for this long tries to connect anew.
const SILENCE: Duration = Duration::from_secs(1);
