//! Connections to a server, raced over its addresses and over links (RFC 8305, with links as a second dimension).
//!
//! The first address is tried on the first link. If this attempt has not succeeded after a delay, a second attempt
//! starts in parallel, to the next address. If only one address can be tried on the link, and the link has received
//! data within the last second, the second attempt goes to the same address. The attempts continue on the next link,
//! until one connects. A failed attempt starts the next one at once. The delays are:
//!
//! - 250 ms between addresses of one link.
//! - Three RTTs of the first link before the second link, between 250 ms and 2 s, since a link that was chosen on
//!   purpose must not lose the race only because its delay is long.
//! - 1 s before the second link if the RTT of the first link is not known.
//! - 1.3 s before the second link if the first link has received data within the last second, because a saturated link
//!   sometimes loses the first packet.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pleach_linux::{clock, redirect, tcp};
use socket2::SockRef;
use tokio::{
    net::{TcpSocket, TcpStream},
    time,
};

use super::{hub::Hub, settings::Transparency, windows};
use crate::{handshake::Failure, sched::LinkId};

/// An open connection, its link, and the links that failed before it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) stream: TcpStream,
    pub(crate) link: Option<LinkId>,
    pub(crate) failed: Vec<LinkId>,
}

/// Why no connection could be opened.
#[derive(Debug)]
pub(crate) struct OpenError {
    pub(crate) failure: Failure,
    /// The error on each link.
    pub(crate) text: String,
}

/// One connection attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    link: Option<LinkId>,
    ip: IpAddr,
    /// Delay after the start of the previous attempt.
    wait: Duration,
}

/// Connects to `port` at one of `addresses`, over one of `links` (best first). If `links` is empty, the kernel routes
/// the connection.
pub(crate) async fn open(
    hub: &Hub,
    links: &[LinkId],
    addresses: &[IpAddr],
    port: u16,
) -> Result<Opened, OpenError> {
    let attempts = attempts(hub, links, addresses);
    let mut failures: Vec<(Attempt, io::Error)> = Vec::new();
    let mut started = 0;
    let race = async {
        let mut running = FuturesUnordered::new();
        loop {
            let next = attempts.get(started);
            if let Some(attempt) = next
                && running.is_empty()
            {
                running.push(try_one(hub, *attempt, port));
                started += 1;
                continue;
            }
            let wait = next.map_or(PATIENCE, |attempt| attempt.wait);
            match time::timeout(wait, running.next()).await {
                Ok(Some((attempt, Ok(stream)))) => return Some((attempt, stream)),
                Ok(Some((attempt, Err(error)))) => {
                    tracing::debug!(?attempt, port, %error, "cannot connect");
                    failures.push((attempt, error));
                    if let Some(attempt) = attempts.get(started) {
                        running.push(try_one(hub, *attempt, port));
                        started += 1;
                    }
                }
                Ok(None) => return None,
                Err(_) => {
                    if let Some(attempt) = attempts.get(started) {
                        running.push(try_one(hub, *attempt, port));
                        started += 1;
                    }
                }
            }
        }
    };
    let outcome = time::timeout(PATIENCE, race).await;
    match outcome {
        Ok(Some((attempt, stream))) => {
            // Links on which an attempt had begun before the successful one.
            let mut failed: Vec<LinkId> = attempts[..started]
                .iter()
                .filter_map(|tried| tried.link)
                .collect();
            failed.dedup();
            let winner = failed.iter().position(|link| Some(*link) == attempt.link);
            failed.truncate(winner.unwrap_or(0));
            // A server that refuses the connection is not the link's fault.
            failed.retain(|link| {
                let refused = |(tried, error): &(Attempt, io::Error)| {
                    tried.link == Some(*link) && error.kind() == io::ErrorKind::ConnectionRefused
                };
                !failures.iter().any(refused)
            });
            Ok(Opened {
                stream,
                link: attempt.link,
                failed,
            })
        }
        Ok(None) | Err(_) => Err(explain(hub, &attempts[..started], &failures)),
    }
}

/// Returns the attempts in order: two addresses for each link, then the remaining addresses.
fn attempts(hub: &Hub, links: &[LinkId], addresses: &[IpAddr]) -> Vec<Attempt> {
    if links.is_empty() {
        let direct = |ip: &IpAddr| Attempt {
            link: None,
            ip: *ip,
            wait: BETWEEN_ADDRESSES,
        };
        return addresses.iter().take(MAX_ATTEMPTS).map(direct).collect();
    }
    let now = clock::now();
    let placer = hub.placer.borrow();
    let mut order = Vec::new();
    let mut last: Option<LinkId> = None;
    for round in 0..2 {
        for id in links {
            let Some(link) = placer.links().get(id.0) else {
                continue;
            };
            let covered = addresses.iter().filter(|ip| link.reach.covers(**ip));
            let mut covered: Vec<&IpAddr> = covered.collect();
            if let [only] = covered[..]
                && placer.is_alive(now, *id)
            {
                // TCP retransmits a SYN that a full queue dropped only after a second. A second attempt to the same
                // address is quicker.
                covered.push(only);
            }
            let (skip, take) = if round == 0 {
                (0, FIRST_ROUND)
            } else {
                (FIRST_ROUND, MAX_ATTEMPTS)
            };
            for ip in covered.into_iter().skip(skip).take(take) {
                let wait = if last == Some(*id) {
                    BETWEEN_ADDRESSES
                } else {
                    let before = last.and_then(|last| placer.links()[last.0].estimator.rtt());
                    let is_alive = last.is_some_and(|last| placer.is_alive(now, last));
                    let before = before.filter(|_| !is_alive);
                    before.map_or(if is_alive { LIVE_LINK } else { UNKNOWN_LINK }, |rtt| {
                        (rtt * 3).clamp(BETWEEN_ADDRESSES, SLOW_LINK)
                    })
                };
                last = Some(*id);
                order.push(Attempt {
                    link: Some(*id),
                    ip: *ip,
                    wait,
                });
            }
        }
    }
    order.truncate(MAX_ATTEMPTS);
    order
}

async fn try_one(hub: &Hub, attempt: Attempt, port: u16) -> (Attempt, io::Result<TcpStream>) {
    let connected = to(hub, attempt.link, SocketAddr::new(attempt.ip, port)).await;
    (attempt, connected)
}

/// Connects to `address` over `link`, with the receive window that a new connection should have on this link.
pub(super) async fn to(
    hub: &Hub,
    link: Option<LinkId>,
    address: SocketAddr,
) -> io::Result<TcpStream> {
    let socket = outgoing(hub, link, address.ip(), socket2::Type::STREAM)?;
    let window = link.and_then(|link| windows::first_window(hub, clock::now(), link));
    if let Some(bytes) = window {
        // If the kernel cannot limit the window, its own choice is used.
        let _ = tcp::begin_window(&socket, u32::try_from(bytes.get()).unwrap_or(u32::MAX));
    }
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    socket.connect(address).await
}

/// Sets the options of every TCP socket of the proxy: no delay for small segments, and keepalives to notice dead
/// peers.
pub(crate) fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(4);
    // The connection works without these options.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
}

/// Returns a socket for connections to `ip`, bound to the device of `link`, and to the link's source address if the
/// link has a source address.
pub(crate) fn outgoing(
    hub: &Hub,
    link: Option<LinkId>,
    ip: IpAddr,
    kind: socket2::Type,
) -> io::Result<socket2::Socket> {
    let domain = if ip.is_ipv4() {
        socket2::Domain::IPV4
    } else {
        socket2::Domain::IPV6
    };
    let socket = socket2::Socket::new(domain, kind.nonblocking().cloexec(), None)?;
    if matches!(hub.settings.transparent, Transparency::Redirect { .. }) {
        // The mark keeps this connection from being redirected to the proxy.
        socket.set_mark(redirect::MARK)?;
    }
    if let Some(link) = link {
        let devices = hub.uplinks.devices.borrow();
        let device = devices.get(link.0).ok_or(io::ErrorKind::NotFound)?;
        // Since Linux 5.7 this needs no privileges.
        socket.bind_device(Some(device.name.as_bytes()))?;
        let source = device
            .source
            .iter()
            .find(|source| source.is_ipv4() == ip.is_ipv4());
        if let Some(source) = source {
            socket.bind(&SocketAddr::new(*source, 0).into())?;
        }
    }
    Ok(socket)
}

/// Returns the error for the client.
fn explain(hub: &Hub, tried: &[Attempt], failures: &[(Attempt, io::Error)]) -> OpenError {
    let placer = hub.placer.borrow();
    let name = |link: Option<LinkId>| match link {
        Some(link) => placer.links()[link.0].settings.name.clone(),
        None => "directly".to_owned(),
    };
    let mut links: Vec<Option<LinkId>> = tried.iter().map(|attempt| attempt.link).collect();
    links.dedup();
    let reason = |link: &Option<LinkId>| {
        let found = failures.iter().find(|(attempt, _)| attempt.link == *link);
        let text = found.map_or("no answer".to_owned(), |(_, error)| plain(error));
        format!("{}: {text}", name(*link))
    };
    let text: Vec<String> = links.iter().map(reason).collect();
    let all = |kind: io::ErrorKind| {
        failures.len() == tried.len() && failures.iter().all(|(_, error)| error.kind() == kind)
    };
    let failure = if all(io::ErrorKind::ConnectionRefused) {
        Failure::Refused
    } else if all(io::ErrorKind::NetworkUnreachable) {
        Failure::NetworkUnreachable
    } else if failures.len() < tried.len() || all(io::ErrorKind::TimedOut) {
        Failure::TimedOut
    } else {
        Failure::HostUnreachable
    };
    OpenError {
        failure,
        text: text.join("; "),
    }
}

/// Returns the text of an I/O error without Rust's "(os error N)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((message, _)) => message.to_lowercase(),
        None => text,
    }
}

const KEEPALIVE: Duration = Duration::from_secs(60);
/// Connection attempt delay of RFC 8305, section 5.
const BETWEEN_ADDRESSES: Duration = Duration::from_millis(250);
/// Delay before the next link is tried if no RTT of this link is known.
const UNKNOWN_LINK: Duration = Duration::from_secs(1);
/// Delay before the next link is tried if this link has received data within the last second. It covers the
/// retransmission of a lost SYN (RFC 6298).
const LIVE_LINK: Duration = Duration::from_millis(1300);
/// Maximum delay before the next link is tried.
const SLOW_LINK: Duration = Duration::from_secs(2);
/// Time after which the client is informed that the server does not answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Number of addresses tried on a link before the next link.
const FIRST_ROUND: usize = 2;
const MAX_ATTEMPTS: usize = 12;
