//! All associations of a host: assigns packets and datagrams to peers, and schedules the peers.
//!
//! A client has one peer, the gateway. A gateway has one peer per client, and the cost per packet does not depend on
//! the number of peers. The peer of an inner packet is found by destination ([`allowed_ips`]), the peer of a datagram
//! by the receiver index in its header (`index`), and the peer of a handshake by the static key inside it. Peers with
//! datagrams to send wait in a queue. The deadlines of all peers are in an ordered set.
//!
//! The owner's loop makes these calls in this order:
//!
//! 1. [`Endpoint::handle_datagram`] and [`Endpoint::handle_packet`] for incoming data;
//! 2. [`Endpoint::handle_timeout`];
//! 3. [`Endpoint::poll_handshake_work`] or [`Endpoint::work_inline`];
//! 4. [`Endpoint::poll_transmit`] until it returns nothing;
//! 5. [`Endpoint::poll_deliver`];
//! 6. [`Endpoint::poll_event`], and [`Endpoint::poll_flow_question`] if a class names a program;
//! 7. wait until [`Endpoint::poll_timeout`].
//!
//! Several endpoints can divide the clients of a gateway among them; then initiations and verdicts are passed between them
//! after step 3 ([`workers`]).

use core::net::{IpAddr, SocketAddr};
use std::{collections::VecDeque, sync::Arc};

use ipnet::IpNet;

use crate::{
    class::Class,
    counters::{DropReason, Drops},
    flows::FlowKey,
    ids::PathId,
    packet::{PacketBuf, Pool},
    path::{health::State, link::Link, memory::PathMemory},
    queue::QueueConfig,
    rng::Rng,
    role::Role,
    sched::SchedulerSettings,
    sec::Code,
    session::{
        aead::Suite,
        cookie::CookieJar,
        entropy::{self, Entropy},
        handshake::StaticKeys,
        limiter::{HandshakeLimiter, Limits},
        secret::Secret,
        seen::SeenInitiations,
    },
    time::Instant,
    trace::Observers,
    transmit::{Route, TxQueue},
    tunnel::{Incoming, TunnelStatus, buffer_bytes},
    wire::{
        handshake::{
            CAPABILITIES, Hello, KIND_BUSY, KIND_COOKIE_REPLY, KIND_INITIATION, KIND_REACH_ANSWER,
            KIND_REACH_QUESTION, KIND_RESPONSE,
        },
        header::{DATA_OVERHEAD, Header},
    },
};

pub mod accounts;
pub mod allowed_ips;
mod changing_gateway;
mod common;
mod connector;
pub mod enrolment;
mod expecting;
mod handshakes;
mod index;
mod initiating;
pub mod kept;
mod peers;
mod programs;
pub mod reaching;
mod reconfiguring;
mod time_of_day;
pub mod work;
pub mod workers;

pub use crate::class::FlowQuestion;
use common::Common;
use connector::Connector;
pub use connector::Reach;
use enrolment::Enrolment;
use expecting::Expecting;
pub use handshakes::HandshakeCounters;
use index::IndexTable;
pub use index::MAX_SESSIONS;
use kept::Kept;
use peers::{Peer, Peers};
use time_of_day::TimeOfDay;
use work::WorkQueue;
use workers::Others;

/// The configuration of an endpoint.
#[derive(Debug)]
pub struct EndpointConfig {
    /// X25519 private key of this end.
    pub private_key: Secret,
    /// Ciphers that this end accepts, in order of preference.
    pub suites: Vec<Suite>,
    /// The configuration of the tunnel queue.
    pub queue: QueueConfig,
    /// Whether the headers of outgoing inner packets are compressed.
    pub compression: bool,
    /// The traffic classes, the same for all peers.
    pub classes: Vec<Class>,
    /// Code for the parity of outgoing datagrams, which is sent on another path than the datagram; `None` for no
    /// parity.
    pub parity: Option<Code>,
    /// Length in bytes of the longest inner packet; larger values than [`MAX_MTU`] are reduced to it.
    pub mtu: usize,
    /// Whether this end is the client or the gateway.
    pub side: Side,
}

/// The role of an endpoint, with its peers.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one an endpoint, for as long as it is made"
)]
#[derive(Debug)]
pub enum Side {
    /// The end that owns the links.
    Client {
        /// The gateway.
        gateway: PeerConfig,
        /// Addresses of the gateway. They are tried in order on each link, except addresses of a family that the link
        /// cannot reach.
        endpoints: Vec<SocketAddr>,
    },
    /// The end that answers handshakes.
    Gateway {
        /// The clients that may connect.
        clients: Vec<PeerConfig>,
    },
}

/// The other end of an association.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Name that the user has given the peer.
    pub name: String,
    /// X25519 public key of the peer.
    pub public_key: [u8; 32],
    /// Pre-shared key of both ends; zeros if they have none.
    pub preshared_key: Secret,
    /// The inner addresses that belong to the peer.
    pub allowed_ips: Vec<IpNet>,
    /// The policy and profile for packets to the peer.
    pub scheduler: SchedulerSettings<String>,
}

/// An event for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer's association can now carry data, or can no longer carry data. At a gateway, a client whose paths are only
    /// Suspect counts as up.
    Peer {
        /// Name of the peer.
        name: String,
        /// Whether data can flow.
        is_up: bool,
    },
    /// A handshake with a peer failed because the peer uses another version of the protocol.
    Incompatible {
        /// Name of the peer.
        name: String,
        /// Version that the peer uses.
        version: u16,
    },
    /// The remote address of a path is new or has changed. Estimates that were stored for its network may be
    /// [recalled](Endpoint::recall).
    Found {
        /// The peer's name.
        peer: String,
        /// Id of the path.
        path: PathId,
        /// The link's name.
        link: String,
        /// Destination address of the path's datagrams.
        remote: IpAddr,
    },
    /// The MTU of a path in the sending direction has been found.
    Mtu {
        /// The peer's name.
        peer: String,
        /// The link's name; empty at a gateway until the client has sent it.
        link: String,
        /// Length in bytes of the longest inner packet.
        mtu: usize,
    },
    /// The gateway has answered the latest [question](Endpoint::reach_question) whether UDP works.
    Reached {
        /// Path of the link over which the question was sent.
        path: PathId,
    },
    /// The health of a path changed.
    Path {
        /// The peer's name.
        peer: String,
        /// The link's name; empty at a gateway until the client has sent it.
        link: String,
        /// New health of the path.
        state: State,
    },
}

/// All associations of a host.
#[derive(Debug)]
pub struct Endpoint {
    keys: Arc<StaticKeys>,
    suites: Vec<Suite>,
    mtu: usize,
    tunnels: TunnelSettings,
    enrolment: Enrolment,
    /// The source of fresh bytes for each handshake, so that the keys of earlier handshakes cannot be derived from
    /// stored state.
    entropy: Box<dyn Entropy>,
    peers: Peers,
    indices: IndexTable,
    expecting: Expecting,
    jar: CookieJar,
    limiter: HandshakeLimiter,
    seen: SeenInitiations,
    work: WorkQueue,
    others: Others,
    handshakes: HandshakeCounters,
    time_of_day: TimeOfDay,
    connector: Option<Connector>,
    /// Latest reach question without an answer: the path of the link over which it was sent, and its nonce.
    asked: Option<(PathId, [u8; 16])>,
    /// At a gateway: whether it asks its clients to use another gateway.
    is_draining: bool,
    common: Common,
    events: VecDeque<Event>,
    /// Memory used by the packets of all peers.
    kept: Kept,
    /// Handshake datagrams to send. Bounded by [`MAX_REPLIES`].
    replies: VecDeque<(Route, Vec<u8>)>,
}

/// The settings that the tunnels to all peers share.
#[derive(Clone, Debug)]
struct TunnelSettings {
    role: Role,
    /// The key of the flow hashes.
    flow_key: FlowKey,
    queue: QueueConfig,
    compression: bool,
    classes: Vec<Class>,
    parity: Option<Code>,
    mtu: usize,
}

impl Endpoint {
    /// Returns an endpoint with peers and without any sessions.
    ///
    /// `entropy` is the source of all random bytes, now and at each handshake.
    #[must_use]
    pub fn new(config: EndpointConfig, mut entropy: impl Entropy + 'static, now: Instant) -> Self {
        let keys = StaticKeys::from_private(config.private_key);
        let jar = CookieJar::new(now, keys.public(), &mut entropy);
        let (role, peers, endpoints) = match config.side {
            Side::Client { gateway, endpoints } => (Role::Client, vec![gateway], Some(endpoints)),
            Side::Gateway { clients } => (Role::Gateway, clients, None),
        };
        let connector =
            endpoints.map(|endpoints| Connector::new(now, endpoints, &peers[0].public_key));
        let tunnels = TunnelSettings {
            role,
            flow_key: FlowKey::new(u64::from_be_bytes(entropy::array(&mut entropy))),
            queue: config.queue,
            compression: config.compression,
            classes: config.classes,
            parity: config.parity,
            mtu: config.mtu.min(MAX_MTU),
        };
        let mut table = Peers::default();
        for peer in peers {
            table.add(Peer::new(peer, &tunnels, &mut entropy));
        }
        let pool = Pool::new(POOL_LIMIT, buffer_bytes(tunnels.mtu));
        Self {
            keys: Arc::new(keys),
            suites: config.suites,
            mtu: tunnels.mtu,
            tunnels,
            enrolment: Enrolment::default(),
            indices: IndexTable::new(Rng::new(u64::from_be_bytes(entropy::array(&mut entropy)))),
            expecting: Expecting::default(),
            jar,
            limiter: HandshakeLimiter::new(Limits::default(), entropy::secret(&mut entropy)),
            seen: SeenInitiations::new(),
            work: WorkQueue::default(),
            others: Others::default(),
            handshakes: HandshakeCounters::default(),
            time_of_day: TimeOfDay::new(now),
            connector,
            asked: None,
            is_draining: false,
            common: Common::new(pool),
            events: VecDeque::new(),
            kept: Kept::of(role == Role::Client),
            replies: VecDeque::new(),
            peers: table,
            entropy: Box::new(entropy),
        }
    }

    /// Sets how many handshakes a gateway answers.
    pub fn set_handshake_limits(&mut self, limits: Limits) {
        self.limiter.set_limits(limits);
    }

    /// Returns the pool of the buffers into which packets are read.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.common.pool
    }

    /// Handles an inner packet from the host.
    pub fn handle_packet(&mut self, now: Instant, packet: PacketBuf) {
        if let Some(packet) = self.offer_packet(now, packet) {
            self.common.drops.add(DropReason::NoRoute, 1);
            self.common.pool.recycle(packet);
        }
    }

    /// Handles an inner packet from the host, or returns it if its destination belongs to no peer.
    pub fn offer_packet(&mut self, now: Instant, mut packet: PacketBuf) -> Option<PacketBuf> {
        let len = packet.len();
        let found = match packet.parse() {
            Err(_) => Err(DropReason::NotIp),
            Ok(_) if len > self.mtu => Err(DropReason::TooLong),
            Ok(view) => {
                let peer = self.peers.of_address(view.destination());
                peer.ok_or(DropReason::NoRoute)
            }
        };
        match found {
            Ok(peer) if self.peers[peer].is_over => {
                self.common.drops.add(DropReason::QueueFull, 1);
                self.common.pool.recycle(packet);
            }
            Ok(peer) => {
                let before = self.common.delivered.len();
                let mut shared = self.common.shared();
                self.peers[peer]
                    .tunnel
                    .handle_packet(now, packet, &mut shared);
                self.meter_upload(now, peer, before);
                self.peers.activate(peer);
            }
            Err(DropReason::NoRoute) => return Some(packet),
            Err(reason) => {
                self.common.drops.add(reason, 1);
                self.common.pool.recycle(packet);
            }
        }
        None
    }

    /// Handles a datagram from the network. Its content is unspecified afterwards.
    pub fn handle_datagram(&mut self, now: Instant, incoming: &Incoming, datagram: &mut [u8]) {
        let result = match datagram.first() {
            Some(&KIND_INITIATION) => self.handle_initiation(now, incoming, datagram),
            Some(&KIND_RESPONSE) => self.handle_response(now, incoming, datagram),
            Some(&KIND_COOKIE_REPLY) => self.handle_cookie_reply(now, incoming, datagram),
            Some(&KIND_BUSY) => self.handle_busy(now, incoming, datagram),
            Some(&KIND_REACH_QUESTION) => self.handle_reach_question(incoming, datagram),
            Some(&KIND_REACH_ANSWER) => self.handle_reach_answer(incoming, datagram),
            _ => self.handle_transport(now, incoming, datagram),
        };
        if let Err(reason) = result {
            self.common.drops.add(reason, 1);
        }
    }

    fn handle_transport(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        datagram: &mut [u8],
    ) -> Result<(), DropReason> {
        let headers = Header::parse(datagram);
        let addressed = headers.and_then(|headers| {
            let index = self.indices.peer_of(headers.0.receiver_index)?;
            Some((index, headers))
        });
        let reason = match headers {
            None => DropReason::Malformed,
            Some(_) => DropReason::UnknownSession,
        };
        let remote = incoming.route.remote;
        let index = match addressed {
            Some((index, _)) => index,
            None => {
                let peers = &self.peers;
                let expects = |index: usize| peers[index].tunnel.expects_parity(now, remote);
                self.expecting.peer_of(remote, expects).ok_or(reason)?
            }
        };
        let before = self.common.delivered.len();
        let (peer, allowed) = self.peers.with_addresses(index);
        let mut shared = self.common.shared();
        let is_allowed = |source| allowed.peer_of(source) == Some(index);
        let tunnel = &mut peer.tunnel;
        let was_unconfirmed = tunnel.sessions().has_unconfirmed();
        let result = match addressed {
            Some((_, headers)) => {
                tunnel.handle_datagram(now, incoming, headers, datagram, &is_allowed, &mut shared)
            }
            None => {
                tunnel.handle_unaddressed(now, incoming, reason, datagram, &is_allowed, &mut shared)
            }
        };
        let is_confirmed = was_unconfirmed && !peer.tunnel.sessions().has_unconfirmed();
        if peer.tunnel.take_closed_by_peer() {
            self.start_over(now, index);
        }
        self.meter_upload(now, index, before);
        if is_confirmed {
            self.on_address_proved(index, remote);
        }
        if result.is_ok() {
            // A forged datagram does not show that the peer uses its source address.
            self.note_expecting(now, index, remote);
        }
        self.free_indices(index);
        self.peers.activate(index);
        result
    }

    /// Registers `remote` for the peer `index` if this end expects parity for datagrams from `remote`. When this end
    /// begins to expect parity from the peer, also registers the addresses of the peer's other paths.
    fn note_expecting(&mut self, now: Instant, index: usize, remote: SocketAddr) {
        let peer = &mut self.peers[index];
        let expects = peer.tunnel.expects_parity(now, remote);
        let expected = core::mem::replace(&mut peer.expects_parity, expects);
        if expects && !expected {
            let paths = peer.tunnel.status().paths;
            for remote in paths.into_iter().filter_map(|path| path.remote) {
                self.expecting.insert(remote, index);
            }
        }
        if expects {
            self.expecting.insert(remote, index);
        }
    }

    /// Handles the event that this process or its machine is a copy: a clone or a restored snapshot of a virtual
    /// machine.
    ///
    /// The other copy has the same keys and counters, so no session may be used any more, not even for a close message.
    /// All sessions are dropped, and a client reconnects at once.
    pub fn handle_clone(&mut self, now: Instant) {
        self.jar.renew(now, &mut *self.entropy);
        // Initiations recorded since the snapshot was made are not fresh, because their timestamps are not stored here.
        self.time_of_day.start_over(now);
        for index in self.peers.indices() {
            self.start_over(now, index);
            self.free_indices(index);
            self.peers.activate(index);
        }
        if let Some(connector) = &mut self.connector {
            connector.start_over(now);
        }
    }

    /// Drops the keys of a peer and the state of its association. The next handshake begins a new association.
    fn start_over(&mut self, now: Instant, index: usize) {
        if let Some(connector) = &mut self.connector {
            // Pending attempts carry the association id that ends here.
            connector.finish(0);
        }
        let mut shared = self.common.shared();
        let peer = &mut self.peers[index];
        peer.tunnel.sessions().clear();
        peer.tunnel.reset(now, &mut shared);
        peer.association = u64::from_be_bytes(entropy::array(&mut *self.entropy));
    }

    /// Adds a link of this client. Returns `None` if it already has [`PathId::MAX`] links.
    pub fn add_link(&mut self, now: Instant, link: Link) -> Option<PathId> {
        let connector = self.connector.as_mut()?;
        let id = connector.add_link()?;
        self.peers[0].tunnel.add_path(now, id, link);
        self.peers.activate(0);
        Some(id)
    }

    /// Removes a link of this client.
    pub fn remove_link(&mut self, id: PathId) {
        if let Some(connector) = &mut self.connector {
            connector.remove_link(id);
            let mut shared = self.common.shared();
            self.peers[0].tunnel.remove_path(id, &mut shared);
            self.peers.activate(0);
        }
    }

    /// Sets which address families a link of this client can reach now; [`Reach::NONE`] when the link is down.
    pub fn handle_link(&mut self, now: Instant, id: PathId, reach: Reach) {
        if let Some(connector) = &mut self.connector {
            let route = connector.set_reach(now, id, reach);
            self.peers[0].tunnel.set_route(now, id, route);
            self.peers.activate(0);
        }
    }

    /// Changes the settings of the links called `name`, at once and without affecting packets in flight. Returns the
    /// number of links found.
    pub fn update_links(
        &mut self,
        now: Instant,
        name: &str,
        mut change: impl FnMut(&mut Link),
    ) -> usize {
        let mut found = 0;
        for index in self.peers.indices() {
            found += self.peers[index]
                .tunnel
                .update_links(now, name, &mut change);
            self.peers.activate(index);
        }
        found
    }

    /// Handles the event that the socket of a link is full (`is_blocked`) or accepts datagrams again.
    pub fn handle_blocked(&mut self, id: PathId, is_blocked: bool) {
        // At a gateway one socket serves all paths.
        if self.connector.is_some() {
            self.peers[0].tunnel.paths_mut().set_blocked(id, is_blocked);
            self.peers.activate(0);
        }
    }

    /// Handles expired deadlines.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(index) = self.peers.poll_expired(now) {
            let before = self.common.delivered.len();
            let mut shared = self.common.shared();
            self.peers[index].tunnel.handle_timeout(now, &mut shared);
            self.meter_upload(now, index, before);
            self.release_upload(now, index);
            self.bound_kept(now, index);
            self.free_indices(index);
            self.peers.activate(index);
        }
        self.connect(now);
    }

    /// Returns the earliest time at which [`Self::handle_timeout`] has work to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let peers = self.peers.next_deadline();
        let connector = self.connector.as_ref().map(Connector::next_deadline);
        [peers, connector].into_iter().flatten().min()
    }

    /// Fills `out` with the datagrams that may be sent now. Call this method until `out` stays empty.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut TxQueue) {
        while let Some((route, datagram)) = self.replies.front() {
            let Some(room) = out.reserve(route, datagram.len()) else {
                return;
            };
            room.copy_from_slice(datagram);
            self.replies.pop_front();
        }
        while !out.is_full()
            && let Some(index) = self.peers.next_active()
        {
            let mut shared = self.common.shared();
            out.begin_turn(self.peers.active_len() + 1);
            self.peers[index]
                .tunnel
                .poll_transmit(now, out, &mut shared);
            self.bound_kept(now, index);
            self.peers.note_usage(index);
            let has_more = out.is_full();
            let has_room = out.end_turn();
            if has_more {
                // This peer has used up its share of the batch. It continues after the other peers.
                self.peers.postpone(index);
                if has_room {
                    continue;
                }
                return;
            }
            self.peers.rest(index);
            self.notice(now, index);
        }
    }

    /// Returns the next inner packet for the host. The caller returns the buffer to [`Self::pool`].
    pub fn poll_deliver(&mut self) -> Option<PacketBuf> {
        self.common.delivered.pop_front()
    }

    /// Returns the next event for the host.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of drops by reason.
    #[must_use]
    pub fn drops(&self) -> &Drops {
        &self.common.drops
    }

    /// Returns the configuration and a status snapshot of every peer.
    pub fn status(&self) -> impl Iterator<Item = (&PeerConfig, TunnelStatus)> {
        self.peers.iter().map(|peer| {
            let status = TunnelStatus {
                is_up: self.counts_as_up(peer),
                ..peer.tunnel.status()
            };
            (&peer.config, status)
        })
    }

    /// Creates an observer for the tunnel of each peer; `observers` receives the peer's name.
    pub fn observe(&mut self, observers: &dyn Observers) {
        for peer in self.peers.iter_mut() {
            peer.tunnel.observe(observers.observer(&peer.config.name));
        }
    }

    /// Returns the estimates of recently saturated paths that are worth storing, with the names of their peers.
    pub fn memories(&self, now: Instant) -> impl Iterator<Item = (&str, PathId, PathMemory)> {
        self.peers.iter().flat_map(move |peer| {
            let memories = peer.tunnel.paths().memories(now);
            memories.map(move |(path, memory)| (peer.config.name.as_str(), path, memory))
        })
    }

    /// Restores estimates that were stored for the network of a peer's path, if they are no older than
    /// [`MOST_AGE`](crate::path::memory::MOST_AGE).
    pub fn recall(&mut self, now: Instant, peer: &str, path: PathId, memory: &PathMemory) {
        let mut peers = self.peers.iter_mut();
        if let Some(peer) = peers.find(|known| known.config.name == peer) {
            peer.tunnel.paths_mut().recall(now, path, memory);
        }
    }

    /// Whether data can be sent to any peer.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.peers.iter().any(|peer| peer.tunnel.is_up())
    }

    /// Sends a close message to all peers at the next [`Self::poll_transmit`].
    pub fn close(&mut self) {
        self.connector = None;
        for index in self.peers.indices() {
            self.peers[index].tunnel.close();
            self.peers.activate(index);
        }
    }

    /// Measures the memory used by a peer's packets, and drops packets that exceed the peer's bound.
    fn bound_kept(&mut self, now: Instant, index: usize) {
        let peer = &mut self.peers[index];
        let limit = self.kept.limit(peer.kept_bytes);
        let waiting = peer.upload.waiting_pkts() * peer.tunnel.packet_bytes();
        let mut bytes = peer.tunnel.kept_bytes() + waiting;
        peer.is_over = false;
        let before = self.common.delivered.len();
        if bytes > limit {
            let mut shared = self.common.shared();
            let limit = limit.saturating_sub(waiting);
            peer.is_over = !peer.tunnel.trim(now, limit, &mut shared);
            bytes = peer.tunnel.kept_bytes() + waiting;
        }
        self.kept.change(peer.kept_bytes, bytes);
        peer.kept_bytes = bytes;
        self.meter_upload(now, index, before);
    }

    /// Returns the memory used by the packets of all peers, as measured when each peer's tunnel was last polled for
    /// datagrams.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Whether the association with a peer counts as up. A client looks for another gateway as soon as no path is Up.
    fn counts_as_up(&self, peer: &Peer) -> bool {
        if self.connector.is_some() {
            peer.tunnel.is_up()
        } else {
            peer.is_connected()
        }
    }

    /// Adds the events of a peer to the events for the host.
    fn notice(&mut self, now: Instant, index: usize) {
        if self.events.len() >= MAX_EVENTS {
            return;
        }
        let is_up = self.counts_as_up(&self.peers[index]);
        let peer = &mut self.peers[index];
        if is_up != peer.was_up {
            peer.was_up = is_up;
            let name = peer.config.name.clone();
            self.events.push_back(Event::Peer { name, is_up });
        }
        while let Some((path, link, remote)) = peer.tunnel.paths_mut().poll_found(now) {
            let peer = peer.config.name.clone();
            self.events.push_back(Event::Found {
                peer,
                path,
                link,
                remote,
            });
        }
        while let Some((link, mtu)) = peer.tunnel.poll_mtu_change() {
            let peer = peer.config.name.clone();
            self.events.push_back(Event::Mtu { peer, link, mtu });
        }
        while let Some((link, state)) = peer.tunnel.poll_path_change() {
            let peer = peer.config.name.clone();
            self.events.push_back(Event::Path { peer, link, state });
        }
    }

    fn free_indices(&mut self, index: usize) {
        while let Some(session) = self.peers[index].tunnel.sessions().poll_given_up() {
            self.indices.free(session);
        }
        if let Some(connector) = &mut self.connector {
            while let Some(session) = connector.poll_given_up() {
                self.indices.free(session);
            }
        }
    }

    fn hello(&self, index: usize) -> Hello {
        Hello {
            protocol_version: PROTOCOL_VERSION,
            capabilities: CAPABILITIES,
            suites: Suite::offer(&self.suites),
            association: self.peers[index].association,
            time: None,
        }
    }

    fn reply(&mut self, route: Route, datagram: Vec<u8>) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back((route, datagram));
        }
    }
}

/// Maximum length of an inner packet in a datagram, in bytes: 65 507 bytes of UDP over IPv4 minus pleach's header and
/// tag.
pub const MAX_MTU: usize = 65_507 - DATA_OVERHEAD;

/// Version of the protocol that this code implements.
pub const PROTOCOL_VERSION: u16 = 1;
/// Maximum number of handshake datagrams waiting to be sent, with at most 1200 bytes each. Further datagrams are
/// dropped, and their senders repeat their requests.
const MAX_REPLIES: usize = 256;
/// Maximum number of events waiting for the host. Later changes are reported together when there is space.
const MAX_EVENTS: usize = 1024;
/// Maximum number of free buffers in the pools of all workers: as many packets as three fast paths have in flight.
const POOL_LIMIT: usize = 49_152;

#[cfg(test)]
mod tests;
