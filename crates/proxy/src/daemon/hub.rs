//! What all tasks of a proxy share. One thread: no borrow is held across an await.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{
    clock,
    tcp::{self, TcpInfo},
};
use tokio::{net::TcpStream, sync::Notify};

use super::{
    answering::Strangers,
    apps::Apps,
    cgroup::Bound,
    kept::{Kept, Upstream},
    report::Learnt,
    resolve::Resolver,
    room::Flows,
    settings::{Settings, private_networks},
    windows::Share,
};
use crate::{
    estimate::{application::Demand, link::TcpSample},
    handshake::Protocol,
    placer::{Ask, ConnectionId, NoLink, Placement, Placer, Warm, Why},
    relay::{
        pipe::PipePool,
        stripe::{Stripe, pulse::Pulses},
    },
    sched::LinkId,
    stripe::{frame::Token, peers::Places},
    target::Target,
    window::Caution,
};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) settings: Settings,
    pub(crate) placer: RefCell<Placer>,
    /// Device and source addresses of each link, by id.
    pub(crate) devices: RefCell<Vec<Device>>,
    /// Networks directly on devices that are no links, the loopback device's among them.
    pub(crate) locals: RefCell<Vec<IpNet>>,
    /// This host's own addresses on all its devices.
    pub(crate) own: RefCell<BTreeSet<IpAddr>>,
    pub(crate) resolver: Resolver,
    pub(crate) apps: Apps,
    pub(crate) pipes: PipePool,
    /// Where small reads go; never borrowed across an await.
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) live: RefCell<BTreeMap<u64, Rc<Live>>>,
    pub(crate) drops: RefCell<BTreeMap<&'static str, u64>>,
    /// What plain HTTP requests may use again.
    kept: RefCell<Kept>,
    /// By link: whether receive windows may be bound.
    pub(super) cautions: RefCell<Vec<Caution>>,
    /// What links carry just now.
    pub(super) flows: RefCell<Flows>,
    /// What is kept of answers in parts ahead of their clients, in bytes.
    pub(crate) ahead: Cell<u64>,
    /// How many connections bring parts of answers.
    part_count: Cell<usize>,
    /// What the kernel's hook did, by link; empty without it.
    pub(crate) bound: RefCell<Vec<Bound>>,
    /// Where other pleaches answer, and striped connections of others: by peer and token.
    pub(crate) places: RefCell<Places>,
    pub(crate) pulses: Pulses,
    pub(crate) stripes: RefCell<BTreeMap<(usize, Token), Rc<Stripe>>>,
    /// Striped connections of either kind, askings under way, and those who did not say yet who they are.
    pub(crate) stripe_count: Cell<usize>,
    pub(crate) asking: Cell<usize>,
    pub(super) strangers: RefCell<Strangers>,
    /// The link that is being probed, and what came by the probe since the last window.
    pub(crate) probing: Cell<Option<(LinkId, u64)>>,
    /// Links lead elsewhere than before.
    pub(crate) links_changed: Notify,
    clients: Cell<usize>,
    next_number: Cell<u64>,
    learnt: RefCell<Learnt>,
}

/// A link's side of the host.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) source: Vec<IpAddr>,
    /// What it was seen to have.
    pub(crate) addresses: Vec<IpNet>,
    /// Since when it leads nowhere, though the device and its address are there.
    pub(crate) silent_since: Option<Instant>,
}

/// Who a connection is for.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    pub(crate) client: SocketAddr,
    pub(crate) app: Option<String>,
    pub(crate) target: Target,
    pub(crate) protocol: Protocol,
    /// Connections to the server that wait for use.
    pub(crate) warm: Vec<Warm>,
}

/// A connection to a server, or a UDP exchange with one.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) number: u64,
    pub(crate) purpose: Purpose,
    /// The placer's; `None` for a destination that needs no link.
    pub(crate) id: Option<ConnectionId>,
    pub(crate) why: Cell<Option<Why>>,
    pub(crate) link: Cell<Option<LinkId>>,
    /// To the server, from the server.
    pub(crate) up: Cell<u64>,
    pub(crate) down: Cell<u64>,
    /// How often the client has said something after the server did, and what had come from the server by then.
    pub(crate) questions: Cell<(u64, u64)>,
    /// The client does not take what the server sends.
    pub(crate) is_held_up: Cell<bool>,
    /// Nothing has come back yet, so that another link may be tried.
    pub(crate) is_opening: Cell<bool>,
    /// A TCP connection for it is being made.
    pub(crate) is_connecting: Cell<bool>,
    pub(crate) is_half_closed: Cell<bool>,
    /// The client of a plain request has sent more than that.
    pub(crate) is_ahead: Cell<bool>,
    /// What it still has to bring can be had over another link: without its own it takes a detour.
    pub(crate) may_resume: Cell<bool>,
    pub(crate) detour: Notify,
    stop: Notify,
    pub(crate) stop_reason: Cell<Option<Stop>>,
    pub(crate) upstream: RefCell<Option<Rc<TcpStream>>>,
    /// If it is striped.
    pub(crate) stripe: RefCell<Option<Rc<Stripe>>>,
    /// In both directions, smoothed.
    pub(crate) rate: Cell<Bitrate>,
    seen: Cell<Demand>,
    progress_at: Cell<Instant>,
    tcp_seen: Cell<(u32, u32)>,
    /// What it has of its link.
    pub(crate) share: Cell<Share>,
}

/// Why a connection is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It moved nothing for too long.
    Idle,
    /// Its link is gone.
    LinkLost,
    /// Nothing is acknowledged; only while it is opening.
    Stalled,
}

impl Stop {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Idle => "idle for too long",
            Self::LinkLost => "the link went down",
            Self::Stalled => "nothing comes back",
        }
    }
}

/// A client's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    hub: Rc<Hub>,
    /// Of one who knows that this is a proxy.
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
        let mut devices = Vec::new();
        for link in &settings.links {
            placer.add_link(link.settings.clone());
            devices.push(Device {
                name: link.device.clone(),
                source: link.source.clone(),
                addresses: Vec::new(),
                silent_since: None,
            });
        }
        Self {
            settings,
            placer: RefCell::new(placer),
            devices: RefCell::new(devices),
            locals: RefCell::default(),
            own: RefCell::default(),
            resolver: Resolver::default(),
            apps: Apps::default(),
            pipes: PipePool::default(),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
            live: RefCell::default(),
            drops: RefCell::default(),
            kept: RefCell::default(),
            cautions: RefCell::default(),
            flows: RefCell::default(),
            ahead: Cell::new(0),
            part_count: Cell::new(0),
            bound: RefCell::default(),
            places: RefCell::default(),
            pulses: Pulses::default(),
            stripes: RefCell::default(),
            stripe_count: Cell::new(0),
            asking: Cell::new(0),
            strangers: RefCell::default(),
            probing: Cell::new(None),
            links_changed: Notify::new(),
            clients: Cell::new(0),
            next_number: Cell::new(0),
            learnt: RefCell::default(),
        }
    }

    /// A place for a client at `ip`, if it is allowed and there is room.
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

    /// A place for a client whose connection was redirected here, if there is room. Whoever it is: the connection would
    /// have left through this host anyway.
    pub(crate) fn admit_redirected(self: &Rc<Self>) -> Option<Place> {
        self.place(None)
    }

    fn place(self: &Rc<Self>, ip: Option<IpAddr>) -> Option<Place> {
        if self.clients.get() >= self.settings.max_connections {
            self.count_drop("too-many-clients");
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
        *self.drops.borrow_mut().entry(reason).or_default() += 1;
    }

    /// Whether `ip` is reached without a link: on this host, or beside it on a device that is no link.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        let on_link = || {
            let placer = self.placer.borrow();
            placer
                .links()
                .iter()
                .any(|link| link.reach.is_neighbour(ip))
        };
        self.own.borrow().contains(&ip)
            || self.locals.borrow().iter().any(|net| net.contains(&ip)) && !on_link()
    }

    /// Whether `ip` is this host, or beside it on a device that is no link: who shares a link's network with this host is
    /// as much a stranger as all behind it, however private the address.
    fn is_inside(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.is_local(ip)
    }

    /// Whether a client at `from` may reach `to`. What listens on this host may trust whoever reaches it from here, and
    /// a client elsewhere would come from here: that is for clients on this host only.
    pub(crate) fn may_reach(&self, from: IpAddr, to: IpAddr) -> bool {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let own = self.own.borrow();
        let is_here = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
        !(is_here(to) || to.is_unspecified()) || is_here(from)
    }

    /// How many connections were ever asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.next_number.get()
    }

    /// Devices of all links.
    pub(crate) fn device_names(&self) -> Vec<String> {
        let devices = self.devices.borrow();
        devices.iter().map(|device| device.name.clone()).collect()
    }

    /// Places a connection and enters it into the table.
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
                target: &purpose.target,
                addresses,
                warm: &purpose.warm,
            };
            let mut placer = self.placer.borrow_mut();
            // A page asks for all it has within the first window.
            for live in self.live.borrow().values() {
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

    /// Enters a connection over `link` into the table that brings `bytes` of what `whole` began to bring.
    pub(crate) fn begin_part(&self, whole: &Live, link: LinkId, bytes: Bytes) -> Option<Rc<Live>> {
        let now = clock::now();
        let mut placer = self.placer.borrow_mut();
        let id = placer.begin_part(now, whole.id?, link, bytes)?;
        let purpose = whole.purpose.clone();
        self.part_count.set(self.part_count.get() + 1);
        Some(self.enter(purpose, Some(id), Some(link), Some(Why::Part)))
    }

    /// Takes such a one out of the table.
    pub(crate) fn end_part(&self, part: &Live) {
        self.part_count.set(self.part_count.get().saturating_sub(1));
        self.end(part, false);
    }

    /// Whether more connections may bring parts, beside those that bring what clients wait for.
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
        let now = clock::now();
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let live = Rc::new(Live {
            number,
            purpose,
            id,
            why: Cell::new(why),
            link: Cell::new(link),
            up: Cell::new(0),
            down: Cell::new(0),
            questions: Cell::new((1, 0)),
            is_held_up: Cell::new(false),
            is_opening: Cell::new(true),
            is_connecting: Cell::new(false),
            is_half_closed: Cell::new(false),
            is_ahead: Cell::new(false),
            may_resume: Cell::new(false),
            detour: Notify::new(),
            stop: Notify::new(),
            stop_reason: Cell::new(None),
            upstream: RefCell::default(),
            stripe: RefCell::default(),
            rate: Cell::new(Bitrate::ZERO),
            seen: Cell::new(Demand { up: 0, down: 0 }),
            progress_at: Cell::new(now),
            tcp_seen: Cell::new((0, 0)),
            share: Cell::default(),
        });
        self.live.borrow_mut().insert(number, Rc::clone(&live));
        live
    }

    /// Takes a connection out of the table. `completed`: it was established.
    pub(crate) fn end(&self, live: &Live, completed: bool) {
        let now = clock::now();
        self.live.borrow_mut().remove(&live.number);
        let mut placer = self.placer.borrow_mut();
        // Most connections are shorter than a window: this is when they tell of their link.
        ask_tcp(live, &mut placer);
        live.upstream.borrow_mut().take();
        observe_lanes(now, live, &mut placer);
        live.stripe.borrow_mut().take();
        if let Some(id) = live.id {
            placer.observe(now, id, live.moved(), live.is_held_up.get());
            let (questions, _) = live.questions.get();
            placer.end(now, id, completed.then_some(questions));
        }
    }

    /// Notes that a connection is over `link` now, after `failed` did not work.
    pub(crate) fn moved(&self, live: &Live, link: LinkId, failed: &[LinkId]) {
        live.link.set(Some(link));
        live.why.set(Some(Why::Retry));
        // Why the old connection was to stop says nothing of the new one, nor do the old one's counters.
        live.stop_reason.set(None);
        live.tcp_seen.set((0, 0));
        if let Some(id) = live.id {
            self.placer
                .borrow_mut()
                .moved(clock::now(), id, link, failed);
        }
    }

    /// Notes which link a connection was opened over, after `failed` did not work.
    pub(crate) fn opened(&self, live: &Live, link: Option<LinkId>, failed: &[LinkId]) {
        if let Some(link) = link
            && live.link.get() != Some(link)
        {
            self.moved(live, link, failed);
        }
    }

    /// Notes that a request goes over `stream`, which has served others: what TCP counted then is not this one's.
    pub(crate) fn reused(&self, live: &Live, link: Option<LinkId>, stream: &TcpStream) {
        if live.link.get() != link {
            self.opened(live, link, &[]);
            live.why.set(Some(Why::Site));
        }
        if let Ok(info) = tcp::info(stream) {
            live.tcp_seen.set((info.segments, info.retransmitted));
        }
    }

    /// Connections to `target` that wait for a request of `client`.
    pub(super) fn warm(&self, client: IpAddr, target: &Target) -> Vec<Warm> {
        let client = client.to_canonical();
        self.kept.borrow_mut().warm(clock::now(), client, target)
    }

    /// One of those, over `link`.
    pub(crate) fn take_kept(
        &self,
        client: IpAddr,
        target: &Target,
        link: Option<LinkId>,
    ) -> Option<Upstream> {
        let client = client.to_canonical();
        self.kept.borrow_mut().take(client, target, link)
    }

    /// Keeps `upstream` for the next request of `client` to `target`, if there is room.
    pub(crate) fn keep(&self, client: IpAddr, target: &Target, upstream: Upstream) {
        let mut kept = self.kept.borrow_mut();
        if self.has_room_to_wait() && kept.len() < self.settings.max_connections / 2 {
            kept.put(client.to_canonical(), target.clone(), upstream);
        }
    }

    /// Whether the link of `upstream` has its address still.
    pub(super) fn has_address_of(&self, upstream: &Upstream) -> bool {
        let devices = self.devices.borrow();
        let device = upstream.link.and_then(|link| devices.get(link.0));
        let Ok(from) = upstream.stream.local_addr() else {
            return false;
        };
        let ip = from.ip().to_canonical();
        device.is_none_or(|device| device.addresses.iter().any(|net| net.addr() == ip))
    }

    /// Connections over `link` serve nobody any more.
    pub(super) fn forget_kept(&self, link: LinkId) {
        self.kept.borrow_mut().forget(link);
    }

    /// Whether there are so few clients that connections may be kept for what they ask next.
    pub(crate) fn has_room_to_wait(&self) -> bool {
        self.clients.get() < self.settings.max_connections / 2
    }

    /// Notes that a connection is striped over `stripe`.
    pub(crate) fn striped(&self, live: &Live, stripe: &Rc<Stripe>) {
        *live.stripe.borrow_mut() = Some(Rc::clone(stripe));
        live.is_opening.set(false);
        live.link.set(None);
        // The link it was to take first says nothing of the lanes.
        live.stop_reason.set(None);
        self.book_lanes(live, stripe);
    }

    /// Tells the placer on which link a striped connection is, if it has one lane, or that it is on several.
    pub(crate) fn book_lanes(&self, live: &Live, stripe: &Stripe) {
        let Some(id) = live.id else { return };
        let mut placer = self.placer.borrow_mut();
        match stripe.lanes().as_slice() {
            [] => {}
            [only] => placer.stripe(id, only.link),
            _ => placer.stripe(id, None),
        }
    }

    /// How long a half of a connection may wait for the other half to end, without anything moved.
    pub(crate) fn half_closed_idle(&self) -> Duration {
        HALF_CLOSED_IDLE.min(self.settings.idle)
    }

    /// Once a window: counters to the placer, rates, idle limits, dead links.
    pub(crate) fn handle_window(&self, now: Instant) {
        let mut placer = self.placer.borrow_mut();
        let lost: Vec<bool> = self
            .devices
            .borrow()
            .iter()
            .map(|device| {
                device
                    .silent_since
                    .is_some_and(|since| now.since(since) > LINK_GRACE)
            })
            .collect();
        for live in self.live.borrow().values() {
            let (moved, seen) = (live.moved(), live.seen.get());
            if let Some(id) = live.id {
                placer.observe(now, id, moved, live.is_held_up.get());
            }
            observe_lanes(now, live, &mut placer);
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
        if let Some((link, down)) = self.probing.take() {
            placer.observe_lane(now, link, Demand { up: 0, down }, false);
        }
        placer.handle_window(now);
        self.kept.borrow_mut().handle_window(now);
    }

    /// Takes back what an earlier run had learnt, for the links that are there and those that come.
    pub(crate) fn restore(&self, learnt: Learnt) {
        let now = clock::now();
        let mut placer = self.placer.borrow_mut();
        placer.demands.restore(now, learnt.demands.clone());
        for index in 0..placer.links().len() {
            restore_link(&mut placer, LinkId(index), &learnt, now);
        }
        *self.learnt.borrow_mut() = learnt;
    }

    /// Gives a link that was just added what an earlier run knew of it.
    pub(crate) fn restore_link(&self, placer: &mut Placer, link: LinkId) {
        restore_link(placer, link, &self.learnt.borrow(), clock::now());
    }
}

impl Live {
    pub(crate) fn moved(&self) -> Demand {
        Demand {
            up: self.up.get(),
            down: self.down.get(),
        }
    }

    /// Whether it is where it is because the user said so.
    pub(crate) fn is_tied(&self) -> bool {
        matches!(self.why.get(), Some(Why::Rule(_)))
    }

    /// Notes that it gets on, though nothing moves over its own link.
    pub(crate) fn touch(&self, now: Instant) {
        self.progress_at.set(now);
    }

    /// Forgets what TCP has counted: the connection is another one.
    pub(crate) fn tcp_begins(&self) {
        self.tcp_seen.set((0, 0));
    }

    /// Tells the connection's task to stop.
    pub(crate) fn stop(&self, reason: Stop) {
        if reason == Stop::LinkLost && self.may_resume.get() {
            return self.detour.notify_one();
        }
        self.stop_reason.set(Some(reason));
        self.stop.notify_one();
    }

    /// Waits until the connection is told to stop. A notification whose reason is gone was for an earlier link.
    pub(crate) async fn stopped(&self) {
        loop {
            self.stop.notified().await;
            if self.stop_reason.get().is_some() {
                return;
            }
        }
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

/// Books what the lanes of a striped connection moved on their links.
fn observe_lanes(now: Instant, live: &Live, placer: &mut Placer) {
    let stripe = live.stripe.borrow();
    let lanes = |stripe: &Rc<Stripe>| stripe.lanes().into_iter().chain(stripe.take_ended());
    for lane in stripe.iter().flat_map(lanes) {
        let Some(link) = lane.link else { continue };
        let (tx, rx) = (lane.tx_bytes.get(), lane.rx_bytes.get());
        let (seen_tx, seen_rx) = lane.seen.replace((tx, rx));
        let moved = Demand {
            up: tx - seen_tx,
            down: rx - seen_rx,
        };
        placer.observe_lane(now, link, moved, live.is_held_up.get());
        if moved.total() > Bytes::ZERO
            && let Ok(info) = tcp::info(&lane.stream)
        {
            let mut share = lane.share.get();
            share.on_tcp(&info);
            lane.share.set(share);
            observe_tcp(placer, link, info, &lane.tcp_seen);
        }
    }
}

/// What TCP says of the connection: round trip and loss for its link, and whether anything is acknowledged.
fn ask_tcp(live: &Live, placer: &mut Placer) {
    let upstream = live.upstream.borrow();
    let (Some(stream), Some(link)) = (upstream.as_ref(), live.link.get()) else {
        return;
    };
    let Ok(info) = tcp::info(stream) else { return };
    if live.is_opening.get() && info.timeouts >= STALL_TIMEOUTS && info.unacked > 0 {
        live.stop(Stop::Stalled);
    }
    let mut share = live.share.get();
    share.on_tcp(&info);
    live.share.set(share);
    observe_tcp(placer, link, info, &live.tcp_seen);
}

fn observe_tcp(placer: &mut Placer, link: LinkId, info: TcpInfo, seen: &Cell<(u32, u32)>) {
    let (segments, retransmitted) = seen.replace((info.segments, info.retransmitted));
    if info.rtt > Duration::ZERO {
        let sample = TcpSample {
            rtt: info.rtt,
            // The kernel's is all ones before the first.
            min_rtt: info.min_rtt.min(info.rtt),
            segments: info.segments.saturating_sub(segments),
            retransmitted: info.retransmitted.saturating_sub(retransmitted),
        };
        placer.observe_tcp(link, sample);
    }
}

/// Room for the largest head of a request at once.
const SCRATCH_BYTES: usize = 32 << 10;

/// A half of a connection may wait this long for the other half to end.
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(300);

/// A link without carrier may come back: TCP bears that for a while.
const LINK_GRACE: Duration = Duration::from_secs(10);

/// As many timeouts in a row, of 0.2 s, 0.4 s, … and more on long paths, mean that nothing gets through.
const STALL_TIMEOUTS: u8 = 3;

#[cfg(test)]
pub(crate) mod tests;
