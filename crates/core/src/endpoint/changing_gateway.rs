//! Change of a client from one gateway to another.
//!
//! The new gateway is another peer: it knows neither sessions nor sequence numbers of the previous one. So the client
//! begins a new association, over the same links. Packets that wait in the tunnel queue are sent to the new gateway.
//! Packets in flight to the previous gateway are dropped, and their senders retransmit them.

use core::net::SocketAddr;

use super::{Endpoint, Event, PeerConfig};
use crate::{time::Instant, transmit::TxQueue};

impl Endpoint {
    /// Closes the association of this client with its gateway, and begins one with `gateway` at the addresses
    /// `endpoints`. The policy and profile of the client stay in use; those of `gateway` are ignored. Writes close
    /// messages for the previous gateway to `out`, one for each path. Does nothing at a gateway.
    pub fn change_gateway(
        &mut self,
        now: Instant,
        gateway: PeerConfig,
        endpoints: Vec<SocketAddr>,
        out: &mut TxQueue,
    ) {
        if self.connector.is_none() {
            return;
        }
        self.peers[0].tunnel.send_close(now, out);
        self.start_over(now, 0);
        self.free_indices(0);
        let peer = &mut self.peers[0];
        if core::mem::take(&mut peer.was_up) {
            let name = peer.config.name.clone();
            self.events.push_back(Event::Peer { name, is_up: false });
        }
        if let Some(connector) = &mut self.connector {
            connector.change_gateway(now, &gateway.public_key);
        }
        let scheduler = self.peers[0].config.scheduler.clone();
        let config = PeerConfig {
            scheduler,
            ..gateway
        };
        self.peers.configure(0, config);
        self.asked = None;
        self.set_endpoints(now, endpoints);
    }
}
