//! The loop of a further data thread: a UDP socket, a queue of the TUN device, and an engine with its own clients.
//!
//! It does for its clients what [`crate::run_tunnel::data_path`] does, and nothing else: worker 0 has the control socket,
//! the configuration, the store of clients and the files, and speaks to this thread by [`Order`]s.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use pleach_core::{
    endpoint::{Endpoint, accounts::Caps, workers::Share},
    packet::{Ecn, PacketBuf},
    session::limiter::Limits,
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
};
use pleach_linux::{
    clock,
    entropy::KernelEntropy,
    poll::{self, BusyPoll, Event as Ready, Poller, Token},
    tun::Tun,
    udp::RecvBatch,
    vm_clone::CloneWatch,
};

use super::{
    Order, Report, Reports,
    mail::{CarriedBatch, Inbox, Passed, Post},
    orders::OrderInbox,
};
use crate::{
    config::{Role, TunnelConfig},
    control::{StatusReport, WorkerStatus},
    run_tunnel::{
        carried::CARRIED,
        cores,
        counted::Counted,
        device, endpoint_config,
        first_data::FirstData,
        fleet,
        handshaker::{AbortOnPanic, Handshaker},
        ledger::Ledger,
        memory,
        pauses::Pauses,
        reload,
        report::{self, Identity},
        sockets::{LinkSocket, Sent},
    },
    trace::TraceFile,
};

/// What a thread starts with.
pub(super) struct Parts {
    pub(super) share: Share,
    pub(super) config: Arc<TunnelConfig>,
    pub(super) mtu: u16,
    pub(super) tun: Tun,
    pub(super) socket: LinkSocket,
    pub(super) handshaker: Handshaker,
    pub(super) orders: OrderInbox,
    pub(super) inbox: Inbox,
    pub(super) post: Post,
    pub(super) reports: Reports,
    /// `None` without a store of clients.
    pub(super) ledger: Option<Arc<Ledger>>,
    pub(super) trace: Option<TraceFile>,
}

/// Starts the thread. If it fails, it says so with [`Report::Failed`].
///
/// # Errors
/// If the thread cannot be created.
pub(super) fn spawn(parts: Parts) -> io::Result<JoinHandle<()>> {
    let name = format!("worker {}", parts.share.number());
    thread::Builder::new().name(name).spawn(move || {
        let _guard = AbortOnPanic;
        let reports = parts.reports.clone();
        let ended = Worker::start(parts).and_then(Worker::run);
        if let Err(error) = ended {
            reports.tell(Report::Failed(format!("{error:#}")));
        }
    })
}

struct Worker {
    share: Share,
    config: Arc<TunnelConfig>,
    endpoint: Endpoint,
    tun: Tun,
    socket: LinkSocket,
    handshaker: Handshaker,
    /// Watch for copies of this machine, as at worker 0.
    clones: Option<CloneWatch>,
    orders: OrderInbox,
    inbox: Inbox,
    post: Post,
    reports: Reports,
    poller: Poller,
    tx: TxQueue,
    rx: RecvBatch,
    packets: Vec<PacketBuf>,
    refused: u64,
    undelivered: u64,
    pauses: Pauses,
    /// Byte counters for the store of clients. `None` without a store.
    counted: Option<Counted>,
    /// In a fleet: clients that have just connected.
    first_data: FirstData,
}

impl Worker {
    fn start(parts: Parts) -> anyhow::Result<Self> {
        let _ = poll::set_precise_timers();
        let Role::Gateway(gateway) = &parts.config.role else {
            anyhow::bail!("only a gateway has several data threads");
        };
        let now = clock::now();
        let mut endpoint = Endpoint::new(
            endpoint_config(&parts.config, parts.mtu, parts.share),
            KernelEntropy::open().context("random numbers of the kernel")?,
            now,
        );
        endpoint.set_share(parts.share);
        if let Some(trace) = &parts.trace {
            endpoint.observe(trace);
        }
        endpoint.set_time_of_day(now, clock::unix_nanos());
        endpoint.set_handshake_limits(Limits::for_cores(cores().get()));
        endpoint.set_asking(gateway.store.is_some());
        endpoint.set_enrolling(gateway.invitations.is_some());
        for client in &gateway.clients {
            endpoint.set_caps(now, &client.public_key, client.caps);
        }
        let poller = Poller::new().context("epoll")?;
        poller.add(&parts.tun, TUN)?;
        poller.add(&parts.socket, SOCKET)?;
        poller.add(parts.handshaker.waker(), HANDSHAKES)?;
        poller.add(parts.inbox.waker(), MAIL)?;
        let clones = CloneWatch::start().ok();
        if let Some(clones) = &clones {
            poller.add(clones, CLONE)?;
        }
        Ok(Self {
            share: parts.share,
            config: parts.config,
            endpoint,
            tun: parts.tun,
            socket: parts.socket,
            handshaker: parts.handshaker,
            clones,
            orders: parts.orders,
            inbox: parts.inbox,
            post: parts.post,
            reports: parts.reports,
            poller,
            tx: TxQueue::new(32),
            rx: RecvBatch::default(),
            packets: Vec::new(),
            refused: 0,
            undelivered: 0,
            pauses: Pauses::default(),
            counted: parts.ledger.map(Counted::new),
            first_data: FirstData::default(),
        })
    }

    /// Moves packets until worker 0 orders the end.
    fn run(mut self) -> anyhow::Result<()> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut busy = BusyPoll::default();
        loop {
            let coming = self.first_data.next_at();
            let deadlines = [self.endpoint.poll_timeout(), coming];
            let deadline = deadlines.into_iter().flatten().min();
            busy.wait(&self.poller, deadline, &mut ready)?;
            let mut now = clock::now();
            let woken_at = now;
            for event in &ready {
                match event.token {
                    TUN => self.read_tun(now)?,
                    HANDSHAKES => self.handshaker.collect(&mut self.endpoint, now),
                    CLONE => {
                        // Nothing may be sent with the old keys until worker 0 has noticed it too.
                        if self.clones.as_ref().is_some_and(CloneWatch::take) {
                            self.endpoint.handle_clone(now);
                        }
                    }
                    MAIL => {
                        if self.read_mail(now) {
                            self.stop(now);
                            return Ok(());
                        }
                    }
                    _ => {
                        if event.writable {
                            self.flush();
                        }
                        if event.readable {
                            self.receive();
                        }
                    }
                }
                now = clock::now();
            }
            self.handshaker.hand_over(&mut self.endpoint, now);
            self.endpoint.handle_timeout(now);
            self.deliver()?;
            self.transmit(now);
            self.count();
            self.post.flush();
            self.report(now);
            self.pauses.on_round(clock::now().since(woken_at));
        }
    }

    /// Tells worker 0 what the clients remember, closes their sessions, and counts their last bytes.
    fn stop(mut self, now: Instant) {
        self.tell_memories(now);
        self.endpoint.close();
        if let Err(error) = self.deliver() {
            tracing::warn!(worker = self.share.number(), %error, "the last packets are not delivered");
        }
        self.transmit(now);
        self.count();
        self.post.flush();
    }

    fn deliver(&mut self) -> io::Result<()> {
        self.undelivered += device::deliver(&mut self.endpoint, &mut self.tun, &mut self.packets)?;
        Ok(())
    }

    fn read_tun(&mut self, now: Instant) -> io::Result<()> {
        let (endpoint, tun, post) = (&mut self.endpoint, &mut self.tun, &mut self.post);
        device::read(endpoint, tun, &mut self.packets, |endpoint, packets| {
            post.sort(now, endpoint, packets);
        })
    }

    fn receive(&mut self) {
        let (endpoint, post) = (&mut self.endpoint, &mut self.post);
        let received = self.socket.socket.recv(&mut self.rx, |message| {
            let incoming = Incoming {
                route: Route {
                    link: 0,
                    remote: message.source,
                    local: message.destination,
                },
                is_congested: message.ecn == Ecn::Congested,
            };
            // As in the data path of worker 0, the time is read after the datagram has arrived.
            let now = clock::now();
            for datagram in message.contents.chunks_mut(message.stride) {
                if !post.pass(&incoming, datagram) {
                    endpoint.handle_datagram(now, &incoming, datagram);
                }
            }
        });
        if let Err(error) = received
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!(worker = self.share.number(), %error, "receiving");
        }
    }

    fn transmit(&mut self, now: Instant) {
        while !self.socket.is_full() {
            self.tx.clear();
            self.endpoint.poll_transmit(now, &mut self.tx);
            if self.tx.is_empty() {
                return;
            }
            self.send_batches();
        }
    }

    fn send_batches(&mut self) {
        for batch in self.tx.batches() {
            if batch.route().link == CARRIED {
                self.post.pass_carried(CarriedBatch {
                    route: *batch.route(),
                    segment_len: batch.segment_len(),
                    bytes: batch.bytes().to_vec(),
                });
                continue;
            }
            match self.socket.send(batch, !batch.has_parity()) {
                Sent::All => {}
                Sent::Later => {
                    let _ = self.poller.want_write(&self.socket, SOCKET, true);
                }
                Sent::Refused => self.refused += batch.segments() as u64,
            }
        }
    }

    fn flush(&mut self) {
        if self.socket.flush() {
            let _ = self.poller.want_write(&self.socket, SOCKET, false);
        }
    }

    /// Takes what other threads have passed. Returns whether this thread is to end.
    fn read_mail(&mut self, now: Instant) -> bool {
        self.inbox.waker().clear();
        // TCP carries links at worker 0 only.
        let _ = self.inbox.unpack(now, &mut self.endpoint);
        for _ in 0..ORDERS_PER_ROUND {
            match self.orders.next() {
                Some(Order::Stop) => return true,
                Some(order) => self.execute(now, order),
                None => return false,
            }
        }
        // The sockets are served before the rest.
        self.inbox.waker().wake();
        false
    }

    fn execute(&mut self, now: Instant, order: Order) {
        match order {
            Order::Add(client, caps) => {
                let key = client.public_key;
                if self.endpoint.add_client(client) {
                    self.set_caps(now, &key, caps);
                }
            }
            Order::Caps(key, caps) => self.set_caps(now, &key, caps),
            Order::Cloned => {
                // A worker with a watch notices it itself, and may have new sessions already.
                if self.clones.is_none() {
                    self.endpoint.handle_clone(now);
                }
            }
            Order::Drain(is_on) => self.endpoint.set_draining(is_on),
            Order::FindHeard(clients) => {
                let heard = fleet::heard_since(&self.endpoint, clients);
                if !heard.is_empty() {
                    self.reports.tell(Report::Heard(heard));
                }
            }
            Order::FindIdle { mut keys, before } => {
                let heard = |key: &[u8; 32]| self.endpoint.last_heard(key);
                keys.retain(|key| heard(key).is_none_or(|heard| heard < before));
                if !keys.is_empty() {
                    self.reports.tell(Report::Idle(keys));
                }
            }
            Order::Initiation(handed) => self.endpoint.handle_handed(now, *handed),
            Order::Recall {
                peer,
                path,
                carries,
            } => self.endpoint.recall(now, &peer, path, &carries),
            Order::Reconfigure { config, classes } => {
                self.endpoint.reconfigure(now, &classes, |peer| {
                    reload::scheduler_of(&config, &peer.name)
                });
                self.config = config;
            }
            Order::Remember => self.tell_memories(now),
            Order::Remove(key) => {
                if let Some(counted) = &mut self.counted {
                    counted.forget(&mut self.endpoint, &key);
                }
                self.endpoint.remove_client(now, &key);
            }
            Order::Settle {
                ticket,
                client,
                caps,
            } => {
                let key = client.as_ref().map(|client| client.public_key);
                if let Err(clash) = self.endpoint.settle_enrolment(now, ticket, client) {
                    tracing::warn!("client refused: {clash}");
                }
                if let Some(key) = key {
                    self.set_caps(now, &key, caps);
                }
            }
            Order::Status(number) => {
                let part = Box::new(self.status());
                self.reports.tell(Report::Status(number, part));
            }
            // `read_mail` handles it.
            Order::Stop => {}
            Order::TimeOfDay => self.endpoint.set_time_of_day(now, clock::unix_nanos()),
            Order::Watch(key) => {
                let seen = self.endpoint.seen(&key);
                self.first_data.watch(now, key, seen);
            }
            Order::Weights(weights) => {
                for (name, weight) in &weights {
                    self.endpoint
                        .update_links(now, name, |link| link.weight = *weight);
                }
            }
        }
    }

    fn set_caps(&mut self, now: Instant, key: &[u8; 32], caps: Caps) {
        self.endpoint.set_caps(now, key, caps);
    }

    /// Tells worker 0 what it has to know or to decide.
    fn report(&mut self, now: Instant) {
        while let Some(request) = self.endpoint.poll_enrolment() {
            self.reports.tell(Report::Ask(request));
        }
        while let Some(verdict) = self.endpoint.poll_verdict() {
            self.reports.tell(Report::Verdict(verdict));
        }
        while let Some(event) = self.endpoint.poll_event() {
            self.reports.tell(Report::Event(event));
        }
        let endpoint = &self.endpoint;
        let here = self.first_data.take(now, |key| endpoint.seen(key));
        if !here.is_empty() {
            self.reports.tell(Report::Here(here));
        }
    }

    /// Counts what clients have carried in this round.
    fn count(&mut self) {
        if let Some(counted) = &mut self.counted {
            counted.count(&mut self.endpoint);
        }
    }

    fn tell_memories(&self, now: Instant) {
        if self.config.remember {
            let memories = memory::of_clients(now, &self.endpoint);
            if !memories.is_empty() {
                self.reports.tell(Report::Remembered(memories));
            }
        }
    }

    fn status(&self) -> StatusReport {
        let identity = Identity {
            is_client: false,
            name: &self.config.name,
            policy: self.config.scheduler.policy.name(),
        };
        let drops = [
            ("send_refused", self.refused),
            ("tun_refused", self.undelivered),
            ("tun_malformed", self.tun.malformed_reads()),
            ("worker_refused", self.post.counters().refused),
        ];
        StatusReport {
            data_thread: Some(self.pauses.status()),
            workers: vec![status_of(&self.endpoint, &self.post, self.share)],
            ..report::status(&identity, &self.endpoint, |_| String::new(), &drops)
        }
    }
}

/// Returns the state of the worker of `share`, with this engine and post.
pub(super) fn status_of(endpoint: &Endpoint, post: &Post, share: Share) -> WorkerStatus {
    let (clients, up) = endpoint.peer_counts();
    let Passed { passed, refused } = post.counters();
    WorkerStatus {
        number: share.number() as u64,
        clients: clients as u64,
        up: up as u64,
        passed,
        refused,
        draining: endpoint.is_draining(),
    }
}

const TUN: Token = Token(0);
const SOCKET: Token = Token(1);
const HANDSHAKES: Token = Token(2);
const MAIL: Token = Token(3);
const CLONE: Token = Token(4);

/// Maximum number of orders executed before the sockets are served.
const ORDERS_PER_ROUND: usize = 64;
