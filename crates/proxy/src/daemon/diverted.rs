//! UDP datagrams that the kernel diverts to the proxy in transparent mode. Each sender (address and port) is a client
//! of its own, whose flows are placed as those of UDP ASSOCIATE ([`crate::relay::udp::client`]). Answers have the
//! address of the destination as their source.
//!
//! At most half of `max_connections` senders have flows at a time, and each counts as a connection. Senders
//! without flows are forgotten.
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
    hub::{Hub, Place},
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

/// A sender of diverted datagrams, with its place in the count of connections.
struct Sender {
    state: RefCell<State>,
    _place: Place,
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
    let mut senders: BTreeMap<SocketAddr, Rc<Sender>> = BTreeMap::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut sweep = time::interval(SWEEP);
    let [v4, v6] = transparent.datagrams();
    loop {
        let socket = tokio::select! {
            ready = readable(v4) => ready?,
            ready = readable(v6) => ready?,
            _ = sweep.tick() => {
                senders.retain(|_, sender| !sender.is_idle());
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
    senders: &mut BTreeMap<SocketAddr, Rc<Sender>>,
    (from, to): (SocketAddr, SocketAddr),
    payload: &[u8],
) {
    let is_own = to.ip().is_loopback() || hub.uplinks.own.borrow().contains(&to.ip());
    if is_own || to.port() == 0 {
        // It was sent to the port of the proxy itself.
        return hub.count_drop("not-redirected");
    }
    if !senders.contains_key(&from) {
        if senders.len() >= hub.settings.max_connections / 2 {
            return hub.count_drop("too-many-udp-senders");
        }
        let Some(place) = hub.admit_redirected() else {
            return;
        };
        let sender = Rc::new(Sender {
            state: RefCell::new(State::Waiting(Vec::new())),
            _place: place,
        });
        if names_programs(hub) && is_here(hub, from.ip()) {
            let (hub, waiting) = (Rc::clone(hub), Rc::downgrade(&sender));
            spawn_local(async move {
                let app = hub.apps.find(Transport::Udp, from, to).await;
                if let Some(sender) = waiting.upgrade() {
                    sender.begin(client(&hub, from, app));
                }
            });
        } else {
            sender.begin(client(hub, from, None));
        }
        senders.insert(from, sender);
    }
    if let Some(sender) = senders.get(&from) {
        sender.send(hub, to, payload);
    }
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

fn client(hub: &Rc<Hub>, from: SocketAddr, app: Option<String>) -> Rc<Client> {
    let replies = Replies {
        to: from,
        sockets: RefCell::default(),
    };
    let reply = move |source: SocketAddr, payload: &[u8]| replies.send(source, payload).is_ok();
    let origin = Origin {
        from,
        app,
        protocol: Protocol::Transparent,
    };
    Client::new(hub, origin, Rc::new(reply))
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
    sockets: RefCell<BTreeMap<SocketAddr, socket2::Socket>>,
}

impl Replies {
    fn send(&self, source: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let mut sockets = self.sockets.borrow_mut();
        if !sockets.contains_key(&source) {
            while sockets.len() >= MAX_REPLY_SOCKETS {
                sockets.pop_first();
            }
            let socket = divert::reply_socket(source, redirect::MARK)?;
            sockets.insert(source, socket);
        }
        let socket = sockets.get(&source).ok_or(io::ErrorKind::NotFound)?;
        socket.send_to(payload, &self.to.into()).map(drop)
    }
}

/// Interval at which idle flows are looked for.
const SWEEP: Duration = Duration::from_secs(2);
/// Number of datagrams that are read before other tasks run.
const BURST: usize = 32;
/// Maximum number of sockets for answers to one sender. Most senders have one destination.
const MAX_REPLY_SOCKETS: usize = 4;
