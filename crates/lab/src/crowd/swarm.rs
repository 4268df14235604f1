//! The loop that drives all clients: sockets, timers and traffic, on one thread.
//!
//! All clients share [`SOCKETS`] sockets for each link. A socket is bound to the wildcard address, and each datagram
//! leaves with the source address of its client. So each client has addresses of its own at the gateway, and the crowd
//! needs few descriptors and no limit raised.

use core::{net::Ipv4Addr, net::SocketAddr, time::Duration};
use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Context as _;
use pleach_core::{
    endpoint::Reach,
    ids::PathId,
    packet::Ecn,
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::Incoming,
    wire::handshake::KIND_INITIATION,
};
use pleach_linux::{
    clock,
    poll::{Event, Poller, Token},
    udp::{RecvBatch, Transmit, UdpOptions, UdpSocket},
};

use super::{
    member::{Member, Shared, V4},
    numbering::Outer,
};

/// Number of sockets for each link.
const SOCKETS: u32 = 16;
/// Maximum number of clients whose timers run before the sockets are read again, so that answers do not wait for
/// the handshakes of thousands of other clients.
const TIMERS_PER_ROUND: usize = 32;
/// Interval at which busy clients offer packets.
const TICK: Duration = Duration::from_millis(5);

/// The traffic of busy clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Number of busy clients: the first ones.
    pub(crate) clients: u32,
    /// Bytes that each of them offers per second.
    pub(crate) bytes_per_second: u64,
}

/// All clients, and what they share.
pub(crate) struct Swarm {
    pub(crate) members: Vec<Member>,
    pub(crate) shared: Shared,
    sockets: Vec<UdpSocket>,
    poller: Poller,
    ready: Vec<Event>,
    rx: RecvBatch,
    tx: TxQueue,
    timers: BTreeSet<(Instant, u32)>,
    touched: Vec<u32>,
    load: Load,
    next_tick: Option<Instant>,
    /// Number of clients that have connected since the crowd last began to gather.
    pub(crate) gathered: u32,
    /// Number of batches that the kernel refused.
    pub(crate) refused: u64,
    /// Longest time by which a client's timer was late.
    pub(crate) lateness: Duration,
    /// Initiations that the clients have sent.
    pub(crate) recorder: Recorder,
}

/// A recorder of initiations, as an attacker on the path could have it. It is off until [`Self::most`] is set.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Number of initiations after which recording ends.
    pub(crate) most: usize,
    /// The recorded initiations.
    pub(crate) initiations: Vec<Vec<u8>>,
}

impl Recorder {
    fn record(&mut self, datagram: &[u8]) {
        if self.initiations.len() < self.most && datagram.first() == Some(&KIND_INITIATION) {
            self.initiations.push(datagram.to_vec());
        }
    }
}

impl Swarm {
    /// Opens the sockets. Call this method on a thread in the crowd's namespace.
    pub(crate) fn new(members: Vec<Member>, shared: Shared) -> anyhow::Result<Self> {
        let poller = Poller::new().context("epoll")?;
        let mut sockets = Vec::new();
        for token in 0..SOCKETS * u32::from(shared.links) {
            let options = UdpOptions::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
            let socket = UdpSocket::bind(&options).context(
                "a socket of the crowd cannot be opened; raise the limit of descriptors (ulimit -n)",
            )?;
            poller.add(&socket, Token(token.into()))?;
            sockets.push(socket);
        }
        let mut this = Self {
            members,
            shared,
            sockets,
            poller,
            ready: Vec::new(),
            rx: RecvBatch::default(),
            tx: TxQueue::new(16),
            timers: BTreeSet::new(),
            touched: Vec::new(),
            load: Load::default(),
            next_tick: None,
            gathered: 0,
            refused: 0,
            lateness: Duration::ZERO,
            recorder: Recorder::default(),
        };
        for index in 0..this.members.len() {
            this.touch(index);
        }
        Ok(this)
    }

    /// Drives all clients until `deadline`, or until `is_done` returns true, which is asked every round.
    pub(crate) fn run(
        &mut self,
        deadline: Instant,
        mut is_done: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        loop {
            self.settle(clock::now());
            let now = clock::now();
            if now >= deadline || is_done(self) {
                return Ok(());
            }
            let timer = self.timers.first().map(|(at, _)| *at);
            let next = [timer, self.next_tick].into_iter().flatten();
            let next = next.fold(deadline, Instant::min);
            self.poller.wait(Some(next), &mut self.ready)?;
            for at in 0..self.ready.len() {
                self.receive(usize::try_from(self.ready[at].token.0)?);
            }
            self.run_timers(clock::now());
            self.offer(clock::now());
        }
    }

    /// Changes the traffic of busy clients from now on.
    pub(crate) fn set_load(&mut self, load: Load) {
        self.load = load;
        self.next_tick = (load.clients > 0).then(clock::now);
    }

    /// Begins to count the clients that connect from now on.
    pub(crate) fn begin_gathering(&mut self) {
        self.gathered = 0;
        self.members.iter_mut().for_each(Member::begin_gathering);
    }

    /// Moves a client to other addresses.
    pub(crate) fn roam(&mut self, index: usize) {
        self.members[index].roam();
    }

    /// Replaces a client's engine, as after a crash of the client.
    pub(crate) fn restart(&mut self, index: usize) -> anyhow::Result<()> {
        self.members[index].restart(clock::now(), &self.shared)?;
        self.touch(index);
        Ok(())
    }

    /// Tells a client that one of its links reaches the gateway, or no longer does.
    pub(crate) fn set_link(&mut self, index: usize, link: u8, is_usable: bool) {
        let reach = if is_usable { V4 } else { Reach::NONE };
        let endpoint = &mut self.members[index].endpoint;
        endpoint.handle_link(clock::now(), PathId(link), reach);
        self.touch(index);
    }

    /// Sets the clock of a client, in nanoseconds since 1970.
    pub(crate) fn set_clock(&mut self, index: usize, unix_nanos: u64) {
        let endpoint = &mut self.members[index].endpoint;
        endpoint.set_time_of_day(clock::now(), unix_nanos);
    }

    /// Returns the number of clients that are up.
    pub(crate) fn up(&self) -> usize {
        self.members.iter().filter(|member| member.is_up).count()
    }

    fn touch(&mut self, index: usize) {
        let member = &mut self.members[index];
        if !core::mem::replace(&mut member.is_touched, true) {
            // Numbers of clients have 16 bits.
            self.touched.push(u32::try_from(index).unwrap_or(0));
        }
    }

    fn receive(&mut self, token: usize) {
        let link = u8::try_from(token / SOCKETS as usize).unwrap_or(0);
        let (members, touched) = (&mut self.members, &mut self.touched);
        let received = self.sockets[token].recv(&mut self.rx, |message| {
            let Some(IpAddr::V4(destination)) = message.destination else {
                return;
            };
            let outer = Outer::of(destination);
            // A client that has moved no longer receives at its former address.
            let Some(member) = members.get_mut(outer.client as usize) else {
                return;
            };
            if outer.link != link || outer.place != member.place {
                return;
            }
            let incoming = Incoming {
                route: Route {
                    link,
                    remote: message.source,
                    local: None,
                },
                is_congested: message.ecn == Ecn::Congested,
            };
            let now = clock::now();
            for datagram in message.contents.chunks_mut(message.stride) {
                member.endpoint.handle_datagram(now, &incoming, datagram);
            }
            if !core::mem::replace(&mut member.is_touched, true) {
                touched.push(outer.client);
            }
        });
        if let Err(error) = received
            && error.kind() != std::io::ErrorKind::WouldBlock
        {
            tracing::debug!(%error, "receiving");
        }
    }

    fn run_timers(&mut self, now: Instant) {
        for _ in 0..TIMERS_PER_ROUND {
            let Some(&(at, number)) = self.timers.first() else {
                return;
            };
            if at > now {
                return;
            }
            self.timers.pop_first();
            self.lateness = self.lateness.max(now.since(at));
            let index = number as usize;
            self.members[index].deadline = None;
            self.members[index].endpoint.handle_timeout(now);
            self.touch(index);
        }
    }

    fn offer(&mut self, now: Instant) {
        let Some(due) = self.next_tick.filter(|due| *due <= now) else {
            return;
        };
        let elapsed = now.since(due) + TICK;
        self.next_tick = Some(now + TICK);
        let nanos = u128::from(self.load.bytes_per_second) * elapsed.as_nanos();
        let bytes = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        for index in 0..self.load.clients as usize {
            self.members[index].offer(now, bytes);
            self.touch(index);
        }
    }

    /// Sends what the clients with new input have to send, and records their next deadlines.
    fn settle(&mut self, now: Instant) {
        while let Some(number) = self.touched.pop() {
            let member = &mut self.members[number as usize];
            member.is_touched = false;
            loop {
                self.tx.clear();
                member.endpoint.poll_transmit(now, &mut self.tx);
                if self.tx.is_empty() {
                    break;
                }
                for batch in self.tx.batches() {
                    self.recorder.record(batch.bytes());
                    let link = batch.route().link;
                    let socket = u32::from(link) * SOCKETS + number % SOCKETS;
                    let transmit = Transmit {
                        destination: batch.route().remote,
                        src_ip: Some(member.source(link)),
                        ecn: Ecn::NotCapable,
                        segment_size: Some(batch.segment_len()),
                        contents: batch.bytes(),
                    };
                    // The engine detects the loss.
                    let sent = self.sockets[socket as usize].send(&transmit);
                    self.refused += u64::from(sent.is_err());
                }
            }
            member.collect(now);
            self.gathered += u32::from(member.take_gathered());
            let next = member.endpoint.poll_timeout();
            if next != member.deadline {
                if let Some(at) = core::mem::replace(&mut member.deadline, next) {
                    self.timers.remove(&(at, number));
                }
                self.timers.extend(next.map(|at| (at, number)));
            }
        }
    }
}
