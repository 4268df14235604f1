//! Reads a client's first message: SOCKS5, SOCKS4 and 4a, HTTP CONNECT and plain HTTP requests. The first byte tells
//! them apart.
//!
//! | first byte | protocol | module |
//! | --- | --- | --- |
//! | 5 | SOCKS5 (RFC 1928), no authentication | [`socks5`] |
//! | 4 | SOCKS4 and 4a | `socks4` |
//! | a letter | HTTP/1 (RFC 9112): CONNECT or an absolute-form request | `http` |
//! | 22 | TLS, which the proxy does not support: refused with a TLS alert | here |
//! | any other | refused with an HTTP error that names the supported protocols | here |
//!
//! A [`Handshake`] gets bytes and returns the next [`Step`]; it reads no socket and no clock. It buffers at most
//! [`MAX_HEAD_BYTES`] plus one read. Bytes after the request belong to the connection and are passed on as
//! [`Request::rest`]. The protocol determines the reply on a later success or failure: [`Protocol::success`],
//! [`Protocol::failure`].

mod http;
mod socks4;
pub mod socks5;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use crate::{
    http::{Body, fields},
    target::Target,
};

/// Protocol of the client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP `CONNECT host:port`.
    HttpConnect,
    /// A plain HTTP request with an absolute URL.
    HttpRequest,
    /// SOCKS4, or 4a if a name was given.
    Socks4,
    /// SOCKS5.
    Socks5,
    /// The request came from another host that runs pleach, over several links.
    Striped,
    /// No protocol: the kernel redirected the connection here.
    Transparent,
}

/// Service that the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A TCP connection.
    Connect,
    /// A relay for UDP datagrams.
    UdpAssociate,
}

/// A complete request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Protocol of the request.
    pub protocol: Protocol,
    /// Requested service.
    pub command: Command,
    /// Requested destination; with [`Command::UdpAssociate`] a placeholder.
    pub target: Target,
    /// First bytes for the server: the rewritten head of a plain HTTP request, otherwise empty.
    pub head: Vec<u8>,
    /// Whether this is a plain HTTP request after which the client connection ends.
    pub is_last: bool,
    /// Whether this is a plain HTTP request whose authentication applies to the whole connection to the server.
    pub is_bound: bool,
    /// Body of the request: how many of the client's next bytes belong to this request.
    pub body: Body,
    /// Bytes that the client had already sent after the request.
    pub rest: Vec<u8>,
}

impl Request {
    /// Returns a request whose connection carries all further bytes to `target`.
    #[must_use]
    pub fn tunnel(protocol: Protocol, target: Target) -> Self {
        Self {
            protocol,
            command: Command::Connect,
            target,
            head: Vec::new(),
            is_last: true,
            is_bound: false,
            body: Body::Tunnel,
            rest: Vec::new(),
        }
    }

    /// Rewrites a plain HTTP request so that it asks the server to close the connection after its answer.
    pub fn ask_for_the_end(&mut self) {
        // The field goes before the empty line that ends the head.
        if self.protocol == Protocol::HttpRequest {
            self.head.truncate(self.head.len().saturating_sub(2));
            fields::push(&mut self.head, "Connection", b"close");
            self.head.extend_from_slice(b"\r\n");
        }
        self.is_last = true;
    }

    /// Whether the request's method is HEAD, so that the answer has no body.
    #[must_use]
    pub fn asks_for_head(&self) -> bool {
        self.head.starts_with(b"HEAD ")
    }
}

/// A refused request: the reply before closing, and the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The last bytes for the client; may be empty.
    pub reply: Vec<u8>,
    /// Reason, in one line.
    pub reason: String,
}

/// What the caller has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more bytes from the client.
    More,
    /// Send this reply, then ask for the next step again.
    Reply(Vec<u8>),
    /// Serve this request; the handshake is over.
    Request(Box<Request>),
    /// Send the reply and close; the handshake is over.
    Refuse(Refusal),
}

/// Why a complete request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Any other reason.
    General,
    /// The name has no address, or the host cannot be reached.
    HostUnreachable,
    /// No link leads to the host at present.
    NetworkUnreachable,
    /// A rule forbids the connection.
    NotAllowed,
    /// The host refused the connection.
    Refused,
    /// The host did not answer in time.
    TimedOut,
}

/// Parses the first message of one client.
#[derive(Debug, Default)]
pub struct Handshake {
    buffer: Vec<u8>,
    /// HTTP: number of bytes that were searched for the end of the head.
    searched: usize,
    /// SOCKS5: whether the authentication method has been negotiated.
    is_greeted: bool,
}

impl Handshake {
    /// Creates a handshake without any input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes from the client. After each call, call [`Self::next_step`] until it returns [`Step::More`] or the
    /// handshake is over.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether no bytes are buffered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the next step that the bytes so far require.
    pub fn next_step(&mut self) -> Step {
        let Some(first) = self.buffer.first() else {
            return Step::More;
        };
        let step = match first {
            5 if self.is_greeted => socks5::request(&mut self.buffer),
            5 => socks5::greeting(&mut self.buffer, &mut self.is_greeted),
            4 => socks4::request(&mut self.buffer),
            b'A'..=b'Z' | b'a'..=b'z' => http::request(&mut self.buffer, &mut self.searched),
            0x16 => Step::Refuse(Refusal {
                reply: TLS_ALERT.to_vec(),
                reason: "TLS to the proxy itself: use socks5:// or http:// as the proxy's scheme"
                    .to_owned(),
            }),
            other => Step::Refuse(Refusal {
                reply: http::error_page(
                    "400 Bad Request",
                    "this port speaks SOCKS5, SOCKS4a and HTTP proxying",
                ),
                reason: format!("first byte 0x{other:02x} belongs to no protocol spoken here"),
            }),
        };
        if step == Step::More && self.buffer.len() >= MAX_HEAD_BYTES {
            return Step::Refuse(http::too_long());
        }
        step
    }

    /// Returns the refusal for a client that did not complete its request in time.
    #[must_use]
    pub fn timed_out(&self) -> Refusal {
        let is_http = self.buffer.first().is_some_and(u8::is_ascii_alphabetic);
        Refusal {
            reply: if is_http {
                http::error_page("408 Request Timeout", "the request did not arrive in time")
            } else {
                Vec::new()
            },
            reason: "no complete request in time".to_owned(),
        }
    }
}

impl Protocol {
    /// Returns the reply to the client once the server is connected. `bound` is the local address of the connection
    /// to the server.
    #[must_use]
    pub fn success(self, bound: SocketAddr) -> Vec<u8> {
        match self {
            Self::HttpConnect => b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec(),
            Self::Socks4 => socks4::reply(true).to_vec(),
            Self::Socks5 => socks5::reply(socks5::SUCCEEDED, bound),
            Self::HttpRequest | Self::Striped | Self::Transparent => Vec::new(),
        }
    }

    /// Returns the reply to the client if the server cannot be reached. `text` gives the reason, for protocols that
    /// can carry it.
    #[must_use]
    pub fn failure(self, failure: Failure, text: &str) -> Vec<u8> {
        match self {
            Self::HttpConnect | Self::HttpRequest => {
                http::error_page(http::status_of(failure), text)
            }
            Self::Socks4 => socks4::reply(false).to_vec(),
            Self::Socks5 => socks5::reply(socks5::code_of(failure), socks5::NOWHERE),
            Self::Striped | Self::Transparent => Vec::new(),
        }
    }

    /// Returns the protocol's name for the status and the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HttpConnect => "http-connect",
            Self::HttpRequest => "http",
            Self::Socks4 => "socks4",
            Self::Socks5 => "socks5",
            Self::Striped => "striped",
            Self::Transparent => "transparent",
        }
    }
}

/// Returns a refusal with `reply` and `reason`.
fn refuse(reply: Vec<u8>, reason: impl Into<String>) -> Step {
    let reason = reason.into();
    Step::Refuse(Refusal { reply, reason })
}

/// Maximum length of a request's head in bytes.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// Fatal TLS alert `handshake_failure` (RFC 8446, 6.2), so that a TLS client reports more than "connection closed".
const TLS_ALERT: [u8; 7] = [0x15, 3, 1, 0, 2, 2, 40];
