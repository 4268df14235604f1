//! Plain mode: a TCP connection of a client joined to one of a server, on one link.
//!
//! Two phases. While it is *opening*, nothing has come back from the server: what the client sends is kept
//! ([`MAX_REPLAY`]), so that the connection can be made again over another link if its own dies, is reset, or
//! acknowledges nothing, and if saying it twice does no harm ([`may_replay`]). From the first byte back on, both
//! directions move in the kernel ([`super::pipe`]), each until its end; a half that ends is passed on as such. What
//! breaks is passed on as a reset, so that nobody takes a part for the whole.

use std::{io, rc::Rc, time::Duration};

use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use super::{
    http,
    pipe::{self, Meter},
};
use crate::{
    daemon::{
        client::{self, Session},
        connect,
        hub::{Hub, Live, Stop},
    },
    handshake::{Body, Failure, Protocol, Request},
};

/// Serves `client` over `upstream` until both directions have ended.
///
/// # Errors
/// What broke the connection; both ends are reset then.
pub(crate) async fn relay(
    hub: &Hub,
    client: &TcpStream,
    upstream: Rc<TcpStream>,
    session: Session,
    request: Request,
) -> io::Result<()> {
    let live = Rc::clone(&session.live);
    let mut opening = Opening::new(hub, client, upstream, session, request);
    let outcome = match opening.run().await {
        Ok(()) => {
            live.is_opening.set(false);
            let rest = opening.take_rest();
            let upward = async {
                let up = UpMeter(&live);
                pipe::write_all(&opening.upstream, &rest, &up).await?;
                drop(rest);
                if !opening.is_closed {
                    pipe::pump(&hub.pipes, client, &opening.upstream, &up).await?;
                } else if !opening.is_shut {
                    pipe::finish(&opening.upstream)?;
                }
                live.is_half_closed.set(true);
                Ok(())
            };
            let downward = async {
                let down = DownMeter(&live);
                pipe::pump(&hub.pipes, &opening.upstream, client, &down).await?;
                live.is_half_closed.set(true);
                Ok(())
            };
            let both = async { tokio::try_join!(upward, downward).map(drop) };
            tokio::select! {
                outcome = both => outcome,
                () = live.stopped() => Err(stopped(&live)),
            }
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        opening.reset();
    }
    outcome
}

/// A connection on which nothing has come back.
pub(super) struct Opening<'a> {
    hub: &'a Hub,
    client: &'a TcpStream,
    pub(super) upstream: Rc<TcpStream>,
    session: Session,
    protocol: Protocol,
    /// What the client has still to say.
    pub(super) body: Body,
    /// What the client had said beyond that.
    pub(super) beyond: Vec<u8>,
    /// What is wrong with what it said.
    fault: Option<io::Error>,
    /// The client has said its last.
    is_closed: bool,
    /// All that the server is to get, from the beginning, and how much of it it got.
    sent: Vec<u8>,
    written: usize,
    /// The server was told that nothing more comes.
    is_shut: bool,
    /// The client has got an error page, which a reset would spoil.
    pub(super) is_told: bool,
}

/// What happened while it was opening.
enum Event {
    ClientReadable,
    UpstreamReadable,
    UpstreamWritable,
    Stopped,
}

impl<'a> Opening<'a> {
    /// One over `upstream` on which nothing was said yet.
    pub(super) fn new(
        hub: &'a Hub,
        client: &'a TcpStream,
        upstream: Rc<TcpStream>,
        session: Session,
        request: Request,
    ) -> Self {
        let live = &session.live;
        live.upstream.replace(Some(Rc::clone(&upstream)));
        let (mut sent, mut body, mut rest) = (request.head, request.body, request.rest);
        let (len, fault) = match body.take(&rest) {
            Ok(len) => (len, None),
            Err(error) => (0, Some(io::Error::other(error))),
        };
        let beyond = rest.split_off(len);
        sent.append(&mut rest);
        Self {
            hub,
            client,
            upstream,
            session,
            protocol: request.protocol,
            body,
            beyond,
            fault,
            is_closed: false,
            sent,
            written: 0,
            is_shut: false,
            is_told: false,
        }
    }

    /// Runs until the server's first byte or end has come, or more was sent than is kept.
    ///
    /// # Errors
    /// No link leads on; the client of a plain request was told why.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        self.open().await?;
        if let Some(link) = self.session.live.link.get() {
            self.hub.placer.borrow_mut().trust(link);
        }
        Ok(())
    }

    /// What was kept and not sent yet.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.sent.split_off(self.written);
        self.sent = Vec::new();
        rest
    }

    /// Lets both ends see that the connection broke.
    pub(super) fn reset(&self) {
        // A socket that refuses is closed plainly.
        let reset = |stream: &TcpStream| {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        reset(&self.upstream);
        if !self.is_told {
            reset(self.client);
        }
    }

    async fn open(&mut self) -> io::Result<()> {
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
                // What the client does wrong is no matter of links.
                Event::ClientReadable => Ok(self.read_client()?),
                Event::UpstreamReadable => match self.peek_upstream() {
                    Ok(Some(0)) if self.session.is_reused => {
                        Err(io::Error::other("the server had closed the connection"))
                    }
                    Ok(Some(0)) if self.protocol == Protocol::HttpRequest => {
                        let error = io::Error::other("the server closed without an answer");
                        self.tell(&error).await?;
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
        let mut scratch = self.hub.scratch.borrow_mut();
        let room = (MAX_REPLAY - self.sent.len()).min(scratch.len());
        if self.body != Body::Tunnel {
            let piece = http::read_piece(self.client, &mut self.body, &mut scratch[..room])?;
            self.sent.extend_from_slice(piece);
            return Ok(());
        }
        match self.client.try_read(&mut scratch[..room]) {
            Ok(0) => self.is_closed = true,
            Ok(len) => self.sent.extend_from_slice(&scratch[..len]),
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether something came back; no bytes are the end.
    fn peek_upstream(&self) -> io::Result<Option<usize>> {
        let peek = || Ok(recv(&*self.upstream, &mut [0; 1], RecvFlags::PEEK)?.0);
        match self.upstream.try_io(Interest::READABLE, peek) {
            Ok(len) => Ok(Some(len)),
            Err(error) if pipe::is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the client of a plain HTTP request why there is no answer.
    pub(super) async fn tell(&mut self, error: &io::Error) -> io::Result<()> {
        let live = &self.session.live;
        let text = format!("{}: {error}", live.purpose.target);
        let page = self.protocol.failure(Failure::General, &text);
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

    /// Connects anew over the links that were not tried yet, and begins again there.
    async fn try_another_link(&mut self, error: io::Error) -> io::Result<()> {
        let live = Rc::clone(&self.session.live);
        // The connection was left from an earlier request, which says nothing of its link.
        let was_reused = std::mem::take(&mut self.session.is_reused);
        if !may_replay(&self.sent) || self.session.links.is_empty() && !was_reused {
            if self.protocol == Protocol::HttpRequest {
                self.tell(&error).await?;
            }
            return Err(error);
        }
        // Nothing that happens to the old link or its connection meanwhile is a matter of this one any more.
        live.upstream.take();
        let link = live.link.take();
        if was_reused {
            self.session.links.splice(0..0, link);
        } else {
            self.session.failed.extend(link);
        }
        let port = live.purpose.target.port;
        let links = std::mem::take(&mut self.session.links);
        let opened = connect::open(self.hub, &links, &self.session.addresses, port).await;
        let opened =
            opened.map_err(|other| io::Error::other(format!("{error}; then {}", other.text)))?;
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
        client::prepare(&opened.stream);
        self.upstream = Rc::new(opened.stream);
        self.written = 0;
        self.is_shut = false;
        live.upstream.replace(Some(Rc::clone(&self.upstream)));
        Ok(())
    }
}

/// Whether a server may get `sent` twice: nothing, the beginning of a TLS handshake, or an HTTP request that asks only
/// (RFC 9110, 9.2.1).
pub(crate) fn may_replay(sent: &[u8]) -> bool {
    let beginnings: [&[u8]; 4] = [b"\x16\x03", b"GET ", b"HEAD ", b"OPTIONS "];
    sent.is_empty() || beginnings.iter().any(|begin| sent.starts_with(begin))
}

pub(crate) fn stopped(live: &Live) -> io::Error {
    io::Error::other(live.stop_reason.get().map_or("stopped", Stop::text))
}

/// Counts bytes to the server.
pub(super) struct UpMeter<'a>(pub(super) &'a Live);

impl Meter for UpMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.up.set(self.0.up.get() + bytes);
    }

    // The server, or the link, is what upward estimates are about.
    fn held_up(&self, _is_held_up: bool) {}
}

/// Counts bytes from the server.
pub(super) struct DownMeter<'a>(pub(super) &'a Live);

impl Meter for DownMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.down.set(self.0.down.get() + bytes);
    }

    fn held_up(&self, is_held_up: bool) {
        self.0.is_held_up.set(is_held_up);
    }
}

/// What is kept of a client's words to say them again.
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
