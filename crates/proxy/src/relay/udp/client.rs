//! The UDP flows of one client: where their datagrams go, and where the answers come from.
//!
//! The link of each destination is chosen as for a connection, and the destination keeps this link, because games,
//! calls and QUIC are disturbed by a change of address. If a peer that serves UDP flows answers at the destination, the
//! datagrams go over the lanes to this peer instead, spread one by one over all links. The destination then sees only
//! the address of the peer.
//!
//! A client has at most [`MAX_FLOWS`] destinations. The least recently used destination is replaced first, and a
//! destination is removed after [`FLOW_IDLE`] without data, or [`DNS_IDLE`] if it is a name server. Datagrams are
//! accepted only from destinations to which the client has sent.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::{clock, udp};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::{
    net::UdpSocket,
    task::{JoinHandle, spawn_local},
};

use super::{BUFFER_LEN, FLOW_IDLE, MAX_DATAGRAM, MAX_FLOWS};
use crate::{
    daemon::{
        connect,
        descriptors::{Descriptor, Descriptors},
        hub::Hub,
        live::{Live, Purpose, Stop},
        peer_flows::{self, PeerFlow},
    },
    handshake::Protocol,
    relay::stripe::flow_table::FlowEvent,
    sched::LinkId,
    stripe::{datagrams::Dropped, frame::Refusal},
    target::Target,
};

/// Sends a datagram that came from the first argument to the client. Returns whether it was sent.
pub(crate) type Reply = dyn Fn(SocketAddr, &[u8]) -> bool;

/// Where the datagrams of a client come from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Address of the client.
    pub(crate) from: SocketAddr,
    /// Program of the client, if known.
    pub(crate) app: Option<String>,
    /// Protocol with which the client uses the proxy.
    pub(crate) protocol: Protocol,
}

/// The UDP flows of one client.
pub(crate) struct Client {
    hub: Rc<Hub>,
    origin: Origin,
    descriptors: Rc<Descriptors>,
    reply: Rc<Reply>,
    pub(super) flows: Rc<RefCell<BTreeMap<SocketAddr, Flow>>>,
    /// Socket for each link and address family (`true`: IPv4) in use.
    pub(super) outer: RefCell<BTreeMap<(Option<LinkId>, bool), Outer>>,
}

/// Socket to destinations, and the task that reads from it.
pub(super) struct Outer {
    socket: Rc<UdpSocket>,
    pub(super) reader: JoinHandle<()>,
    _descriptor: Descriptor,
}

/// Flow to one destination.
pub(super) struct Flow {
    pub(super) live: Rc<Live>,
    /// Link that was chosen for the flow.
    link: Option<LinkId>,
    used_at: Instant,
    way: Way,
}

/// Where the datagrams of a flow go.
enum Way {
    /// Over the link of the flow.
    Plain,
    /// Over the lanes to a peer.
    Lanes(ThroughPeer),
    /// Over the lanes to a peer, once the first lane is established. The datagrams wait.
    Waiting(ThroughPeer, Vec<Vec<u8>>),
}

/// Which ways a new flow may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// Any way.
    Any,
    /// [`Way::Plain`] only, because the peer does not serve the flow.
    Plain,
}

/// A flow through a peer.
struct ThroughPeer {
    flow: PeerFlow,
    /// Set when the flow has ended at the peer: the reason if the peer does not serve the flow.
    ended: Rc<Cell<Option<Option<Refusal>>>>,
}

impl Client {
    /// Creates a client without flows. Its sockets are counted in `descriptors`. `reply` sends it the answers.
    pub(crate) fn new(
        hub: &Rc<Hub>,
        origin: Origin,
        descriptors: &Rc<Descriptors>,
        reply: Rc<Reply>,
    ) -> Rc<Self> {
        Rc::new(Self {
            hub: Rc::clone(hub),
            origin,
            descriptors: Rc::clone(descriptors),
            reply,
            flows: Rc::default(),
            outer: RefCell::default(),
        })
    }

    /// Whether the client has no flows.
    pub(crate) fn is_idle(&self) -> bool {
        self.flows.borrow().is_empty()
    }

    /// Whether the flow to `to` has ended at the peer.
    #[cfg(test)]
    pub(crate) fn has_ended(&self, to: SocketAddr) -> bool {
        let flows = self.flows.borrow();
        flows.get(&to).is_some_and(|flow| flow.ended().is_some())
    }

    /// Sends `payload` to the first of `addresses`, or counts it as dropped.
    pub(crate) fn send(self: &Rc<Self>, target: &Target, addresses: &[IpAddr], payload: &[u8]) {
        let Some(ip) = addresses.first() else {
            return self.hub.count_drop("datagram-not-sent");
        };
        if !self.hub.may_reach(self.origin.from.ip(), *ip) {
            return self.hub.count_drop("not-allowed");
        }
        let to = SocketAddr::new(*ip, target.port);
        if self.ready(target, to).is_none() || !self.forward(to, payload) {
            self.hub.count_drop("datagram-not-sent");
        }
    }

    /// Makes sure that there is a flow to `to` that can take a datagram. `None` if no link leads there.
    fn ready(self: &Rc<Self>, target: &Target, to: SocketAddr) -> Option<()> {
        let stopped = {
            let flows = self.flows.borrow();
            let flow = flows.get(&to);
            flow.map(|flow| (flow.live.stop_reason.get(), flow.link, flow.ended()))
        };
        match stopped {
            Some((None, _, None)) => return Some(()),
            Some((None, _, Some(Some(refusal)))) => {
                self.note_refused(to, refusal);
                return self.begin_plain(target, to);
            }
            // A link is chosen again for this flow.
            Some((Some(Stop::LinkLost), link, _)) => self.forget_link(link),
            Some(_) | None => {}
        }
        self.forget(to);
        self.begin(target, to, Begin::Any)
    }

    /// Begins the flow to `to` again, over one link, because the peer does not serve it. The link that was chosen
    /// before may be down by now.
    fn begin_plain(self: &Rc<Self>, target: &Target, to: SocketAddr) -> Option<()> {
        self.end(to, false);
        self.begin(target, to, Begin::Plain)
    }

    /// Begins the flow to `to`. `None` if no link leads there.
    fn begin(self: &Rc<Self>, target: &Target, to: SocketAddr, begin: Begin) -> Option<()> {
        if self.flows.borrow().len() >= MAX_FLOWS {
            let flows = self.flows.borrow();
            let oldest = flows.iter().min_by_key(|(_, flow)| flow.used_at);
            let oldest = oldest.map(|(to, _)| *to);
            drop(flows);
            oldest.into_iter().for_each(|oldest| self.forget(oldest));
        }
        let purpose = Purpose {
            dscp: None,
            client: self.origin.from,
            app: self.origin.app.clone(),
            target: target.clone(),
            protocol: self.origin.protocol,
            warm: Vec::new(),
        };
        let (live, links) = self.hub.begin(purpose, &[to.ip()]).ok()?;
        live.is_opening.set(false);
        let way = match begin {
            Begin::Any => self.way(&live, &links, to),
            Begin::Plain => Way::Plain,
        };
        let flow = Flow {
            link: live.link.get(),
            live: Rc::clone(&live),
            used_at: clock::now(),
            way,
        };
        if let Way::Lanes(through) = &flow.way {
            self.hub.on_lanes(&live, through.flow.association(), None);
        }
        self.flows.borrow_mut().insert(to, flow);
        Some(())
    }

    /// Returns where the datagrams of the new flow `live` to `to` go.
    fn way(self: &Rc<Self>, live: &Live, links: &[LinkId], to: SocketAddr) -> Way {
        let ended = Rc::new(Cell::new(None));
        let handler = {
            let (flows, reply, hub) = (
                Rc::downgrade(&self.flows),
                Rc::clone(&self.reply),
                Rc::clone(&self.hub),
            );
            let ended = Rc::clone(&ended);
            move |event: FlowEvent<'_>| match event {
                FlowEvent::Datagram(data) => {
                    let Some(flows) = flows.upgrade() else { return };
                    if note_received(&flows, to, data.len()) && !reply(to, data) {
                        hub.count_drop("datagram-not-delivered");
                    }
                }
                FlowEvent::Ended(refusal) => ended.set(Some(refusal)),
            }
        };
        let Some(flow) = peer_flows::open(&self.hub, live, links, to, handler) else {
            return Way::Plain;
        };
        let association = Rc::clone(flow.association());
        let at = flow.at();
        let through = ThroughPeer { flow, ended };
        match association.is_serving_flows() {
            Some(true) => return Way::Lanes(through),
            Some(false) => return Way::Plain,
            None => {}
        }
        let (this, number) = (Rc::downgrade(self), live.number);
        let hub = Rc::clone(&self.hub);
        spawn_local(async move {
            let is_served = peer_flows::is_served(&hub, &association, at).await;
            if let Some(this) = this.upgrade() {
                this.settle(to, number, is_served);
            }
        });
        Way::Waiting(through, Vec::new())
    }

    /// Decides where the datagrams of the waiting flow `number` to `to` go, and sends those that have waited.
    fn settle(self: &Rc<Self>, to: SocketAddr, number: u64, is_served: bool) {
        let (waiting, target) = {
            let mut flows = self.flows.borrow_mut();
            let flow = flows.get_mut(&to);
            let Some(flow) = flow.filter(|flow| flow.live.number == number) else {
                return;
            };
            let (through, waiting) = match core::mem::replace(&mut flow.way, Way::Plain) {
                Way::Waiting(through, waiting) => (through, waiting),
                other @ (Way::Plain | Way::Lanes(_)) => {
                    flow.way = other;
                    return;
                }
            };
            if is_served && through.ended.get().is_none() {
                let association = through.flow.association();
                self.hub.on_lanes(&flow.live, association, None);
                flow.way = Way::Lanes(through);
                (waiting, None)
            } else {
                (waiting, Some(flow.live.purpose.target.clone()))
            }
        };
        if let Some(target) = target {
            self.begin_plain(&target, to);
        }
        for payload in waiting {
            if !self.forward(to, &payload) {
                self.hub.count_drop("datagram-not-sent");
            }
        }
    }

    /// Notes that the peer does not serve the flow to `to`.
    fn note_refused(&self, to: SocketAddr, refusal: Refusal) {
        let flows = self.flows.borrow();
        if let Some(Way::Lanes(through)) = flows.get(&to).map(|flow| &flow.way) {
            through.flow.note_refused(&self.hub, refusal);
        }
    }

    /// Sends `payload` on the way of the flow to `to`. Returns `false` if it was not sent and is not counted yet.
    fn forward(&self, to: SocketAddr, payload: &[u8]) -> bool {
        let link = {
            let mut flows = self.flows.borrow_mut();
            let Some(flow) = flows.get_mut(&to) else {
                return false;
            };
            flow.used_at = clock::now();
            match &mut flow.way {
                Way::Plain => flow.live.link.get(),
                Way::Lanes(through) => {
                    if through.flow.flow.send(payload) {
                        flow.note_sent(payload);
                    }
                    return true;
                }
                Way::Waiting(_, waiting) => {
                    if waiting.len() < MAX_WAITING && payload.len() <= MAX_WAITING_LEN {
                        waiting.push(payload.to_vec());
                    } else {
                        self.hub.count_drop(Dropped::QueueFull.reason());
                    }
                    return true;
                }
            }
        };
        let socket = match self.outer(link, to.ip()) {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                self.hub.count_drop("too-many-udp-sockets");
                return true;
            }
            Err(_) => return false,
        };
        // Sends without tokio, because tokio considers a new socket not writable until its first wait.
        if let Err(error) = SockRef::from(&*socket).send_to(payload, &to.into()) {
            if is_socket_broken(&error) {
                self.outer.borrow_mut().remove(&(link, to.is_ipv4()));
            }
            return false;
        }
        if let Some(flow) = self.flows.borrow().get(&to) {
            flow.note_sent(payload);
        }
        true
    }

    /// Returns the socket for `link` and the address family of `ip`. `None` if there are too many sockets.
    fn outer(&self, link: Option<LinkId>, ip: IpAddr) -> io::Result<Option<Rc<UdpSocket>>> {
        let key = (link, ip.is_ipv4());
        if let Some(outer) = self.outer.borrow().get(&key)
            && !outer.reader.is_finished()
        {
            return Ok(Some(Rc::clone(&outer.socket)));
        }
        // A socket that is replaced is closed first.
        self.outer.borrow_mut().remove(&key);
        let Some(descriptor) = self.descriptors.take() else {
            return Ok(None);
        };
        let socket = connect::outgoing(&self.hub, link, ip, socket2::Type::DGRAM)?;
        udp::set_buffers(&socket, BUFFER_LEN);
        let socket = Rc::new(UdpSocket::from_std(socket.into())?);
        let reader = Reader {
            hub: Rc::clone(&self.hub),
            outer: Rc::clone(&socket),
            reply: Rc::clone(&self.reply),
            flows: Rc::clone(&self.flows),
        };
        let outer = Outer {
            socket: Rc::clone(&socket),
            reader: spawn_local(reader.run()),
            _descriptor: descriptor,
        };
        self.outer.borrow_mut().insert(key, outer);
        Ok(Some(socket))
    }

    fn forget(&self, to: SocketAddr) {
        self.end(to, true);
    }

    /// Removes the flow to `to`. `completed`: it counts as a finished connection of its application.
    fn end(&self, to: SocketAddr, completed: bool) {
        let flow = self.flows.borrow_mut().remove(&to);
        if let Some(flow) = flow {
            self.hub.end(&flow.live, completed);
        }
    }

    /// Removes the sockets of a lost link and all flows over it. If the link's device comes back, the kernel treats it
    /// as a new device, and the sockets that are bound to the old device stay unusable.
    fn forget_link(&self, link: Option<LinkId>) {
        self.outer
            .borrow_mut()
            .retain(|(other, _), _| *other != link);
        let flows = self.flows.borrow();
        let is_lost =
            |live: &Live| live.link.get() == link && live.stop_reason.get() == Some(Stop::LinkLost);
        let lost: Vec<SocketAddr> = flows
            .iter()
            .filter(|(_, flow)| is_lost(&flow.live))
            .map(|(to, _)| *to)
            .collect();
        drop(flows);
        lost.into_iter().for_each(|to| self.forget(to));
    }

    /// Removes the flows without datagrams for [`FLOW_IDLE`], or [`DNS_IDLE`] if the destination is a name server.
    pub(crate) fn forget_idle(&self, now: Instant) {
        let flows = self.flows.borrow();
        let idle: Vec<SocketAddr> = flows
            .iter()
            .filter(|(to, flow)| now.since(flow.used_at) > idle_limit(to.port()))
            .map(|(to, _)| *to)
            .collect();
        drop(flows);
        idle.into_iter().for_each(|to| self.forget(to));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for flow in self.flows.take().into_values() {
            self.hub.end(&flow.live, true);
        }
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Flow {
    /// Returns whether the flow has ended at the peer: the reason if the peer does not serve the flow.
    fn ended(&self) -> Option<Option<Refusal>> {
        match &self.way {
            Way::Lanes(through) => through.ended.get(),
            // The end of the wait decides.
            Way::Plain | Way::Waiting(..) => None,
        }
    }

    fn note_sent(&self, payload: &[u8]) {
        let up = &self.live.up;
        up.set(up.get() + payload.len() as u64);
    }
}

/// Returns the time without datagrams after which a flow to `port` is removed.
fn idle_limit(port: u16) -> Duration {
    if port == DNS_PORT {
        DNS_IDLE
    } else {
        FLOW_IDLE
    }
}

/// Notes a datagram of `len` bytes from `source`. Returns whether the client has a flow to `source`.
fn note_received(
    flows: &RefCell<BTreeMap<SocketAddr, Flow>>,
    source: SocketAddr,
    len: usize,
) -> bool {
    let mut flows = flows.borrow_mut();
    let Some(flow) = flows.get_mut(&source) else {
        return false;
    };
    let down = &flow.live.down;
    down.set(down.get() + len as u64);
    flow.used_at = clock::now();
    true
}

/// Whether a socket that failed to send will also fail to send other datagrams.
pub(super) fn is_socket_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, PermissionDenied, WouldBlock};
    let is_of_datagram = error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
    let passing = [ConnectionRefused, Interrupted, PermissionDenied, WouldBlock];
    !is_of_datagram && !passing.contains(&error.kind())
}

/// Relays answers to the client.
struct Reader {
    hub: Rc<Hub>,
    outer: Rc<UdpSocket>,
    reply: Rc<Reply>,
    flows: Rc<RefCell<BTreeMap<SocketAddr, Flow>>>,
}

impl Reader {
    async fn run(self) {
        let mut payload = vec![0; MAX_DATAGRAM];
        loop {
            let (len, source) = match self.outer.recv_from(&mut payload).await {
                Ok(received) => received,
                // An ICMP error reports the loss of an earlier datagram. Later datagrams may still arrive.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            if note_received(&self.flows, source, len) && !(self.reply)(source, &payload[..len]) {
                self.hub.count_drop("datagram-not-delivered");
            }
        }
    }
}

/// Port of name servers. Resolvers use a new port for each query, so a flow carries one query and one answer. RFC 4787,
/// REQ-5 b, allows a shorter limit for such a port.
const DNS_PORT: u16 = 53;
const DNS_IDLE: Duration = Duration::from_secs(15);
/// Maximum number of datagrams that wait: of a flow for the first lane, or of a client until its program is found.
pub(crate) const MAX_WAITING: usize = 32;
/// Maximum length in bytes of a datagram that waits.
pub(crate) const MAX_WAITING_LEN: usize = 2048;
