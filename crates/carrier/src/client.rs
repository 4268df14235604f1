//! The connections of a client's links.
//!
//! [`Client::open`] carries a link from then on until its [`Carried`] is dropped: a set of connections, each made again when it
//! ends, at growing intervals. The first of a set is made alone; the others follow once it stands.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex as StdMutex, PoisonError,
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

/// What all links of a client have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Static public key of the gateway.
    pub gateway_key: [u8; 32],
    /// Which certificate is taken for the gateway's.
    pub trust: Trust,
    /// Name that the TLS handshake and the request show; `None`: the address.
    pub server_name: Option<String>,
    /// Path of the request; begins with a slash.
    pub path: String,
    /// Connections of a link, at least 1.
    pub connections: usize,
    /// Mark of all packets.
    pub fwmark: Option<u32>,
}

/// How a link gets to the gateway.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// Its device.
    pub device: String,
    /// Source addresses, IPv4 and IPv6, if the route asks for one.
    pub sources: [Option<IpAddr>; 2],
    /// Addresses of the gateway that the link may reach, preferred first.
    pub endpoints: Vec<SocketAddr>,
    /// Through which proxy.
    pub proxy: Option<HttpProxy>,
}

/// News for the data path. `link` and `generation` are those of [`Carried`].
#[derive(Debug)]
pub enum Event {
    /// No connection of a link stands any more, or none could be made.
    Down {
        /// Which link.
        link: u8,
        /// Of which set.
        generation: u32,
        /// A word for programs.
        word: &'static str,
        /// What it was, in a sentence.
        why: String,
    },
    /// Datagrams have come.
    Received {
        /// Over which link.
        link: u8,
        /// What has come.
        received: Received,
    },
    /// A first connection of a link stands.
    Up {
        /// Which link.
        link: u8,
        /// Of which set.
        generation: u32,
    },
}

/// The thread of a client's connections. It ends when this is dropped.
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

/// A link that is carried, for as long as this lives.
#[derive(Debug)]
pub struct Carried {
    /// Tells this set's events from those of earlier ones of the link.
    pub generation: u32,
    pieces: mpsc::Sender<Piece>,
    task: AbortHandle,
}

impl Carried {
    /// Queues a batch of datagrams of `segment_len` bytes; returns how many found no room.
    pub fn send(&self, bytes: &[u8], segment_len: usize) -> u64 {
        offer(&self.pieces, bytes, segment_len)
    }
}

/// Queues pieces; returns how many datagrams found no room.
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
    /// Whether pieces wait.
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
    /// No thread or eventfd can be had, or the settings do not make a TLS client.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let tls = tls::client(&settings.trust, &settings.gateway_key).map_err(io::Error::other)?;
        let (mailbox, events) = Mailbox::new()?;
        let stop = Arc::new(Notify::new());
        let runtime = start_thread(Arc::clone(&stop))?;
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

    /// Readable when there are events.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.mailbox.waker
    }

    /// Carries `link`; the link's former [`Carried`] is to be dropped before.
    pub fn open(&mut self, link: u8, settings: LinkSettings) -> Carried {
        self.generation += 1;
        let (pieces, queue) = mpsc::channel(QUEUED_PIECES);
        let set = Set {
            link,
            generation: self.generation,
            common: Arc::clone(&self.settings),
            tls: Arc::clone(&self.tls),
            settings,
            pieces: Arc::new(Mutex::new(queue)),
            mailbox: self.mailbox.clone(),
            standing: AtomicUsize::new(0),
            id: StdMutex::new([0; 16]),
            stands: Notify::new(),
        };
        let task = self.runtime.spawn(Arc::new(set).run());
        Carried {
            generation: self.generation,
            pieces,
            task: task.abort_handle(),
        }
    }

    /// The next event. Clear the [`waker`](Self::clear) first.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Call before [`Self::poll`].
    pub fn clear(&self) {
        self.mailbox.clear();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// Starts a thread that drives a runtime until `stop` is notified.
pub(crate) fn start_thread(stop: Arc<Notify>) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("carrier".to_owned())
        .spawn(move || {
            runtime.block_on(stop.notified());
        })?;
    Ok(handle)
}

/// The way to the data path: a bounded channel and its alarm.
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

    /// Waits for room; whether anybody still reads.
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

/// The connections of a link.
#[derive(Debug)]
struct Set {
    link: u8,
    generation: u32,
    common: Arc<Settings>,
    tls: Arc<ClientConfig>,
    settings: LinkSettings,
    pieces: Pieces,
    mailbox: Mailbox,
    standing: AtomicUsize,
    /// New whenever no connection stands, since the gateway may still have the former ones.
    id: StdMutex<SetId>,
    stands: Notify,
}

impl Set {
    async fn run(self: Arc<Self>) {
        let mut connections = JoinSet::new();
        for number in 0..self.common.connections.max(1) {
            connections.spawn(Arc::clone(&self).keep(number));
        }
        while connections.join_next().await.is_some() {}
    }

    /// Makes connection `number` again and again.
    async fn keep(self: Arc<Self>, number: usize) {
        let mut pause = FIRST_PAUSE;
        let mut turn = 0;
        loop {
            if number > 0 {
                while self.standing.load(Ordering::Acquire) == 0 {
                    // It may have been notified in between: look again soon.
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
            let made = timeout(PATIENCE, self.connect(turn)).await;
            let error = match made {
                Ok(Ok(socket)) => {
                    pause = FIRST_PAUSE;
                    self.on_standing().await;
                    let error = connection::run(socket, &self.pieces, |received| {
                        let link = self.link;
                        self.mailbox.send(Event::Received { link, received })
                    })
                    .await;
                    self.standing.fetch_sub(1, Ordering::AcqRel);
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

    /// A connection to the gateway, at the address whose `turn` it is.
    async fn connect(
        &self,
        turn: usize,
    ) -> Result<WebSocketStream<TlsStream<TcpStream>>, CarrierError> {
        let endpoints = &self.settings.endpoints;
        let index = turn
            .checked_rem(endpoints.len())
            .ok_or(CarrierError::NoEndpoint)?;
        let endpoint = endpoints[index];
        let tcp = self.connect_tcp(endpoint).await?;
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

    async fn connect_tcp(&self, endpoint: SocketAddr) -> Result<TcpStream, CarrierError> {
        let Some(proxy) = &self.settings.proxy else {
            return self.dial(endpoint, endpoint.to_string()).await;
        };
        let shown = format!("the HTTP proxy {}:{}", proxy.host, proxy.port);
        let found = lookup_host((proxy.host.as_str(), proxy.port)).await;
        let found = found.and_then(|mut found| found.next().ok_or(io::ErrorKind::NotFound.into()));
        let address = match found {
            Ok(address) => address,
            Err(error) => return Err(CarrierError::Connect { to: shown, error }),
        };
        let mut tcp = self.dial(address, shown).await?;
        http_proxy::connect(&mut tcp, proxy, endpoint).await?;
        Ok(tcp)
    }

    async fn dial(&self, to: SocketAddr, shown: String) -> Result<TcpStream, CarrierError> {
        let source = self.settings.sources[usize::from(to.is_ipv6())];
        let tcp = socket::connect(&self.settings.device, source, self.common.fwmark, to).await;
        tcp.map_err(|error| CarrierError::Connect { to: shown, error })
    }

    /// The WebSocket upgrade, with the proofs of both ends.
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

/// Header of the gateway's proof.
pub(crate) const ANSWER_HEADER: &str = "x-proof";
/// Label of the TLS exporter.
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPORTER-pleach-carrier";
const QUEUED_EVENTS: usize = 256;
/// For all handshakes of a connection: four round trips over a satellite, and a repeated SYN.
const PATIENCE: Duration = Duration::from_secs(6);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(15);
