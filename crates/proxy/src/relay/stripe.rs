//! Striped mode: a TCP connection joined to one of another pleach's, over the lanes of an association; DBAS's packet-oriented
//! mode. What is sent, when and on which lane is [`crate::stripe`]'s matter; here are the sockets.
//!
//! | module | what |
//! | --- | --- |
//! | `handshake` | a lane before it belongs to an association |
//! | `lane`, `drive` | a lane's socket; its task |
//! | `association` | the lanes to a peer, and who waits for what |
//! | `carried` | one connection over them |
//!
//! Both ends of a connection run this; the end that asked also dials the lanes ([`crate::daemon`], `dialing`).

pub(crate) mod association;
pub(crate) mod carried;
pub(crate) mod drive;
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

/// The end that asked: serves `client`, whose `request` goes over `carried`, until both directions have ended. `sent`: how many
/// bytes of what the client says went with the request for the connection.
///
/// # Errors
/// What broke the connection; the client is reset then.
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

/// The end that was asked: joins `carried` to `target` until both directions have ended.
///
/// # Errors
/// What broke the connection; the target is reset then.
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

/// Takes a request's body from `from`; what follows it stays unread.
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
    // After a request nothing more goes up.
    carried.finish();
    Ok(())
}

/// Reads `len` bytes away, which were only looked at before.
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

/// How a connection ended that did not break.
enum End {
    /// A request was answered, and the client has another one; it is not to wait for the server.
    Answered,
    /// In both directions.
    Both,
}

/// Lets the other end deliver what was taken, as long as that gets on within `limit`; resets `stream` if the connection broke.
async fn end(
    limit: Duration,
    stream: &TcpStream,
    carried: &Carried,
    outcome: io::Result<End>,
) -> io::Result<()> {
    match outcome {
        Ok(End::Answered) => Ok(()),
        // What is under way may need to be sent again on another lane. `stream` has ended, and keeps what it was given.
        Ok(End::Both) => carried.delivered(limit).await,
        Err(error) => {
            // A socket that refuses is closed plainly.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            Err(error)
        }
    }
}
