//! Answers connections from other pleach proxies: identifies the peer, reads its requests, and connects to the
//! requested addresses.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_core::session::handshake::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::spawn_local,
    time,
};

use super::{admission, answering_flows, connect, hub::Hub, live::Live, settings::StripeSettings};
use crate::{
    relay::stripe::{
        answer,
        association::Association,
        carried::Carried,
        drive,
        handshake::{self, Shaken},
    },
    stripe::{
        MAX_LANES,
        frame::{self, Bye, Frame, Refusal, Token, Wanted},
    },
};

/// Serves a connection to the peer port.
pub(super) async fn serve(hub: &Rc<Hub>, stream: TcpStream, from: SocketAddr) {
    let Some(settings) = &hub.settings.stripe else {
        return;
    };
    connect::prepare(&stream);
    let stranger = hub.peering.strangers.borrow_mut().enter();
    let first = async {
        let who = async |incoming: &Incoming| recognise(hub, settings, incoming).await;
        let (mut shaken, who) = handshake::answer(stream, &settings.keys, who).await?;
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
            if handshake::other_version(&error).is_some() {
                hub.count_drop("peer-version");
                tracing::info!(%from, "refused: {error}");
                return;
            }
            // A peer that only tests whether this proxy answers closes the connection after the handshake.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                hub.count_drop("bad-peer");
                tracing::debug!(%from, %error, "not a peer");
            }
            return;
        }
        Err(_) => return hub.count_drop("slow-peer"),
    };
    let Ok(Frame::Join {
        token,
        is_new,
        lane,
        link,
    }) = frame::decode(&first)
    else {
        return hub.count_drop("bad-peer");
    };
    let Ok(local) = shaken.stream.local_addr() else {
        return;
    };
    let known = hub.peering.answered.borrow().get(&(who, token)).cloned();
    let association = match known {
        Some(known) if known.lanes().len() < MAX_LANES => Ok(known),
        None if is_new => begin(hub, who, token, from, local.ip()).ok_or(Bye::Busy),
        Some(_) => Err(Bye::Busy),
        None => Err(Bye::Unknown),
    };
    match association {
        Ok(association) => {
            drive::add_lane(&association, lane, None, link, shaken);
        }
        Err(bye) => {
            hub.count_drop(match bye {
                Bye::Busy => "too-many-lanes",
                Bye::Unknown => "unknown-association",
            });
            // If the peer does not read the reason, its lane is closed anyway.
            let _ = time::timeout(LAST_WORDS, refuse(&mut shaken, bye)).await;
        }
    }
}

/// Returns the number of the known peer that connects. A peer that presents a valid invitation becomes a known peer.
async fn recognise(hub: &Hub, settings: &StripeSettings, incoming: &Incoming) -> Option<usize> {
    let key = incoming.remote_static;
    if let (Some(claim), Some(enrolment)) = (incoming.claim, &settings.enrolment) {
        if let Some(peer) = enrolment.ask(claim, key).await {
            tracing::info!(peer = peer.name, "enrolled by invitation");
            return Some(settings.known.put(peer));
        }
        hub.count_drop("enrolment-refused");
        return None;
    }
    settings.known.find(&key)
}

/// Sends the reason why a lane is refused, and waits until the other end closes. If a socket with unread received data
/// is closed, the kernel sends a reset, which may discard the reason before the peer has read it.
async fn refuse(shaken: &mut Shaken, bye: Bye) -> io::Result<()> {
    shaken.send(&Frame::Bye(bye)).await?;
    shaken.stream.shutdown().await?;
    let mut sink = [0; 4096];
    while shaken.stream.read(&mut sink).await? > 0 {}
    Ok(())
}

/// Creates the association `token` of peer `who` and serves its connections from now on. Returns `None` if the peer has
/// too many associations.
fn begin(
    hub: &Rc<Hub>,
    who: usize,
    token: Token,
    from: SocketAddr,
    local: IpAddr,
) -> Option<Rc<Association>> {
    let settings = hub.settings.stripe.as_ref()?;
    let mut answered = hub.peering.answered.borrow_mut();
    if answered.keys().filter(|(peer, _)| *peer == who).count() >= MAX_ASSOCIATIONS {
        return None;
    }
    let name = settings.known.get(who)?.name.clone();
    let association = Association::new(name, settings.striping, Some(local), &hub.drops);
    answered.insert((who, token), Rc::clone(&association));
    let (hub, kept) = (Rc::clone(hub), Rc::clone(&association));
    spawn_local(async move {
        tokio::select! {
            () = kept.tick() => {}
            () = take_on_all(&hub, who, from, &kept) => {}
        }
        hub.peering.answered.borrow_mut().remove(&(who, token));
        kept.end("no lane is left");
    });
    Some(association)
}

/// Serves each connection and each UDP flow that the peer opens over `association`.
async fn take_on_all(hub: &Rc<Hub>, who: usize, from: SocketAddr, association: &Rc<Association>) {
    loop {
        while let Some((conn, wanted)) = association.next_incoming() {
            let carried = Carried::incoming(association, conn);
            let hub = Rc::clone(hub);
            spawn_local(async move { take_on(&hub, who, from, wanted, &carried).await });
        }
        while let Some(asked) = association.next_asked() {
            answering_flows::take_on(hub, (from, who), association, &asked);
        }
        association.changed.notified().await;
    }
}

/// Serves one connection that a peer requests.
async fn take_on(hub: &Rc<Hub>, who: usize, from: SocketAddr, wanted: Wanted, carried: &Carried) {
    let Some(settings) = &hub.settings.stripe else {
        return;
    };
    let Some(ip) = wanted.ip.or(carried.association.local) else {
        return;
    };
    let to = SocketAddr::new(ip.to_canonical(), wanted.port);
    let opened = open_target(hub, settings, (from, who), to, carried).await;
    let (places, live, target) = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            hub.count_drop("peer-refused");
            return carried.refuse(refusal);
        }
    };
    carried.accept();
    live.carried
        .replace(Some((Rc::clone(&carried.association), Some(carried.conn))));
    let outcome = answer(hub, &target, &live, carried).await;
    let moved = live.moved();
    match outcome {
        Ok(()) => tracing::debug!(%from, %to, ?moved, "striped connection ended"),
        Err(error) => {
            tracing::debug!(%from, %to, ?moved, %error, "striped connection broke");
        }
    }
    hub.end(&live, true);
    drop(places);
}

/// Connects to the address `to` that peer `who` requests, if the peer is allowed to. Stops when the peer closes the
/// connection.
async fn open_target(
    hub: &Rc<Hub>,
    settings: &StripeSettings,
    (from, who): (SocketAddr, usize),
    to: SocketAddr,
    carried: &Carried,
) -> Result<(impl Sized + use<>, Rc<Live>, TcpStream), Refusal> {
    let (places, purpose) = admission::admit(hub, settings, (from, who), to)?;
    let addresses = [to.ip()];
    let (live, links) = hub
        .begin(purpose, &addresses)
        .map_err(|_| Refusal::Unreachable)?;
    let opened = tokio::select! {
        opened = connect::open(hub, &links, &addresses, to.port()) => opened.map_err(|error| error.text),
        _ = carried.broken() => Err("it waits no more".to_owned()),
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
/// Maximum time to deliver the reason of a refusal, including one retransmission.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Maximum number of associations per peer. A peer normally has one. After a restart it has a second one until the
/// first is detected as dead.
const MAX_ASSOCIATIONS: usize = 8;

#[cfg(test)]
mod tests {
    use pleach_core::session::handshake::StaticKeys;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{
        daemon::{
            hub::tests::{add_link, hub, striping},
            known::{Known, KnownPeer},
        },
        relay::stripe::tests::{associations, carried, run},
        sched::LinkId,
        stripe::{
            frame::{ConnId, LaneId},
            sched::Striping,
        },
    };

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
            let both = associations(1, Striping::Osia).await;
            let [_peer, there] = carried(&both, b"").await;
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let opened = open_target(&hub, &settings, (any, 0), to, &there).await;
            let Ok((_, live, _)) = opened else {
                panic!("the second link leads there");
            };
            assert_eq!(live.link.get(), Some(LinkId(1)));
        });
    }

    #[test]
    fn who_waits_no_more_is_connected_no_more() {
        run(async {
            // The accept queue of this socket is full, so a further connection waits.
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
            let both = associations(1, Striping::Osia).await;
            let [peer, there] = carried(&both, b"").await;
            let opening = open_target(&hub, &settings, (any, 0), to, &there);
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

    /// Opens a lane of an association to `hub` and sends its first frame.
    async fn lane_to(hub: &Rc<Hub>, lane: LaneId, is_new: bool) -> Shaken {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(to).await.expect("it listens");
        let (accepted, from) = listener.accept().await.expect("it came");
        let served = Rc::clone(hub);
        spawn_local(async move { serve(&served, accepted, from).await });
        let settings = hub.settings.stripe.as_ref().expect("set");
        let shaken = handshake::ask(stream, &peer_keys(), settings.keys.public()).await;
        let mut shaken = shaken.expect("known");
        let join = Frame::Join {
            token: [7; 16],
            is_new,
            lane,
            link: "dsl".to_owned(),
        };
        shaken.send(&join).await.expect("open");
        shaken
    }

    fn peer_keys() -> StaticKeys {
        StaticKeys::from_private([9; 32])
    }

    /// Returns a hub that trusts the owner of [`peer_keys`].
    fn answering_hub() -> Rc<Hub> {
        let mut hub = hub();
        let mut settings = striping();
        settings.known = Known::new(vec![KnownPeer {
            name: "peer".to_owned(),
            public_key: *peer_keys().public(),
            serves: None,
        }]);
        hub.settings.stripe = Some(settings);
        Rc::new(hub)
    }

    #[test]
    fn a_lane_of_an_association_that_is_gone_is_refused_with_a_reason() {
        run(async {
            let hub = answering_hub();
            let mut lane = lane_to(&hub, LaneId(3), false).await;
            // A frame that the other end does not read must not cause a reset that discards the reason.
            lane.send(&Frame::Gone { lane: LaneId(2) })
                .await
                .expect("open");
            let came = lane.receive().await.expect("a reason");
            assert_eq!(frame::decode(&came), Ok(Frame::Bye(Bye::Unknown)));
            assert!(hub.peering.answered.borrow().is_empty());
            assert_eq!(hub.drops.all().get("unknown-association"), Some(&1));
            // A lane of a new association is accepted, and then further lanes of that association.
            let mut lanes = Vec::new();
            for (id, is_new) in [(0, true), (1, false)] {
                lanes.push(lane_to(&hub, LaneId(id), is_new).await);
                let lane_count = || {
                    let answered = hub.peering.answered.borrow();
                    answered.values().map(|found| found.lanes().len()).max()
                };
                while lane_count() != Some(lanes.len()) {
                    time::sleep(Duration::from_millis(1)).await;
                }
            }
            assert_eq!(hub.peering.answered.borrow().len(), 1);
        });
    }

    #[test]
    fn a_peer_is_answered_on_its_lane_and_one_lane_too_many_is_refused_with_a_reason() {
        run(async {
            let hub = answering_hub();
            let mut first = lane_to(&hub, LaneId(0), true).await;
            let conn = ConnId(0);
            let open = Frame::Open {
                conn,
                wanted: Wanted {
                    ip: Some([198, 51, 100, 1].into()),
                    port: 80,
                },
                data: b"GET /",
            };
            first.send(&open).await.expect("open");
            loop {
                let came = first.receive().await.expect("an answer");
                match frame::decode(&came) {
                    Ok(Frame::Refused { conn: of, refusal }) => {
                        assert_eq!((of, refusal), (conn, Refusal::NotAllowed));
                        break;
                    }
                    Ok(Frame::Ack { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(hub.drops.all().get("peer-refused"), Some(&1));
            let mut lanes = Vec::new();
            for id in 1..u16::try_from(MAX_LANES).expect("few") {
                lanes.push(lane_to(&hub, LaneId(id), false).await);
            }
            let mut last = lane_to(&hub, LaneId(99), false).await;
            let came = last.receive().await.expect("a reason");
            assert_eq!(frame::decode(&came), Ok(Frame::Bye(Bye::Busy)));
            assert_eq!(hub.drops.all().get("too-many-lanes"), Some(&1));
            assert_eq!(hub.peering.answered.borrow().len(), 1);
        });
    }
}
