//! A plain HTTP request and its answer, on connections that more requests follow on.
//!
//! The client keeps its connection, and each of its requests is placed anew, perhaps on a connection to the server that
//! earlier ones have left ([`crate::daemon::pool`]). So both messages are measured ([`Body`], [`Answer`]): what is beyond
//! the answer never reaches the client, what is beyond the request never reaches the server. Until the first byte of the
//! answer the request can be said again elsewhere, as in [`super::stream`]. Bodies of known length, and large chunks, move
//! in the kernel.

use std::{cell::Cell, io, pin::pin, rc::Rc};

use rustix::net::{RecvFlags, recv};
use tokio::{io::Interest, net::TcpStream};

use super::{
    pipe::{self, Meter},
    stream::{self, DownMeter, Opening, UpMeter},
};
use crate::{
    answer::Answer,
    daemon::{
        client::Session,
        hub::{Hub, Live},
    },
    handshake::{Body, Exchange, Request},
};

/// What can go on after an answer.
#[derive(Debug, Default)]
pub(crate) struct After {
    /// The connection to the server, if it takes another request.
    pub(crate) upstream: Option<Rc<TcpStream>>,
    /// What the client has said beyond its request, if it may ask again.
    pub(crate) beyond: Option<Vec<u8>>,
}

/// Sends `request` to `upstream` and the answer to `client`.
///
/// # Errors
/// What broke the exchange; both ends are reset then, but for a client that was told.
pub(crate) async fn relay(
    hub: &Hub,
    client: &TcpStream,
    upstream: Rc<TcpStream>,
    session: Session,
    request: Request,
    exchange: Exchange,
) -> io::Result<After> {
    let live = Rc::clone(&session.live);
    let mut opening = Opening::new(hub, client, upstream, session, request);
    let outcome = exchange_over(hub, client, &live, &mut opening, exchange).await;
    if outcome.is_err() {
        opening.reset();
    }
    outcome
}

async fn exchange_over(
    hub: &Hub,
    client: &TcpStream,
    live: &Rc<Live>,
    opening: &mut Opening<'_>,
    exchange: Exchange,
) -> io::Result<After> {
    opening.run().await?;
    live.is_opening.set(false);
    let rest = opening.take_rest();
    let body = std::mem::replace(&mut opening.body, Body::Length(0));
    let upstream = Rc::clone(&opening.upstream);
    let is_sent = Cell::new(false);
    let down = Down {
        hub,
        client,
        upstream: &upstream,
        live,
        exchange,
        is_sent: &is_sent,
        is_begun: Cell::new(false),
    };
    let finished = {
        let mut upward = pin!(async {
            pipe::write_all(&upstream, &rest, &UpMeter(live)).await?;
            send_body(hub, client, &upstream, body, live).await
        });
        let mut downward = pin!(down.run());
        let mut is_up_over = false;
        loop {
            tokio::select! {
                // Whether all was sent is to be known when the answer is looked at.
                biased;
                outcome = &mut upward, if !is_up_over => {
                    is_up_over = true;
                    match outcome {
                        Ok(()) => is_sent.set(true),
                        // A server may answer before it has read all, and read no more.
                        Err(error) if is_servers(&error) => {}
                        Err(error) => break Err(error),
                    }
                }
                outcome = &mut downward => break outcome,
                () = live.stopped() => break Err(stream::stopped(live)),
            }
        }
    };
    match finished {
        Ok(kept) => Ok(After {
            upstream: kept.by_server.then_some(upstream),
            beyond: kept.by_client.then(|| std::mem::take(&mut opening.beyond)),
        }),
        Err(error) => {
            if !down.is_begun.get() && !exchange.is_overheard {
                opening.tell(&error).await?;
            }
            Err(error)
        }
    }
}

/// Who may use its connection again.
#[derive(Clone, Copy, Debug)]
struct Kept {
    by_client: bool,
    by_server: bool,
}

/// The way of the answer.
struct Down<'a> {
    hub: &'a Hub,
    client: &'a TcpStream,
    upstream: &'a TcpStream,
    live: &'a Live,
    exchange: Exchange,
    /// The whole request has gone to the server.
    is_sent: &'a Cell<bool>,
    /// The client has got a part of the answer.
    is_begun: Cell<bool>,
}

impl Down<'_> {
    async fn run(&self) -> io::Result<Kept> {
        let mut buffer = Vec::new();
        loop {
            let parsed = match Answer::parse(&buffer, self.exchange.is_head) {
                Ok(parsed) => parsed,
                // Its client may make sense of it.
                Err(_) if self.exchange.is_overheard => Some(Answer::unknown()),
                Err(error) => return Err(io::Error::other(error)),
            };
            let Some(answer) = parsed else {
                if self.read(&mut buffer, usize::MAX).await? == 0 {
                    if self.exchange.is_overheard && buffer.is_empty() {
                        // A connection that ends is what the client would have seen.
                        pipe::finish(self.client)?;
                        return Ok(Kept {
                            by_client: false,
                            by_server: false,
                        });
                    }
                    return Err(io::Error::other("the server closed within its answer"));
                }
                continue;
            };
            // Nobody was asked to speak something else.
            if answer.status == 101 && !self.exchange.is_overheard {
                return Err(io::Error::other("the server changed the protocol unasked"));
            }
            let following = buffer.split_off(answer.len);
            self.count(answer.len);
            if !answer.is_interim() {
                return self.finish(answer, buffer, following).await;
            }
            if self.exchange.is_overheard {
                self.write(&buffer).await?;
            } else if self.exchange.server_keeps {
                self.write(&answer.sealed(true)).await?;
            }
            buffer = following;
        }
    }

    /// Passes on the last head, which came as `original`, and its body, of which `following` is there.
    async fn finish(
        &self,
        answer: Answer,
        original: Vec<u8>,
        mut following: Vec<u8>,
    ) -> io::Result<Kept> {
        let mut body = answer.body.clone();
        let mut kept = Kept {
            by_client: self.exchange.keeps && self.is_sent.get() && body != Body::Tunnel,
            by_server: self.exchange.server_keeps && answer.keeps,
        };
        if self.exchange.is_overheard {
            // It was told what the server said.
            kept.by_client &= kept.by_server;
        } else {
            kept.by_client &= self.hub.has_room();
        }
        if let Body::Length(len) = body {
            self.hub.expect(self.live, len);
        }
        let taken = body.take(&following).map_err(io::Error::other)?;
        // More than it said, and it was asked for one answer only.
        kept.by_server &= taken == following.len();
        following.truncate(taken);
        self.count(taken);
        let mut head = if self.exchange.is_overheard {
            original
        } else {
            answer.sealed(kept.by_client)
        };
        head.append(&mut following);
        self.write(&head).await?;
        drop(head);
        let mut piece = Vec::new();
        while !body.is_done() {
            let run = body.run();
            if run >= LEAST_RUN {
                let (pipes, down) = (&self.hub.pipes, DownMeter(self.live));
                let missing =
                    pipe::pump_most(pipes, self.upstream, self.client, run, &down).await?;
                body.skip(run - missing);
                match (missing, &body) {
                    (0, _) => continue,
                    (_, Body::Tunnel) => break,
                    _ => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            piece.clear();
            let most = if run > 0 { run } else { u64::MAX };
            let most = pipe::at_most(usize::MAX, most);
            if self.read(&mut piece, most).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = body.take(&piece).map_err(io::Error::other)?;
            kept.by_server &= taken == piece.len();
            self.count(taken);
            self.write(&piece[..taken]).await?;
        }
        if !kept.by_client {
            pipe::finish(self.client)?;
        }
        kept.by_server &= self.is_sent.get();
        Ok(kept)
    }

    /// Adds at most `most` bytes of the server's to `buffer`: how many; none at its end.
    async fn read(&self, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        loop {
            self.upstream.readable().await?;
            let mut scratch = self.hub.scratch.borrow_mut();
            let room = scratch.len().min(most);
            match self.upstream.try_read(&mut scratch[..room]) {
                Ok(len) => {
                    buffer.extend_from_slice(&scratch[..len]);
                    return Ok(len);
                }
                Err(error) if pipe::is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.is_begun.set(true);
        pipe::write_all(self.client, bytes, &Uncounted(self.live)).await
    }

    fn count(&self, len: usize) {
        DownMeter(self.live).moved(len as u64);
    }
}

/// Sees whether the client keeps up; what it is given is counted as the server sent it.
struct Uncounted<'a>(&'a Live);

impl Meter for Uncounted<'_> {
    fn moved(&self, _bytes: u64) {}

    fn held_up(&self, is_held_up: bool) {
        DownMeter(self.0).held_up(is_held_up);
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
        let broken = |error: io::Error| io::Error::other(format!("the client: {error}"));
        client.readable().await.map_err(broken)?;
        let piece = {
            let mut scratch = hub.scratch.borrow_mut();
            read_piece(client, &mut body, &mut scratch)
                .map_err(broken)?
                .to_vec()
        };
        pipe::write_all(upstream, &piece, &UpMeter(live)).await?;
    }
    Ok(())
}

/// Reads what has come of a request's `body` into `room` and leaves what is behind it; nothing, if nothing has come.
///
/// # Errors
/// The client has left, or its body is none.
pub(super) fn read_piece<'a>(
    client: &TcpStream,
    body: &mut Body,
    room: &'a mut [u8],
) -> io::Result<&'a [u8]> {
    let peek = || Ok(recv(client, &mut *room, RecvFlags::PEEK)?.0);
    let len = match client.try_io(Interest::READABLE, peek) {
        Ok(0) => return Err(io::Error::other("left within its request")),
        Ok(len) => body.take(&room[..len]).map_err(io::Error::other)?,
        Err(error) if pipe::is_transient(&error) => 0,
        Err(error) => return Err(error),
    };
    // What was seen is there.
    match client.try_read(&mut room[..len]) {
        Ok(read) if read == len => Ok(&room[..len]),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) => Err(error),
    }
}

/// Whether the server does not read on. What is wrong with the client has no such kind.
fn is_servers(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// Shorter runs are copied: a pipe is no gain.
const LEAST_RUN: u64 = 16 << 10;
