//! The listener of a gateway.
//!
//! A connection is a stranger's until its request shows that it knows the gateway's public key ([`crate::proof`]); strangers get
//! the answer of a web server that has nothing, `HANDSHAKE_PATIENCE` to finish, and few places (`STRANGERS`). All connections
//! of one client's link are a *set*, which has one address for the engine: the real source address of its first connection
//! with that connection's port, or the next free one. So the engine's limits for sources hold, and it proves a set as it proves any address.
//!
//! Behind a web server all connections come from that server. Those of the addresses in [`Settings::proxies`] count as from the
//! last address of their `X-Forwarded-For`.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use pleach_linux::poll::Waker;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Mutex, Notify, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

use crate::{
    Piece, QUEUED_PIECES, Received,
    client::{ANSWER_HEADER, EXPORTER_LABEL, Mailbox, offer, start_thread},
    connection::{self, Pieces},
    limits::Limit,
    proof::{GatewayKey, SetId},
    request, socket,
    tls::{self, Certificate},
};

/// What a gateway listens with.
#[derive(Debug)]
pub struct Settings {
    /// Address and port.
    pub listen: SocketAddr,
    /// Static private key of the tunnel.
    pub private_key: zeroize::Zeroizing<[u8; 32]>,
    /// Its public key.
    pub public_key: [u8; 32],
    /// What it shows.
    pub certificate: Certificate,
    /// Web servers in front of it.
    pub proxies: Vec<IpNet>,
    /// Mark of all packets.
    pub fwmark: Option<u32>,
}

/// News for the data path.
#[derive(Debug)]
enum Event {
    Closed(SocketAddr),
    Opened(SocketAddr, mpsc::Sender<Piece>),
    Received(SocketAddr, Received),
}

/// The thread of a gateway's listener. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    mailbox: Mailbox<Event>,
    events: mpsc::Receiver<Event>,
    sets: BTreeMap<SocketAddr, mpsc::Sender<Piece>>,
    stop: Arc<Notify>,
}

impl Server {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// The address is taken, the certificate is not usable, no thread can be had.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let tls = tls::server(settings.certificate, &settings.public_key);
        let tls = tls.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (mailbox, events) = Mailbox::new()?;
        let stop = Arc::new(Notify::new());
        let runtime = start_thread(Arc::clone(&stop))?;
        let listener = {
            let _entered = runtime.enter();
            socket::listen(settings.listen, settings.fwmark)?
        };
        let desk = Desk {
            tls: TlsAcceptor::from(Arc::new(tls)),
            key: GatewayKey::new(&settings.private_key),
            proxies: settings.proxies,
            strangers: Limit::new(STRANGERS_EACH, STRANGERS),
            forwarded: Limit::new(STRANGERS, STRANGERS),
            guests: Limit::new(GUESTS_EACH, GUESTS),
            sets: StdMutex::default(),
            mailbox: mailbox.clone(),
        };
        runtime.spawn(accept(listener, Arc::new(desk)));
        Ok(Self {
            mailbox,
            events,
            sets: BTreeMap::new(),
            stop,
        })
    }

    /// Readable when there is something to [`poll`](Self::poll).
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.mailbox.waker
    }

    /// Call before [`Self::poll`].
    pub fn clear(&self) {
        self.mailbox.clear();
    }

    /// Datagrams that have come, and the address of the set they came from.
    pub fn poll(&mut self) -> Option<(SocketAddr, Received)> {
        loop {
            match self.events.try_recv().ok()? {
                Event::Closed(address) => {
                    self.sets.remove(&address);
                }
                Event::Opened(address, pieces) => {
                    self.sets.insert(address, pieces);
                }
                Event::Received(address, received) => return Some((address, received)),
            }
        }
    }

    /// Queues a batch of datagrams of `segment_len` bytes for the set `address`; returns how many found no room.
    pub fn send(&self, address: SocketAddr, bytes: &[u8], segment_len: usize) -> u64 {
        match self.sets.get(&address) {
            Some(pieces) => offer(pieces, bytes, segment_len),
            None => bytes.len().div_ceil(segment_len.max(1)) as u64,
        }
    }

    /// Whether `address` is a set's.
    #[must_use]
    pub fn has(&self, address: SocketAddr) -> bool {
        self.sets.contains_key(&address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// What connections of a gateway share.
struct Desk {
    tls: TlsAcceptor,
    key: GatewayKey,
    proxies: Vec<IpNet>,
    strangers: Limit,
    /// Strangers that come by a web server.
    forwarded: Limit,
    guests: Limit,
    sets: StdMutex<BTreeMap<(SetId, IpAddr), Joined>>,
    mailbox: Mailbox<Event>,
}

/// A set with its connections.
#[derive(Clone)]
struct Joined {
    address: SocketAddr,
    pieces: Pieces,
    connections: usize,
}

async fn accept(listener: TcpListener, desk: Arc<Desk>) {
    loop {
        match listener.accept().await {
            Ok((tcp, from)) => {
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                tokio::spawn(serve(tcp, from, Arc::clone(&desk)));
            }
            Err(error) => {
                // Too many open files, for example.
                tracing::warn!(%error, "carrier: no connection can be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(tcp: TcpStream, from: SocketAddr, desk: Arc<Desk>) {
    let is_proxy = desk.proxies.iter().any(|net| net.contains(&from.ip()));
    let strangers = if is_proxy {
        &desk.forwarded
    } else {
        &desk.strangers
    };
    let Some(stranger) = strangers.take(from.ip()) else {
        return;
    };
    let greeted = timeout(HANDSHAKE_PATIENCE, greet(tcp, from, is_proxy, &desk)).await;
    let (socket, set, source) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(why)) => {
            tracing::debug!(%from, why, "carrier: turned away");
            return;
        }
        Err(_) => return,
    };
    drop(stranger);
    let Some(_guest) = desk.guests.take(source) else {
        tracing::debug!(%source, "carrier: too many connections of this source");
        return;
    };
    let from = SocketAddr::new(source, from.port());
    let Some((joined, queue)) = desk.join(set, from) else {
        return;
    };
    let address = joined.address;
    if let Some(queue) = queue {
        desk.mailbox.send(Event::Opened(address, queue)).await;
        tracing::info!(%address, "a link is carried over TCP");
    }
    let error = connection::run(socket, &joined.pieces, |received| {
        desk.mailbox.send(Event::Received(address, received))
    })
    .await;
    tracing::debug!(%address, %error, "carrier connection");
    if desk.leave(set, source) {
        desk.mailbox.send(Event::Closed(address)).await;
    }
}

/// The handshakes: who a stranger is.
async fn greet(
    tcp: TcpStream,
    from: SocketAddr,
    is_proxy: bool,
    desk: &Desk,
) -> Result<(WebSocketStream<TlsStream<TcpStream>>, SetId, IpAddr), String> {
    socket::tune(&tcp).map_err(|error| error.to_string())?;
    let tls = desk
        .tls
        .accept(tcp)
        .await
        .map_err(|error| error.to_string())?;
    let (_, session) = tls.get_ref();
    let binding = session.export_keying_material([0; 32], EXPORTER_LABEL, None);
    let binding = binding.map_err(|error| error.to_string())?;
    let mut tls = tls;
    let head = read_head(&mut tls).await.ok_or("no request")?;
    let greeted = request::read(&head).and_then(|request| {
        let source = if is_proxy {
            request.forwarded
        } else {
            Some(from.ip())
        };
        let (set, answer) = desk.key.answer(&request.greeting, &binding)?;
        Some((request.accept, set, answer, source?))
    });
    let Some((accept, set, answer, source)) = greeted else {
        let _ = tls.write_all(NOT_FOUND).await;
        let _ = tls.shutdown().await;
        return Err("not a client's request".to_owned());
    };
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{ANSWER_HEADER}: {answer}\r\n\r\n"
    );
    tls.write_all(response.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    tls.flush().await.map_err(|error| error.to_string())?;
    let config = Some(connection::config());
    let socket = WebSocketStream::from_raw_socket(tls, Role::Server, config).await;
    Ok((socket, set, source))
}

/// The head of a request, up to its empty line; `None` if the connection ends before, or it is too long.
async fn read_head(stream: &mut TlsStream<TcpStream>) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MOST_HEAD {
            return None;
        }
        // What follows belongs to the messages. TLS has it in memory.
        head.push(stream.read_u8().await.ok()?);
    }
    Some(head)
}

impl Desk {
    /// Adds a connection to its set; with the set's queue if it is new. `None` if the set has too many, or no port is free.
    fn join(&self, set: SetId, from: SocketAddr) -> Option<(Joined, Option<mpsc::Sender<Piece>>)> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(joined) = sets.get_mut(&(set, from.ip())) {
            if joined.connections >= MOST_CONNECTIONS {
                return None;
            }
            joined.connections += 1;
            return Some((joined.clone(), None));
        }
        let ports = (from.port()..=u16::MAX).chain(1..from.port());
        let mut addresses = ports.map(|port| SocketAddr::new(from.ip(), port));
        let is_free = |address: &SocketAddr| sets.values().all(|joined| joined.address != *address);
        let address = addresses.find(is_free)?;
        let (pieces, queue) = mpsc::channel(QUEUED_PIECES);
        let joined = Joined {
            address,
            pieces: Arc::new(Mutex::new(queue)),
            connections: 1,
        };
        sets.insert((set, from.ip()), joined.clone());
        Some((joined, Some(pieces)))
    }

    /// Removes a connection from its set; whether it was the last.
    fn leave(&self, set: SetId, source: IpAddr) -> bool {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(joined) = sets.get_mut(&(set, source)) else {
            return false;
        };
        joined.connections -= 1;
        let is_last = joined.connections == 0;
        if is_last {
            sets.remove(&(set, source));
        }
        is_last
    }
}

/// The answer of a web server that has nothing.
const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\nNot Found\n";
/// Longest head of a request.
const MOST_HEAD: usize = 8192;
/// How long a stranger may take for TLS and its request.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(8);
/// Strangers at a time, in all and from one source.
const STRANGERS: usize = 512;
const STRANGERS_EACH: usize = 32;
/// Connections of clients at a time, in all and from one source: some 64 KiB each.
const GUESTS: usize = 8192;
const GUESTS_EACH: usize = 256;
/// Connections of a set.
const MOST_CONNECTIONS: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
