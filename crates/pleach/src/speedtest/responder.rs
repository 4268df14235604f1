//! The gateway's part of a speed test: a TCP listener that only the tunnel's device reaches, so only clients with a session.
//!
//! Bounds: [`MAX_SERVED`] connections at a time, and [`MAX_OF_CLIENT`] of one client, that is of an IPv4 address or an IPv6 /64; the
//! next is told that it is busy. Each ends after the time it asks for, at most
//! [`protocol::MOST_TIME`], and if it is silent for [`PATIENCE`]. What it sends is zeros, what it gets is counted and thrown away.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use pleach_linux::{clock, tcp_listener::listen};

use super::protocol::{self, Kind};

/// Serves what comes by the device `tunnel`, until the process ends.
///
/// # Errors
/// The port is taken, or no thread can be had.
pub(crate) fn start(tunnel: &str) -> io::Result<()> {
    let listener = listen(Some(tunnel), protocol::PORT, BACKLOG)?;
    let served = Arc::new(Served::default());
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

/// The clients that are served, one entry a connection.
#[derive(Debug, Default)]
struct Served(Mutex<Vec<IpAddr>>);

impl Served {
    /// Counts a connection of `client`, unless there are as many as may be.
    fn admit(&self, client: IpAddr) -> bool {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = clients.iter().filter(|known| **known == client).count();
        let has_room = clients.len() < MAX_SERVED && of_it < MAX_OF_CLIENT;
        if has_room {
            clients.push(client);
        }
        has_room
    }

    fn end(&self, client: IpAddr) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = clients.iter().position(|known| *known == client) {
            clients.swap_remove(at);
        }
    }
}

/// What stands for the client at `address`: the /64 of an IPv6 address.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

fn accept(stream: TcpStream, served: &Arc<Served>) {
    let Ok(peer) = stream.peer_addr() else { return };
    let client = client(peer.ip());
    if !served.admit(client) {
        // The byte fits the socket's empty buffer.
        let _ = (&stream).write_all(&[protocol::BUSY]);
        return;
    }
    let counted = Arc::clone(served);
    let started = thread::Builder::new()
        .name("speedtest-conn".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            // An error is the client's: it left, or it was too slow.
            let _ = serve(&stream);
            counted.end(client);
        });
    if started.is_err() {
        served.end(client);
    }
}

/// Does what one client asks for.
pub(super) fn serve(mut stream: &TcpStream) -> io::Result<()> {
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
/// One test, a measurement and its round trips, and a connection that is ending.
const MAX_OF_CLIENT: usize = 3;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
const CHUNK: usize = 64 << 10;
const REPORTS: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);
const STACK: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_for_another() {
        let served = Served::default();
        let of = |text: &str| client(text.parse().expect("literal"));
        for _ in 0..MAX_OF_CLIENT {
            assert!(served.admit(of("10.77.0.2")));
        }
        assert!(!served.admit(of("::ffff:10.77.0.2")), "the same client");
        assert!(served.admit(of("fd77::3:1")) && served.admit(of("fd77::3:2")));
        assert!(
            served.admit(of("fd77::3:3")) && !served.admit(of("10.77.0.4")),
            "six in all"
        );
        served.end(of("fd77::3:9"));
        assert!(!served.admit(of("10.77.0.2")) && served.admit(of("10.77.0.4")));
    }
}
