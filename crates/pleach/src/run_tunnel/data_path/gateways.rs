//! The tasks that the choice of a gateway ([`crate::run_tunnel::gateways`]) has for the data path: questions to all
//! gateways, and the change to another gateway.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use pleach_core::time::Instant;
use pleach_linux::clock;

use super::{CARRIER, DataPath, token_of};
use crate::{
    config::{Cost, Role},
    run_tunnel::{
        carried::Links,
        gateway_peer,
        gateways::{Action, Gateways, Heard},
    },
};

impl DataPath {
    /// Executes the pending tasks of the choice of a gateway.
    pub(super) fn settle_gateways(&mut self, now: Instant) {
        let is_due = |gateways: &Gateways| gateways.next_at().is_some_and(|at| at <= now);
        if !self.gateways.as_ref().is_some_and(is_due) {
            return;
        }
        let carried = self.carried.as_ref();
        let heard = Heard {
            is_up: self.endpoint.is_up(),
            uses_tcp: carried.is_some_and(Links::uses_tcp_anywhere),
        };
        while let Some(action) = self.gateways.as_mut().and_then(|g| g.poll(now, heard)) {
            match action {
                Action::Ask => self.ask_gateways(now, heard.is_up),
                Action::Prepare(index) => {
                    if let Err(error) = self.prepare_gateway(now, index) {
                        tracing::error!("change of the gateway: {error:#}");
                        self.gateways.iter_mut().for_each(|all| all.reject(now));
                    }
                    return;
                }
                Action::Use(index) => {
                    if let Err(error) = self.use_gateway(now, index) {
                        tracing::error!("change of the gateway: {error:#}");
                    }
                    return;
                }
            }
        }
    }

    /// Sends a question to each gateway over each link. While there is a session (`is_up`), standby links are left out.
    fn ask_gateways(&mut self, now: Instant, is_up: bool) {
        let (Role::Client(client), Some(gateways)) = (&self.config.role, &mut self.gateways) else {
            return;
        };
        let secret = match clock::entropy() {
            Ok(bytes) => bytes,
            Err(error) => return tracing::warn!(%error, "the gateways are not asked"),
        };
        let secret = secret.first_chunk().copied().unwrap_or_default();
        gateways.begin_round(clock::now(), secret);
        let mut has_link = false;
        for link in &self.links {
            let config = client.links.iter().find(|config| config.name == link.name);
            let is_left_out = match config.map(|config| config.cost) {
                Some(Cost::Never) => true,
                Some(Cost::Standby) => is_up,
                Some(Cost::Rank(_)) | None => false,
            };
            // A link that TCP carries is not asked, but the gateways can be tried over it.
            has_link |= config.is_none_or(|config| config.cost != Cost::Never)
                && [false, true]
                    .iter()
                    .any(|is_v6| self.sockets.contains_key(&token_of(link.id, *is_v6)));
            let carried = self.carried.as_ref();
            if is_left_out || carried.is_some_and(|carried| carried.uses_tcp(link.id.0)) {
                continue;
            }
            let reaches = |address: &SocketAddr| {
                self.sockets
                    .contains_key(&token_of(link.id, address.is_ipv6()))
            };
            for (address, question) in gateways.questions(link.id.0, reaches) {
                if let Some(socket) = self.sockets.get(&token_of(link.id, address.is_ipv6())) {
                    socket.send_one(address, &question);
                }
            }
        }
        if has_link {
            gateways.on_link(now);
        }
    }

    /// Begins an association with the gateway `index`.
    pub(super) fn use_gateway(&mut self, now: Instant, index: usize) -> anyhow::Result<()> {
        self.end_handover(now);
        let config = Arc::clone(&self.config);
        let (Role::Client(client), Some(gateways)) = (&config.role, &self.gateways) else {
            return Ok(());
        };
        let gateway = client.gateways.get(index).context("no such gateway")?;
        let endpoints = gateways.addresses();
        self.announce_gateway(now, index);
        let peer = gateway_peer(&config, gateway);
        // The close messages for the previous gateway still travel by the previous carrier.
        self.tx.clear();
        self.endpoint
            .change_gateway(now, peer, endpoints, &mut self.tx);
        self.send_batches();
        self.start_carrying(now, index)?;
        self.settle_carried(now);
        self.endpoint.handle_timeout(now);
        self.transmit(now);
        Ok(())
    }

    /// Tells the log that the gateway `index` is used now.
    pub(super) fn announce_gateway(&self, now: Instant, index: usize) {
        let (Role::Client(client), Some(gateways)) = (&self.config.role, &self.gateways) else {
            return;
        };
        let gateway = client.gateways.get(index).map(|gateway| &gateway.name);
        let (why, endpoints) = (gateways.explain(now, index), gateways.addresses());
        tracing::info!(gateway, ?endpoints, why, "gateway");
        let missing = client.missing_networks(index).join(", ");
        if !missing.is_empty() {
            tracing::warn!(
                gateway,
                networks = missing,
                "the gateway does not lead to these networks: packets for them are dropped while it is in use"
            );
        }
    }

    /// Starts the carrier over TCP for the gateway `index`.
    pub(super) fn start_carrying(&mut self, now: Instant, index: usize) -> anyhow::Result<()> {
        let config = Arc::clone(&self.config);
        let Role::Client(client) = &config.role else {
            return Ok(());
        };
        let carried = Links::start(client, index, self.host.fwmark(), &config.name)?;
        self.poller.add(carried.waker(), CARRIER)?;
        self.carried = Some(carried);
        for link in 0..self.links.len() {
            self.carry(now, link);
        }
        Ok(())
    }
}
