//! A connection to a service, by which one thread sends requests. Each request ends in bounded time, whatever the service
//! and the network do.

use core::{future::poll_fn, pin::Pin};
use std::{
    error::Error as _,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::{
    Request, StatusCode,
    body::{Body as _, Incoming},
    client::conn::http1::{Builder, SendRequest},
    header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT},
    http::uri::Scheme,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    runtime::{self, Runtime},
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::config::HttpConfig;

/// Where requests go, and what they have in common.
pub(super) struct Target {
    host: String,
    port: u16,
    /// Value of `Host`.
    authority: HeaderValue,
    /// Path of the service, without a slash at its end.
    path: String,
    /// Value of `Authorization`.
    token: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The address of the last request, and whether it was answered.
    last: Mutex<Option<(SocketAddr, bool)>>,
}

impl Target {
    /// Returns the target of `config`, to which connections are encrypted by `tls`.
    ///
    /// # Errors
    /// If a part of the configuration cannot be sent.
    pub(super) fn new(config: &HttpConfig, tls: Option<ClientConfig>) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let authority = config
            .address
            .authority()
            .map_or("", |found| found.as_str());
        let mut token = HeaderValue::from_str(&format!("Bearer {}", config.token.expose()))
            .map_err(|error| text(&error))?;
        token.set_sensitive(true);
        let host = config.host().to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|error| text(&error))?;
        let is_encrypted = config.address.scheme() == Some(&Scheme::HTTPS);
        Ok(Self {
            port: config
                .address
                .port_u16()
                .unwrap_or(if is_encrypted { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority).map_err(|error| text(&error))?,
            path: config.address.path().trim_end_matches('/').to_owned(),
            token,
            tls: tls.map(|tls| (TlsConnector::from(Arc::new(tls)), name)),
            last: Mutex::default(),
            host,
        })
    }

    /// Connects to the first address of the host that can be connected to before `until`, which the addresses share.
    async fn connect(&self, until: Instant) -> Result<Opened, Failure> {
        let found = timeout_at(until, lookup_host((self.host.as_str(), self.port))).await;
        let found = found.map_err(|_| Failure::Nameless)??;
        let mut addresses: Vec<SocketAddr> = found.collect();
        let last = *self.last();
        addresses.sort_by_key(|address| match last {
            Some((last, has_answered)) if last == *address => u8::from(!has_answered) * 2,
            _ => 1,
        });
        let mut failure = Failure::Nameless;
        let mut remaining = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            let now = Instant::now();
            let turn = now + until.saturating_duration_since(now) / remaining.max(1);
            remaining = remaining.saturating_sub(1);
            match timeout_at(turn, self.connect_to(address)).await {
                Ok(Ok(sender)) => return Ok(Opened { sender, address }),
                Ok(Err(error)) => failure = Failure::Unreached(address, error.to_string()),
                Err(_) => {
                    failure = Failure::Unreached(address, "it takes too long".to_owned());
                }
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<SendRequest<String>, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some((connector, name)) => open(connector.connect(name.clone(), stream).await?).await,
            None => open(stream).await,
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<(SocketAddr, bool)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the request for `resource`, a path below the service with its query.
    fn request(&self, resource: &str) -> Result<Request<String>, Failure> {
        let request = Request::get(format!("{}/{resource}", self.path))
            .header(HOST, &self.authority)
            .header(AUTHORIZATION, &self.token)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .body(String::new());
        Ok(request.map_err(io::Error::other)?)
    }
}

/// Starts HTTP on a connection. The task ends with the sender.
async fn open(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<String>, Failure> {
    let (sender, connection) = Builder::new()
        .max_buf_size(MOST_BUFFERED)
        .handshake(TokioIo::new(stream))
        .await?;
    // An error of the connection is also one of the request.
    tokio::spawn(connection);
    Ok(sender)
}

/// The answer to a request.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// The body, which may contain keys.
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// A connection to one address of the service.
struct Opened {
    sender: SendRequest<String>,
    address: SocketAddr,
}

/// A connection, which is made when it is needed, and kept.
pub(super) struct Link {
    target: Arc<Target>,
    /// Drives the connection while a call waits. `None` until the first request, and while this value is dropped.
    runtime: Option<Runtime>,
    /// The connection, and when it was used last.
    open: Option<(Opened, Instant)>,
}

impl Link {
    /// Returns a link to `target`, without a connection.
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self {
            target,
            runtime: None,
            open: None,
        }
    }

    /// Asks for `resource`, a path below the service with its query. An answer with a body of more than `most` bytes is an
    /// error.
    ///
    /// # Errors
    /// If there is no complete answer within [`ANSWER_WITHIN`], in words for the user.
    pub(super) fn get(&mut self, resource: &str, most: usize) -> Result<Reply, String> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?,
        };
        let used = self.open.take();
        let asked = runtime.block_on(ask(&self.target, used, resource, most));
        self.runtime = Some(runtime);
        let (opened, reply, at) = asked.map_err(|failure| failure.to_string())?;
        self.open = Some((opened, at));
        Ok(reply)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A name that is being resolved is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends a request by the connection `used`, or by a new one if that is old or closed, or does not answer soon: a firewall
/// or a router on the way may have forgotten it.
async fn ask(
    target: &Target,
    used: Option<(Opened, Instant)>,
    resource: &str,
    most: usize,
) -> Result<(Opened, Reply, Instant), Failure> {
    let begin = Instant::now();
    if let Some((mut opened, at)) = used
        && begin.duration_since(at) < IDLE
    {
        let soon = begin + USED_ANSWERS_WITHIN;
        match request(target, &mut opened, resource, most, soon).await {
            Ok(reply) => return Ok((opened, reply, Instant::now())),
            Err(Failure::Http(_) | Failure::Silent) => {}
            Err(failure) => return Err(failure),
        }
    }
    let until = begin + ANSWER_WITHIN;
    let mut opened = target.connect(until).await?;
    let reply = request(target, &mut opened, resource, most, until).await;
    *target.last() = Some((opened.address, reply.is_ok()));
    Ok((opened, reply?, Instant::now()))
}

/// Sends a request by `opened`, and waits for the answer until `until`.
async fn request(
    target: &Target,
    opened: &mut Opened,
    resource: &str,
    most: usize,
    until: Instant,
) -> Result<Reply, Failure> {
    let request = target.request(resource)?;
    let answer = timeout_at(until, async {
        opened.sender.ready().await?;
        exchange(&mut opened.sender, request, most).await
    });
    answer.await.unwrap_or(Err(Failure::Silent))
}

async fn exchange(
    sender: &mut SendRequest<String>,
    request: Request<String>,
    most: usize,
) -> Result<Reply, Failure> {
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = read(answer.into_body(), most).await?;
    Ok(Reply { status, body })
}

async fn read(mut body: Incoming, most: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    // Growing would leave copies of keys in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most.min(USUAL_BODY)));
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if data.len() > most - bytes.len() {
            return Err(Failure::Long(most));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", http_text(.0))]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its answer is longer than {0} bytes")]
    Long(usize),
    #[error("its name cannot be resolved in time, or has no address")]
    Nameless,
    #[error("it does not answer in time")]
    Silent,
    #[error("cannot connect to {0}: {1}")]
    Unreached(SocketAddr, String),
}

/// Returns the message of an error with its cause.
fn http_text(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Longest time for an answer, from the connection to the last byte.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest time for an answer by a connection that was used before.
const USED_ANSWERS_WITHIN: Duration = Duration::from_millis(1500);
/// Time without a request after which a connection is not used any more.
const IDLE: Duration = Duration::from_secs(30);
/// Most bytes of an answer that are read ahead; also the longest head.
const MOST_BUFFERED: usize = 16 * 1024;
/// Capacity for a body that contains one client.
const USUAL_BODY: usize = 64 * 1024;
