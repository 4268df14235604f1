//! UDP flows through other pleach proxies, at the end that asks. A *flow* is the datagrams between one client and one
//! destination.
//!
//! A flow to an address at which a peer answers goes over the lanes to this peer. While the first lane is being
//! dialled, the caller keeps the datagrams of the flow. A flow goes plainly over one link if the peer does not answer
//! within [`OPEN_PATIENCE`], does not serve flows, or does not allow the destination. A flow to an unknown address goes
//! plainly as well, and stays plain; meanwhile the address is asked whether a peer answers there, for later flows.

use std::{net::SocketAddr, rc::Rc};

use pleach_linux::clock;
use tokio::time;

use super::{
    dialing,
    hub::Hub,
    live::Live,
    peers::{self, OPEN_PATIENCE, Way},
    stripe_place::StripePlace,
};
use crate::{
    relay::stripe::{association::Association, flow_table::FlowEvent, flows::Flow},
    sched::LinkId,
    stripe::{
        frame::{Refusal, Wanted},
        peers::Answer,
    },
};

/// A UDP flow through a peer, with its place in the count of striped connections.
#[derive(Debug)]
pub(crate) struct PeerFlow {
    pub(crate) flow: Flow,
    /// Number of the peer, address at which it answers, and destination of the flow.
    peer: usize,
    at: SocketAddr,
    to: SocketAddr,
    _place: StripePlace,
}

/// Opens the flow `live` to `to` through a peer, if a peer is known there. `links` are the links that the flow may use.
/// `handler` is called with the flow's events.
pub(crate) fn open(
    hub: &Rc<Hub>,
    live: &Live,
    links: &[LinkId],
    to: SocketAddr,
    handler: impl Fn(FlowEvent<'_>) + 'static,
) -> Option<PeerFlow> {
    let settings = hub.settings.stripe.as_ref()?;
    // A rule that names the link excludes striping, and without links there is nothing to stripe over.
    if live.is_tied() || links.is_empty() {
        return None;
    }
    let Some(way) = peers::way(hub, settings, to) else {
        peers::ask_once(hub, settings, links[0], to.ip());
        return None;
    };
    let _place = StripePlace::take(hub, settings)?;
    let Way {
        peer,
        to: at,
        target,
    } = way;
    let association = dialing::association(hub, peer, at, target.is_some())?;
    let wanted = Wanted {
        ip: target,
        port: to.port(),
    };
    let flow = Flow::open(&association, wanted, handler)?;
    Some(PeerFlow {
        flow,
        peer,
        at,
        to,
        _place,
    })
}

/// Waits until the peer behind `association`, which answers at `at`, is known to serve flows. Returns `false` if it
/// does not, or does not answer in time.
pub(crate) async fn is_served(hub: &Hub, association: &Association, at: SocketAddr) -> bool {
    let served = time::timeout(OPEN_PATIENCE, association.serves_flows()).await;
    let served = served.unwrap_or(false);
    if !association.is_met() {
        let mut places = hub.peering.places.borrow_mut();
        places.note(clock::now(), at.ip(), Answer::Nobody);
    }
    served
}

impl PeerFlow {
    pub(crate) fn association(&self) -> &Rc<Association> {
        &self.flow.association
    }

    /// Returns the address at which the peer answers.
    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    /// Notes that the peer does not serve the flow. The flow then continues plainly.
    pub(crate) fn note_refused(&self, hub: &Hub, refusal: Refusal) {
        tracing::debug!(
            peer = self.association().peer,
            to = %self.to,
            ?refusal,
            "the peer does not serve a UDP flow; it goes plain"
        );
        if refusal == Refusal::NotAllowed {
            let mut places = hub.peering.places.borrow_mut();
            places.note_refused(clock::now(), self.peer, self.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        net::{IpAddr, Ipv4Addr},
        time::Duration,
    };

    use pleach_core::session::handshake::{NO_PSK, StaticKeys};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, UdpSocket},
        task::spawn_local,
    };

    use super::*;
    use crate::{
        daemon::{
            answering,
            descriptors::Descriptors,
            hub::tests::{add_link, hub, striping},
            known::{Known, KnownPeer},
        },
        handshake::Protocol,
        relay::{
            stripe::tests::run,
            udp::client::{Client, Origin},
        },
        stripe::channel,
    };

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn peer_keys() -> StaticKeys {
        StaticKeys::from_private([4; 32])
    }

    fn known(keys: &StaticKeys) -> Known {
        Known::new(vec![KnownPeer {
            name: "peer".to_owned(),
            public_key: *keys.public(),
            serves: None,
        }])
    }

    /// Returns a hub that knows a peer at the address of the returned listener.
    async fn asking_hub() -> (Rc<Hub>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut hub = hub();
        add_link(&hub, "lo");
        let mut settings = striping();
        settings.known = known(&peer_keys());
        settings.ask_port = listener.local_addr().expect("bound").port();
        hub.settings.stripe = Some(settings);
        // So that the peer's address requires a link.
        hub.uplinks.locals.borrow_mut().clear();
        let mut places = hub.peering.places.borrow_mut();
        places.note(clock::now(), HERE, Answer::Peer(0));
        drop(places);
        (Rc::new(hub), listener)
    }

    /// Returns a hub that answers on `listener`, and whose peers may reach `allow`.
    fn answering_hub(listener: TcpListener, allow: &[&str]) -> Rc<Hub> {
        let mut hub = hub();
        let mut settings = striping();
        settings.known = known(&striping().keys);
        settings.keys = std::sync::Arc::new(peer_keys());
        let nets = allow.iter().map(|net| net.parse().expect("network"));
        settings.allow = nets.collect();
        hub.settings.stripe = Some(settings);
        let hub = Rc::new(hub);
        let served = Rc::clone(&hub);
        spawn_local(async move {
            while let Ok((stream, from)) = listener.accept().await {
                let hub = Rc::clone(&served);
                spawn_local(async move { answering::serve(&hub, stream, from).await });
            }
        });
        hub
    }

    /// Answers as a peer of the time before UDP flows existed. Returns the bytes that arrive after the handshake.
    async fn older_peer(listener: TcpListener) -> Vec<u8> {
        let (mut stream, _) = listener.accept().await.expect("it came");
        let greeting = channel::greeting(peer_keys().public(), [5; 16]);
        stream.write_all(&greeting).await.expect("open");
        let mut message = vec![0; usize::from(stream.read_u16().await.expect("a length"))];
        stream.read_exact(&mut message).await.expect("initiation");
        let incoming = channel::read_initiation(&peer_keys(), &message).expect("intact");
        let same = incoming.hello;
        let answered = incoming.respond(&NO_PSK, 1, same, [6; 32]);
        let (_, response) = answered.expect("same version");
        let len = u16::try_from(response.len()).expect("short");
        stream.write_u16(len).await.expect("open");
        stream.write_all(&response).await.expect("open");
        let mut rest = Vec::new();
        let reading = stream.read_to_end(&mut rest);
        // The lane stays open.
        let _ = time::timeout(Duration::from_millis(300), reading).await;
        rest
    }

    /// Returns a socket that echoes datagrams, with its address.
    async fn echo() -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("bound");
        spawn_local(async move {
            let mut datagram = [0; 2000];
            while let Ok((len, from)) = socket.recv_from(&mut datagram).await {
                let _ = socket.send_to(&datagram[..len], from).await;
            }
        });
        address
    }

    type Answers = Rc<RefCell<Vec<(SocketAddr, Vec<u8>)>>>;

    fn client(hub: &Rc<Hub>) -> (Rc<Client>, Answers) {
        let answers = Answers::default();
        let reply = {
            let answers = Rc::clone(&answers);
            move |source: SocketAddr, data: &[u8]| {
                answers.borrow_mut().push((source, data.to_vec()));
                true
            }
        };
        let origin = Origin {
            from: SocketAddr::new(HERE, 9),
            app: None,
            protocol: Protocol::Socks5,
        };
        let descriptors = Descriptors::of_association(hub);
        let client = Client::new(hub, origin, &descriptors, Rc::new(reply));
        (client, answers)
    }

    async fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn datagrams(hub: &Hub) -> u64 {
        let dialled = hub.peering.dialled.borrow();
        let lanes = dialled.values().flat_map(|one| one.lane_states());
        lanes.map(|lane| lane.tx_datagrams).sum()
    }

    #[test]
    fn a_flow_to_a_peer_goes_over_its_lanes_from_the_first_datagram() {
        run(async {
            let (hub, listener) = asking_hub().await;
            let peer = answering_hub(listener, &["127.0.0.0/8"]);
            let to = echo().await;
            let (client, answers) = client(&hub);
            client.send(&to.into(), &[HERE], b"one");
            until(|| answers.borrow().len() == 1).await;
            client.send(&to.into(), &[HERE], b"two");
            until(|| answers.borrow().len() == 2).await;
            let expected = [b"one", b"two"].map(|data| (to, data.to_vec()));
            assert_eq!(*answers.borrow(), expected);
            assert_eq!(datagrams(&hub), 2);
            {
                let live = peer.table.live.borrow();
                let live: Vec<_> = live.values().collect();
                assert_eq!(live.len(), 1);
                assert_eq!((live[0].up.get(), live[0].down.get()), (6, 6));
            }
            assert_eq!(hub.peering.stripe_count.get(), 1);
            drop(client);
            assert_eq!(hub.peering.stripe_count.get(), 0);
            until(|| peer.table.live.borrow().is_empty()).await;
            assert!(hub.drops.all().is_empty() && peer.drops.all().is_empty());
        });
    }

    #[test]
    fn a_datagram_that_no_lane_takes_is_counted_and_disturbs_no_other() {
        run(async {
            let (hub, listener) = asking_hub().await;
            let _peer = answering_hub(listener, &["127.0.0.0/8"]);
            let to = echo().await;
            let (client, answers) = client(&hub);
            client.send(&to.into(), &[HERE], b"one");
            until(|| answers.borrow().len() == 1).await;
            client.send(&to.into(), &[HERE], &[7; 8193]);
            client.send(&to.into(), &[HERE], b"two");
            until(|| answers.borrow().len() == 2).await;
            assert_eq!(hub.drops.all().get("datagram-too-long"), Some(&1));
        });
    }

    #[test]
    fn what_the_peer_does_not_allow_goes_plain_from_the_next_datagram() {
        run(async {
            let (hub, listener) = asking_hub().await;
            let peer = answering_hub(listener, &[]);
            let to = echo().await;
            let (client, answers) = client(&hub);
            client.send(&to.into(), &[HERE], b"refused");
            let drops = || peer.drops.all().get("peer-refused").copied();
            until(|| drops() == Some(1)).await;
            // The refusal takes a moment.
            until(|| {
                client.send(&to.into(), &[HERE], b"plain");
                !answers.borrow().is_empty()
            })
            .await;
            assert_eq!(answers.borrow()[0], (to, b"plain".to_vec()));
            assert_eq!(drops(), Some(1));
            assert!(peer.table.live.borrow().is_empty());
            let places = hub.peering.places.borrow();
            assert!(places.is_refused(clock::now(), 0, to));
        });
    }

    #[test]
    fn what_the_peer_does_not_serve_takes_another_link_if_the_first_is_down() {
        run(async {
            let (hub, listener) = asking_hub().await;
            let _peer = answering_hub(listener, &[]);
            let to = echo().await;
            let (client, answers) = client(&hub);
            client.send(&to.into(), &[HERE], b"refused");
            let is_refused = || {
                let live = hub.table.live.borrow();
                live.values().any(|live| live.is_flow()) && client.has_ended(to)
            };
            until(is_refused).await;
            // The link that was chosen at the beginning leads nowhere, and another one has come up.
            hub.placer
                .borrow_mut()
                .set_reach(LinkId(0), crate::placer::Reach::default());
            let second = add_link(&hub, "lo");
            client.send(&to.into(), &[HERE], b"plain");
            until(|| !answers.borrow().is_empty()).await;
            assert_eq!(answers.borrow()[0], (to, b"plain".to_vec()));
            let live = hub.table.live.borrow();
            let links: Vec<_> = live.values().map(|live| live.link.get()).collect();
            assert_eq!(links, [Some(second)]);
        });
    }

    #[test]
    fn an_older_peer_gets_no_frames_of_flows_and_the_datagrams_go_plain() {
        run(async {
            let (hub, listener) = asking_hub().await;
            let to = echo().await;
            let (client, answers) = client(&hub);
            let older = async {
                let rest = older_peer(listener).await;
                // One record: the frame that joins the lane to the association.
                assert_eq!(
                    rest.len(),
                    2 + usize::from(rest[0]) * 256 + usize::from(rest[1])
                );
            };
            let flow = async {
                client.send(&to.into(), &[HERE], b"one");
                client.send(&to.into(), &[HERE], b"two");
                until(|| answers.borrow().len() == 2).await;
            };
            tokio::join!(older, flow);
            assert_eq!(answers.borrow()[0], (to, b"one".to_vec()));
            assert_eq!(datagrams(&hub), 0);
            let places = hub.peering.places.borrow();
            assert_eq!(places.answer(clock::now(), HERE), Some(Answer::Peer(0)));
        });
    }

    #[test]
    fn where_nobody_answers_datagrams_go_plain_and_later_flows_at_once() {
        run(async {
            let (hub, listener) = asking_hub().await;
            drop(listener);
            let to = echo().await;
            let (client, answers) = client(&hub);
            client.send(&to.into(), &[HERE], b"one");
            until(|| answers.borrow().len() == 1).await;
            let places = hub.peering.places.borrow();
            assert_eq!(places.answer(clock::now(), HERE), Some(Answer::Nobody));
            assert_eq!(hub.peering.stripe_count.get(), 0);
        });
    }
}
