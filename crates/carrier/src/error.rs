//! Reasons why a link is not carried over TCP, in words for its owner.

use std::io;

use thiserror::Error;

/// Reason why a connection could not be established, or why it ended.
#[derive(Debug, Error)]
pub enum CarrierError {
    /// The other end closed the connection.
    #[error("the other end closed the connection")]
    Closed,
    /// No TCP connection could be established.
    #[error("no TCP connection to {to}: {error}")]
    Connect {
        /// Address of the other end.
        to: String,
        /// Error of the system call.
        error: io::Error,
    },
    /// The certificate is not the gateway's.
    #[error(
        "TLS is intercepted on this link, or another web server has the address: the certificate is not the gateway's (its SHA-256: {0}); use another link, correct [carrier] endpoints, or set [carrier] certificate or ca_file if a web server of yours is in front of the gateway"
    )]
    Intercepted(String),
    /// No address of the gateway is reachable.
    #[error("no address of the gateway for this link's address family")]
    NoEndpoint,
    /// The HTTP server is not a pleach gateway.
    #[error(
        "HTTP status {0} instead of the gateway's answer: another server has this port, the web server in front does not pass WebSockets on, or the gateway has another key"
    )]
    NotTheGateway(u16),
    /// The server answered, but did not prove that it has the gateway's key.
    #[error(
        "the other end of TLS does not have the gateway's key: TLS is intercepted on this link, or the public key in [gateway] is wrong"
    )]
    NoProof,
    /// Error of the HTTP proxy.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// The time limit was exceeded.
    #[error("no answer in time: {0}")]
    Timeout(&'static str),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The WebSocket messages are invalid.
    #[error("WebSocket: {0}")]
    WebSocket(String),
}

/// Error of an HTTP proxy's answer to `CONNECT`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProxyError {
    /// The proxy requires a password.
    #[error(
        "the HTTP proxy asks for a password: set http_proxy_user and http_proxy_password_file of the link"
    )]
    NeedsPassword,
    /// The answer is not HTTP.
    #[error("the HTTP proxy's answer is not HTTP: check the address in http_proxy")]
    Nonsense,
    /// The proxy refuses to connect.
    #[error("the HTTP proxy refuses to connect to {to}: status {status}")]
    Refused {
        /// Address of the refused connection.
        to: String,
        /// HTTP status.
        status: u16,
    },
    /// The proxy does not accept the password.
    #[error(
        "the HTTP proxy does not take the user and password of http_proxy_user and http_proxy_password_file"
    )]
    WrongPassword,
}

impl CarrierError {
    /// Returns a word for programs.
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
