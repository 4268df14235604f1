//! Answering other pleaches: who asks, what for, and whether it may.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use ipnet::IpNet;
use tokio::{net::TcpStream, time};

use super::{
    connect,
    hub::Hub,
    live::{Live, Purpose},
    peers::StripePlace,
    settings::StripeSettings,
};
use crate::{
    handshake::Protocol,
    relay::stripe::{
        Stripe, answer,
        handshake::{self, Shaken},
    },
    stripe::frame::{self, Frame, Refusal},
    target::Target,
};

/// Serves whoever connected to the peer port.
pub(super) async fn serve(hub: &Rc<Hub>, stream: TcpStream, from: SocketAddr) {
    let Some(settings) = &hub.settings.stripe else {
        return;
    };
    connect::prepare(&stream);
    let stranger = hub.peering.strangers.borrow_mut().enter();
    let keys: Vec<[u8; 32]> = settings.known.iter().map(|peer| peer.public_key).collect();
    let first = async {
        let (mut shaken, who) = handshake::answer(stream, &settings.keys, &keys).await?;
        let first = shaken.receive().await?;
        io::Result::Ok((shaken, who, first))
    };
    let first = tokio::select! {
        first = time::timeout(FIRST_WORDS, first) => first,
        () = stranger.notified() => return hub.count_drop("too-many-strangers"),
    };
    hub.peering.strangers.borrow_mut().leave(&stranger);
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
            let found = hub.peering.stripes.borrow().get(&(who, token)).cloned();
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
            let opened = open_target(hub, settings, from, who, to, &mut shaken).await;
            let (place, live, target) = match opened {
                Ok(opened) => opened,
                Err(refusal) => {
                    hub.count_drop("peer-refused");
                    let _ = shaken.send(&Frame::Refused(refusal)).await;
                    return;
                }
            };
            let stripe = Stripe::new(
                settings.known[who].name.clone(),
                settings.striping,
                &hub.peering.pulses,
            );
            let key = (who, token);
            if shaken.send(&Frame::Opened).await.is_ok()
                && !hub.peering.stripes.borrow().contains_key(&key)
            {
                hub.peering
                    .stripes
                    .borrow_mut()
                    .insert(key, Rc::clone(&stripe));
                *live.stripe.borrow_mut() = Some(Rc::clone(&stripe));
                stripe.note_heard();
                stripe.add_lane(lane, None, link, shaken);
                let outcome = answer(hub, &target, &live, &stripe).await;
                let moved = live.moved();
                match outcome {
                    Ok(()) => tracing::debug!(%from, %to, ?moved, "striped connection ended"),
                    Err(error) => {
                        tracing::debug!(%from, %to, ?moved, %error, "striped connection broke");
                    }
                }
                hub.peering.stripes.borrow_mut().remove(&key);
            }
            hub.end(&live, true);
            drop(place);
        }
        Ok(_) | Err(_) => hub.count_drop("bad-peer"),
    }
}

/// Whether a peer may go to `to`.
fn is_allowed(hub: &Hub, settings: &StripeSettings, to: SocketAddr) -> bool {
    let ip = to.ip();
    let is_own = hub.uplinks.own.borrow().contains(&ip) && !ip.is_loopback();
    // Through the ports of this very proxy it would get anywhere.
    let is_proxy = to.port() == hub.settings.listen.port()
        || settings
            .listen
            .is_some_and(|listen| listen.port() == to.port());
    let is_listed = settings.allow.iter().any(|net| lists(net, ip));
    let is_here = is_own || ip.is_loopback();
    // The unspecified address connects to this host, whatever network it is in.
    (is_own || is_listed) && !(is_here && is_proxy) && !ip.is_unspecified()
}

/// Whether `net` allows peers to go to `ip`. Loopback and link-local addresses are this host's own affair, those of clouds
/// that hand out credentials among them: only a network of such addresses means them, not one that is everything.
fn lists(net: &IpNet, ip: IpAddr) -> bool {
    let inner = ["127.0.0.0/8", "::1/128", "169.254.0.0/16", "fe80::/10"];
    let mut inner = inner.iter().filter_map(|text| text.parse::<IpNet>().ok());
    let within = inner.find(|inner| inner.contains(&ip));
    net.contains(&ip) && within.is_none_or(|within| within.contains(net))
}

/// Connects to where peer `who` wants, if it may, and as long as it waits for that.
async fn open_target(
    hub: &Rc<Hub>,
    settings: &StripeSettings,
    from: SocketAddr,
    who: usize,
    to: SocketAddr,
    lane: &mut Shaken,
) -> Result<(impl Sized + use<>, Rc<Live>, TcpStream), Refusal> {
    if !is_allowed(hub, settings, to) {
        let peer = &settings.known[who].name;
        tracing::info!(
            peer,
            %to,
            "a peer may not go there: this host has no such address, and [peer] allow does not list it"
        );
        return Err(Refusal::NotAllowed);
    }
    let addresses = [to.ip()];
    let places = (
        StripePlace::take(hub, settings).ok_or(Refusal::Busy)?,
        hub.admit_redirected().ok_or(Refusal::Busy)?,
    );
    let purpose = Purpose {
        client: from,
        app: Some(settings.known[who].name.clone()),
        target: Target::from(to),
        protocol: Protocol::Striped,
        warm: Vec::new(),
    };
    let (live, links) = hub
        .begin(purpose, &addresses)
        .map_err(|_| Refusal::Unreachable)?;
    let opened = tokio::select! {
        opened = connect::open(hub, &links, &addresses, to.port()) => opened.map_err(|error| error.text),
        // Nothing is to come before the answer.
        _ = lane.receive() => Err("it waits no more".to_owned()),
    };
    match opened {
        Ok(opened) => {
            connect::prepare(&opened.stream);
            hub.opened(&live, opened.link, &opened.failed);
            Ok((places, live, opened.stream))
        }
        Err(text) => {
            tracing::debug!(%to, "a peer's target is not reached: {text}");
            hub.end(&live, false);
            Err(Refusal::Unreachable)
        }
    }
}

const FIRST_WORDS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::{
        daemon::hub::tests::{add_link, hub, striping},
        relay::stripe::tests::{run, shaken},
        sched::LinkId,
    };

    #[test]
    fn a_peer_gets_to_what_it_may_and_never_round_about() {
        let mut hub = hub();
        hub.settings.listen = ([127, 0, 0, 1], 1080).into();
        hub.uplinks.own.borrow_mut().insert([192, 0, 2, 7].into());
        let mut settings = striping();
        let allows = |settings: &StripeSettings, to: &str| {
            is_allowed(&hub, settings, to.parse().expect("address"))
        };
        assert!(allows(&settings, "192.0.2.7:80"));
        assert!(!allows(&settings, "192.0.2.8:80"));
        assert!(!allows(&settings, "127.0.0.1:80"));
        settings.allow = ["0.0.0.0/0", "::/0"]
            .map(|net| net.parse().expect("network"))
            .into();
        assert!(allows(&settings, "192.0.2.8:1080"));
        for to in [
            "192.0.2.7:1080",
            "192.0.2.7:7701",
            "127.0.0.1:1080",
            "127.0.0.1:80",
            "[::1]:80",
            "169.254.169.254:80",
            "[fe80::1]:80",
            "0.0.0.0:80",
            "0.0.0.0:1080",
            "[::]:1080",
        ] {
            assert!(!allows(&settings, to), "{to}");
        }
        settings.allow = ["127.0.0.0/8", "169.254.0.0/16", "fe80::/64"]
            .map(|net| net.parse().expect("network"))
            .into();
        for to in ["127.0.0.1:80", "169.254.169.254:80", "[fe80::1]:80"] {
            assert!(allows(&settings, to), "{to}");
        }
    }

    #[test]
    fn the_link_that_got_there_is_the_one_that_counts() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let to = listener.local_addr().expect("bound");
            let hub = hub();
            hub.uplinks.locals.borrow_mut().clear();
            for device in ["pleach-none", "lo"] {
                add_link(&hub, device);
            }
            let hub = Rc::new(hub);
            let mut settings = striping();
            settings.allow.push("127.0.0.0/8".parse().expect("network"));
            let [_peer, mut lane] = shaken().await;
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let opened = open_target(&hub, &settings, any, 0, to, &mut lane).await;
            let Ok((_, live, _)) = opened else {
                panic!("the second link leads there");
            };
            assert_eq!(live.link.get(), Some(LinkId(1)));
        });
    }

    #[test]
    fn who_waits_no_more_is_connected_no_more() {
        run(async {
            // Its queue is full: who comes waits.
            let kind = socket2::Type::STREAM;
            let full = socket2::Socket::new(socket2::Domain::IPV4, kind, None).expect("socket");
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            full.bind(&any.into()).expect("a port");
            full.listen(0).expect("bound");
            let to = full.local_addr().expect("bound").as_socket().expect("IP");
            let _first = TcpStream::connect(to).await.expect("room for one");

            let hub = Rc::new(hub());
            let mut settings = striping();
            settings.allow.push("127.0.0.0/8".parse().expect("network"));
            let [peer, mut lane] = shaken().await;
            let opening = open_target(&hub, &settings, any, 0, to, &mut lane);
            let leaving = async {
                while hub.table.live.borrow().is_empty() {
                    time::sleep(Duration::from_millis(1)).await;
                }
                drop(peer);
            };
            let (opened, ()) = tokio::join!(opening, leaving);
            assert!(matches!(opened, Err(Refusal::Unreachable)));
            assert!(hub.table.live.borrow().is_empty());
        });
    }
}
