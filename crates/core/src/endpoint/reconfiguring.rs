//! Changes of the configuration that need no new handshake: policies, classes, clients, addresses of the gateway.
//!
//! Links are changed by [`Endpoint::add_link`], [`Endpoint::remove_link`] and [`Endpoint::update_links`], clients are
//! removed by [`Endpoint::remove_peer`].

use core::net::SocketAddr;

use super::{Endpoint, PeerConfig};
use crate::{class::Class, ids::PathId, sched::SchedulerSettings, time::Instant};

impl Endpoint {
    /// Sets the classes `classes` for all peers, and the policy that `scheduler` returns for each.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        classes: &[Class],
        scheduler: impl Fn(&PeerConfig) -> SchedulerSettings<String>,
    ) {
        self.tunnels.classes = classes.to_vec();
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            let settings = scheduler(&peer.config);
            peer.config.scheduler = settings.clone();
            peer.tunnel.reconfigure(now, settings, classes.to_vec());
            self.activate(index);
        }
    }

    /// Sets new addresses of a client's gateway, for example after a DNS change. Paths to an address that is still
    /// among them are not affected; a path whose link reaches none of them has no route.
    pub fn set_endpoints(&mut self, now: Instant, endpoints: Vec<SocketAddr>) {
        let Some(connector) = &mut self.connector else {
            return;
        };
        connector.set_endpoints(now, endpoints);
        for id in (0..PathId::MAX).filter_map(|id| u8::try_from(id).ok().map(PathId)) {
            let route = connector.route_of(id);
            self.peers[0].tunnel.set_route(now, id, route);
        }
        self.activate(0);
    }

    /// Makes `client` a peer of this gateway unless a peer has its key already. Returns whether it is new. Its name
    /// must be unique, and its addresses must not overlap those of another peer.
    pub fn add_client(&mut self, client: PeerConfig) -> bool {
        let is_new = self.connector.is_none() && !self.by_key.contains_key(&client.public_key);
        if is_new {
            self.add_peer(client);
        }
        is_new
    }
}
