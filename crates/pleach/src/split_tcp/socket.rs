//! Sockets of both ends: their settings, and how a connection ends.

use std::{
    cell::Cell,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pleach_linux::tcp_listener;
use pleach_proxy::relay::pipe::{self, Meter, PipePool};
use rustix::{
    net::sockopt::set_tcp_congestion,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::protocol::Answer;

/// A listener for IPv6 and IPv4, on `device` if named; port 0 lets the kernel choose one.
///
/// # Errors
/// The port is taken.
pub(super) fn listen(device: Option<&str>, port: u16) -> io::Result<TcpListener> {
    let listener = tcp_listener::listen(device, port, BACKLOG)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Prepares a connection through the tunnel: CUBIC, whatever the host's default is. Without it the default stays.
pub(super) fn through_tunnel(stream: &TcpStream) {
    let _ = set_tcp_congestion(stream, "cubic");
    prepare(stream);
}

/// Prepares a connection: no delay by Nagle's algorithm, keep-alive, and a reset if it is dropped before [`finish`].
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

/// Lets the kernel send what is left when the connection is dropped.
fn finish(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(None);
}

/// Moves bytes between `a` and `b` until both directions have ended. The end of one direction is passed on as such.
///
/// # Errors
/// Either connection broke: both are reset when dropped.
pub(super) async fn relay(
    pool: &PipePool,
    a: &TcpStream,
    b: &TcpStream,
    moved: &Arc<AtomicU64>,
) -> io::Result<()> {
    let meter = Counter(Arc::clone(moved));
    both(
        pipe::pump(pool, a, b, &meter),
        pipe::pump(pool, b, a, &meter),
    )
    .await?;
    finish(a);
    finish(b);
    Ok(())
}

/// Waits for both directions. When one breaks, the other has [`DRAIN`] to deliver what was received: a server that answers and
/// resets the connection, because it does not want the rest of an upload, is heard.
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

/// Moves what `client` sends to `lane` at once, and what `lane` sends to `client` behind its first byte, the far end's
/// answer. `on_connected` is called when that says so. What breaks afterwards resets both.
///
/// # Errors
/// The far end did not connect: its answer, or `None` if the connection broke before.
pub(super) async fn relay_when(
    pool: &PipePool,
    client: &TcpStream,
    lane: &TcpStream,
    moved: &Arc<AtomicU64>,
    on_connected: impl Fn(),
) -> Result<(), Option<Answer>> {
    let meter = Counter(Arc::clone(moved));
    let is_connected = Cell::new(false);
    let up = async {
        let moved = pipe::pump(pool, client, lane, &meter).await;
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
        let moved = pipe::pump(pool, lane, client, &meter).await;
        moved.map_err(|_| None)
    };
    match both(up, down).await {
        Ok(()) => {
            finish(client);
            finish(lane);
            Ok(())
        }
        Err(_) if is_connected.get() => Ok(()),
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

/// Lets this process open as many files as it may: each connection has two sockets, and pipes while it is busy.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Counts bytes.
struct Counter(Arc<AtomicU64>);

impl Meter for Counter {
    fn moved(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn held_up(&self, _is_held_up: bool) {}
}

/// How long a direction may take to deliver what was received when the other is broken.
const DRAIN: Duration = Duration::from_secs(1);
/// An idle connection whose far end is gone is found after 60 s and eight probes, so that it keeps no place.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 8;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 512;
