//! Striped mode: a TCP connection continued by another host that runs pleach, over the lanes of an association;
//! DBAS's packet-oriented mode. A *lane* is a TCP connection between the two hosts over one link. [`crate::stripe`]
//! decides what is sent, when, and on which lane; this module contains the sockets.
//!
//! | module | content |
//! | --- | --- |
//! | `handshake` | a lane before it belongs to an association |
//! | `lane`, `drive` | a lane's socket; its task |
//! | `association` | the lanes to a peer, and the connections that wait for them |
//! | `carried` | one connection over the lanes |
//! | `flow_table` | the UDP flows of an association, and their handlers |
//! | `flows` | one UDP flow over the lanes |
//!
//! Both ends of a connection run this code. The end that opens the connection also dials the lanes
//! ([`crate::daemon`], `dialing`).

pub(crate) mod association;
pub(crate) mod carried;
pub(crate) mod drive;
pub(crate) mod flow_table;
pub(crate) mod flows;
pub(crate) mod handshake;
pub(crate) mod lane;
#[cfg(test)]
pub(crate) mod tests;

use std::{cell::Cell, io, time::Duration};

use socket2::SockRef;
use tokio::net::TcpStream;

use self::carried::Carried;
use super::{answer, meter, pipe};
use crate::{
    daemon::{hub::Hub, live::Live},
    handshake::Request,
    http::Body,
};

/// Serves `client` at the end that opened the connection: sends `request` over `carried`, and forwards both
/// directions until they have ended. `sent` is the number of the client's bytes that were sent along with the request
/// for the connection.
///
/// # Errors
/// Fails with the reason why the connection broke. The client's connection is then reset.
pub(crate) async fn relay(
    hub: &Hub,
    client: &TcpStream,
    live: &Live,
    carried: &Carried,
    mut request: Request,
    sent: usize,
) -> io::Result<()> {
    let is_request = request.body != Body::Tunnel;
    live.up.set(live.up.get() + sent as u64);
    let upward = async {
        let said = request.head.len().min(sent);
        carried.take(&request.head[said..], &live.up).await;
        let rest = core::mem::take(&mut request.rest);
        let len = request.body.take(&rest).map_err(io::Error::other)?;
        live.is_ahead.set(len < rest.len());
        carried.take(&rest[..len], &live.up).await;
        if is_request {
            take_body(hub, client, carried, request.body, live).await?;
        } else {
            skip(client, sent - said).await?;
            let scratch = &hub.buffers.scratch;
            carried.take_all(scratch, client, &live.up).await?;
        }
        live.is_half_closed.set(true);
        Ok(())
    };
    let downward = async {
        let held_up = &live.is_held_up;
        carried.deliver_all(client, &live.down, held_up).await?;
        live.is_half_closed.set(true);
        Ok(())
    };
    let both = async { tokio::try_join!(upward, downward).map(drop) };
    let outcome = tokio::select! {
        outcome = both => outcome.map(|()| End::Both),
        error = carried.broken() => Err(error),
        () = live.stopped() => Err(meter::stopped(live)),
        () = answer::another_request(client, live), if is_request => Ok(End::Answered),
    };
    end(hub.half_closed_idle(), client, carried, outcome).await
}

/// Serves the connection at the answering end: joins `carried` to `target` until both directions have ended.
///
/// # Errors
/// Fails with the reason why the connection broke. The connection to the target is then reset.
pub(crate) async fn answer(
    hub: &Hub,
    target: &TcpStream,
    live: &Live,
    carried: &Carried,
) -> io::Result<()> {
    live.is_opening.set(false);
    let both = async {
        let held_up = Cell::new(false);
        let upward = async {
            carried.deliver_all(target, &live.up, &held_up).await?;
            live.is_half_closed.set(true);
            Ok(())
        };
        let downward = async {
            let scratch = &hub.buffers.scratch;
            carried.take_all(scratch, target, &live.down).await?;
            live.is_half_closed.set(true);
            io::Result::Ok(())
        };
        tokio::try_join!(upward, downward).map(drop)
    };
    let outcome = tokio::select! {
        outcome = both => outcome.map(|()| End::Both),
        error = carried.broken() => Err(error),
        () = live.stopped() => Err(meter::stopped(live)),
    };
    end(hub.half_closed_idle(), target, carried, outcome).await
}

/// Reads a request's body from `from`; bytes after the body stay unread.
async fn take_body(
    hub: &Hub,
    from: &TcpStream,
    carried: &Carried,
    mut body: Body,
    live: &Live,
) -> io::Result<()> {
    while !body.is_done() {
        from.readable().await?;
        let read = {
            let mut scratch = hub.buffers.scratch.borrow_mut();
            match from.try_read(&mut scratch) {
                Ok(0) => return Err(io::Error::other("the client left within its request")),
                Ok(len) => {
                    let taken = body.take(&scratch[..len]).map_err(io::Error::other)?;
                    live.is_ahead.set(taken < len);
                    scratch[..taken].to_vec()
                }
                Err(error) if pipe::is_transient(&error) => Vec::new(),
                Err(error) => return Err(error),
            }
        };
        carried.take(&read, &live.up).await;
    }
    // Nothing is sent after a request.
    carried.finish();
    Ok(())
}

/// Reads and discards `len` bytes that were only peeked at before.
async fn skip(from: &TcpStream, mut len: usize) -> io::Result<()> {
    let mut sink = [0; 1024];
    while len > 0 {
        from.readable().await?;
        let most = len.min(sink.len());
        match from.try_read(&mut sink[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => len -= read,
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How a connection ended without an error.
enum End {
    /// The request was answered, and the client has sent another request, which must not wait for the server.
    Answered,
    /// Both directions have ended.
    Both,
}

/// Waits until the other end has delivered all bytes, as long as that end makes progress within `limit`. Resets
/// `stream` if the connection broke.
async fn end(
    limit: Duration,
    stream: &TcpStream,
    carried: &Carried,
    outcome: io::Result<End>,
) -> io::Result<()> {
    match outcome {
        Ok(End::Answered) => Ok(()),
        // Bytes in flight may have to be retransmitted on another lane. `stream` has ended, and keeps the bytes that
        // were written to it.
        Ok(End::Both) => carried.delivered(limit).await,
        Err(error) => {
            // If the socket refuses, the connection is closed normally.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            Err(error)
        }
    }
}
