//! UDP datagrams that the kernel diverts to the proxy in transparent mode. Each sender (address and port) is a client
//! of its own, whose flows are placed as those of UDP ASSOCIATE ([`crate::relay::udp::client`]). Answers have the
//! address of the destination as their source.
//!
//! Each sender counts as a connection, and so do its sockets beyond the third. All senders together have at most half
//! of `max_connections`, and those of one address an eighth ([`super::descriptors`]). Senders without flows are
//! forgotten.
//!
//! If a rule names a program, the program of a sender on this host is looked up, and the sender's datagrams wait until
//! it is found (at most [`MAX_WAITING`]). The programs of other hosts are not known.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_linux::{
    clock,
    owner::Transport,
    redirect::{self, divert},
};
use tokio::{io::Interest, net::UdpSocket, task::spawn_local, time};

use super::{
    descriptors::{Descriptor, Descriptors, Quota},
    hub::Hub,
    transparent::Transparent,
};
use crate::{
    handshake::Protocol,
    relay::udp::{
        MAX_DATAGRAM,
        client::{Client, MAX_WAITING, MAX_WAITING_LEN, Origin},
    },
    stripe::datagrams::Dropped,
};

/// Senders of diverted datagrams, by address and port.
struct Senders {
    by_address: BTreeMap<SocketAddr, Rc<Sender>>,
    quota: Rc<Quota>,
}

/// A sender of diverted datagrams, with its places in the count of connections.
struct Sender {
    state: RefCell<State>,
    descriptors: Rc<Descriptors>,
}

enum State {
    /// The datagrams of the sender are forwarded.
    Ready(Rc<Client>),
    /// The sender's program is being looked up. The datagrams wait, with their destinations.
    Waiting(Vec<(SocketAddr, Vec<u8>)>),
}

/// Forwards diverted datagrams until dropped.
///
/// # Errors
/// A socket cannot be waited for.
pub(super) async fn run(hub: &Rc<Hub>, transparent: &Transparent) -> io::Result<()> {
    let mut senders = Senders {
        by_address: BTreeMap::new(),
        quota: Quota::new(hub.settings.max_connections),
    };
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut sweep = time::interval(SWEEP);
    let [v4, v6] = transparent.datagrams();
    loop {
        let socket = tokio::select! {
            ready = readable(v4) => ready?,
            ready = readable(v6) => ready?,
            _ = sweep.tick() => {
                senders.by_address.retain(|_, sender| !sender.is_idle());
                continue;
            }
        };
        for _ in 0..BURST {
            let receive = || divert::receive(socket, &mut buffer);
            match socket.try_io(Interest::READABLE, receive) {
                Ok((len, from, Some(to))) => {
                    forward(hub, &mut senders, (from, to), &buffer[..len]);
                }
                Ok((_, _, None)) => hub.count_drop("not-redirected"),
                Err(_) => break,
            }
        }
        // Other tasks run before the next burst.
        tokio::task::yield_now().await;
    }
}

/// Waits until `socket` is readable. Waits for ever if there is none.
async fn readable(socket: Option<&UdpSocket>) -> io::Result<&UdpSocket> {
    match socket {
        Some(socket) => socket.readable().await.map(|()| socket),
        None => std::future::pending().await,
    }
}

/// Forwards the datagram `payload` from `from` to `to`.
fn forward(
    hub: &Rc<Hub>,
    senders: &mut Senders,
    (from, to): (SocketAddr, SocketAddr),
    payload: &[u8],
) {
    let is_own = to.ip().is_loopback() || hub.uplinks.own.borrow().contains(&to.ip());
    if is_own || to.port() == 0 {
        // It was sent to the port of the proxy itself.
        return hub.count_drop("not-redirected");
    }
    let known = senders.by_address.get(&from).cloned();
    let sender = match known.map_or_else(|| admit(hub, &senders.quota, from, to), Ok) {
        Ok(sender) => sender,
        Err(reason) => return hub.count_drop(reason),
    };
    sender.send(hub, to, payload);
    senders.by_address.entry(from).or_insert(sender);
}

/// Admits a new sender at `from`, whose first datagram is for `to`.
///
/// # Errors
/// Returns the reason for the drop counters if no place is left.
fn admit(
    hub: &Rc<Hub>,
    quota: &Rc<Quota>,
    from: SocketAddr,
    to: SocketAddr,
) -> Result<Rc<Sender>, &'static str> {
    let sender = Rc::new(Sender {
        state: RefCell::new(State::Waiting(Vec::new())),
        descriptors: Descriptors::of_sender(hub, quota, from.ip())?,
    });
    if names_programs(hub) && is_here(hub, from.ip()) {
        let (hub, waiting) = (Rc::clone(hub), Rc::downgrade(&sender));
        spawn_local(async move {
            let app = hub.apps.find(Transport::Udp, from, to).await;
            if let Some(sender) = waiting.upgrade() {
                sender.begin(client(&hub, from, app, &sender.descriptors));
            }
        });
    } else {
        sender.begin(client(hub, from, None, &sender.descriptors));
    }
    Ok(sender)
}

/// Whether a rule names a program.
fn names_programs(hub: &Hub) -> bool {
    let placer = hub.placer.borrow();
    placer.rules().any(|rule| rule.app.is_some())
}

/// Whether `ip` is an address of this host. The kernel would find a socket for senders elsewhere as well, if one of
/// this host is bound to the same port.
fn is_here(hub: &Hub, ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || hub.uplinks.own.borrow().contains(&ip)
}

fn client(
    hub: &Rc<Hub>,
    from: SocketAddr,
    app: Option<String>,
    descriptors: &Rc<Descriptors>,
) -> Rc<Client> {
    let replies = Replies::new(from, descriptors);
    let reply = move |source: SocketAddr, payload: &[u8]| replies.send(source, payload).is_ok();
    let origin = Origin {
        from,
        app,
        protocol: Protocol::Transparent,
    };
    Client::new(hub, origin, descriptors, Rc::new(reply))
}

impl Sender {
    /// Forwards the datagrams that have waited, and all later ones, by `client`.
    fn begin(&self, client: Rc<Client>) {
        let before = self.state.replace(State::Ready(Rc::clone(&client)));
        let State::Waiting(waiting) = before else {
            return;
        };
        for (to, payload) in waiting {
            client.send(&to.into(), &[to.ip()], &payload);
        }
    }

    /// Forwards a datagram, or stores it while the sender's program is being looked up.
    fn send(&self, hub: &Hub, to: SocketAddr, payload: &[u8]) {
        match &mut *self.state.borrow_mut() {
            State::Ready(client) => client.send(&to.into(), &[to.ip()], payload),
            State::Waiting(waiting) => {
                if waiting.len() < MAX_WAITING && payload.len() <= MAX_WAITING_LEN {
                    waiting.push((to, payload.to_vec()));
                } else {
                    hub.count_drop(Dropped::QueueFull.reason());
                }
            }
        }
    }

    /// Forgets idle flows. Returns whether none is left.
    fn is_idle(&self) -> bool {
        match &*self.state.borrow() {
            State::Ready(client) => {
                client.forget_idle(clock::now());
                client.is_idle()
            }
            State::Waiting(_) => false,
        }
    }
}

/// Sockets for the answers to one sender, by the address from which the answers come.
struct Replies {
    to: SocketAddr,
    descriptors: Rc<Descriptors>,
    /// Descriptor of the first socket. Otherwise the sockets for requests could use up all descriptors of the sender.
    first: RefCell<Option<Descriptor>>,
    sockets: RefCell<BTreeMap<SocketAddr, (socket2::Socket, Descriptor)>>,
}

impl Replies {
    fn new(to: SocketAddr, descriptors: &Rc<Descriptors>) -> Self {
        Self {
            to,
            descriptors: Rc::clone(descriptors),
            first: RefCell::new(descriptors.take()),
            sockets: RefCell::default(),
        }
    }

    /// Takes a descriptor for a further socket.
    fn descriptor(&self) -> Option<Descriptor> {
        let first = self.first.borrow_mut().take();
        first.or_else(|| self.descriptors.take())
    }

    fn send(&self, source: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let mut sockets = self.sockets.borrow_mut();
        if !sockets.contains_key(&source) {
            while sockets.len() >= MAX_REPLY_SOCKETS {
                sockets.pop_first();
            }
            let descriptor = loop {
                if let Some(descriptor) = self.descriptor() {
                    break descriptor;
                }
                // Another socket of this sender makes room.
                let (_, (_, descriptor)) =
                    sockets.pop_first().ok_or(io::ErrorKind::QuotaExceeded)?;
                self.first.replace(Some(descriptor));
            };
            let socket = divert::reply_socket(source, redirect::MARK)?;
            sockets.insert(source, (socket, descriptor));
        }
        let (socket, _) = sockets.get(&source).ok_or(io::ErrorKind::NotFound)?;
        socket.send_to(payload, &self.to.into()).map(drop)
    }
}

/// Interval at which idle flows are looked for.
const SWEEP: Duration = Duration::from_secs(2);
/// Number of datagrams that are read before other tasks run.
const BURST: usize = 32;
/// Maximum number of sockets for answers to one sender. Most senders have one destination.
const MAX_REPLY_SOCKETS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{daemon::hub::tests::hub, relay::stripe::tests::run};

    #[test]
    fn senders_of_one_source_leave_places_for_others_and_refusals_are_counted() {
        run(async {
            let mut hub = hub();
            hub.settings.max_connections = 32;
            let hub = Rc::new(hub);
            let mut senders = Senders {
                by_address: BTreeMap::new(),
                quota: Quota::new(hub.settings.max_connections),
            };
            let to = SocketAddr::from(([192, 0, 2, 1], 9));
            for port in 1..=20 {
                let from = SocketAddr::from(([10, 0, 0, 1], port));
                forward(&hub, &mut senders, (from, to), b"x");
            }
            assert_eq!(senders.by_address.len(), 4);
            let drops = |reason: &str| hub.drops.all().get(reason).copied();
            assert_eq!(drops("too-many-udp-senders-of-source"), Some(16));
            for host in 2..=20 {
                let from = SocketAddr::from(([10, 0, 0, host], 1));
                forward(&hub, &mut senders, (from, to), b"x");
            }
            assert_eq!(senders.by_address.len(), 16);
            assert_eq!(drops("too-many-udp-senders"), Some(7));
            assert_eq!(drops("too-many-clients"), None);
        });
    }

    #[test]
    fn sockets_for_requests_leave_a_descriptor_for_answers() {
        run(async {
            let hub = Rc::new(hub());
            // One place for each address.
            let quota = Quota::new(8);
            let from = SocketAddr::from(([10, 0, 0, 1], 1));
            let sender = Descriptors::of_sender(&hub, &quota, from.ip()).expect("a place");
            let replies = Replies::new(from, &sender);
            let requests: Vec<_> = core::iter::from_fn(|| sender.take()).collect();
            assert_eq!(requests.len(), 2);
            assert!(replies.descriptor().is_some());
        });
    }
}
