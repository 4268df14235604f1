//! One association of two ends over several paths. It joins the parts and holds no algorithm of its own.
//!
//! The life of a packet out (`egress`): tunnel queue → policy picks a path → global number → sealed into a batch.
//! The life of a packet in (`ingress`): opened in place → path accounting → resequencer → delivered.
//! Between them (`control`): probes, reports, link descriptions.
//!
//! The owner is [`crate::endpoint::Endpoint`], which finds the tunnel a datagram or packet belongs to, runs handshakes,
//! and lends the buffers that all tunnels share ([`Shared`]).

use core::{cmp::Reverse, mem, net::IpAddr, time::Duration};
use std::collections::VecDeque;

use crate::{
    class::{Class, Classifier},
    compression::{Compressor, Expander},
    counters::{DropReason, Drops},
    ids::{PathId, Seq},
    loss_report::{LossLedger, LossWatch},
    packet::{PacketBuf, Pool},
    path::{
        Former, Path,
        health::State,
        link::Link,
        memory::PathMemory,
        sender::{Numbered, Origin},
        window::WindowedMin,
    },
    profile::{Mechanism, Profile},
    queue::{Queue, QueueConfig, QueueDrop},
    resequencer::AnyResequencer,
    role::Role,
    sched::{AnyScheduler, PathView, Scheduler as _, SchedulerSettings},
    session::rotation::SessionSet,
    time::Instant,
    trace::{Event, Observer, RepairCause, Tracer},
    transmit::Route,
    wire::control::LinkRole,
};

mod ahead;
mod blocks;
mod control;
mod egress;
mod fec;
mod ingress;
mod lanes;
mod losses;
mod mtu;
mod repairs;
mod round_trips;
mod sec;
mod staged;
mod status;
mod templates;
mod urgent;
mod usage;

pub use ingress::Incoming;
pub use status::{ParityStatus, PathStatus, TunnelStatus};

/// What a tunnel borrows from its owner for one call.
#[derive(Debug)]
pub struct Shared<'a> {
    /// Where buffers come from and return to.
    pub pool: &'a mut Pool,
    /// Inner packets for the host, in order.
    pub delivered: &'a mut VecDeque<PacketBuf>,
    /// What was dropped, by reason.
    pub drops: &'a mut Drops,
}

impl Shared<'_> {
    /// Takes what a queue drops.
    fn on_queue_drop(&mut self) -> impl FnMut(PacketBuf, QueueDrop) {
        |packet, reason| {
            self.drops.add(DropReason::from(reason), 1);
            self.pool.recycle(packet);
        }
    }
}

/// One association.
#[derive(Debug)]
pub struct Tunnel {
    role: Role,
    sessions: SessionSet,
    sessions_deadline: Option<Instant>,
    /// Indexed by path id.
    paths: [Option<Box<Path>>; PathId::MAX],
    /// What a removed path leaves to the next of its id.
    former: [Option<Box<Former>>; PathId::MAX],
    /// Names links by the user's names, which may become known later.
    settings: SchedulerSettings<String>,
    /// The settings by path ids, as far as they are known.
    resolved: SchedulerSettings,
    scheduler: AnyScheduler,
    /// What is done for packets beside choosing their paths.
    profile: Profile,
    queue: Queue,
    compressor: Compressor,
    /// Whether headers are made shorter.
    is_compressing: bool,
    expander: Expander,
    /// Templates to acknowledge, and those that were used and are not known.
    templates_owed: Vec<u16>,
    templates_unknown: Vec<u16>,
    /// Of young flows.
    round_trips: round_trips::RoundTrips,
    /// Packets of a flow that wait while later ones are under way.
    ahead: ahead::Ahead,
    resequencer: AnyResequencer,
    receptions: losses::Receptions,
    /// What the other end wants counted.
    loss_watch: Option<Box<LossWatch>>,
    /// What it has reported.
    loss_ledger: LossLedger,
    next_global: Seq,
    /// Global number of each flow bucket's last packet, plus one; 0 if it had none.
    flows: Vec<u64>,
    /// Packets taken back from silent paths, or lost, to be sent before anything new.
    reinject: VecDeque<Numbered>,
    /// The other end sends lost packets again.
    has_repairs: bool,
    /// How long packets may be.
    lengths: mtu::Lengths,
    /// What may be spent on lost ones.
    repairs: repairs::Budget,
    /// Repair symbols out, and in.
    fec_sending: fec::Sending,
    fec_receiving: fec::Receiving,
    /// Placed on paths that were not ready.
    staged: staged::Staged,
    /// What waits, beside the tunnel queue.
    lanes: Box<lanes::Lanes>,
    /// What the quickest path takes one way, as far as known: half of its round trip.
    least_delay: Duration,
    /// Of a policy that wants them.
    blocks: blocks::Blocks,
    /// Parity, and what waits to be mended by it.
    sec: sec::Sec,
    /// What packets may wait before late paths take them, at most of late.
    late: WindowedMin<Reverse<Duration>>,
    /// The policy waits until then.
    wait_until: Option<Instant>,
    /// When a path that has no tokens gets some, as of the last poll.
    release_at: Option<Instant>,
    /// Scratch: the policy's view, one per known path.
    views: Vec<PathView>,
    /// Scratch: copies the resequencer dropped.
    dropped: Vec<PacketBuf>,
    counts: Counts,
    /// Which paths carry something.
    usage: usage::Usage,
    /// Who sees what is decided.
    tracer: Tracer,
    last_received_at: Option<Instant>,
    second_report_at: Option<Instant>,
    is_closing: bool,
    is_closed_by_peer: bool,
}

/// Counters of one association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    packets_in: u64,
    packets_out: u64,
    reinjected: u64,
    repaired: u64,
    symbols_out: u64,
    symbols_in: u64,
    recovered: u64,
    mended: u64,
}

/// Buckets a tunnel tells flows apart by: flows that share one are kept in order with each other, which is harmless.
const FLOW_BUCKETS: usize = 1024;

impl Tunnel {
    /// An association without sessions or paths.
    #[must_use]
    pub fn new(role: Role, settings: SchedulerSettings<String>, queue: QueueConfig) -> Self {
        let resolved = settings.clone().map_links(|_| None);
        let (scheduler, profile) = resolved.build();
        let mut tunnel = Self {
            role,
            sessions: SessionSet::new(),
            sessions_deadline: None,
            paths: core::array::from_fn(|_| None),
            former: core::array::from_fn(|_| None),
            receptions: losses::Receptions::new(Instant::ZERO, profile.reception),
            loss_ledger: losses::ledger(profile.reception),
            resolved,
            scheduler,
            profile,
            settings,
            queue: Queue::new(queue),
            compressor: Compressor::default(),
            is_compressing: true,
            expander: Expander::default(),
            templates_owed: Vec::new(),
            templates_unknown: Vec::new(),
            round_trips: round_trips::RoundTrips::default(),
            resequencer: AnyResequencer::default(),
            loss_watch: None,
            ahead: ahead::Ahead::default(),
            next_global: Seq(0),
            flows: Vec::new(),
            reinject: VecDeque::new(),
            has_repairs: false,
            lengths: mtu::Lengths::of(UNKNOWN_MTU),
            repairs: repairs::Budget::default(),
            fec_sending: fec::Sending::default(),
            fec_receiving: fec::Receiving::default(),
            staged: staged::Staged::default(),
            lanes: Box::new(lanes::Lanes::new(
                Classifier::new(Vec::new(), profile.voice),
                queue,
            )),
            least_delay: Duration::ZERO,
            blocks: blocks::Blocks::default(),
            sec: sec::Sec::default(),
            late: WindowedMin::new(LATE_KEPT),
            wait_until: None,
            release_at: None,
            views: Vec::with_capacity(PathId::MAX),
            dropped: Vec::new(),
            counts: Counts::default(),
            usage: usage::Usage::default(),
            tracer: Tracer::default(),
            last_received_at: None,
            second_report_at: None,
            is_closing: false,
            is_closed_by_peer: false,
        };
        tunnel.adapt_queue(Instant::ZERO);
        tunnel
    }

    /// Whether headers of inner packets are compressed on the way out.
    pub fn set_compression(&mut self, is_wanted: bool) {
        self.is_compressing = is_wanted;
    }

    /// The user's classes of traffic. What they have counted begins anew.
    pub fn set_classes(&mut self, classes: Vec<Class>) {
        self.lanes.classifier = Classifier::new(classes, self.profile.voice);
    }

    /// Lets `observer` see what is decided from now on.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.tracer.set(observer);
        self.scheduler.observe();
    }

    /// Whether the other end has a capability.
    fn knows(&self, capability: u32) -> bool {
        let session = self.sessions.current();
        session.is_some_and(|session| session.remote_hello().capabilities & capability != 0)
    }

    /// The keys.
    pub fn sessions(&mut self) -> &mut SessionSet {
        &mut self.sessions
    }

    /// When anything authentic last arrived.
    #[must_use]
    pub fn last_received_at(&self) -> Option<Instant> {
        self.last_received_at
    }

    /// Whether some path can carry data.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.sessions.current().is_some()
            && self.paths().any(|path| path.health().state() == State::Up)
    }

    /// Adds the client's link `id`, whose number is free.
    pub fn add_path(&mut self, now: Instant, id: PathId, link: Link) {
        if let Some(slot) = self.paths.get_mut(id.index()) {
            let mut path = Path::new(now, id, link, self.role, self.profile);
            if let Some(former) = self.former[id.index()].take() {
                path.resume(*former);
            }
            *slot = Some(Box::new(path));
            self.fec_sending.forget(id);
            self.resolve_policy();
            self.adapt_queue(now);
        }
    }

    /// Removes a link; what was under way on it is sent again elsewhere.
    pub fn remove_path(&mut self, id: PathId, shared: &mut Shared<'_>) {
        self.take_back(id);
        if let Some(path) = self.paths.get_mut(id.index()).and_then(Option::take) {
            self.former[id.index()] = Some(Box::new(path.retire(shared.pool)));
        }
    }

    /// A path, if known.
    #[must_use]
    pub fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.get(id.index())?.as_deref()
    }

    /// Where the datagrams of a path go; `None` while its link has no way out.
    pub fn set_route(&mut self, now: Instant, id: PathId, route: Option<Route>) {
        let Some(path) = self.path_mut(id) else {
            return;
        };
        if path.set_route(now, route) && path.health().state() != State::Up {
            self.take_back(id);
            self.round_trips.fade(now);
        }
    }

    /// A handshake of ours succeeded: the other end learns of the new keys by what we send now.
    pub fn on_connected(&mut self, now: Instant) {
        self.last_received_at = Some(now);
        self.sessions_deadline = Some(now);
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            path.announce(now);
        }
        self.receptions.repeat(now);
    }

    /// We answered a handshake: its session waits, but not for ever.
    pub fn on_answered(&mut self, now: Instant) {
        self.sessions_deadline = Some(now);
    }

    /// Whether the other end said good-bye since the last call.
    pub fn take_closed_by_peer(&mut self) -> bool {
        mem::take(&mut self.is_closed_by_peer)
    }

    /// A path whose health changed since the last call: its link's name, and its health.
    pub fn poll_path_change(&mut self) -> Option<(String, State)> {
        let now = self.usage.now();
        let tracer = &mut self.tracer;
        let mut paths = self.paths.iter_mut().filter_map(Option::as_deref_mut);
        paths.find_map(|path| {
            let (from, to) = path.take_health_change()?;
            tracer.tell(now, || Event::Health {
                path: path.id(),
                from,
                to,
            });
            Some((path.link().name.clone(), to))
        })
    }

    /// A path that has a way to somewhere, or to somewhere else, since the last call: its id, its link's name, and the
    /// address it leads to. A link's name is known to a gateway only once its client has told it.
    pub fn poll_found_path(&mut self, now: Instant) -> Option<(PathId, String, IpAddr)> {
        let mut paths = self.paths.iter_mut().filter_map(Option::as_deref_mut);
        paths.find_map(|path| {
            let to = path.take_found(now)?;
            Some((path.id(), path.link().name.clone(), to))
        })
    }

    /// What is worth remembering of each path.
    pub fn memories(&self, now: Instant) -> impl Iterator<Item = (PathId, PathMemory)> {
        self.paths()
            .filter_map(move |path| Some((path.id(), path.memory(now)?)))
    }

    /// Takes what was remembered of the network that a path leads over.
    pub fn recall(&mut self, now: Instant, id: PathId, memory: &PathMemory) {
        if let Some(path) = self.path_mut(id) {
            path.recall(now, memory);
        }
    }

    /// Paths that have a route and do not work, though nothing says why: another address may.
    #[must_use]
    pub fn stuck_paths(&self) -> Vec<PathId> {
        let is_stuck =
            |path: &&Path| path.route().is_some() && path.health().state() == State::Down;
        self.paths().filter(is_stuck).map(Path::id).collect()
    }

    /// Changes the settings of the links of this name; how many there are.
    pub fn update_links(
        &mut self,
        now: Instant,
        name: &str,
        mut change: impl FnMut(&mut Link),
    ) -> usize {
        let ids: Vec<_> = self
            .paths()
            .filter(|path| path.link().name == name)
            .map(Path::id)
            .collect();
        for id in &ids {
            self.update_link(now, *id, &mut change);
        }
        ids.len()
    }

    /// The user changed a link's settings; the other end will be told.
    fn update_link(&mut self, now: Instant, id: PathId, change: impl FnOnce(&mut Link)) {
        if let Some(path) = self.path_mut(id) {
            path.configure(now, change);
            self.adapt_queue(now);
        }
    }

    /// The socket of a path's link is full (`true`) or has room again.
    pub fn set_blocked(&mut self, id: PathId, is_blocked: bool) {
        if let Some(path) = self.path_mut(id) {
            path.set_blocked(is_blocked);
        }
    }

    /// Takes an inner packet from the host.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        flow_hash: u64,
        shared: &mut Shared<'_>,
    ) {
        self.counts.packets_in += 1;
        self.usage.on_offered(now);
        self.watch_round_trip(now, &packet, shared);
        if !self.has_narrow() {
            return self.enqueue(now, packet, flow_hash, shared);
        }
        for packet in self.fit(now, packet, shared) {
            self.enqueue(now, packet, flow_hash, shared);
        }
    }

    /// Lets time pass: deadlines of held packets, health of paths, ages of keys.
    pub fn handle_timeout(&mut self, now: Instant, shared: &mut Shared<'_>) {
        let before = shared.delivered.len();
        self.resequencer.on_timeout(now, shared.delivered);
        self.keep_round_trips(now, before, shared);
        self.round_trips.on_timeout(now, shared.delivered);
        let has_active = self
            .paths()
            .any(|path| path.link().role == LinkRole::Active && path.health().state() == State::Up);
        for index in 0..PathId::MAX {
            let Some(path) = self.paths[index].as_deref_mut() else {
                continue;
            };
            let is_reserve = path.link().role == LinkRole::Standby && has_active;
            let was = path.on_timeout(now, is_reserve);
            let (id, is) = (path.id(), path.health().state());
            if is == State::Down && matches!(was, State::Up | State::Suspect) {
                self.round_trips.fade(now);
            }
            if was == State::Up && is != State::Up {
                self.take_back(id);
            } else if self.overdue_at(id).is_some_and(|at| at <= now) {
                self.take_overdue(now, id);
            }
        }
        self.look_for_narrow(now);
        self.sessions_deadline = self.sessions.expire(now);
    }

    /// When [`Self::handle_timeout`] or a poll next has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Nothing can be sent without a session, so nothing of a path can be due.
        let can_send = self.sessions.current().is_some();
        let paths = self
            .paths()
            .filter(|path| can_send && path.route().is_some())
            .filter_map(|path| {
                [
                    self.overdue_at(path.id()),
                    self.probe_mtu_at(path),
                    path.next_deadline(),
                ]
                .into_iter()
                .flatten()
                .min()
            });
        [
            self.resequencer.poll_timeout(),
            self.round_trips.poll_timeout(),
            self.sessions_deadline,
            self.losses_due().filter(|_| can_send && self.has_route()),
            self.compressor
                .due()
                .filter(|_| can_send && self.has_route()),
            self.wait_until.filter(|_| can_send),
            self.release_at.filter(|_| can_send),
            self.fec_sending
                .tail_due()
                .filter(|_| can_send && !self.has_packets()),
            paths.min(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Starts over, as after a restart of the other end: new numbers, new keys, nothing held.
    ///
    /// Packets in the tunnel queue stay; numbered and held ones are counted as [`DropReason::Reset`].
    pub fn reset(&mut self, now: Instant, shared: &mut Shared<'_>) {
        self.resequencer.reset(&mut self.dropped);
        self.receptions = losses::Receptions::new(now, self.profile.reception);
        self.loss_watch = None;
        self.late = WindowedMin::new(LATE_KEPT);
        self.has_repairs = false;
        self.fec_sending = fec::Sending::default();
        self.fec_receiving = fec::Receiving::default();
        self.loss_ledger = losses::ledger(self.profile.reception);
        self.dropped
            .extend(self.reinject.drain(..).map(|numbered| numbered.packet));
        self.dropped
            .extend(self.staged.drain().map(|numbered| numbered.packet));
        self.dropped
            .extend(self.lanes.drain_waiting().map(|numbered| numbered.packet));
        self.dropped
            .extend(self.ahead.drain().map(|numbered| numbered.packet));
        shared
            .drops
            .add(DropReason::Reset, self.dropped.len() as u64);
        self.dropped
            .drain(..)
            .for_each(|packet| shared.pool.recycle(packet));
        self.blocks.clear();
        self.sec.clear(shared.pool);
        self.next_global = Seq(0);
        self.flows.clear();
        self.compressor.clear();
        self.expander.clear();
        self.templates_owed.clear();
        self.templates_unknown.clear();
        self.round_trips.clear(now, shared.delivered);
        self.wait_until = None;
        self.release_at = None;
        self.former.fill_with(|| None);
        for slot in &mut self.paths {
            let Some(path) = slot.as_deref_mut() else {
                continue;
            };
            path.sender_mut().forget(shared.pool);
            if self.role == Role::Gateway {
                *slot = None;
            } else {
                path.restart(now);
            }
        }
        self.aim_paths();
    }

    /// Says good-bye on every path at the next poll.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter_map(Option::as_deref)
    }

    /// Whether there is a way to the other end.
    fn has_route(&self) -> bool {
        self.paths().any(|path| path.route().is_some())
    }

    fn path_mut(&mut self, id: PathId) -> Option<&mut Path> {
        path_in(&mut self.paths, id)
    }

    /// Takes what a path has not reported back, to be sent elsewhere.
    fn take_back(&mut self, id: PathId) {
        let Some(path) = path_in(&mut self.paths, id) else {
            return;
        };
        let sender = path.sender_mut();
        let next = Seq::of_counter(sender.next_data());
        let outstanding = sender.outstanding_pkts() as u64;
        self.loss_ledger.on_outage(id, outstanding, next);
        let before = self.reinject.len();
        sender.take_unreported(id, &mut self.reinject);
        let packets = self.reinject.len() - before;
        self.counts.reinjected += packets as u64;
        self.tell_repair(self.usage.now(), id, RepairCause::Silent, packets);
        self.sort_reinjected();
    }

    /// When what is under way on a path will be so late that it is worth being sent on another as well, if there is one.
    fn overdue_at(&self, id: PathId) -> Option<Instant> {
        let path = self.path(id)?;
        let overdue_at = path.overdue_at()?;
        let serves = |other: &Path| other.id() != id && self.may_carry(other);
        let is_wanted = self.profile.repair && self.profile.has(Mechanism::Overdue);
        if !is_wanted || !path.health().is_usable() || !self.paths().any(serves) {
            return None;
        }
        Some(overdue_at)
    }

    /// A path has become slow: what is under way on it is sent on others too, as far as repairs may cost, and how fast it is
    /// now is searched anew. Otherwise it would be given what it carried before, for seconds, and hold up its flows.
    fn take_overdue(&mut self, now: Instant, id: PathId) {
        let Some(path) = path_in(&mut self.paths, id) else {
            return;
        };
        let before = self.reinject.len();
        path.collapse(now);
        let repairs = &mut self.repairs;
        path.sender_mut()
            .take_overdue(id, &mut self.reinject, |len| repairs.try_spend(len));
        let packets = self.reinject.len() - before;
        self.counts.reinjected += packets as u64;
        self.tell_repair(now, id, RepairCause::Overdue, packets);
        self.sort_reinjected();
    }

    fn tell_repair(&mut self, now: Instant, path: PathId, cause: RepairCause, packets: usize) {
        if packets > 0 {
            self.tracer.tell(now, || Event::Repair {
                path,
                cause,
                packets,
            });
        }
    }

    /// A path was silent and works again. Packets that were taken back from it and still wait may have arrived, so they are
    /// sent again only if they are NACKed.
    fn on_path_back(&mut self, now: Instant, id: PathId, shared: &mut Shared<'_>) {
        let returns = self.profile.detects_losses() && self.profile.has(Mechanism::GiveBack);
        if let Some(path) = self.path_mut(id).filter(|_| returns) {
            path.announce_tail(now);
            self.give_back(id, |_| true, shared);
        }
    }

    /// Packets that were taken back from a path, still wait, are not known to be lost, and by their number on it `may_have_come`,
    /// wait for its reports again.
    fn give_back(
        &mut self,
        id: PathId,
        may_have_come: impl Fn(u64) -> bool,
        shared: &mut Shared<'_>,
    ) {
        let path = path_in(&mut self.paths, id);
        let Some(path) = path.filter(|_| !self.reinject.is_empty()) else {
            return;
        };
        let is_it =
            |origin: Origin| origin.path == id && !origin.is_lost && may_have_come(origin.counter);
        for numbered in mem::take(&mut self.reinject) {
            if !numbered.origin.is_some_and(is_it) {
                self.reinject.push_back(numbered);
                continue;
            }
            self.repairs.refund(&numbered);
            if let Some(numbered) = path.sender_mut().give_back(numbered) {
                shared.pool.recycle(numbered.packet);
            }
        }
    }

    /// Several paths may lose or fall silent at once: what is oldest goes first.
    fn sort_reinjected(&mut self) {
        let base = self.next_global;
        self.reinject
            .make_contiguous()
            .sort_by_key(|numbered| numbered.global_seq.distance_from(base));
    }

    /// Whether a path may carry data by the user's rules, given the health of the others.
    fn is_allowed(&self, path: &Path) -> bool {
        match path.link().role {
            LinkRole::Active => true,
            LinkRole::Standby => !self.paths().any(|other| {
                other.link().role == LinkRole::Active && other.health().state() == State::Up
            }),
            LinkRole::Never => false,
        }
    }

    /// Whether a path works, leads somewhere, and may carry data.
    fn may_carry(&self, path: &Path) -> bool {
        path.is_working() && self.is_allowed(path)
    }

    /// Whether a packet waits to be sent.
    fn has_packets(&self) -> bool {
        !(self.queue.is_empty()
            && self.reinject.is_empty()
            && self.staged.is_empty()
            && self.ahead.is_empty()
            && self.lanes.is_empty())
    }

    /// When a path that cannot send at `now` for its pacer may, if a packet or a frame's repair symbol waits.
    fn next_release(&self, now: Instant) -> Option<Instant> {
        if !self.has_packets() && !self.blocks.has_copies() && !self.fec_sending.is_owed() {
            return None;
        }
        self.paths()
            .filter(|path| !path.is_blocked() && self.may_carry(path))
            .filter_map(|path| path.pacer().next_release())
            .filter(|at| *at > now)
            .min()
    }
}

impl Tunnel {
    /// Tells every path what the policy wants of its queue.
    fn aim_paths(&mut self) {
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            path.set_profile(self.profile, self.resolved.policy.aim(path.id()));
        }
    }

    /// Binds the policy to the links whose names are known.
    fn resolve_policy(&mut self) {
        let id_of = |name: String| {
            self.paths()
                .find(|path| path.link().name == name)
                .map(Path::id)
        };
        let resolved = self.settings.clone().map_links(id_of);
        // What a policy has learned is kept while its links stay the same.
        if resolved != self.resolved {
            (self.scheduler, self.profile) = resolved.build();
            if self.tracer.is_on() {
                self.scheduler.observe();
            }
            self.resolved = resolved;
        }
        self.aim_paths();
    }
}

/// The path `id` among all there may be, with no more of the tunnel borrowed.
fn path_in(paths: &mut [Option<Box<Path>>; PathId::MAX], id: PathId) -> Option<&mut Path> {
    paths.get_mut(id.index())?.as_deref_mut()
}

/// Until the owner says how long packets are.
const UNKNOWN_MTU: usize = 1_280;
/// For how long what late paths are waited for is kept.
const LATE_KEPT: Duration = Duration::from_secs(2);
/// How long the policy's [`crate::sched::Pick::Wait`] is believed before it is asked again.
const WAIT: Duration = Duration::from_millis(1);
