//! The lanes of an association, at the end that dials them. A *lane* is one TCP connection to the peer over one link.
//! There is one lane on every link that may be used, as long as connections use the association and for [`IDLE`]
//! after that.
//!
//! A link whose lane died is dialled again at once if the lane had lived for long, or if a link becomes available.
//! Otherwise the delay after the last attempt is 250 ms at first and doubles up to 4 s. An association that has had
//! no lane for 10 s ends, together with its connections. An association that never had a lane ends when the last
//! attempt has failed.
//!
//! An association that the peer refuses ends at once: the peer has been restarted or has lost all lanes for 10 s, and
//! has no state of the association. The next connection begins a new association, with another token.

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

use super::{connect, hub::Hub};
use crate::{
    placer::Cost,
    relay::stripe::{
        association::Association,
        drive,
        handshake::{self, Shaken},
    },
    sched::LinkId,
    stripe::{
        MAX_LANES,
        frame::{Frame, LaneId, Token},
    },
};

type Dialing = Pin<Box<dyn Future<Output = (LinkId, io::Result<Shaken>)>>>;

/// Dials the lanes of an association.
struct Dialer {
    hub: Rc<Hub>,
    association: Rc<Association>,
    /// Number of the peer in the configuration, and the address at which it answers.
    peer: usize,
    to: SocketAddr,
    token: Token,
    next_lane: u16,
    dialing: FuturesUnordered<Dialing>,
    /// `busy`: links that are being dialled. `failed`: links whose attempt failed or that got a lane recently, with
    /// the time from which they may be tried again and the delay after the next failure.
    busy: Vec<LinkId>,
    failed: BTreeMap<LinkId, (Instant, Duration)>,
    /// Whether the peer speaks another version of the protocol.
    is_foreign: bool,
}

/// Returns the association with known peer `peer`, which answers at `to`. If no such association exists, a new one is
/// created and its lanes are dialled. `is_named` says that the destination at the peer has an address of its own, so
/// that any association with the peer is suitable, regardless of the peer's address. `None` if striping is off or
/// there are too many associations.
pub(super) fn association(
    hub: &Rc<Hub>,
    peer: usize,
    to: SocketAddr,
    is_named: bool,
) -> Option<Rc<Association>> {
    let settings = hub.settings.stripe.as_ref()?;
    let mut dialled = hub.peering.dialled.borrow_mut();
    if let Some(known) = dialled.get(&(peer, to)) {
        return Some(Rc::clone(known));
    }
    let mut others = dialled.iter().filter(|((other, _), _)| *other == peer);
    let met = others.find(|(_, other)| is_named && !other.lanes().is_empty());
    if let Some((_, known)) = met {
        return Some(Rc::clone(known));
    }
    if dialled.len() >= MAX_ASSOCIATIONS {
        hub.count_drop("too-many-associations");
        return None;
    }
    let name = settings.known.get(peer)?.name.clone();
    let token = handshake::split(clock::entropy().ok()?)[0];
    let association = Association::new(name, settings.striping, None, &hub.drops);
    dialled.insert((peer, to), Rc::clone(&association));
    let mut dialer = Dialer::new(hub, &association, peer, to, token);
    spawn_local(async move {
        let (hub, association) = (Rc::clone(&dialer.hub), Rc::clone(&dialer.association));
        // When the association ends, it is removed from the table first, so that no new connection uses it.
        let why = dialer.keep().await;
        hub.peering.dialled.borrow_mut().remove(&(peer, to));
        association.end(why);
        hub.book_moved(clock::now(), &association);
    });
    Some(association)
}

impl Dialer {
    fn new(
        hub: &Rc<Hub>,
        association: &Rc<Association>,
        peer: usize,
        to: SocketAddr,
        token: Token,
    ) -> Self {
        Self {
            hub: Rc::clone(hub),
            association: Rc::clone(association),
            peer,
            to,
            token,
            next_lane: 0,
            dialing: FuturesUnordered::new(),
            busy: Vec::new(),
            failed: BTreeMap::new(),
            is_foreign: false,
        }
    }

    /// Maintains a lane on every link that may be used. Returns the reason why the association ended.
    async fn keep(&mut self) -> &'static str {
        let association = Rc::clone(&self.association);
        let hub = Rc::clone(&self.hub);
        let mut looks = core::pin::pin!(association.tick());
        loop {
            self.drop_lanes();
            if let Some(why) = association.denied() {
                return why;
            }
            let now = clock::now();
            let idle = association.idle_for(now);
            if idle >= IDLE || (idle > Duration::ZERO && association.lanes().is_empty()) {
                return "idle";
            }
            self.dial(now);
            self.hub.book_all_lanes(&association);
            if self.is_foreign {
                return "another version of the protocol";
            }
            if self.dialing.is_empty() && !association.is_met() {
                return "nobody answers";
            }
            let again = self.failed.values().map(|(at, _)| *at);
            let again = again.filter(|at| *at > now).min();
            // Costs change without notification, with budgets and on battery, so the wait is bounded.
            let again = again.map_or(MOST_WAIT, |at| at.since(now).max(LEAST_WAIT));
            let wait = again.min(IDLE.saturating_sub(idle).max(LEAST_WAIT));
            tokio::select! {
                Some((link, dialled)) = self.dialing.next(), if !self.dialing.is_empty() => {
                    self.busy.retain(|busy| *busy != link);
                    let joined = match dialled {
                        Ok(shaken) => self.join(link, shaken).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = joined {
                        self.note_error(link, &error);
                    }
                }
                () = time::sleep(wait) => {}
                () = association.changed.notified() => {}
                () = hub.uplinks.changed.notified() => self.failed.clear(),
                () = &mut looks => return "no lane is left",
            }
        }
    }

    async fn join(&mut self, link: LinkId, mut shaken: Shaken) -> io::Result<()> {
        let (lane, name) = (self.next_lane(), self.name(link));
        let join = Frame::Join {
            token: self.token,
            is_new: self.association.is_new(),
            lane,
            link: name.clone(),
        };
        // The frame fits into the empty socket buffer, so this does not block.
        shaken.send(&join).await?;
        // A lane counts as a failure until it has lived for long enough.
        self.note_failure(link);
        drive::add_lane(&self.association, lane, Some(link), name, shaken);
        Ok(())
    }

    /// Ends the lanes of links that no longer lead to the peer.
    fn drop_lanes(&self) {
        let usable = lane_links(&self.hub, self.to.ip());
        for lane in self.association.lanes() {
            if lane.link.is_none_or(|link| !usable.contains(&link)) {
                self.association.end_lane(lane.id, "its link is down");
            }
        }
    }

    /// Dials the links that have no lane.
    fn dial(&mut self, now: Instant) {
        let lanes = self.association.lanes();
        // An entry that has not been renewed for this long belongs to a lane that lived, so its delay is reset. A
        // lane that lives for a shorter time is no better than a failed attempt.
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

    fn note_error(&mut self, link: LinkId, error: &io::Error) {
        if handshake::other_version(error).is_some() && !self.is_foreign {
            self.is_foreign = true;
            self.hub.count_drop("peer-version");
            tracing::warn!(peer = self.association.peer, to = %self.to, "connections go plain: {error}");
        }
        tracing::debug!(link = self.name(link), to = %self.to, %error, "no lane");
        self.note_failure(link);
    }

    fn note_failure(&mut self, link: LinkId) {
        let before = self.failed.get(&link).map_or(LEAST_WAIT, |(_, wait)| *wait);
        let entry = (clock::now() + before, (before * 2).min(MOST_WAIT));
        self.failed.insert(link, entry);
    }

    fn next_lane(&mut self) -> LaneId {
        let lane = LaneId(self.next_lane);
        // A link gets a new lane at most every 250 ms, so the number wraps only after hours. Then the peer refuses a
        // number in use.
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

/// Returns the links for lanes to `ip`. If usable links are in the same subnet as `ip`, only these links are
/// considered. Of the considered links, those of the lowest cost are returned.
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

pub(super) async fn connect_to(hub: &Hub, link: LinkId, to: SocketAddr) -> io::Result<TcpStream> {
    let stream = connect::to(hub, Some(link), to).await?;
    connect::prepare(&stream);
    Ok(stream)
}

/// Maximum number of associations at this end. Peers are few.
const MAX_ASSOCIATIONS: usize = 64;
/// Time for which lanes without a connection stay open: a person reads a page and then requests the next one.
const IDLE: Duration = Duration::from_secs(60);
/// Timeout for a connection and its handshake, with one lost packet.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
/// Bounds of the delay between attempts on a link.
const LEAST_WAIT: Duration = Duration::from_millis(250);
const MOST_WAIT: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        daemon::hub::tests::{add_link, hub, striping},
        relay::stripe::{
            carried::Carried,
            tests::{run, shaken},
        },
        stripe::frame::Wanted,
    };

    /// Returns a dialer with links over `devices`, to a peer that does not exist.
    fn dialer(devices: &[&str]) -> (Dialer, Vec<LinkId>) {
        let mut hub = hub();
        hub.settings.stripe = Some(striping());
        let links = devices.iter().map(|device| add_link(&hub, device));
        let links = links.collect();
        let hub = Rc::new(hub);
        let striping = striping().striping;
        let association = Association::new("peer".to_owned(), striping, None, &hub.drops);
        let to = ([192, 0, 2, 1], 7701).into();
        let token = Token::default();
        (Dialer::new(&hub, &association, 0, to, token), links)
    }

    #[test]
    fn every_link_of_least_cost_is_dialled_once() {
        run(async {
            let (mut dialer, links) = dialer(&["lo", "lo", "lo"]);
            let dear = links[2];
            let mut placer = dialer.hub.placer.borrow_mut();
            placer.link_mut(dear).expect("there").settings.cost = Cost::Standby;
            drop(placer);
            for _ in 0..3 {
                dialer.dial(clock::now());
            }
            assert_eq!(dialer.busy, links[..2]);
        });
    }

    #[test]
    fn a_link_whose_lanes_die_young_is_not_dialled_at_once() {
        run(async {
            let (mut dialer, links) = dialer(&["lo"]);
            let [here, _there] = shaken().await;
            for _ in 0..6 {
                dialer.note_failure(links[0]);
            }
            let lane = LaneId(0);
            drive::add_lane(
                &dialer.association,
                lane,
                Some(links[0]),
                String::new(),
                here,
            );
            dialer.dial(clock::now());
            assert!(dialer.dialing.is_empty(), "it has one");
            dialer.association.end_lane(lane, "a middlebox");
            dialer.dial(clock::now());
            assert!(dialer.dialing.is_empty());
            // A lane that has lived for long enough since.
            dialer.failed.insert(links[0], (Instant::ZERO, MOST_WAIT));
            dialer.dial(clock::now());
            assert!(!dialer.dialing.is_empty() && dialer.failed.is_empty());
        });
    }

    #[test]
    fn who_never_answers_is_given_up_after_one_attempt_a_link() {
        run(async {
            // No route from this device leads to the peer.
            let (mut dialer, _) = dialer(&["pleach-none"]);
            let wanted = Wanted { ip: None, port: 80 };
            let waiting = Carried::ask(&dialer.association, wanted, b"");
            assert_eq!(dialer.keep().await, "nobody answers");
            drop(waiting);
        });
    }
}
