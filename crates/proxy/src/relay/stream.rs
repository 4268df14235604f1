//! Plain mode: relays between a client's TCP connection and a TCP connection to the server over one link.
//!
//! A relay has two phases. It is *opening* until the first byte from the server. In this phase, up to [`MAX_REPLAY`]
//! bytes of the client's data are stored. If the link fails, the connection is reset, or the server acknowledges
//! nothing, then the connection is made again over another link and the stored data is sent again, provided that
//! sending it twice does no harm ([`may_replay`]). After the first byte from the server, both directions move in the
//! kernel ([`super::pipe`]). The end of one direction is passed on as the end of that direction. A broken connection is
//! passed on as a reset, so that neither side mistakes a part of the data for the whole.
//!
//! For a plain HTTP request, only one answer is relayed ([`super::answer`]). Afterwards, the connections to the client
//! and to the server can serve another request.

use std::{cell::Cell, io, net::IpAddr, pin::pin, rc::Rc, time::Duration};

use pleach_core::units::Bytes;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use super::{
    answer::{self, Kept},
    meter::{self, DownMeter, UpMeter, stopped},
    parts::Again,
    pipe::{self, Meter as _},
};
use crate::{
    daemon::{
        connect,
        hub::Hub,
        live::{Live, Stop},
        windows,
    },
    handshake::{Failure, Protocol, Request},
    http::{Body, answer::Asked, ranges},
    placer::Why,
    sched::{LinkId, Policy},
};

/// A request that is being served, with the state that is needed to serve it over another link.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) live: Rc<Live>,
    pub(crate) addresses: Vec<IpAddr>,
    /// Links that were not tried yet, best first.
    pub(crate) links: Vec<LinkId>,
    /// Links over which connecting failed.
    pub(crate) failed: Vec<LinkId>,
    /// Number of bytes that a reused connection has received for earlier requests. The server may have closed the
    /// connection in the meantime. `None` if the connection is new.
    pub(crate) reused: Option<Bytes>,
    /// Whether parts of the answer may be requested from the server over additional connections.
    pub(crate) may_split: bool,
}

/// Connections that can be used again after a plain HTTP request was answered.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Bytes of the next request that the client has already sent. `None` if the client cannot send another request.
    pub(crate) ahead: Option<Vec<u8>>,
    /// Connection to a server that waits for another request, and the number of bytes that it had received before this
    /// request.
    pub(crate) upstream: Option<(Rc<TcpStream>, Bytes)>,
}

/// Serves `client` over `upstream` until both directions have ended, or until its plain HTTP request is answered.
///
/// # Errors
/// The error that broke the connection. Both connections are reset in this case.
pub(crate) async fn relay(
    hub: &Hub,
    client: &TcpStream,
    upstream: Rc<TcpStream>,
    session: Session,
    request: Request,
) -> io::Result<Left> {
    let live = Rc::clone(&session.live);
    let is_request = request.protocol == Protocol::HttpRequest;
    let asked = Asked {
        for_head: request.asks_for_head(),
        is_last: request.is_last,
        is_partial: false,
    };
    // Answers are fetched in parts only with the scheduler `max-throughput`. The other schedulers distribute exactly
    // the connections that clients make.
    let may_ask_again = hub.settings.ranges
        && hub.placer.borrow().policy() == Policy::MaxThroughput
        && session.may_split
        && !request.is_last
        && matches!(live.why.get(), Some(Why::Scheduler(_)))
        && !(hub.settings.placer.stickiness).holds(live.purpose.target.port)
        && ranges::asks_for_all(&request.head);
    let again = may_ask_again.then(|| Again {
        head: request.head.clone(),
        addresses: session.addresses.clone(),
    });
    let mut opening = Opening {
        hub,
        client,
        upstream,
        session,
        protocol: request.protocol,
        body: request.body,
        is_closed: false,
        sent: request.head,
        written: 0,
        is_shut: false,
        is_told: false,
    };
    let ahead = opening.add(&request.rest)?;
    windows::join_link(hub, &live, &opening.upstream);
    live.upstream.replace(Some(Rc::clone(&opening.upstream)));
    let opened = opening.run().await;
    let Opening {
        upstream,
        session,
        sent,
        written,
        body,
        is_closed,
        is_shut,
        is_told,
        ..
    } = opening;
    live.is_opening.set(false);
    let outcome = match opened {
        Ok(()) => {
            let said = Said {
                sent,
                written,
                body,
                is_closed,
                is_shut,
            };
            let asked = is_request.then_some((asked, again.as_ref()));
            exchange(hub, client, &upstream, &live, (said, ahead), asked)
                .await
                .map(|(kept, ahead)| Left {
                    ahead: kept.filter(|kept| kept.client).map(|_| ahead),
                    upstream: kept
                        .filter(|kept| kept.server)
                        .map(|_| (Rc::clone(&upstream), session.reused.unwrap_or(Bytes::ZERO))),
                })
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        // If a socket option cannot be set, the socket is closed without a reset.
        let reset = |stream: &TcpStream| {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        reset(&upstream);
        if !is_told {
            reset(client);
        }
    }
    if is_told {
        // The client gets the error page, which a reset could discard.
        return Ok(Left::default());
    }
    outcome
}

/// State of the client's data when the opening phase ends.
struct Said {
    /// All data for the server from the beginning, and how many bytes of it were written to the server's socket.
    sent: Vec<u8>,
    written: usize,
    /// Part of the request's body that is still missing.
    body: Body,
    /// `is_closed`: the client has ended its direction. `is_shut`: this end was passed on to the server.
    is_closed: bool,
    is_shut: bool,
}

/// Relays both directions of an open connection until they end. `asked` describes a plain HTTP request and how it can
/// be repeated. Returns which connections can be used again after a request, and the bytes that the client has sent of
/// the next request.
async fn exchange(
    hub: &Hub,
    client: &TcpStream,
    upstream: &TcpStream,
    live: &Live,
    (said, mut ahead): (Said, Vec<u8>),
    asked: Option<(Asked, Option<&Again>)>,
) -> io::Result<(Option<Kept>, Vec<u8>)> {
    if let Some(link) = live.link.get() {
        hub.placer.borrow_mut().trust(link);
    }
    let up = UpMeter(live);
    let is_deaf = Cell::new(false);
    let upward = async {
        if said.written < said.sent.len() {
            let all = pipe::write_all(upstream, &said.sent[said.written..], &up);
            all.await.inspect_err(|_| is_deaf.set(asked.is_some()))?;
        }
        drop(said.sent);
        if said.is_closed {
            if !said.is_shut {
                pipe::finish(upstream)?;
            }
        } else if asked.is_some() {
            let more = send_body(hub, client, upstream, said.body, live, &is_deaf);
            ahead.extend(more.await?);
        } else {
            pipe::pump(&hub.buffers.pipes, client, upstream, &up).await?;
        }
        live.is_half_closed.set(true);
        Ok(())
    };
    let downward = async {
        let down = DownMeter(live);
        let kept = if let Some((asked, again)) = asked {
            Some(answer::pass(hub, upstream, client, asked, again, live).await?)
        } else {
            pipe::pump(&hub.buffers.pipes, upstream, client, &down).await?;
            None
        };
        live.is_half_closed.set(true);
        Ok(kept)
    };
    let both = both(upward, downward, &is_deaf);
    let kept = tokio::select! {
        outcome = both => outcome,
        () = live.stopped() => Err(stopped(live)),
    }?;
    Ok((kept, ahead))
}

/// Runs both directions until they end. A server that has answered a request may stop reading the request. `is_deaf`
/// says that it has stopped. Returns which connections can be used again after a request, if both directions succeeded.
async fn both(
    upward: impl Future<Output = io::Result<()>>,
    downward: impl Future<Output = io::Result<Option<Kept>>>,
    is_deaf: &Cell<bool>,
) -> io::Result<Option<Kept>> {
    let (mut upward, mut downward) = (pin!(upward), pin!(downward));
    tokio::select! {
        biased;
        outcome = &mut upward => match outcome {
            Ok(()) => downward.await,
            Err(error) if !is_deaf.get() => Err(error),
            // An answer that is delimited by the end of the connection may be incomplete.
            Err(error) => match downward.await {
                Ok(Some(kept)) if kept.is_whole => Ok(None),
                Ok(_) | Err(_) => Err(error),
            },
        },
        outcome = &mut downward => match outcome? {
            Some(kept) if kept.has_enough => Ok(Some(kept)),
            Some(kept) => Ok(upward.await.is_ok().then_some(kept)),
            None => upward.await.map(|()| None),
        }
    }
}

/// A connection over which the server has sent nothing yet.
struct Opening<'a> {
    hub: &'a Hub,
    client: &'a TcpStream,
    upstream: Rc<TcpStream>,
    session: Session,
    protocol: Protocol,
    body: Body,
    /// Whether the client has ended its direction.
    is_closed: bool,
    /// All data for the server from the beginning, and how many bytes of it were written to the server's socket.
    sent: Vec<u8>,
    written: usize,
    /// Whether the end of the client's data was passed on to the server.
    is_shut: bool,
    /// Whether the client has got an error page, which a reset would discard.
    is_told: bool,
}

/// Event of a connection in the opening phase.
enum Event {
    ClientReadable,
    UpstreamReadable,
    UpstreamWritable,
    Stopped,
}

impl Opening<'_> {
    /// Runs until the server's first byte or end arrives, or until `MAX_REPLAY` bytes are stored.
    async fn run(&mut self) -> io::Result<()> {
        while self.sent.len() < MAX_REPLAY {
            let live = &self.session.live;
            let has_room = !self.is_closed && !self.body.is_done();
            let has_more = self.written < self.sent.len() || self.is_closed && !self.is_shut;
            let event = tokio::select! {
                () = live.stopped() => Ok(Event::Stopped),
                ready = self.upstream.readable() => ready.map(|()| Event::UpstreamReadable),
                ready = self.upstream.writable(), if has_more => ready.map(|()| Event::UpstreamWritable),
                ready = self.client.readable(), if has_room => ready.map(|()| Event::ClientReadable),
            };
            let outcome = match event? {
                // Errors of the client are unrelated to the link, so no other link is tried.
                Event::ClientReadable => Ok(self.read_client()?),
                Event::UpstreamReadable => match self.peek_upstream() {
                    Ok(Some(0)) if self.session.reused.is_some() => Err(hung_up()),
                    // The server sent data before the request, so the data is not an answer to it.
                    Ok(Some(_)) if self.session.reused.is_some() && self.written == 0 => {
                        Err(hung_up())
                    }
                    Ok(Some(0)) if self.protocol == Protocol::HttpRequest => {
                        let error = io::Error::other("the server closed without an answer");
                        self.tell(Failure::General, &error).await?;
                        return Err(error);
                    }
                    Ok(Some(_)) => return Ok(()),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                },
                Event::UpstreamWritable => self.write_upstream(),
                Event::Stopped if live.stop_reason.get() == Some(Stop::Idle) => {
                    return Err(stopped(live));
                }
                Event::Stopped => Err(stopped(live)),
            };
            if let Err(error) = outcome {
                self.try_another_link(error).await?;
            }
        }
        Ok(())
    }

    fn read_client(&mut self) -> io::Result<()> {
        let mut scratch = self.hub.buffers.scratch.borrow_mut();
        let room = (MAX_REPLAY - self.sent.len()).min(scratch.len());
        let limit = if self.body == Body::Tunnel {
            room
        } else {
            // Data that is not for this server stays in the socket.
            let peek = || Ok(recv(self.client, &mut scratch[..room], RecvFlags::PEEK)?.0);
            match self.client.try_io(Interest::READABLE, peek) {
                Ok(0) => 1,
                Ok(len) => self.body.take(&scratch[..len]).map_err(io::Error::other)?,
                Err(error) if pipe::is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        };
        match self.client.try_read(&mut scratch[..limit]) {
            Ok(0) => {
                if self.body != Body::Tunnel {
                    return Err(io::Error::other("the client left within its request"));
                }
                self.is_closed = true;
            }
            Ok(len) => self.sent.extend_from_slice(&scratch[..len]),
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds the data that the client sent together with its request. Returns the bytes that do not belong to the
    /// request.
    fn add(&mut self, rest: &[u8]) -> io::Result<Vec<u8>> {
        let len = self.body.take(rest).map_err(io::Error::other)?;
        self.sent.extend_from_slice(&rest[..len]);
        self.session.live.is_ahead.set(len < rest.len());
        Ok(rest[len..].to_vec())
    }

    /// Returns `Some(0)` if the server has ended its direction, `Some(1)` if data has arrived, and `None` otherwise.
    fn peek_upstream(&self) -> io::Result<Option<usize>> {
        let peek = || Ok(recv(&*self.upstream, &mut [0; 1], RecvFlags::PEEK)?.0);
        match self.upstream.try_io(Interest::READABLE, peek) {
            Ok(len) => Ok(Some(len)),
            Err(error) if pipe::is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the client of a plain HTTP request an error page that says why there is no answer.
    async fn tell(&mut self, failure: Failure, error: &io::Error) -> io::Result<()> {
        if self.protocol != Protocol::HttpRequest {
            return Ok(());
        }
        let live = &self.session.live;
        tracing::debug!(target = %live.purpose.target, %error, "not served");
        let text = format!("{}: {error}", live.purpose.target);
        let page = self.protocol.failure(failure, &text);
        pipe::write_all(self.client, &page, &DownMeter(live)).await?;
        self.is_told = true;
        pipe::finish(self.client)
    }

    fn write_upstream(&mut self) -> io::Result<()> {
        if self.written < self.sent.len() {
            match self.upstream.try_write(&self.sent[self.written..]) {
                Ok(len) => {
                    self.written += len;
                    UpMeter(&self.session.live).moved(len as u64);
                }
                Err(error) if pipe::is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.sent.len() && self.is_closed && !self.is_shut {
            pipe::finish(&self.upstream)?;
            self.is_shut = true;
        }
        Ok(())
    }

    /// Connects again over the links that were not tried yet, and sends the client's data from the beginning.
    async fn try_another_link(&mut self, error: io::Error) -> io::Result<()> {
        let live = Rc::clone(&self.session.live);
        let is_reused = self.session.reused.take().is_some();
        // A reused connection can be replaced by a new one even without further links.
        let has_more = is_reused || !self.session.links.is_empty();
        let is_harmless = self.written == 0 || may_replay(&self.sent);
        if !has_more || !is_harmless {
            self.tell(Failure::General, &error).await?;
            return Err(error);
        }
        // Later events of the old link or its connection must not affect the new connection.
        live.upstream.take();
        let before = live.link.take();
        let mut links = std::mem::take(&mut self.session.links);
        if !is_reused {
            self.session.failed.extend(before);
        } else if !is_hanging_up(&error) {
            // The cause may be the link, or a middlebox on the path that has dropped the state of the connection.
            links.retain(|link| Some(*link) != before);
            links.extend(before);
        }
        let port = live.purpose.target.port;
        let opened = connect::open(self.hub, &links, &self.session.addresses, port).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(other) => {
                let error = io::Error::other(format!("{error}; then {}", other.text));
                self.tell(other.failure, &error).await?;
                return Err(error);
            }
        };
        tracing::debug!(target = %live.purpose.target, %error, "tried again over another link");
        self.session.failed.extend(opened.failed);
        let failed = &self.session.failed;
        self.session.links = links
            .into_iter()
            .filter(|link| Some(*link) != opened.link && !failed.contains(link))
            .collect();
        if let Some(link) = opened.link {
            self.hub.moved(&live, link, failed);
        }
        self.upstream = Rc::new(opened.stream);
        self.written = 0;
        self.is_shut = false;
        windows::join_link(self.hub, &live, &self.upstream);
        live.upstream.replace(Some(Rc::clone(&self.upstream)));
        Ok(())
    }
}

/// Relays the rest of a request's body. Returns the bytes that were read beyond the body. Sets `is_deaf` if the server
/// no longer reads.
async fn send_body(
    hub: &Hub,
    client: &TcpStream,
    upstream: &TcpStream,
    mut body: Body,
    live: &Live,
    is_deaf: &Cell<bool>,
) -> io::Result<Vec<u8>> {
    let mut ahead = Vec::new();
    while !body.is_done() {
        let mut came = Vec::new();
        if meter::read(hub, client, &mut came).await? == 0 {
            return Err(io::Error::other("the client left within its request"));
        }
        let taken = body.take(&came).map_err(io::Error::other)?;
        live.is_ahead.set(taken < came.len());
        ahead.extend_from_slice(&came[taken..]);
        let up = UpMeter(live);
        let all = pipe::write_all(upstream, &came[..taken], &up);
        all.await.inspect_err(|_| is_deaf.set(true))?;
    }
    Ok(ahead)
}

/// Whether `sent` may be sent to a server twice. This is the case if it is empty, the beginning of a TLS handshake, or
/// an HTTP request with a safe method (RFC 9110, 9.2.1).
pub(crate) fn may_replay(sent: &[u8]) -> bool {
    let beginnings: [&[u8]; 4] = [b"\x16\x03", b"GET ", b"HEAD ", b"OPTIONS "];
    sent.is_empty() || beginnings.iter().any(|begin| sent.starts_with(begin))
}

fn hung_up() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server ended a connection it had kept",
    )
}

fn is_hanging_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Maximum number of bytes of the client's data that are stored for sending them again.
const MAX_REPLAY: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_no_harm_is_said_twice() {
        assert!(may_replay(b"") && may_replay(b"GET / HTTP/1.1") && may_replay(b"\x16\x03\x01"));
        assert!(!may_replay(b"POST / HTTP/1.1") && !may_replay(b"SSH-2.0"));
    }
}
