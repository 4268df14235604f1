//! One association of two ends over several paths. It connects the parts and contains no algorithm of its own.
//!
//! | part | owns |
//! | --- | --- |
//! | `path_set` | the paths, and which of them may carry data |
//! | `outbound` | the queues, the sequence numbers and the packets placed on paths: the life of an outgoing packet |
//! | `placement` | the scheduling policy, its profile, and the path views it decides by |
//! | `repair` | retransmissions, repair symbols, and the budget of both |
//! | `inbound` | the resequencer and the FEC decoder: the life of an incoming packet |
//! | `round_trips` | ACKs that are delayed to keep the RTT of a flow constant during its start-up phase |
//! | `control` | probes, reports, descriptions of links |
//! | `rest` | when a tunnel without packets probes rarely and frees memory |
//! | `trains` | whether packet trains are permitted |
//! | `templates`, `sec`, `lengths` | header compression, parity, path MTU |
//!
//! The owner is [`crate::endpoint::Endpoint`]. It finds the tunnel of a datagram or packet, runs handshakes, and lends
//! the buffers that all tunnels share ([`Shared`]).

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::{
    class::{Class, FlowQuestion},
    counters::DropReason,
    flows::FlowKey,
    ids::{PathId, Seq},
    packet::PacketBuf,
    path::{
        Pong, ReportOutcome,
        health::State,
        link::Link,
        receiver::DataArrival,
        sender::{MAX_OUTSTANDING, Numbered},
    },
    queue::QueueConfig,
    role::Role,
    sched::{Scheduler as _, SchedulerSettings},
    sec::Code,
    session::{
        rotation::{Change, SessionSet},
        secret::Secret,
    },
    time::Instant,
    trace::{Event, Observer, RepairCause, Tracer},
    transmit::{Route, TxQueue},
    units::Bytes,
    wire::{
        control::{Frame, Frames, LinkRole, MissingRanges, PathReport},
        header::{CONTROL_HEADER_LEN, DataHeader, Header, TAG_LEN},
    },
};

mod ahead;
mod answers;
mod blocks;
mod budget;
mod control;
mod effort;
mod egress;
mod fec;
mod inbound;
mod incoming;
mod kept;
mod lanes;
mod lengths;
mod metered;
mod outbound;
mod path_set;
mod pinned;
mod placement;
mod receptions;
mod repair;
mod rest;
mod round_trips;
mod sealer;
mod sec;
mod services;
mod sessions;
mod shared;
mod staged;
mod status;
mod targets;
mod templates;
mod trains;
mod urgent;
mod usage;
mod views;
mod waits;

#[cfg(test)]
mod tests;

pub use incoming::Incoming;
pub(crate) use kept::buffer_bytes;
pub use path_set::PathSet;
pub use sec::ParityStatus;
pub use shared::Shared;
pub use status::{PathStatus, TunnelStatus};

use control::Control;
use effort::Effort;
use egress::Egress;
use inbound::{Inbound, Ingress, Opened};
use lanes::Lanes;
use lengths::Lengths;
use outbound::Outbound;
use placement::Placement;
use receptions::Receptions;
use repair::{Repair, asleep_at, overdue_at};
use round_trips::{Look, RoundTrips};
use sealer::Sealer;
use sec::Sec;
use services::Services;
use sessions::Sessions;
use templates::Templates;

/// One association.
#[derive(Debug)]
pub struct Tunnel {
    role: Role,
    sessions: Sessions,
    paths: PathSet,
    lengths: Lengths,
    placement: Placement,
    outbound: Outbound,
    repair: Repair,
    inbound: Inbound,
    round_trips: RoundTrips,
    templates: Templates,
    control: Control,
    effort: Effort,
    sec: Sec,
    tracer: Tracer,
}

impl Tunnel {
    /// Returns an association without sessions or paths. `flow_key` is the secret key of the flow hashes. `secret` is
    /// the source of tokens that the other end must not be able to guess.
    #[must_use]
    pub fn new(
        role: Role,
        settings: SchedulerSettings<String>,
        queue: QueueConfig,
        flow_key: FlowKey,
        secret: &Secret,
    ) -> Self {
        let placement = Placement::new(settings);
        let profile = *placement.profile();
        let services = Services::new(Vec::new(), &profile);
        let mut tunnel = Self {
            role,
            sessions: Sessions::default(),
            paths: PathSet::default(),
            lengths: Lengths::default(),
            placement,
            outbound: Outbound::new(Lanes::new(services, queue), flow_key),
            repair: Repair::new(&profile),
            inbound: Inbound::default(),
            round_trips: RoundTrips::new(flow_key),
            templates: Templates::default(),
            control: Control::new(
                role,
                Receptions::new(Instant::ZERO, profile.reception),
                secret,
            ),
            effort: Effort::default(),
            sec: Sec::default(),
            tracer: Tracer::default(),
        };
        tunnel.adapt_queue(Instant::ZERO);
        tunnel
    }

    /// Switches the compression of inner packet headers on or off, for outgoing packets.
    pub fn set_compression(&mut self, is_wanted: bool) {
        self.templates.set_compressing(is_wanted);
    }

    /// Sets the user's traffic classes and resets their counters.
    pub fn set_classes(&mut self, classes: Vec<Class>) {
        let lanes = &mut self.outbound.lanes;
        lanes.set_classes(classes, self.placement.profile());
    }

    /// Applies another policy with its profile from the next packet on, and replaces the classes. Resets the counters
    /// of classes; retains the estimates of the paths and the packets in flight.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: SchedulerSettings<String>,
        classes: Vec<Class>,
    ) {
        self.placement.set_settings(settings);
        self.resolve_policy();
        self.set_classes(classes);
        self.outbound.forget_copies();
        self.adapt_queue(now);
    }

    /// Returns the next question which program of the host has opened a flow. A class depends on the answer.
    pub fn poll_flow_question(&mut self) -> Option<FlowQuestion> {
        self.outbound.lanes.services.poll_question()
    }

    /// Takes the answer to a question: the name of the program, or `None` if no program of the host has opened the
    /// flow.
    pub fn answer_flow(&mut self, question: &FlowQuestion, program: Option<&str>) {
        let services = &mut self.outbound.lanes.services;
        services.answer(question, program);
    }

    /// Takes the answer that the program cannot be known yet. The question is asked again.
    pub fn delay_flow_question(&mut self, question: &FlowQuestion) {
        self.outbound.lanes.services.delay(question);
    }

    /// Whether the other end has wanted the packets of a flow on a path since memory was last freed.
    #[cfg(test)]
    pub(crate) fn has_answer_paths(&self) -> bool {
        !self.outbound.lanes.services.answers.is_empty()
    }

    /// Sets the code for the parity of outgoing datagrams; `None` switches parity off.
    pub fn set_parity(&mut self, code: Option<Code>) {
        self.sec.set_code(code);
    }

    /// Sets the length of the longest packet of the host, in bytes.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.lengths = Lengths::of(mtu);
    }

    /// Passes all decisions to `observer` from now on.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.tracer.set(observer);
        self.placement.scheduler.observe();
    }

    /// Returns the sessions with their keys.
    pub fn sessions(&mut self) -> &mut SessionSet {
        self.sessions.keys()
    }

    /// Returns the time at which the last authenticated datagram was received.
    #[must_use]
    pub fn last_received_at(&self) -> Option<Instant> {
        self.sessions.last_received_at()
    }

    /// Whether the other end has been silent for `limit` although it was expected to send. While the tunnel rests, it is
    /// expected to send only if all paths are down. After a rest, the time counts from the end of the rest.
    #[must_use]
    pub fn is_silent(&self, now: Instant, limit: Duration) -> bool {
        let Some(received_at) = self.sessions.last_received_at() else {
            return true;
        };
        let rest = self.paths.resting();
        let expected_from = match (self.paths.are_down(), rest.is_on()) {
            (true, _) => received_at,
            (false, true) => return false,
            (false, false) => received_at.max(rest.woke_at()),
        };
        now.since(expected_from) >= limit
    }

    /// Whether some path can carry data.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let mut paths = self.paths.iter();
        self.sessions.is_any() && paths.any(|path| path.health().state() == State::Up)
    }

    /// Whether some path can carry data, or is silent for so short a time that it may be about to.
    #[must_use]
    pub fn may_be_up(&self) -> bool {
        let is_possible = |state| matches!(state, State::Suspect | State::Up);
        let mut paths = self.paths.iter();
        self.sessions.is_any() && paths.any(|path| is_possible(path.health().state()))
    }

    /// Adds the client's link `id`, which must not be in use.
    pub fn add_path(&mut self, now: Instant, id: PathId, link: Link) {
        let profile = *self.placement.profile();
        if self.paths.add(now, (id, link), self.role, profile) {
            self.repair.fec.forget(id);
            self.resolve_policy();
            self.adapt_queue(now);
        }
    }

    /// Removes a link. Its packets in flight are retransmitted on other paths.
    pub fn remove_path(&mut self, id: PathId, shared: &mut Shared<'_>) {
        if let Some(path) = self.paths.get(id) {
            self.control.on_route(path, false);
        }
        self.take_back(id);
        self.paths.remove(id, shared.pool);
    }

    /// Returns the paths.
    #[must_use]
    pub const fn paths(&self) -> &PathSet {
        &self.paths
    }

    /// Returns the paths, for changes.
    pub const fn paths_mut(&mut self) -> &mut PathSet {
        &mut self.paths
    }

    /// Sets the route of a path's datagrams; `None` means that the link has no route.
    pub fn set_route(&mut self, now: Instant, id: PathId, route: Option<Route>) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        self.control.on_route(path, route.is_some());
        if path.set_route(now, route) && path.health().state() != State::Up {
            self.take_back(id);
            self.round_trips.fade(now);
        }
    }

    /// Informs the tunnel that a handshake initiated by this end has completed. Announces all paths at once, because
    /// the other end starts to use the new keys with the next datagram that it receives.
    pub fn on_connected(&mut self, now: Instant) {
        self.sessions.on_connected(now);
        self.paths.iter_mut().for_each(|path| path.announce(now));
        self.control.receptions.repeat(now);
    }

    /// Informs the tunnel that this end has answered a handshake. The new session expires unless the other end uses it.
    pub fn on_answered(&mut self, now: Instant) {
        self.sessions.on_changed(now);
    }

    /// Whether the other end has closed the association since the last call.
    pub fn take_closed_by_peer(&mut self) -> bool {
        self.control.take_closed_by_peer()
    }

    /// Returns the link name and the new health of a path whose health has changed since the last call.
    pub fn poll_path_change(&mut self) -> Option<(String, State)> {
        let now = self.paths.usage.now();
        self.paths.iter_mut().find_map(|path| {
            let (from, to) = path.take_health_change()?;
            let path_id = path.id();
            self.tracer.tell(now, || Event::Health {
                path: path_id,
                from,
                to,
            });
            Some((path.link().name.clone(), to))
        })
    }

    /// Returns the link name and the MTU in bytes of a path whose MTU has changed since the last call.
    pub fn poll_mtu_change(&mut self) -> Option<(String, usize)> {
        self.paths.iter_mut().find_map(|path| {
            let has_changed = path.take_mtu_change();
            has_changed.then(|| (path.link().name.clone(), self.lengths.mtu_of(path)))
        })
    }

    /// Applies changes by the user to all links called `name`, and announces these links to the other end. Returns the
    /// number of links.
    pub fn update_links(
        &mut self,
        now: Instant,
        name: &str,
        mut change: impl FnMut(&mut Link),
    ) -> usize {
        let paths = self.paths.iter_mut();
        let named = paths.filter(|path| path.link().name == name);
        let count = named.map(|path| path.configure(now, &mut change)).count();
        if count > 0 {
            self.adapt_queue(now);
        }
        count
    }

    /// Takes a parsed inner packet from the host.
    pub fn handle_packet(&mut self, now: Instant, packet: PacketBuf, shared: &mut Shared<'_>) {
        self.paths.usage.on_packet_in(now);
        self.paths.on_packet(now);
        let Ok(view) = packet.view() else {
            return shared.drop(packet, DropReason::NotIp);
        };
        let flow = self.outbound.flows.on_packet(now, &view);
        let (round_trips, mut look) = self.look();
        round_trips.on_packet_out(now, flow, &packet, &mut look, shared.delivered);
        let least_delay = self.placement.views.least_delay();
        let lanes = &mut self.outbound.lanes;
        if !self.lengths.has_narrow() {
            return lanes.enqueue(now, packet, flow, least_delay, shared);
        }
        for packet in self.lengths.fit(now, packet, &self.paths, shared) {
            lanes.enqueue(now, packet, flow, least_delay, shared);
        }
    }

    /// Writes all datagrams that may be sent now to `out`. If `out` [is full](TxQueue::is_full), send its datagrams and
    /// call this method again.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        if self.sessions.keys().sending(now).is_none() {
            return;
        }
        self.paths.usage.on_time(now);
        self.outbound.stop_waiting();
        let has_packets = self.outbound.has_packets(&self.repair);
        let is_idle = !has_packets && !self.outbound.has_copies();
        if !is_idle {
            self.paths.usage.on_offered(now);
        }
        let sampling = self.placement.profile().rtt_sampling;
        if let Some(sampling) = sampling.filter(|_| has_packets) {
            self.paths.sample_rtt(now, sampling.interval);
        }
        self.send_control(now, out, shared);
        if is_idle {
            self.repair.fec.pause(now);
        }
        if self.control.is_closing() || is_idle && !self.repair.fec.is_due(now, true) {
            return;
        }
        self.sec.update(self.sessions.keys(), &self.paths);
        let (outbound, mut egress) = self.egress(now, out, shared);
        outbound.send(&mut egress);
        egress.sec.send(&mut egress.sealer);
        if !egress.is_full() {
            self.repair.fec.give_up_tail(now);
        }
        self.outbound.after_send(now, &mut self.paths, &self.repair);
    }

    /// Returns the queues, and the parts that an outgoing packet passes after the queues.
    fn egress<'a, 's>(
        &'a mut self,
        now: Instant,
        out: &'a mut TxQueue,
        shared: &'a mut Shared<'s>,
    ) -> (&'a mut Outbound, Egress<'a, 's>) {
        let egress = Egress {
            sealer: Sealer {
                now,
                sessions: self.sessions.keys(),
                paths: &mut self.paths,
                out,
            },
            lengths: &self.lengths,
            placement: &mut self.placement,
            repair: &mut self.repair,
            round_trips: &self.round_trips,
            sec: &mut self.sec,
            templates: &mut self.templates,
            tracer: &mut self.tracer,
            shared,
        };
        (&mut self.outbound, egress)
    }

    fn send_control(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        let mut sealer = Sealer {
            now,
            sessions: self.sessions.keys(),
            paths: &mut self.paths,
            out,
        };
        self.control.send(
            &mut sealer,
            self.placement.profile(),
            &self.lengths,
            (&mut self.templates, &mut self.inbound.fec),
            shared.train_starts,
        );
    }

    /// Takes a transport datagram for the session `header.receiver_index`. `header` and `data` are the parsed headers
    /// of `datagram`.
    ///
    /// `is_source_allowed` returns whether an inner source address belongs to the peer.
    ///
    /// # Errors
    /// The reason why the datagram or its packet is dropped; the caller counts it.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        (header, data): (Header, Option<DataHeader>),
        datagram: &mut [u8],
        is_source_allowed: &dyn Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let id = header.path;
        if self.role == Role::Client && self.paths.get(id).is_none() {
            return Err(DropReason::Malformed);
        }
        self.sec.before_opening(now, datagram);
        let (counter, end) = match self.sessions.open(now, &header, datagram) {
            Ok((counter, end, change)) => {
                if change == Some(Change::Restarted) {
                    self.reset(now, shared);
                }
                (counter, end)
            }
            Err(reason) => {
                // The path id or the sequence number in the header may contain bit errors as well.
                let may_be_damaged = matches!(
                    reason,
                    DropReason::Forged | DropReason::Replayed | DropReason::Malformed
                );
                if may_be_damaged {
                    self.sec.on_damaged(now, incoming, reason, shared.pool);
                }
                let is_mended =
                    may_be_damaged && self.handle_mended(now, is_source_allowed, false, shared);
                return if is_mended { Ok(()) } else { Err(reason) };
            }
        };
        let before = shared.delivered.len();
        let profile = *self.placement.profile();
        let path = self.paths.get_or_add(now, id, self.role, profile);
        let path = path.ok_or(DropReason::Malformed)?;
        let roams_to = (self.role == Role::Gateway).then_some(incoming.route);
        path.on_authentic(now, header.kind, (counter, datagram.len()), roams_to);
        let Some(data) = data else {
            path.on_control(now, header.sent_us);
            let body = &datagram[CONTROL_HEADER_LEN..end];
            if path.address_mut().on_pongs(&incoming.route, pongs(body)) {
                self.outbound
                    .refresh(now, &mut self.paths, &mut self.placement);
            }
            self.handle_frames(now, id, header.sent_us, body, shared);
            self.tell_rate_control(now);
            if shared.delivered.len() > before {
                self.on_delivered(now, before, shared);
            }
            self.handle_mended(now, is_source_allowed, true, shared);
            return Ok(());
        };
        self.paths.on_packet(now);
        let path = self.paths.get_mut(id).ok_or(DropReason::Malformed)?;
        if !self.effort.allows(now) {
            return Err(DropReason::OverBudget);
        }
        let len = datagram.len();
        let arrival = DataArrival {
            path_seq: header.path_seq,
            sent_us: header.sent_us,
            len,
            is_congested: incoming.is_congested,
            is_kept: header.is_kept,
            grace: self.inbound.fec.grace(now),
        };
        let opened = Opened {
            header: &header,
            data: &data,
            datagram: &datagram[..end],
            delay: path.on_data(now, &arrival),
            is_congested: incoming.is_congested,
        };
        let receptions = &mut self.control.receptions;
        receptions.on_arrival(now, id, header.path_seq, len);
        let mut ingress = Ingress {
            now,
            paths: &self.paths,
            lengths: &self.lengths,
            templates: &mut self.templates,
            flows: &mut self.outbound.flows,
            answers: &mut self.outbound.lanes.services.answers,
            shared,
            is_source_allowed,
        };
        let result = self.inbound.on_data(&opened, &mut ingress);
        let steps = self.inbound.resequencer.take_steps();
        self.effort.spend_on_data(now, steps);
        self.on_delivered(now, before, shared);
        result
    }

    /// Whether this end expects parity for datagrams from `remote`.
    pub(crate) fn expects_parity(&self, now: Instant, remote: SocketAddr) -> bool {
        self.sec.expects(now, remote, &self.paths)
    }

    /// Takes a datagram that matches no session and would be dropped for `reason`. This end [expects
    /// parity](Self::expects_parity) for datagrams from its source address.
    ///
    /// # Errors
    /// `reason`, unless the datagram was corrected at once.
    pub(crate) fn handle_unaddressed(
        &mut self,
        now: Instant,
        incoming: &Incoming,
        reason: DropReason,
        datagram: &[u8],
        is_source_allowed: &dyn Fn(IpAddr) -> bool,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        self.sec.before_opening(now, datagram);
        self.sec.on_damaged(now, incoming, reason, shared.pool);
        let is_mended = self.handle_mended(now, is_source_allowed, false, shared);
        if is_mended { Ok(()) } else { Err(reason) }
    }

    /// Handles corrected datagrams as if they had just arrived. Returns whether any of them was accepted.
    /// `were_counted` says whether the datagrams were counted as drops.
    fn handle_mended(
        &mut self,
        now: Instant,
        is_source_allowed: &dyn Fn(IpAddr) -> bool,
        were_counted: bool,
        shared: &mut Shared<'_>,
    ) -> bool {
        let mut is_any = false;
        while let Some(mut mended) = self.sec.start_mended() {
            let bytes = mended.bytes.as_mut_slice();
            let is_good = Header::parse(bytes).is_some_and(|headers| {
                let incoming = mended.incoming;
                self.handle_datagram(now, &incoming, headers, bytes, is_source_allowed, shared)
                    .is_ok()
            });
            self.sec.finish_mended(is_good);
            is_any |= is_good;
            if is_good && were_counted {
                shared.drops.take_back(mended.reason);
            }
            shared.pool.recycle(mended.bytes);
        }
        is_any
    }

    /// Handles the frames of an authenticated control datagram that arrived on `id`, sent at `sent_us` by the peer's
    /// clock.
    fn handle_frames(
        &mut self,
        now: Instant,
        id: PathId,
        sent_us: u32,
        body: &[u8],
        shared: &mut Shared<'_>,
    ) {
        let mut missing_left = MAX_OUTSTANDING;
        for frame in Frames::new(body) {
            match frame {
                Frame::Ping { token, size } => {
                    if let Some(path) = self.paths.get_mut(id) {
                        path.on_ping(token, size);
                    }
                }
                Frame::Pong { token, .. } => self.on_pong(now, id, token, sent_us),
                Frame::Report { path, report } => self.on_report(now, path, &report, shared),
                Frame::Link {
                    path,
                    version,
                    info,
                } => {
                    // Links belong to the client, so only the client may describe them.
                    if self.role == Role::Gateway
                        && self.effort.allows(now)
                        && let Some(path) = self.paths.get_mut(path)
                        && path.describe(now, version, &info)
                    {
                        self.effort.spend(now, effort::PER_LINK);
                        self.resolve_policy();
                        self.adapt_queue(now);
                    }
                }
                Frame::LinkAck { path, version } => {
                    if let Some(path) = self.paths.get_mut(path) {
                        path.on_description_acked(version);
                    }
                }
                Frame::Close => self.control.on_close(),
                Frame::Reception { version, reception } => {
                    let receptions = &mut self.control.receptions;
                    if self.effort.allows(now)
                        && let Some(order) = receptions.on_reception(now, version, &reception)
                    {
                        self.effort.spend(now, effort::PER_ORDER);
                        self.inbound.set_order(now, order, shared);
                    }
                }
                Frame::ReceptionAck { version } => {
                    self.control.receptions.on_reception_ack(version);
                }
                Frame::Losses { path, report } => {
                    let known = self.paths.get(path);
                    let receptions = &mut self.control.receptions;
                    if let Some(counts) = known.and_then(|path| receptions.on_losses(path, &report))
                    {
                        self.placement.scheduler.on_loss_report(now, path, &counts);
                    }
                }
                Frame::Tail {
                    path_seq,
                    global_seq,
                } => self.on_tail(now, id, (path_seq, global_seq), shared),
                Frame::LinkDown { path, counter } => {
                    self.on_peer_link_down(now, path, counter);
                }
                Frame::TrainPacket(packet) => {
                    if let Some(path) = self.paths.get_mut(id) {
                        let len = Bytes::of_len(CONTROL_HEADER_LEN + body.len() + TAG_LEN);
                        let trains = &mut self.control.trains;
                        let may_begin = || trains.may_run(now, shared.train_starts);
                        path.on_train_arrival(now, packet, len, may_begin);
                    }
                }
                Frame::Train(result) => {
                    if let Some(path) = self.paths.get_mut(id) {
                        path.on_train_result(now, &result);
                    }
                }
                Frame::Template {
                    number,
                    travelling,
                    headers,
                } => self.templates.on_definition(number, travelling, headers),
                Frame::TemplateAck { number } => self.templates.on_acknowledged(number),
                Frame::TemplateUnknown { number } => self.templates.on_unknown(number),
                Frame::Parity {
                    code,
                    path,
                    path_seq,
                    len,
                    parity,
                } => {
                    let of = (path, path_seq);
                    self.sec
                        .on_parity(now, of, (code, len), parity, shared.pool);
                }
                Frame::Recovered { ranges } => {
                    if self.effort.allows(now) {
                        let steps = ranges.count() as u64 * effort::PER_RECOVERED_RANGE;
                        self.effort.spend(now, steps);
                        self.repair.fec.on_recovered(ranges);
                    }
                }
                Frame::Missing { path, ranges } => {
                    self.on_missing(now, path, (ranges, &mut missing_left), shared);
                }
            }
        }
    }

    fn on_pong(&mut self, now: Instant, id: PathId, token: u32, answered_us: u32) {
        let profile = *self.placement.profile();
        let sampling = profile.rtt_sampling;
        let gain = sampling.and_then(|sampling| sampling.gain_thousandths);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        match path.on_pong(now, token, answered_us, gain) {
            Pong::Mtu => self.look_for_narrow(now),
            Pong::Rtt => {
                self.outbound
                    .refresh(now, &mut self.paths, &mut self.placement);
                let Placement {
                    scheduler, views, ..
                } = &mut self.placement;
                scheduler.on_paths(views.as_slice());
            }
            Pong::Unknown => {}
        }
    }

    fn on_report(
        &mut self,
        now: Instant,
        id: PathId,
        report: &PathReport,
        shared: &mut Shared<'_>,
    ) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let outcome = path.on_report(now, report, shared.pool);
        let ReportOutcome::New { reported } = outcome else {
            return;
        };
        // Packets that were requeued because the path was silent are not retransmitted, because they may have arrived. If
        // one of them was lost, the peer sends a NACK for it.
        self.repair.give_back(path, reported, shared.pool);
        self.adapt_queue(now);
    }

    /// Handles a message that the data datagram `last` ends a burst on a path. `last` contains its path sequence number
    /// and its global sequence number.
    fn on_tail(&mut self, now: Instant, id: PathId, last: (Seq, Seq), shared: &mut Shared<'_>) {
        if !self.effort.allows(now) {
            return;
        }
        if let Some(path) = self.paths.get_mut(id) {
            path.on_tail(now, last.0);
        }
        self.inbound.on_tail(now, id, last, shared);
        let steps = self.inbound.resequencer.take_steps();
        self.effort.spend(now, steps + effort::PER_TAIL);
    }

    /// Handles the message that the other end's interface under a path went down: retransmits the packets in flight on
    /// other paths without waiting for the silence.
    fn on_peer_link_down(&mut self, now: Instant, id: PathId, counter: u64) {
        if self.effort.allows(now)
            && let Some(path) = self.paths.get_mut(id)
            && path.on_peer_link_down(now, counter)
        {
            self.effort.spend(now, effort::PER_LINK);
            self.take_back(id);
        }
    }

    fn on_missing(
        &mut self,
        now: Instant,
        id: PathId,
        missing: (MissingRanges<'_>, &mut usize),
        shared: &mut Shared<'_>,
    ) {
        let order = (self.placement.profile(), self.outbound.next_number());
        if self.effort.allows(now)
            && let Some(path) = self.paths.get_mut(id)
        {
            let before = *missing.1;
            let (ranges, left) = missing;
            let packets = self
                .repair
                .on_missing(now, path, (ranges, left), order, shared);
            let named = (before - *left) as u64;
            self.effort.spend(now, named * effort::PER_MISSING);
            self.tell_repair(now, id, RepairCause::Nacked, packets);
        }
    }

    /// Handles expired deadlines of buffered packets, path health and keys.
    pub fn handle_timeout(&mut self, now: Instant, shared: &mut Shared<'_>) {
        let before = shared.delivered.len();
        self.inbound.resequencer.on_timeout(now, shared.delivered);
        let steps = self.inbound.resequencer.take_steps();
        self.effort.spend_on_data(now, steps);
        self.on_delivered(now, before, shared);
        self.round_trips.on_timeout(now, shared.delivered);
        let has_active = self.paths.has_active();
        for id in self.paths.ids() {
            self.handle_path_timeout(now, id, has_active);
        }
        self.look_for_narrow(now);
        self.tell_rate_control(now);
        let is_release_due = self.paths.rest(now);
        let had_session = self.sessions.is_any();
        self.sessions.expire(now);
        let has_expired = had_session && !self.sessions.is_any();
        if is_release_due || has_expired {
            self.release_session(now, shared);
        }
        if is_release_due {
            self.release_memory(now, shared);
        }
    }

    /// Frees the memory for packets that a session has sent and received. Packets that have not been sent still wait,
    /// because the next session may send them.
    fn release_session(&mut self, now: Instant, shared: &mut Shared<'_>) {
        kept::drop_sent(usize::MAX, &mut self.paths, &mut self.repair, shared);
        let before = shared.delivered.len();
        self.inbound.release_memory(now, shared);
        self.on_delivered(now, before, shared);
        self.paths.release_memory();
        self.repair.release_memory();
    }

    /// Frees the memory that a tunnel without packets does not need. Packets that still wait to be sent are dropped,
    /// because their senders have given them up.
    fn release_memory(&mut self, now: Instant, shared: &mut Shared<'_>) {
        self.outbound.release_memory(now, shared);
        self.round_trips.release_memory();
        self.placement.scheduler.release_memory();
        self.templates.release_memory();
    }

    fn handle_path_timeout(&mut self, now: Instant, id: PathId, has_active: bool) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let is_reserve = path.link().role == LinkRole::Standby && has_active;
        let was = path.on_timeout(now, is_reserve);
        let is = path.health().state();
        if is == State::Down && matches!(was, State::Up | State::Suspect) {
            self.round_trips.fade(now);
        }
        if was == State::Up && is != State::Up {
            return self.take_back(id);
        }
        let asleep_at = self
            .paths
            .get(id)
            .and_then(|path| asleep_at(path, &self.paths));
        if asleep_at.is_some_and(|at| at <= now) {
            return self.take_back(id);
        }
        let profile = self.placement.profile();
        let path = self.paths.get(id);
        let overdue_at = path.and_then(|path| overdue_at(path, &self.paths, profile));
        if overdue_at.is_some_and(|at| at <= now) {
            self.take_overdue(now, id);
        }
    }

    /// Requeues the packets in flight on a path that has become slow, if other paths may carry them.
    fn take_overdue(&mut self, now: Instant, id: PathId) {
        let base = self.outbound.next_number();
        let (services, repair) = (&self.outbound.lanes.services, &mut self.repair);
        let packets = self.paths.with_others(id, |path, others| {
            let link = path.link().name.clone();
            let is_bound =
                |numbered: &Numbered| services.is_bound_to((id, &link), &numbered.packet, others);
            repair.take_overdue(now, path, base, is_bound)
        });
        self.tell_repair(now, id, RepairCause::Overdue, packets.unwrap_or(0));
    }

    /// Returns the earliest time at which [`Self::handle_timeout`] or a poll has work to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let always = [
            self.inbound.resequencer.poll_timeout(),
            self.round_trips.poll_timeout(),
            self.sessions.deadline(),
            self.paths.resting().poll_timeout(),
        ];
        // Nothing can be sent without a session, so the paths have no deadlines.
        let sending = self.sessions.is_any().then(|| self.poll_send_timeout());
        let deadlines = always.into_iter().chain(sending);
        deadlines.flatten().min()
    }

    /// Returns the earliest time at which there is something to send, or a path has a deadline.
    fn poll_send_timeout(&self) -> Option<Instant> {
        let profile = self.placement.profile();
        let routed = self.paths.iter().filter(|path| path.route().is_some());
        let paths = routed.flat_map(|path| {
            [
                asleep_at(path, &self.paths),
                overdue_at(path, &self.paths, profile),
                self.lengths.probe_at(path),
                path.next_deadline(),
            ]
        });
        let has_route = self.paths.has_route();
        let is_idle = !self.outbound.has_packets(&self.repair);
        let others = [
            self.control.receptions.due().filter(|_| has_route),
            self.templates.due().filter(|_| has_route),
            self.outbound.poll_timeout(),
            self.repair.fec.tail_due().filter(|_| is_idle),
        ];
        paths.chain(others).flatten().min()
    }

    /// Resets the association to new sequence numbers and keys, as after a restart of the other end.
    ///
    /// Packets in the tunnel queue remain. Numbered packets and packets in the resequencer are dropped as
    /// [`DropReason::Reset`].
    pub fn reset(&mut self, now: Instant, shared: &mut Shared<'_>) {
        let profile = *self.placement.profile();
        for packet in self.inbound.reset() {
            shared.drop(packet, DropReason::Reset);
        }
        let again = self.repair.reset(&profile);
        for numbered in again.chain(self.outbound.reset()) {
            shared.drop(numbered.packet, DropReason::Reset);
        }
        self.control.receptions = Receptions::new(now, profile.reception);
        self.sec.clear(shared.pool);
        self.templates.clear();
        self.round_trips.clear(now, shared.delivered);
        self.paths.restart(now, self.role, shared.pool);
        self.paths.on_start(now);
        self.placement.aim(&mut self.paths);
    }

    /// Sends a close message on every path at the next poll.
    pub fn close(&mut self) {
        self.control.close();
    }

    /// Writes a close message for every path to `out`, and drops all sessions. Call [`Self::reset`] before a new
    /// association.
    pub fn send_close(&mut self, now: Instant, out: &mut TxQueue) {
        let mut sealer = Sealer {
            now,
            sessions: self.sessions.keys(),
            paths: &mut self.paths,
            out,
        };
        control::send_close(&mut sealer);
    }

    /// Returns the memory used by packets, in bytes. O(paths).
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        let kept = kept::pkts(&self.paths, &self.repair, &self.outbound, &self.inbound);
        kept as u64 * self.packet_bytes()
    }

    /// Returns the memory that one stored packet takes, in bytes.
    pub(crate) fn packet_bytes(&self) -> u64 {
        kept::packet_bytes(&self.lengths)
    }

    /// Drops packets until at most `limit` bytes are used. Returns whether that was possible.
    pub fn trim(&mut self, now: Instant, limit: u64, shared: &mut Shared<'_>) -> bool {
        let most = limit / self.packet_bytes();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let kept = kept::pkts(&self.paths, &self.repair, &self.outbound, &self.inbound);
        let excess = kept.saturating_sub(most);
        let excess = kept::drop_sent(excess, &mut self.paths, &mut self.repair, shared);
        let delivered = shared.delivered.len();
        let excess = kept::deliver_held(now, excess, &mut self.inbound, shared);
        if shared.delivered.len() > delivered {
            self.on_delivered(now, delivered, shared);
        }
        excess == 0
    }

    /// Returns a snapshot of the state.
    #[must_use]
    pub fn status(&self) -> TunnelStatus {
        let (paths, placement) = (&self.paths, &self.placement);
        let status = |path| PathStatus::of(path, paths, placement, &self.lengths);
        let (symbols_in, recovered) = self.inbound.counts();
        let resequencer = &self.inbound.resequencer;
        let lanes = &self.outbound.lanes;
        let classes = lanes.services.counts();
        TunnelStatus {
            is_up: self.is_up(),
            paths: paths.iter().map(status).collect(),
            held: resequencer.held_len(),
            hold_p95: resequencer.hold_p95(),
            resequencer: *resequencer.stats(),
            queued: lanes.len(),
            kept_bytes: self.kept_bytes(),
            refused: self.effort.refused(),
            steps: self.effort.steps(),
            packets_in: paths.usage.packets_in(),
            packets_out: paths.usage.packets_out(),
            reinjected: self.repair.reinjected(),
            symbols: [self.repair.symbols_out, symbols_in],
            recovered,
            parity: self.sec.status(),
            classes: classes
                .map(|(name, counts)| (name.to_owned(), counts))
                .collect(),
        }
    }

    /// Requeues the packets that the peer has not reported as received on a path, so that they are sent on other paths.
    fn take_back(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        self.control.receptions.on_outage(path);
        let base = self.outbound.next_number();
        let packets = self.repair.take_back(path, base);
        let now = self.paths.usage.now();
        self.tell_repair(now, id, RepairCause::Silent, packets);
    }

    /// Informs the observer of each rate controller that has changed.
    fn tell_rate_control(&mut self, now: Instant) {
        if self.tracer.is_on() {
            for path in self.paths.iter() {
                self.tracer
                    .on_rate_control(now, path.id(), path.control_state());
            }
        }
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

    /// Checks whether some path can carry only packets that are shorter than the tunnel's MTU.
    fn look_for_narrow(&mut self, now: Instant) {
        let mut narrowed = [false; PathId::MAX];
        self.lengths
            .look(now, &mut self.paths, |id| narrowed[id.index()] = true);
        for id in self.paths.ids().filter(|id| narrowed[id.index()]) {
            self.repair.fec.forget(id);
            self.paths.usage.forget(id);
        }
    }

    /// Resolves the link names in the policy's settings that belong to known links.
    fn resolve_policy(&mut self) {
        let is_observed = self.tracer.is_on();
        self.placement.resolve(&mut self.paths, is_observed);
    }

    /// Sets how long packets may wait in the tunnel queue.
    fn adapt_queue(&mut self, now: Instant) {
        let kept = self.round_trips.longest();
        self.outbound.adapt(now, &self.paths, &self.placement, kept);
    }

    /// Delays ACKs that would arrive too early. Considers the delivered packets after the first `before`.
    fn on_delivered(&mut self, now: Instant, before: usize, shared: &mut Shared<'_>) {
        let (round_trips, mut look) = self.look();
        round_trips.on_delivered(now, before, &mut look, shared);
    }

    fn look(&mut self) -> (&mut RoundTrips, Look<'_>) {
        let look = Look {
            paths: &mut self.paths,
            placement: &mut self.placement,
            staged: &self.outbound.staged,
        };
        (&mut self.round_trips, look)
    }
}

/// Returns the tokens of the pongs in a control datagram.
fn pongs(body: &[u8]) -> impl Iterator<Item = u32> {
    Frames::new(body).filter_map(|frame| {
        if let Frame::Pong { token, .. } = frame {
            Some(token)
        } else {
            None
        }
    })
}
