//! A simulated network: nodes connected port to port, with one virtual clock and one order of events.
//!
//! A node is a [`Host`] (addresses, routes, applications, and optionally one end of a tunnel) or a [`Line`] (one
//! direction of several links). A packet sent to a port arrives at the other end of its wire at once: only lines have a
//! delay. Packets are real IP packets. The ends of the tunnel are the production engine, with real handshakes, keys and
//! datagrams.
//!
//! **Order.** Events happen in order of time. At each instant, first all arrived packets are delivered, in the order
//! in which they were sent. Then each node that received a packet or whose timer is due does all its work. These
//! nodes run in the order in which their timers fired or their first packets arrived; timers that are due at the same
//! time fire in the order in which they were set ([`Timers`]). So a node sees all packets that arrive together before
//! it answers, like a host that reads its sockets in batches. Nothing else influences the order: the same seed gives
//! the same run, which [`World::trace_hash`] shows.
//!
//! **Guards.** A run ends with an error that names node and time after [`MAX_EVENTS_AT_ONCE`] events without progress
//! of time, or after more events than the run is permitted.

mod daemon;
mod equalizer;
mod host;
mod line;
mod packet;
mod timers;
mod trace;

use std::collections::VecDeque;

use pleach_core::{rng::Rng, time::Instant};

pub(crate) use self::{
    daemon::{Daemon, DaemonConfig, UPLINK_MTU, Uplink},
    equalizer::{Equalizer, EqualizerConfig, EqualizerPort},
    host::{Host, Route, Via},
    line::Line,
    packet::{Buffers, Datagram, Outbox, Packet, datagram},
};
use self::{timers::Timers, trace::Trace};

/// Highest number of events at one instant.
const MAX_EVENTS_AT_ONCE: u64 = 1_000_000;

/// Index of a node.
pub(crate) type NodeId = usize;

/// Reason why a simulation cannot continue: an error in a state machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// Time does not advance.
    #[error(
        "endless loop at {at_ms} ms: {MAX_EVENTS_AT_ONCE} events at the same time, the last of them at {node}"
    )]
    Livelock {
        /// The node of the last event.
        node: String,
        /// Milliseconds of virtual time.
        at_ms: u64,
    },
    /// The run exceeds its number of events.
    #[error("more than {limit} events by {at_ms} ms, the last of them at {node}")]
    TooManyEvents {
        /// The node of the last event.
        node: String,
        /// Milliseconds of virtual time.
        at_ms: u64,
        /// Permitted number of events.
        limit: u64,
    },
}

/// A node's state machine.
#[derive(Debug)]
pub(crate) enum Node {
    Host(Box<Host>),
    Line(Box<Line>),
}

/// A packet that is about to arrive at a port.
#[derive(Debug)]
struct Arrival {
    node: NodeId,
    port: usize,
    packet: Packet,
}

/// Nodes, wires, and the clock.
#[derive(Debug)]
pub(crate) struct World {
    now: Instant,
    names: Vec<String>,
    nodes: Vec<Node>,
    /// For each node and port, the node and port at the other end. Packets sent to a port without a wire are lost.
    wires: Vec<Vec<Option<(NodeId, usize)>>>,
    timers: Timers,
    arrivals: VecDeque<Arrival>,
    /// Nodes that may have work at the current time, each at most once.
    pending: VecDeque<NodeId>,
    is_pending: Vec<bool>,
    outbox: Outbox,
    trace: Trace,
    packet_events: u64,
    events: u64,
    event_limit: u64,
    events_at_once: u64,
}

impl World {
    /// Creates an empty network at `now` with a limit of `event_limit` events.
    pub(crate) fn new(now: Instant, event_limit: u64) -> Self {
        Self {
            now,
            names: Vec::new(),
            nodes: Vec::new(),
            wires: Vec::new(),
            timers: Timers::default(),
            arrivals: VecDeque::new(),
            pending: VecDeque::new(),
            is_pending: Vec::new(),
            outbox: Outbox::default(),
            trace: Trace::default(),
            packet_events: 0,
            events: 0,
            event_limit,
            events_at_once: 0,
        }
    }

    /// Adds a node.
    pub(crate) fn add(&mut self, name: impl Into<String>, node: Node) -> NodeId {
        let id = self.nodes.len();
        self.names.push(name.into());
        self.nodes.push(node);
        self.wires.push(Vec::new());
        self.is_pending.push(false);
        self.timers.add_node();
        self.wake(id);
        id
    }

    /// Connects the port of `from` to the port of `to`, in one direction.
    pub(crate) fn wire(&mut self, from: (NodeId, usize), to: (NodeId, usize)) {
        let ports = &mut self.wires[from.0];
        if ports.len() <= from.1 {
            ports.resize(from.1 + 1, None);
        }
        ports[from.1] = Some(to);
    }

    /// Returns the time of the virtual clock.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Returns the host `id`. `None` for a line.
    pub(crate) fn host(&self, id: NodeId) -> Option<&Host> {
        match self.nodes.get(id)? {
            Node::Host(host) => Some(host),
            Node::Line(_) => None,
        }
    }

    /// Returns the host `id` for changes. The host then does its current work at this instant.
    pub(crate) fn host_mut(&mut self, id: NodeId) -> Option<&mut Host> {
        self.wake(id);
        match self.nodes.get_mut(id)? {
            Node::Host(host) => Some(host),
            Node::Line(_) => None,
        }
    }

    /// Returns the line `id`. `None` for a host.
    pub(crate) fn line(&self, id: NodeId) -> Option<&Line> {
        match self.nodes.get(id)? {
            Node::Host(_) => None,
            Node::Line(line) => Some(line),
        }
    }

    /// Returns the line `id` for changes. The line then does its current work at this instant.
    pub(crate) fn line_mut(&mut self, id: NodeId) -> Option<&mut Line> {
        self.wake(id);
        match self.nodes.get_mut(id)? {
            Node::Host(_) => None,
            Node::Line(line) => Some(line),
        }
    }

    /// Returns the hash of all events so far: time, node and bytes of every event.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Returns the number of packets that have arrived at a node.
    pub(crate) fn packet_events(&self) -> u64 {
        self.packet_events
    }

    /// Runs all events up to and including `end`.
    ///
    /// # Errors
    /// Fails if a guard stops the simulation.
    pub(crate) fn run_until(&mut self, end: Instant) -> Result<(), WorldError> {
        loop {
            self.run_instant()?;
            let Some(at) = self.timers.next().filter(|&at| at <= end) else {
                self.advance(end);
                return Ok(());
            };
            self.advance(at);
            while let Some(node) = self.timers.pop(self.now) {
                self.trace.timer(self.now, node);
                self.count_event(node)?;
                self.wake(node);
            }
        }
    }

    /// Runs all events that are possible without time passing.
    fn run_instant(&mut self) -> Result<(), WorldError> {
        loop {
            while let Some(Arrival { node, port, packet }) = self.arrivals.pop_front() {
                self.trace.arrival(self.now, node, &packet);
                self.packet_events += 1;
                self.count_event(node)?;
                match &mut self.nodes[node] {
                    Node::Host(host) => host.handle_packet(self.now, packet, &mut self.outbox),
                    Node::Line(line) => line.handle_packet(self.now, port, packet),
                }
                self.dispatch(node);
                self.wake(node);
            }
            let Some(node) = self.pending.pop_front() else {
                return Ok(());
            };
            self.is_pending[node] = false;
            self.count_event(node)?;
            self.settle(node);
        }
    }

    /// Lets `node` do all its current work.
    fn settle(&mut self, node: NodeId) {
        let next = match &mut self.nodes[node] {
            Node::Host(host) => {
                host.settle(self.now, &mut self.outbox);
                host.poll_timeout()
            }
            Node::Line(line) => {
                line.settle(self.now, &mut self.outbox);
                line.poll_timeout()
            }
        };
        self.dispatch(node);
        self.tell_carriers(node);
        self.timers.set(node, next.map(|at| at.max(self.now)));
    }

    /// Puts the packets that `node` has sent on its wires.
    fn dispatch(&mut self, node: NodeId) {
        while let Some((port, packet)) = self.outbox.pop() {
            match self.wires[node].get(port) {
                Some(&Some((node, port))) => {
                    self.arrivals.push_back(Arrival { node, port, packet });
                }
                Some(None) | None => self.outbox.buffers.recycle(packet),
            }
        }
    }

    /// Informs the hosts at the sending ends of a line's links of changes of their carrier.
    fn tell_carriers(&mut self, line: NodeId) {
        loop {
            let Some((link, has_carrier)) = (match &mut self.nodes[line] {
                Node::Host(_) => None,
                Node::Line(line) => line.poll_carrier(),
            }) else {
                return;
            };
            for sender in 0..self.wires.len() {
                for port in 0..self.wires[sender].len() {
                    let now = self.now;
                    if self.wires[sender][port] == Some((line, link))
                        && let Some(host) = self.host_mut(sender)
                    {
                        host.handle_carrier(now, port, has_carrier);
                    }
                }
            }
        }
    }

    fn wake(&mut self, node: NodeId) {
        if let Some(is_pending) = self.is_pending.get_mut(node)
            && !core::mem::replace(is_pending, true)
        {
            self.pending.push_back(node);
        }
    }

    fn advance(&mut self, to: Instant) {
        if to > self.now {
            self.now = to;
            self.events_at_once = 0;
        }
    }

    fn count_event(&mut self, node: NodeId) -> Result<(), WorldError> {
        self.events += 1;
        self.events_at_once += 1;
        let at_ms = self.now.as_nanos() / 1_000_000;
        let name = || self.names[node].clone();
        if self.events_at_once > MAX_EVENTS_AT_ONCE {
            return Err(WorldError::Livelock {
                node: name(),
                at_ms,
            });
        }
        if self.events > self.event_limit {
            return Err(WorldError::TooManyEvents {
                node: name(),
                at_ms,
                limit: self.event_limit,
            });
        }
        Ok(())
    }
}

/// Returns the stream of random numbers called `name` of a run with `seed`: FNV-1a of the name, mixed with the seed.
pub(crate) fn stream(seed: u64, name: &str) -> Rng {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Rng::new(Rng::new(seed).next_u64() ^ hash)
}

#[cfg(test)]
mod tests;
