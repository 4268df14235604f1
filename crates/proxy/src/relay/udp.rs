//! SOCKS5's UDP ASSOCIATE (RFC 1928, section 7).
//!
//! A client sends datagrams with a header to a socket that the proxy creates for it. The link of each destination is
//! chosen as for a connection, and the destination keeps this link, because games, calls and QUIC are disturbed by a
//! change of address. (The paper instead distributes the datagrams of one flow over the links by weighted round robin.)
//! The association ends with the TCP connection on which it was requested. An association has at most [`MAX_FLOWS`]
//! destinations. The least recently used destination is replaced first, and a destination is removed after
//! [`FLOW_IDLE`] without data. Datagrams are accepted only from destinations to which the client has sent.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pleach_core::time::Instant;
use pleach_linux::clock;
use rustix::io::Errno;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    task::{JoinHandle, spawn_local},
    time,
};

use crate::{
    daemon::{
        connect,
        hub::Hub,
        live::{Live, Purpose, Stop},
    },
    handshake::{Protocol, socks5},
    sched::LinkId,
    target::{Host, Target},
};

/// Serves the association that the client requested on `control`.
///
/// # Errors
/// A socket could not be created, or a system call on it failed.
pub(crate) async fn associate(
    hub: &Rc<Hub>,
    mut control: TcpStream,
    from: SocketAddr,
) -> io::Result<()> {
    let here = control.local_addr()?;
    let inner = Rc::new(UdpSocket::bind(SocketAddr::new(here.ip(), 0)).await?);
    control
        .write_all(&socks5::associated(inner.local_addr()?))
        .await?;
    let mut association = Association {
        hub: Rc::clone(hub),
        inner: Rc::clone(&inner),
        from,
        client: Rc::new(Cell::new(None)),
        flows: Rc::default(),
        outer: BTreeMap::new(),
    };
    let mut datagram = vec![0; MAX_DATAGRAM];
    let mut ignored = [0; 256];
    let mut sweep = time::interval(FLOW_IDLE / 4);
    // Datagrams whose destination names are being resolved. Other datagrams do not wait for them.
    let mut unresolved = FuturesUnordered::new();
    loop {
        tokio::select! {
            read = control.read(&mut ignored) => match read {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            },
            received = inner.recv_from(&mut datagram) => {
                let (len, sender) = received?;
                if let Some((target, payload)) = association.handle_datagram(&datagram[..len], sender) {
                    if unresolved.len() < MAX_UNRESOLVED {
                        let payload = payload.to_vec();
                        unresolved.push(async move {
                            let answer = hub.resolver.resolve(&target).await;
                            (target, payload, answer)
                        });
                    } else {
                        hub.count_drop("too-many-names");
                    }
                }
            }
            Some((target, payload, answer)) = unresolved.next() => match answer {
                Ok(addresses) => association.send(&target, &addresses, &payload),
                Err(_) => hub.count_drop("name-not-resolved"),
            },
            _ = sweep.tick() => association.forget_idle(clock::now()),
        }
    }
}

struct Association {
    hub: Rc<Hub>,
    inner: Rc<UdpSocket>,
    from: SocketAddr,
    /// Address from which the client sends. `None` before its first datagram.
    client: Rc<Cell<Option<SocketAddr>>>,
    flows: Rc<RefCell<BTreeMap<SocketAddr, Flow>>>,
    /// Socket for each link and address family (`true`: IPv4) in use.
    outer: BTreeMap<(Option<LinkId>, bool), Outer>,
}

/// Socket to destinations, and the task that reads from it.
struct Outer {
    socket: Rc<UdpSocket>,
    reader: JoinHandle<()>,
}

/// Flow to one destination.
struct Flow {
    live: Rc<Live>,
    used_at: Instant,
}

impl Association {
    /// Forwards a datagram of the client to an IP address. An invalid datagram is dropped and counted. If the
    /// destination is a name, returns the destination and the payload.
    fn handle_datagram<'a>(
        &mut self,
        datagram: &'a [u8],
        sender: SocketAddr,
    ) -> Option<(Target, &'a [u8])> {
        let is_client = sender.ip().to_canonical() == self.from.ip().to_canonical()
            && self.client.get().is_none_or(|client| client == sender);
        let Some((target, start)) = socks5::datagram(datagram).filter(|_| is_client) else {
            self.hub.count_drop("bad-datagram");
            return None;
        };
        self.client.set(Some(sender));
        let payload = &datagram[start..];
        let Host::Ip(ip) = &target.host else {
            return Some((target, payload));
        };
        self.send(&target, &[*ip], payload);
        None
    }

    /// Sends `payload` to the first of `addresses`, or counts it as dropped.
    fn send(&mut self, target: &Target, addresses: &[IpAddr], payload: &[u8]) {
        let Some(ip) = addresses.first() else {
            return self.hub.count_drop("datagram-not-sent");
        };
        if !self.hub.may_reach(self.from.ip(), *ip) {
            return self.hub.count_drop("not-allowed");
        }
        let sent = self.try_send(target, SocketAddr::new(*ip, target.port), payload);
        if sent.is_none() {
            self.hub.count_drop("datagram-not-sent");
        }
    }

    fn try_send(&mut self, target: &Target, to: SocketAddr, payload: &[u8]) -> Option<()> {
        let link = self.link_of(target, to)?;
        let outer = self.outer(link, to.ip()).ok()?;
        // Sends without tokio, because tokio considers a new socket not writable until its first wait.
        if let Err(error) = SockRef::from(&*outer).send_to(payload, &to.into()) {
            if is_socket_broken(&error) {
                self.outer.remove(&(link, to.is_ipv4()));
            }
            return None;
        }
        if let Some(flow) = self.flows.borrow_mut().get_mut(&to) {
            flow.live.up.set(flow.live.up.get() + payload.len() as u64);
            flow.used_at = clock::now();
        }
        Some(())
    }

    /// Returns the link of the flow to `to`. Begins the flow if it does not exist.
    fn link_of(&mut self, target: &Target, to: SocketAddr) -> Option<Option<LinkId>> {
        let known = self
            .flows
            .borrow()
            .get(&to)
            .map(|flow| Rc::clone(&flow.live));
        if let Some(live) = known {
            if live.stop_reason.get().is_none() {
                return Some(live.link.get());
            }
            // A link is chosen again for this flow.
            if live.stop_reason.get() == Some(Stop::LinkLost) {
                self.forget_link(live.link.get());
            }
            self.forget(to);
        }
        if self.flows.borrow().len() >= MAX_FLOWS {
            let flows = self.flows.borrow();
            let oldest = flows.iter().min_by_key(|(_, flow)| flow.used_at);
            let oldest = oldest.map(|(to, _)| *to);
            drop(flows);
            oldest.into_iter().for_each(|oldest| self.forget(oldest));
        }
        let purpose = Purpose {
            dscp: None,
            client: self.from,
            app: None,
            target: target.clone(),
            protocol: Protocol::Socks5,
            warm: Vec::new(),
        };
        let (live, _) = self.hub.begin(purpose, &[to.ip()]).ok()?;
        live.is_opening.set(false);
        let link = live.link.get();
        let flow = Flow {
            live,
            used_at: clock::now(),
        };
        self.flows.borrow_mut().insert(to, flow);
        Some(link)
    }

    /// Returns the socket for `link` and the address family of `ip`.
    fn outer(&mut self, link: Option<LinkId>, ip: IpAddr) -> io::Result<Rc<UdpSocket>> {
        let key = (link, ip.is_ipv4());
        if let Some(outer) = self.outer.get(&key)
            && !outer.reader.is_finished()
        {
            return Ok(Rc::clone(&outer.socket));
        }
        let socket = connect::outgoing(&self.hub, link, ip, socket2::Type::DGRAM)?;
        let socket = Rc::new(UdpSocket::from_std(socket.into())?);
        let reader = Reader {
            outer: Rc::clone(&socket),
            inner: Rc::clone(&self.inner),
            client: Rc::clone(&self.client),
            flows: Rc::clone(&self.flows),
        };
        let outer = Outer {
            socket: Rc::clone(&socket),
            reader: spawn_local(reader.run()),
        };
        self.outer.insert(key, outer);
        Ok(socket)
    }

    fn forget(&mut self, to: SocketAddr) {
        if let Some(flow) = self.flows.borrow_mut().remove(&to) {
            self.hub.end(&flow.live, true);
        }
    }

    /// Removes the sockets of a lost link and all flows over it. If the link's device comes back, the kernel treats it
    /// as a new device, and the sockets that are bound to the old device stay unusable.
    fn forget_link(&mut self, link: Option<LinkId>) {
        self.outer.retain(|(other, _), _| *other != link);
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

    fn forget_idle(&mut self, now: Instant) {
        let flows = self.flows.borrow();
        let idle: Vec<SocketAddr> = flows
            .iter()
            .filter(|(_, flow)| now.since(flow.used_at) > FLOW_IDLE)
            .map(|(to, _)| *to)
            .collect();
        drop(flows);
        idle.into_iter().for_each(|to| self.forget(to));
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        for flow in self.flows.borrow().values() {
            self.hub.end(&flow.live, true);
        }
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Whether a socket that failed to send will also fail to send other datagrams.
fn is_socket_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, PermissionDenied, WouldBlock};
    let is_of_datagram = error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
    let passing = [ConnectionRefused, Interrupted, PermissionDenied, WouldBlock];
    !is_of_datagram && !passing.contains(&error.kind())
}

/// Relays answers to the client.
struct Reader {
    outer: Rc<UdpSocket>,
    inner: Rc<UdpSocket>,
    client: Rc<Cell<Option<SocketAddr>>>,
    flows: Rc<RefCell<BTreeMap<SocketAddr, Flow>>>,
}

impl Reader {
    async fn run(self) {
        let mut payload = vec![0; MAX_DATAGRAM];
        let mut answer = Vec::new();
        loop {
            let (len, source) = match self.outer.recv_from(&mut payload).await {
                Ok(received) => received,
                // An ICMP error reports the loss of an earlier datagram. Later datagrams may still arrive.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let is_known = match self.flows.borrow_mut().get_mut(&source) {
                Some(flow) => {
                    flow.live.down.set(flow.live.down.get() + len as u64);
                    flow.used_at = clock::now();
                    true
                }
                None => false,
            };
            if let (true, Some(client)) = (is_known, self.client.get()) {
                answer.clear();
                socks5::push_datagram_header(&mut answer, source);
                answer.extend_from_slice(&payload[..len]);
                // A failed send is ignored, because datagrams can be lost.
                let _ = self.inner.send_to(&answer, client).await;
            }
        }
    }
}

/// Maximum number of destinations per association.
const MAX_FLOWS: usize = 64;
/// Maximum number of datagrams per association that wait for name resolution. Few clients send names in datagrams.
const MAX_UNRESOLVED: usize = 16;
/// Duration without data after which a flow is removed: as long as NATs keep a mapping (RFC 4787, REQ-5).
const FLOW_IDLE: Duration = Duration::from_secs(120);
const MAX_DATAGRAM: usize = 65_535;

#[cfg(test)]
mod tests;
