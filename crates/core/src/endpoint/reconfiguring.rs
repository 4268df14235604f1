//! Changes of the configuration that need no new handshake: policies, classes, clients.
//!
//! Links change by [`Endpoint::add_link`], [`Endpoint::remove_link`] and [`Endpoint::update_links`], clients go by
//! [`Endpoint::remove_peer`].

use super::{Endpoint, PeerConfig};
use crate::{class::Class, sched::SchedulerSettings, time::Instant};

impl Endpoint {
    /// Gives every peer the classes `classes` and the policy that `scheduler` names for it.
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

    /// Makes `client` a peer of this gateway unless its key is one's already; whether it is new. Its name is no other peer's, and
    /// its addresses overlap nobody's.
    pub fn add_client(&mut self, client: PeerConfig) -> bool {
        let is_new = self.connector.is_none() && !self.by_key.contains_key(&client.public_key);
        if is_new {
            self.add_peer(client);
        }
        is_new
    }
}
