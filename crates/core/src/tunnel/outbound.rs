//! Processing of an outgoing packet, from the host's queue to its path.
//!
//! 1. A packet from the host waits in its lane ([`super::lanes`]).
//! 2. While some path is ready, retransmissions are sent first ([`super::repair`]). Then the next packet leaves its
//!    lane and gets its sequence numbers ([`super::lanes`]).
//! 3. The policy decides: the packet is sent on one path, or as copies on several paths; or it waits; or it is assigned
//!    to a path that is not ready yet ([`super::placement`], [`super::staged`]). A policy that works in blocks decides
//!    for many packets at once ([`super::blocks`]).
//! 4. The packet is sealed into the path's batch ([`super::egress`]).

use core::time::Duration;

use super::{
    blocks::Blocks,
    egress::Egress,
    lanes::{Blocked, Lane, Lanes, Numbering},
    path_set::PathSet,
    placement::{Limits, Placement},
    repair::Repair,
    sealer::Flags,
    shared::Shared,
    staged::Staged,
    targets::Targets,
};
use crate::{
    counters::DropReason,
    flows::{FlowId, FlowKey, FlowTable},
    ids::{PathId, Seq},
    packet::PacketBuf,
    path::{on_wire::in_datagrams, sender::Numbered},
    sched::{PacketInfo, PathView, Pick},
    time::Instant,
    units::Bytes,
};

/// The queues of one end, and the packets assigned to paths.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) flows: FlowTable,
    pub(super) lanes: Lanes,
    pub(super) numbering: Numbering,
    /// Packets assigned to paths that are not ready yet.
    pub(super) staged: Staged,
    /// The present block, if the policy works in blocks.
    blocks: Blocks,
    targets: Targets,
    /// Time before which the policy is not called again.
    wait_until: Option<Instant>,
    /// Time at which a path that has used up its tokens, or a tunnel that has reached its cap, may send again, as of
    /// the last poll.
    release_at: Option<Instant>,
}

impl Outbound {
    pub(super) fn new(lanes: Lanes, flow_key: FlowKey) -> Self {
        Self {
            flows: FlowTable::new(flow_key),
            lanes,
            numbering: Numbering::default(),
            staged: Staged::default(),
            blocks: Blocks::default(),
            targets: Targets::default(),
            wait_until: None,
            release_at: None,
        }
    }

    /// Drops all packets, and frees the memory that a tunnel without packets does not need.
    pub(super) fn release_memory(&mut self, now: Instant, shared: &mut Shared<'_>) {
        self.blocks.clear();
        for numbered in self.staged.drain() {
            shared.drop(numbered.packet, DropReason::Expired);
        }
        self.lanes.release_memory(now, shared);
        self.flows.release_memory();
        self.numbering.release_memory();
    }

    /// Returns the sequence number of the next packet.
    pub(super) const fn next_number(&self) -> Seq {
        self.numbering.next()
    }

    /// Whether a packet waits to be sent.
    pub(super) fn has_packets(&self, repair: &Repair) -> bool {
        !(self.lanes.is_empty() && repair.is_empty() && self.staged.is_empty())
    }

    /// Returns the number of packets that wait to be sent for the first time.
    pub(super) fn waiting_pkts(&self) -> usize {
        self.lanes.len() + self.staged.len()
    }

    /// Drops the copies of the last block, which only a policy that works in blocks sends.
    pub(super) fn forget_copies(&mut self) {
        self.blocks.clear();
    }

    /// Whether copies of the last block wait for a path.
    pub(super) fn has_copies(&self) -> bool {
        self.blocks.has_copies()
    }

    /// Updates the views of all paths. Returns whether paths were held back because of their rank.
    pub(super) fn refresh(
        &self,
        now: Instant,
        paths: &mut PathSet,
        placement: &mut Placement,
    ) -> bool {
        placement.refresh(now, paths, &self.staged)
    }

    /// Sets how long packets may wait. `kept` is the longest target RTT of a flow ([`super::round_trips`]).
    pub(super) fn adapt(
        &mut self,
        now: Instant,
        paths: &PathSet,
        placement: &Placement,
        kept: Duration,
    ) {
        self.targets
            .adapt(now, &mut self.lanes, (paths, placement), kept);
    }

    /// Returns the time at which a poll next has work to do: when the policy is to be called again, or when a path may
    /// send again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.wait_until, self.release_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Clears the deadlines until the next [`send`](Self::send).
    pub(super) fn stop_waiting(&mut self) {
        (self.wait_until, self.release_at) = (None, None);
    }

    /// Sends as many packets as the paths accept.
    pub(super) fn send(&mut self, egress: &mut Egress<'_, '_>) {
        if egress.placement.scheduler.blocks().is_some() {
            self.send_blocks(egress);
        } else {
            self.send_packets(egress);
        }
    }

    /// Records when a path may send again, or the limit of the rate permits it, and which paths are full while packets
    /// wait.
    pub(super) fn after_send(&mut self, now: Instant, paths: &mut PathSet, repair: &Repair) {
        let has_packets = self.has_packets(repair);
        if has_packets || self.blocks.has_copies() || repair.fec.is_owed() {
            self.release_at = paths.next_release(now);
        }
        if has_packets {
            paths.note_limited(now);
        }
        if !self.lanes.is_empty() {
            let capped = self.lanes.meter.next_at().filter(|at| *at > now);
            self.release_at = [self.release_at, capped].into_iter().flatten().min();
        }
    }

    fn send_packets(&mut self, egress: &mut Egress<'_, '_>) {
        let mut is_held_back = self.look(egress);
        let mut waits = Waits::default();
        self.send_staged(egress);
        while !egress.is_full() && !self.staged.is_full() {
            if !egress.placement.views.any_ready() {
                if !is_held_back {
                    return;
                }
                // The paths of this rank are full, so use the paths of the next rank.
                is_held_back = self.look(egress);
                continue;
            }
            if egress.send_symbol(!self.has_packets(egress.repair)) {
                continue;
            }
            let Some((lane, numbered)) = self.next(&mut waits, egress) else {
                return;
            };
            match self.pick(lane, &numbered, egress) {
                Pick::Wait => {
                    self.wait_until = Some(egress.now() + WAIT);
                    let Some(lane) = lane else {
                        let lane = self.lanes.lane_again(&numbered.packet);
                        waits.again.insert_again(lane);
                        egress.repair.put_back(numbered);
                        continue;
                    };
                    self.lanes.put_back(lane, numbered);
                    waits.lanes.insert(lane);
                    while lane == Lane::Urgent && self.send_newest(egress) {}
                }
                Pick::Behind { index, ahead } => {
                    let flow = numbered.flow;
                    let (lanes, numbering) = (&mut self.lanes, &mut self.numbering);
                    let behind = lanes.next_behind(flow, ahead, numbering, egress);
                    lanes.put_back(Lane::Bulk, numbered);
                    let Some(behind) = behind else {
                        self.wait_until = Some(egress.now() + WAIT);
                        waits.lanes.insert(Lane::Bulk);
                        continue;
                    };
                    self.act(Pick::One(index), behind, false, egress);
                }
                pick @ (Pick::One(_) | Pick::Copies(_) | Pick::Shadowed { .. }) => {
                    self.act(pick, numbered, lane.is_none(), egress);
                }
            }
        }
    }

    /// Returns the next packet to send, with its lane; `None` instead of the lane for a retransmission.
    fn next(
        &mut self,
        waits: &mut Waits,
        egress: &mut Egress<'_, '_>,
    ) -> Option<(Option<Lane>, Numbered)> {
        if !waits.is_again_done {
            if let Some(numbered) = self.next_again(waits.again, egress) {
                return Some((None, numbered));
            }
            waits.is_again_done = waits.again.is_any();
        }
        let (lane, numbered) = self.lanes.next(waits.lanes, &mut self.numbering, egress)?;
        Some((Some(lane), numbered))
    }

    /// Updates the views. Returns whether paths were held back because of their rank.
    fn look(&self, egress: &mut Egress<'_, '_>) -> bool {
        let now = egress.now();
        self.refresh(now, egress.sealer.paths, egress.placement)
    }

    /// Lets the policy choose the path of a packet. `lane` is `None` for a retransmission.
    fn pick(&self, lane: Option<Lane>, numbered: &Numbered, egress: &mut Egress<'_, '_>) -> Pick {
        let (packet, flow) = (&numbered.packet, numbered.flow);
        let backlog = self.lanes.backlog(lane.unwrap_or(Lane::Bulk), packet);
        let to_last = match lane {
            None => Bytes::ZERO,
            Some(Lane::Pinned(_)) => backlog,
            Some(Lane::Urgent | Lane::Bulk) => self.lanes.bytes_to_last(flow),
        };
        let info = PacketInfo {
            is_expendable: numbered.is_expendable,
            backlog,
            to_last,
            round_trip: numbered.round_trip,
            has_behind: lane == Some(Lane::Bulk) && self.lanes.has_behind(flow),
            ..self.info_of(packet, flow, egress)
        };
        // Avoid the path from which the packet was requeued, because the packet would arrive late there.
        let taken = numbered.origin.filter(|origin| !origin.is_lost);
        self.pick_for(&info, packet, taken.map(|origin| origin.path), egress)
    }

    /// Returns the part of the policy's input that does not depend on the packet's lane.
    fn info_of(&self, packet: &PacketBuf, flow: FlowId, egress: &Egress<'_, '_>) -> PacketInfo {
        let least_delay = egress.placement.views.least_delay();
        let services = &self.lanes.services;
        PacketInfo {
            flow,
            own_backlog: self.lanes.flow_bytes(flow),
            urgency: services.urgency(egress.now(), packet, least_delay),
            ..PacketInfo::of_len(in_datagrams(Bytes::of_len(packet.len()), 1))
        }
    }

    fn pick_for(
        &self,
        info: &PacketInfo,
        packet: &PacketBuf,
        avoided: Option<PathId>,
        egress: &mut Egress<'_, '_>,
    ) -> Pick {
        let paths = &*egress.sealer.paths;
        if self.lanes.services.must_wait(packet, paths) {
            return Pick::Wait;
        }
        let (wide, narrow) = egress.lengths.wide_and_narrow(packet.len(), paths);
        let limits = Limits {
            wanted: self.lanes.services.wanted_paths(packet, paths),
            avoided,
            wide,
            narrow,
        };
        let now = egress.sealer.now;
        egress
            .placement
            .pick(now, info, limits, paths, egress.tracer)
    }

    /// Sends a packet as the policy has decided. The decision must not be to wait.
    fn act(
        &mut self,
        pick: Pick,
        numbered: Numbered,
        is_reinjected: bool,
        egress: &mut Egress<'_, '_>,
    ) {
        let is_ahead = self.lanes.is_out_of_turn(numbered.global_seq);
        let flags = Flags {
            is_out_of_turn: is_reinjected || is_ahead,
            answer_paths: self.answer_paths(&numbered.packet, egress),
            ..Flags::default()
        };
        match pick {
            // The callers handle these two decisions.
            Pick::Wait | Pick::Behind { .. } => egress.repair.put_back(numbered),
            Pick::One(index)
                if egress.profile().look_ahead && !egress.placement.views[index].ready =>
            {
                let views = &mut egress.placement.views;
                self.staged.keep(views, index, numbered, is_reinjected);
            }
            Pick::One(index) => egress.send_once(index, numbered, flags),
            // If there is only one copy, its buffer is retained like that of any packet.
            Pick::Copies(set) if set.count_ones() == 1 => {
                let index = set.trailing_zeros() as usize;
                egress.send_once(index, numbered, flags);
            }
            Pick::Shadowed { index, copies } => {
                let of_copies = Flags {
                    is_out_of_turn: is_ahead,
                    ..flags
                };
                let sent = egress.send_shadows(copies, &numbered, of_copies);
                self.lanes.services.charge_copies(sent, &numbered);
                egress.send_once(index, numbered, flags);
            }
            Pick::Copies(set) => egress.send_copies(set, numbered, flags),
        }
    }

    /// Returns the paths on which the answers to a packet are wanted, as a set with bit *i* for path *i*. Under a
    /// policy that works in blocks, neither packets nor their answers are restricted to links.
    fn answer_paths(&self, packet: &PacketBuf, egress: &Egress<'_, '_>) -> u16 {
        if packet.mark().is_none() || egress.placement.scheduler.works_in_blocks() {
            return 0;
        }
        let services = &self.lanes.services;
        services.answer_paths(packet, egress.sealer.paths)
    }

    /// Returns the next packet to retransmit that may still be useful and whose lane is not `blocked`. The packet was
    /// lost or requeued from a path that was silent or had become slow.
    pub(super) fn next_again(
        &mut self,
        blocked: Blocked,
        egress: &mut Egress<'_, '_>,
    ) -> Option<Numbered> {
        let now = egress.now();
        let least_delay = egress.placement.views.least_delay();
        loop {
            let lanes = &self.lanes;
            let is_next = |next: &Numbered| {
                // A packet waits here while older packets of its flow wait in `ahead`, and is sent after them.
                let is_behind =
                    lanes.ahead.is_of(next.flow) && lanes.ahead.is_older(next.global_seq);
                let waits = blocked.is_any() && blocked.has_again(lanes.lane_again(&next.packet));
                !is_behind && !waits
            };
            let numbered = egress.repair.take(is_next)?;
            let due = numbered.packet.mark().and_then(|mark| mark.due);
            let origin = numbered.origin;
            if due.is_some_and(|due| now + least_delay > due) {
                let services = &mut self.lanes.services;
                services.give_up(numbered.packet, egress.shared);
            } else if egress
                .lengths
                .fits_nowhere(&numbered.packet, egress.sealer.paths)
            {
                egress.shared.drop(numbered.packet, DropReason::TooLong);
            } else if let Some(reason) = lanes.services.refusal(&numbered.packet, egress) {
                let services = &mut self.lanes.services;
                services.refuse(numbered.packet, reason, egress.shared);
            } else if origin.is_some_and(|origin| now.since(origin.sent_at) > REINJECT_WITHIN) {
                egress.shared.drop(numbered.packet, DropReason::Expired);
            } else {
                return Some(numbered);
            }
        }
    }

    /// Sends the newest urgent packet that needs no order, if a ready path would deliver it in time. Returns whether
    /// the packet was sent.
    fn send_newest(&mut self, egress: &mut Egress<'_, '_>) -> bool {
        let is_capped = !self.lanes.meter.can_pass(egress.now());
        if is_capped || egress.is_full() || !egress.placement.views.any_ready() {
            return false;
        }
        let Some((queued, before)) = self.lanes.take_newest() else {
            return false;
        };
        let (packet, flow) = (&queued.packet, queued.flow);
        let info = PacketInfo {
            backlog: before,
            ..self.info_of(packet, flow, egress)
        };
        let pick = self.pick_for(&info, packet, None, egress);
        if pick == Pick::Wait {
            self.lanes.put_back_newest(queued);
            return false;
        }
        let numbering = &mut self.numbering;
        let numbered = self.lanes.number_newest(queued, numbering, egress);
        self.act(pick, numbered, false, egress);
        true
    }

    /// Sends packets like [`send_packets`](Self::send_packets), but for a policy that works in blocks.
    fn send_blocks(&mut self, egress: &mut Egress<'_, '_>) {
        let mut is_held_back = self.look(egress);
        self.send_staged(egress);
        while !egress.is_full() && !self.staged.is_full() {
            let is_free = |view: &PathView| view.ready && view.staged == Bytes::ZERO;
            if !egress.placement.views.iter().any(is_free) {
                if !is_held_back {
                    break;
                }
                is_held_back = self.look(egress);
                continue;
            }
            self.take_block(egress);
            if self.blocks.is_empty() {
                break;
            }
            let base = self.numbering.next();
            let left = self
                .blocks
                .place(egress.now(), egress.placement, &mut self.staged);
            egress.repair.extend(left, base);
            self.send_staged(egress);
        }
        let is_new =
            !self.lanes.bulk.is_empty() || self.lanes.has_others() || !egress.repair.is_empty();
        if !is_new {
            self.blocks.send_copies(&self.staged, egress);
        }
    }

    /// Moves the packets of the next block from the queues to the block.
    fn take_block(&mut self, egress: &mut Egress<'_, '_>) {
        while self.blocks.has_room() {
            if let Some(numbered) = self.next_again(Blocked::default(), egress) {
                self.blocks.push(numbered, true, &self.lanes);
            } else if let Some((_, numbered)) =
                self.lanes
                    .next(Blocked::default(), &mut self.numbering, egress)
            {
                self.blocks.push(numbered, false, &self.lanes);
            } else {
                return;
            }
        }
    }

    /// Sends staged packets on the paths that are ready now.
    fn send_staged(&mut self, egress: &mut Egress<'_, '_>) {
        if self.staged.is_empty() {
            return;
        }
        let is_usable = |id| {
            let mut views = egress.placement.views.iter();
            views.any(|view| view.id == id && view.usable)
        };
        let recalled = self.staged.recall(is_usable);
        egress.repair.extend(recalled, self.numbering.next());
        for index in 0..egress.placement.views.len() {
            let id = egress.placement.views[index].id;
            while egress.placement.views[index].ready && !egress.is_full() {
                let Some((numbered, is_reinjected)) = self.staged.pop(id) else {
                    break;
                };
                let is_ahead = self.lanes.is_out_of_turn(numbered.global_seq);
                let flags = Flags {
                    is_out_of_turn: is_reinjected || is_ahead,
                    answer_paths: self.answer_paths(&numbered.packet, egress),
                    ..Flags::default()
                };
                egress.send_once(index, numbered, flags);
            }
            let staged = self.staged.bytes(id);
            egress.placement.views.set_staged(index, staged);
        }
    }

    /// Resets the state. Returns the packets that had sequence numbers.
    pub(super) fn reset(&mut self) -> impl Iterator<Item = Numbered> {
        self.blocks.clear();
        self.targets = Targets::default();
        self.numbering = Numbering::default();
        self.lanes.services.answers.release_memory();
        self.stop_waiting();
        self.staged.drain().chain(self.lanes.drain_numbered())
    }
}

/// The packets that wait for a path in one pass over the queues.
#[derive(Debug, Default)]
struct Waits {
    lanes: Blocked,
    /// The lanes whose retransmissions wait.
    again: Blocked,
    /// Whether all retransmissions wait.
    is_again_done: bool,
}

/// Duration after which the policy is called again when it has returned [`Pick::Wait`].
const WAIT: Duration = Duration::from_millis(1);
/// Maximum age of a retransmission. Older packets are useless, because their senders have retransmitted them or given
/// up.
const REINJECT_WITHIN: Duration = Duration::from_secs(2);
