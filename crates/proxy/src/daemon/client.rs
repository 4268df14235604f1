//! Serves one client: reads its request, finds the addresses, connects over a link, and relays data.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_core::units::Bytes;
use pleach_linux::{clock, owner::Transport, tcp};
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::TcpStream,
    time,
};

use super::{
    connect::{self, prepare},
    hub::Hub,
    kept::{Login, Upstream},
    live::{Live, Purpose},
    peers::{self, Striped},
};
use crate::{
    handshake::{Command, Failure, Handshake, Protocol, Refusal, Request, Step},
    relay::{
        stream::{self, Left, Session},
        stripe, udp,
    },
    stripe::CHUNK,
    target::Host,
};

/// State of a client that is kept from one request to the next.
#[derive(Debug, Default)]
struct Guest {
    /// Result of the lookup of the client's program. `None` before the lookup.
    app: Option<Option<String>>,
    login: Login,
}

/// Serves `client` until the connection ends.
pub(super) async fn serve(hub: &Rc<Hub>, mut client: TcpStream, from: SocketAddr) {
    prepare(&client);
    let mut handshake = Handshake::new();
    let mut guest = Guest::default();
    loop {
        let reading = read_request(hub, &mut client, &mut handshake);
        let request = match time::timeout(FIRST_REQUEST, reading).await {
            Ok(Ok(request)) => request,
            Ok(Err(None)) => return,
            Ok(Err(Some(refusal))) => {
                hub.count_drop("bad-request");
                tracing::debug!(%from, "refused: {}", refusal.reason);
                return farewell(&mut client, &refusal.reply).await;
            }
            Err(_) => {
                hub.count_drop("slow-request");
                let refusal = handshake.timed_out();
                tracing::debug!(%from, "refused: {}", refusal.reason);
                return farewell(&mut client, &refusal.reply).await;
            }
        };
        if request.command == Command::UdpAssociate {
            if let Err(error) = udp::associate(hub, client, from).await {
                tracing::debug!(%from, %error, "UDP association ended");
            }
            return;
        }
        let left = connect_and_relay(hub, &mut client, from, request, &mut guest).await;
        let Some(ahead) = left else { return };
        let begin = ahead.iter().position(|byte| !is_line_end(*byte));
        handshake = Handshake::new();
        handshake.handle_bytes(&ahead[begin.unwrap_or(ahead.len())..]);
        let wait = time::timeout(BETWEEN_REQUESTS, another(&client));
        if handshake.is_empty() && !matches!(wait.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Waits for the beginning of another request. Old clients send a line end after a body (RFC 9112, 2.2), which is
/// skipped.
async fn another(client: &TcpStream) -> io::Result<()> {
    let mut next = [0];
    loop {
        match client.peek(&mut next).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if is_line_end(next[0]) => client.try_read(&mut next)?,
            _ => return Ok(()),
        };
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Serves `client`, whose connection to `wanted` was redirected to the proxy.
pub(super) async fn serve_redirected(
    hub: &Rc<Hub>,
    mut client: TcpStream,
    from: SocketAddr,
    wanted: SocketAddr,
) {
    prepare(&client);
    let request = Request::tunnel(Protocol::Transparent, wanted.into());
    connect_and_relay(hub, &mut client, from, request, &mut Guest::default()).await;
}

/// Reads until a request is complete. Returns `Err(None)` if the client closed the connection.
async fn read_request(
    hub: &Hub,
    client: &mut TcpStream,
    handshake: &mut Handshake,
) -> Result<Request, Option<Refusal>> {
    loop {
        // The client may have sent further bytes together with its last message.
        loop {
            match handshake.next_step() {
                Step::More => break,
                Step::Reply(reply) => client.write_all(&reply).await.map_err(|_| None)?,
                Step::Request(request) => return Ok(*request),
                Step::Refuse(refusal) => return Err(Some(refusal)),
            }
        }
        client.readable().await.map_err(|_| None)?;
        let mut scratch = hub.buffers.scratch.borrow_mut();
        match client.try_read(&mut scratch) {
            Ok(0) => return Err(None),
            Ok(len) => handshake.handle_bytes(&scratch[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(None),
        }
    }
}

/// Serves one request. Returns the bytes of the next request that the client has already sent. Returns `None` if the
/// client cannot send another request.
async fn connect_and_relay(
    hub: &Rc<Hub>,
    client: &mut TcpStream,
    from: SocketAddr,
    mut request: Request,
    guest: &mut Guest,
) -> Option<Vec<u8>> {
    let protocol = request.protocol;
    request.is_last |= !hub.has_room_to_wait();
    guest.login.is_bound |= request.is_bound;
    let (live, opened) = match open(hub, client, from, &request, guest).await {
        Ok(opened) => opened,
        Err(failure) => {
            refuse(client, from, &request, failure).await;
            return None;
        }
    };
    let bound = match &opened {
        Opened::Plain(_, upstream) => {
            prepare(upstream);
            upstream.local_addr().unwrap_or(UNKNOWN)
        }
        Opened::Striped(..) => UNKNOWN,
    };
    if request.is_last || matches!(opened, Opened::Striped(..)) {
        request.ask_for_the_end();
    }
    let success = protocol.success(bound);
    let outcome = match (client.write_all(&success).await, opened) {
        (Ok(()), Opened::Plain(session, upstream)) => {
            stream::relay(hub, client, upstream, *session, request).await
        }
        (Ok(()), Opened::Striped(striped, sent)) => {
            let carried = &striped.carried;
            let outcome = stripe::relay(hub, client, &live, carried, request, sent).await;
            outcome.map(|()| Left::default())
        }
        (Err(error), _) => Err(error),
    };
    let (target, moved) = (&live.purpose.target, live.moved());
    let left = match outcome {
        Ok(left) => {
            tracing::debug!(%from, %target, ?moved, "connection ended");
            left
        }
        Err(error) => {
            tracing::debug!(%from, %target, ?moved, %error, "connection broke");
            hub.end(&live, true);
            return None;
        }
    };
    hub.end(&live, true);
    if let (Some(upstream), true) = (left.upstream, left.ahead.is_some()) {
        keep(hub, from, &live, upstream, guest);
    }
    if left.ahead.is_none() && protocol == Protocol::HttpRequest {
        // The client may have sent more data. Closing a socket with unread data would reset the connection, and the
        // client might lose the end of the answer.
        farewell(client, &[]).await;
    }
    left.ahead
}

/// Tells the client why its request is not served.
async fn refuse(
    client: &mut TcpStream,
    from: SocketAddr,
    request: &Request,
    (failure, text): (Failure, String),
) {
    tracing::debug!(%from, target = %request.target, "not served: {text}");
    if request.protocol == Protocol::Transparent {
        // A reset is closest to what the client would see without a proxy.
        let _ = SockRef::from(&*client).set_linger(Some(Duration::ZERO));
        return;
    }
    let text = format!("{}: {text}", request.target);
    farewell(client, &request.protocol.failure(failure, &text)).await;
}

/// Stores a connection to a server for the client's next request. `before` is the number of bytes that the connection
/// had received before `live` used it.
fn keep(
    hub: &Hub,
    from: SocketAddr,
    live: &Live,
    (stream, before): (Rc<TcpStream>, Bytes),
    guest: &mut Guest,
) {
    live.share.get().end(&stream);
    let upstream = Upstream {
        link: live.link.get(),
        stream,
        received: Bytes::new(before.get().saturating_add(live.moved().down)),
        since: clock::now(),
    };
    let target = &live.purpose.target;
    if guest.login.is_bound {
        guest.login.upstream = Some((target.clone(), upstream));
    } else {
        hub.keep(from.ip(), target, upstream);
    }
}

/// Connection to the destination that the client requested.
enum Opened {
    Plain(Box<Session>, Rc<TcpStream>),
    /// The number is the count of client bytes that were sent together with the request to the peer.
    Striped(Box<Striped>, usize),
}

/// Finds the addresses of the destination of `request` and the client's program, and checks whether the client may
/// reach the addresses.
async fn find(
    hub: &Hub,
    client: &TcpStream,
    from: SocketAddr,
    request: &Request,
    guest: &mut Guest,
) -> Result<(Vec<IpAddr>, Option<String>), (Failure, String)> {
    let here = match (request.protocol, &request.target.host) {
        // The client's socket has the requested destination as its remote address.
        (Protocol::Transparent, Host::Ip(ip)) => SocketAddr::new(*ip, request.target.port),
        _ => client.local_addr().unwrap_or(UNKNOWN),
    };
    let find_app = async {
        if guest.app.is_none() {
            guest.app = Some(hub.apps.find(Transport::Tcp, from, here).await);
        }
        guest.app.clone().flatten()
    };
    let (addresses, app) = tokio::join!(hub.resolver.resolve(&request.target), find_app);
    let addresses = addresses.map_err(|text| {
        hub.count_drop("name-not-resolved");
        (Failure::HostUnreachable, text)
    })?;
    if !addresses.iter().all(|to| hub.may_reach(from.ip(), *to)) {
        hub.count_drop("not-allowed");
        let text = "services of the proxy's own host are not for others".to_owned();
        return Err((Failure::NotAllowed, text));
    }
    Ok((addresses, app))
}

/// Finds addresses and links for `request`, and connects.
async fn open(
    hub: &Rc<Hub>,
    client: &TcpStream,
    from: SocketAddr,
    request: &Request,
    guest: &mut Guest,
) -> Result<(Rc<Live>, Opened), (Failure, String)> {
    let (addresses, app) = find(hub, client, from, request, guest).await?;
    // A server may close a stored connection at any time. So a stored connection is not used for a request that must
    // not be sent twice (RFC 9112, 9.3.1).
    let may_reuse = request.protocol == Protocol::HttpRequest
        && !guest.login.is_bound
        && request.body.is_done()
        && stream::may_replay(&request.head);
    let warm = if may_reuse {
        hub.warm(from.ip(), &request.target)
    } else {
        Vec::new()
    };
    let purpose = Purpose {
        client: from,
        dscp: tcp::received_dscp(client),
        app,
        target: request.target.clone(),
        protocol: request.protocol,
        warm,
    };
    let (live, links) = hub.begin(purpose, &addresses).map_err(|error| {
        hub.count_drop("no-link");
        (Failure::NetworkUnreachable, error.to_string())
    })?;
    let port = request.target.port;
    live.is_connecting.set(true);
    let first = if hub.settings.stripe.is_some() {
        first_words(client, request)
    } else {
        Vec::new()
    };
    let striped = peers::open(hub, &live, &links, (&addresses, port), &first).await;
    if let Some(striped) = striped {
        live.is_connecting.set(false);
        hub.striped(&live, &striped.carried);
        return Ok((live, Opened::Striped(Box::new(striped), first.len())));
    }
    let waiting = if may_reuse {
        hub.take_kept(from.ip(), &request.target, links.first().copied())
    } else {
        let own = guest.login.take(&request.target);
        // Connections without a login were removed when their link changed.
        own.filter(|upstream| hub.uplinks.has_address_of(upstream))
    };
    if let Some(upstream) = waiting {
        live.is_connecting.set(false);
        hub.reused(&live, upstream.link, &upstream.stream);
        let session = Session {
            live: Rc::clone(&live),
            addresses,
            links,
            failed: Vec::new(),
            reused: Some(upstream.received),
            may_split: may_reuse,
        };
        let opened = Opened::Plain(Box::new(session), upstream.stream);
        return Ok((live, opened));
    }
    let opened = connect::open(hub, &links, &addresses, port).await;
    live.is_connecting.set(false);
    match opened {
        Ok(opened) => {
            hub.opened(&live, opened.link, &opened.failed);
            let rest = links
                .into_iter()
                .filter(|link| Some(*link) != opened.link && !opened.failed.contains(link))
                .collect();
            let session = Session {
                live: Rc::clone(&live),
                addresses,
                links: rest,
                failed: Vec::new(),
                reused: None,
                may_split: may_reuse,
            };
            let stream = Rc::new(opened.stream);
            Ok((live, Opened::Plain(Box::new(session), stream)))
        }
        Err(error) => {
            hub.count_drop("not-connected");
            hub.end(&live, false);
            Err((error.failure, error.text))
        }
    }
}

/// Returns the bytes for the server that the client has already sent, if they may be sent twice. They can be sent
/// together with the request to a peer, and again over a plain connection if the peer does not connect.
fn first_words(client: &TcpStream, request: &Request) -> Vec<u8> {
    let mut first = match request.protocol {
        Protocol::HttpRequest => {
            // The head in the form in which it is sent over lanes.
            let mut last = request.clone();
            last.ask_for_the_end();
            last.head
        }
        Protocol::Transparent => {
            let mut said = vec![0; CHUNK];
            let peek = || Ok(recv(client, &mut said[..], RecvFlags::PEEK)?.0);
            let len = client.try_io(Interest::READABLE, peek).unwrap_or(0);
            said.truncate(len);
            said
        }
        // Clients of these protocols wait for an answer before they send data.
        Protocol::HttpConnect | Protocol::Socks4 | Protocol::Socks5 | Protocol::Striped => {
            Vec::new()
        }
    };
    first.truncate(CHUNK);
    if stream::may_replay(&first) {
        first
    } else {
        Vec::new()
    }
}

/// Sends `reply` and closes the connection so that the client can read the reply. Data that the client still sends is
/// read and discarded for a short time, because closing a socket with unread data resets the connection.
async fn farewell(client: &mut TcpStream, reply: &[u8]) {
    let goodbye = async {
        client.write_all(reply).await?;
        client.shutdown().await?;
        let mut sink = [0; 1024];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match client.read(&mut sink).await? {
                0 => break,
                len => left = left.saturating_sub(len),
            }
        }
        io::Result::Ok(())
    };
    // If this fails, the client is gone, so the error is ignored.
    let _ = time::timeout(LINGER, goodbye).await;
}

const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Maximum time until a client's first request is complete.
pub(crate) const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Maximum time between two requests of a client. Browsers open a new connection if this one is closed.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;
