//! Why a link is not carried over TCP, in words for its owner.

use std::io;

use thiserror::Error;

/// What kept a connection from being made, or ended it.
#[derive(Debug, Error)]
pub enum CarrierError {
    /// The other end closed it.
    #[error("the other end closed the connection")]
    Closed,
    /// No TCP connection.
    #[error("no TCP connection to {to}: {error}")]
    Connect {
        /// Where to.
        to: String,
        /// Why.
        error: io::Error,
    },
    /// A certificate that is not the gateway's.
    #[error(
        "TLS is intercepted on this link: the certificate is not the gateway's (its SHA-256: {0}); use another link, or set [carrier] certificate or ca_file if a web server of yours is in front of the gateway"
    )]
    Intercepted(String),
    /// No address of the gateway can be reached.
    #[error("no address of the gateway for this link's address family")]
    NoEndpoint,
    /// The HTTP server is no pleach gateway.
    #[error(
        "HTTP status {0} instead of the gateway's answer: another server has this port, the web server in front does not pass WebSockets on, or the gateway has another key"
    )]
    NotTheGateway(u16),
    /// It answered, but not as who has the gateway's key.
    #[error(
        "the other end of TLS does not have the gateway's key: TLS is intercepted on this link, or the public key in [gateway] is wrong"
    )]
    NoProof,
    /// The HTTP proxy's answer.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// It took too long.
    #[error("no answer in time: {0}")]
    Timeout(&'static str),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The messages are not as they should be.
    #[error("WebSocket: {0}")]
    WebSocket(String),
}

/// What an HTTP proxy answered to `CONNECT`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProxyError {
    /// It wants a password.
    #[error(
        "the HTTP proxy asks for a password: set http_proxy_user and http_proxy_password_file of the link"
    )]
    NeedsPassword,
    /// No answer of HTTP.
    #[error("the HTTP proxy's answer is not HTTP: check the address in http_proxy")]
    Nonsense,
    /// It does not connect.
    #[error("the HTTP proxy refuses to connect to {to}: status {status}")]
    Refused {
        /// Where to.
        to: String,
        /// Status of HTTP.
        status: u16,
    },
    /// It does not take the password.
    #[error(
        "the HTTP proxy does not take the user and password of http_proxy_user and http_proxy_password_file"
    )]
    WrongPassword,
}

impl CarrierError {
    /// A word for programs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Connect { .. } => "unreachable",
            Self::Intercepted(_) | Self::NoProof => "intercepted",
            Self::NoEndpoint => "no-endpoint",
            Self::NotTheGateway(_) => "not-the-gateway",
            Self::Proxy(ProxyError::NeedsPassword | ProxyError::WrongPassword) => "proxy-password",
            Self::Proxy(ProxyError::Nonsense | ProxyError::Refused { .. }) => "proxy-refused",
            Self::Timeout(_) => "timeout",
            Self::Tls(_) => "tls",
            Self::WebSocket(_) => "websocket",
        }
    }
}
