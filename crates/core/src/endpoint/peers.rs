//! The peers of an endpoint: how they are found, and which of them have something to do.

use core::{
    net::IpAddr,
    ops::{Index, IndexMut, Range},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipnet::IpNet;

use super::{
    PeerConfig, TunnelSettings,
    accounts::{Upload, Usage},
    allowed_ips::AllowedIps,
};
use crate::{
    session::{
        entropy::{self, Entropy},
        limiter::{Bucket, Source},
        seen::RecentInitiations,
    },
    time::Instant,
    tunnel::Tunnel,
};

/// The other end of an association, and its state.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) config: PeerConfig,
    pub(super) tunnel: Tunnel,
    /// Counter and cap of packets from the peer.
    pub(super) upload: Upload,
    /// Identifies the present association with the peer; changes after the association was closed.
    pub(super) association: u64,
    /// Latest timestamp in an initiation of the peer that was answered; 0 if no initiation was answered.
    pub(super) newest: u64,
    pub(super) recent: RecentInitiations,
    /// Limits how many of the peer's fresh initiations are answered.
    pub(super) allowance: Bucket,
    /// Limits how many of the peer's initiations that are not fresh are answered.
    pub(super) not_fresh: Bucket,
    /// Addresses that the peer has proved by a cookie or by the first datagram of a session, newest first.
    pub(super) sources: [Option<Source>; KNOWN_SOURCES],
    /// Whether the addresses of the peer's paths are registered as addresses from which this end expects parity.
    pub(super) expects_parity: bool,
    pub(super) was_up: bool,
    /// Memory used by the peer's packets when the peer's tunnel was last polled for datagrams, in bytes.
    pub(super) kept_bytes: u64,
    /// Whether the memory used by the peer's packets exceeds the bound even after all packets that may be dropped were
    /// dropped.
    pub(super) is_over: bool,
    /// Whether the peer was removed, so that another peer may take its place in the table.
    is_removed: bool,
    is_active: bool,
    deadline: Option<Instant>,
    /// Byte counters when they were last taken.
    taken: Usage,
    /// Whether the peer is in the queue of peers whose byte counters have grown.
    is_used: bool,
}

impl Peer {
    pub(super) fn new(
        config: PeerConfig,
        tunnels: &TunnelSettings,
        entropy: &mut dyn Entropy,
    ) -> Self {
        let scheduler = config.scheduler.clone();
        let secret = entropy::secret(entropy);
        let mut tunnel = Tunnel::new(
            tunnels.role,
            scheduler,
            tunnels.queue,
            tunnels.flow_key,
            &secret,
        );
        tunnel.set_compression(tunnels.compression);
        tunnel.set_classes(tunnels.classes.clone());
        tunnel.set_parity(tunnels.parity);
        tunnel.set_mtu(tunnels.mtu);
        Self {
            tunnel,
            config,
            upload: Upload::default(),
            association: u64::from_be_bytes(entropy::array(entropy)),
            newest: 0,
            recent: RecentInitiations::new(),
            allowance: Bucket::FULL,
            not_fresh: Bucket::FULL,
            sources: [None; KNOWN_SOURCES],
            expects_parity: false,
            was_up: false,
            kept_bytes: 0,
            is_over: false,
            is_removed: false,
            is_active: false,
            deadline: None,
            taken: Usage::default(),
            is_used: false,
        }
    }

    /// Whether a client counts as connected: a datagram lost on its only path is no reason to take it for gone.
    pub(super) fn is_connected(&self) -> bool {
        self.tunnel.is_up() || (self.was_up && self.tunnel.may_be_up())
    }

    /// Returns the bytes that were carried since the peer was added.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            up_bytes: self.upload.bytes(),
            down_bytes: self.tunnel.sent_bytes(),
        }
    }
}

/// The table of all peers.
///
/// A peer has the same index for as long as it exists. The place of a removed peer is given to the next new one.
#[derive(Debug, Default)]
pub(super) struct Peers {
    places: Vec<Peer>,
    /// Places of removed peers.
    free: Vec<usize>,
    by_key: BTreeMap<[u8; 32], usize>,
    allowed: AllowedIps,
    /// Peers that may have datagrams to send.
    active: VecDeque<usize>,
    /// Next deadline of each peer that has a deadline.
    deadlines: BTreeSet<(Instant, usize)>,
    /// Peers whose byte counters have grown since they were last taken.
    used: VecDeque<usize>,
}

impl Peers {
    /// Returns the peer with the public key `public_key`.
    pub(super) fn of_key(&self, public_key: &[u8; 32]) -> Option<usize> {
        self.by_key.get(public_key).copied()
    }

    /// Returns the peer to which the inner address `address` belongs.
    pub(super) fn of_address(&self, address: IpAddr) -> Option<usize> {
        self.allowed.peer_of(address)
    }

    /// Returns a peer that has an address of `net`.
    pub(super) fn overlapping(&self, net: IpNet) -> Option<&Peer> {
        self.allowed.overlapping(net).map(|index| &self[index])
    }

    /// Returns the first peer called `name`. O(peers).
    pub(super) fn called(&self, name: &str) -> Option<usize> {
        let mut places = self.places.iter();
        places.position(|peer| !peer.is_removed && peer.config.name == name)
    }

    /// Returns all peers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> + Clone {
        self.places.iter().filter(|peer| !peer.is_removed)
    }

    /// Returns all peers.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.places.iter_mut().filter(|peer| !peer.is_removed)
    }

    /// Returns the indices of all peers, and those of free places.
    pub(super) const fn indices(&self) -> Range<usize> {
        0..self.places.len()
    }

    /// Returns a peer, and the addresses of all peers.
    pub(super) fn with_addresses(&mut self, index: usize) -> (&mut Peer, &AllowedIps) {
        (&mut self.places[index], &self.allowed)
    }

    /// Adds a peer, whose key no other peer has. Returns its index.
    pub(super) fn add(&mut self, peer: Peer) -> usize {
        let index = self.free.pop().unwrap_or(self.places.len());
        self.register(&peer.config, index);
        if index < self.places.len() {
            self.put(index, peer);
        } else {
            self.places.push(peer);
        }
        index
    }

    /// Removes the peer `index`. `nobody` is a peer without sessions, which keeps the place until the next peer takes it.
    /// Returns the removed peer.
    pub(super) fn remove(&mut self, index: usize, mut nobody: Peer) -> Peer {
        nobody.is_removed = true;
        let removed = self.put(index, nobody);
        self.deregister(&removed.config, index);
        self.free.push(index);
        removed
    }

    /// Replaces the peer at the place `index`. Returns the former one.
    fn put(&mut self, index: usize, mut peer: Peer) -> Peer {
        let place = &mut self.places[index];
        // The place may be in the queues of peers that wait to send, and of those whose counters have grown.
        peer.is_active = place.is_active;
        peer.is_used = place.is_used;
        let former = core::mem::replace(place, peer);
        if let Some(at) = former.deadline {
            self.deadlines.remove(&(at, index));
        }
        former
    }

    /// Changes the configuration of the peer `index`. Returns the former one.
    pub(super) fn configure(&mut self, index: usize, config: PeerConfig) -> PeerConfig {
        let former = core::mem::replace(&mut self.places[index].config, config.clone());
        self.deregister(&former, index);
        self.register(&config, index);
        former
    }

    fn register(&mut self, config: &PeerConfig, index: usize) {
        self.by_key.insert(config.public_key, index);
        for net in &config.allowed_ips {
            self.allowed.insert(*net, index);
        }
    }

    fn deregister(&mut self, config: &PeerConfig, index: usize) {
        self.by_key.remove(&config.public_key);
        for net in &config.allowed_ips {
            self.allowed.remove(*net, index);
        }
    }

    /// Adds the peer `index` to the queue of peers that may have datagrams to send.
    pub(super) fn activate(&mut self, index: usize) {
        if !core::mem::replace(&mut self.places[index].is_active, true) {
            self.active.push_back(index);
        }
    }

    /// Returns the next peer of the queue. The caller puts it back with [`Self::postpone`] or [`Self::rest`].
    pub(super) fn next_active(&mut self) -> Option<usize> {
        self.active.pop_front()
    }

    /// Returns the number of peers in the queue.
    pub(super) fn active_len(&self) -> usize {
        self.active.len()
    }

    /// Puts the peer `index` at the end of the queue.
    pub(super) fn postpone(&mut self, index: usize) {
        self.active.push_back(index);
    }

    /// Records that the peer `index` has nothing to send until its next deadline.
    pub(super) fn rest(&mut self, index: usize) {
        let peer = &mut self.places[index];
        peer.is_active = false;
        let deadlines = [peer.tunnel.poll_timeout(), peer.upload.next_at()];
        let next = deadlines.into_iter().flatten().min();
        if next == peer.deadline {
            return;
        }
        if let Some(at) = core::mem::replace(&mut peer.deadline, next) {
            self.deadlines.remove(&(at, index));
        }
        self.deadlines.extend(next.map(|at| (at, index)));
    }

    /// Adds the peer `index` to the queue of peers whose byte counters have grown, if they have.
    pub(super) fn note_usage(&mut self, index: usize) {
        let peer = &mut self.places[index];
        if !peer.is_used && peer.usage() != peer.taken {
            peer.is_used = true;
            self.used.push_back(index);
        }
    }

    /// Returns a peer whose byte counters have grown, and removes it from the queue.
    pub(super) fn next_used(&mut self) -> Option<usize> {
        let index = self.used.pop_front()?;
        self.places[index].is_used = false;
        Some(index)
    }

    /// Returns by how much the byte counters of the peer `index` have grown since the last call.
    pub(super) fn take_usage(&mut self, index: usize) -> Usage {
        let peer = &mut self.places[index];
        let (usage, before) = (peer.usage(), peer.taken);
        // A packet that left the lanes may return to them when an association ends, and is not counted again then.
        let more = Usage {
            up_bytes: usage.up_bytes.saturating_sub(before.up_bytes),
            down_bytes: usage.down_bytes.saturating_sub(before.down_bytes),
        };
        peer.taken.up_bytes += more.up_bytes;
        peer.taken.down_bytes += more.down_bytes;
        more
    }

    /// Returns the earliest deadline of all peers.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns a peer whose deadline has expired, and forgets the deadline.
    pub(super) fn poll_expired(&mut self, now: Instant) -> Option<usize> {
        let &(_, index) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.deadlines.pop_first();
        self.places[index].deadline = None;
        Some(index)
    }
}

impl Index<usize> for Peers {
    type Output = Peer;

    fn index(&self, index: usize) -> &Peer {
        &self.places[index]
    }
}

impl IndexMut<usize> for Peers {
    fn index_mut(&mut self, index: usize) -> &mut Peer {
        &mut self.places[index]
    }
}

/// Number of proved addresses that are remembered for a peer: usually one for each link that it uses.
const KNOWN_SOURCES: usize = 4;
