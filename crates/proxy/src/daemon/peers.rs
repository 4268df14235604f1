//! Connections to other hosts that run pleach: asks whether a peer answers at a destination, and opens connections to
//! it over shared lanes (TCP connections to the peer, one on each link). `dialing` dials the lanes; `answering`
//! answers other hosts.
//!
//! To ask, the proxy opens one connection to `peer_port` of the destination. In parallel it opens a plain connection
//! to the destination, which does not wait for the answer. The answer is stored
//! ([`Places`](crate::stripe::peers::Places)). If a peer has answered, later connections are striped at once. If a
//! striped connection does not open within [`OPEN_PATIENCE`], it is replaced by a plain one. Later connections are
//! then plain as well: all of them if the peer has not completed a handshake, or those to the same target if the peer
//! does not allow this target.
//!
//! The host that answers at an address need not own the address: a port can be forwarded. So the request names the
//! wanted address, and the peer accepts the connection only if the address is its own. The request leaves the address
//! out, and so means the peer's own host, only if the user configured the address as the peer's.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_linux::clock;
use tokio::{task::spawn_local, time};

use super::{
    dialing::{self, connect_to},
    hub::Hub,
    live::Live,
    settings::StripeSettings,
    stripe_place::StripePlace,
};
use crate::{
    relay::stripe::{carried::Carried, handshake},
    sched::LinkId,
    stripe::{
        frame::{Refusal, Wanted},
        peers::Answer,
    },
};

/// A connection over the lanes to a peer, with its place in the count of striped connections.
#[derive(Debug)]
pub(crate) struct Striped {
    pub(crate) carried: Carried,
    _place: StripePlace,
}

/// Connects to `port` at one of `addresses` through a peer, if a peer is known there. Otherwise asks whether a peer
/// answers there, for later connections. `first` is sent with the request, and may be repeated over a plain
/// connection.
pub(crate) async fn open(
    hub: &Rc<Hub>,
    live: &Live,
    links: &[LinkId],
    (addresses, port): (&[IpAddr], u16),
    first: &[u8],
) -> Option<Striped> {
    let settings = hub.settings.stripe.as_ref()?;
    // A rule that names the link excludes striping, and without links there is nothing to stripe over.
    if live.is_tied() || links.is_empty() {
        return None;
    }
    let to_port = |ip: &IpAddr| SocketAddr::new(*ip, port);
    let way = |ip: &IpAddr| Some((way(hub, settings, to_port(ip))?, to_port(ip)));
    let Some((Way { peer, to, target }, wanted)) = addresses.iter().find_map(way) else {
        if let Some(ip) = addresses.first() {
            ask_once(hub, settings, links[0], *ip);
        }
        return None;
    };
    let place = StripePlace::take(hub, settings)?;
    let association = dialing::association(hub, peer, to, target.is_some())?;
    let asked = Wanted { ip: target, port };
    let carried = Carried::ask(&association, asked, first)?;
    let patience = if association.is_heard(clock::now(), HEARD) {
        HEARD_PATIENCE
    } else {
        OPEN_PATIENCE
    };
    let answer = time::timeout(patience, carried.answered()).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let now = clock::now();
    let mut places = hub.peering.places.borrow_mut();
    match answer {
        Ok(None) => {
            if places.answer(now, to.ip()) == Some(Answer::Peer(peer)) {
                places.note(now, to.ip(), Answer::Peer(peer));
            }
            let _place = place;
            return Some(Striped { carried, _place });
        }
        Ok(Some(Refusal::NotAllowed)) => {
            let peer_name = settings.known.get(peer).map(|known| known.name.clone());
            tracing::info!(
                peer = peer_name,
                target = %wanted,
                "the peer does not allow this; connections there go plain. If the address is the peer's own, seen from \
                 outside its NAT, say so by endpoint and networks under [[known_peer]]"
            );
            places.note_refused(now, peer, wanted);
        }
        // The peer has completed a handshake, so it is present. Perhaps only the destination did not answer.
        Ok(Some(Refusal::Busy | Refusal::Unreachable)) => {}
        Err(_) if association.is_met() => {}
        Err(error) => {
            tracing::debug!(%to, %error, "no peer any more");
            places.note(now, to.ip(), Answer::Nobody);
        }
    }
    None
}

/// A peer through which a destination can be reached.
pub(super) struct Way {
    pub(super) peer: usize,
    /// Address at which the peer answers.
    pub(super) to: SocketAddr,
    /// Address to request from the peer. `None` means the peer's own host, whatever its addresses.
    pub(super) target: Option<IpAddr>,
}

/// Returns how to reach `target` through a peer, if a known peer allows it.
pub(super) fn way(hub: &Hub, settings: &StripeSettings, target: SocketAddr) -> Option<Way> {
    let places = hub.peering.places.borrow();
    let (now, ip) = (clock::now(), target.ip());
    let may = |peer: usize| !places.is_refused(now, peer, target);
    // If an address has merely answered with the peer's greeting, its owner is not known.
    let is_configured = |peer: usize| {
        let known = settings.known.get(peer);
        known.is_some_and(|known| {
            let serves = known.serves.as_ref();
            serves.is_some_and(|(endpoint, _)| endpoint.ip() == ip)
        })
    };
    let target = |peer: usize| (!is_configured(peer)).then_some(ip);
    if let Some(Answer::Peer(peer)) = places.answer(now, ip)
        && settings.ask_port > 0
        && may(peer)
    {
        return Some(Way {
            peer,
            to: SocketAddr::new(ip, settings.ask_port),
            target: target(peer),
        });
    }
    let mut known = settings.known.all().into_iter();
    known.find_map(|(peer, known)| {
        let (to, networks) = known.serves.as_ref()?;
        let is_gone = places.answer(now, to.ip()) == Some(Answer::Nobody);
        let serves = networks.iter().any(|net| net.contains(&ip));
        (serves && !is_gone && may(peer)).then_some(Way {
            peer,
            to: *to,
            target: target(peer),
        })
    })
}

/// Finds out in the background whether a known peer answers at `ip`, unless the answer is known or other addresses must
/// not be asked.
pub(super) fn ask_once(hub: &Rc<Hub>, settings: &StripeSettings, link: LinkId, ip: IpAddr) {
    let known = hub.peering.places.borrow().answer(clock::now(), ip);
    if settings.ask_port > 0 && known.is_none() {
        ask(hub, link, ip);
    }
}

/// Finds out in the background whether a known peer answers at `ip`.
fn ask(hub: &Rc<Hub>, link: LinkId, ip: IpAddr) {
    if hub.peering.asking.get() >= MAX_ASKING {
        return;
    }
    hub.peering.asking.set(hub.peering.asking.get() + 1);
    hub.peering
        .places
        .borrow_mut()
        .note(clock::now(), ip, Answer::Asked);
    let hub = Rc::clone(hub);
    spawn_local(async move {
        let found = async {
            let settings = hub.settings.stripe.as_ref()?;
            let to = SocketAddr::new(ip, settings.ask_port);
            let mut stream = connect_to(&hub, link, to).await.ok()?;
            let known = settings.known.all();
            let keys = known.iter().map(|(_, peer)| &peer.public_key);
            let found = handshake::read_greeting(&mut stream, keys).await;
            let (number, _) = known.get(found.ok().flatten()?)?;
            Some(*number)
        };
        let found = time::timeout(ASK_PATIENCE, found).await.ok().flatten();
        let answer = found.map_or(Answer::Nobody, Answer::Peer);
        tracing::debug!(%ip, ?answer, "asked for a peer");
        hub.peering
            .places
            .borrow_mut()
            .note(clock::now(), ip, answer);
        hub.peering
            .asking
            .set(hub.peering.asking.get().saturating_sub(1));
    });
}

/// Time after which a connection to a known peer is replaced by a plain one. It covers a connection, a handshake and
/// the initial TCP retransmission timeout (RFC 6298, section 2.1).
pub(super) const OPEN_PATIENCE: Duration = Duration::from_millis(3300);
/// As [`OPEN_PATIENCE`], for a peer that was heard from within [`HEARD`]. On a saturated link the first packet may be
/// lost, and its retransmission as well.
const HEARD_PATIENCE: Duration = Duration::from_secs(5);
/// A peer that was heard from within this time counts as present, even if one connection to it fails.
const HEARD: Duration = Duration::from_secs(30);
const ASK_PATIENCE: Duration = Duration::from_secs(5);
const MAX_ASKING: usize = 8;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;
    use pleach_core::session::handshake::StaticKeys;
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;
    use crate::{
        daemon::{
            hub::tests::{add_link, begin, hub, striping},
            known::{Known, KnownPeer},
            live::Stop,
        },
        relay::stripe::{handshake::Shaken, tests::run},
        stripe::{
            channel,
            frame::{self, Bye, ConnId, Frame, Token},
        },
    };

    /// Returns a hub that knows a peer at the address of the returned listener.
    async fn hub_and_peer() -> (Rc<Hub>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut hub = hub();
        add_link(&hub, "lo");
        let mut settings = striping();
        settings.known = Known::new(vec![peer(None)]);
        settings.ask_port = listener.local_addr().expect("bound").port();
        hub.settings.stripe = Some(settings);
        // So that the peer's address requires a link.
        hub.uplinks.locals.borrow_mut().clear();
        note(&hub, Answer::Peer(0));
        (Rc::new(hub), listener)
    }

    fn note(hub: &Hub, answer: Answer) {
        let mut places = hub.peering.places.borrow_mut();
        places.note(clock::now(), HERE, answer);
    }

    fn peer(serves: Option<(SocketAddr, Vec<ipnet::IpNet>)>) -> KnownPeer {
        KnownPeer {
            name: "peer".to_owned(),
            public_key: *peer_keys().public(),
            serves,
        }
    }

    fn peer_keys() -> StaticKeys {
        StaticKeys::from_private([4; 32])
    }

    /// Accepts a lane as the peer. The frame `Join` of the lane must begin a new association.
    async fn met(listener: &TcpListener) -> Shaken {
        let (shaken, _, is_new) = joined(listener).await;
        assert!(is_new);
        shaken
    }

    /// Accepts a lane as the peer. Returns the token of its association, and whether the association is new.
    async fn joined(listener: &TcpListener) -> (Shaken, Token, bool) {
        let (stream, _) = listener.accept().await.expect("it came");
        let known = [*striping().keys.public()];
        let shaken = handshake::answer(stream, &peer_keys(), handshake::among(&known)).await;
        let (mut shaken, _) = shaken.expect("known");
        let first = shaken.receive().await.expect("a frame");
        let Ok(Frame::Join { token, is_new, .. }) = frame::decode(&first) else {
            panic!("no lane: {first:?}");
        };
        (shaken, token, is_new)
    }

    /// Returns the next connection that is requested on a lane, and its first bytes.
    async fn asked(lane: &mut Shaken) -> (ConnId, Wanted, Vec<u8>) {
        loop {
            let came = lane.receive().await.expect("a frame");
            match frame::decode(&came) {
                Ok(Frame::Open { conn, wanted, data }) => return (conn, wanted, data.to_vec()),
                Ok(Frame::Ack { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Opens a connection to port 80 while the future `peer` acts as the peer.
    async fn open_beside<T>(hub: &Rc<Hub>, peer: impl Future<Output = T>) -> (Option<Striped>, T) {
        let (live, links) = begin(hub, HERE);
        let to = (&[HERE][..], 80);
        tokio::join!(open(hub, &live, &links, to, b"GET /"), peer)
    }

    fn answer(hub: &Hub) -> Option<Answer> {
        let places = hub.peering.places.borrow();
        places.answer(clock::now(), HERE)
    }

    #[test]
    fn who_shook_hands_is_a_peer_whatever_it_opens() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let leaves = async {
                let mut lane = met(&listener).await;
                let (conn, _, _) = asked(&mut lane).await;
                let refusal = Refusal::Unreachable;
                lane.send(&Frame::Refused { conn, refusal })
                    .await
                    .expect("open");
            };
            let (striped, ()) = open_beside(&hub, leaves).await;
            assert!(striped.is_none(), "it does not get there");
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
        });
    }

    #[test]
    fn who_says_nothing_is_no_peer() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let (striped, _) = open_beside(&hub, listener.accept()).await;
            assert!(striped.is_none());
            assert_eq!(answer(&hub), Some(Answer::Nobody));
        });
    }

    #[test]
    fn a_peer_of_another_version_is_left_alone_at_once_and_counted() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let older = async {
                let (mut stream, _) = listener.accept().await.expect("it came");
                let mut greeting = channel::greeting(peer_keys().public(), [5; 16]);
                greeting[7] = 1;
                stream.write_all(&greeting).await.expect("open");
                stream
            };
            let began = time::Instant::now();
            let (striped, _stream) = open_beside(&hub, older).await;
            assert!(striped.is_none());
            assert!(began.elapsed() < OPEN_PATIENCE / 2);
            assert_eq!(answer(&hub), Some(Answer::Nobody));
            assert_eq!(hub.drops.all().get("peer-version"), Some(&1));
        });
    }

    #[test]
    fn a_peer_that_does_not_allow_one_target_is_asked_for_others() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let refuse = async {
                let mut lane = met(&listener).await;
                let (conn, wanted, first) = asked(&mut lane).await;
                let refusal = Refusal::NotAllowed;
                let sent = lane.send(&Frame::Refused { conn, refusal }).await;
                sent.expect("open");
                assert_eq!(first, b"GET /");
                wanted
            };
            let (striped, wanted) = open_beside(&hub, refuse).await;
            assert!(striped.is_none());
            // The peer's address is not configured, so the request names the wanted address.
            assert_eq!(
                wanted,
                Wanted {
                    ip: Some(HERE),
                    port: 80
                }
            );
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
            let settings = hub.settings.stripe.as_ref().expect("set");
            let leads = |port: u16| way(&hub, settings, SocketAddr::new(HERE, port)).is_some();
            assert!(!leads(80) && leads(81));
        });
    }

    #[test]
    fn connections_share_a_lane_and_nothing_is_dialled_for_the_second() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let first = async {
                let mut lane = met(&listener).await;
                let (conn, _, _) = asked(&mut lane).await;
                lane.send(&Frame::Opened { conn }).await.expect("open");
                lane
            };
            let (one, mut lane) = open_beside(&hub, first).await;
            let second = async {
                let (conn, _, _) = asked(&mut lane).await;
                lane.send(&Frame::Opened { conn }).await.expect("open");
            };
            let (two, ()) = open_beside(&hub, second).await;
            let striped = [one, two].map(|found| found.expect("open"));
            let [one, two] = [&striped[0].carried, &striped[1].carried];
            assert!(Rc::ptr_eq(&one.association, &two.association));
            assert_ne!(one.conn, two.conn);
            assert!(listener.accept().now_or_never().is_none());
            assert_eq!(hub.peering.stripe_count.get(), 2);
        });
    }

    #[test]
    fn an_association_that_the_peer_has_forgotten_ends_and_the_next_connection_begins_another() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let answered = async |mut lane: Shaken| {
                let (conn, _, _) = asked(&mut lane).await;
                lane.send(&Frame::Opened { conn }).await.expect("open");
                lane
            };
            let first = async {
                let (lane, token, is_new) = joined(&listener).await;
                assert!(is_new);
                (answered(lane).await, token)
            };
            let (one, (lane, former)) = open_beside(&hub, first).await;
            let one = one.expect("open").carried;
            // Restart of the peer.
            drop(lane);
            let (mut lane, token, is_new) = joined(&listener).await;
            assert_eq!((token, is_new), (former, false));
            lane.send(&Frame::Bye(Bye::Unknown)).await.expect("open");
            one.broken().await;
            assert!(hub.peering.dialled.borrow().is_empty());
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
            let second = async {
                let (lane, token, is_new) = joined(&listener).await;
                assert!(is_new && token != former);
                answered(lane).await
            };
            let (two, _lane) = open_beside(&hub, second).await;
            assert!(two.is_some());
        });
    }

    #[test]
    fn a_peer_that_takes_no_association_does_not_delay_connections() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let busy = async {
                let mut lane = met(&listener).await;
                lane.send(&Frame::Bye(Bye::Busy)).await.expect("open");
                lane
            };
            let began = time::Instant::now();
            let (striped, _lane) = open_beside(&hub, busy).await;
            assert!(striped.is_none());
            assert!(began.elapsed() < OPEN_PATIENCE / 2);
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
        });
    }

    #[test]
    fn only_the_user_says_that_an_address_is_the_peers_own() {
        let hub = hub();
        let mut settings = striping();
        note(&hub, Answer::Peer(0));
        let target = |settings: &StripeSettings| {
            let way = way(&hub, settings, SocketAddr::new(HERE, 80));
            way.expect("a peer").target
        };
        assert_eq!(target(&settings), Some(HERE));
        let networks = vec![HERE.into()];
        settings.known = Known::new(vec![peer(Some((SocketAddr::new(HERE, 7701), networks)))]);
        assert_eq!(target(&settings), None);
        note(&hub, Answer::Asked);
        assert_eq!(target(&settings), None);
    }

    #[test]
    fn a_link_that_goes_while_lanes_are_dialled_does_not_stop_the_connection() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let (live, links) = begin(&hub, HERE);
            let peer = async {
                let mut lane = met(&listener).await;
                let (conn, _, _) = asked(&mut lane).await;
                live.stop(Stop::LinkLost);
                lane.send(&Frame::Opened { conn }).await.expect("open");
                lane
            };
            let to = (&[HERE][..], 80);
            let opening = open(&hub, &live, &links, to, b"");
            let (striped, _lane) = tokio::join!(opening, peer);
            let striped = striped.expect("it is open");
            hub.striped(&live, &striped.carried);
            assert!(live.stopped().now_or_never().is_none());
            live.stop(Stop::Idle);
            assert!(live.stopped().now_or_never().is_some());
            assert_eq!(hub.placer.borrow().connection_counts(), [1]);
            let sent = striped.carried.association.lanes()[0].tx_bytes.get();
            assert!(sent > 0);
            hub.book_moved(clock::now(), &striped.carried.association);
            assert_eq!(hub.placer.borrow().links()[0].tx_bytes, sent);
        });
    }

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
}
