//! The answer to one plain HTTP request, passed on to its end and no further, so that both connections can serve another one.
//!
//! The head is read and rewritten ([`crate::http::answer`]); the body moves in the kernel where its length is known, and
//! through memory where it comes in chunks. What is no HTTP/1 is passed on unread until the server closes.

use std::{io, time::Duration};

use rustix::net::{RecvFlags, recv};
use tokio::{io::Interest, net::TcpStream, time};

use super::{
    meter::{DownMeter, broken_off, read},
    parts::{self, Again},
    pipe,
};
use crate::{
    daemon::{hub::Hub, live::Live},
    estimate::application::Demand,
    handshake::{Failure, Protocol},
    http::{
        Body,
        answer::{self, Asked, Head, NoHead},
        fields::has_end,
    },
};

/// Which connections may serve another request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) client: bool,
    pub(super) server: bool,
    /// The answer told where it ends, and did.
    pub(super) is_whole: bool,
    /// The server takes no more of the request, if there is more.
    pub(super) has_enough: bool,
}

impl Kept {
    /// None, after an answer of which only the server's end tells that it is over.
    const NONE: Self = Self {
        client: false,
        server: false,
        is_whole: false,
        has_enough: true,
    };
}

/// Passes on one answer to `asked`, which can be asked for `again`.
///
/// # Errors
/// Either side's, or the answer breaks off; what was passed on is a part then.
pub(super) async fn pass(
    hub: &Hub,
    from: &TcpStream,
    to: &TcpStream,
    asked: Asked,
    again: Option<&Again>,
    live: &Live,
) -> io::Result<Kept> {
    let (head, rest) = match read_head(hub, from, to, asked, live).await? {
        Beginning::Head(head, rest) => (head, rest),
        Beginning::Over(kept) => return Ok(kept),
    };
    pass_body(hub, from, to, (*head, rest), again, live).await
}

/// How an answer begins.
enum Beginning {
    /// Its head, and what came behind it.
    Head(Box<Head>, Vec<u8>),
    /// It is over: refused, or passed on unread.
    Over(Kept),
}

/// Passes on interim answers, and reads the head of the answer proper.
async fn read_head(
    hub: &Hub,
    from: &TcpStream,
    to: &TcpStream,
    asked: Asked,
    live: &Live,
) -> io::Result<Beginning> {
    let down = DownMeter(live);
    let mut came = Vec::new();
    let mut interim_left = MAX_INTERIM;
    let mut searched = 0;
    loop {
        // Empty lines before it belong to nothing.
        let empty = came.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let empty = empty.count();
        came.drain(..empty);
        let is_whole = has_end(&came, &mut searched) || came.len() >= answer::MAX_HEAD_BYTES;
        let mut beginning = came.iter().zip(answer::NAME);
        let is_http = beginning.all(|(one, other)| one == other);
        if is_http && !is_whole {
            if read(hub, from, &mut came).await? == 0 {
                return Err(broken_off());
            }
            continue;
        }
        // All of the request has gone: nothing has come to its end but that yet.
        let is_partial = !live.is_half_closed.get();
        match answer::read(
            &came,
            Asked {
                is_partial,
                ..asked
            },
        ) {
            Ok(Some(head)) if head.is_interim() && interim_left > 0 => {
                interim_left -= 1;
                pipe::write_all(to, &head.rewritten, &down).await?;
                came.drain(..head.len);
                searched = 0;
                continue;
            }
            Ok(Some(head)) if head.is_interim() => {
                let refused = refuse("it never ends", to, live).await;
                return refused.map(Beginning::Over);
            }
            Ok(Some(head)) => {
                let rest = came.split_off(head.len);
                return Ok(Beginning::Head(Box::new(head), rest));
            }
            Ok(None) => {}
            Err(NoHead::Ambiguous(why)) => {
                return refuse(why, to, live).await.map(Beginning::Over);
            }
            Err(NoHead::Foreign) => {
                pipe::write_all(to, &came, &down).await?;
                pass_unread(hub, from, to, live).await?;
                return Ok(Beginning::Over(Kept::NONE));
            }
        }
        if read(hub, from, &mut came).await? == 0 {
            return Err(broken_off());
        }
    }
}

/// Passes on an answer from its rewritten head to the end of its body.
async fn pass_body(
    hub: &Hub,
    from: &TcpStream,
    to: &TcpStream,
    (head, rest): (Head, Vec<u8>),
    again: Option<&Again>,
    live: &Live,
) -> io::Result<Kept> {
    let down = DownMeter(live);
    let Head {
        rewritten: mut first,
        body,
        is_kept,
        may_go_on,
        resource,
        ..
    } = head;
    let Some(mut body) = body else {
        first.extend_from_slice(&rest);
        pipe::write_all(to, &first, &down).await?;
        pipe::pump(&hub.buffers.pipes, from, to, &down).await?;
        return Ok(Kept::NONE);
    };
    let len = body.take(&rest).map_err(io::Error::other)?;
    first.extend_from_slice(&rest[..len]);
    if let (Body::Length(missing), Some(id)) = (&body, live.id) {
        // Better than what is expected of such a connection is to know.
        let down = live.down.get().saturating_add(first.len() as u64);
        let all = Demand {
            up: live.up.get(),
            down: down.saturating_add(*missing),
        };
        hub.placer.borrow_mut().foretell(id, all);
    }
    pipe::write_all(to, &first, &down).await?;
    drop(first);
    let mut is_beyond = len < rest.len();
    let mut is_cut = false;
    if let (Body::Length(missing), Some(resource), Some(again)) = (&body, resource, again)
        && parts::is_large(*missing)
    {
        let resource = (resource, again);
        is_cut = !parts::pass(hub, from, to, *missing, resource, live).await?;
    } else if let Body::Length(missing) = body {
        if pipe::pass(&hub.buffers.pipes, from, to, missing, &down).await? > 0 {
            return Err(broken_off());
        }
    } else {
        while !body.is_done() {
            let mut came = Vec::new();
            if read(hub, from, &mut came).await? == 0 {
                return Err(broken_off());
            }
            let len = body.take(&came).map_err(io::Error::other)?;
            is_beyond |= len < came.len();
            pipe::write_all(to, &came[..len], &down).await?;
        }
    }
    if !may_go_on {
        pipe::finish(to)?;
    }
    Ok(Kept {
        client: may_go_on,
        // What comes unasked is an answer to nobody.
        server: is_kept && !is_beyond && !is_cut,
        is_whole: true,
        has_enough: !is_kept,
    })
}

/// Passes on all until the server closes, or until it has nothing more to say while the client asks for something else.
///
/// # Errors
/// Either side's.
async fn pass_unread(hub: &Hub, from: &TcpStream, to: &TcpStream, live: &Live) -> io::Result<()> {
    let down = DownMeter(live);
    tokio::select! {
        outcome = pipe::pump(&hub.buffers.pipes, from, to, &down) => outcome,
        () = another_request(to, live) => Ok(()),
    }
}

/// Tells the client that the server's answer cannot be passed on.
async fn refuse(why: &str, to: &TcpStream, live: &Live) -> io::Result<Kept> {
    let text = format!("{}: {why}", live.purpose.target);
    let page = Protocol::HttpRequest.failure(Failure::General, &text);
    pipe::write_all(to, &page, &DownMeter(live)).await?;
    pipe::finish(to)?;
    Ok(Kept {
        is_whole: true,
        ..Kept::NONE
    })
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

/// A server that answers pauses for less than this.
const ANSWER_PAUSE: Duration = Duration::from_secs(2);
/// Before an answer proper come at most so many interim ones.
const MAX_INTERIM: u32 = 64;
