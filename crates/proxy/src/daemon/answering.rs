//! Answering other pleaches: who asks, what for, and whether it may.

use std::{io, net::SocketAddr, rc::Rc, time::Duration};

use tokio::{net::TcpStream, time};

use super::{
    client, connect,
    hub::{Hub, Live, Purpose},
    peers::StripePlace,
    settings::StripeSettings,
};
use crate::{
    handshake::Protocol,
    relay::stripe::{Stripe, answer, handshake},
    stripe::frame::{self, Frame, Refusal},
    target::Target,
};

/// Serves whoever connected to the peer port; at most [`MAX_STRANGERS`] that have not said who they are.
pub(super) async fn serve(hub: &Rc<Hub>, stream: TcpStream, from: SocketAddr) {
    let Some(settings) = &hub.settings.stripe else {
        return;
    };
    if hub.strangers.get() >= MAX_STRANGERS {
        hub.count_drop("too-many-strangers");
        return;
    }
    client::prepare(&stream);
    hub.strangers.set(hub.strangers.get() + 1);
    let keys: Vec<[u8; 32]> = settings.known.iter().map(|peer| peer.public_key).collect();
    let first = async {
        let (mut shaken, who) = handshake::answer(stream, &settings.keys, &keys).await?;
        let first = shaken.receive().await?;
        io::Result::Ok((shaken, who, first))
    };
    let first = time::timeout(FIRST_WORDS, first).await;
    hub.strangers.set(hub.strangers.get().saturating_sub(1));
    let (mut shaken, who, first) = match first {
        Ok(Ok(first)) => first,
        Ok(Err(error)) => {
            // Those who only ask hang up after the greeting.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                hub.count_drop("bad-peer");
                tracing::debug!(%from, %error, "not a peer");
            }
            return;
        }
        Err(_) => return hub.count_drop("slow-peer"),
    };
    match frame::decode(&first) {
        Ok(Frame::Join { token, lane, link }) => {
            let found = hub.stripes.borrow().get(&(who, token)).cloned();
            if let Some(stripe) = found {
                stripe.add_lane(lane, None, link, shaken);
            }
        }
        Ok(Frame::Open {
            token,
            lane,
            link,
            wanted,
        }) => {
            let local = shaken.stream.local_addr();
            let ip = wanted.ip.or(local.ok().map(|local| local.ip()));
            let Some(ip) = ip.map(|ip| ip.to_canonical()) else {
                return;
            };
            let to = SocketAddr::new(ip, wanted.port);
            let opened = open_target(hub, settings, from, who, to).await;
            let (place, live, target) = match opened {
                Ok(opened) => opened,
                Err(refusal) => {
                    hub.count_drop("peer-refused");
                    let _ = shaken.send(&Frame::Refused(refusal)).await;
                    return;
                }
            };
            let stripe = Stripe::new(settings.known[who].name.clone(), settings.striping);
            let key = (who, token);
            if shaken.send(&Frame::Opened).await.is_ok() && !hub.stripes.borrow().contains_key(&key)
            {
                hub.stripes.borrow_mut().insert(key, Rc::clone(&stripe));
                *live.stripe.borrow_mut() = Some(Rc::clone(&stripe));
                stripe.add_lane(lane, None, link, shaken);
                if let Err(error) = answer(hub, &target, &live, &stripe).await {
                    tracing::debug!(%from, %to, %error, "striped connection broke");
                }
                hub.stripes.borrow_mut().remove(&key);
            }
            hub.end(&live, true);
            drop(place);
        }
        Ok(_) | Err(_) => hub.count_drop("bad-peer"),
    }
}

/// Connects to where peer `who` wants, if it may.
async fn open_target(
    hub: &Rc<Hub>,
    settings: &StripeSettings,
    from: SocketAddr,
    who: usize,
    to: SocketAddr,
) -> Result<(impl Sized + use<>, Rc<Live>, TcpStream), Refusal> {
    let ip = to.ip();
    let is_own = hub.own.borrow().contains(&ip) && !ip.is_loopback();
    // Through the ports of this very proxy it would get anywhere.
    let is_proxy = to.port() == hub.settings.listen.port()
        || settings
            .listen
            .is_some_and(|listen| listen.port() == to.port());
    let is_allowed = is_own || settings.allow.iter().any(|net| net.contains(&ip));
    let is_here = is_own || ip.is_loopback();
    if !is_allowed || is_here && is_proxy {
        return Err(Refusal::NotAllowed);
    }
    let places = (
        StripePlace::take(hub, settings).ok_or(Refusal::Busy)?,
        hub.admit_redirected().ok_or(Refusal::Busy)?,
    );
    let purpose = Purpose {
        client: from,
        app: Some(settings.known[who].name.clone()),
        target: Target::from(to),
        protocol: Protocol::Striped,
    };
    let (live, links) = hub
        .begin(purpose, &[ip])
        .map_err(|_| Refusal::Unreachable)?;
    match connect::open(hub, &links, &[ip], to.port()).await {
        Ok(opened) => {
            client::prepare(&opened.stream);
            Ok((places, live, opened.stream))
        }
        Err(error) => {
            tracing::debug!(%to, "a peer's target is not reached: {}", error.text);
            hub.end(&live, false);
            Err(Refusal::Unreachable)
        }
    }
}

const FIRST_WORDS: Duration = Duration::from_secs(5);
const MAX_STRANGERS: usize = 64;
