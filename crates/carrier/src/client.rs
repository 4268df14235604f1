//! The TCP connections of a client's links.
//!
//! [`Client::open`] carries a link from then on until its [`Carried`] is dropped. It uses a set of connections. A
//! connection that ends is opened again, at growing intervals. The first connection of a set is opened alone; the
//! others follow once it is established.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pleach_linux::poll::Waker;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    net::{TcpStream, lookup_host},
    runtime::{Builder, Handle},
    sync::{Mutex, Notify, mpsc},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        client::IntoClientRequest as _,
        http::{HeaderValue, header::AUTHORIZATION},
    },
};

use crate::{
    Piece, QUEUED_PIECES, Received,
    connection::{self, Pieces},
    error::CarrierError,
    http_proxy::{self, HttpProxy},
    proof::{Greeting, SetId},
    socket,
    tls::{self, Trust},
};

/// Settings that all links of a client share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Static public key of the gateway.
    pub gateway_key: [u8; 32],
    /// Rule for accepting the gateway's certificate.
    pub trust: Trust,
    /// Server name in the TLS handshake and the request. `None`: the address.
    pub server_name: Option<String>,
    /// Path of the request, beginning with a slash.
    pub path: String,
    /// Number of connections of a link, at least 1.
    pub connections: usize,
    /// Mark of all packets.
    pub fwmark: Option<u32>,
}

/// Route of a link to the gateway.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// Name of the link's device.
    pub device: String,
    /// Source addresses, IPv4 and IPv6, if the route requires them.
    pub sources: [Option<IpAddr>; 2],
    /// Addresses of the gateway that the link may reach, in order of preference.
    pub endpoints: Vec<SocketAddr>,
    /// HTTP proxy on the path, if any.
    pub proxy: Option<HttpProxy>,
    /// Function that resolves the host name of `proxy`. If it is `None` or finds no address, the host's resolver is
    /// used.
    pub proxy_lookup: Option<Lookup>,
}

/// Function that resolves a name over the link. A call can take seconds.
#[derive(Clone)]
pub struct Lookup(Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>);

impl Lookup {
    /// `look_up` is called on a separate thread: before the first connection, and after a connection has failed.
    pub fn new(look_up: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}

/// Event for the data path. `link` and `generation` are those of [`Carried`].
#[derive(Debug)]
pub enum Event {
    /// The last connection of a link has ended, or none could be established.
    Down {
        /// Number of the link.
        link: u8,
        /// Generation of the set of connections.
        generation: u32,
        /// Reason as a word for programs.
        word: &'static str,
        /// Reason in a sentence.
        why: String,
    },
    /// Datagrams have arrived.
    Received {
        /// Number of the link.
        link: u8,
        /// The received datagrams.
        received: Received,
    },
    /// A first connection of a link is established.
    Up {
        /// Number of the link.
        link: u8,
        /// Generation of the set of connections.
        generation: u32,
    },
}

/// The thread of a client's connections. It ends when this value is dropped.
#[derive(Debug)]
pub struct Client {
    settings: Arc<Settings>,
    tls: Arc<ClientConfig>,
    runtime: Handle,
    stop: Arc<Notify>,
    mailbox: Mailbox,
    events: mpsc::Receiver<Event>,
    generation: u32,
}

/// A link that TCP carries as long as this value exists.
#[derive(Debug)]
pub struct Carried {
    /// Distinguishes the events of this set of TCP connections from the events of earlier sets of the link.
    pub generation: u32,
    pieces: mpsc::Sender<Piece>,
    addresses: Arc<StdMutex<Addresses>>,
    task: AbortHandle,
}

/// Addresses of the gateway for one set of connections.
#[derive(Debug)]
struct Addresses {
    /// Addresses for new connections, in order of preference.
    wanted: Vec<SocketAddr>,
    /// Addresses to which connections are established, one for each connection.
    in_use: Vec<SocketAddr>,
}

fn lock(addresses: &StdMutex<Addresses>) -> MutexGuard<'_, Addresses> {
    addresses.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Carried {
    /// Queues a batch of datagrams of `segment_len` bytes. Returns the number of datagrams dropped because the queue
    /// was full.
    pub fn send(&self, bytes: &[u8], segment_len: usize) -> u64 {
        offer(&self.pieces, bytes, segment_len)
    }
}

/// Queues pieces. Returns the number of datagrams dropped because the queue was full.
pub(crate) fn offer(pieces: &mpsc::Sender<Piece>, bytes: &[u8], segment_len: usize) -> u64 {
    let refused = |piece: Piece| match pieces.try_send(piece) {
        Ok(()) => 0,
        Err(mpsc::error::TrySendError::Full(piece) | mpsc::error::TrySendError::Closed(piece)) => {
            piece.bytes.len().div_ceil(piece.segment_len.max(1)) as u64
        }
    };
    Piece::cut(bytes, segment_len).map(refused).sum()
}

impl Carried {
    /// Sets the addresses for connections that are opened from now on. Returns whether there are connections, and all
    /// lead to one of `endpoints`.
    #[must_use]
    pub fn set_endpoints(&self, endpoints: Vec<SocketAddr>) -> bool {
        let mut addresses = lock(&self.addresses);
        addresses.wanted = endpoints;
        let Addresses { wanted, in_use } = &*addresses;
        !in_use.is_empty() && in_use.iter().all(|address| wanted.contains(address))
    }

    /// Whether pieces are waiting.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.pieces.capacity() < self.pieces.max_capacity()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if no thread or eventfd can be created, or if the settings are not valid for a TLS client.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let tls = tls::client(&settings.trust, &settings.gateway_key).map_err(io::Error::other)?;
        let (mailbox, events) = Mailbox::new()?;
        let stop = Arc::new(Notify::new());
        let runtime = start_thread("carrier", Arc::clone(&stop))?;
        Ok(Self {
            settings: Arc::new(settings),
            tls: Arc::new(tls),
            runtime,
            stop,
            mailbox,
            events,
            generation: 0,
        })
    }

    /// Returns the waker, which is readable when there are events.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.mailbox.waker
    }

    /// Carries `link` over TCP. The link's previous [`Carried`] must be dropped before.
    pub fn open(&mut self, link: u8, settings: LinkSettings) -> Carried {
        self.generation += 1;
        let (pieces, queue) = mpsc::channel(QUEUED_PIECES);
        let addresses = Arc::new(StdMutex::new(Addresses {
            wanted: settings.endpoints.clone(),
            in_use: Vec::new(),
        }));
        let set = Set {
            link,
            generation: self.generation,
            common: Arc::clone(&self.settings),
            tls: Arc::clone(&self.tls),
            settings,
            addresses: Arc::clone(&addresses),
            pieces: Arc::new(Mutex::new(queue)),
            mailbox: self.mailbox.clone(),
            standing: AtomicUsize::new(0),
            id: StdMutex::new([0; 16]),
            stands: Notify::new(),
            proxies: Mutex::default(),
        };
        let task = self.runtime.spawn(Arc::new(set).run());
        Carried {
            generation: self.generation,
            pieces,
            addresses,
            task: task.abort_handle(),
        }
    }

    /// Returns the next event. Call [`clear`](Self::clear) first.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Clears the waker. Must be called before [`Self::poll`].
    pub fn clear(&self) {
        self.mailbox.clear();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// Starts a thread named `name` that runs a runtime until `stop` is notified.
pub(crate) fn start_thread(name: &str, stop: Arc<Notify>) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            runtime.block_on(stop.notified());
        })?;
    Ok(handle)
}

/// Queue to the data path: a bounded channel and its waker.
#[derive(Debug)]
pub(crate) struct Mailbox<T = Event> {
    events: mpsc::Sender<T>,
    pub(crate) waker: Waker,
    is_awake: Arc<AtomicBool>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self {
            events: self.events.clone(),
            waker: self.waker.clone(),
            is_awake: Arc::clone(&self.is_awake),
        }
    }
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> io::Result<(Self, mpsc::Receiver<T>)> {
        let (events, receiver) = mpsc::channel(QUEUED_EVENTS);
        let this = Self {
            events,
            waker: Waker::new()?,
            is_awake: Arc::default(),
        };
        Ok((this, receiver))
    }

    /// Waits for free space in the channel and sends `event`. Returns whether the receiver still exists.
    pub(crate) async fn send(&self, event: T) -> bool {
        let is_sent = self.events.send(event).await.is_ok();
        if !self.is_awake.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
        is_sent
    }

    pub(crate) fn clear(&self) {
        self.waker.clear();
        self.is_awake.store(false, Ordering::Release);
    }
}

/// The set of connections of a link.
#[derive(Debug)]
struct Set {
    link: u8,
    generation: u32,
    common: Arc<Settings>,
    tls: Arc<ClientConfig>,
    settings: LinkSettings,
    addresses: Arc<StdMutex<Addresses>>,
    pieces: Pieces,
    mailbox: Mailbox,
    standing: AtomicUsize,
    /// Identifier of the set. It is replaced when no connection is established, because the gateway may still have the
    /// previous connections.
    id: StdMutex<SetId>,
    stands: Notify,
    /// Resolved addresses of the HTTP proxy. Empty before the first lookup and after a failed connection.
    proxies: Mutex<Vec<SocketAddr>>,
}

impl Set {
    async fn run(self: Arc<Self>) {
        let mut connections = JoinSet::new();
        for number in 0..self.common.connections.max(1) {
            connections.spawn(Arc::clone(&self).keep(number));
        }
        while connections.join_next().await.is_some() {}
    }

    /// Opens connection `number` again and again.
    async fn keep(self: Arc<Self>, number: usize) {
        let mut pause = FIRST_PAUSE;
        let mut turn = 0;
        loop {
            if number > 0 {
                while self.standing.load(Ordering::Acquire) == 0 {
                    // The notification may have been missed, so the state is checked again soon.
                    let _ = timeout(MOST_PAUSE, self.stands.notified()).await;
                }
            }
            let is_first = self.standing.load(Ordering::Acquire) == 0;
            if is_first {
                let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
                if aws_lc_rs::rand::fill(&mut *id).is_err() {
                    return;
                }
            }
            // The lookup has its own time limit.
            let proxies = self.proxy_addresses().await;
            let endpoint = self.endpoint(turn);
            let made = timeout(PATIENCE, self.connect(endpoint, &proxies)).await;
            if !matches!(made, Ok(Ok(_))) {
                self.proxies.lock().await.clear();
            }
            let error = match made {
                Ok(Ok(socket)) => {
                    pause = FIRST_PAUSE;
                    lock(&self.addresses).in_use.extend(endpoint);
                    self.on_standing().await;
                    let error = connection::run(socket, &self.pieces, |received| {
                        let link = self.link;
                        self.mailbox.send(Event::Received { link, received })
                    })
                    .await;
                    self.standing.fetch_sub(1, Ordering::AcqRel);
                    let in_use = &mut lock(&self.addresses).in_use;
                    let index = in_use.iter().position(|used| Some(*used) == endpoint);
                    if let Some(index) = index {
                        in_use.swap_remove(index);
                    }
                    error
                }
                Ok(Err(error)) => {
                    turn += 1;
                    error
                }
                Err(_) => {
                    turn += 1;
                    CarrierError::Timeout("the handshakes were not complete after 6 s")
                }
            };
            tracing::debug!(link = self.link, number, %error, "carrier connection");
            if self.standing.load(Ordering::Acquire) == 0 {
                let event = Event::Down {
                    link: self.link,
                    generation: self.generation,
                    word: error.word(),
                    why: error.to_string(),
                };
                self.mailbox.send(event).await;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    async fn on_standing(&self) {
        if self.standing.fetch_add(1, Ordering::AcqRel) == 0 {
            self.stands.notify_waiters();
            let (link, generation) = (self.link, self.generation);
            self.mailbox.send(Event::Up { link, generation }).await;
        }
    }

    /// Returns the address selected by `turn`. `None`: there are no addresses.
    fn endpoint(&self, turn: usize) -> Option<SocketAddr> {
        let addresses = lock(&self.addresses);
        let index = turn.checked_rem(addresses.wanted.len())?;
        addresses.wanted.get(index).copied()
    }

    /// Opens a connection to the gateway at `endpoint`.
    async fn connect(
        &self,
        endpoint: Option<SocketAddr>,
        proxies: &[SocketAddr],
    ) -> Result<WebSocketStream<TlsStream<TcpStream>>, CarrierError> {
        let endpoint = endpoint.ok_or(CarrierError::NoEndpoint)?;
        let tcp = self.connect_tcp(endpoint, proxies).await?;
        let name = match &self.common.server_name {
            Some(name) => ServerName::try_from(name.clone())
                .map_err(|error| CarrierError::Tls(error.to_string()))?,
            None => ServerName::from(endpoint.ip()),
        };
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let tls = connector.connect(name, tcp).await;
        let tls = tls.map_err(|error| tls::explain(&error))?;
        self.upgrade(tls, endpoint).await
    }

    async fn connect_tcp(
        &self,
        endpoint: SocketAddr,
        proxies: &[SocketAddr],
    ) -> Result<TcpStream, CarrierError> {
        let Some(proxy) = &self.settings.proxy else {
            return self.dial(endpoint, endpoint.to_string()).await;
        };
        let shown = format!("the HTTP proxy {}:{}", proxy.host, proxy.port);
        let mut last = CarrierError::Connect {
            to: shown.clone(),
            error: io::Error::new(io::ErrorKind::NotFound, "no resolver knows its name"),
        };
        for address in proxies {
            match timeout(PROXY_PATIENCE, self.dial(*address, shown.clone())).await {
                Ok(Ok(mut tcp)) => {
                    http_proxy::connect(&mut tcp, proxy, endpoint).await?;
                    return Ok(tcp);
                }
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = CarrierError::Connect {
                        to: shown.clone(),
                        error: io::ErrorKind::TimedOut.into(),
                    }
                }
            }
        }
        Err(last)
    }

    /// Returns the addresses of the HTTP proxy: the stored ones, or else those that a lookup returns.
    async fn proxy_addresses(&self) -> Vec<SocketAddr> {
        let Some(proxy) = &self.settings.proxy else {
            return Vec::new();
        };
        if let Ok(ip) = proxy.host.parse() {
            return vec![SocketAddr::new(ip, proxy.port)];
        }
        // The lock is held during the lookup, so that one lookup serves all connections of the set.
        let mut known = self.proxies.lock().await;
        if known.is_empty()
            && let Some(Lookup(look_up)) = self.settings.proxy_lookup.clone()
        {
            let found = tokio::task::spawn_blocking(move || look_up()).await;
            *known = found.unwrap_or_default();
        }
        if known.is_empty() {
            // The host's resolver may know the name, for example from /etc/hosts.
            let found = timeout(PATIENCE, lookup_host((proxy.host.as_str(), proxy.port))).await;
            *known = found.map_or_else(
                |_| Vec::new(),
                |found| found.map(Iterator::collect).unwrap_or_default(),
            );
        }
        known.truncate(MOST_PROXIES);
        known.clone()
    }

    async fn dial(&self, to: SocketAddr, shown: String) -> Result<TcpStream, CarrierError> {
        let source = self.settings.sources[usize::from(to.is_ipv6())];
        let tcp = socket::connect(&self.settings.device, source, self.common.fwmark, to).await;
        tcp.map_err(|error| CarrierError::Connect { to: shown, error })
    }

    /// Executes the WebSocket upgrade, with the proofs of both ends.
    async fn upgrade(
        &self,
        tls: TlsStream<TcpStream>,
        endpoint: SocketAddr,
    ) -> Result<WebSocketStream<TlsStream<TcpStream>>, CarrierError> {
        let mut binding = Vec::new();
        if self.common.trust.is_bound() {
            let (_, session) = tls.get_ref();
            let exported = session.export_keying_material([0; 32], EXPORTER_LABEL, None);
            binding.extend(exported.map_err(|error| CarrierError::Tls(error.to_string()))?);
        }
        let set = *self.id.lock().unwrap_or_else(PoisonError::into_inner);
        let greeting = Greeting::new(&self.common.gateway_key, set, &binding);
        let greeting = greeting.ok_or(CarrierError::NoProof)?;
        let host = match &self.common.server_name {
            Some(name) => name.clone(),
            None => match endpoint {
                SocketAddr::V4(address) => address.ip().to_string(),
                SocketAddr::V6(address) => format!("[{}]", address.ip()),
            },
        };
        let port = match endpoint.port() {
            443 => String::new(),
            port => format!(":{port}"),
        };
        let uri = format!("wss://{host}{port}{}", self.common.path);
        let wrong = |what: String| CarrierError::WebSocket(what);
        let mut request = uri
            .into_client_request()
            .map_err(|error| wrong(error.to_string()))?;
        let shown = HeaderValue::try_from(format!("Bearer {}", greeting.text()));
        let mut shown = shown.map_err(|error| wrong(error.to_string()))?;
        shown.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, shown);
        let upgraded = client_async_with_config(request, tls, Some(connection::config())).await;
        let (socket, response) = upgraded.map_err(|error| connection::explain(&error))?;
        let answer = response
            .headers()
            .get(ANSWER_HEADER)
            .and_then(|value| value.to_str().ok());
        if !answer.is_some_and(|answer| greeting.accepts(answer, &binding)) {
            return Err(CarrierError::NoProof);
        }
        Ok(socket)
    }
}

/// Name of the header with the gateway's proof.
pub(crate) const ANSWER_HEADER: &str = "x-proof";
/// Label of the TLS exporter.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-pleach-carrier";
const QUEUED_EVENTS: usize = 256;
/// Time limit for all handshakes of a connection: four RTTs over a satellite link, and a repeated SYN.
const PATIENCE: Duration = Duration::from_secs(6);
/// Time limit for the connection to one address of an HTTP proxy. It allows for one repeated SYN.
const PROXY_PATIENCE: Duration = Duration::from_millis(1500);
/// Highest number of addresses of an HTTP proxy that are tried: [`PATIENCE`] divided by [`PROXY_PATIENCE`].
const MOST_PROXIES: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(15);
