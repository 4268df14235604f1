//! Forwards the answer to one plain HTTP request exactly to its end, so that both connections can serve another
//! request.
//!
//! The head is read and rewritten ([`crate::http::answer`]). A body of known length is moved inside the kernel; a
//! chunked body is copied through memory. An answer that is not HTTP/1 is forwarded unread until the server closes.

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

/// Which connections may serve another request after an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) client: bool,
    pub(super) server: bool,
    /// Whether the answer stated its end and was forwarded completely.
    pub(super) is_whole: bool,
    /// Whether the server accepts no more bytes of the request.
    pub(super) has_enough: bool,
}

impl Kept {
    /// No connection, after an answer that ends only when the server closes.
    const NONE: Self = Self {
        client: false,
        server: false,
        is_whole: false,
        has_enough: true,
    };
}

/// Forwards the answer to the request `asked`. `again` allows parts of the answer to be requested again.
///
/// # Errors
/// Fails if either connection fails or the answer breaks off. The client has then received only a part of the answer.
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

/// Beginning of an answer.
enum Beginning {
    /// The head, and the bytes that arrived after it.
    Head(Box<Head>, Vec<u8>),
    /// The answer has been dealt with: refused, or forwarded unread.
    Over(Kept),
}

/// Forwards interim answers, and reads the head of the final answer.
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
        // Skip empty lines before the head.
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
        // `is_half_closed` is set when one of the two directions has ended. The direction from the server has not, so
        // the whole request has been sent.
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

/// Forwards an answer from its rewritten head to the end of its body.
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
        // The exact size is known now, so it replaces the estimate.
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
        // Bytes beyond the answer belong to no request, so the connection is not used again.
        server: is_kept && !is_beyond && !is_cut,
        is_whole: true,
        has_enough: !is_kept,
    })
}

/// Forwards all bytes until the server closes, or until the server is silent while the client has sent another
/// request.
///
/// # Errors
/// Fails if either connection fails.
async fn pass_unread(hub: &Hub, from: &TcpStream, to: &TcpStream, live: &Live) -> io::Result<()> {
    let down = DownMeter(live);
    tokio::select! {
        outcome = pipe::pump(&hub.buffers.pipes, from, to, &down) => outcome,
        () = another_request(to, live) => Ok(()),
    }
}

/// Reports to the client that the server's answer cannot be forwarded.
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

/// Waits until the client of a plain request has sent another request and the server is silent. The server has then
/// ignored that the connection ends after its answer. Closing the client's connection makes the client send its
/// request anew.
pub(super) async fn another_request(client: &TcpStream, live: &Live) {
    while !live.is_ahead.get() {
        if client.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
        let peek = || Ok(recv(client, &mut [0; 1], RecvFlags::PEEK)?.0);
        match client.try_io(Interest::READABLE, peek) {
            // While the request is still being sent, the readable bytes may belong to its body.
            Ok(len) if len > 0 && live.is_half_closed.get() => live.is_ahead.set(true),
            Ok(len) if len > 0 => time::sleep(ANSWER_PAUSE).await,
            Err(error) if pipe::is_transient(&error) => {}
            // The client has closed. Whether the answer is complete is known when the server closes.
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

/// Maximum pause that is expected within an answer.
const ANSWER_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of interim answers before the final one.
const MAX_INTERIM: u32 = 64;
