//! Changes of the configuration that need no new handshake: policies, classes, clients, addresses of the gateway.
//!
//! Links are changed by [`Endpoint::add_link`], [`Endpoint::remove_link`] and [`Endpoint::update_links`]. Clients are
//! removed by [`Endpoint::remove_peer`].

use core::net::SocketAddr;

use super::{Endpoint, PeerConfig};
use crate::{class::Class, ids::PathId, sched::SchedulerSettings, time::Instant};

impl Endpoint {
    /// Sets the classes `classes` for all peers, and for each peer the policy that `scheduler` returns.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        classes: &[Class],
        scheduler: impl Fn(&PeerConfig) -> SchedulerSettings<String>,
    ) {
        self.tunnels.classes = classes.to_vec();
        for index in self.peers.indices() {
            let peer = &mut self.peers[index];
            let settings = scheduler(&peer.config);
            peer.config.scheduler = settings.clone();
            peer.tunnel.reconfigure(now, settings, classes.to_vec());
            self.peers.activate(index);
        }
    }

    /// Replaces the addresses of a client's gateway, for example after a DNS change. Paths to an address that remains
    /// are not affected. A path whose link cannot reach any of the new addresses has no route.
    pub fn set_endpoints(&mut self, now: Instant, endpoints: Vec<SocketAddr>) {
        let Some(connector) = &mut self.connector else {
            return;
        };
        connector.set_endpoints(now, endpoints);
        for id in (0..PathId::MAX).filter_map(|id| u8::try_from(id).ok().map(PathId)) {
            let route = connector.route_of(id);
            self.peers[0].tunnel.set_route(now, id, route);
        }
        self.peers.activate(0);
    }

    /// Adds `client` as a peer of this gateway unless a peer already has its key. Returns whether the client was added.
    /// The client's name must be unique, and its addresses must not overlap the addresses of another peer.
    pub fn add_client(&mut self, client: PeerConfig) -> bool {
        let is_new = self.connector.is_none() && self.peers.of_key(&client.public_key).is_none();
        if is_new {
            self.add_peer(client);
        }
        is_new
    }
}
