//! Sockets of both ends: their options, and the end of connections.

use std::{cell::Cell, io, pin::pin, time::Duration};

use pleach_linux::tcp_listener;
use pleach_proxy::relay::pipe::{self, PipePool};
use rustix::{
    net::sockopt::set_tcp_congestion,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{protocol::Answer, send_buffer::Sent};

/// Opens a listener for IPv6 and IPv4, bound to `device` if given. With port 0, the kernel chooses a port.
///
/// # Errors
/// The port is already in use.
pub(super) fn listen(device: Option<&str>, port: u16) -> io::Result<TcpListener> {
    let listener = tcp_listener::listen(device, port, BACKLOG)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Selects CUBIC for a connection through the tunnel. If CUBIC is not available, the host's default stays in use.
pub(super) fn through_tunnel(stream: &TcpStream) {
    let _ = set_tcp_congestion(stream, "cubic");
    prepare(stream);
}

/// Prepares a connection: disables Nagle's algorithm, enables keep-alive, and makes the kernel reset the connection if
/// it is dropped before [`finish`].
pub(super) fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_linger(Some(Duration::ZERO));
}

/// Makes the kernel send the remaining data when the connection is dropped.
fn finish(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(None);
}

/// Relays bytes between `lane` and `server` until both directions have ended. The end of one direction is passed on as the end
/// of that direction.
///
/// # Errors
/// One of the connections broke. Both are reset when dropped.
pub(super) async fn relay(
    pool: &PipePool,
    lane: &TcpStream,
    server: &TcpStream,
    sent: &Sent<'_>,
) -> io::Result<()> {
    both(
        pipe::pump(pool, lane, server, &sent.received()),
        pipe::pump(pool, server, lane, sent),
    )
    .await?;
    finish(lane);
    finish(server);
    Ok(())
}

/// Waits for both directions. If one direction breaks, the other has [`DRAIN`] to deliver the received data. For
/// example, a server may answer and then reset the connection because it does not want the rest of an upload. Its
/// answer is still delivered.
async fn both<E>(
    one: impl Future<Output = Result<(), E>>,
    other: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (first, is_one) = tokio::select! {
        first = &mut one => (first, true),
        first = &mut other => (first, false),
    };
    let rest = async { if is_one { other.await } else { one.await } };
    if first.is_ok() {
        return rest.await;
    }
    let _ = timeout(DRAIN, rest).await;
    first
}

/// Relays bytes between `client` and `lane`. Bytes from `client` are sent to `lane` at once. The first byte from `lane`
/// is the far end's answer; the bytes after it are sent to `client`. If the answer says that the far end has connected,
/// `on_connected` is called. If a connection breaks afterwards, both are reset. A reset by the application, at any
/// time, also resets both and is not an error.
///
/// # Errors
/// If the far end did not connect: its answer, or `None` if the connection to the far end broke before the answer.
pub(super) async fn relay_when(
    pool: &PipePool,
    client: &TcpStream,
    lane: &TcpStream,
    sent: &Sent<'_>,
    on_connected: impl Fn(),
) -> Result<(), Option<Answer>> {
    let received = sent.received();
    let is_connected = Cell::new(false);
    let up = async {
        let moved = pipe::pump(pool, client, lane, sent).await;
        moved.map_err(|_| None)
    };
    let down = async {
        let answer = read_byte(lane).await.map_err(|_| None)?;
        match Answer::decode(answer) {
            Some(Answer::Connected) => {
                is_connected.set(true);
                on_connected();
            }
            answer => return Err(answer),
        }
        let moved = pipe::pump(pool, lane, client, &received).await;
        moved.map_err(|_| None)
    };
    match both(up, down).await {
        Ok(()) => {
            finish(client);
            finish(lane);
            Ok(())
        }
        Err(_) if is_connected.get() => Ok(()),
        // `peer_addr` fails if the application has reset its connection.
        Err(None) if client.peer_addr().is_err() => Ok(()),
        Err(answer) => Err(answer),
    }
}

async fn read_byte(from: &TcpStream) -> io::Result<u8> {
    let mut byte = [0];
    loop {
        from.readable().await?;
        match from.try_read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Raises the limit of open files to the permitted maximum. Each connection has two sockets, and pipes while it is
/// busy.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Maximum time for one direction to deliver received data after the other direction is broken.
const DRAIN: Duration = Duration::from_secs(1);
/// Idle time before the first keep-alive probe. A connection whose other end is gone is detected after this time and
/// eight probes, so that it does not occupy a place.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 8;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 512;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::split_tcp::send_buffer::SendBuffers;

    /// Returns both ends of a new connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let here = TcpStream::connect(to).await.expect("it listens");
        let (there, _) = listener.accept().await.expect("it came");
        (here, there)
    }

    #[test]
    fn who_resets_before_the_answer_is_told_from_the_other() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        for by_application in [true, false] {
            let end = runtime.block_on(async {
                let (application, client) = pair().await;
                let (lane, far) = pair().await;
                let gone = if by_application { &application } else { &far };
                SockRef::from(gone)
                    .set_linger(Some(Duration::ZERO))
                    .expect("an option");
                let kept = if by_application {
                    drop(application);
                    far
                } else {
                    drop(far);
                    application
                };
                let pool = PipePool::default();
                let (buffers, moved) = (SendBuffers::new(), Arc::default());
                let user = "10.77.0.2/32".parse().expect("literal");
                let sent = Sent::new(&lane, user, &buffers, &moved);
                let end = relay_when(&pool, &client, &lane, &sent, || {}).await;
                drop(kept);
                end
            });
            assert_eq!(end.is_ok(), by_application, "{end:?}");
        }
    }
}
