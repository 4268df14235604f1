//! The loop that moves packets.
//!
//! Each round has these steps: wait for events; read a limited number of packets from the sockets and the TUN device;
//! run the engine's timers; write the packets that the engine delivers to the TUN device; send until the engine has no
//! more packets to send. No step blocks, except the wait for events.

mod crew;
mod gateways;
mod handover;
mod services;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use anyhow::Context as _;
use pleach_carrier::server::Server;
use pleach_core::{
    endpoint::{Endpoint, Event, Reach, accounts::Caps},
    ids::PathId,
    packet::{Ecn, PacketBuf},
    path::{health::State, link::Link},
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::{Incoming, PathStatus},
};
use pleach_linux::{
    clock,
    owner::Finder,
    poll::{BusyPoll, Event as Ready, Poller, ResumeTimer, Signals, Token, Waker},
    routes::{Plan, Setup},
    state::StateDir,
    tun::Tun,
    udp::RecvBatch,
    vm_clone::CloneWatch,
    watch::{LinkSnapshot, LinkWatch},
};

use super::{
    admitted::Admitted,
    budgets::Budgets,
    carried::{self, CARRIED, Links, Place, Task},
    device,
    enrolled::{self, Enroller},
    fleet::Fleet,
    gateways::Gateways,
    handshaker::Handshaker,
    host::{Host, HostState},
    links::{self, ClientLink},
    memory::{self, Memory},
    names::Names,
    pauses::Pauses,
    portals::Portals,
    reload::Source,
    report,
    rules::Rules,
    sockets::{LinkSocket, Sent, Traits},
    solo::Solo,
    splitting::Splitting,
    workers::{Crew, Lanes, Order, Purpose, Question},
};
use crate::{
    config::{Role, TunnelConfig},
    control::{ControlRequest, Reply, StatusReport, server::ControlServer},
    split_tcp::far::Translated,
    trace::TraceFile,
};
use handover::Handover;

/// State of the data path.
pub(super) struct DataPath {
    pub(super) config: Arc<TunnelConfig>,
    /// Source of the configuration.
    pub(super) source: Source,
    pub(super) endpoint: Endpoint,
    tun: Tun,
    pub(super) host: Host,
    /// Addresses and routes for which the host is configured.
    pub(super) plan: Plan,
    signals: Signals,
    poller: Poller,
    /// Sockets by token. A link of a client has two sockets, for IPv4 and IPv6.
    sockets: BTreeMap<u64, LinkSocket>,
    pub(super) links: Vec<ClientLink>,
    watch: Option<LinkWatch>,
    /// Last snapshot of the host's devices.
    snapshot: Vec<LinkSnapshot>,
    control: Control,
    handshaker: Handshaker,
    /// Enrolment thread of a gateway with invitations.
    enroller: Option<Enroller>,
    /// The other data threads of a gateway that has several.
    pub(super) crew: Option<Crew>,
    /// Clients of a gateway's store, if it has one.
    pub(super) admitted: Option<Admitted>,
    /// At a gateway of a fleet: the clients that are here.
    pub(super) fleet: Option<Fleet>,
    resume: ResumeTimer,
    /// Watch for copies of this machine. `None` if the kernel does not report them.
    clones: Option<CloneWatch>,
    tx: TxQueue,
    rx: RecvBatch,
    packets: Vec<PacketBuf>,
    refused: u64,
    /// Number of packets that the TUN device did not accept.
    undelivered: u64,
    memory: Option<Memory>,
    /// Protocol version of peers that use another version than this daemon. An entry is removed when the peer connects.
    incompatible: BTreeMap<String, u16>,
    /// Restriction to one link. `None` if there is no restriction.
    pub(super) solo: Option<Solo>,
    /// Budgets of a client's links, if there are any.
    pub(super) budgets: Option<Budgets>,
    /// Name resolution of the gateway, if the configuration contains a host name.
    names: Option<Names>,
    /// Checks for captive portals of a client, if enabled.
    portals: Option<Portals>,
    /// At a client: its gateways, and which of them is in use.
    gateways: Option<Gateways>,
    /// At a client that changes its gateway: the second engine.
    handover: Option<Box<Handover>>,
    /// File for the decisions of the engine.
    trace: Option<TraceFile>,
    /// At a client: the rules that were set at run time, and the search for programs.
    pub(super) rules: Rules,
    /// Splitting of TCP connections by a client, if enabled.
    splitting: Option<Splitting>,
    /// At a gateway: the client networks whose addresses it translates, for split TCP connections.
    pub(super) translated: Translated,
    /// Links of a client that TCP may carry.
    carried: Option<Links>,
    /// Listener of a gateway for links that TCP carries.
    carrier: Option<Server>,
    pauses: Pauses,
}

struct Control {
    server: ControlServer,
    requests: Receiver<ControlRequest>,
    waker: Waker,
}

impl DataPath {
    /// Opens sockets, control socket and link watch, and tells the service manager that the daemon is ready. `finder`:
    /// process that finds programs, if rules need it and this process is confined.
    ///
    /// # Errors
    /// A socket or watch cannot be opened.
    pub(super) fn start(
        config: TunnelConfig,
        source: Source,
        endpoint: Endpoint,
        lanes: Lanes,
        setup: Setup,
        signals: Signals,
        finder: Option<Finder>,
    ) -> anyhow::Result<Self> {
        let config = Arc::new(config);
        let Lanes { mut queues, trace } = lanes;
        let engines = queues.len();
        let tun = queues.drain(..1).next().context("no TUN device")?;
        let poller = Poller::new().context("epoll")?;
        poller.add(&tun, TUN)?;
        poller.add(&signals, SIGNALS)?;
        let waker = Waker::new()?;
        poller.add(&waker, CONTROL)?;
        let handshaker =
            Handshaker::start(super::cores().get(), engines).context("threads for handshakes")?;
        poller.add(handshaker.waker(), HANDSHAKES)?;
        let resume = ResumeTimer::start().context("timer")?;
        poller.add(&resume, RESUME)?;
        let clones = CloneWatch::start()
            .inspect_err(|error| tracing::debug!(%error, "clones of this machine go unnoticed"))
            .ok();
        if let Some(clones) = &clones {
            poller.add(clones, CLONE)?;
        }
        poller.add(source.waker(), RELOAD)?;
        let wake = waker.clone();
        let (server, requests) =
            ControlServer::start(&config.control, &config.view, move || wake.wake())?;
        let mut this = Self {
            config: Arc::clone(&config),
            source,
            endpoint,
            tun,
            host: Host::start(setup).context("thread for changes of the host")?,
            plan: super::plan(&config),
            signals,
            poller,
            sockets: BTreeMap::new(),
            links: Vec::new(),
            watch: None,
            snapshot: Vec::new(),
            control: Control {
                server,
                requests,
                waker,
            },
            handshaker,
            enroller: None,
            crew: None,
            admitted: None,
            fleet: None,
            resume,
            clones,
            tx: TxQueue::new(32),
            rx: RecvBatch::default(),
            packets: Vec::new(),
            refused: 0,
            undelivered: 0,
            memory: None,
            incompatible: BTreeMap::new(),
            solo: None,
            budgets: None,
            names: None,
            portals: None,
            gateways: None,
            handover: None,
            trace: None,
            rules: Rules::default(),
            splitting: None,
            translated: Translated::default(),
            carried: None,
            carrier: None,
            pauses: Pauses::default(),
        };
        if config.remember {
            let dir = StateDir::open(super::state_directory()).context("state directory")?;
            this.memory = Some(Memory::load(clock::now(), dir, &config.name));
        }
        match &config.role {
            Role::Gateway(gateway) => {
                let lanes = Lanes { queues, trace };
                this.start_gateway(&config, gateway, lanes)?;
            }
            Role::Client(client) => this.start_client(&config, client, finder)?,
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(this)
    }

    /// Also writes the decisions of engines that are made later to `trace`.
    pub(super) fn traced(mut self, trace: Option<TraceFile>) -> Self {
        self.trace = trace;
        self
    }

    /// Moves packets until a signal arrives. Then tells the peers that this end stops, and returns the host's changes
    /// that are to be undone.
    ///
    /// # Errors
    /// If the TUN device or the poller fails.
    pub(super) fn run(mut self) -> anyhow::Result<Setup> {
        self.host.run(|host| host.setup.hold());
        let mut ready: Vec<Ready> = Vec::new();
        let mut busy = BusyPoll::default();
        loop {
            let solo = self.solo.as_ref().map(Solo::until);
            let names = self.names_due();
            let split = self.splitting.as_ref().map(Splitting::next);
            let carried = self.carried.as_ref().and_then(Links::next_at);
            let budgets = self.budgets_due();
            let gateways = self.gateways.as_ref().and_then(Gateways::next_at);
            let portals = self.portals.as_ref().map(Portals::next_at);
            let clients = self.admitted.as_ref().map(Admitted::next_at);
            let deadlines = [
                self.endpoint.poll_timeout(),
                solo,
                names,
                split,
                carried,
                budgets,
                gateways,
                self.handover.as_ref().map(|handover| handover.next_at()),
                portals,
                clients,
                self.fleet.as_ref().and_then(Fleet::next_at),
                self.crew.as_ref().and_then(Crew::next_at),
            ];
            let deadline = deadlines.into_iter().flatten().min();
            busy.wait(&self.poller, deadline, &mut ready)?;
            let mut now = clock::now();
            let woken_at = now;
            if solo.is_some_and(|until| until <= now) {
                self.end_solo(now);
            }
            if names.is_some_and(|due| due <= now)
                && let Some(names) = &mut self.names
            {
                names.ask(now);
            }
            self.charge_budgets(now);
            if clients.is_some_and(|due| due <= now) {
                self.look_after_clients(now);
            }
            if portals.is_some_and(|due| due <= now) {
                self.look_for_portals(now);
            }
            for event in &ready {
                match event.token {
                    TUN => self.read_tun(now)?,
                    SIGNALS => {
                        while let Some(signal) = self.signals.take() {
                            if signal != libc::SIGHUP {
                                return self.stop();
                            }
                            self.source.read(None);
                        }
                    }
                    CONTROL => self.answer_requests(now),
                    WATCH => self.look_at_links(now),
                    HANDSHAKES => self.handshaker.collect(&mut self.endpoint, now),
                    PROGRAMS => {
                        if let Some(programs) = &mut self.rules.programs {
                            programs.collect(&mut self.endpoint);
                        }
                    }
                    ENROLMENTS => self.settle_enrolments(now),
                    CLIENTS => self.settle_answers(now),
                    RESUME => {
                        self.resume.clear();
                        // Another program may have set the clock since the last call.
                        self.endpoint.set_time_of_day(now, clock::unix_nanos());
                        self.order_all(|| Order::TimeOfDay);
                    }
                    NAMES => {
                        if let Err(error) = self.settle_names(now) {
                            tracing::warn!(%error, "the gateway's new address is not used yet");
                        }
                    }
                    PORTALS => {
                        if let Some(portals) = &mut self.portals {
                            portals.collect();
                        }
                    }
                    RELOAD => self.settle_reload(now),
                    CLONE => self.look_at_clones(now),
                    CARRIER => self.receive_carried(now),
                    CREW => self.read_mail(now)?,
                    Token(token) => {
                        if event.writable {
                            self.flush(token, now);
                        }
                        if event.readable {
                            self.receive(token);
                        }
                    }
                }
                now = clock::now();
            }
            self.handshaker.hand_over(&mut self.endpoint, now);
            if let Some(programs) = &mut self.rules.programs {
                programs.hand_over(&mut self.endpoint);
            }
            self.settle_inquiries(now);
            self.ask_about_strangers(now);
            if let Some(crew) = &mut self.crew {
                crew.hand_over(&mut self.endpoint);
                crew.post().flush();
            }
            self.endpoint.handle_timeout(now);
            self.settle_handover(now);
            if let Some(splitting) = &mut self.splitting {
                let rules = self.rules.all(&self.config);
                splitting.update(now, &self.endpoint, &self.links, rules);
            }
            self.deliver(now)?;
            self.transmit(now);
            self.count_clients();
            self.tell_events(now);
            self.settle_coming(now);
            self.settle_gateways(now);
            self.settle_carried(now);
            if self
                .memory
                .as_mut()
                .is_some_and(|memory| memory.is_due(now))
            {
                self.remember(now);
            }
            self.pauses.on_round(clock::now().since(woken_at));
        }
    }

    fn stop(mut self) -> anyhow::Result<Setup> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        // Resets of split connections reach the applications only while the host has the tunnel's address.
        drop(self.splitting.take());
        self.remember(clock::now());
        self.dismiss_crew(clock::now());
        if let Some(budgets) = &self.budgets {
            // The host's thread may be writing the same file, so this write is a later job of the same thread.
            let saving = budgets.saving();
            self.host.run(move |_| saving());
        }
        self.end_handover(clock::now());
        self.endpoint.close();
        if let Err(error) = self.deliver(clock::now()) {
            // Another program may have removed the device. Everything else is undone all the same.
            tracing::warn!(%error, "the last packets are not delivered");
        }
        self.transmit(clock::now());
        self.finish_clients();
        if let Some(carried) = &self.carried {
            carried.drain();
        }
        self.host
            .finish()
            .context("the thread for changes of the host has failed")
    }

    fn read_tun(&mut self, now: Instant) -> io::Result<()> {
        let mut post = self.crew.as_mut().map(Crew::post);
        let (endpoint, tun) = (&mut self.endpoint, &mut self.tun);
        device::read(endpoint, tun, &mut self.packets, |endpoint, packets| {
            if let Some(post) = &mut post {
                return post.sort(now, endpoint, packets);
            }
            for packet in packets.drain(..) {
                endpoint.handle_packet(now, packet);
            }
        })
    }

    fn receive(&mut self, token: u64) {
        let Some(socket) = self.sockets.get(&token) else {
            return;
        };
        let (endpoint, link) = (&mut self.endpoint, socket.link);
        let mut carried = self.carried.as_mut();
        let mut gateways = self.gateways.as_mut();
        let mut post = self.crew.as_mut().map(Crew::post);
        let mut handover = self.handover.as_mut();
        let is_gateway = self.watch.is_none();
        let received = socket.socket.recv(&mut self.rx, |message| {
            let incoming = Incoming {
                route: Route {
                    link,
                    remote: message.source,
                    local: message.destination.filter(|_| is_gateway),
                },
                is_congested: message.ecn == Ecn::Congested,
            };
            // The time is read after the datagram has arrived. A delay measured too long affects one sample only. A
            // delay measured too short would stay in use as the minimum delay.
            let now = clock::now();
            let second = handover.as_mut();
            let second = second.and_then(|handover| handover.engine_of(&message.source));
            let engine = second.unwrap_or(&mut *endpoint);
            for datagram in message.contents.chunks_mut(message.stride) {
                if let Some(carried) = &mut carried {
                    carried.on_datagram(link, datagram);
                }
                if let Some(gateways) = &mut gateways
                    && gateways.on_datagram(now, link, message.source, datagram)
                {
                    continue;
                }
                if let Some(post) = &mut post
                    && post.pass(&incoming, datagram)
                {
                    continue;
                }
                engine.handle_datagram(now, &incoming, datagram);
            }
        });
        if let Err(error) = received
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!(link, %error, "receiving");
        }
    }

    /// Writes the packets that the engine delivers to the TUN device.
    fn deliver(&mut self, now: Instant) -> io::Result<()> {
        if let Some(handover) = &mut self.handover {
            handover.deliver(now, &mut self.packets);
        }
        let (endpoint, tun) = (&mut self.endpoint, &mut self.tun);
        self.undelivered += device::deliver(endpoint, tun, &mut self.packets)?;
        Ok(())
    }

    fn traits(&self) -> Traits {
        Traits {
            fwmark: self.host.fwmark(),
        }
    }

    fn transmit(&mut self, now: Instant) {
        if self.watch.is_none() && self.sockets.values().any(LinkSocket::is_full) {
            // A gateway has one socket for all clients. Sending continues when the socket has free buffer space.
            return;
        }
        loop {
            self.tx.clear();
            self.endpoint.poll_transmit(now, &mut self.tx);
            if self.tx.is_empty() || !self.send_batches() {
                break;
            }
        }
        while let Some(handover) = &mut self.handover {
            self.tx.clear();
            handover.engine().poll_transmit(now, &mut self.tx);
            if self.tx.is_empty() || !self.send_batches() {
                break;
            }
        }
    }

    /// Sends the batches of the queue. Returns `false` if the socket of a gateway is full.
    fn send_batches(&mut self) -> bool {
        let mut is_full = false;
        for batch in self.tx.batches() {
            let route = batch.route();
            if let Some(carried) = &mut self.carried
                && carried.uses_tcp(route.link)
            {
                carried.send(batch);
                continue;
            }
            if let Some(carrier) = &self.carrier
                && route.link == CARRIED
            {
                let refused = carrier.send(route.remote, batch.bytes(), batch.segment_len());
                self.refused += refused;
                continue;
            }
            let token = match self.watch {
                None => FIRST_SOCKET,
                Some(_) => token_of(PathId(batch.route().link), batch.route().remote.is_ipv6()),
            };
            let Some(socket) = self.sockets.get_mut(&token) else {
                self.refused += batch.segments() as u64;
                continue;
            };
            // A datagram with bit errors is useful only if parity can repair it. So only datagrams with parity are
            // sent without a UDP checksum.
            match socket.send(batch, !batch.has_parity()) {
                Sent::All => {}
                Sent::Later => {
                    let _ = self.poller.want_write(&*socket, Token(token), true);
                    let id = PathId(socket.link);
                    self.endpoint.handle_blocked(id, true);
                    if let Some(handover) = &mut self.handover {
                        handover.engine().handle_blocked(id, true);
                    }
                    is_full = true;
                }
                Sent::Refused => self.refused += batch.segments() as u64,
            }
        }
        self.watch.is_some() || !is_full
    }

    fn flush(&mut self, token: u64, now: Instant) {
        let Some(socket) = self.sockets.get_mut(&token) else {
            return;
        };
        if socket.flush() {
            let _ = self.poller.want_write(&*socket, Token(token), false);
            let id = PathId(socket.link);
            self.endpoint.handle_blocked(id, false);
            if let Some(handover) = &mut self.handover {
                handover.engine().handle_blocked(id, false);
            }
            self.transmit(now);
        }
    }

    fn answer_requests(&mut self, now: Instant) {
        self.control.waker.clear();
        while let Ok(request) = self.control.requests.try_recv() {
            match request {
                ControlRequest::Status(reply) => self.inquire(now, Purpose::Status(reply)),
                ControlRequest::Drain(is_on, reply) => self.drain(is_on, reply),
                ControlRequest::Only(link, reply) => self.use_only(now, link, reply),
                ControlRequest::Reload(reply) => self.source.read(Some(reply)),
                ControlRequest::RemoveClient(name, reply) => {
                    self.source.on_clients_changed();
                    self.remove_client(now, &name, reply);
                }
                ControlRequest::Set(set, reply) => reply.send(self.set_rule(now, &set)),
                ControlRequest::Weights(weights, reply) => {
                    if self.crew.is_none() {
                        let known = self.link_names();
                        reply.send(self.set_weights(now, &known, &weights));
                        continue;
                    }
                    self.inquire(now, Purpose::Weights(weights, reply));
                }
            }
        }
    }

    /// Returns the status of this end; of a gateway with several workers, the part of worker 0.
    fn status(&self, now: Instant) -> StatusReport {
        let identity = report::Identity {
            is_client: matches!(self.config.role, Role::Client(_)),
            name: &self.config.name,
            policy: self.config.scheduler.policy.name(),
        };
        let device_of = |path: &PathStatus| {
            let link = self.links.iter().find(|link| link.id == path.id);
            link.map_or(String::new(), |link| link.device.clone())
        };
        let status = report::status(
            &identity,
            &self.endpoint,
            device_of,
            &[
                ("send_refused", self.refused),
                ("tun_refused", self.undelivered),
                ("tun_malformed", self.tun.malformed_reads()),
            ],
        );
        let budgets = match (&self.config.role, &self.budgets) {
            (Role::Client(client), Some(budgets)) => budgets.report(&client.links),
            (Role::Client(_) | Role::Gateway(_), _) => BTreeMap::new(),
        };
        let gateways = self.gateways.as_ref();
        let mut status = StatusReport {
            budgets,
            incompatible: self.incompatible.clone(),
            restored_tables: Some(self.host.restored_tables()),
            data_thread: Some(self.pauses.status()),
            split_tcp: self.splitting.as_ref().map(Splitting::status),
            gateways: gateways.map_or_else(Vec::new, |all| all.status(now)),
            store: self.admitted.as_ref().map(Admitted::report),
            fleet: self.fleet.as_ref().map(Fleet::report),
            draining: self.endpoint.is_draining(),
            ..status
        };
        if let Some(crew) = &self.crew {
            status.workers.push(crew.status(&self.endpoint));
            let refused = crew.refused();
            status.drops.insert("worker_refused".to_owned(), refused);
        }
        self.mark_carriers(&mut status);
        self.rules.report(&self.config, &self.endpoint, &mut status);
        if let Some(portals) = &self.portals {
            portals.explain(&mut status);
        }
        if let (Role::Client(client), Some(budgets)) = (&self.config.role, &self.budgets) {
            budgets.explain(&client.links, &mut status.links);
        }
        status
    }

    /// Discards all keys if this machine has become a copy of another machine.
    fn look_at_clones(&mut self, now: Instant) {
        if self.clones.as_ref().is_some_and(CloneWatch::take) {
            tracing::warn!("this machine was cloned or restored: all sessions start anew");
            self.endpoint.handle_clone(now);
            // The other copy has the same keys, so nothing is sent.
            if self.handover.take().is_some() {
                self.gateways.iter_mut().for_each(Gateways::postpone);
            }
            self.order_all(|| Order::Cloned);
        }
    }

    fn use_only(&mut self, now: Instant, link: Option<(String, Duration)>, reply: Reply<()>) {
        self.end_handover(now);
        self.end_solo(now);
        let Some((name, time)) = link else {
            return reply.send(Ok(()));
        };
        let names = self.link_names();
        if self.watch.is_none() || !names.contains(&name) {
            let known = names.join(", ");
            return reply.send(Err(format!("this end has no link {name}; it has: {known}")));
        }
        let until = now + time;
        self.solo = Some(Solo::start(now, &mut self.endpoint, &names, &name, until));
        reply.send(Ok(()));
    }

    pub(super) fn end_solo(&mut self, now: Instant) {
        if let Some(solo) = self.solo.take() {
            solo.end(now, &mut self.endpoint);
        }
    }

    pub(super) fn link_names(&self) -> Vec<String> {
        let peers = self.endpoint.status();
        peers
            .flat_map(|(_, status)| status.paths.into_iter().map(|path| path.name))
            .collect()
    }

    fn remove_client(&mut self, now: Instant, name: &str, reply: Reply<()>) {
        if self.watch.is_some() {
            return reply.send(Err("this is a client, no gateway".to_owned()));
        }
        let key = self.admitted.as_ref().and_then(|all| all.key_of(name));
        let is_removed = match key {
            Some(key) => self.forget_client(now, &key).is_some(),
            None => self.remove_by_name(now, name),
        };
        if is_removed {
            tracing::info!(client = name, "removed");
        }
        reply.send(Ok(()));
    }

    /// Passes the results of enrolment claims to the engine.
    fn settle_enrolments(&mut self, now: Instant) {
        if let Some(enroller) = &self.enroller {
            enroller.waker().clear();
        }
        while let Some((ticket, client)) = self.enroller.as_ref().and_then(Enroller::collect) {
            let peer = client.map(|client| enrolled::peer(client, &self.config.scheduler));
            let settled = self.settle(now, Question::of(ticket), peer, Caps::default());
            if let Err(clash) = settled {
                tracing::warn!("enrolled client refused: {clash}");
            }
            self.source.on_clients_changed();
        }
    }

    /// Sets the weights of links, at all workers. `known`: the names of all links.
    ///
    /// # Errors
    /// If a link is not known. No weight is changed.
    fn set_weights(
        &mut self,
        now: Instant,
        known: &[String],
        weights: &BTreeMap<String, u32>,
    ) -> Result<(), String> {
        if let Some(unknown) = weights.keys().find(|name| !known.contains(name)) {
            return Err(format!(
                "no link is called {unknown}; there is: {}",
                known.join(", ")
            ));
        }
        self.end_handover(now);
        for (name, weight) in weights {
            self.endpoint
                .update_links(now, name, |link| link.weight = *weight);
        }
        self.order_all(|| Order::Weights(weights.clone()));
        Ok(())
    }

    /// Stores the present estimates of all paths. Other workers tell theirs later.
    fn remember(&mut self, now: Instant) {
        if let Some(crew) = &self.crew {
            crew.remember();
        }
        let Some(memory) = &mut self.memory else {
            return;
        };
        let carried: Vec<_> = self
            .endpoint
            .status()
            .flat_map(|(peer, status)| {
                let paths = status.paths.into_iter();
                paths.map(move |path| (peer.name.clone(), path))
            })
            .collect();
        let mut is_changed = false;
        for (peer, id, carries) in self.endpoint.memories(now) {
            let path = carried
                .iter()
                .find(|(name, path)| name == peer && path.id == id);
            let Some((_, path)) = path else { continue };
            let link = self.links.iter().find(|link| link.id == id);
            let network = match (&self.config.role, link, path.remote) {
                (Role::Client(_), Some(link), _) => link.network.clone(),
                (Role::Gateway(_), _, Some(remote)) => memory::provider(remote.ip()),
                (Role::Client(_) | Role::Gateway(_), ..) => continue,
            };
            let key = memory::Key {
                peer: peer.to_owned(),
                link: path.name.clone(),
                network,
            };
            memory.note(now, key, &carries);
            is_changed = true;
        }
        if is_changed {
            let save = memory.saving();
            self.host.run(move |_| save());
        }
    }

    fn tell_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            self.tell_event(now, 0, event);
        }
    }

    /// Handles an event of a worker's engine.
    fn tell_event(&mut self, now: Instant, worker: usize, event: Event) {
        if let (Some(crew), Event::Peer { name, .. }) = (&self.crew, &event)
            && crew.is_of_another(worker, name)
        {
            // The client has a new key, and a worker had not been told yet when it noticed the end of the former session.
            return;
        }
        match event {
            Event::Peer { name, is_up: true } => {
                self.incompatible.remove(&name);
                tracing::info!(peer = name, "connected");
                self.on_client(now, &name, true);
            }
            Event::Peer { name, is_up: false } => {
                tracing::info!(peer = name, "disconnected");
                self.on_client(now, &name, false);
                if let Some(gateways) = &mut self.gateways {
                    gateways.hurry(now);
                }
            }
            Event::Incompatible { name, version } => {
                tracing::warn!(
                    peer = name,
                    version,
                    "the peer speaks another version of the protocol: update the older end"
                );
                self.incompatible.insert(name, version);
            }
            Event::Found {
                peer,
                path,
                link,
                remote,
            } => self.recall(now, worker, path, remote, (peer, link)),
            Event::Mtu { peer, link, mtu } => {
                tracing::info!(peer, link, mtu, "the path takes packets of so many bytes");
            }
            Event::Path { peer, link, state } => {
                tracing::info!(peer, link, ?state, "path");
                self.on_path(now, &link, state);
            }
            Event::Reached { path } => {
                if let Some(carried) = &mut self.carried {
                    carried.on_udp_answer(now, path.0);
                }
            }
        }
    }

    /// Passes the stored estimates of a path's network to the engine of `worker`. `names`: of the peer and the link.
    fn recall(
        &mut self,
        now: Instant,
        worker: usize,
        id: PathId,
        remote: IpAddr,
        names: (String, String),
    ) {
        let (peer, link) = names;
        let network = match &self.config.role {
            Role::Gateway(_) => memory::provider(remote),
            Role::Client(_) => {
                let known = self.links.iter().find(|link| link.id == id);
                known.map_or_else(String::new, |known| known.network.clone())
            }
        };
        let key = memory::Key {
            peer,
            link,
            network,
        };
        let found = self
            .memory
            .as_ref()
            .and_then(|memory| memory.find(now, &key));
        if let Some((carries, age)) = found {
            match &self.crew {
                Some(crew) if worker != 0 => {
                    let peer = key.peer.clone();
                    let path = id;
                    crew.order(
                        worker,
                        Order::Recall {
                            peer,
                            path,
                            carries,
                        },
                    );
                }
                _ => self.endpoint.recall(now, &key.peer, id, &carries),
            }
            tracing::debug!(
                peer = key.peer,
                link = key.link,
                network = key.network,
                rate = %carries.rate,
                ?age,
                "remembered"
            );
        }
    }

    fn look_at_links(&mut self, now: Instant) {
        if let Some(snapshot) = self.watch.as_ref().and_then(LinkWatch::take) {
            self.snapshot = snapshot;
            self.host.run(HostState::look_around);
            self.take_up_links(now);
        }
    }

    /// Updates the links according to the devices that exist.
    pub(super) fn take_up_links(&mut self, now: Instant) {
        let Role::Client(client) = &self.config.role else {
            return;
        };
        let snapshot = std::mem::take(&mut self.snapshot);
        if client.links.is_empty() {
            self.find_links(&snapshot);
        }
        for index in 0..self.links.len() {
            self.look_at_link(now, index, &snapshot);
        }
        self.snapshot = snapshot;
        // This call precedes the first packet, so that a link that always uses TCP sends no packet over UDP.
        self.settle_carried(now);
    }

    /// Adds a link for every device with a route to the gateway, and removes links whose device is gone. A link whose
    /// device has only lost its route stays, out of use, and keeps its counters.
    fn find_links(&mut self, snapshot: &[LinkSnapshot]) {
        let is_used = |link: &ClientLink| links::device(snapshot, &link.device).is_some();
        self.keep_links(is_used);
        let config = Arc::clone(&self.config);
        let uplinks = snapshot.iter();
        for device in uplinks.filter(|device| links::is_uplink(device, &config.name)) {
            if self.links.iter().all(|link| link.device != device.name) {
                let settings = Link {
                    mtu: self.inner_mtu(),
                    ..Link::named(&device.name)
                };
                self.add_link(&device.name, settings);
            }
        }
    }

    /// Removes the links that are not `wanted`.
    pub(super) fn keep_links(&mut self, wanted: impl Fn(&ClientLink) -> bool) {
        if !self.links.iter().all(&wanted) {
            self.end_handover(clock::now());
        }
        for link in self.links.iter().filter(|link| !wanted(link)) {
            self.endpoint.remove_link(link.id);
            if let Some(carried) = &mut self.carried {
                carried.remove(link.id.0);
            }
            self.sockets.retain(|_, socket| socket.link != link.id.0);
            tracing::info!(device = link.device, "link is gone");
        }
        self.links.retain(wanted);
    }

    fn look_at_link(&mut self, now: Instant, index: usize, snapshot: &[LinkSnapshot]) {
        let (id, device_name) = (self.links[index].id, self.links[index].device.clone());
        let device = links::device(snapshot, &device_name);
        let reach = device.map_or(Reach::NONE, links::reach);
        let ifindex = device.map(|device| device.ifindex);
        let sources = [false, true].map(|is_v6| links::source(device?, is_v6));
        // A link that reaches no network can lack an address. Then its network is not updated.
        let network = device.filter(|_| reach != Reach::NONE).map(links::network);
        let link = &mut self.links[index];
        let old = network.map(|network| std::mem::replace(&mut link.network, network));
        let has_roamed = old.is_some_and(|old| !old.is_empty() && old != link.network);
        if !has_roamed && (ifindex, reach, sources) == (link.ifindex, link.reach, link.sources) {
            return;
        }
        if (ifindex, sources) != (link.ifindex, link.sources) || reach == Reach::NONE {
            // A socket is bound to the device that had the name when the socket was opened, and possibly to an address
            // of that device.
            for is_v6 in [false, true] {
                self.sockets.remove(&token_of(id, is_v6));
            }
        }
        self.endpoint.handle_blocked(id, false);
        let mut opened = reach;
        for (is_v6, wanted) in [(false, &mut opened.v4), (true, &mut opened.v6)] {
            let token = token_of(id, is_v6);
            if !*wanted || self.sockets.contains_key(&token) {
                continue;
            }
            let source = sources[usize::from(is_v6)];
            let socket = LinkSocket::on_device(&device_name, id.0, is_v6, source, self.traits());
            let added = socket
                .map_err(Into::into)
                .and_then(|socket| self.add_socket(token, socket));
            if let Err(error) = added {
                tracing::warn!(device = device_name, "socket: {error:#}");
                *wanted = false;
            }
        }
        if reach != Reach::NONE {
            let device = device_name.clone();
            self.host.run(move |host| {
                if let Err(error) = host.setup.loosen_reverse_path(&device) {
                    tracing::warn!(device, "reverse path filter: {error}");
                }
            });
        }
        tracing::info!(
            device = device_name,
            ipv4 = opened.v4,
            ipv6 = opened.v6,
            "link"
        );
        self.links[index].ifindex = ifindex;
        self.links[index].reach = reach;
        self.links[index].sources = sources;
        self.carry(now, index);
        // The engine is informed even if the reachable networks are unchanged, because the path over another device
        // must start again.
        for reach in [Reach::NONE, opened] {
            self.endpoint.handle_link(now, id, reach);
            self.mirror_link(now, id, reach);
        }
    }

    /// Informs the TCP carrier about the networks that a link reaches.
    pub(super) fn carry(&mut self, now: Instant, index: usize) {
        let (Role::Client(client), Some(carried)) = (&self.config.role, &mut self.carried) else {
            return;
        };
        let link = &self.links[index];
        let config = client.links.iter().find(|config| config.name == link.name);
        let place = Place {
            device: link.device.clone(),
            reach: link.reach,
            sources: link.sources,
            proxy: config.and_then(|config| config.http_proxy.clone()),
        };
        carried.on_reach(now, link.id.0, place, config);
    }

    fn receive_carried(&mut self, now: Instant) {
        if let Some(carried) = &mut self.carried {
            carried.receive(&mut self.endpoint, now);
        }
        if let Some(carrier) = &mut self.carrier {
            let post = self.crew.as_mut().map(Crew::post);
            carried::receive(carrier, &mut self.endpoint, post);
        }
    }

    fn on_path(&mut self, now: Instant, link: &str, state: State) {
        self.control.server.on_link_change();
        if let Some(gateways) = &mut self.gateways {
            gateways.hurry(now);
        }
        let known = self.links.iter().find(|known| known.name == link);
        if let (Some(carried), Some(known)) = (&mut self.carried, known) {
            match state {
                State::Up => carried.on_path(now, known.id.0, true),
                State::Down => carried.on_path(now, known.id.0, false),
                State::Probing | State::Suspect => {}
            }
        }
    }

    /// Adds to `status` which links TCP carries.
    fn mark_carriers(&self, status: &mut StatusReport) {
        if let Some(carried) = &self.carried {
            for shown in &mut status.links {
                if let Some(link) = self.links.iter().find(|link| link.name == shown.name) {
                    carried.mark(link.id.0, shown);
                }
            }
            status
                .drops
                .insert("carrier_refused".to_owned(), carried.refused);
        }
        if let Some(carrier) = &self.carrier {
            let links = status
                .clients
                .iter_mut()
                .flat_map(|client| &mut client.links);
            for shown in links {
                let remote = shown.endpoint.as_ref().and_then(|text| text.parse().ok());
                let is_carried = remote.is_some_and(|remote| carrier.has(remote));
                shown.carrier = Some(if is_carried { "tcp" } else { "udp" }.to_owned());
            }
        }
    }

    /// Executes the pending tasks of links that change between UDP and TCP.
    fn settle_carried(&mut self, now: Instant) {
        let (Some(gateways), Some(carried)) = (&self.gateways, &mut self.carried) else {
            return;
        };
        carried.measure(now, &self.endpoint);
        let gateway = gateways.addresses();
        let mut is_changed = false;
        while let Some((id, task)) = self.carried.as_mut().and_then(|c| c.poll(now, &gateway)) {
            match task {
                Task::Ask => self.ask_over_udp(PathId(id), &gateway),
                Task::Restart => {
                    let link = self.links.iter().find(|link| link.id == PathId(id));
                    if let Some(reach) = link.map(|link| link.reach) {
                        self.endpoint.handle_blocked(PathId(id), false);
                        self.endpoint.handle_link(now, PathId(id), Reach::NONE);
                        self.endpoint.handle_link(now, PathId(id), reach);
                        is_changed = true;
                    }
                }
            }
        }
        if is_changed {
            self.endpoint.handle_timeout(now);
            self.transmit(now);
        }
    }

    fn ask_over_udp(&mut self, id: PathId, gateway: &[SocketAddr]) {
        let Some(question) = self.endpoint.reach_question(id) else {
            return;
        };
        for address in gateway {
            if let Some(socket) = self.sockets.get(&token_of(id, address.is_ipv6())) {
                socket.send_one(*address, &question);
            }
        }
    }

    pub(super) fn add_link(&mut self, device: &str, settings: Link) {
        let name = settings.name.clone();
        self.end_handover(clock::now());
        match self.endpoint.add_link(clock::now(), settings) {
            Some(id) => self.links.push(ClientLink {
                id,
                name,
                device: device.to_owned(),
                ifindex: None,
                reach: Reach::NONE,
                sources: [None; 2],
                network: String::new(),
            }),
            None => tracing::warn!(device, "more links than a tunnel can use: not used"),
        }
    }

    fn add_socket(&mut self, token: u64, socket: LinkSocket) -> anyhow::Result<()> {
        self.poller.add(&socket, Token(token))?;
        self.sockets.insert(token, socket);
        Ok(())
    }

    pub(super) fn inner_mtu(&self) -> u16 {
        self.config.mtu.unwrap_or(super::DEFAULT_MTU)
    }
}

/// Returns the token of a client's socket.
fn token_of(id: PathId, is_v6: bool) -> u64 {
    FIRST_SOCKET + u64::from(id.0) * 2 + u64::from(is_v6)
}

const TUN: Token = Token(0);
const SIGNALS: Token = Token(1);
const CONTROL: Token = Token(2);
const WATCH: Token = Token(3);
const RESUME: Token = Token(4);
const CLONE: Token = Token(5);
const HANDSHAKES: Token = Token(6);
const ENROLMENTS: Token = Token(7);
const RELOAD: Token = Token(8);
const NAMES: Token = Token(9);
const CARRIER: Token = Token(10);
const PORTALS: Token = Token(11);
const CLIENTS: Token = Token(12);
const PROGRAMS: Token = Token(13);
const CREW: Token = Token(14);
const FIRST_SOCKET: u64 = 16;
