//! The life of a packet out.
//!
//! 1. [`Tunnel::poll_transmit`] sends what is owed first: control datagrams, then packets that were lost or taken back
//!    from silent paths.
//! 2. While some path is ready, the oldest packet of the fairest flow leaves the tunnel queue and gets its numbers. Not
//!    before: a packet the queue drops must not look like a loss on a path.
//! 3. The policy names the path, or the copies' paths, or waits, or has the packet kept for a path (`staged`). It sees the
//!    ranks above the lowest that has a ready path as not usable, so a line of a higher rank carries what the cheaper
//!    ones have no room for.
//! 4. Header and packet are written into the path's batch and sealed there. The buffer is kept until the path reports.

use core::time::Duration;

use super::{FLOW_BUCKETS, Shared, Tunnel, WAIT, lanes::Lane, path_in, urgent::FlowInfo};
use crate::{
    counters::DropReason,
    ids::{PathId, Seq},
    path::{
        Path,
        sender::{Numbered, Origin},
    },
    profile::Mechanism,
    queue::Queued,
    sched::{PathView, Pick},
    time::Instant,
    transmit::TxQueue,
    units::Bytes,
    wire::{
        Kind,
        header::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, Header, TAG_LEN},
    },
};

impl Tunnel {
    /// Puts everything that may go now into `out`; call again after sending if `out` [is full](TxQueue::is_full).
    pub fn poll_transmit(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        if self.sessions.sending(now).is_none() {
            return;
        }
        self.usage.on_time(now);
        self.wait_until = None;
        self.release_at = None;
        let is_idle = !self.has_packets() && !self.blocks.has_copies();
        if !is_idle {
            self.usage.on_offered(now);
            self.sample_paths(now);
        }
        self.send_control(now, out);
        if is_idle {
            self.fec_sending.pause(now);
        }
        if self.is_closing || is_idle && !self.fec_sending.is_due(now, true) {
            return;
        }
        self.update_parity();
        if self.scheduler.blocks().is_some() {
            self.send_blocks(now, out, shared);
        } else {
            self.send_packets(now, out, shared);
        }
        self.send_parity(now, out);
        if !out.is_full() {
            self.fec_sending.give_up_tail(now);
        }
        self.release_at = self.next_release(now);
        if self.has_packets() {
            for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
                if !path.pacer().can_send(now) {
                    path.on_limited(now);
                }
            }
        }
    }

    fn send_packets(&mut self, now: Instant, out: &mut TxQueue, shared: &mut Shared<'_>) {
        let mut is_held_back = self.view_paths(now);
        let (mut is_again_blocked, mut blocked) = (false, [false; Lane::ALL.len()]);
        self.send_staged(now, out, shared);
        while !out.is_full() && !self.staged.is_full() {
            if !self.views.iter().any(|view| view.ready) {
                if !is_held_back {
                    return;
                }
                // This rank is full: now the next.
                is_held_back = self.view_paths(now);
                continue;
            }
            if self.send_symbol(now, out, shared) {
                continue;
            }
            let again = (!is_again_blocked).then(|| self.next_reinjected(now, shared));
            let (lane, numbered) = if let Some(numbered) = again.flatten() {
                (None, numbered)
            } else if let Some((lane, numbered)) = self.next_of_lanes(now, blocked, shared) {
                (Some(lane), numbered)
            } else {
                return;
            };
            let is_reinjected = lane.is_none();
            let backlog = self.backlog(lane.unwrap_or(Lane::Bulk), &numbered.packet);
            let flow = FlowInfo {
                hash: numbered.flow_hash,
                is_expendable: numbered.is_expendable,
                round_trip: numbered.round_trip,
                has_behind: lane == Some(Lane::Bulk) && self.has_behind(numbered.flow_hash),
            };
            // A path from which it was taken back, for it would be late there, is no better for it now.
            let taken = numbered.origin.filter(|origin| !origin.is_lost);
            let avoided = taken.map(|origin| origin.path);
            let to_last = match lane {
                None => Bytes::ZERO,
                Some(Lane::Pinned) => backlog,
                Some(Lane::Urgent | Lane::Bulk | Lane::Sparse) => {
                    let hash = numbered.flow_hash;
                    self.queue.bytes_to_last(hash, self.ahead.bytes_of(hash))
                }
            };
            match self.pick(now, &numbered.packet, flow, (backlog, to_last), avoided) {
                Pick::Wait => {
                    self.wait_until = Some(now + WAIT);
                    let Some(lane) = lane else {
                        self.reinject.push_front(numbered);
                        is_again_blocked = true;
                        continue;
                    };
                    self.lanes.put_back(lane, numbered);
                    blocked[lane as usize] = true;
                    while lane == Lane::Urgent && self.send_newest(now, out, shared) {}
                }
                Pick::Behind { index, ahead } => {
                    let behind = self.next_behind(now, numbered.flow_hash, ahead, shared);
                    self.lanes.put_back(Lane::Bulk, numbered);
                    let Some(behind) = behind else {
                        self.wait_until = Some(now + WAIT);
                        blocked[Lane::Bulk as usize] = true;
                        continue;
                    };
                    self.act(now, Pick::One(index), behind, false, out, shared);
                }
                pick @ (Pick::One(_) | Pick::Copies(_) | Pick::Shadowed { .. }) => {
                    self.act(now, pick, numbered, is_reinjected, out, shared);
                }
            }
        }
    }

    /// Sends a packet as the policy said, which was not to wait.
    pub(super) fn act(
        &mut self,
        now: Instant,
        pick: Pick,
        numbered: Numbered,
        is_reinjected: bool,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) {
        match pick {
            // There are other ways for those.
            Pick::Wait | Pick::Behind { .. } => self.reinject.push_front(numbered),
            Pick::One(index) if self.profile.look_ahead && !self.views[index].ready => {
                self.stage(index, numbered, is_reinjected);
            }
            Pick::One(index) => self.send_once(now, index, numbered, is_reinjected, out, shared),
            // A lone copy is kept as any packet is: there is no other that may arrive.
            Pick::Copies(set) if set.count_ones() == 1 => {
                let index = set.trailing_zeros() as usize;
                self.send_once(now, index, numbered, is_reinjected, out, shared);
            }
            Pick::Shadowed {
                index,
                copies,
                times,
            } => {
                let sent = self.send_shadows(now, copies, times, &numbered, out, shared);
                self.charge_copies(sent, &numbered);
                self.send_once(now, index, numbered, is_reinjected, out, shared);
            }
            Pick::Copies(set) => self.send_copies(now, set, numbered, is_reinjected, out, shared),
        }
    }

    /// The next packet that was lost or taken back from a silent path, and is still worth sending.
    pub(super) fn next_reinjected(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Option<Numbered> {
        loop {
            // What comes after packets that wait ahead goes after them.
            let is_next = |next: &Numbered| {
                !self.ahead.is_of(next.flow_hash) || !self.ahead.is_older(next.global_seq)
            };
            let next = self.reinject.iter().position(is_next)?;
            let numbered = self.reinject.remove(next)?;
            let is_old = |origin: Origin| now.since(origin.sent_at) > REINJECT_WITHIN;
            if self.is_past_help(now, numbered.packet.mark()) {
                self.give_up(numbered.packet, shared);
                continue;
            }
            if self.fits_nowhere(&numbered.packet) {
                shared.drops.add(DropReason::TooLong, 1);
                shared.pool.recycle(numbered.packet);
                continue;
            }
            if !numbered.origin.is_some_and(is_old) {
                return Some(numbered);
            }
            shared.drops.add(DropReason::Expired, 1);
            shared.pool.recycle(numbered.packet);
        }
    }

    /// Sends on the path behind `self.views[index]`, and keeps the buffer until the path reports.
    pub(super) fn send_once(
        &mut self,
        now: Instant,
        index: usize,
        numbered: Numbered,
        is_reinjected: bool,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) {
        let flags = Flags {
            is_reinjected,
            is_copy: false,
            is_kept: self.profile.detects_losses() && !numbered.is_expendable,
        };
        let Some(len) = self.seal(now, index, &numbered, flags, out) else {
            self.reinject.push_front(numbered);
            return;
        };
        let global_seq = numbered.global_seq;
        self.on_sent(now, index, len, global_seq, Some(numbered), shared);
    }

    fn send_copies(
        &mut self,
        now: Instant,
        set: u16,
        numbered: Numbered,
        is_reinjected: bool,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) {
        let flags = Flags {
            is_reinjected,
            is_copy: true,
            is_kept: false,
        };
        let mut sent = false;
        for index in (0..self.views.len()).filter(|index| set & (1 << index) != 0) {
            if let Some(len) = self.seal(now, index, &numbered, flags, out) {
                self.on_sent(now, index, len, numbered.global_seq, None, shared);
                sent = true;
            }
        }
        if sent {
            shared.pool.recycle(numbered.packet);
        } else {
            self.reinject.push_front(numbered);
        }
    }

    /// Sends a copy beside what other paths carry of it, and may have to repeat.
    pub(super) fn send_one_copy(
        &mut self,
        now: Instant,
        index: usize,
        numbered: &Numbered,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) {
        let flags = Flags {
            is_reinjected: false,
            is_copy: true,
            is_kept: false,
        };
        if let Some(len) = self.seal(now, index, numbered, flags, out) {
            self.on_sent(now, index, len, numbered.global_seq, None, shared);
        }
    }

    /// Sends copies nobody waits for; how many.
    fn send_shadows(
        &mut self,
        now: Instant,
        set: u16,
        times: u8,
        numbered: &Numbered,
        out: &mut TxQueue,
        shared: &mut Shared<'_>,
    ) -> u32 {
        let mut sent = 0;
        let flags = Flags {
            is_reinjected: false,
            is_copy: true,
            // It is not, but so the other end tells what is lost from what is late.
            is_kept: true,
        };
        for index in (0..self.views.len()).filter(|index| set & (1 << index) != 0) {
            for time in 0..times {
                if time > 0 && !self.views[index].ready {
                    break;
                }
                let Some(len) = self.seal(now, index, numbered, flags, out) else {
                    return sent;
                };
                self.on_sent(now, index, len, numbered.global_seq, None, shared);
                sent += 1;
            }
            // More waits than this path took.
            let is_limited = times > 1 && !self.views[index].ready;
            if let Some(path) = self.path_mut(self.views[index].id).filter(|_| is_limited) {
                path.on_limited(now);
            }
        }
        sent
    }

    /// Writes and seals one data datagram; its length, or `None` if `out` is full or there is no route or key.
    fn seal(
        &mut self,
        now: Instant,
        index: usize,
        numbered: &Numbered,
        flags: Flags,
        out: &mut TxQueue,
    ) -> Option<usize> {
        let id = self.views.get(index)?.id;
        let path = path_in(&mut self.paths, id)?;
        let session = self.sessions.sending(now)?;
        let payload = numbered.packet.as_slice();
        let len = payload.len() + DATA_OVERHEAD;
        let route = path.route()?;
        let datagram = out.reserve(&route, len)?;
        let counter = path.sender().next_data();
        let header = Header {
            kind: Kind::Data,
            is_out_of_turn: flags.is_reinjected || self.ahead.is_older(numbered.global_seq),
            is_copy: flags.is_copy,
            is_kept: flags.is_kept,
            covered: 0,
            path: id,
            receiver_index: session.remote_index(),
            path_seq: Seq::of_counter(counter),
            sent_us: now.wire_micros(),
        };
        let data = DataHeader {
            global_seq: numbered.global_seq,
            path_step: path.sender().path_step(numbered.global_seq),
            flow_step: numbered.flow_step,
        };
        header.emit(Some(&data), datagram);
        let (header, body) = datagram.split_at_mut(DATA_HEADER_LEN);
        let (body, tag) = body.split_at_mut(payload.len());
        body.copy_from_slice(payload);
        tag.copy_from_slice(&session.seal(id, counter, header, body));
        if self
            .sec
            .on_sealed(now, id, Seq::of_counter(counter), datagram)
        {
            out.note_parity(&route);
        }
        Some(len)
    }

    fn on_sent(
        &mut self,
        now: Instant,
        index: usize,
        len: usize,
        global_seq: Seq,
        numbered: Option<Numbered>,
        shared: &mut Shared<'_>,
    ) {
        self.counts.packets_out += 1;
        self.repairs.on_sent(now, len);
        let view = &self.views[index];
        let Some(path) = self.paths[view.id.index()].as_deref_mut() else {
            return;
        };
        let is_kept = numbered.is_some();
        let is_expendable = numbered
            .as_ref()
            .is_some_and(|numbered| numbered.is_expendable);
        path.on_data_sent(now, len, global_seq, numbered, shared.pool);
        let id = view.id;
        if is_kept {
            self.usage.on_carried(now, id);
        }
        self.note_carried(id, is_kept && !is_expendable);
        self.fec_sending.rest(now);
        self.on_path(now, index, len);
    }

    /// Takes note of `len` bytes on the path behind `self.views[index]`.
    pub(super) fn on_path(&mut self, now: Instant, index: usize, len: usize) {
        let view = &mut self.views[index];
        let Some(path) = self.paths[view.id.index()].as_deref_mut() else {
            return;
        };
        path.on_sent(now, Bytes::of_len(len));
        view.in_flight = path.sender().in_flight();
        view.ready = path.pacer().can_send(now);
    }

    /// Gives a packet its place in the association's order and in its flow's, in which acknowledgements have none, nor has
    /// what its class says needs no order.
    pub(super) fn number(&mut self, now: Instant, mut queued: Queued) -> Numbered {
        if self.flows.is_empty() {
            self.flows.resize(FLOW_BUCKETS, 0);
        }
        let global_seq = self.next_global;
        self.next_global = global_seq.plus(1);
        let view = queued.packet.view();
        let is_pure_ack = view.is_ok_and(|view| view.is_pure_ack());
        // Before it is compressed: then its flow is known by its hash alone.
        let round_trip = self.round_trips.of(&queued.packet);
        if self.is_compressing {
            self.compressor
                .compress(now, queued.flow_hash, &mut queued.packet);
        }
        if is_pure_ack {
            return Numbered {
                global_seq,
                flow_step: 0,
                flow_hash: queued.flow_hash,
                is_expendable: true,
                round_trip,
                origin: None,
                packet: queued.packet,
            };
        }
        let flow_step = if self.is_ordered(&queued.packet) {
            self.flow_step(queued.flow_hash, global_seq)
        } else {
            0
        };
        Numbered {
            global_seq,
            flow_step,
            flow_hash: queued.flow_hash,
            is_expendable: false,
            round_trip,
            origin: None,
            packet: queued.packet,
        }
    }

    /// How far before `global_seq` the flow's last packet was; 0 if that is too far or there was none.
    fn flow_step(&mut self, flow_hash: u64, global_seq: Seq) -> u16 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "reduced to a bucket number"
        )]
        let bucket = flow_hash as usize % FLOW_BUCKETS;
        let previous = core::mem::replace(&mut self.flows[bucket], u64::from(global_seq.0) + 1);
        let previous = previous.checked_sub(1);
        match previous.and_then(|seq| u32::try_from(seq).ok()) {
            Some(previous) => u16::try_from(global_seq.distance_from(Seq(previous))).unwrap_or(0),
            None => 0,
        }
    }

    /// Refreshes what the policy sees; whether paths were held back for their rank.
    pub(super) fn view_paths(&mut self, now: Instant) -> bool {
        let mut views = core::mem::take(&mut self.views);
        views.clear();
        // One-way delays are known of paths that have carried data; until all have, half of the round trip has to do.
        let in_use = |path: &&Path| path.is_working();
        let is_measured = self
            .paths()
            .filter(in_use)
            .all(|path| path.delay().min().is_some());
        let quickest = self
            .paths()
            .filter(in_use)
            .filter_map(|path| path.delay().min())
            .reduce(|best, delay| {
                if delay.micros_from(best) < 0 {
                    delay
                } else {
                    best
                }
            });
        let least_rtt = self
            .paths()
            .filter(in_use)
            .filter_map(|path| path.rtt().min())
            .min();
        self.least_delay = least_rtt.unwrap_or_default() / 2;
        views.extend(self.paths().map(|path| {
            let usable = self.may_carry(path);
            PathView {
                id: path.id(),
                ready: usable && path.can_send(now),
                usable,
                cost: path.link().cost,
                weight: path.link().weight,
                smoothed_rtt: path.rtt().smoothed(),
                extra_delay: match (path.delay().min(), quickest) {
                    (Some(delay), Some(quickest)) if is_measured => delay.beyond(quickest),
                    _ => match (path.rtt().min(), least_rtt) {
                        (Some(rtt), Some(least)) => rtt.saturating_sub(least) / 2,
                        _ => Duration::ZERO,
                    },
                },
                rate: if self.profile.search {
                    path.rate().max().or_else(|| path.remembered_rate())
                } else {
                    path.likely_rate()
                },
                queue_delay: path.queue_delay(now),
                lateness: path.lateness(),
                least_rtt: path.rtt().min(),
                rtt_spread: path.rtt().spread(),
                jitter: path.jitter(),
                is_searching: path.is_searching(),
                loss_ppm: if self.profile.has(Mechanism::LossCost) {
                    path.loss_floor_ppm()
                } else {
                    0
                },
                is_silent: path.health().is_silent(now),
                in_flight: path.sender().in_flight(),
                staged: self.staged.bytes(path.id()),
            }
        }));
        let first = views
            .iter()
            .filter(|view| view.usable)
            .min_by_key(|view| view.extra_delay)
            .map(|view| view.id);
        for path in self.paths.iter_mut().filter_map(Option::as_deref_mut) {
            path.set_quickest(first == Some(path.id()));
        }
        let is_held_back = self.profile.ranks && hold_back(&mut views);
        self.views = views;
        is_held_back
    }

    /// Writes, seals and queues one control datagram on a path; whether there was room.
    pub(super) fn seal_control(
        &mut self,
        now: Instant,
        id: PathId,
        body: &[u8],
        out: &mut TxQueue,
    ) -> bool {
        let Some(path) = self.paths[id.index()].as_deref_mut() else {
            return false;
        };
        let Some(session) = self.sessions.sending(now) else {
            return false;
        };
        let Some(route) = path.route() else {
            return false;
        };
        let header_len = Kind::Control.header_len();
        let Some(datagram) = out.reserve(&route, header_len + body.len() + TAG_LEN) else {
            return false;
        };
        let counter = path.sender_mut().take_control();
        let header = Header {
            kind: Kind::Control,
            is_out_of_turn: false,
            is_copy: false,
            is_kept: false,
            covered: 0,
            path: id,
            receiver_index: session.remote_index(),
            path_seq: Seq::of_counter(counter),
            sent_us: now.wire_micros(),
        };
        header.emit(None, datagram);
        let (header, rest) = datagram.split_at_mut(header_len);
        let (sealed, tag) = rest.split_at_mut(body.len());
        sealed.copy_from_slice(body);
        tag.copy_from_slice(&session.seal(id.control_lane(), counter, header, sealed));
        true
    }

    /// The path with the lowest round-trip time among those that work. One that is not for data now, in reserve, is taken only if
    /// there is no other: its bytes may cost money. While none is known to work, the path heard from last.
    pub(super) fn best_path(&self) -> Option<PathId> {
        self.working_paths()
            .min_by_key(|path| (!self.is_allowed(path), distance(path)))
            .map(Path::id)
            .or_else(|| self.newest_path())
    }

    /// The next best for what must not be lost with `best`; none in reserve.
    pub(super) fn second_path(&self, best: PathId) -> Option<PathId> {
        self.working_paths()
            .filter(|path| path.id() != best && self.is_allowed(path))
            .min_by_key(|path| distance(path))
            .map(Path::id)
    }

    fn working_paths(&self) -> impl Iterator<Item = &Path> {
        let paths = self.paths();
        paths.filter(|path| path.is_working())
    }
}

fn distance(path: &Path) -> (Duration, PathId) {
    (path.rtt().smoothed().unwrap_or(Duration::MAX), path.id())
}

/// Takes the paths above the lowest rank that has a ready one out of the choice; whether there were any.
fn hold_back(views: &mut [PathView]) -> bool {
    let ready = views.iter().filter(|view| view.ready);
    let Some(rank) = ready.map(|view| view.cost).min() else {
        return false;
    };
    let mut is_held_back = false;
    for view in views.iter_mut().filter(|view| view.cost > rank) {
        is_held_back |= view.ready;
        (view.ready, view.usable) = (false, false);
    }
    is_held_back
}

#[derive(Clone, Copy)]
struct Flags {
    is_reinjected: bool,
    is_copy: bool,
    is_kept: bool,
}

/// Older packets are of no use to anybody: their senders have sent them again, or given up.
const REINJECT_WITHIN: Duration = Duration::from_secs(2);
