//! A connection to a service, by which one thread sends requests. Each request ends in bounded time, whatever the service
//! and the network do.

use core::{future::poll_fn, pin::Pin};
use std::{error::Error as _, io, sync::Arc, time::Duration};

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
    time::timeout,
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
            host,
        })
    }

    async fn connect(&self) -> Result<SendRequest<String>, Failure> {
        let stream = self.stream().await?;
        match &self.tls {
            Some((connector, name)) => open(connector.connect(name.clone(), stream).await?).await,
            None => open(stream).await,
        }
    }

    /// Connects to the first address of the host that answers.
    async fn stream(&self) -> Result<TcpStream, Failure> {
        let mut failure = None;
        for address in lookup_host((self.host.as_str(), self.port)).await? {
            match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => failure = Some(Failure::Io(error)),
                Err(_) => failure = Some(Failure::Silent),
            }
        }
        Err(failure.unwrap_or(Failure::Silent))
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

/// A connection, which is made when it is needed, and kept.
pub(super) struct Link {
    target: Arc<Target>,
    /// Drives the connection while a call waits. `None` until the first request, and while this value is dropped.
    runtime: Option<Runtime>,
    open: Option<SendRequest<String>>,
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
        let asked = runtime.block_on(async {
            timeout(ANSWER_WITHIN, ask(&self.target, used, resource, most)).await
        });
        self.runtime = Some(runtime);
        let (sender, reply) = asked
            .unwrap_or(Err(Failure::Silent))
            .map_err(|failure| failure.to_string())?;
        self.open = Some(sender);
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

/// Sends a request by the connection `used`, or by a new one if the service has closed that meanwhile.
async fn ask(
    target: &Target,
    used: Option<SendRequest<String>>,
    resource: &str,
    most: usize,
) -> Result<(SendRequest<String>, Reply), Failure> {
    if let Some(mut sender) = used
        && sender.ready().await.is_ok()
    {
        match exchange(&mut sender, target.request(resource)?, most).await {
            Ok(reply) => return Ok((sender, reply)),
            Err(Failure::Http(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut sender = target.connect().await?;
    let reply = exchange(&mut sender, target.request(resource)?, most).await?;
    Ok((sender, reply))
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
    #[error("it does not answer")]
    Silent,
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
/// Longest time for a connection to one address, so that a second address has its turn.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Most bytes of an answer that are read ahead; also the longest head.
const MOST_BUFFERED: usize = 16 * 1024;
/// Capacity for a body that contains one client.
const USUAL_BODY: usize = 64 * 1024;
