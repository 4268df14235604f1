//! The listener of a gateway.
//!
//! A connection belongs to a stranger until its request proves that it knows the gateway's public key
//! ([`crate::proof`]). Strangers get the answer of a web server without content and `HANDSHAKE_PATIENCE` to finish.
//! `strangers.rs` limits how many strangers are connected and how many handshakes begin per second. Handshakes run on a
//! separate thread, which carries no datagrams.
//!
//! All connections of one client's link are a *set*, which has one address for the engine: the real source address of
//! its first connection with that connection's port, or the next free port. So the engine's limits for sources apply,
//! and the engine validates a set's address like any other address.
//!
//! Behind a web server all connections come from that server. Connections from the addresses in [`Settings::proxies`]
//! are attributed to the last address in their `X-Forwarded-For`.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::session::limiter::Rate;
use pleach_linux::{clock, poll::Waker};
use rustls::{ServerConfig, server::Acceptor};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Mutex, Notify, mpsc},
    time::sleep,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

use crate::{
    Piece, QUEUED_PIECES, Received,
    client::{ANSWER_HEADER, EXPORTER_LABEL, Mailbox, offer, start_thread},
    connection::{self, Pieces},
    limits::Limit,
    proof::{GatewayKey, SetId},
    request, socket,
    strangers::{Places, Rates, Stranger, Strangers},
    tls::{self, Certificate},
};

/// Settings of a gateway's listener.
#[derive(Debug)]
pub struct Settings {
    /// Address and port of the listener.
    pub listen: SocketAddr,
    /// Static private key of the tunnel.
    pub private_key: zeroize::Zeroizing<[u8; 32]>,
    /// Public key of the tunnel.
    pub public_key: [u8; 32],
    /// Certificate that the gateway shows.
    pub certificate: Certificate,
    /// Networks of web servers in front of the gateway.
    pub proxies: Vec<IpNet>,
    /// Mark of all packets.
    pub fwmark: Option<u32>,
}

/// Event for the data path.
#[derive(Debug)]
enum Event {
    Closed(SocketAddr),
    Opened(SocketAddr, mpsc::Sender<Piece>),
    Received(SocketAddr, Received),
}

/// The thread of a gateway's listener. It ends when this value is dropped.
#[derive(Debug)]
pub struct Server {
    mailbox: Mailbox<Event>,
    events: mpsc::Receiver<Event>,
    sets: BTreeMap<SocketAddr, mpsc::Sender<Piece>>,
    _threads: Threads,
}

/// Signals that stop the two threads: the one for datagrams and the one for handshakes. Dropping the value stops the
/// threads.
#[derive(Debug)]
struct Threads([Arc<Notify>; 2]);

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.notify_one());
    }
}

impl Server {
    /// Opens the listener and starts the thread.
    ///
    /// # Errors
    /// Fails if the address is taken, the certificate is not usable, or no thread can be created.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let strangers = Strangers::new(STRANGERS, HANDSHAKES);
        // All forwarded strangers can have the address of one web server, so only the total is limited.
        let forwarded = Strangers::new(
            Places {
                each: STRANGERS.all,
                network: STRANGERS.all,
                ..STRANGERS
            },
            Rates {
                each: HANDSHAKES.all,
                network: HANDSHAKES.all,
                ..HANDSHAKES
            },
        );
        Self::start_with(settings, strangers, forwarded).map(|(this, _)| this)
    }

    /// Does the work of [`start`](Self::start) with the given limits. Also returns the address of the listener.
    fn start_with(
        settings: Settings,
        strangers: Strangers,
        forwarded: Strangers,
    ) -> io::Result<(Self, SocketAddr)> {
        let tls = tls::server(settings.certificate, &settings.public_key);
        let tls = tls.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (mailbox, events) = Mailbox::new()?;
        let threads = Threads([(); 2].map(|()| Arc::new(Notify::new())));
        let runtime = start_thread("carrier", Arc::clone(&threads.0[0]))?;
        let handshakes = start_thread("carrier-hello", Arc::clone(&threads.0[1]))?;
        let listener = {
            let _entered = runtime.enter();
            socket::listen(settings.listen, settings.fwmark)?
        };
        let address = listener.local_addr()?;
        let desk = Desk {
            tls: Arc::new(tls),
            key: GatewayKey::new(&settings.private_key),
            proxies: settings.proxies,
            strangers,
            forwarded,
            handshakes,
            guests: Limit::new(GUESTS_EACH, GUESTS),
            sets: StdMutex::default(),
            mailbox: mailbox.clone(),
        };
        runtime.spawn(accept(listener, Arc::new(desk)));
        let this = Self {
            mailbox,
            events,
            sets: BTreeMap::new(),
            _threads: threads,
        };
        Ok((this, address))
    }

    /// Returns the waker, which is readable when [`poll`](Self::poll) has something to return.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.mailbox.waker
    }

    /// Clears the waker. Must be called before [`Self::poll`].
    pub fn clear(&self) {
        self.mailbox.clear();
    }

    /// Returns received datagrams, and the address of their set.
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

    /// Queues a batch of datagrams of `segment_len` bytes for the set `address`. Returns the number of datagrams
    /// dropped because the queue was full or the set does not exist.
    pub fn send(&self, address: SocketAddr, bytes: &[u8], segment_len: usize) -> u64 {
        match self.sets.get(&address) {
            Some(pieces) => offer(pieces, bytes, segment_len),
            None => bytes.len().div_ceil(segment_len.max(1)) as u64,
        }
    }

    /// Whether `address` belongs to a set.
    #[must_use]
    pub fn has(&self, address: SocketAddr) -> bool {
        self.sets.contains_key(&address)
    }
}

/// State that the connections of a gateway share.
struct Desk {
    tls: Arc<ServerConfig>,
    key: GatewayKey,
    proxies: Vec<IpNet>,
    strangers: Strangers,
    /// Strangers that arrive through a web server.
    forwarded: Strangers,
    /// Runtime of the thread for handshakes.
    handshakes: Handle,
    guests: Limit<IpAddr>,
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
                // For example, too many files are open.
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
    let stranger = strangers.enter(from.ip());
    let greeting = {
        let desk = Arc::clone(&desk);
        async move {
            tokio::select! {
                greeted = greet(tcp, from, is_proxy, &stranger, &desk) => greeted,
                () = stranger.leaves() => Err("newer ones take its place".to_owned()),
                () = sleep(HANDSHAKE_PATIENCE) => Err("it took too long".to_owned()),
            }
        }
    };
    let greeted = desk.handshakes.spawn(greeting).await;
    let (socket, set, source) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(why)) => {
            tracing::debug!(%from, why, "carrier: turned away");
            return;
        }
        Err(_) => return,
    };
    strangers.on_client(from.ip());
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

/// Executes the handshakes, which identify the client.
async fn greet(
    tcp: TcpStream,
    from: SocketAddr,
    is_proxy: bool,
    stranger: &Stranger,
    desk: &Desk,
) -> Result<(WebSocketStream<TlsStream<TcpStream>>, SetId, IpAddr), String> {
    socket::tune(&tcp).map_err(|error| error.to_string())?;
    let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await;
    let hello = hello.map_err(|error| error.to_string())?;
    // Up to here, the connection has cost little.
    if !stranger.admit(clock::now()) {
        return Err("too many handshakes".to_owned());
    }
    let tls = hello.into_stream(Arc::clone(&desk.tls)).await;
    let tls = tls.map_err(|error| error.to_string())?;
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

/// Reads the head of a request, up to its empty line. `None` if the connection ends before, or the head is too long.
async fn read_head(stream: &mut TlsStream<TcpStream>) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MOST_HEAD {
            return None;
        }
        // Bytes after the head belong to the messages. TLS buffers them in memory.
        head.push(stream.read_u8().await.ok()?);
    }
    Some(head)
}

impl Desk {
    /// Adds a connection to its set. If the set is new, its queue is returned too. `None` if the set has too many
    /// connections, or no port is free.
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

    /// Removes a connection from its set. Returns whether it was the last.
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

/// Answer of a web server without content.
const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\nNot Found\n";
/// Length in bytes of the longest head of a request.
const MOST_HEAD: usize = 8192;
/// Time limit for TLS and the request of a stranger.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(8);
/// Highest number of strangers at a time.
const STRANGERS: Places = Places {
    each: 32,
    network: 128,
    all: 512,
};
/// Limits for handshakes of strangers; a handshake takes about 0.4 ms of CPU time. The burst of one source allows
/// several clients behind one address to open all connections of four links at once.
const HANDSHAKES: Rates = Rates {
    each: Rate::new(20, 128),
    network: Rate::new(40, 256),
    all: Rate::new(200, 400),
};
/// Highest number of clients' connections at a time, in total and per source. Each uses about 64 KiB.
const GUESTS: usize = 8192;
const GUESTS_EACH: usize = 256;
/// Highest number of connections of a set.
const MOST_CONNECTIONS: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        io::{ErrorKind, Read as _},
        net::TcpStream as StdStream,
        process::Command,
    };

    use super::*;
    use crate::tls::Trust;

    const MANY: Rate = Rate::new(1000, 1000);

    fn start(places: Places, each: Rate) -> (Server, SocketAddr) {
        let settings = Settings {
            listen: "127.0.0.1:0".parse().expect("literal"),
            private_key: [7; 32].into(),
            public_key: [9; 32],
            certificate: Certificate::SelfSigned,
            proxies: Vec::new(),
            fwmark: None,
        };
        let rates = Rates {
            each,
            network: MANY,
            all: MANY,
        };
        let strangers = Strangers::new(places, rates);
        Server::start_with(settings, strangers.clone(), strangers).expect("starts")
    }

    /// Whether the server has closed a connection. With `waits`, waits up to 5 s for that.
    fn is_closed(stream: &mut StdStream, waits: bool) -> bool {
        stream.set_nonblocking(!waits).expect("sets");
        let patience = Some(Duration::from_secs(5));
        stream.set_read_timeout(patience).expect("sets");
        match stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn silent_strangers_make_room_for_newer_ones() {
        let places = Places {
            each: 2,
            network: 2,
            all: 2,
        };
        let (_server, address) = start(places, MANY);
        let connect = || StdStream::connect(address).expect("connects");
        let mut first = connect();
        let mut others = [connect(), connect()];
        assert!(is_closed(&mut first, true), "the oldest leaves");
        assert!(!others.iter_mut().any(|other| is_closed(other, false)));
    }

    /// Sends a ClientHello.
    fn greet(stream: &mut StdStream) {
        let config = tls::client(&Trust::GatewayKey, &[9; 32]).expect("a valid configuration");
        let name = "gateway.example".try_into().expect("a name");
        let client = rustls::ClientConnection::new(Arc::new(config), name);
        let mut client = client.expect("a client");
        client.write_tls(stream).expect("writes");
    }

    #[test]
    fn handshakes_beyond_the_rate_are_not_begun() {
        let places = Places {
            each: 100,
            network: 100,
            all: 100,
        };
        let (_server, address) = start(places, Rate::new(1, 2));
        // Silent connections use up nothing.
        let connect = || StdStream::connect(address).expect("connects");
        let silent = [(); 8].map(|()| connect());
        let mut streams = [(); 2].map(|()| connect());
        for stream in &mut streams {
            greet(stream);
            assert!(!is_closed(stream, true), "the server answers");
        }
        // The bucket gets a token each second.
        let is_one_closed = (0..8).any(|_| {
            let mut stream = connect();
            greet(&mut stream);
            is_closed(&mut stream, true)
        });
        assert!(is_one_closed, "beyond the burst");
        drop(silent);
    }

    #[test]
    fn a_listener_that_cannot_start_leaves_no_thread() {
        // In a process of its own, because other tests have threads too.
        let status = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "--ignored", "--test-threads=1"])
            .arg("server::tests::a_listener_cannot_start")
            .status();
        assert!(status.expect("runs").success());
    }

    #[test]
    #[ignore = "run by another test, in a process of its own"]
    fn a_listener_cannot_start() {
        let threads = || {
            let threads = fs::read_dir("/proc/self/task");
            threads.expect("readable").count()
        };
        let before = threads();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let settings = Settings {
            listen: taken.local_addr().expect("bound"),
            private_key: [7; 32].into(),
            public_key: [9; 32],
            certificate: Certificate::SelfSigned,
            proxies: Vec::new(),
            fwmark: None,
        };
        let error = Server::start(settings).expect_err("the port is taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let end = clock::now() + Duration::from_secs(30);
        while threads() > before {
            assert!(clock::now() < end, "a thread is left");
            std::thread::yield_now();
        }
    }
}
