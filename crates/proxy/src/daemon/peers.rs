//! Other pleaches: asking whether one answers at a destination, and striping connections to it. Answering others:
//! `answering`.
//!
//! Asking is one connection to `peer_port` of the destination, beside a plain connection to it, which waits for nothing. The
//! answer is remembered ([`Places`](crate::stripe::peers::Places)). Later connections are striped at once; if that does
//! not work within [`OPEN_PATIENCE`], they go plain, and so do those after them if the peer does not prove to be there, or
//! those to the same target if it does not allow it.
//!
//! Whoever answers at an address may be elsewhere: a port can be forwarded. So a peer is told the address that is wanted,
//! and takes the connection on only if that is its own. It is asked for its own host, whatever the address, only where
//! the user wrote that the address is the peer's.
//!
//! The end that asked dials the lanes ([`Keeper`]): first one, on the link on which the connection would go plain, then, if it
//! turns out to be large or that link does not answer, one on every link that may be used.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    rc::Rc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::{net::TcpStream, task::spawn_local, time};

use super::{connect, hub::Hub, live::Live, settings::StripeSettings};
use crate::{
    placer::Cost,
    relay::stripe::{
        Stripe,
        handshake::{self, Shaken},
    },
    sched::LinkId,
    stripe::{
        MAX_LANES,
        frame::{self, Frame, LaneId, Refusal, Token, Wanted},
        peers::Answer,
    },
};

/// A place among the striped connections; given back when dropped.
#[derive(Debug)]
pub(super) struct StripePlace(Rc<Hub>);

impl StripePlace {
    pub(super) fn take(hub: &Rc<Hub>, settings: &StripeSettings) -> Option<Self> {
        let count = hub.peering.stripe_count.get();
        (count < settings.max).then(|| {
            hub.peering.stripe_count.set(count + 1);
            Self(Rc::clone(hub))
        })
    }
}

impl Drop for StripePlace {
    fn drop(&mut self) {
        let count = self.0.peering.stripe_count.get();
        self.0.peering.stripe_count.set(count.saturating_sub(1));
    }
}

type Dialing = Pin<Box<dyn Future<Output = (LinkId, io::Result<Shaken>)>>>;

/// A striped connection, as far as the end that asked keeps it: dials lanes. Its drop ends them.
pub(crate) struct Keeper {
    hub: Rc<Hub>,
    pub(crate) stripe: Rc<Stripe>,
    to: SocketAddr,
    peer: usize,
    token: Token,
    next_lane: u16,
    /// A handshake succeeded.
    is_met: bool,
    dialing: FuturesUnordered<Dialing>,
    /// Links being dialled, and those that failed or got a lane lately: when they may be tried again, and how long to
    /// wait after that.
    busy: Vec<LinkId>,
    failed: BTreeMap<LinkId, (Instant, Duration)>,
    _place: StripePlace,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stripe.close();
    }
}

/// Connects to `port` at one of `addresses` through a peer there, if one is known; otherwise asks, for later.
pub(crate) async fn open(
    hub: &Rc<Hub>,
    live: &Live,
    links: &[LinkId],
    addresses: &[IpAddr],
    port: u16,
) -> Option<Keeper> {
    let settings = hub.settings.stripe.as_ref()?;
    // A rule says which link; without links there is nothing to stripe over.
    if live.is_tied() || links.is_empty() {
        return None;
    }
    let to_port = |ip: &IpAddr| SocketAddr::new(*ip, port);
    let way = |ip: &IpAddr| Some((way(hub, settings, to_port(ip))?, to_port(ip)));
    let Some((Way { peer, to, target }, wanted)) = addresses.iter().find_map(way) else {
        let is_unknown = |ip: &&IpAddr| {
            hub.peering
                .places
                .borrow()
                .answer(clock::now(), **ip)
                .is_none()
        };
        let first = addresses.first().filter(|_| settings.ask_port > 0);
        if let Some(ip) = first.filter(is_unknown) {
            ask(hub, links[0], *ip);
        }
        return None;
    };
    let mut keeper = Keeper {
        hub: Rc::clone(hub),
        stripe: Stripe::new(
            settings.known[peer].name.clone(),
            settings.striping,
            &hub.peering.pulses,
        ),
        to,
        peer,
        token: handshake::split(clock::entropy().ok()?)[0],
        next_lane: 0,
        is_met: false,
        dialing: FuturesUnordered::new(),
        busy: Vec::new(),
        failed: BTreeMap::new(),
        _place: StripePlace::take(hub, settings)?,
    };
    let asked = Wanted { ip: target, port };
    let patience = if keeper.is_heard(clock::now()) {
        HEARD_PATIENCE
    } else {
        OPEN_PATIENCE + keeper.head_start(links[0])
    };
    let outcome = time::timeout(patience, keeper.open(asked, links[0])).await;
    let outcome = outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let (now, mut places) = (clock::now(), hub.peering.places.borrow_mut());
    match outcome {
        Ok(None) => {
            if places.answer(now, to.ip()) == Some(Answer::Peer(peer)) {
                places.note(now, to.ip(), Answer::Peer(peer));
            }
            drop(places);
            return Some(keeper);
        }
        Ok(Some(Refusal::NotAllowed)) => {
            let peer_name = &settings.known[peer].name;
            tracing::info!(
                peer = peer_name,
                target = %wanted,
                "the peer does not allow this; connections there go plain. If the address is the peer's own, seen from \
                 outside its NAT, say so by endpoint and networks under [[known_peer]]"
            );
            places.note_refused(now, peer, wanted);
        }
        // One that shook hands is there: it may be what it was asked for that does not answer.
        Ok(Some(Refusal::Busy | Refusal::Unreachable)) => {}
        Err(_) if keeper.is_met || keeper.is_heard(now) => {}
        Err(error) => {
            tracing::debug!(%to, %error, "no peer any more");
            places.note(now, to.ip(), Answer::Nobody);
        }
    }
    None
}

/// How a peer takes connections on.
struct Way {
    peer: usize,
    /// Where it answers.
    to: SocketAddr,
    /// What to ask it for; `None`: its own host, whatever addresses that has.
    target: Option<IpAddr>,
}

/// The way to `target` through a peer, if one is known that allows it.
fn way(hub: &Hub, settings: &StripeSettings, target: SocketAddr) -> Option<Way> {
    let places = hub.peering.places.borrow();
    let (now, ip) = (clock::now(), target.ip());
    let may = |peer: usize| !places.is_refused(now, peer, target);
    // Of an address that merely answered with the peer's greeting nobody knows whose it is.
    let is_configured = |peer: usize| {
        let known = settings.known.get(peer);
        let serves = known.and_then(|known| known.serves.as_ref());
        serves.is_some_and(|(endpoint, _)| endpoint.ip() == ip)
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
    let mut known = settings.known.iter().enumerate();
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

impl Keeper {
    /// Dials `first`, then all links if that does not get there soon, and asks over the first that does. `None`: it is open.
    ///
    /// A link that is beaten is not held to be dead: on crowded ones that lose packets nearly all are, now and then, and to
    /// leave them alone for a while cost a quarter of the throughput.
    async fn open(&mut self, wanted: Wanted, first: LinkId) -> io::Result<Option<Refusal>> {
        let mut is_racing = !lane_links(&self.hub, self.to.ip()).contains(&first);
        if is_racing {
            self.dial();
        } else {
            self.dial_one(first);
        }
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let mut head_start = core::pin::pin!(time::sleep(self.head_start(first)));
        loop {
            let next = tokio::select! {
                next = self.dialing.next(), if !self.dialing.is_empty() => next,
                () = &mut head_start, if !is_racing => {
                    is_racing = true;
                    self.dial();
                    continue;
                }
                else => None,
            };
            let Some((link, dialled)) = next else {
                return Err(last);
            };
            self.busy.retain(|busy| *busy != link);
            let mut shaken = match dialled {
                Ok(shaken) => shaken,
                Err(error) => {
                    self.note_failure(link);
                    last = error;
                    is_racing = true;
                    self.dial();
                    continue;
                }
            };
            self.is_met = true;
            let (lane, name) = (self.next_lane(), self.name(link));
            let open = Frame::Open {
                token: self.token,
                lane,
                link: name.clone(),
                wanted,
            };
            shaken.send(&open).await?;
            let answer = shaken.receive().await?;
            return match frame::decode(&answer) {
                Ok(Frame::Opened) => {
                    self.note_failure(link);
                    self.stripe.note_heard();
                    // What is still under way is for a connection that turns out to be large.
                    self.dialing.clear();
                    self.busy.clear();
                    self.stripe.add_lane(lane, Some(link), name, shaken);
                    Ok(None)
                }
                Ok(Frame::Refused(refusal)) => Ok(Some(refusal)),
                Ok(_) | Err(_) => Err(io::Error::other("no answer to what was asked")),
            };
        }
    }

    /// Keeps a lane, or one on every link that may be used, until dropped. `live` is the connection.
    pub(crate) async fn keep(&mut self, live: &Live) {
        loop {
            self.drop_lanes();
            let now = clock::now();
            let more_at = self.more_at();
            if more_at <= now {
                self.dial();
            }
            self.hub.book_lanes(live, &self.stripe);
            let failed = self.failed.values().map(|(at, _)| *at);
            let failed = failed.filter(|at| *at > now && more_at <= now);
            let failed = failed.map(|at| at.since(now).max(LEAST_WAIT));
            let more = Some(more_at.since(now)).filter(|_| more_at > now);
            let retry = failed.chain(more).min();
            let retry = async {
                match retry {
                    Some(wait) => time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            let stripe = Rc::clone(&self.stripe);
            let hub = Rc::clone(&self.hub);
            tokio::select! {
                Some((link, dialled)) = self.dialing.next(), if !self.dialing.is_empty() => {
                    self.busy.retain(|busy| *busy != link);
                    let joined = match dialled {
                        Ok(shaken) => self.join(link, shaken).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = joined {
                        tracing::debug!(link = self.name(link), %error, "no lane");
                        self.note_failure(link);
                    }
                }
                () = retry => {}
                () = stripe.changed.notified() => {}
                () = hub.uplinks.changed.notified() => self.failed.clear(),
            }
        }
    }

    async fn join(&mut self, link: LinkId, mut shaken: Shaken) -> io::Result<()> {
        let (lane, name) = (self.next_lane(), self.name(link));
        let join = Frame::Join {
            token: self.token,
            lane,
            link: name.clone(),
        };
        // It fits into an empty socket.
        shaken.send(&join).await?;
        // Until it has lived.
        self.note_failure(link);
        self.stripe.add_lane(lane, Some(link), name, shaken);
        Ok(())
    }

    /// How long the first link has before others are dialled as well, as for plain connections: a lost first packet's repetition if
    /// it is known to work, a full link loses some; else three round trips.
    fn head_start(&self, first: LinkId) -> Duration {
        let placer = self.hub.placer.borrow();
        if placer.is_alive(clock::now(), first) {
            return LIVE_LINK;
        }
        let rtt = placer
            .links()
            .get(first.0)
            .and_then(|link| link.estimator.rtt());
        rtt.map_or(UNKNOWN_LINK, |rtt| (rtt * 3).clamp(LEAST_WAIT, LIVE_LINK))
    }

    /// From when on there is to be a lane on every link: at once for a large connection, and else if its only lane falls silent.
    fn more_at(&self) -> Instant {
        let lanes = self.stripe.lanes();
        match lanes.as_slice() {
            [only] if !self.stripe.is_large() => only.quiet_at(),
            _ => Instant::ZERO,
        }
    }

    /// Whether anything has come from the peer lately.
    fn is_heard(&self, now: Instant) -> bool {
        let came_at = self.hub.peering.pulses.peer_came_at(&self.stripe.peer);
        came_at.is_some_and(|came_at| now.since(came_at) < HEARD)
    }

    /// Ends the lanes of links that lead there no more.
    fn drop_lanes(&self) {
        let usable = lane_links(&self.hub, self.to.ip());
        for lane in self.stripe.lanes() {
            if lane.link.is_none_or(|link| !usable.contains(&link)) {
                self.stripe.end_lane(lane.id, "its link is down");
            }
        }
    }

    /// Dials the links that have no lane.
    fn dial(&mut self) {
        let is_ended = {
            let bundle = self.stripe.bundle.borrow();
            bundle.is_over() || bundle.is_reset()
        };
        if is_ended {
            return;
        }
        let now = clock::now();
        let lanes = self.stripe.lanes();
        // One that was not dialled again so long after it could have been has had a lane that lived: what lives for less is
        // no better than none.
        let is_recent =
            |link: LinkId, may_at: Instant| now < may_at + MOST_WAIT || self.busy.contains(&link);
        self.failed.retain(|link, (at, _)| is_recent(*link, *at));
        for link in lane_links(&self.hub, self.to.ip()) {
            let is_there = lanes.iter().any(|lane| lane.link == Some(link));
            let may_try = self.failed.get(&link).is_none_or(|(at, _)| *at <= now);
            let is_full = lanes.len() + self.busy.len() >= MAX_LANES;
            if is_there || !may_try || is_full || self.busy.contains(&link) {
                continue;
            }
            self.dial_one(link);
        }
    }

    fn dial_one(&mut self, link: LinkId) {
        self.busy.push(link);
        let (hub, to, peer) = (Rc::clone(&self.hub), self.to, self.peer);
        self.dialing.push(Box::pin(async move {
            let dialled = time::timeout(LANE_PATIENCE, dial(&hub, link, to, peer)).await;
            (
                link,
                dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            )
        }));
    }

    fn note_failure(&mut self, link: LinkId) {
        let before = self.failed.get(&link).map_or(LEAST_WAIT, |(_, wait)| *wait);
        let entry = (clock::now() + before, (before * 2).min(MOST_WAIT));
        self.failed.insert(link, entry);
    }

    fn next_lane(&mut self) -> LaneId {
        let lane = LaneId(self.next_lane);
        // Lanes end at most every quarter of a second on each link: hours. Then the other end refuses one that is there.
        self.next_lane = self.next_lane.wrapping_add(1);
        lane
    }

    fn name(&self, link: LinkId) -> String {
        let placer = self.hub.placer.borrow();
        let link = placer.links().get(link.0);
        link.map(|link| link.settings.name.clone())
            .unwrap_or_default()
    }
}

/// The links for lanes to `ip`: those beside it if any are, of least cost.
fn lane_links(hub: &Hub, ip: IpAddr) -> Vec<LinkId> {
    let placer = hub.placer.borrow();
    let links = || {
        let links = placer.links().iter().enumerate();
        links.filter(|(_, link)| link.settings.cost != Cost::Never && link.reach.covers(ip))
    };
    let is_beside = links().any(|(_, link)| link.reach.is_neighbour(ip));
    let fit = || links().filter(|(_, link)| !is_beside || link.reach.is_neighbour(ip));
    let least = fit().map(|(_, link)| placer.price(link)).min();
    fit()
        .filter(|(_, link)| Some(placer.price(link)) == least)
        .map(|(index, _)| LinkId(index))
        .collect()
}

async fn dial(hub: &Hub, link: LinkId, to: SocketAddr, peer: usize) -> io::Result<Shaken> {
    let settings = hub.settings.stripe.as_ref();
    let settings = settings.ok_or(io::ErrorKind::Unsupported)?;
    let known = settings.known.get(peer).ok_or(io::ErrorKind::NotFound)?;
    let stream = connect_to(hub, link, to).await?;
    handshake::ask(stream, &settings.keys, &known.public_key).await
}

async fn connect_to(hub: &Hub, link: LinkId, to: SocketAddr) -> io::Result<TcpStream> {
    let stream = connect::to(hub, Some(link), to).await?;
    connect::prepare(&stream);
    Ok(stream)
}

/// Finds out, beside everything else, whether a known peer answers at `ip`.
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
            let known = settings.known.iter().map(|peer| &peer.public_key);
            let found = handshake::read_greeting(&mut stream, known).await;
            found.ok().flatten()
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

/// Before a connection to a peer that was there goes plain.
const OPEN_PATIENCE: Duration = Duration::from_secs(2);
/// The same if the peer was heard from lately: on a full link the first packet may be lost, and then the second.
const HEARD_PATIENCE: Duration = Duration::from_secs(5);
/// What the first link has before others are dialled as well: if it got something through lately, TCP's first timeout
/// (RFC 6298 section 2.1) and a round trip; and if nothing is known of it.
const LIVE_LINK: Duration = Duration::from_millis(1300);
const UNKNOWN_LINK: Duration = Duration::from_millis(250);
/// A peer that was heard from so lately is there, whatever becomes of one connection to it.
const HEARD: Duration = Duration::from_secs(30);
/// For a connection, a handshake and a loss.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
const ASK_PATIENCE: Duration = Duration::from_secs(5);
const MAX_ASKING: usize = 8;
/// Between attempts on a link.
const LEAST_WAIT: Duration = Duration::from_millis(250);
const MOST_WAIT: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;
    use pleach_core::session::handshake::StaticKeys;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{
        daemon::{
            hub::tests::{add_link, begin, hub, striping},
            live::Stop,
        },
        relay::stripe::tests::{run, shaken},
        stripe::sched::Striping,
    };

    #[test]
    fn what_is_reset_gets_no_more_lanes() {
        let mut hub = hub();
        let settings = striping();
        hub.settings.stripe = Some(settings.clone());
        add_link(&hub, "lo");
        let hub = Rc::new(hub);
        for is_reset in [false, true] {
            let mut keeper = keeper(&hub, &settings);
            if is_reset {
                keeper.stripe.bundle.borrow_mut().reset();
            }
            keeper.dial();
            assert_eq!(keeper.dialing.is_empty(), is_reset);
        }
    }

    /// A hub that knows a peer at the address of the listener.
    async fn hub_and_peer() -> (Rc<Hub>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut hub = hub();
        add_link(&hub, "lo");
        let mut settings = striping();
        settings.known[0].public_key = *peer_keys().public();
        settings.ask_port = listener.local_addr().expect("bound").port();
        hub.settings.stripe = Some(settings);
        // The peer's address is to need a link.
        hub.uplinks.locals.borrow_mut().clear();
        note(&hub, Answer::Peer(0));
        (Rc::new(hub), listener)
    }

    fn note(hub: &Hub, answer: Answer) {
        hub.peering
            .places
            .borrow_mut()
            .note(clock::now(), HERE, answer);
    }

    fn peer_keys() -> StaticKeys {
        StaticKeys::from_private([4; 32])
    }

    /// The peer shakes hands with who comes: the lane, and what is wanted.
    async fn met(listener: &TcpListener) -> (Shaken, Wanted) {
        let (stream, _) = listener.accept().await.expect("it came");
        let known = [*striping().keys.public()];
        let shaken = handshake::answer(stream, &peer_keys(), &known).await;
        let (mut shaken, _) = shaken.expect("known");
        let first = shaken.receive().await.expect("a frame");
        match frame::decode(&first) {
            Ok(Frame::Open { wanted, .. }) => (shaken, wanted),
            other => panic!("{other:?}"),
        }
    }

    /// Opens to port 80 while the peer does as `peer` says.
    async fn open_beside<T>(hub: &Rc<Hub>, peer: impl Future<Output = T>) -> (Option<Keeper>, T) {
        let (live, links) = begin(hub, HERE);
        tokio::join!(open(hub, &live, &links, &[HERE], 80), peer)
    }

    fn answer(hub: &Hub) -> Option<Answer> {
        hub.peering.places.borrow().answer(clock::now(), HERE)
    }

    #[test]
    fn who_shook_hands_is_a_peer_whatever_it_opens() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let (keeper, _) = open_beside(&hub, met(&listener)).await;
            assert!(keeper.is_none(), "it left");
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
            let (keeper, _) = open_beside(&hub, listener.accept()).await;
            assert!(keeper.is_none(), "it said nothing");
            assert_eq!(answer(&hub), Some(Answer::Nobody));
        });
    }

    #[test]
    fn a_peer_that_does_not_allow_one_target_is_asked_for_others() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let refuse = async {
                let (mut lane, wanted) = met(&listener).await;
                let sent = lane.send(&Frame::Refused(Refusal::NotAllowed)).await;
                sent.expect("open");
                wanted
            };
            let (keeper, wanted) = open_beside(&hub, refuse).await;
            assert!(keeper.is_none());
            // Who merely answered there may be elsewhere, so the address is said.
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
        settings.known[0].serves = Some((SocketAddr::new(HERE, 7701), networks));
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
                let (mut lane, _) = met(&listener).await;
                live.stop(Stop::LinkLost);
                lane.send(&Frame::Opened).await.expect("open");
                lane
            };
            let addresses = [HERE];
            let opening = open(&hub, &live, &links, &addresses, 80);
            let (keeper, _lane) = tokio::join!(opening, peer);
            let keeper = keeper.expect("it is open");
            hub.striped(&live, &keeper.stripe);
            assert!(live.stopped().now_or_never().is_none());
            live.stop(Stop::Idle);
            assert!(live.stopped().now_or_never().is_some());
        });
    }

    #[test]
    fn a_link_whose_lanes_die_young_is_not_dialled_at_once() {
        run(async {
            let (hub, _listener) = hub_and_peer().await;
            let link = LinkId(0);
            let settings = hub.settings.stripe.clone().expect("set");
            let mut keeper = keeper(&hub, &settings);
            let [here, mut there] = shaken().await;
            for _ in 0..6 {
                keeper.note_failure(link);
            }
            keeper
                .stripe
                .add_lane(LaneId(0), Some(link), String::new(), here);
            let lane = keeper.stripe.lanes().remove(0);
            there
                .send(&Frame::Gone { lane: LaneId(9) })
                .await
                .expect("open");
            while lane.rx_bytes.get() == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            keeper.dial();
            keeper.stripe.end_lane(LaneId(0), "a middlebox");
            keeper.dial();
            assert!(keeper.dialing.is_empty());
            // One that lived since.
            keeper.failed.insert(link, (Instant::ZERO, MOST_WAIT));
            keeper.dial();
            assert!(!keeper.dialing.is_empty() && keeper.failed.is_empty());
        });
    }

    #[test]
    fn a_small_connection_has_one_lane_while_that_is_heard_from() {
        run(async {
            let mut hub = hub();
            let settings = striping();
            hub.settings.stripe = Some(settings.clone());
            let (first, second) = (add_link(&hub, "lo"), add_link(&hub, "lo"));
            // The peer's address is to need a link.
            hub.uplinks.locals.borrow_mut().clear();
            let hub = Rc::new(hub);
            let mut keeper = keeper(&hub, &settings);
            assert_eq!(keeper.more_at(), Instant::ZERO, "there is none");
            let [here, _there] = shaken().await;
            let stripe = Rc::clone(&keeper.stripe);
            stripe.add_lane(LaneId(0), Some(first), String::new(), here);
            let now = clock::now();
            assert!(keeper.more_at() > now, "and it is new");
            let (live, _) = begin(&hub, HERE);
            hub.striped(&live, &stripe);
            let counts = || hub.placer.borrow().connection_counts();
            assert_eq!(counts(), [1, 0]);

            let wait = keeper.more_at().since(now) / 2;
            let kept = time::timeout(wait, keeper.keep(&live)).await;
            assert!(
                kept.is_err() && keeper.dialing.is_empty(),
                "one is enough so far"
            );
            stripe.note_moved(1 << 20);
            let kept = time::timeout(wait / 2, keeper.keep(&live)).await;
            let is_dialled = keeper.busy == [second] || keeper.failed.contains_key(&second);
            assert!(kept.is_err() && is_dialled, "it is large");

            let [here, _there] = shaken().await;
            stripe.add_lane(LaneId(1), Some(second), String::new(), here);
            let kept = time::timeout(wait / 2, keeper.keep(&live)).await;
            assert!(kept.is_err());
            assert_eq!(counts(), [0, 0], "it is on none more than on others");
            let sent = stripe.lanes()[0].tx_bytes.get();
            assert!(sent > 0, "it acknowledges");
            stripe.end_lane(LaneId(0), "its link is down");
            hub.book_lanes(&live, &stripe);
            assert_eq!(counts(), [0, 1]);
            hub.end(&live, true);
            assert_eq!(hub.placer.borrow().links()[first.0].tx_bytes, sent);
        });
    }

    #[test]
    fn a_lane_that_nothing_comes_on_is_not_left_alone() {
        run(async {
            let mut hub = hub();
            let settings = striping();
            hub.settings.stripe = Some(settings.clone());
            let (first, second) = (add_link(&hub, "lo"), add_link(&hub, "lo"));
            let hub = Rc::new(hub);
            let mut keeper = keeper(&hub, &settings);
            let [here, _there] = shaken().await;
            let stripe = Rc::clone(&keeper.stripe);
            stripe.add_lane(LaneId(0), Some(first), String::new(), here);
            let (live, _) = begin(&hub, HERE);
            let is_dialled =
                |keeper: &Keeper| keeper.busy == [second] || keeper.failed.contains_key(&second);
            while !is_dialled(&keeper) {
                let _ = time::timeout(Duration::from_millis(50), keeper.keep(&live)).await;
            }
        });
    }

    #[test]
    fn the_link_of_a_plain_connection_is_dialled_first_and_others_if_it_fails() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            hub.uplinks.devices.borrow_mut()[0].name = "nowhere".to_owned();
            let second = add_link(&hub, "lo");
            let (live, links) = begin(&hub, HERE);
            let peer = async {
                let (mut lane, _) = met(&listener).await;
                lane.send(&Frame::Opened).await.expect("open");
                lane
            };
            let addresses = [HERE];
            let order = [LinkId(0), second];
            assert_eq!(links.len(), order.len());
            let opening = open(&hub, &live, &order, &addresses, 80);
            let (keeper, _lane) = tokio::join!(opening, peer);
            let keeper = keeper.expect("it is open");
            hub.striped(&live, &keeper.stripe);
            assert_eq!(hub.placer.borrow().connection_counts(), [0, 1]);
        });
    }

    #[test]
    fn a_peer_that_was_heard_from_is_there_even_if_one_connection_fails() {
        run(async {
            let (hub, listener) = hub_and_peer().await;
            let other = Stripe::new("peer".to_owned(), Striping::Osia, &hub.peering.pulses);
            let [here, mut there] = shaken().await;
            other.add_lane(LaneId(0), None, "lo".to_owned(), here);
            let gone = Frame::Gone { lane: LaneId(9) };
            there.send(&gone).await.expect("open");
            while other.lanes()[0].rx_bytes.get() == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            let leave = async { drop(listener.accept().await) };
            drop(other);
            let (keeper, ()) = open_beside(&hub, leave).await;
            assert!(keeper.is_none(), "it said nothing");
            assert_eq!(answer(&hub), Some(Answer::Peer(0)));
        });
    }

    fn keeper(hub: &Rc<Hub>, settings: &StripeSettings) -> Keeper {
        Keeper {
            hub: Rc::clone(hub),
            stripe: Stripe::new("peer".to_owned(), settings.striping, &hub.peering.pulses),
            to: ([192, 0, 2, 1], 7701).into(),
            peer: 0,
            token: Token::default(),
            next_lane: 0,
            is_met: false,
            dialing: FuturesUnordered::new(),
            busy: Vec::new(),
            failed: BTreeMap::new(),
            _place: StripePlace::take(hub, settings).expect("room"),
        }
    }

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
}
