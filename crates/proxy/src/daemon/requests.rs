//! The plain HTTP requests of a client, one after the other, each placed anew: so a page uses all links though a browser
//! has few connections, and what is left of its objects is evened out with every request.
//!
//! They come to the proxy as such, or are overheard ([`overheard`]) in connections to [`PORTS`] whose sites keep no link.

use std::{io, net::SocketAddr, rc::Rc, time::Duration};

use socket2::SockRef;
use tokio::{net::TcpStream, time};

use super::{
    client::{self, FIRST_REQUEST, Opened, Session},
    hub::{Hub, Live},
};
use crate::{
    handshake::{
        Body, Exchange, Handshake, Refusal, Request, Step,
        overheard::{self, Overheard},
    },
    relay::{
        http::{self, After},
        pipe, stream, stripe,
    },
};

/// Serves `client`, which has sent `request`, until it ends.
pub(super) async fn serve(
    hub: &Rc<Hub>,
    mut client: TcpStream,
    from: SocketAddr,
    mut request: Request,
) {
    // Who asks does not change with the request.
    let app = client::find_app(hub, &client, from, &request).await;
    while let Some(exchange) = request.exchange {
        let answered = answer(hub, &mut client, from, app.clone(), request, exchange).await;
        let Some(beyond) = answered else { return };
        request = match next_request(hub, &mut client, beyond).await {
            Ok(next) => next,
            Err(None) => return,
            Err(Some(refusal)) => {
                hub.count_drop("bad-request");
                tracing::debug!(%from, "refused: {}", refusal.reason);
                return client::farewell(&mut client, &refusal.reply).await;
            }
        };
    }
    // A client may change to CONNECT.
    client::connect_and_relay(hub, client, from, request).await;
}

/// Whether the requests in a connection may be placed each for itself.
pub(super) fn may_overhear(hub: &Hub, request: &Request) -> bool {
    let port = request.target.port;
    request.body == Body::Tunnel
        && PORTS.contains(&port)
        && !hub.settings.placer.stickiness.holds(port)
        // Who stripes gains more by that.
        && hub.settings.stripe.is_none()
}

/// Serves `client`, for which a connection to where it wanted was just made, until it ends: request by request, as long as it
/// sends such.
pub(super) async fn overhear(
    hub: &Rc<Hub>,
    mut client: TcpStream,
    from: SocketAddr,
    app: Option<String>,
    upstream: Rc<TcpStream>,
    session: Session,
    mut request: Request,
) {
    let target = request.target.clone();
    let protocol = request.protocol;
    let live = Rc::clone(&session.live);
    live.upstream.replace(Some(Rc::clone(&upstream)));
    let words = first_words(hub, &client, Some((&upstream, &live)), &mut request.rest).await;
    let mut beyond = match words {
        Ok(Overheard::Request {
            len,
            body,
            exchange,
        }) => {
            let request = overheard_request(request, len, body, exchange);
            let outcome = http::relay(hub, &client, upstream, session, request, exchange).await;
            after(hub, &mut client, &live, outcome).await
        }
        Ok(Overheard::More | Overheard::Other) => {
            let outcome = stream::relay(hub, &client, upstream, session, request).await;
            return over(hub, &live, outcome);
        }
        Err(error) => return over(hub, &live, Err(error)),
    };
    while let Some(mut rest) = beyond.take() {
        let words = first_words(hub, &client, None, &mut rest);
        let words = time::timeout(IDLE.min(hub.settings.idle), words).await;
        if rest.is_empty() {
            return;
        }
        let request = Request::tunnel(protocol, target.clone(), rest);
        match words {
            Ok(Ok(Overheard::Request {
                len,
                body,
                exchange,
            })) => {
                let request = overheard_request(request, len, body, exchange);
                beyond = answer(hub, &mut client, from, app.clone(), request, exchange).await;
            }
            Ok(Ok(Overheard::More | Overheard::Other)) => {
                return tunnel(hub, &client, from, app, request).await;
            }
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Reads into `words` until it is clear what the client has begun to say; with the server it was connected to, if that has
/// still to say its first word, too.
async fn first_words(
    hub: &Hub,
    client: &TcpStream,
    server: Option<(&TcpStream, &Live)>,
    words: &mut Vec<u8>,
) -> io::Result<Overheard> {
    let mut patience = None;
    loop {
        let found = overheard::listen(words);
        if found != Overheard::More {
            return Ok(found);
        }
        if !words.is_empty() && patience.is_none() {
            patience = Some(Box::pin(time::sleep(WHOLE_HEAD)));
        }
        let slow = async {
            match &mut patience {
                Some(patience) => patience.await,
                None => std::future::pending().await,
            }
        };
        let other = async {
            let Some((upstream, live)) = server else {
                return std::future::pending().await;
            };
            tokio::select! {
                ready = upstream.readable() => ready,
                () = live.stopped() => Err(stream::stopped(live)),
            }
        };
        tokio::select! {
            // Whatever it is, it goes on as it came.
            () = slow => return Ok(Overheard::Other),
            ready = other => return ready.map(|()| Overheard::Other),
            ready = client.readable() => ready?,
        }
        let mut scratch = hub.scratch.borrow_mut();
        match client.try_read(&mut scratch) {
            // The end comes again to whoever reads next.
            Ok(0) => return Ok(Overheard::Other),
            Ok(len) => words.extend_from_slice(&scratch[..len]),
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// `request`, a tunnel, with the head of `len` bytes found in it.
fn overheard_request(mut request: Request, len: usize, body: Body, exchange: Exchange) -> Request {
    let rest = request.rest.split_off(len);
    request.head = std::mem::replace(&mut request.rest, rest);
    request.body = body;
    request.exchange = Some(exchange);
    request
}

/// A connection that is no request any more: over one link to its end.
async fn tunnel(
    hub: &Rc<Hub>,
    client: &TcpStream,
    from: SocketAddr,
    app: Option<String>,
    request: Request,
) {
    match client::open(hub, from, app, &request).await {
        Ok((live, Opened::Plain(session, upstream))) => {
            let outcome = stream::relay(hub, client, upstream, *session, request).await;
            over(hub, &live, outcome);
        }
        // Nobody stripes here: `may_overhear`.
        Ok((live, Opened::Striped(_))) => hub.end(&live, false),
        Err((_, text)) => {
            tracing::debug!(%from, target = %request.target, "not served: {text}");
            reset(client);
        }
    }
}

fn over(hub: &Hub, live: &Live, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(target = %live.purpose.target, %error, "connection broke");
    }
    hub.end(live, true);
}

/// Answers one request: what the client has said beyond it, if it may ask again.
async fn answer(
    hub: &Rc<Hub>,
    client: &mut TcpStream,
    from: SocketAddr,
    app: Option<String>,
    mut request: Request,
    exchange: Exchange,
) -> Option<Vec<u8>> {
    let (live, opened) = match client::open(hub, from, app, &request).await {
        Ok(opened) => opened,
        Err((failure, text)) => {
            tracing::debug!(%from, target = %request.target, "not served: {text}");
            if exchange.is_overheard {
                reset(client);
                return None;
            }
            let text = format!("{}: {text}", request.target);
            let page = request.protocol.failure(failure, &text);
            client::farewell(client, &page).await;
            return None;
        }
    };
    match opened {
        Opened::Plain(session, upstream) => {
            request.seal(exchange.server_keeps);
            let outcome = http::relay(hub, client, upstream, *session, request, exchange).await;
            after(hub, client, &live, outcome).await
        }
        Opened::Striped(mut keeper) => {
            // It ends with its one answer.
            request.seal(false);
            let stripe = Rc::clone(&keeper.stripe);
            let outcome = tokio::select! {
                outcome = stripe::relay(hub, client, &live, &stripe, request) => outcome,
                () = keeper.keep() => Ok(()),
            };
            over(hub, &live, outcome);
            None
        }
    }
}

/// Ends what `live` stands for: what the client has said beyond it, if it may ask again.
async fn after(
    hub: &Hub,
    client: &mut TcpStream,
    live: &Live,
    outcome: io::Result<After>,
) -> Option<Vec<u8>> {
    hub.end(live, true);
    let after = match outcome {
        Ok(after) => after,
        Err(error) => {
            tracing::debug!(target = %live.purpose.target, %error, "exchange broke");
            return None;
        }
    };
    if let Some(upstream) = after.upstream {
        hub.put_idle(live, upstream);
    }
    if after.beyond.is_none() {
        // It may still be sending what the server did not want.
        client::farewell(client, &[]).await;
    }
    after.beyond
}

/// Waits for the next request, which begins with `begin`. `Err(None)`: none comes.
async fn next_request(
    hub: &Rc<Hub>,
    client: &mut TcpStream,
    begin: Vec<u8>,
) -> Result<Request, Option<Refusal>> {
    if begin.is_empty() {
        let waited = time::timeout(IDLE.min(hub.settings.idle), client.readable());
        waited.await.map_err(|_| None)?.map_err(|_| None)?;
    }
    let mut handshake = Handshake::of(begin);
    match handshake.next_step() {
        Step::More => {}
        Step::Reply(_) => return Err(None),
        Step::Request(request) => return Ok(*request),
        Step::Refuse(refusal) => return Err(Some(refusal)),
    }
    let reading = client::read_request(hub, client, &mut handshake);
    match time::timeout(FIRST_REQUEST, reading).await {
        Ok(outcome) => outcome,
        Err(_) if handshake.is_empty() => Err(None),
        Err(_) => Err(Some(handshake.timed_out())),
    }
}

/// What the client would have seen without a proxy comes closest to this.
fn reset(client: &TcpStream) {
    let _ = SockRef::from(client).set_linger(Some(Duration::ZERO));
}

/// Ports on which HTTP is spoken in the clear.
const PORTS: [u16; 6] = [80, 8000, 8008, 8080, 8081, 8888];
/// How long a client may have nothing to ask.
const IDLE: Duration = Duration::from_secs(60);
/// So long the head of a request may take that is only overheard.
const WHOLE_HEAD: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
