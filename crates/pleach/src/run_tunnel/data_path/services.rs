//! Starts the services of a gateway (enrolment, TCP carrier, speed tests, split TCP) and of a client (budgets, TCP
//! carrier, watching of links, resolution of the gateway's names, search for programs, split TCP).

use std::{net::SocketAddr, os::fd::AsFd as _, sync::Arc};

use anyhow::Context as _;
use pleach_core::{endpoint::Reach, ids::PathId, path::health::State, time::Instant};
use pleach_linux::{
    clock,
    owner::Finder,
    watch::{LinkWatch, Targets},
};

use super::{
    CARRIER, CLIENTS, CREW, DataPath, ENROLMENTS, FIRST_SOCKET, NAMES, PORTALS, PROGRAMS, WATCH,
};
use crate::{
    config::{ClientConfig, GatewayConfig, Role, TunnelConfig},
    keys,
    run_tunnel::{
        admitted::Admitted,
        budgets::Budgets,
        carried::{self, Links},
        enrolled::Enroller,
        fleet::Fleet,
        gateways::Gateways,
        links,
        names::Names,
        portals::Portals,
        programs::Programs,
        sockets::LinkSocket,
        splitting::Splitting,
        workers::{Crew, Lanes, Start},
    },
    speedtest,
    split_tcp::{
        SplitTcp,
        far::{self, FarSettings},
    },
};

impl DataPath {
    /// Opens the gateway's socket and starts its services.
    ///
    /// # Errors
    /// If the socket, the store of clients or the enrolment cannot be started. Other services that cannot be started are
    /// only logged.
    pub(super) fn start_gateway(
        &mut self,
        config: &Arc<TunnelConfig>,
        gateway: &GatewayConfig,
        lanes: Lanes,
    ) -> anyhow::Result<()> {
        let workers = lanes.queues.len() + 1;
        let mut sockets = if lanes.queues.is_empty() {
            vec![LinkSocket::listen(gateway.listen, self.traits())?]
        } else {
            LinkSocket::listen_shared(gateway.listen, self.traits(), workers)?
        };
        let others = sockets.split_off(1);
        for socket in sockets {
            self.add_socket(FIRST_SOCKET, socket)?;
        }
        for client in &gateway.clients {
            self.endpoint
                .set_caps(clock::now(), &client.public_key, client.caps);
        }
        if let Some(admitted) = Admitted::start(clock::now(), config, gateway, workers)? {
            self.poller.add(admitted.asker().waker(), CLIENTS)?;
            self.admitted = Some(admitted);
            self.endpoint.set_asking(true);
            let networks = gateway.store.as_ref().map(|store| store.networks.clone());
            let fleet = gateway.fleet.clone();
            self.fleet = fleet.map(|fleet| Fleet::new(fleet, networks.unwrap_or_default()));
        }
        if let Some(invitations) = &gateway.invitations {
            if let Some(store) = &invitations.store {
                let own_key = keys::public_of(&config.private_key);
                let enroller = Enroller::start(store, own_key, workers)?;
                self.poller.add(enroller.waker(), ENROLMENTS)?;
                self.enroller = Some(enroller);
            }
            self.endpoint.set_enrolling(true);
        }
        if let Some(carrier) = &gateway.carrier {
            // A web server may meanwhile use the port. Clients can still use UDP, so the gateway starts all the same.
            match carried::listen(config, carrier, self.host.fwmark()) {
                Ok(server) => {
                    self.poller.add(server.waker(), CARRIER)?;
                    tracing::info!(listen = %carrier.listen, "links may be carried over TCP");
                    self.carrier = Some(server);
                }
                Err(error) => tracing::warn!("no link is carried over TCP: {error:#}"),
            }
        }
        if !lanes.queues.is_empty() {
            let crew = Crew::start(Start {
                config,
                gateway,
                mtu: self.inner_mtu(),
                sockets: others,
                queues: lanes.queues,
                handshaker: &self.handshaker,
                ledger: self.admitted.as_ref().map(Admitted::ledger),
                trace: lanes.trace,
            })?;
            self.poller.add(crew.waker(), CREW)?;
            self.crew = Some(crew);
        }
        if gateway.speedtest
            && let Err(error) = speedtest::responder::start(&config.name)
        {
            tracing::warn!(%error, "speed tests are not served");
        }
        if config.split_tcp != SplitTcp::Off {
            self.serve_split_tcp();
        }
        tracing::info!(
            listen = %gateway.listen,
            clients = gateway.clients.len(),
            workers,
            "gateway ready"
        );
        Ok(())
    }

    /// Starts the services of a client, and adds the configured links.
    ///
    /// # Errors
    /// If the TCP carrier, the watching of links, the resolution of names or the search for programs cannot be started.
    /// If split TCP cannot be started, this is only logged.
    pub(super) fn start_client(
        &mut self,
        config: &TunnelConfig,
        client: &ClientConfig,
        finder: Option<Finder>,
    ) -> anyhow::Result<()> {
        self.budgets = Budgets::load(clock::now(), client, &config.name);
        let gateways = Gateways::new(clock::now(), client);
        let carried = Links::start(client, 0, self.host.fwmark(), &config.name)?;
        self.poller.add(carried.waker(), CARRIER)?;
        self.carried = Some(carried);
        for link in &client.links {
            self.add_link(&link.device, links::settings(link, self.inner_mtu()));
        }
        self.watch_links(&gateways.all_addresses())?;
        if client.has_names() {
            let fwmark = self.host.fwmark();
            let names = client.gateways.iter();
            let names = names.map(|gateway| gateway.names.clone()).collect();
            let mut names = Names::new(names, fwmark, &config.name).context("names")?;
            self.poller.add(names.waker(), NAMES)?;
            names.ask(clock::now());
            self.names = Some(names);
        }
        if let Some(url) = &client.portal_check {
            let portals = Portals::new(url.clone(), self.host.fwmark(), &config.name);
            let portals = portals.context("captive portals")?;
            self.poller.add(portals.waker(), PORTALS)?;
            self.portals = Some(portals);
        }
        // A confined process sees no programs.
        if finder.is_some() || !config.confine {
            let programs = Programs::start(finder).context("search for programs")?;
            self.poller.add(programs.waker(), PROGRAMS)?;
            self.rules.programs = Some(programs);
        }
        self.splitting = Splitting::start(clock::now(), config)
            .inspect_err(|error| tracing::warn!(%error, "TCP connections are not split"))
            .unwrap_or_default();
        tracing::info!(endpoints = ?gateways.all_addresses(), "client ready");
        self.gateways = Some(gateways);
        Ok(())
    }

    /// Starts the thread that connects to servers for clients that split TCP connections.
    fn serve_split_tcp(&self) {
        let settings = FarSettings {
            tunnel: self.config.name.clone(),
            addresses: self.config.addresses.clone(),
        };
        self.update_translated();
        if let Err(error) = far::start(settings, Arc::clone(&self.translated)) {
            tracing::warn!(%error, "split TCP connections are not served");
        }
    }

    /// Updates the list of networks whose addresses are translated, according to the configuration.
    pub(in crate::run_tunnel) fn update_translated(&self) {
        if let Ok(mut translated) = self.translated.lock() {
            *translated = crate::run_tunnel::plan(&self.config).masquerade;
        }
    }

    /// Watches the links and their routes to `endpoints`.
    fn watch_links(&mut self, endpoints: &[SocketAddr]) -> anyhow::Result<()> {
        let targets = Targets {
            addresses: endpoints.iter().map(SocketAddr::ip).collect(),
            fwmark: Some(self.host.fwmark()),
        };
        let watch = LinkWatch::start_towards(targets).context("watching links")?;
        self.poller.add(watch.as_fd(), WATCH)?;
        self.watch = Some(watch);
        Ok(())
    }

    /// Uses the addresses that a finished lookup of the gateways' names has found. Does nothing if no lookup has
    /// finished, or if the addresses are unchanged.
    pub(super) fn settle_names(&mut self, now: Instant) -> anyhow::Result<()> {
        let (Some(gateways), Role::Client(client)) = (&mut self.gateways, &self.config.role) else {
            return Ok(());
        };
        let Some(found) = self.names.as_mut().and_then(Names::collect) else {
            return Ok(());
        };
        let used = gateways.used();
        let (mut is_changed, mut is_used_changed) = (false, false);
        for (index, found) in found.into_iter().enumerate() {
            if gateways.set_named(now, index, found.clone()) {
                let name = client.gateways.get(index).map(|gateway| &gateway.name);
                tracing::info!(gateway = name, addresses = ?found, "the gateway's name stands for");
                is_changed = true;
                is_used_changed |= used == Some(index);
            }
        }
        if !is_changed {
            return Ok(());
        }
        let (endpoints, all) = (gateways.addresses(), gateways.all_addresses());
        if is_used_changed {
            self.endpoint.set_endpoints(now, endpoints.clone());
            if let Some(carried) = &mut self.carried {
                carried.on_endpoints(now, &endpoints);
            }
        }
        self.watch_links(&all)
    }

    /// Starts checks for captive portals over the links that have a route, but over which the gateway does not answer.
    pub(super) fn look_for_portals(&mut self, now: Instant) {
        let Some(portals) = &mut self.portals else {
            return;
        };
        let up: Vec<PathId> = self
            .endpoint
            .status()
            .flat_map(|(_, status)| status.paths)
            .filter(|path| matches!(path.state, State::Up | State::Suspect))
            .map(|path| path.id)
            .collect();
        let silent = self.links.iter();
        let silent: Vec<(String, String)> = silent
            .filter(|link| link.reach != Reach::NONE && !up.contains(&link.id))
            .map(|link| (link.name.clone(), link.device.clone()))
            .collect();
        portals.update(now, &silent);
    }

    /// Returns when the names are due to be looked up again. `None` without names, and while the gateway in use has a
    /// session and all other gateways answer.
    pub(super) fn names_due(&self) -> Option<Instant> {
        let names = self.names.as_ref()?;
        if !self.endpoint.is_up() {
            return Some(names.next_at());
        }
        let gateways = self.gateways.as_ref()?;
        let is_any_silent = gateways.next_at().is_some() && gateways.is_any_silent(clock::now());
        is_any_silent.then(|| names.next_at_rarely())
    }
}
