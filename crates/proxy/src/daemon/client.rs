//! One client, from its first byte on: what it wants, where to, over which link; then the relay.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

use super::{
    connect,
    hub::{Hub, Live, Purpose},
    peers::{self, Keeper},
};
use crate::{
    handshake::{Body, Command, Failure, Handshake, Protocol, Refusal, Request, Step},
    relay::{stream, stripe, udp},
    sched::LinkId,
    target::Host,
};

/// A request that is being served, with what is needed to serve it over another link.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) live: Rc<Live>,
    pub(crate) addresses: Vec<IpAddr>,
    /// Links not tried yet, best first.
    pub(crate) links: Vec<LinkId>,
    /// Links that were tried and did not work.
    pub(crate) failed: Vec<LinkId>,
}

/// Serves `client` until it ends.
pub(super) async fn serve(hub: &Rc<Hub>, mut client: TcpStream, from: SocketAddr) {
    prepare(&client);
    let mut handshake = Handshake::new();
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
    match request.command {
        Command::Connect => connect_and_relay(hub, client, from, request).await,
        Command::UdpAssociate => {
            if let Err(error) = udp::associate(hub, client, from).await {
                tracing::debug!(%from, %error, "UDP association ended");
            }
        }
    }
}

/// Serves `client`, who wanted to go to `wanted` and was redirected here.
pub(super) async fn serve_redirected(
    hub: &Rc<Hub>,
    client: TcpStream,
    from: SocketAddr,
    wanted: SocketAddr,
) {
    prepare(&client);
    let request = Request {
        protocol: Protocol::Transparent,
        command: Command::Connect,
        target: wanted.into(),
        head: Vec::new(),
        body: Body::Tunnel,
        rest: Vec::new(),
    };
    connect_and_relay(hub, client, from, request).await;
}

/// Reads until a request is complete. `Err(None)`: the client left.
async fn read_request(
    hub: &Hub,
    client: &mut TcpStream,
    handshake: &mut Handshake,
) -> Result<Request, Option<Refusal>> {
    loop {
        client.readable().await.map_err(|_| None)?;
        let read = {
            let mut scratch = hub.scratch.borrow_mut();
            match client.try_read(&mut scratch) {
                Ok(0) => return Err(None),
                Ok(len) => {
                    handshake.handle_bytes(&scratch[..len]);
                    Ok(())
                }
                Err(error) => Err(error),
            }
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err(None),
            Ok(()) => {}
        }
        loop {
            match handshake.next_step() {
                Step::More => break,
                Step::Reply(reply) => client.write_all(&reply).await.map_err(|_| None)?,
                Step::Request(request) => return Ok(*request),
                Step::Refuse(refusal) => return Err(Some(refusal)),
            }
        }
    }
}

async fn connect_and_relay(
    hub: &Rc<Hub>,
    mut client: TcpStream,
    from: SocketAddr,
    request: Request,
) {
    let protocol = request.protocol;
    let (live, opened) = match open(hub, &client, from, &request).await {
        Ok(opened) => opened,
        Err((failure, text)) => {
            tracing::debug!(%from, target = %request.target, "not served: {text}");
            if protocol == Protocol::Transparent {
                // What the client would have seen without a proxy comes closest to this.
                let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
                return;
            }
            let text = format!("{}: {text}", request.target);
            return farewell(&mut client, &protocol.failure(failure, &text)).await;
        }
    };
    let bound = match &opened {
        Opened::Plain(_, upstream) => {
            prepare(upstream);
            upstream.local_addr().unwrap_or(UNKNOWN)
        }
        Opened::Striped(_) => UNKNOWN,
    };
    let success = protocol.success(bound);
    let outcome = match (client.write_all(&success).await, opened) {
        (Ok(()), Opened::Plain(session, upstream)) => {
            stream::relay(hub, client, upstream, *session, request).await
        }
        (Ok(()), Opened::Striped(mut keeper)) => {
            let stripe = Rc::clone(&keeper.stripe);
            tokio::select! {
                outcome = stripe::relay(hub, &client, &live, &stripe, request) => outcome,
                () = keeper.keep(&live) => Ok(()),
            }
        }
        (Err(error), _) => Err(error),
    };
    let (target, moved) = (&live.purpose.target, live.moved());
    match outcome {
        Ok(()) => tracing::debug!(%from, %target, ?moved, "connection ended"),
        Err(error) => tracing::debug!(%from, %target, ?moved, %error, "connection broke"),
    }
    hub.end(&live, true);
}

/// A connection to where the client wants.
enum Opened {
    Plain(Box<Session>, TcpStream),
    Striped(Box<Keeper>),
}

/// Finds addresses and links for `request` and connects.
async fn open(
    hub: &Rc<Hub>,
    client: &TcpStream,
    from: SocketAddr,
    request: &Request,
) -> Result<(Rc<Live>, Opened), (Failure, String)> {
    let here = match (request.protocol, &request.target.host) {
        // As the client sees it.
        (Protocol::Transparent, Host::Ip(ip)) => SocketAddr::new(*ip, request.target.port),
        _ => client.local_addr().unwrap_or(UNKNOWN),
    };
    let (addresses, app) = tokio::join!(
        hub.resolver.resolve(&request.target),
        hub.apps.find(from, here)
    );
    let addresses = addresses.map_err(|text| {
        hub.count_drop("name-not-resolved");
        (Failure::HostUnreachable, text)
    })?;
    if !addresses.iter().all(|to| hub.may_reach(from.ip(), *to)) {
        hub.count_drop("not-allowed");
        let text = "services of the proxy's own host are not for others".to_owned();
        return Err((Failure::NotAllowed, text));
    }
    let purpose = Purpose {
        client: from,
        app,
        target: request.target.clone(),
        protocol: request.protocol,
    };
    let (live, links) = hub.begin(purpose, &addresses).map_err(|error| {
        hub.count_drop("no-link");
        (Failure::NetworkUnreachable, error.to_string())
    })?;
    let port = request.target.port;
    live.is_connecting.set(true);
    if let Some(keeper) = peers::open(hub, &live, &links, &addresses, port).await {
        live.is_connecting.set(false);
        hub.striped(&live, &keeper.stripe);
        return Ok((live, Opened::Striped(Box::new(keeper))));
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
            };
            Ok((live, Opened::Plain(Box::new(session), opened.stream)))
        }
        Err(error) => {
            hub.count_drop("not-connected");
            hub.end(&live, false);
            Err((error.failure, error.text))
        }
    }
}

/// Sends the last words and closes so that the client can read them: what it still sends is read away for a moment,
/// since closing a socket with unread data resets the connection.
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
    // Nobody is left to tell if this fails.
    let _ = time::timeout(LINGER, goodbye).await;
}

/// Options of every TCP socket here: no delay for small segments, and dead peers are noticed.
pub(super) fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(4);
    // A socket that refuses works without.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
}

const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// How long a client may take to say what it wants.
pub(crate) const FIRST_REQUEST: Duration = Duration::from_secs(10);
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;
const KEEPALIVE: Duration = Duration::from_secs(60);
