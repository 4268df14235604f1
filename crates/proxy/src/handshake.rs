//! What a client says first: SOCKS5, SOCKS4 and 4a, HTTP CONNECT and plain HTTP requests, told apart by the first byte.
//!
//! | first byte | taken as | module |
//! | --- | --- | --- |
//! | 5 | SOCKS5 (RFC 1928), no authentication | [`socks5`] |
//! | 4 | SOCKS4 and 4a | `socks4` |
//! | a letter | HTTP/1 (RFC 9112): CONNECT or an absolute-form request | `http` |
//! | 22 | TLS, which nobody speaks to this proxy: refused with a TLS alert | here |
//! | anything else | refused with an HTTP error that names what is spoken here | here |
//!
//! A [`Handshake`] is fed bytes and asked for the next [`Step`]; it reads no socket and no clock. It keeps at most
//! [`MAX_HEAD_BYTES`] plus one read. What follows the request belongs to the connection and is handed on as
//! [`Request::rest`]. The way a later success or failure is told depends on the protocol: [`Protocol::success`],
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

/// What the client speaks.
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
    /// Another pleach asked, over several links.
    Striped,
    /// Nothing: the kernel redirected the connection here.
    Transparent,
}

/// What the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A TCP connection.
    Connect,
    /// A relay for UDP datagrams.
    UdpAssociate,
}

/// A request understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How it was asked for.
    pub protocol: Protocol,
    /// What.
    pub command: Command,
    /// Where to; with [`Command::UdpAssociate`] a placeholder.
    pub target: Target,
    /// What the server is sent first: the rewritten head of a plain HTTP request, else nothing.
    pub head: Vec<u8>,
    /// A plain HTTP request after which the client connection ends.
    pub is_last: bool,
    /// A plain HTTP request that logs in the connection it is sent over.
    pub is_bound: bool,
    /// How much of what the client sends then is for this server.
    pub body: Body,
    /// What the client had sent beyond the request.
    pub rest: Vec<u8>,
}

impl Request {
    /// One for all that comes.
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

    /// Asks the server of a plain HTTP request to end the connection with its answer.
    pub fn ask_for_the_end(&mut self) {
        // The empty line comes behind it.
        if self.protocol == Protocol::HttpRequest {
            self.head.truncate(self.head.len().saturating_sub(2));
            fields::push(&mut self.head, "Connection", b"close");
            self.head.extend_from_slice(b"\r\n");
        }
        self.is_last = true;
    }

    /// Whether it is a HEAD request, whose answer has no body.
    #[must_use]
    pub fn asks_for_head(&self) -> bool {
        self.head.starts_with(b"HEAD ")
    }
}

/// A request refused: what to send before closing, and why, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The last bytes for the client; may be empty.
    pub reply: Vec<u8>,
    /// One line.
    pub reason: String,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more.
    More,
    /// Send this, then ask for the next step again.
    Reply(Vec<u8>),
    /// Serve this; the handshake is over.
    Request(Box<Request>),
    /// Send the reply and close; the handshake is over.
    Refuse(Refusal),
}

/// Why a request that was understood is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Something else.
    General,
    /// The host, or the name's resolution, gave nothing to connect to.
    HostUnreachable,
    /// No link leads there now.
    NetworkUnreachable,
    /// The rules here forbid it.
    NotAllowed,
    /// The host refused the connection.
    Refused,
    /// Nobody answered in time.
    TimedOut,
}

/// Reads one client's first words.
#[derive(Debug, Default)]
pub struct Handshake {
    buffer: Vec<u8>,
    /// HTTP: up to here there is no end of a head.
    searched: usize,
    /// SOCKS5: the choice of method is done.
    is_greeted: bool,
}

impl Handshake {
    /// A handshake of which nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what was read. After each call, take [`Self::next_step`] until it is [`Step::More`] or the end.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether nothing has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// What follows from all that has come.
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

    /// What to tell a client that was too slow.
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
    /// What the client is told once the server is reached. `bound`: this end of the connection to the server.
    #[must_use]
    pub fn success(self, bound: SocketAddr) -> Vec<u8> {
        match self {
            Self::HttpConnect => b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec(),
            Self::Socks4 => socks4::reply(true).to_vec(),
            Self::Socks5 => socks5::reply(socks5::SUCCEEDED, bound),
            Self::HttpRequest | Self::Striped | Self::Transparent => Vec::new(),
        }
    }

    /// What the client is told when the server is not reached; `text` says why, where the protocol has room for it.
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

    /// Its name in the status and the log.
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

/// The refusal `reply` because of `reason`.
fn refuse(reply: Vec<u8>, reason: impl Into<String>) -> Step {
    let reason = reason.into();
    Step::Refuse(Refusal { reply, reason })
}

/// Longest head of a request in bytes.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// Fatal alert `handshake_failure` (RFC 8446, 6.2), so that a TLS client says more than "connection closed".
const TLS_ALERT: [u8; 7] = [0x15, 3, 1, 0, 2, 2, 40];
