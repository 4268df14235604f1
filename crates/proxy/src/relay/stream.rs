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
use tokio::{io::Interest, net::TcpStream, time};

use super::pipe::{self, Meter};
use crate::{
    daemon::{
        client::Session,
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
    client: TcpStream,
    upstream: TcpStream,
    session: Session,
    request: Request,
) -> io::Result<()> {
    let live = Rc::clone(&session.live);
    let mut opening = Opening {
        hub,
        client: &client,
        upstream: Rc::new(upstream),
        session,
        protocol: request.protocol,
        body: request.body,
        is_closed: false,
        sent: request.head,
        written: 0,
        is_shut: false,
        is_told: false,
    };
    opening.add(&request.rest)?;
    hub.join_link(&live, &opening.upstream);
    live.upstream.replace(Some(Rc::clone(&opening.upstream)));
    let opened = opening.run().await;
    let Opening {
        upstream,
        sent,
        written,
        body,
        is_closed,
        is_shut,
        is_told,
        ..
    } = opening;
    live.is_opening.set(false);
    let is_request = body != Body::Tunnel;
    let outcome = match opened {
        Ok(()) => {
            if let Some(link) = live.link.get() {
                hub.placer.borrow_mut().trust(link);
            }
            let up = UpMeter(&live);
            let upward = async {
                if written < sent.len() {
                    pipe::write_all(&upstream, &sent[written..], &up).await?;
                }
                drop(sent);
                if is_closed {
                    if !is_shut {
                        pipe::finish(&upstream)?;
                    }
                } else if body == Body::Tunnel {
                    pipe::pump(&hub.pipes, &client, &upstream, &up).await?;
                } else {
                    send_body(hub, &client, &upstream, body, &live).await?;
                }
                live.is_half_closed.set(true);
                Ok(())
            };
            let downward = async {
                let down = DownMeter(&live);
                pipe::pump(&hub.pipes, &upstream, &client, &down).await?;
                live.is_half_closed.set(true);
                Ok(())
            };
            let both = async { tokio::try_join!(upward, downward).map(drop) };
            tokio::select! {
                outcome = both => outcome,
                () = live.stopped() => Err(stopped(&live)),
                () = another_request(&client, &live), if is_request => Ok(()),
            }
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        // A socket that refuses is closed plainly.
        let reset = |stream: &TcpStream| {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        };
        reset(&upstream);
        if !is_told {
            reset(&client);
        }
    }
    outcome
}

/// A connection on which nothing has come back.
struct Opening<'a> {
    hub: &'a Hub,
    client: &'a TcpStream,
    upstream: Rc<TcpStream>,
    session: Session,
    protocol: Protocol,
    body: Body,
    /// The client has said its last.
    is_closed: bool,
    /// All that the server is to get, from the beginning, and how much of it it got.
    sent: Vec<u8>,
    written: usize,
    /// The server was told that nothing more comes.
    is_shut: bool,
    /// The client has got an error page, which a reset would spoil.
    is_told: bool,
}

/// What happened while it was opening.
enum Event {
    ClientReadable,
    UpstreamReadable,
    UpstreamWritable,
    Stopped,
}

impl Opening<'_> {
    /// Runs until the server's first byte or end has come, or more was sent than is kept.
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
                // What the client does wrong is no matter of links.
                Event::ClientReadable => Ok(self.read_client()?),
                Event::UpstreamReadable => match self.peek_upstream() {
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
        let limit = if self.body == Body::Tunnel {
            room
        } else {
            // What is not for this server is left where it is.
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

    /// Adds what the client sent along with its request.
    fn add(&mut self, rest: &[u8]) -> io::Result<()> {
        let len = self.body.take(rest).map_err(io::Error::other)?;
        self.sent.extend_from_slice(&rest[..len]);
        self.session.live.is_ahead.set(len < rest.len());
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
    async fn tell(&mut self, error: &io::Error) -> io::Result<()> {
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
        if self.session.links.is_empty() || !may_replay(&self.sent) {
            if self.protocol == Protocol::HttpRequest {
                self.tell(&error).await?;
            }
            return Err(error);
        }
        // Nothing that happens to the old link or its connection meanwhile is a matter of this one any more.
        live.upstream.take();
        self.session.failed.extend(live.link.take());
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
        self.upstream = Rc::new(opened.stream);
        self.written = 0;
        self.is_shut = false;
        self.hub.join_link(&live, &self.upstream);
        live.upstream.replace(Some(Rc::clone(&self.upstream)));
        Ok(())
    }
}

/// Passes on the rest of a request's body; what follows it stays unread.
async fn send_body(
    hub: &Hub,
    client: &TcpStream,
    upstream: &TcpStream,
    mut body: Body,
    live: &Live,
) -> io::Result<()> {
    while !body.is_done() {
        client.readable().await?;
        let read = {
            let mut scratch = hub.scratch.borrow_mut();
            match client.try_read(&mut scratch) {
                Ok(0) => return Err(io::Error::other("the client left within its request")),
                Ok(len) => {
                    let taken = body.take(&scratch[..len]).map_err(io::Error::other)?;
                    live.is_ahead.set(taken < len);
                    Some(scratch[..taken].to_vec())
                }
                Err(error) if pipe::is_transient(&error) => None,
                Err(error) => return Err(error),
            }
        };
        if let Some(bytes) = read {
            pipe::write_all(upstream, &bytes, &UpMeter(live)).await?;
        }
    }
    Ok(())
}

/// Waits until the client of a plain request sends another one though nothing more comes back: then the server has
/// ignored that the connection ends after its answer, and only an end makes the client ask anew.
pub(super) async fn another_request(client: &TcpStream, live: &Live) {
    while !live.is_ahead.get() {
        if client.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
        let peek = || Ok(recv(client, &mut [0; 1], RecvFlags::PEEK)?.0);
        match client.try_io(Interest::READABLE, peek) {
            // While its one request is still coming, that is what there is to read.
            Ok(len) if len > 0 && live.is_half_closed.get() => live.is_ahead.set(true),
            Ok(len) if len > 0 => time::sleep(ANSWER_PAUSE).await,
            Err(error) if pipe::is_transient(&error) => {}
            // It says no more; whether its answer is complete, the server's end will tell.
            Ok(_) | Err(_) => std::future::pending().await,
        }
    }
    loop {
        let before = live.down.get();
        time::sleep(ANSWER_PAUSE).await;
        if before > 0 && live.down.get() == before {
            return;
        }
    }
}

/// Whether a server may get `sent` twice: nothing, the beginning of a TLS handshake, or an HTTP request that asks only
/// (RFC 9110, 9.2.1).
fn may_replay(sent: &[u8]) -> bool {
    let beginnings: [&[u8]; 4] = [b"\x16\x03", b"GET ", b"HEAD ", b"OPTIONS "];
    sent.is_empty() || beginnings.iter().any(|begin| sent.starts_with(begin))
}

pub(super) fn stopped(live: &Live) -> io::Error {
    io::Error::other(live.stop_reason.get().map_or("stopped", Stop::text))
}

/// Counts bytes to the server.
struct UpMeter<'a>(&'a Live);

impl Meter for UpMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.up.set(self.0.up.get() + bytes);
        let (questions, answered) = self.0.questions.get();
        if self.0.down.get() > answered {
            self.0.questions.set((questions + 1, self.0.down.get()));
        }
    }

    // The server, or the link, is what upward estimates are about.
    fn held_up(&self, _is_held_up: bool) {}
}

/// Counts bytes from the server.
struct DownMeter<'a>(&'a Live);

impl Meter for DownMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.down.set(self.0.down.get() + bytes);
    }

    fn held_up(&self, is_held_up: bool) {
        self.0.is_held_up.set(is_held_up);
    }
}

/// A server that answers pauses for less than this.
const ANSWER_PAUSE: Duration = Duration::from_secs(2);
/// What is kept of a client's words to say them again.
const MAX_REPLAY: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hub::tests::{add_link, begin, hub};

    #[test]
    fn a_question_is_what_a_client_says_after_the_server_did() {
        let hub = hub();
        add_link(&hub, "l0");
        let (live, _) = begin(&hub, [10, 0, 0, 1].into());
        let (up, down) = (UpMeter(&live), DownMeter(&live));
        let asked = |live: &Live| live.questions.get().0;
        up.moved(100);
        up.moved(100);
        assert_eq!(asked(&live), 1, "one in two pieces");
        down.moved(5000);
        down.moved(5000);
        up.moved(100);
        up.moved(100);
        assert_eq!(asked(&live), 2);
    }

    #[test]
    fn only_what_does_no_harm_is_said_twice() {
        assert!(may_replay(b"") && may_replay(b"GET / HTTP/1.1") && may_replay(b"\x16\x03\x01"));
        assert!(!may_replay(b"POST / HTTP/1.1") && !may_replay(b"SSH-2.0"));
    }
}
