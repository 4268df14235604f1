//! Handshakes that a client starts: when, and how it handles the answers.

use core::time::Duration;

use super::{Endpoint, connector::SLOW, entropy};
use crate::{
    counters::DropReason,
    ids::PathId,
    session::{handshake::Initiator, rotation::Change},
    time::Instant,
    tunnel::Incoming,
    wire::handshake::{BusyView, CookieReplyView, Hello, ResponseView},
};

impl Endpoint {
    /// Sets the time of day: `unix_nanos` since 1970. A client puts it into its initiations. A gateway accepts an
    /// initiation without a proof of the address if its timestamp is later than the gateway's start and later than all
    /// earlier timestamps of the client. So a wrong or missing time of day costs an RTT at each handshake.
    ///
    /// The timestamps of initiations never decrease during the lifetime of the endpoint.
    pub fn set_time_of_day(&mut self, now: Instant, unix_nanos: u64) {
        self.time_of_day.set(now, unix_nanos);
    }

    /// Changes keys already at the age `rekey_after`, at most [`REKEY_AFTER`](crate::session::rotation::REKEY_AFTER),
    /// and drops sessions that this end began at one and a half times this age. For measurements of many changes in a
    /// short time; call this method before the first handshake.
    pub fn set_rekey_after(&mut self, rekey_after: Duration) {
        for peer in self.peers.iter_mut() {
            peer.tunnel.sessions().set_rekey_after(rekey_after);
        }
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
        self.handshakes.completed += 1;
        connector.on_answer(&incoming.route);
        connector.finish(wanted);
        let route = connector.route_of(PathId(incoming.route.link));
        let mut shared = self.common.shared();
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
        self.peers.activate(0);
        Ok(())
    }

    pub(super) fn handle_cookie_reply(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let link = incoming.route.link;
        let view = CookieReplyView::new(datagram).map_err(|_| DropReason::Malformed)?;
        let connector = self.connector.as_mut().ok_or(DropReason::Malformed)?;
        let (attempt, cookies) = connector
            .attempt(link, view.receiver_index())
            .ok_or(DropReason::HandshakeInvalid)?;
        cookies
            .handle_reply(now, &attempt.datagram, datagram)
            .map_err(|_| DropReason::HandshakeInvalid)?;
        if cookies.stamp(now, &mut attempt.datagram).is_ok() {
            attempt.sent_at = now;
            let (route, datagram) = (attempt.route, attempt.datagram.clone());
            self.reply(route, datagram);
        }
        Ok(())
    }

    /// Starts a handshake if this end is a client that needs one. Switches a link to another gateway address if the
    /// present address does not answer.
    pub(super) fn connect(&mut self, now: Instant) {
        let Some(connector) = &mut self.connector else {
            return;
        };
        if now < connector.next_deadline() {
            return;
        }
        let tunnel = &mut self.peers[0].tunnel;
        let is_silent = tunnel.is_silent(now, SILENCE);
        let has_session = tunnel.sessions().sending(now).is_some();
        if has_session && !is_silent && !tunnel.sessions().needs_rekey(now) {
            let next_look_at = now + SLOW;
            connector.sleep_until(next_look_at);
            for id in tunnel.paths().stuck(next_look_at) {
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
        let hello = Hello {
            time: Some(self.time_of_day.next_timestamp(now)),
            ..self.hello(0)
        };
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
                // This call only fails for a datagram that is not an initiation.
                let _ = cookies.stamp(now, &mut datagram);
            }
            connector.push(now, initiator, datagram.clone(), route);
        }
        self.reply(route, datagram);
    }

    /// Handles a busy reply: the gateway has not read the initiation, and specifies how long the client should wait.
    pub(super) fn handle_busy(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        let link = incoming.route.link;
        let view = BusyView::new(datagram).map_err(|_| DropReason::Malformed)?;
        let connector = self.connector.as_mut().ok_or(DropReason::Malformed)?;
        let (attempt, cookies) = connector
            .attempt(link, view.receiver_index())
            .ok_or(DropReason::HandshakeInvalid)?;
        let wait = cookies
            .handle_busy(&attempt.datagram, datagram)
            .map_err(|_| DropReason::HandshakeInvalid)?;
        // Add up to a quarter at random, so that clients with the same wait do not try again at the same time.
        let [jitter] = entropy::array(&mut *self.entropy);
        let wait = wait.min(MOST_PATIENCE);
        connector.on_busy(link, now + wait + wait * u32::from(jitter) / 1024);
        Ok(())
    }
}

/// Duration without a received datagram after which a client tries to connect again.
const SILENCE: Duration = Duration::from_secs(1);
/// Maximum wait that a client accepts from a busy reply. A gateway never asks for a longer wait, so this limit only
/// affects forged replies.
const MOST_PATIENCE: Duration = Duration::from_secs(10);
