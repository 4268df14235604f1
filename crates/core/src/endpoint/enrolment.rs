//! Peers that are added and removed while an endpoint runs, and the enrolment of invited clients.
//!
//! A gateway knows its clients by their static keys. The key of an invited client is unknown until its first
//! initiation, which [claims an invitation](crate::session::invitation). The endpoint stores no invitations, because
//! the use of an invitation must be written to a file, which must be on disk before the client is answered. So the
//! endpoint stores the initiation and lets its owner decide:
//!
//! ```text
//! initiation of an unknown key, with a claim -> buffered -> Endpoint::poll_enrolment
//!     owner: checks that the invitation exists, is open and matches the claim, then stores the client
//! Endpoint::settle_enrolment -> the client is a peer, and its initiation is processed like that of any peer
//! ```
//!
//! The owner may also have a store of clients that is too large, or changes too often, to add all clients in advance.
//! Then it is asked about every unknown key ([`Endpoint::set_asking`]), with or without a claim, and nothing is
//! allocated for a client before the store has named it.
//!
//! A client whose answer was lost sends another initiation. Its key is then known, and the claim is ignored. The sender
//! of a refused claim gets no answer; [`DropReason::EnrolmentRefused`] counts the refusal.
//!
//! Bounds: an initiation is read only after it has passed all checks (see `handshakes`), and the owner is asked only
//! if its sender has proved its address by a cookie. So strangers cause file accesses no faster than the token bucket
//! of their source fills. At most [`MAX_KEPT`] claims, or [`MAX_ASKED`] questions about unknown keys, wait for the
//! owner; further senders are asked to try again later.
//! The places of removed peers are reused, so memory depends on the largest number of simultaneous peers.

use core::net::SocketAddr;
use std::collections::VecDeque;

use ipnet::IpNet;

use super::{Endpoint, Event, MAX_EVENTS, Peer, PeerConfig, work::Arrival};
use crate::{
    counters::DropReason,
    session::{handshake::Incoming as Initiation, invitation::Claim, limiter::Admission},
    time::Instant,
};

/// Maximum number of claims that wait for the owner, each of which costs a file access.
pub const MAX_KEPT: usize = 16;
/// Maximum number of questions about unknown keys that wait for the owner, each of which costs a look-up by key: as
/// many as pieces of [handshake work](super::work::MAX_WORK).
pub const MAX_ASKED: usize = 64;

/// A question for the owner: whether a client with an unknown key is to become a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolmentRequest {
    /// Identifies the request in [`Endpoint::settle_enrolment`].
    pub ticket: u64,
    /// Static public key of the client, which has proved that it owns the private key.
    pub public_key: [u8; 32],
    /// Invitation that the client claims; `None` only if the owner is [asked](Endpoint::set_asking) about all keys.
    pub claim: Option<Claim>,
    /// The proved address of the sender.
    pub source: SocketAddr,
}

/// The reason why a client does not become a peer: one of its inner addresses belongs to another peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its address {net} belongs to client {owner}")]
pub struct Clash {
    /// Address of the client.
    pub net: IpNet,
    /// Name of the peer that has the address.
    pub owner: String,
}

/// Enrolments in progress.
#[derive(Debug, Default)]
pub(super) struct Enrolment {
    is_open: bool,
    /// Whether the owner is asked about all unknown keys.
    asks: bool,
    next_ticket: u64,
    /// Requests that the owner has not polled, oldest first.
    requests: VecDeque<EnrolmentRequest>,
    /// Initiations that wait for the owner's decision, with their tickets, oldest first.
    kept: VecDeque<(u64, Arrival, Box<Initiation>)>,
}

/// What a gateway has seen of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Inner bytes that the client has sent.
    pub bytes: u64,
    /// Whether data can be sent to it now.
    pub is_up: bool,
    /// Whether it counts as connected, as in [`Event::Peer`].
    pub is_connected: bool,
    /// When the last authenticated datagram was received from it.
    pub heard_at: Option<Instant>,
}

impl Endpoint {
    /// Sets whether claims are accepted; off at the start. An owner that accepts claims must settle each claim.
    pub fn set_enrolling(&mut self, is_open: bool) {
        self.enrolment.is_open = is_open;
    }

    /// Sets whether the owner is asked about every client whose key is unknown; off at the start. The owner must settle
    /// each request.
    pub fn set_asking(&mut self, asks: bool) {
        self.enrolment.asks = asks;
    }

    /// Returns a request that the owner has to decide on and to [settle](Self::settle_enrolment).
    pub fn poll_enrolment(&mut self) -> Option<EnrolmentRequest> {
        self.enrolment.requests.pop_front()
    }

    /// Ends an enrolment. `client` becomes a peer; its key must be the key of the request. `None` refuses the client.
    ///
    /// If another initiation has already made the client a peer, that peer remains unchanged.
    ///
    /// # Errors
    /// If an address of the client belongs to another peer. The client is then refused.
    pub fn settle_enrolment(
        &mut self,
        now: Instant,
        ticket: u64,
        client: Option<PeerConfig>,
    ) -> Result<(), Clash> {
        let mut kept = self.enrolment.kept.iter();
        let Some(at) = kept.position(|(kept, ..)| *kept == ticket) else {
            return Ok(());
        };
        let Some((_, arrival, initiation)) = self.enrolment.kept.remove(at) else {
            return Ok(());
        };
        let key = initiation.remote_static;
        let client = client.filter(|client| client.public_key == key);
        let clash = client.as_ref().and_then(|client| self.clash_of(client));
        let result = match client.filter(|_| clash.is_none()) {
            Some(client) => {
                let index = self.add_peer(client);
                self.on_identified(now, arrival, index, initiation)
            }
            None => Err(DropReason::EnrolmentRefused),
        };
        if let Err(reason) = result {
            self.common.drops.add(reason, 1);
        }
        clash.map_or(Ok(()), Err)
    }

    /// Returns the first address of `client` that belongs to a peer with another key.
    fn clash_of(&self, client: &PeerConfig) -> Option<Clash> {
        if self.peers.of_key(&client.public_key).is_some() {
            return None;
        }
        let mut nets = client.allowed_ips.iter();
        nets.find_map(|net| {
            let owner = self.peers.overlapping(*net)?;
            Some(Clash {
                net: *net,
                owner: owner.config.name.clone(),
            })
        })
    }

    /// Removes the client `name` and its keys, and stops answering it. Returns whether the client existed.
    ///
    /// At a client, the only peer is the gateway, which cannot be removed.
    pub fn remove_peer(&mut self, now: Instant, name: &str) -> bool {
        let found = self.peers.called(name);
        let found = found.filter(|_| self.connector.is_none());
        found.is_some_and(|index| self.remove_at(now, index))
    }

    /// Returns the public key of the peer called `name`. O(peers).
    #[must_use]
    pub fn key_of(&self, name: &str) -> Option<[u8; 32]> {
        let index = self.peers.called(name)?;
        Some(self.peers[index].config.public_key)
    }

    /// Removes the client with the public key `public_key` like [`Self::remove_peer`].
    pub fn remove_client(&mut self, now: Instant, public_key: &[u8; 32]) -> bool {
        let found = self.peers.of_key(public_key);
        let found = found.filter(|_| self.connector.is_none());
        found.is_some_and(|index| self.remove_at(now, index))
    }

    /// Returns the time at which the last authenticated datagram of the peer with the public key `public_key` was
    /// received. `None` if there is no such peer, or if it has sent none.
    #[must_use]
    pub fn last_heard(&self, public_key: &[u8; 32]) -> Option<Instant> {
        let index = self.peers.of_key(public_key)?;
        self.peers[index].tunnel.last_received_at()
    }

    /// Returns what this gateway has seen of the client with the public key `public_key`. `None` if there is no such
    /// client.
    #[must_use]
    pub fn seen(&self, public_key: &[u8; 32]) -> Option<Seen> {
        let peer = &self.peers[self.peers.of_key(public_key)?];
        Some(Seen {
            bytes: peer.usage().up_bytes,
            is_up: peer.tunnel.is_up(),
            is_connected: peer.is_connected(),
            heard_at: peer.tunnel.last_received_at(),
        })
    }

    /// Removes the peer `index`. Returns `true`.
    fn remove_at(&mut self, now: Instant, index: usize) -> bool {
        self.start_over(now, index);
        self.free_indices(index);
        let config = self.peers[index].config.clone();
        let nobody = Peer::new(config, &self.tunnels, &mut *self.entropy);
        let removed = self.peers.remove(index, nobody);
        self.kept.change(removed.kept_bytes, 0);
        if removed.was_up && self.events.len() < MAX_EVENTS {
            let name = removed.config.name;
            self.events.push_back(Event::Peer { name, is_up: false });
        }
        true
    }

    /// Adds a peer with the configuration `config` unless a peer already has its key. Returns the peer's index.
    pub(super) fn add_peer(&mut self, config: PeerConfig) -> usize {
        let known = self.peers.of_key(&config.public_key);
        known.unwrap_or_else(|| {
            let peer = Peer::new(config, &self.tunnels, &mut *self.entropy);
            self.peers.add(peer)
        })
    }

    /// Handles an initiation with an unknown key.
    pub(super) fn on_stranger(
        &mut self,
        now: Instant,
        arrival: Arrival,
        initiation: Box<Initiation>,
    ) -> Result<(), DropReason> {
        let claim = initiation.claim.filter(|_| self.enrolment.is_open);
        if claim.is_none() && !self.enrolment.asks {
            self.on_wasted(now, &arrival);
            return Err(DropReason::HandshakeInvalid);
        }
        if !arrival.is_proved {
            // A sender that hides its address gets no memory and no disk access.
            self.on_wasted(now, &arrival);
            return self.turn_away_arrival(&arrival, Admission::ProveAddress);
        }
        let most = if self.enrolment.asks {
            MAX_ASKED
        } else {
            MAX_KEPT
        };
        if self.enrolment.kept.len() >= most {
            let admission = self.limiter.on_full(now, arrival.route.remote, true);
            return self.turn_away_arrival(&arrival, admission);
        }
        let ticket = self.enrolment.next_ticket;
        self.enrolment.next_ticket += 1;
        self.enrolment.requests.push_back(EnrolmentRequest {
            ticket,
            public_key: initiation.remote_static,
            claim,
            source: arrival.route.remote,
        });
        self.enrolment.kept.push_back((ticket, arrival, initiation));
        Ok(())
    }
}
