//! The data threads of a gateway that has several: worker 0, which is the [data path](super::data_path), and further
//! workers (`worker`), each with a socket, a queue of the TUN device and an engine of its own.
//!
//! A client belongs to one worker ([`pleach_core::endpoint::workers`]), so no lock is on the way of a packet:
//!
//! | what arrives | where it arrives | where it is handled |
//! | --- | --- | --- |
//! | datagram of a session | socket of the worker that the receiver index names, chosen by the kernel | there |
//! | initiation | socket of worker 0, which reads and limits it | worker of the client, by [`Order::Initiation`] |
//! | packet of the host | TUN queue that has last written a packet of this flow, otherwise any queue | worker of the client, through its mailbox (`mail`) if it is another one |
//! | datagram that TCP carries | worker 0 | worker of the session, through its mailbox; back the same way |
//!
//! Worker 0 decides about clients: it has the configuration, the store and the [directory](directory::Directory) of all
//! clients, gives [`Order`]s, and gets [`Report`]s. Both are unbounded channels. Orders that repeat themselves are left out
//! while many wait (`orders`); the others are caused by the configuration, the store, requests and initiations, of which each
//! has its own bound: the engine hands over few initiations before it gets their verdicts. Reports are caused by orders, by events (bounded by the engine in each round) and by clients
//! that connect.
//!
//! With one worker none of this exists.

mod directory;
mod inquiries;
mod mail;
mod merge;
mod orders;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use pleach_core::{
    class::Class,
    endpoint::{
        Endpoint, Event, PeerConfig,
        accounts::Caps,
        enrolment::{Clash, EnrolmentRequest},
        workers::{Handed, MAX_WORKERS, Share, Verdict},
    },
    ids::PathId,
    path::memory::PathMemory,
    time::Instant,
};
use pleach_linux::{clock, poll::Waker, tun::Tun};

use super::{handshaker::Handshaker, ledger::Ledger, memory, reload, sockets::LinkSocket};
use crate::{
    config::{GatewayConfig, Role, TunnelConfig},
    control::{Reply, StatusReport, WorkerStatus},
    keys::KEY_LEN,
    trace::TraceFile,
};
use directory::Directory;
use inquiries::Inquiries;
use mail::Inbox;
pub(super) use mail::{CarriedBatch, Post};
use orders::Orders;
use worker::Parts;

/// What the data threads get from the start of the daemon, before its rights are restricted.
pub(super) struct Lanes {
    /// Queues of the TUN device; that of worker 0 is the first.
    pub(super) queues: Vec<Tun>,
    /// File for the decisions of the engines.
    pub(super) trace: Option<TraceFile>,
}

/// What worker 0 tells a further worker to do.
pub(super) enum Order {
    Add(PeerConfig, Caps),
    Caps([u8; KEY_LEN], Caps),
    /// This machine is a copy; for workers that cannot watch for it.
    Cloned,
    /// Ask clients to use another gateway, or no longer.
    Drain(bool),
    /// Name those of these clients from which something was received since the time beside them.
    FindHeard(Vec<([u8; KEY_LEN], Instant)>),
    /// Name the clients of `keys` from which nothing was received since `before`.
    FindIdle {
        keys: Vec<[u8; KEY_LEN]>,
        before: Instant,
    },
    Initiation(Box<Handed>),
    Recall {
        peer: String,
        path: PathId,
        carries: PathMemory,
    },
    Reconfigure {
        config: Arc<TunnelConfig>,
        classes: Vec<Class>,
    },
    /// Tell the estimates that are worth storing.
    Remember,
    /// Remove the client with this key.
    Remove([u8; KEY_LEN]),
    /// The answer to a question, with the ticket of the worker's engine.
    Settle {
        ticket: u64,
        client: Option<PeerConfig>,
        caps: Caps,
    },
    /// Tell the worker's part of the status with this number.
    Status(u64),
    Stop,
    /// Another program may have set the clock.
    TimeOfDay,
    /// Tell when this client, which has just connected, is here.
    Watch([u8; KEY_LEN]),
    Weights(BTreeMap<String, u32>),
}

/// What a further worker tells worker 0.
pub(super) enum Report {
    Ask(EnrolmentRequest),
    Event(Event),
    /// The worker has ended: a message for the user.
    Failed(String),
    Heard(BTreeSet<[u8; KEY_LEN]>),
    /// These watched clients are here.
    Here(BTreeSet<[u8; KEY_LEN]>),
    Idle(Vec<[u8; KEY_LEN]>),
    Remembered(Vec<(memory::Key, PathMemory)>),
    /// The worker's part of the status with this number.
    Status(u64, Box<StatusReport>),
    Verdict(Verdict),
}

/// What the status of all workers is for.
pub(super) enum Purpose {
    Status(Reply<StatusReport>),
    /// To know the names of all links before their weights are set.
    Weights(BTreeMap<String, u32>, Reply<()>),
}

/// The way of a further worker to worker 0.
#[derive(Clone, Debug)]
struct Reports {
    worker: usize,
    sender: Sender<(usize, Report)>,
    waker: Waker,
}

impl Reports {
    fn tell(&self, report: Report) {
        // Worker 0 may be stopping.
        if self.sender.send((self.worker, report)).is_ok() {
            self.waker.wake();
        }
    }
}

/// Worker 0's handle to the further workers. Dropping it without [`Self::finish`] leaves them running, so this is done
/// only if the daemon ends because of an error.
pub(super) struct Crew {
    share: Share,
    directory: Directory,
    post: Post,
    inbox: Inbox,
    /// Those of the further workers; worker 1 is the first.
    orders: Vec<Orders>,
    reports: Receiver<(usize, Report)>,
    /// Statuses to which the workers add their parts.
    inquiries: Inquiries<Purpose>,
    threads: Vec<JoinHandle<()>>,
}

/// What [`Crew::start`] needs.
pub(super) struct Start<'a> {
    pub(super) config: &'a Arc<TunnelConfig>,
    pub(super) gateway: &'a GatewayConfig,
    pub(super) mtu: u16,
    /// Sockets of the further workers, in the order of their numbers.
    pub(super) sockets: Vec<LinkSocket>,
    /// Queues of the further workers.
    pub(super) queues: Vec<Tun>,
    pub(super) handshaker: &'a Handshaker,
    /// Where the bytes of clients are counted; `None` without a store.
    pub(super) ledger: Option<&'a Arc<Ledger>>,
    pub(super) trace: Option<TraceFile>,
}

impl Crew {
    /// Starts the further workers.
    ///
    /// # Errors
    /// If a thread or an eventfd cannot be created.
    pub(super) fn start(start: Start<'_>) -> anyhow::Result<Self> {
        let share = Share::new(0, start.queues.len() + 1);
        let mut directory = Directory::new(share);
        for client in &start.gateway.clients {
            let peer = reload::peer(client, &start.config.scheduler);
            directory.insert(peer, client.caps);
        }
        let wakers = (0..share.count()).map(|_| Waker::new());
        let wakers = wakers.collect::<Result<Vec<_>, _>>()?;
        let mut mail = mail::mailboxes(&wakers, directory.routes()).into_iter();
        let (post, inbox) = mail.next().context("there is at least one data thread")?;
        let (sender, reports) = mpsc::channel();
        let mut this = Self {
            share,
            directory,
            post,
            inbox,
            orders: Vec::new(),
            reports,
            inquiries: Inquiries::new(share.count()),
            threads: Vec::new(),
        };
        let lanes = start.sockets.into_iter().zip(start.queues);
        for (number, ((socket, tun), (post, inbox))) in (1..).zip(lanes.zip(mail)) {
            let (order, orders) = orders::channel(inbox.waker().clone());
            this.orders.push(order);
            let parts = Parts {
                share: Share::new(number, share.count()),
                config: Arc::clone(start.config),
                mtu: start.mtu,
                tun,
                socket,
                handshaker: start.handshaker.another()?,
                orders,
                inbox,
                post,
                reports: Reports {
                    worker: number,
                    sender: sender.clone(),
                    waker: this.inbox.waker().clone(),
                },
                ledger: start.ledger.cloned(),
                trace: start.trace.clone(),
            };
            let thread = worker::spawn(parts).context("data thread")?;
            this.threads.push(thread);
        }
        Ok(this)
    }

    /// Returns the waker, which is readable when there are reports, packets or datagrams for worker 0.
    pub(super) const fn waker(&self) -> &Waker {
        self.inbox.waker()
    }

    /// Returns what worker 0 passes to the others.
    pub(super) const fn post(&mut self) -> &mut Post {
        &mut self.post
    }

    /// Gives what other workers have passed to the engine. Returns datagrams for links that TCP carries.
    pub(super) fn receive(&self, now: Instant, endpoint: &mut Endpoint) -> Vec<CarriedBatch> {
        self.inbox.waker().clear();
        self.inbox.unpack(now, endpoint)
    }

    /// Returns the next report, and its worker.
    pub(super) fn report(&self) -> Option<(usize, Report)> {
        self.reports.try_recv().ok()
    }

    /// Passes initiations that worker 0 has read to the workers of their clients.
    pub(super) fn hand_over(&self, endpoint: &mut Endpoint) {
        while let Some(handed) = endpoint.poll_handed() {
            self.order(handed.owner(), Order::Initiation(Box::new(handed)));
        }
    }

    fn orders(&self, worker: usize) -> Option<&Orders> {
        worker.checked_sub(1).and_then(|at| self.orders.get(at))
    }

    /// Gives an order to a further worker.
    pub(super) fn order(&self, worker: usize, order: Order) {
        if let Some(orders) = self.orders(worker) {
            orders.send(order);
        }
    }

    /// Gives a further worker an order that is given again later, if few orders wait.
    fn offer(&self, worker: usize, order: Order) {
        if let Some(orders) = self.orders(worker) {
            orders.offer(order);
        }
    }

    /// Asks the workers which of these clients they have heard since the time beside them, unless they hang.
    pub(super) fn find_heard(&self, worker: usize, clients: Vec<([u8; KEY_LEN], Instant)>) {
        self.offer(worker, Order::FindHeard(clients));
    }

    /// Asks the workers for the estimates that are worth storing, unless they hang.
    pub(super) fn remember(&self) {
        for worker in 1..self.share.count() {
            self.offer(worker, Order::Remember);
        }
    }

    /// Gives the same order to all further workers.
    pub(super) fn order_all(&self, order: impl Fn() -> Order) {
        for worker in 1..self.share.count() {
            self.order(worker, order());
        }
    }

    /// Returns the worker of the client with this key.
    pub(super) fn owner_of(&self, public_key: &[u8; KEY_LEN]) -> usize {
        self.share.owner_of(public_key)
    }

    /// Returns the worker of the client with this key; `None` if it is worker 0.
    fn other_owner(&self, public_key: &[u8; KEY_LEN]) -> Option<usize> {
        let owner = self.owner_of(public_key);
        (owner != 0).then_some(owner)
    }

    /// Adds a client; see [`Endpoint::add_client`].
    pub(super) fn add_client(&mut self, endpoint: &mut Endpoint, client: PeerConfig) -> bool {
        let key = client.public_key;
        if !self.directory.insert(client.clone(), Caps::default()) {
            return false;
        }
        match self.other_owner(&key) {
            Some(owner) => self.order(owner, Order::Add(client, Caps::default())),
            None => {
                endpoint.add_client(client);
            }
        }
        true
    }

    /// Removes a client; see [`Endpoint::remove_client`].
    pub(super) fn remove_client(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        public_key: &[u8; KEY_LEN],
    ) -> bool {
        if self.directory.remove(public_key).is_none() {
            return false;
        }
        match self.other_owner(public_key) {
            Some(owner) => self.order(owner, Order::Remove(*public_key)),
            None => {
                endpoint.remove_client(now, public_key);
            }
        }
        true
    }

    /// Returns the key of the client `name`.
    pub(super) fn key_of(&self, name: &str) -> Option<[u8; KEY_LEN]> {
        self.directory.key_of(name)
    }

    /// Whether the client that has the name `name` now belongs to another worker than `worker`.
    pub(super) fn is_of_another(&self, worker: usize, name: &str) -> bool {
        let key = self.key_of(name);
        key.is_some_and(|key| self.owner_of(&key) != worker)
    }

    /// Returns all clients.
    pub(super) fn clients(&self) -> impl Iterator<Item = &PeerConfig> {
        self.directory.clients()
    }

    /// Returns the caps of a client.
    pub(super) fn caps(&self, public_key: &[u8; KEY_LEN]) -> Option<Caps> {
        self.directory.caps(public_key)
    }

    /// Sets the caps of a client; see [`Endpoint::set_caps`].
    pub(super) fn set_caps(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        public_key: &[u8; KEY_LEN],
        caps: Caps,
    ) -> bool {
        if !self.directory.set_caps(public_key, caps) {
            return false;
        }
        match self.other_owner(public_key) {
            Some(owner) => self.order(owner, Order::Caps(*public_key, caps)),
            None => {
                endpoint.set_caps(now, public_key, caps);
            }
        }
        true
    }

    /// Answers the question of a worker; see [`Endpoint::settle_enrolment`]. Returns whether the client is known now.
    ///
    /// # Errors
    /// As [`Endpoint::settle_enrolment`]. The client is then refused.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        question: Question,
        client: Option<PeerConfig>,
        caps: Caps,
    ) -> Result<bool, Clash> {
        let clash = client
            .as_ref()
            .and_then(|client| self.directory.clash_of(client));
        let client = client.filter(|_| clash.is_none());
        let is_known = client.is_some();
        if let Some(client) = &client
            && !self.directory.insert(client.clone(), caps)
        {
            self.directory.set_caps(&client.public_key, caps);
        }
        let Question { worker, ticket } = question;
        if worker == 0 {
            settle_here(now, endpoint, ticket, client, caps)?;
        } else {
            let answer = Order::Settle {
                ticket,
                client,
                caps,
            };
            self.order(worker, answer);
        }
        clash.map_or(Ok(is_known), Err)
    }

    /// Asks the workers which of the clients in `keys` are idle. Returns the clients of worker 0, about which its own
    /// engine knows.
    pub(super) fn find_idle(
        &self,
        before: Instant,
        keys: Vec<[u8; KEY_LEN]>,
    ) -> Vec<[u8; KEY_LEN]> {
        let mut of_worker: Vec<Vec<_>> = (0..self.share.count()).map(|_| Vec::new()).collect();
        for key in keys {
            of_worker[self.share.owner_of(&key)].push(key);
        }
        let mut own = Vec::new();
        for (worker, keys) in of_worker.into_iter().enumerate() {
            if worker == 0 {
                own = keys;
            } else if !keys.is_empty() {
                self.offer(worker, Order::FindIdle { keys, before });
            }
        }
        own
    }

    /// Returns the state of worker 0 for the status.
    pub(super) fn status(&self, endpoint: &Endpoint) -> WorkerStatus {
        worker::status_of(endpoint, &self.post, self.share)
    }

    /// Returns the number of packets and datagrams that worker 0 could not pass to others.
    pub(super) const fn refused(&self) -> u64 {
        self.post.counters().refused
    }

    /// Asks the workers for their parts of a status, of which `status` is that of worker 0.
    pub(super) fn inquire(&mut self, now: Instant, status: StatusReport, purpose: Purpose) {
        let (number, asked) = self.inquiries.begin(now, status, purpose);
        for worker in asked {
            self.order(worker, Order::Status(number));
        }
    }

    /// Adds a worker's part to the status with this number.
    pub(super) fn on_part(&mut self, worker: usize, number: u64, part: Box<StatusReport>) {
        self.inquiries.on_part(worker, number, part);
    }

    /// Returns the next status that is complete, or whose time is over.
    pub(super) fn inquired(&mut self, now: Instant) -> Option<(StatusReport, Purpose)> {
        self.inquiries.complete(now)
    }

    /// Returns when the time of a status is over.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.inquiries.next_at()
    }

    /// Ends the workers, and waits for them, at most [`FINISH_WITHIN`]. Returns their last reports, and their last datagrams
    /// for links that TCP carries.
    pub(super) fn finish(
        mut self,
        now: Instant,
        endpoint: &mut Endpoint,
    ) -> (Vec<Report>, Vec<CarriedBatch>) {
        self.order_all(|| Order::Stop);
        let mut carried = Vec::new();
        let until = clock::now() + FINISH_WITHIN;
        while !self.threads.iter().all(JoinHandle::is_finished) && clock::now() < until {
            // The mailbox must have room for the close messages of all carried links.
            carried.extend(self.inbox.unpack(now, endpoint));
            thread::park_timeout(Duration::from_millis(1));
        }
        for (worker, thread) in (1..).zip(self.threads.drain(..)) {
            if !thread.is_finished() {
                // It ends with the process.
                tracing::warn!(worker, "a data thread does not end");
                continue;
            }
            // A thread that panics ends the process.
            let _ = thread.join();
        }
        carried.extend(self.inbox.unpack_all(now, endpoint));
        let reports = self.reports.try_iter().map(|(_, report)| report);
        (reports.collect(), carried)
    }
}

/// A question of a worker's engine about an unknown client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    worker: usize,
    ticket: u64,
}

impl Question {
    /// Returns the question of `worker`, and makes its ticket unique among all workers.
    pub(super) fn mark(worker: usize, request: EnrolmentRequest) -> EnrolmentRequest {
        let ticket = request.ticket * MAX_WORKERS as u64 + worker as u64;
        EnrolmentRequest { ticket, ..request }
    }

    /// Returns the question with a ticket that [`Self::mark`] has made.
    pub(super) fn of(ticket: u64) -> Self {
        Self {
            worker: usize::try_from(ticket % MAX_WORKERS as u64).unwrap_or(0),
            ticket: ticket / MAX_WORKERS as u64,
        }
    }

    /// Answers a question of the only engine.
    ///
    /// # Errors
    /// As [`Endpoint::settle_enrolment`].
    pub(super) fn settle(
        self,
        now: Instant,
        endpoint: &mut Endpoint,
        client: Option<PeerConfig>,
        caps: Caps,
    ) -> Result<bool, Clash> {
        settle_here(now, endpoint, self.ticket, client, caps)
    }
}

fn settle_here(
    now: Instant,
    endpoint: &mut Endpoint,
    ticket: u64,
    client: Option<PeerConfig>,
    caps: Caps,
) -> Result<bool, Clash> {
    let key = client.as_ref().map(|client| client.public_key);
    endpoint.settle_enrolment(now, ticket, client)?;
    Ok(key.is_some_and(|key| endpoint.set_caps(now, &key, caps)))
}

/// Returns the number of data threads of a tunnel on a machine with `cores` processor cores. A client has one.
pub(super) fn count(config: &TunnelConfig, cores: NonZeroUsize) -> usize {
    let Role::Gateway(gateway) = &config.role else {
        return 1;
    };
    let clients = gateway.clients.len();
    let automatic = || automatic(gateway.store.is_some(), clients, cores);
    gateway.workers.unwrap_or_else(automatic)
}

/// Returns the number of data threads that suits a gateway: one for a household, which needs no more and is served in the
/// simplest way, otherwise one for each core.
fn automatic(has_store: bool, clients: usize, cores: NonZeroUsize) -> usize {
    if has_store || clients >= MANY_CLIENTS {
        cores.get().min(MOST_AUTOMATIC)
    } else {
        1
    }
}

/// Longest wait for the workers when the gateway stops. They end at once unless one of them hangs.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// Number of configured clients from which on a gateway has a data thread for each core without being told so.
const MANY_CLIENTS: usize = 64;
/// Maximum number of data threads that a gateway has without being told so.
const MOST_AUTOMATIC: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_with_many_clients_uses_all_cores() {
        let cores = |count| NonZeroUsize::new(count).expect("not zero");
        assert_eq!(automatic(false, 0, cores(8)), 1);
        assert_eq!(automatic(false, MANY_CLIENTS - 1, cores(8)), 1);
        assert_eq!(automatic(false, MANY_CLIENTS, cores(8)), 8);
        assert_eq!(automatic(true, 0, cores(8)), 8);
        assert_eq!(automatic(true, 0, cores(1)), 1);
        assert_eq!(automatic(true, 0, cores(96)), MOST_AUTOMATIC);
    }

    #[test]
    fn the_tickets_of_workers_differ() {
        let request = |ticket| EnrolmentRequest {
            ticket,
            public_key: [7; 32],
            claim: None,
            source: ([192, 0, 2, 1], 7).into(),
        };
        for worker in [0, 1, 63] {
            for ticket in [0, 1, 1 << 40] {
                let marked = Question::mark(worker, request(ticket));
                assert_eq!(Question::of(marked.ticket), Question { worker, ticket });
            }
        }
    }
}
