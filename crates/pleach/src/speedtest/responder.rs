//! The gateway's part of a speed test: a TCP listener that only the tunnel's device reaches, so only clients with a session.
//!
//! Bounds: [`MAX_SERVED`] connections at a time, the next is told that it is busy; each ends after the time it asks for, at most
//! [`protocol::MOST_TIME`], and if it is silent for [`PATIENCE`]. What it sends is zeros, what it gets is counted and thrown away.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pleach_linux::clock;
use socket2::{Domain, Protocol, Socket, Type};

use super::protocol::{self, Kind};

/// Serves what comes by the device `tunnel`, until the process ends.
///
/// # Errors
/// The port is taken, or no thread can be had.
pub(crate) fn start(tunnel: &str) -> io::Result<()> {
    let listener = listen(tunnel)?;
    let served = Arc::new(AtomicUsize::new(0));
    thread::Builder::new()
        .name("speedtest".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => accept(stream, &served),
                    Err(error) => {
                        tracing::debug!(%error, "speed test");
                        thread::park_timeout(Duration::from_millis(100));
                    }
                }
            }
        })
        .map(drop)
}

fn listen(tunnel: &str) -> io::Result<TcpListener> {
    let open = |domain, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind_device(Some(tunnel.as_bytes()))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(16)?;
        Ok(socket)
    };
    let v6 = open(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, protocol::PORT).into());
    let v4 = |_| open(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, protocol::PORT).into());
    v6.or_else(v4).map(TcpListener::from)
}

fn accept(stream: TcpStream, served: &Arc<AtomicUsize>) {
    // Only this thread adds, so the bound holds.
    if served.load(Ordering::Acquire) >= MAX_SERVED {
        // The byte fits the socket's empty buffer.
        let _ = (&stream).write_all(&[protocol::BUSY]);
        return;
    }
    served.fetch_add(1, Ordering::AcqRel);
    let counted = Arc::clone(served);
    let started = thread::Builder::new()
        .name("speedtest-conn".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            // An error is the client's: it left, or it was too slow.
            let _ = serve(&stream);
            counted.fetch_sub(1, Ordering::AcqRel);
        });
    if started.is_err() {
        served.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Does what one client asks for.
fn serve(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut request = [0; protocol::REQUEST_LEN];
    stream.read_exact(&mut request)?;
    let Some((kind, time)) = protocol::read(&request) else {
        return Ok(());
    };
    stream.write_all(&[protocol::SERVED])?;
    let end = clock::now() + time;
    match kind {
        Kind::Down => {
            let zeros = vec![0; CHUNK];
            while clock::now() < end {
                stream.write_all(&zeros)?;
            }
        }
        Kind::Echo => {
            let mut byte = [0];
            while clock::now() < end && stream.read(&mut byte)? > 0 {
                stream.write_all(&byte)?;
            }
        }
        Kind::Up => {
            let mut chunk = vec![0; CHUNK];
            let (mut count, mut next) = (0_u64, clock::now());
            while clock::now() < end {
                let len = stream.read(&mut chunk)?;
                count += len as u64;
                if len == 0 || clock::now() >= next {
                    stream.write_all(&count.to_be_bytes())?;
                    next = clock::now() + REPORTS;
                }
                if len == 0 {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Two tests at a time, and connections that are ending.
const MAX_SERVED: usize = 6;
const CHUNK: usize = 64 << 10;
const REPORTS: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);
const STACK: usize = 256 << 10;
