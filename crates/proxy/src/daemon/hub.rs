//! State that all tasks of a proxy share. There is one thread, and no borrow is held across an await.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{clock, tcp};
use tokio::net::TcpStream;

use super::{
    apps::Apps,
    drops::Drops,
    flows::Flows,
    kept::{Kept, Upstream},
    learnt::Learnt,
    live::{Live, Purpose, Stop, Table, ask_tcp, observe_lanes},
    resolve::Resolver,
    settings::{Settings, private_networks},
    strangers::Strangers,
    uplinks::Uplinks,
};
use crate::{
    estimate::application::Demand,
    placer::{Ask, ConnectionId, NoLink, Placement, Placer, Warm, Why},
    relay::{
        pipe::PipePool,
        stripe::{association::Association, carried::Carried},
    },
    sched::LinkId,
    stripe::{
        frame::{ConnId, Token},
        peers::Places,
    },
    target::Target,
    window::Caution,
};

/// State that all tasks share. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) settings: Settings,
    pub(crate) placer: RefCell<Placer>,
    pub(crate) uplinks: Uplinks,
    pub(crate) table: Table,
    pub(crate) peering: Peering,
    pub(crate) buffers: Buffers,
    pub(crate) resolver: Resolver,
    pub(crate) apps: Apps,
    pub(crate) drops: Rc<Drops>,
    /// Idle connections that plain HTTP requests can reuse.
    kept: RefCell<Kept>,
    /// Whether receive windows may be limited, for each link.
    pub(super) cautions: RefCell<Vec<Caution>>,
    /// Present throughput of the links.
    pub(super) flows: RefCell<Flows>,
    /// Number of connections that download parts of answers.
    part_count: Cell<usize>,
    clients: Cell<usize>,
    learnt: RefCell<Learnt>,
}

/// Buffers for relayed data.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) pipes: PipePool,
    /// Buffer for small reads. It is never borrowed across an await.
    pub(crate) scratch: RefCell<Vec<u8>>,
    /// Number of buffered bytes of answers in parts that their clients have not received yet.
    pub(crate) ahead: Cell<u64>,
}

/// Shared state about other pleach proxies. An association consists of the lanes to a peer, which are TCP connections
/// over different links, and of the connections that the lanes carry.
#[derive(Debug, Default)]
pub(crate) struct Peering {
    /// Addresses at which peers answer.
    pub(crate) places: RefCell<Places>,
    /// Associations that this end dialled, by peer and the peer's address.
    pub(crate) dialled: RefCell<BTreeMap<(usize, SocketAddr), Rc<Association>>>,
    /// Associations that peers dialled, by peer and token.
    pub(crate) answered: RefCell<BTreeMap<(usize, Token), Rc<Association>>>,
    /// `stripe_count`: number of striped connections that were opened by either end. `asking`: number of tests in
    /// progress whether a peer answers. `strangers`: connections whose peers have not been identified yet.
    pub(crate) stripe_count: Cell<usize>,
    pub(crate) asking: Cell<usize>,
    pub(super) strangers: RefCell<Strangers>,
}

impl Peering {
    /// Ends all associations with `peer`, which is no longer trusted.
    pub(super) fn forget(&self, peer: usize) {
        let dialled = self.dialled.borrow();
        let dialled = dialled.iter().filter(|((of, _), _)| *of == peer);
        let mut ending: Vec<_> = dialled
            .map(|(_, association)| Rc::clone(association))
            .collect();
        let answered = self.answered.borrow();
        let answered = answered.iter().filter(|((of, _), _)| *of == peer);
        ending.extend(answered.map(|(_, association)| Rc::clone(association)));
        for association in ending {
            association.end("the peer was removed");
        }
    }
}

/// One of the limited number of client connections. It is released on drop.
#[derive(Debug)]
pub(crate) struct Place {
    hub: Rc<Hub>,
    /// Address of a client that knows that it uses a proxy. `None` if the connection was redirected.
    ip: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let clients = &self.hub.clients;
        clients.set(clients.get().saturating_sub(1));
        if let Some(ip) = self.ip {
            self.hub.kept.borrow_mut().leave(ip);
        }
    }
}

impl Hub {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut placer = Placer::new(settings.placer.clone(), clock::now());
        for link in &settings.links {
            placer.add_link(link.settings.clone());
        }
        Self {
            uplinks: Uplinks::new(&settings.links),
            apps: Apps::new(settings.finder.clone()),
            settings,
            placer: RefCell::new(placer),
            table: Table::default(),
            peering: Peering::default(),
            buffers: Buffers {
                pipes: PipePool::default(),
                scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
                ahead: Cell::new(0),
            },
            resolver: Resolver::default(),
            drops: Rc::default(),
            kept: RefCell::default(),
            cautions: RefCell::default(),
            flows: RefCell::default(),
            part_count: Cell::new(0),
            clients: Cell::new(0),
            learnt: RefCell::default(),
        }
    }

    /// Returns a place for a client at `ip` if the client is allowed and the number of clients is below the limit.
    pub(crate) fn admit(self: &Rc<Self>, ip: IpAddr) -> Option<Place> {
        let ip = ip.to_canonical();
        let is_allowed = match &self.settings.allow {
            Some(nets) => nets.iter().any(|net| net.contains(&ip)),
            None => private_networks().iter().any(|net| net.contains(&ip)) && self.is_inside(ip),
        };
        if !is_allowed {
            self.count_drop("client-not-allowed");
            return None;
        }
        self.place(Some(ip))
    }

    /// Returns a place for a client whose connection was redirected to the proxy, if the number of clients is below the
    /// limit. The client's address is not checked, because the connection would have left through this host anyway.
    pub(crate) fn admit_redirected(self: &Rc<Self>) -> Option<Place> {
        self.place(None)
    }

    fn place(self: &Rc<Self>, ip: Option<IpAddr>) -> Option<Place> {
        let place = self.try_place(ip);
        if place.is_none() {
            self.count_drop("too-many-clients");
        }
        place
    }

    /// Returns a place if one is left. A refusal is not counted.
    pub(super) fn try_place(self: &Rc<Self>, ip: Option<IpAddr>) -> Option<Place> {
        if self.clients.get() >= self.settings.max_connections {
            return None;
        }
        self.clients.set(self.clients.get() + 1);
        if let Some(ip) = ip {
            self.kept.borrow_mut().come(ip);
        }
        let hub = Rc::clone(self);
        Some(Place { hub, ip })
    }

    pub(crate) fn count_drop(&self, reason: &'static str) {
        self.drops.count(reason);
    }

    /// Whether `ip` is reached without a link: it belongs to this host, or to a neighbour on a device that is no link.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        let on_link = || {
            let placer = self.placer.borrow();
            placer
                .links()
                .iter()
                .any(|link| link.reach.is_neighbour(ip))
        };
        self.uplinks.own.borrow().contains(&ip)
            || self
                .uplinks
                .locals
                .borrow()
                .iter()
                .any(|net| net.contains(&ip))
                && !on_link()
    }

    /// Whether `ip` belongs to this host or to a neighbour on a device that is no link. A host in the network of a link
    /// is as untrusted as any host on the Internet, even if its address is private.
    fn is_inside(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.is_local(ip)
    }

    /// Whether a client at `from` may reach `to`. A service on this host may trust connections that come from this
    /// host. A connection through the proxy would also come from this host. So only clients on this host may reach its
    /// services.
    pub(crate) fn may_reach(&self, from: IpAddr, to: IpAddr) -> bool {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let own = self.uplinks.own.borrow();
        let is_here = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
        !(is_here(to) || to.is_unspecified()) || is_here(from)
    }

    /// Chooses the links for a connection and adds the connection to the table.
    pub(crate) fn begin(
        &self,
        purpose: Purpose,
        addresses: &[IpAddr],
    ) -> Result<(Rc<Live>, Vec<LinkId>), NoLink> {
        let now = clock::now();
        let placement = if addresses.iter().any(|ip| self.is_local(*ip)) {
            None
        } else {
            let ask = Ask {
                client: purpose.client.ip().to_canonical(),
                app: purpose.app.as_deref(),
                dscp: purpose.dscp,
                target: &purpose.target,
                addresses,
                warm: &purpose.warm,
            };
            let mut placer = self.placer.borrow_mut();
            // The byte counts are updated now, because a web page often requests all its objects within one window.
            for live in self.table.live.borrow().values() {
                if let Some(id) = live.id {
                    placer.glance(now, id, live.moved());
                }
            }
            Some(placer.begin(now, ask)?)
        };
        let (id, links, why) = match placement {
            Some(Placement { id, links, why }) => (Some(id), links, Some(why)),
            None => (None, Vec::new(), None),
        };
        let live = self.enter(purpose, id, links.first().copied(), why);
        Ok((live, links))
    }

    /// Adds a connection over `link` to the table. It downloads `bytes` bytes of the answer that `whole` began to
    /// download.
    pub(crate) fn begin_part(&self, whole: &Live, link: LinkId, bytes: Bytes) -> Option<Rc<Live>> {
        let now = clock::now();
        let mut placer = self.placer.borrow_mut();
        let id = placer.begin_part(now, whole.id?, link, bytes)?;
        let purpose = whole.purpose.clone();
        self.part_count.set(self.part_count.get() + 1);
        Some(self.enter(purpose, Some(id), Some(link), Some(Why::Part)))
    }

    /// Removes a connection that downloads a part from the table.
    pub(crate) fn end_part(&self, part: &Live) {
        self.part_count.set(self.part_count.get().saturating_sub(1));
        self.end(part, false);
    }

    /// Whether more connections may download parts, in addition to the connections of clients.
    pub(crate) fn has_room_for_parts(&self) -> bool {
        self.has_room_to_wait() && self.part_count.get() < self.settings.max_connections / 2
    }

    fn enter(
        &self,
        purpose: Purpose,
        id: Option<ConnectionId>,
        link: Option<LinkId>,
        why: Option<Why>,
    ) -> Rc<Live> {
        self.table.enter(purpose, id, link, why)
    }

    /// Removes a connection from the table. `completed`: whether it was established.
    pub(crate) fn end(&self, live: &Live, completed: bool) {
        let now = clock::now();
        self.table.live.borrow_mut().remove(&live.number);
        let mut placer = self.placer.borrow_mut();
        // Most connections are shorter than a window, so TCP's statistics are read at their end.
        ask_tcp(live, &mut placer);
        live.upstream.borrow_mut().take();
        live.carried.take();
        if let Some(id) = live.id {
            placer.observe(now, id, live.moved(), live.is_held_up.get());
            let (questions, _) = live.questions.get();
            placer.end(now, id, completed.then_some(questions));
        }
    }

    /// Moves a connection to `link`, after connecting over `failed` did not succeed.
    pub(crate) fn moved(&self, live: &Live, link: LinkId, failed: &[LinkId]) {
        live.link.set(Some(link));
        live.why.set(Some(Why::Retry));
        // The stop reason and the counters belong to the old connection.
        live.stop_reason.set(None);
        live.tcp_seen.set((0, 0));
        if let Some(id) = live.id {
            self.placer
                .borrow_mut()
                .moved(clock::now(), id, link, failed);
        }
    }

    /// Sets the link of an opened connection. Connecting over `failed` did not succeed.
    pub(crate) fn opened(&self, live: &Live, link: Option<LinkId>, failed: &[LinkId]) {
        if let Some(link) = link
            && live.link.get() != Some(link)
        {
            self.moved(live, link, failed);
        }
    }

    /// Registers a request that reuses the connection `stream`. TCP's counters of earlier requests are excluded.
    pub(crate) fn reused(&self, live: &Live, link: Option<LinkId>, stream: &TcpStream) {
        if live.link.get() != link {
            self.opened(live, link, &[]);
            live.why.set(Some(Why::Site));
        }
        if let Ok(info) = tcp::info(stream) {
            live.tcp_seen.set((info.segments, info.retransmitted));
        }
    }

    /// Returns the idle connections to `target` that a request of `client` can reuse.
    pub(super) fn warm(&self, client: IpAddr, target: &Target) -> Vec<Warm> {
        let client = client.to_canonical();
        self.kept.borrow_mut().warm(clock::now(), client, target)
    }

    /// Removes an idle connection to `target` over `link` from the store and returns it.
    pub(crate) fn take_kept(
        &self,
        client: IpAddr,
        target: &Target,
        link: Option<LinkId>,
    ) -> Option<Upstream> {
        let client = client.to_canonical();
        self.kept.borrow_mut().take(client, target, link)
    }

    /// Stores `upstream` for the next request of `client` to `target`, if there is room.
    pub(crate) fn keep(&self, client: IpAddr, target: &Target, upstream: Upstream) {
        let mut kept = self.kept.borrow_mut();
        if self.has_room_to_wait() && kept.len() < self.settings.max_connections / 2 {
            kept.put(client.to_canonical(), target.clone(), upstream);
        }
    }

    /// Removes all stored idle connections over `link`.
    pub(super) fn forget_kept(&self, link: LinkId) {
        self.kept.borrow_mut().forget(link);
    }

    /// Whether the number of clients is low enough to store idle connections for further requests.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.clients.get() < self.settings.max_connections / 2
    }

    /// Marks a connection as carried by the lanes of an association.
    pub(crate) fn striped(&self, live: &Live, carried: &Carried) {
        self.on_lanes(live, &carried.association, Some(carried.conn));
    }

    /// Marks a connection, or without `conn` a UDP flow, as carried by the lanes of `association`.
    pub(crate) fn on_lanes(
        &self,
        live: &Live,
        association: &Rc<Association>,
        conn: Option<ConnId>,
    ) {
        live.carried.replace(Some((Rc::clone(association), conn)));
        live.is_opening.set(false);
        live.link.set(None);
        // A stop reason that refers to the link chosen first does not apply to the lanes.
        live.stop_reason.set(None);
        self.book_lanes(live, association);
    }

    /// Tells the placer the link of a striped connection if its association has one lane, or that it uses several
    /// links.
    fn book_lanes(&self, live: &Live, association: &Association) {
        let Some(id) = live.id else { return };
        let mut placer = self.placer.borrow_mut();
        match association.lanes().as_slice() {
            [] => {}
            [only] => placer.stripe(id, only.link),
            _ => placer.stripe(id, None),
        }
    }

    /// Tells the placer the links of all connections of an association, after a lane was added or removed.
    pub(crate) fn book_all_lanes(&self, association: &Rc<Association>) {
        for live in self.table.live.borrow().values() {
            let carried = live.carried.borrow();
            let is_on = |(on, _): &(Rc<Association>, Option<ConnId>)| Rc::ptr_eq(on, association);
            if carried.as_ref().is_some_and(is_on) {
                self.book_lanes(live, association);
            }
        }
    }

    /// Counts the bytes that the lanes of an association dialled by this end have moved on their links.
    pub(crate) fn book_moved(&self, now: Instant, association: &Association) {
        observe_lanes(now, &self.table, association, &mut self.placer.borrow_mut());
    }

    /// Returns how long one direction of a connection may stay open without data after the other direction has ended.
    pub(crate) fn half_closed_idle(&self) -> Duration {
        HALF_CLOSED_IDLE.min(self.settings.idle)
    }

    /// Passes counters to the placer, computes rates, and stops connections that are idle or whose link is down. Call
    /// it once per window.
    pub(crate) fn handle_window(&self, now: Instant) {
        let mut placer = self.placer.borrow_mut();
        let lost: Vec<bool> = self
            .uplinks
            .devices
            .borrow()
            .iter()
            .map(|device| {
                device
                    .silent_since
                    .is_some_and(|since| now.since(since) > LINK_GRACE)
            })
            .collect();
        for live in self.table.live.borrow().values() {
            let (moved, seen) = (live.moved(), live.seen.get());
            if let Some(id) = live.id {
                placer.observe(now, id, moved, live.is_held_up.get());
            }
            let bytes = moved.total().saturating_sub(seen.total());
            let sample =
                Bitrate::from_transfer(bytes, crate::placer::WINDOW).unwrap_or(Bitrate::ZERO);
            let smoothed = (live.rate.get().as_bps() * 3 + sample.as_bps()) / 4;
            live.rate.set(Bitrate::from_bps(smoothed));
            live.seen.set(moved);
            if bytes > Bytes::ZERO {
                live.progress_at.set(now);
            }
            let limit = if live.is_half_closed.get() {
                self.half_closed_idle()
            } else {
                self.settings.idle
            };
            if now.since(live.progress_at.get()) > limit {
                live.stop(Stop::Idle);
            }
            if live
                .link
                .get()
                .is_some_and(|link| lost.get(link.0) == Some(&true))
            {
                live.stop(Stop::LinkLost);
            }
            if bytes > Bytes::ZERO || live.is_opening.get() {
                ask_tcp(live, &mut placer);
            }
        }
        for association in self.peering.dialled.borrow().values() {
            observe_lanes(now, &self.table, association, &mut placer);
        }
        if let Some((link, down)) = self.uplinks.probing.take() {
            placer.observe_lane(now, link, Demand { up: 0, down }, false);
        }
        placer.handle_window(now);
        self.kept.borrow_mut().handle_window(now);
    }

    /// Restores the estimates that an earlier process stored, for existing links and for links that appear later.
    pub(crate) fn restore(&self, learnt: Learnt) {
        let now = clock::now();
        let mut placer = self.placer.borrow_mut();
        placer.demands.restore(now, learnt.demands.clone());
        for index in 0..placer.links().len() {
            restore_link(&mut placer, LinkId(index), &learnt, now);
        }
        *self.learnt.borrow_mut() = learnt;
    }

    /// Restores the stored estimates of a link that was just added.
    pub(crate) fn restore_link(&self, placer: &mut Placer, link: LinkId) {
        restore_link(placer, link, &self.learnt.borrow(), clock::now());
    }
}

fn restore_link(placer: &mut Placer, link: LinkId, learnt: &Learnt, now: Instant) {
    let Some(link) = placer.link_mut(link) else {
        return;
    };
    let known = learnt
        .links
        .iter()
        .find(|(name, _, _)| *name == link.settings.name);
    if let Some((_, up, down)) = known {
        link.estimator.up.restore(now, *up);
        link.estimator.down.restore(now, *down);
    }
    let name = &link.settings.name;
    let months = learnt.usage.iter().filter(|(link, _, _)| link == name);
    link.account
        .restore(months.map(|(_, first, bytes)| (*first, *bytes)));
}

/// Size of the buffer in bytes. A request with the largest head fits into it.
const SCRATCH_BYTES: usize = 32 << 10;

/// Maximum time for which one direction of a connection may stay open without data after the other direction has ended.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(300);

/// Time after which the connections of a link without carrier are stopped. TCP survives shorter interruptions.
const LINK_GRACE: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests;
